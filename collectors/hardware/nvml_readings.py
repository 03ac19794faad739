"""Tables of NVML readings: the call or field id of each, and how often it is read.

Calls that block (PCIe throughput, 20 ms each) are left out.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml

from collectors.hardware.gpm import METRICS
from collectors.hardware.gpu_source import ReadInterval
from collectors.hardware.nvml_errors import NOT_SUPPORTED

Values = dict[str, Any]
"""Values by field of GpuSample."""
KIB = 1024
ALL_LINKS = 2**32 - 1
GPM = "gpm"
FIELD_CALL = "fields"
PROCESSES = "processes"


class FieldReading(NamedTuple):
    """A field id read by nvmlDeviceGetFieldValues."""

    id: int
    field: str
    pace: ReadInterval
    unit: int = 1
    scope: int = 0
    key: str | None = None
    """Key, where the GpuSample field is a mapping."""
    per: int = 1
    """Divisor to convert to our unit."""
    counts: bool = False
    """The value is a counter, reported as a rate."""

    @property
    def name(self) -> str:
        """Name under which failures of the field are tracked."""
        return f"{self.field} {self.id}"


FIELDS = (
    FieldReading(186, "power_w", ReadInterval.EACH, per=1000),
    FieldReading(83, "energy_mj", ReadInterval.EACH),
    FieldReading(74, "throttled_ns", ReadInterval.SECOND, key="power_cap"),
    FieldReading(76, "throttled_ns", ReadInterval.SECOND, key="sync_boost"),
    FieldReading(269, "throttled_ns", ReadInterval.SECOND, key="thermal"),
    FieldReading(270, "throttled_ns", ReadInterval.SECOND, key="hw_thermal"),
    FieldReading(271, "throttled_ns", ReadInterval.SECOND, key="power_brake"),
    FieldReading(82, "memory_temperature_c", ReadInterval.FEW_SECONDS),
    FieldReading(3, "ecc_corrected", ReadInterval.HALF_MINUTE),
    FieldReading(4, "ecc_uncorrected", ReadInterval.HALF_MINUTE),
)
LINKS = (
    FieldReading(197, "pcie_tx_bytes_per_s", ReadInterval.SECOND, counts=True),
    FieldReading(198, "pcie_rx_bytes_per_s", ReadInterval.SECOND, counts=True),
    FieldReading(
        138, "nvlink_tx_bytes_per_s", ReadInterval.SECOND, KIB, ALL_LINKS, counts=True
    ),
    FieldReading(
        139, "nvlink_rx_bytes_per_s", ReadInterval.SECOND, KIB, ALL_LINKS, counts=True
    ),
)
"""Read where GPM does not provide them."""
SLOWDOWNS = range(269, 272)
"""Field ids that depend on the driver version."""


def slowdown_shift(driver: str | None) -> int | None:
    """Offset of the ids of slowdown times in a driver; None if it does not count them.

    They were 251 to 253 from 575 to 580.65. Today's ids meant settings of power
    profiles then, so the driver version decides, not the binding's.
    """
    numbers = (driver or "").split(" ")[0].split(".")[:2]
    version = [int(number) for number in numbers if number.isdecimal()]
    if not version or version >= [580, 82]:
        return 0
    return -18 if version >= [575] else None


MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of the value union, by NVML value type."""


class CallReading(NamedTuple):
    """A reading with an NVML call of its own, and alternatives for older drivers."""

    name: str
    pace: ReadInterval
    ways: tuple[Callable[[Any], Values], ...]
    tells: tuple[str, ...] = ()
    """GpuSample fields it provides; empty: the one of its name."""
    instead_of: str | None = None
    """Name of a field in FIELDS that must be unavailable for this to be read."""

    @property
    def fields(self) -> tuple[str, ...]:
        return self.tells or (self.name,)


def _memory(handle: Any) -> Values:
    info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    if not info.total:
        raise pynvml.NVMLError(NOT_SUPPORTED)
    return {"memory_used_bytes": info.used, "memory_reserved_bytes": info.reserved}


