"""GPUs: latest values, values over the window, and charts."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import GpuInfo, GpuProcesses, GpuSample
from inferwatch.metrics.hardware.view import GpuState, GpuTimeline
from inferwatch.metrics.series.curves import Grid
from inferwatch.metrics.series.histograms import Floats
from inferwatch.metrics.series.saving import Parts, WrittenParts
from inferwatch.metrics.series.spans import SavedSpans, Spans, told_of
from inferwatch.metrics.series.window import Window

MOST_GPUS = 100
MOST_PROCESSES = 1_000
HELD_NS = 10 * NS_PER_S
"""Longest time since the previous sample that a sample stands for."""
MOST_APART_NS = 60 * NS_PER_S
"""Longest time between two readings of a counter for a rate."""
LONG_AGO_NS = -MOST_APART_NS - 1
ABSURD = 1e18
"""Values from this on are errors; NaN is not below it either."""

THROTTLES = {
    "power_cap": "power cap",
    "thermal": "software thermal",
    "hw_thermal": "hardware thermal",
    "power_brake": "power brake",
    "hw_slowdown": "hardware slowdown",
    "sync_boost": "sync boost",
}
"""Names of the reasons for which clocks are throttled."""
BITS = {
    0x4: "power_cap",
    0x20: "thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
}
"""NVML's clocks event reasons, without an idle GPU and clocks set by users."""

AVERAGES = ("sm_active", "sm_occupancy", "tensor_active")
MOMENTS = ("gpu_busy", "memory_busy", "power_w", "sm_clock_mhz", "memory_used_bytes")
DERIVED = ("hbm_bytes_per_s", "hbm_share", "pcie_bytes_per_s", "nvlink_bytes_per_s")
ENERGY = "energy_w"
CHANNELS = (*AVERAGES, *MOMENTS, *DERIVED, ENERGY, *THROTTLES)
PLACE = {name: 2 * number for number, name in enumerate(CHANNELS)}
"""Index of each channel in a row: value x time, followed by the time."""
WIDTH = 2 * len(CHANNELS)
LATEST = (
    *AVERAGES,
    *MOMENTS,
    "power_limit_w",
    "memory_clock_mhz",
    "temperature_c",
    "memory_temperature_c",
    "memory_reserved_bytes",
    "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s",
    "ecc_corrected",
    "ecc_uncorrected",
)
"""Fields that GpuSample and GpuState have under the same name."""
PEAKS = ("peak_bytes_per_s", "sheet_bytes_per_s")
KEPT = (*LATEST, "dram_active", "peak_bytes_per_s", "throttle_reasons")
TIMELINE = tuple(
    name
    for name in GpuTimeline.__dataclass_fields__
    if name not in {"throttled", "power_w"}
)


class SavedGpu(msgspec.Struct, array_like=True):
    """A Gpu as checkpoints keep it."""

    info: GpuInfo
    latest: GpuSample | None
    average: tuple[int, str] | None
    read_ns: dict[str, int]
    counted: dict[str, tuple[int, int]]
    memory_by_pid: dict[int, int | None]
    spans: SavedSpans


class SavedGpus(msgspec.Struct, array_like=True):
    """A GpuTracker as checkpoints keep it."""

    gpus: list[SavedGpu]
    absent_because: str | None


