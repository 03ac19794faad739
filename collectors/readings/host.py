"""What the machine reports: its clocks, processes and GPUs."""

import msgspec

from collectors.readings.base import Reading


class ClockAnchor(Reading, frozen=True, kw_only=True):
    """Wall and monotonic clock of one boot, read together."""

    t_ns: int
    wall_ns: int
    """Unix time."""
    uncertainty_ns: int
    boot_id: str


class ProcessUsage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one process has used so far."""

    pid: int
    role: str
    """api, core, worker, load, inferwatch."""
    cpu_s: float
    """User and system seconds since it started."""
    rss_bytes: int


class HostSample(Reading, frozen=True, kw_only=True):
    """CPU and memory of the processes that matter, ours included."""

    t_ns: int
    processes: list[ProcessUsage]
    loop_lag_s: float | None = None
    """How late inferwatch's own event loop ran in the interval (worst)."""


class GpuInfo(Reading, frozen=True, kw_only=True):
    """A GPU, or why there is none to measure."""

    t_ns: int
    name: str | None = None
    uuid: str | None = None
    absent_because: str | None = None
