"""Tracks for GPUs and hosts: counters, and slices in which clocks were throttled."""

from dataclasses import dataclass, field

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    GpuInfo,
    GpuSample,
    HostInfo,
    HostSample,
    ProcessUsage,
)
from inferwatch.printing.export.perfetto.trace_format import (
    Trace,
    TraceTrack,
    TrackOrder,
)

Numbers = dict[str, float | None]


@dataclass(slots=True, kw_only=True)
class GpuTrack:
    """The state of a GPU's tracks while its samples are written."""

    name: str
    counters: int
    before: GpuSample | None = None
    """The latest sample with throttling times."""
    held: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """By throttle reason: begin, end and throttled time of the current slice, in ns."""
    tracks: dict[str, TraceTrack] = field(default_factory=dict)
    """A track for each throttle reason."""


class GpuTracks:
    """The tracks of each GPU; averages are drawn from where their span begins."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._names: dict[str, str] = {}
        self._gpus: dict[str, GpuTrack] = {}

    def info(self, info: GpuInfo) -> None:
        if info.uuid is not None:
            number = "" if info.index is None else f" {info.index}"
            named = (f"GPU{number}", info.name, info.profile, info.host)
            simulated = "simulated" in (info.driver or "")
            words = [*filter(None, named), *(["(simulated)"] if simulated else [])]
            self._names.setdefault(info.source, " ".join(words))

    def sample(self, sample: GpuSample) -> None:
        gpu, t_ns = self._gpu(sample.source), sample.t_ns
        since_ns = t_ns - (sample.span_ns or 0)
        self._show(gpu, "HBM, GB/s", since_ns, {"both ways": _gbps(sample)})
        active = {
            "SM": sample.sm_active,
            "tensor": sample.tensor_active,
            "occupancy": sample.sm_occupancy,
            "HBM": sample.dram_active,
        }
        self._show(gpu, "active, %", since_ns, {k: _pc(v) for k, v in active.items()})
        for link, out, back in (
            ("PCIe", sample.pcie_tx_bytes_per_s, sample.pcie_rx_bytes_per_s),
            ("NVLink", sample.nvlink_tx_bytes_per_s, sample.nvlink_rx_bytes_per_s),
        ):
            traffic = {"sent": _giga(out), "received": _giga(back)}
            self._show(gpu, f"{link}, GB/s", since_ns, traffic)
        busy = {"any kernel": sample.gpu_busy, "memory": sample.memory_busy}
        self._show(gpu, "busy, % of time", t_ns, {k: _pc(v) for k, v in busy.items()})
        power = {"drawn": sample.power_w, "limit": sample.power_limit_w}
        self._show(gpu, "power, W", t_ns, power)
        clocks = {"SM": sample.sm_clock_mhz, "memory": sample.memory_clock_mhz}
        self._show(gpu, "clocks, MHz", t_ns, {**clocks})
        heat = {"GPU": sample.temperature_c, "memory": sample.memory_temperature_c}
        self._show(gpu, "temperature, °C", t_ns, {**heat})
        self._show(gpu, "memory, GB", t_ns, {"used": _giga(sample.memory_used_bytes)})
        if sample.throttled_ns:
            self._throttled(gpu, sample)

    def close(self) -> None:
        for gpu in self._gpus.values():
            for reason in list(gpu.held):
                self._write(gpu, reason)

    def _gpu(self, source: str) -> GpuTrack:
        gpu = self._gpus.get(source)
        if gpu is None:
            name = self._names.get(source, f"GPU {source}")
            if any(each.name == name for each in self._gpus.values()):
                name = f"{name} {source}"
            counters = self._trace.process(f"{name}, counters", TrackOrder.GPU)
            gpu = self._gpus[source] = GpuTrack(name=name, counters=counters)
        return gpu

    def _show(self, gpu: GpuTrack, counter: str, t_ns: int, values: Numbers) -> None:
        _count(self._trace, gpu.counters, counter, t_ns, values)

    def _throttled(self, gpu: GpuTrack, sample: GpuSample) -> None:
        """Add the growth of each reason's throttled time since the previous sample."""
        before, gpu.before = gpu.before, sample
        if before is None:
            return
        for reason, upto_ns in sample.throttled_ns.items():
            grew_ns = upto_ns - before.throttled_ns.get(reason, upto_ns)
            if grew_ns <= 0:  # no increase, or the driver was reloaded
                self._write(gpu, reason)
                continue
            since_ns, _, so_far_ns = gpu.held.get(reason, (before.t_ns, 0, 0))
            gpu.held[reason] = (since_ns, sample.t_ns, so_far_ns + grew_ns)

    def _write(self, gpu: GpuTrack, reason: str) -> None:
        if reason not in gpu.held:
            return
        since_ns, until_ns, held_ns = gpu.held.pop(reason)
        if reason not in gpu.tracks:
            group = f"{gpu.name}, clocks held down"
            name = reason.replace("_", " ")
            gpu.tracks[reason] = self._trace.track(group, name, TrackOrder.CLOCKS)
        share = round(min(held_ns / max(until_ns - since_ns, 1), 1.0), 4)
        facts = {"held_down_s": held_ns / NS_PER_S, "share_of_time": share}
        self._trace.slice(gpu.tracks[reason], reason, (since_ns, until_ns), facts)