class Gpu:
    """One GPU or MIG slice."""

    def __init__(self, info: GpuInfo) -> None:
        self.info = info
        self.last_ns: int | None = None
        self.memory_by_pid: dict[int, int | None] = {}
        self.spans = Spans(WIDTH)
        self._latest: dict[str, Any] = {}
        """Latest values by field of GpuSample."""
        self._average: tuple[int, str] | None = None
        """Span of the latest averages in nanoseconds, and who measured them."""
        self._read_ns: dict[str, int] = {}
        """When each of MOMENTS was last read."""
        self._counted: dict[str, tuple[int, int]] = {}
        """Time and value of each counter's latest reading."""

    def describe(self, info: GpuInfo) -> None:
        self.info = info
        for name in info.missing:
            self._latest.pop(name, None)
        if info.lost_because is not None:  # later counts do not cover the gap
            self._read_ns.clear()
            self._counted = dict.fromkeys(self._counted, (LONG_AGO_NS, 0))

    def take(self, sample: GpuSample) -> None:
        t_ns = sample.t_ns
        reported = {
            name: value
            for name in KEPT
            if (value := getattr(sample, name)) is not None and abs(value) < ABSURD
        }
        if self.last_ns is None or t_ns >= self.last_ns:  # else it is out of order
            self.last_ns = t_ns
            self._latest.update(reported)
            if sample.span_ns is not None:
                self._average = (sample.span_ns, sample.via)
        rows: dict[int, Floats] = {}
        """Values by the start of the time that they hold for."""
        averages = self._averages(reported)
        if averages:
            _put(rows, t_ns - (sample.span_ns or 1), averages)
        for begin_ns, name, value in self._values(sample, reported):
            _put(rows, begin_ns, {name: value})
        for begin_ns, values in rows.items():
            if begin_ns < t_ns:
                self.spans.add(begin_ns, t_ns, values)

    def state(self, now_ns: int, window: Window, line: GpuTimeline) -> GpuState:
        latest, sums = self._latest, self.spans.over(now_ns, window)
        share = latest.get("dram_active")
        peak = self._peak_of(latest)
        span_ns, via = self._average or (None, None)
        energy = sums[PLACE[ENERGY]] if sums[PLACE[ENERGY] + 1] else None
        power = _mean(sums, ENERGY)
        bits = latest.get("throttle_reasons") or 0
        return GpuState(
            source=self.info.uuid or "",
            info=self.info,
            via=via,
            last_ns=self.last_ns,
            span_s=None if span_ns is None else span_ns / NS_PER_S,
            hbm_bytes_per_s=share * peak if share is not None and peak else None,
            hbm_bytes_per_s_mean=_mean(sums, "hbm_bytes_per_s"),
            hbm_share=share,
            hbm_share_mean=_mean(sums, "hbm_share"),
            sm_active_mean=_mean(sums, "sm_active"),
            tensor_active_mean=_mean(sums, "tensor_active"),
            power_w_mean=_mean(sums, "power_w") if power is None else power,
            energy_j=None if energy is None else float(energy) / NS_PER_S,
            throttle_reasons=tuple(
                THROTTLES[name] for bit, name in BITS.items() if bits & bit
            ),
            throttled={
                words: throttled_share
                for name, words in THROTTLES.items()
                if (throttled_share := _mean(sums, name)) is not None
            },
            memory_by_pid=self.memory_by_pid,
            timeline=line,
            **{name: latest.get(name) for name in LATEST},
        )

    def saved(self, parts: Parts) -> SavedGpu:
        latest = None
        if self.last_ns is not None:
            latest = GpuSample(t_ns=self.last_ns, **self._latest)
        return SavedGpu(
            info=self.info,
            latest=latest,
            average=self._average,
            read_ns=self._read_ns,
            counted=self._counted,
            memory_by_pid=self.memory_by_pid,
            spans=self.spans.saved(parts),
        )

    def restore(self, saved: SavedGpu, parts: WrittenParts) -> None:
        if saved.latest is not None:
            self.last_ns = saved.latest.t_ns
            values = {name: getattr(saved.latest, name) for name in KEPT}
            self._latest = {name: v for name, v in values.items() if v is not None}
        self._average = saved.average
        self._read_ns, self._counted = saved.read_ns, saved.counted
        self.memory_by_pid = saved.memory_by_pid
        self.spans.restore(saved.spans, parts)

    def _peak_of(self, sample: Mapping[str, Any]) -> float | None:
        """Return the peak bandwidth; None for a MIG slice, whose peak is undefined."""
        if self.info.parent_uuid is not None:
            return None
        latest: float | None = self._latest.get("peak_bytes_per_s")
        peak: float | None = sample.get("peak_bytes_per_s", latest)
        return self.info.peak_bytes_per_s if peak is None else peak

    def _averages(self, sample: Mapping[str, Any]) -> dict[str, float]:
        averages = {name: sample[name] for name in AVERAGES if name in sample}
        share = sample.get("dram_active")
        if share is not None:
            averages["hbm_share"] = share
            if peak := self._peak_of(sample):
                averages["hbm_bytes_per_s"] = share * peak
        for name in ("pcie", "nvlink"):
            ways = (f"{name}_tx_bytes_per_s", f"{name}_rx_bytes_per_s")
            if both := [sample[way] for way in ways if way in sample]:
                averages[f"{name}_bytes_per_s"] = sum(both)
        return averages

    def _values(
        self, sample: GpuSample, values: Mapping[str, Any]
    ) -> Iterable[tuple[int, str, float]]:
        """Yield a sample's values: start of the covered time, channel, value."""
        t_ns = sample.t_ns
        longest_ns = max(HELD_NS, sample.span_ns or 0)
        for name in MOMENTS:
            if name in values:
                yield self._covered_from_ns(name, t_ns, longest_ns), name, values[name]
        if sample.energy_mj is not None:
            for since_ns, rise in self._increase(ENERGY, t_ns, sample.energy_mj):
                yield since_ns, ENERGY, rise / 1_000 / (t_ns - since_ns) * NS_PER_S
        yield from self._throttled(sample, longest_ns)

    def _throttled(
        self, sample: GpuSample, longest_ns: int
    ) -> Iterable[tuple[int, str, float]]:
        """Yield the throttle reasons; counted time is preferred to momentary flags."""
        t_ns, bits = sample.t_ns, sample.throttle_reasons
        counted = [name for name in THROTTLES if name in sample.throttled_ns]
        for name in counted:
            for since_ns, rise in self._increase(name, t_ns, sample.throttled_ns[name]):
                yield since_ns, name, min(rise / (t_ns - since_ns), 1.0)
        if bits is not None:
            since_ns = self._covered_from_ns("throttle_reasons", t_ns, longest_ns)
            seen = {name: bits & bit for bit, name in BITS.items()}
            for name in seen.keys() - self._counted.keys():
                yield since_ns, name, float(bool(seen[name]))

    def _covered_from_ns(self, name: str, t_ns: int, longest_ns: int) -> int:
        """Return the start of the time that a value covers."""
        before_ns = self._read_ns.get(name, t_ns - 1)
        self._read_ns[name] = max(before_ns, t_ns)
        return max(before_ns, t_ns - longest_ns)

    def _increase(self, name: str, t_ns: int, count: int) -> Iterable[tuple[int, int]]:
        """Yield the start and the increase of a counter; nothing if it was reset."""
        before = self._counted.get(name)
        if before is None or t_ns > before[0]:
            self._counted[name] = (t_ns, count)
        if before is not None:
            since_ns, counted = before
            if counted <= count and 0 < t_ns - since_ns <= MOST_APART_NS:
                yield since_ns, count - counted


