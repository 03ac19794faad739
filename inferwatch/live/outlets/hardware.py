"""Counters and gauges of GPUs and hosts, as scrapers expect them."""

from collections import defaultdict
from math import isfinite

from collectors.contract.readings import (
    GpuInfo,
    GpuSample,
    HostInfo,
    HostSample,
    ProcessUsage,
)

MOST = 1_000
"""At most this many GPUs, and this many hosts, are kept."""
STALE_NS = 60_000_000_000
"""A gauge that was not reported for this long is left out."""
GPU_FIELDS = (
    "dram_active",
    "peak_bytes_per_s",
    "sm_active",
    "sm_occupancy",
    "tensor_active",
    "gpu_busy",
    "memory_busy",
    "power_w",
    "power_limit_w",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "temperature_c",
    "memory_temperature_c",
    "memory_used_bytes",
    "memory_reserved_bytes",
    "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s",
)
HBM = "hbm_bytes_per_s"
"""Memory traffic: a sample's ``dram_active`` times its peak."""
Counts = defaultdict[str, float]


class MonotonicCounters:
    """Turns counters that may be reset into counters that only grow."""

    def __init__(self) -> None:
        self.totals: Counts = defaultdict(float)
        self._before: dict[str, float] = {}

    def update(self, name: str, value: float) -> None:
        before = self._before.get(name, value)
        self._before[name] = value
        self.totals[name] += max(value - before, 0.0)


class GpuNumbers:
    """The latest gauges and the counters of one GPU or MIG slice."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.info: GpuInfo | None = None
        self.gauges: dict[str, tuple[int, float]] = {}
        """The time of the latest value and the value, by field of GpuSample."""
        self.energy_mj = MonotonicCounters()
        self.throttled_ns = MonotonicCounters()
        self.ecc = MonotonicCounters()

    def describe(self, info: GpuInfo) -> None:
        """Take the GPU's description; a GPU that is lost has no gauges."""
        self.info = info
        if info.lost_because is not None:
            self.gauges.clear()

    def sample(self, sample: GpuSample) -> None:
        """Update the gauges that the sample has values for."""
        for name in GPU_FIELDS:
            value = getattr(sample, name)
            if value is not None and isfinite(value):
                self.gauges[name] = (sample.t_ns, float(value))
        share, peak = sample.dram_active, sample.peak_bytes_per_s
        if share is not None and peak is not None and isfinite(share * peak):
            self.gauges[HBM] = (sample.t_ns, share * peak)
        if sample.energy_mj is not None:
            self.energy_mj.update("", sample.energy_mj)
        for reason, held_ns in sample.throttled_ns.items():
            self.throttled_ns.update(reason, held_ns)
        errors = {"yes": sample.ecc_corrected, "no": sample.ecc_uncorrected}
        for corrected, count in errors.items():
            if count is not None:
                self.ecc.update(corrected, count)

    def now(self, now_ns: int) -> dict[str, float]:
        """Return the gauges that are not stale."""
        return {
            name: value
            for name, (t_ns, value) in self.gauges.items()
            if now_ns - t_ns <= STALE_NS
        }


class HostNumbers:
    """The latest sample of one host, and the CPU time of its processes by role."""

    def __init__(self, source: str) -> None:
        self.name = source
        self.latest: HostSample | None = None
        self.cpu_s: Counts = defaultdict(float)
        self.throttled_s: Counts = defaultdict(float)
        self.busy_s = MonotonicCounters()
        self._before: dict[int, ProcessUsage] = {}

    def describe(self, info: HostInfo) -> None:
        self.name = info.name

    def sample(self, sample: HostSample) -> None:
        """Take a sample, and add what each process used since the last one."""
        self.latest = sample
        if sample.busy_s is not None:
            self.busy_s.update("", sample.busy_s)
        for usage in sample.processes:
            before = self._before.get(usage.pid, usage)
            self.cpu_s[usage.role] += max(usage.cpu_s - before.cpu_s, 0.0)
            if usage.throttled_s is not None and before.throttled_s is not None:
                held_s = usage.throttled_s - before.throttled_s
                self.throttled_s[usage.role] += max(held_s, 0.0)
        self._before = {usage.pid: usage for usage in sample.processes}

    def now(self, now_ns: int) -> HostSample | None:
        """Return the latest sample unless it is stale."""
        latest = self.latest
        fresh = latest is not None and now_ns - latest.t_ns <= STALE_NS
        return latest if fresh else None


class HardwareNumbers:
    """The numbers of all GPUs and hosts that report."""

    def __init__(self) -> None:
        self.gpus: dict[str, GpuNumbers] = {}
        """By UUID."""
        self.hosts: dict[str, HostNumbers] = {}

    def gpu_info(self, info: GpuInfo) -> None:
        if info.uuid is not None and (gpu := self._gpu(info.uuid)):
            gpu.describe(info)

    def gpu_sample(self, sample: GpuSample) -> None:
        if gpu := self._gpu(sample.source):
            gpu.sample(sample)

    def host_info(self, info: HostInfo) -> None:
        if host := self._host(info.source):
            host.describe(info)

    def host_sample(self, sample: HostSample) -> None:
        if host := self._host(sample.source):
            host.sample(sample)

    def _gpu(self, uuid: str) -> GpuNumbers | None:
        if uuid not in self.gpus and len(self.gpus) < MOST:
            self.gpus[uuid] = GpuNumbers(uuid)
        return self.gpus.get(uuid)

    def _host(self, source: str) -> HostNumbers | None:
        if source not in self.hosts and len(self.hosts) < MOST:
            self.hosts[source] = HostNumbers(source)
        return self.hosts.get(source)