class HostTracks:
    """The tracks of each host: cores, memory, and CPU time of engine processes."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._names: dict[str, str] = {}
        self._before: dict[str, HostSample] = {}

    def info(self, info: HostInfo) -> None:
        """Learn the host's name; the one where inferwatch runs is "host"."""
        if info.source:
            self._names.setdefault(info.source, f"host {info.name}")

    def sample(self, sample: HostSample) -> None:
        """Write a host's CPU use since the previous sample, run queue and memory."""
        pid = self._host(sample.source)
        before = self._before.get(sample.source)
        self._before[sample.source] = sample
        if before is not None and sample.t_ns > before.t_ns:
            elapsed_s = (sample.t_ns - before.t_ns) / NS_PER_S
            cores = _by_role(before, sample, elapsed_s, "cpu_s")
            since_ns = before.t_ns
            _count(self._trace, pid, "CPU, cores", since_ns, cores)
            busy = _grew(before.busy_s, sample.busy_s, elapsed_s)
            _count(self._trace, pid, "busy cores", since_ns, {"all": busy})
            throttled = _by_role(before, sample, elapsed_s, "throttled_s")
            shares = {role: _pc(share) for role, share in throttled.items()}
            if any(shares.values()):
                _count(self._trace, pid, "held back, % of time", since_ns, shares)
        queue: Numbers = {"threads": sample.run_queue}
        _count(self._trace, pid, "run queue", sample.t_ns, queue)
        used = {"used": _giga(sample.memory_used_bytes)}
        _count(self._trace, pid, "memory, GB", sample.t_ns, used)

    def _host(self, source: str) -> int:
        name = self._names.get(source, f"host {source}".rstrip())
        return self._trace.process(f"{name}, counters", TrackOrder.HOST)


def _by_role(before: HostSample, now: HostSample, elapsed_s: float, of: str) -> Numbers:
    then: dict[int, ProcessUsage] = {each.pid: each for each in before.processes}
    shares: dict[str, float | None] = {}
    for usage in now.processes:
        earlier = getattr(then.get(usage.pid), of, None)
        grew = _grew(earlier, getattr(usage, of), elapsed_s)
        if grew is not None:
            shares[usage.role] = round((shares.get(usage.role) or 0.0) + grew, 4)
    return shares


def _grew(then: float | None, now: float | None, elapsed_s: float) -> float | None:
    """The increase per second; None if the counter went back."""
    if then is None or now is None or now < then:
        return None
    return round((now - then) / elapsed_s, 4)


def _count(trace: Trace, pid: int, counter: str, t_ns: int, values: Numbers) -> None:
    known = {name: value for name, value in values.items() if value is not None}
    if known:
        trace.counter(pid, counter, t_ns, known)


def _gbps(sample: GpuSample) -> float | None:
    if sample.dram_active is None or sample.peak_bytes_per_s is None:
        return None
    return _giga(sample.dram_active * sample.peak_bytes_per_s)


def _giga(amount: float | None) -> float | None:
    return None if amount is None else round(amount / 1e9, 4)


def _pc(share: float | None) -> float | None:
    return None if share is None else round(share * 100, 2)