class GpuTracker:
    """Folds the readings of GPUs."""

    def __init__(self) -> None:
        self._gpus: dict[str, Gpu] = {}
        self.absent_because: str | None = None
        """Why there is no GPU to measure."""

    def info(self, info: GpuInfo) -> None:
        """Set the info of a GPU, or the reason why there is none."""
        if info.uuid is None:
            if not self._gpus:
                self.absent_because = info.absent_because
            return
        self.absent_because = None
        info = _without_impossible_peaks(info)
        gpu = self._gpu(info.uuid or "", info)
        if gpu is not None:
            gpu.describe(info)

    def sample(self, sample: GpuSample) -> None:
        gpu = self._gpu(sample.source)
        if gpu is not None:
            gpu.take(sample)

    def processes(self, listed: GpuProcesses) -> None:
        gpu = self._gpu(listed.source)
        if gpu is not None:
            some = list(listed.memory_bytes.items())[:MOST_PROCESSES]
            gpu.memory_by_pid = dict(some)

    @property
    def gpus(self) -> list[Gpu]:
        """The GPUs, by host and index; MIG slices follow their GPU."""
        return sorted(self._gpus.values(), key=self._order)

    def saved(self, parts: Parts) -> SavedGpus:
        return SavedGpus(
            [gpu.saved(parts) for gpu in self._gpus.values()], self.absent_because
        )

    def restore(self, saved: SavedGpus, parts: WrittenParts) -> None:
        self.absent_because = saved.absent_because
        for each in saved.gpus:
            gpu = self._gpus[each.info.uuid or ""] = Gpu(each.info)
            gpu.restore(each, parts)

    def _gpu(self, uuid: str, info: GpuInfo | None = None) -> Gpu | None:
        """Return the GPU of a UUID, created if new; None if there are too many."""
        gpu = self._gpus.get(uuid)
        if gpu is None and len(self._gpus) < MOST_GPUS:
            known = info or GpuInfo(t_ns=0, uuid=uuid, source=uuid)
            gpu = self._gpus[uuid] = Gpu(known)
        return gpu

    def _order(self, gpu: Gpu) -> tuple[Any, ...]:
        info = gpu.info
        parent = self._gpus.get(info.parent_uuid or "")
        whole = info if parent is None else parent.info
        number = (whole.index is None, whole.index or 0, whole.uuid or "")
        part = (info is not whole, info.index or 0, info.uuid or "")
        return (whole.host or "", number, part)


