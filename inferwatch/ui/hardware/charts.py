"""Charts of one GPU and one host.

The screen passes a snapshot that holds no other GPU and no other host.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from inferwatch.formatting import format_count
from inferwatch.metrics.hardware.hosts import HostState
from inferwatch.metrics.hardware.view import GpuState
from inferwatch.metrics.number import label_of
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.renderables.plot import NEAR, Texture
from inferwatch.ui.widgets.charts import ChartPlan, Series, Values, share_chart, whole
from inferwatch.ui.widgets.hardware_charts import (
    GIGA,
    TRAFFIC,
    late_share,
    traffic_chart,
    watts,
)

BEYOND = 1.1
"""A board may briefly draw this much of its power limit."""


def gpu_of(snapshot: Snapshot) -> GpuState | None:
    return snapshot.gpus[0] if snapshot.gpus else None


def host_of(snapshot: Snapshot) -> HostState | None:
    return snapshot.hosts[0] if snapshot.hosts else None


def part_of(gpu: GpuState, snapshot: Snapshot) -> float:
    """Return a GPU's share of the engine's memory and traffic, equal for all GPUs."""
    on_cpu = any(each.device == "cpu" for each in snapshot.engines)
    if gpu.watched is False or (gpu.watched is None and on_cpu):
        return 0.0
    return 1 / max(snapshot.hardware.gpus, 1)


def _gpu(name: str) -> Callable[[Snapshot], Values]:
    def values(snapshot: Snapshot) -> Values:
        gpu = gpu_of(snapshot)
        column: Values = getattr(gpu.timeline, name) if gpu else ()
        return column

    return values


def _host(name: str) -> Callable[[Snapshot], Values]:
    def values(snapshot: Snapshot) -> Values:
        host = host_of(snapshot)
        column: Values = getattr(host.timeline, name) if host else ()
        return column

    return values


def _of_role(role: str) -> Callable[[Snapshot], Values]:
    def values(snapshot: Snapshot) -> Values:
        host = host_of(snapshot)
        return host.timeline.cpu_by_role.get(role, ()) if host else ()

    return values


def _derived_of_gpu(snapshot: Snapshot) -> Values:
    """Return the memory traffic that the engine's steps imply for this GPU."""
    gpu = gpu_of(snapshot)
    part = part_of(gpu, snapshot) if gpu else 0.0
    if not part:
        return ()
    return [
        None if value is None else value * part
        for value in snapshot.timeline.derived_bytes_per_s
    ]


def _peak(snapshot: Snapshot) -> float | None:
    gpu = gpu_of(snapshot)
    peak = gpu.info.peak_bytes_per_s if gpu else None
    return None if peak is None else peak / GIGA


def _power_limit(snapshot: Snapshot) -> float | None:
    gpu = gpu_of(snapshot)
    return gpu.power_limit_w if gpu else None


def _about_limit(snapshot: Snapshot) -> float | None:
    """Return the power limit as top of the axis if the power comes close; else None."""
    limit, gpu = _power_limit(snapshot), gpu_of(snapshot)
    drawn = gpu.timeline.power_w if gpu else ()
    most = max((each for each in drawn if each is not None), default=0.0)
    near = limit is not None and NEAR * limit <= most <= BEYOND * limit
    return limit if near else None


def _max_clock(snapshot: Snapshot) -> float | None:
    gpu = gpu_of(snapshot)
    return gpu.info.max_sm_clock_mhz if gpu else None


def _cores(snapshot: Snapshot) -> float | None:
    host = host_of(snapshot)
    return host.cores if host else None


def _mhz(value: float | None) -> str:
    return f"{format_count(value)} MHz"


def _core(value: float | None) -> str:
    return "   –" if value is None else f"{value:4.2f}"


HBM = traffic_chart(
    title=label_of(GpuState.hbm_bytes_per_s),
    measured=_gpu("hbm_bytes_per_s"),
    derived=_derived_of_gpu,
    peak=_peak,
)
HBM_SHARE = share_chart(
    title=label_of(GpuState.hbm_bytes_per_s),
    note="gpu, share of what it could move",
    series=(
        late_share(
            label=label_of(GpuState.hbm_share),
            ink="mean",
            values=_gpu("hbm_share"),
        ),
    ),
)
"""Chart for a MIG slice, whose peak bandwidth is unknown."""
MEMORY_BUSY = share_chart(
    title=label_of(GpuState.memory_busy),
    note="gpu, time with any access: no measure of how much",
    series=(late_share("busy", "faint", _gpu("memory_busy"), Texture.LIGHT),),
)
"""Chart for drivers that count no cycles."""