def _memory_of_old(handle: Any) -> Values:
    info = pynvml.nvmlDeviceGetMemoryInfo(handle)
    if not info.total:
        raise pynvml.NVMLError(NOT_SUPPORTED)
    return {"memory_used_bytes": info.used}


def _busy(handle: Any) -> Values:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    percents = {"gpu_busy": rates.gpu, "memory_busy": rates.memory}
    return {name: share / 100 for name, share in percents.items() if share <= 100}


def _sm_clock(handle: Any) -> Values:
    mhz = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    return {"sm_clock_mhz": mhz}


def _memory_clock(handle: Any) -> Values:
    mhz = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)
    return {"memory_clock_mhz": mhz}


def _limit(handle: Any) -> Values:
    return {"power_limit_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000}


def _power(handle: Any) -> Values:
    return {"power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000}


def _energy(handle: Any) -> Values:
    return {"energy_mj": pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)}


def _reasons(handle: Any) -> Values:
    bits = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    return {"throttle_reasons": bits}


def _reasons_of_old(handle: Any) -> Values:
    bits = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return {"throttle_reasons": bits}


def _temperature(handle: Any) -> Values:
    core = pynvml.NVML_TEMPERATURE_GPU
    return {"temperature_c": pynvml.nvmlDeviceGetTemperatureV(handle, core)}


def _temperature_of_old(handle: Any) -> Values:
    core = pynvml.NVML_TEMPERATURE_GPU
    return {"temperature_c": pynvml.nvmlDeviceGetTemperature(handle, core)}


MEMORY = CallReading(
    "memory_used_bytes",
    ReadInterval.SECOND,
    (_memory, _memory_of_old),
    ("memory_used_bytes", "memory_reserved_bytes"),
)
DIRECT = (
    CallReading("power_w", ReadInterval.EACH, (_power,), instead_of="power_w 186"),
    CallReading("energy_mj", ReadInterval.EACH, (_energy,), instead_of="energy_mj 83"),
    CallReading("gpu_busy", ReadInterval.SECOND, (_busy,), ("gpu_busy", "memory_busy")),
    CallReading("sm_clock_mhz", ReadInterval.SECOND, (_sm_clock,)),
    CallReading("memory_clock_mhz", ReadInterval.SECOND, (_memory_clock,)),
    CallReading("throttle_reasons", ReadInterval.SECOND, (_reasons, _reasons_of_old)),
    MEMORY,
    CallReading("power_limit_w", ReadInterval.FEW_SECONDS, (_limit,)),
    CallReading(
        "temperature_c", ReadInterval.FEW_SECONDS, (_temperature, _temperature_of_old)
    ),
)
PROCESS_LISTS = (
    pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
    pynvml.nvmlDeviceGetComputeRunningProcesses_v2,
)

Providers = dict[str, list[tuple[str, ...]]]
"""Alternative sources of each field; a source is a tuple of readings that must all
work."""


def metric_name(field: str) -> str:
    """Name under which failures of one GPM metric are tracked."""
    return f"{GPM} {field}"


def _providers() -> tuple[Providers, Providers]:
    """Providers of a whole GPU, and of a MIG slice."""
    by_counters: Providers = {name: [(GPM, metric_name(name))] for name in METRICS}
    memory: Providers = {name: [(MEMORY.name, name)] for name in MEMORY.tells}
    of_slice: Providers = {**by_counters, **memory, PROCESSES: [(PROCESSES,)]}
    of_gpu = {name: list(ways) for name, ways in of_slice.items()}
    for each in (*FIELDS, *LINKS):
        of_gpu.setdefault(each.field, []).append((FIELD_CALL, each.name))
    for direct in DIRECT:
        for field in direct.fields:
            if direct is not MEMORY:
                of_gpu.setdefault(field, []).append((direct.name,))
    return of_gpu, of_slice


OF_GPU, OF_SLICE = _providers()