def _without_impossible_peaks(info: GpuInfo) -> GpuInfo:
    """Return the info without peaks that are impossible."""
    peaks = {name: getattr(info, name) for name in PEAKS}
    wrong = [name for name, peak in peaks.items() if peak and not 0 < peak < ABSURD]
    return replace(info, **dict.fromkeys(wrong)) if wrong else info


def gpu_timeline(gpu: Gpu, window: Window, grid: Grid | None) -> GpuTimeline:
    """Return the charts of a GPU; empty without a grid."""
    if grid is None:
        return GpuTimeline()
    means = channel_means(gpu.spans.columns(window, grid))
    columns = {name: told_of(means[name]) for name in TIMELINE}
    return GpuTimeline(
        power_w=told_of(power(means)), throttled=told_of(throttled(means)), **columns
    )


def channel_means(rows: Floats) -> dict[str, Floats]:
    """Return means by channel and bin; NaN where unknown."""
    with np.errstate(invalid="ignore", divide="ignore"):
        means = rows[:, ::2] / rows[:, 1::2]
    return dict(zip(CHANNELS, means.T, strict=True))


def power(means: Mapping[str, Floats]) -> Floats:
    """Return power by the energy counter, which is exact; else by sampled power."""
    by_energy = means[ENERGY]
    watts: Floats = np.where(np.isnan(by_energy), means["power_w"], by_energy)
    return watts


def throttled(means: Mapping[str, Floats]) -> Floats:
    """Return the share of time in which clocks were throttled for any reason.

    Reasons may overlap, so it is the largest share rather than the sum.
    """
    shares: Floats = np.fmax.reduce([means[name] for name in THROTTLES])
    return shares


def _put(rows: dict[int, Floats], begin_ns: int, values: Mapping[str, float]) -> None:
    row = rows.get(begin_ns)
    if row is None:
        row = rows[begin_ns] = np.zeros(WIDTH)
    for name, value in values.items():
        place = PLACE[name]
        row[place] = value
        row[place + 1] = 1.0


def _mean(sums: Floats, name: str) -> float | None:
    place = PLACE[name]
    covered_ns = sums[place + 1]
    return float(sums[place] / covered_ns) if covered_ns > 0 else None
