"""Peaks of an engine's devices, from GPU info and measurements."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import msgspec

from collectors.contract.readings import Endpoint, EngineInfo, GpuInfo, MeasuredPeak
from inferwatch.limits.devices import device_named
from inferwatch.metrics.floor.view import EnginePeak

MOST_DEVICES = 100
CPU = "cpu"
BY_SHEET = "data sheet"
BY_YOU = "you (--peak-tflops)"
BY_MEASURE = "measured here"
NOT_MEASURED = (
    "What this host's memory and cores can do was not measured: run inferwatch doctor "
    "--measure-peak once."
)
NO_GPU = (
    "The GPUs of the engine are not among those that are read here (--gpus, --dcgm): "
    "what they can do is not known."
)
NO_PEAK = (
    "What the engine's GPUs can do is not known: give --peak-gbps and --peak-tflops."
)
HERE = frozenset({"", "127.0.0.1", "::1", "localhost"})


class SavedDevices(msgspec.Struct, array_like=True):
    """The state of Devices as checkpoints keep it."""

    gpus: dict[str, GpuInfo]
    measured: dict[str, MeasuredPeak]


class Devices:
    """GPUs and measured peaks of the whole session, of all engines."""

    def __init__(self) -> None:
        self.changes = 0
        """Number of changes; what was computed before the latest is out of date."""
        self._gpus: dict[str, GpuInfo] = {}
        """GPUs by UUID."""
        self._measured: dict[str, MeasuredPeak] = {}
        """Peaks by host (empty for this one) or GPU UUID."""

    def gpu(self, info: GpuInfo) -> None:
        if info.uuid and (info.uuid in self._gpus or len(self._gpus) < MOST_DEVICES):
            self._gpus[info.uuid] = info
            self.changes += 1

    def measured(self, peak: MeasuredPeak) -> None:
        if peak.source in self._measured or len(self._measured) < MOST_DEVICES:
            self._measured[peak.source] = peak
            self.changes += 1

    def peak_of(self, need: "Need") -> EnginePeak:
        """Return the combined peak of one rank's devices, as far as known."""
        if need.info.device == CPU:
            return self._of_host(need)
        return self._of_gpus(need)

    def saved(self) -> SavedDevices:
        return SavedDevices(self._gpus, self._measured)

    def restore(self, saved: SavedDevices) -> None:
        self._gpus, self._measured = saved.gpus, saved.measured
        self.changes += 1

    def _of_host(self, need: "Need") -> EnginePeak:
        """Return the measured peak of the host's CPU, all cores together."""
        peak = EnginePeak(dtype=need.dtype)
        measured = self._measured.get(_host_of(need.endpoint))
        if measured is None:
            return peak
        return replace(
            peak,
            bytes_per_s=_read_at_best(measured, need.weight_bytes),
            flops=measured.flops.get(need.dtype or ""),
            device=measured.device,
            read_from=BY_MEASURE,
        )

    def _of_gpus(self, need: "Need") -> EnginePeak:
        """Return the peak of the rank's GPUs; of any GPU if all are alike."""
        info, count = need.info, devices_of(need.info)
        peak = EnginePeak(dtype=need.dtype, devices=count)
        gpus = [self._gpus[uuid] for uuid in info.gpus if uuid in self._gpus]
        if not gpus and not info.gpus:
            gpus = [gpu for gpu in self._gpus.values() if gpu.parent_uuid is None]
        names = {gpu.name for gpu in gpus}
        if not gpus or len(names) > 1:
            return peak
        first, each = gpus[0], device_named(gpus[0].name or "")
        bandwidths = [gpu.peak_bytes_per_s for gpu in gpus if gpu.peak_bytes_per_s]
        bandwidth = min(bandwidths) if len(bandwidths) == len(gpus) else None
        read_from = first.peak_from
        if bandwidth is None and each is not None and first.parent_uuid is None:
            bandwidth, read_from = each.bytes_per_s, BY_SHEET
        flops = None
        if each is not None and first.parent_uuid is None:
            flops = each.flops_at(need.dtype or "")
        if first.peak_flops is not None:
            flops = first.peak_flops
            read_from = f"{read_from}, {BY_YOU}" if read_from else BY_YOU
        return replace(
            peak,
            bytes_per_s=None if bandwidth is None else count * bandwidth,
            flops=None if flops is None else count * flops,
            device=first.name,
            read_from=read_from,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A rank, with what its peak depends on."""

    info: EngineInfo
    endpoint: Endpoint | None = None
    dtype: str | None = None
    """The dtype in which the model computes."""
    weight_bytes: float | None = None
    """Weight bytes that each step reads."""


def devices_of(info: EngineInfo) -> int:
    """Return the number of GPUs of a rank, over all tensor and pipeline ranks."""
    return (info.tensor_parallel or 1) * (info.pipeline_parallel or 1)


def missing_peaks(
    peaks: Sequence[EnginePeak], infos: Sequence[EngineInfo]
) -> list[str]:
    """Return sentences that say how to provide the peaks that are not known."""
    on_cpu = any(info.device == CPU for info in infos)
    dtype = next((p.dtype for p in peaks if p.flops is None and p.dtype), None)
    if any(peak.bytes_per_s is None for peak in peaks):
        if on_cpu:
            return [NOT_MEASURED]
        return [NO_GPU if any(peak.device is None for peak in peaks) else NO_PEAK]
    if dtype is None:
        return []
    sentence = (
        f"How fast these cores multiply {dtype} was not measured"
        if on_cpu
        else f"How fast these GPUs multiply {dtype} is not known: give --peak-tflops"
    )
    return [f"{sentence}; floors are of memory alone."]


def _host_of(endpoint: Endpoint | None) -> str:
    """Return the host of an endpoint's URL; empty for this one."""
    url = endpoint.url if endpoint is not None else None
    host = urlsplit(url or "").hostname or ""
    return "" if host in HERE else host


def _read_at_best(measured: MeasuredPeak, weight_bytes: float | None) -> float | None:
    """Return the highest bandwidth at which a step can read its weights.

    Weights that fit into CPU caches are read at the rate of the largest measured set
    that is no larger, so that the floor stays a lower bound.
    """
    known = [measured.bytes_per_s, measured.read_bytes_per_s]
    sizes = sorted(measured.cached_bytes_per_s)
    if sizes and weight_bytes is not None:
        below = [size for size in sizes if size <= weight_bytes]
        known.append(measured.cached_bytes_per_s[below[-1] if below else sizes[0]])
    return max((each for each in known if each), default=None)
