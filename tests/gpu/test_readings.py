"""Every reading as the driver gives it, with its code: kept as a fake's truth."""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pynvml as nv
import pytest

from collectors.contract.readings import GpuInfo, GpuSample
from collectors.hardware.gpu_source import KINDS, GpuOptions, ReadInterval
from collectors.hardware.nvml import NvmlSource
from tests.gpu.conftest import FOLDER, Figures

pytestmark = pytest.mark.gpu

MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
FIELDS = (
    *(3, 4, 74, 75, 76, 77, 82, 83, 138, 139, 142, 143, 144, 145),
    *(185, 186, 193, 194, 195, 196, 197, 198, 202, 204, 251, 252, 253, 269, 270, 271),
)


def clock(ask: Callable[[Any, int], int], number: int, gpu: Any) -> int:
    """One of its clocks."""
    return ask(gpu, number)


CALLS: dict[str, Callable[[Any], object]] = {
    "name": nv.nvmlDeviceGetName,
    "architecture": nv.nvmlDeviceGetArchitecture,
    "bus_bits": nv.nvmlDeviceGetMemoryBusWidth,
    "pci": lambda gpu: nv.nvmlDeviceGetPciInfo(gpu).busId,
    "virtualization": nv.nvmlDeviceGetVirtualizationMode,
    "mig_mode": nv.nvmlDeviceGetMigMode,
    "power_mw": nv.nvmlDeviceGetPowerUsage,
    "power_limit_mw": nv.nvmlDeviceGetEnforcedPowerLimit,
    "energy_mj": nv.nvmlDeviceGetTotalEnergyConsumption,
    "reasons": nv.nvmlDeviceGetCurrentClocksEventReasons,
    "temperature": lambda gpu: nv.nvmlDeviceGetTemperatureV(gpu, 0),
    "utilisation": lambda gpu: plain(nv.nvmlDeviceGetUtilizationRates(gpu)),
    "memory": lambda gpu: plain(nv.nvmlDeviceGetMemoryInfo(gpu)),
    "memory_v2": lambda gpu: plain(nv.nvmlDeviceGetMemoryInfo(gpu, nv.nvmlMemory_v2)),
    "processes": lambda gpu: len(nv.nvmlDeviceGetComputeRunningProcesses(gpu)),
    "gpm": lambda gpu: nv.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice,
    "gpm_streaming": nv.nvmlGpmQueryIfStreamingEnabled,
    "events": nv.nvmlDeviceGetSupportedEventTypes,
    **{
        f"{kind}_clock_{number}": partial(clock, ask, number)
        for kind, ask in (
            ("current", nv.nvmlDeviceGetClockInfo),
            ("max", nv.nvmlDeviceGetMaxClockInfo),
        )
        for number in range(4)
    },
}


def test_every_reading_is_kept_with_its_code(gpu: Any) -> None:
    kept = {
        "driver": nv.nvmlSystemGetDriverVersion(),
        "cuda": nv.nvmlSystemGetCudaDriverVersion(),
        "calls": {name: outcome(call, gpu) for name, call in CALLS.items()},
        "fields": {number: field(gpu, number) for number in FIELDS},
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = json.dumps(kept, indent=2)
    (FOLDER / "readings.json").write_text(text + "\n", encoding="utf-8")
    assert kept["calls"]["name"]["code"] == 0


def test_what_we_read_of_it_and_what_not(gpu: Any, figures: Figures) -> None:
    """Two sweeps: what stays unknown has a reason, and a sweep its price."""
    source = NvmlSource(time.monotonic_ns, GpuOptions(gpus=("all",)), lambda _: None)
    found = [*source.probe(), *source.read(set(ReadInterval))]
    time.sleep(1.1)
    began_s = time.perf_counter()
    told = source.read(set(ReadInterval))
    took_ms = (time.perf_counter() - began_s) * 1000
    source.close()
    infos = [each for each in (*found, *told) if isinstance(each, GpuInfo)]
    samples = [each for each in told if isinstance(each, GpuSample)]
    assert samples
    figures["a sweep of everything, ms"] = took_ms
    figures["read"] = msgspec.to_builtins(samples)
    figures["not read"] = {each.source: each.missing for each in infos}
    for sample in samples:
        known = {name for name in KINDS if getattr(sample, name) is not None}
        missing = {each.source: each.missing for each in infos}[sample.source]
        unexplained = set(KINDS) - known - set(missing)
        assert unexplained <= {"throttled_ns", "peak_bytes_per_s"}


def outcome(call: Callable[[Any], object], gpu: Any) -> dict[str, object]:
    """Its code, and its value if there is one."""
    try:
        return {"code": 0, "value": call(gpu)}
    except nv.NVMLError as error:
        return {"code": int(error.value)}


def field(gpu: Any, number: int) -> dict[str, object]:
    """One field value, and what it took the driver."""
    [told] = nv.nvmlDeviceGetFieldValues(gpu, [number])
    if told.nvmlReturn:
        return {"code": told.nvmlReturn}
    value = getattr(told.value, MEMBERS[told.valueType])
    return {
        "code": 0,
        "type": told.valueType,
        "value": value,
        "latency_us": told.latencyUsec,
    }


def plain(struct: Any) -> dict[str, int]:
    """A struct as a dict."""
    return {name: getattr(struct, name) for name, _ in struct._fields_}