def _without_cycles(snapshot: Snapshot) -> ChartPlan | None:
    gpu = gpu_of(snapshot)
    if gpu is None or any(each is not None for each in gpu.timeline.sm_active):
        return None
    is_known = any(each is not None for each in gpu.timeline.memory_busy)
    return MEMORY_BUSY if is_known else None


SM = share_chart(
    title="SM",
    note="gpu, share of cycles",
    stacked=False,
    series=(
        late_share(
            label=label_of(GpuState.tensor_active),
            ink="prefill",
            values=_gpu("tensor_active"),
        ),
        late_share(
            label=label_of(GpuState.sm_active),
            ink="output",
            texture=Texture.DOTTED,
            values=_gpu("sm_active"),
        ),
    ),
    substitute=_without_cycles,
)
POWER = ChartPlan(
    title=label_of(GpuState.power_w),
    note="gpu, of the board",
    unit="W",
    series=(
        Series(
            label=label_of(GpuState.power_w),
            ink="waiting",
            values=_gpu("power_w"),
            late=True,
            show=watts,
        ),
    ),
    full=_about_limit,
    limit=_power_limit,
    limit_label=label_of(GpuState.power_limit_w),
    show_limit=watts,
)
CLOCK = ChartPlan(
    title=label_of(GpuState.sm_clock_mhz),
    note="gpu, MHz, throttled above",
    series=(Series("clock", "decode", _gpu("sm_clock_mhz"), late=True, show=_mhz),),
    lane=late_share(
        label=label_of(GpuState.throttled),
        ink="warn",
        texture=Texture.DOTTED,
        values=_gpu("throttled"),
        fold=max,
    ),
    lane_full=whole,
    lane_unit="%",
    limit=_max_clock,
    limit_label="highest",
    show_limit=_mhz,
)
GPU_CHARTS: Sequence[ChartPlan] = (
    replace(
        HBM,
        full=_peak,
        substitute=lambda shown: HBM_SHARE if _peak(shown) is None else None,
    ),
    SM,
    POWER,
    CLOCK,
)

ROLES = {
    "api": ("API server", "api", "decode"),
    "core": ("EngineCore", "core", "kv"),
    "worker": ("worker", "worker", "output"),
    "load": ("load", "load", "prefill"),
    "inferwatch": ("inferwatch", "self", "other"),
    "agent": ("agent", "agent", "cached"),
}
"""By role: name in a table, name in a legend, colour."""
TEXTURES = (
    Texture.SOLID,
    Texture.DOTTED,
    Texture.SOLID,
    Texture.DOTTED,
    Texture.MEDIUM,
    Texture.LIGHT,
)
_CPU = ChartPlan(
    title="CPU",
    note="host, cores in use",
    series=tuple(
        Series(short, ink, _of_role(role), texture, late=True, show=_core)
        for (role, (_, short, ink)), texture in zip(
            ROLES.items(), TEXTURES, strict=True
        )
    ),
    limit=_cores,
    limit_label="cores",
)


def _cpu_of_known_roles(snapshot: Snapshot) -> ChartPlan:
    """Return the CPU chart with only the roles that have a process."""
    host = host_of(snapshot)
    by_role = host.timeline.cpu_by_role if host else {}
    series = tuple(
        each
        for role, each in zip(ROLES, _CPU.series, strict=True)
        if any(value is not None for value in by_role.get(role, ()))
    )
    return replace(_CPU, series=series or _CPU.series[:2])


CPU = replace(_CPU, substitute=_cpu_of_known_roles)
LAG = ChartPlan(
    title="event loop",
    note="API server, how late it ran at worst",
    unit="s",
    optional=True,
    series=(Series("lag", "worst", _host("loop_lag_s"), late=True, fold=max),),
)
BUSY = share_chart(
    title="cores",
    note="host, busy with anything",
    series=(late_share("busy", "cached", _host("busy"), Texture.DOTTED),),
)
HOST_CHARTS: Sequence[ChartPlan] = (replace(TRAFFIC, optional=True), CPU, BUSY, LAG)
