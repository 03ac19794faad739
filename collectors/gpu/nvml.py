"""GPUs by NVML: which there are, and why they are absent when they are.

Every NVML call may fail on its own; a failure is a reason to show, never a crash.
"""

import pynvml

from collectors.readings import GpuInfo

_REASONS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission to read the NVIDIA driver",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "NVIDIA driver and library differ: reboot"
    ),
}


def describe_gpus(t_ns: int) -> list[GpuInfo]:
    """One reading for each GPU, or one that says why there is none."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [GpuInfo(t_ns=t_ns, absent_because=_reason(error))]
    try:
        return _present(t_ns) or [GpuInfo(t_ns=t_ns, absent_because="no NVIDIA GPU")]
    except pynvml.NVMLError as error:
        return [GpuInfo(t_ns=t_ns, absent_because=_reason(error))]
    finally:
        pynvml.nvmlShutdown()


def _present(t_ns: int) -> list[GpuInfo]:
    handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
    return [
        GpuInfo(
            t_ns=t_ns,
            name=pynvml.nvmlDeviceGetName(handle),
            uuid=pynvml.nvmlDeviceGetUUID(handle),
        )
        for handle in handles
    ]


def _reason(error: pynvml.NVMLError) -> str:
    return _REASONS.get(error.value, f"NVML: {error}")
