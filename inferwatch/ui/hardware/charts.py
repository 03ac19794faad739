"""The charts of one GPU, and of one host: the screen says of which.

It hands them a snapshot whose only GPU, and whose only host, is the one to draw.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from inferwatch.formatting import (
    UNKNOWN,
    format_count,
    format_rate,
    format_share,
)
from inferwatch.metrics.hardware.hosts import HostState
from inferwatch.metrics.hardware.view import GpuState
from inferwatch.metrics.number import label_of
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.renderables.bars import Texture
from inferwatch.ui.kit.renderables.plot import NEAR
from inferwatch.ui.widgets.charts import ChartPlan, Series, Values
from inferwatch.ui.widgets.hardware_charts import TRAFFIC

GIGA = 1e9
BEYOND = 1.1
"""Of its limit, what a board may draw for a moment."""


def gpu_of(shown: Snapshot) -> GpuState | None:
    """The GPU that is drawn."""
    return shown.gpus[0] if shown.gpus else None


def host_of(shown: Snapshot) -> HostState | None:
    """The host that is drawn."""
    return shown.hosts[0] if shown.hosts else None


def part_of(gpu: GpuState, shown: Snapshot) -> float:
    """What of the engine's memory and traffic is this GPU's: its even part."""
    on_cpu = any(each.device == "cpu" for each in shown.engines)
    if gpu.watched is False or (gpu.watched is None and on_cpu):
        return 0.0
    return 1 / max(shown.hardware.gpus, 1)


def _gpu(name: str) -> Callable[[Snapshot], Values]:
    """A column of the GPU's timeline."""

    def values(shown: Snapshot) -> Values:
        gpu = gpu_of(shown)
        column: Values = getattr(gpu.timeline, name) if gpu else ()
        return column

    return values


def _in_gigabytes(values: Callable[[Snapshot], Values]) -> Callable[[Snapshot], Values]:
    def scaled(shown: Snapshot) -> Values:
        return [None if each is None else each / GIGA for each in values(shown)]

    return scaled


def _host(name: str) -> Callable[[Snapshot], Values]:
    """A column of the host's timeline."""

    def values(shown: Snapshot) -> Values:
        host = host_of(shown)
        column: Values = getattr(host.timeline, name) if host else ()
        return column

    return values


def _of_role(role: str) -> Callable[[Snapshot], Values]:
    def values(shown: Snapshot) -> Values:
        host = host_of(shown)
        return host.timeline.cpu_by_role.get(role, ()) if host else ()

    return values


def _derived_of_gpu(shown: Snapshot) -> Values:
    """What the engine's steps would have this GPU move."""
    gpu = gpu_of(shown)
    part = part_of(gpu, shown) if gpu else 0.0
    if not part:
        return ()
    return [
        None if value is None else value * part
        for value in shown.timeline.derived_bytes_per_s
    ]


def _peak(shown: Snapshot) -> float | None:
    """In GB/s."""
    gpu = gpu_of(shown)
    peak = gpu.info.peak_bytes_per_s if gpu else None
    return None if peak is None else peak / GIGA


def _power_limit(shown: Snapshot) -> float | None:
    gpu = gpu_of(shown)
    return gpu.power_limit_w if gpu else None


def _about_limit(shown: Snapshot) -> float | None:
    """The limit as the top of the axis, where power hardly goes beyond it."""
    limit, gpu = _power_limit(shown), gpu_of(shown)
    drawn = gpu.timeline.power_w if gpu else ()
    most = max((each for each in drawn if each is not None), default=0.0)
    near = limit is not None and NEAR * limit <= most <= BEYOND * limit
    return limit if near else None


def _max_clock(shown: Snapshot) -> float | None:
    gpu = gpu_of(shown)
    return gpu.info.max_sm_clock_mhz if gpu else None


def _cores(shown: Snapshot) -> float | None:
    host = host_of(shown)
    return host.cores if host else None


def _whole(_: Snapshot) -> float:
    return 1.0


def gigabytes(value: float | None) -> str:
    """Seven columns, of bytes a second in GB/s."""
    return format_rate(None if value is None else value / GIGA)


def _watts(value: float | None) -> str:
    return f"{UNKNOWN:>4} W" if value is None else f"{value:4.0f} W"


def _mhz(value: float | None) -> str:
    return f"{format_count(value)} MHz"


def _core(value: float | None) -> str:
    return "   –" if value is None else f"{value:4.2f}"


DERIVED = Series(
    label="derived",
    ink="strong",
    texture=Texture.DOTTED,
    values=_in_gigabytes(_derived_of_gpu),
    show=format_rate,
)
HBM = ChartPlan(
    title=label_of(GpuState.hbm_bytes_per_s),
    note="gpu, GB/s read and written",
    series=(
        Series(
            label="measured",
            ink="mean",
            texture=Texture.SOLID,
            values=_in_gigabytes(_gpu("hbm_bytes_per_s")),
            late=True,
            show=format_rate,
        ),
    ),
    trace=DERIVED,
    full=_peak,
    limit=_peak,
    limit_label="peak",
    show_limit=format_rate,
)
HBM_SHARE = ChartPlan(
    title=label_of(GpuState.hbm_bytes_per_s),
    note="gpu, share of what it could move",
    unit="%",
    series=(
        Series(
            label=label_of(GpuState.hbm_share),
            ink="mean",
            texture=Texture.SOLID,
            values=_gpu("hbm_share"),
            late=True,
            show=format_share,
        ),
    ),
    full=_whole,
)
"""Of a MIG slice, whose peak nobody knows."""
SM = ChartPlan(
    title="SM",
    note="gpu, share of cycles",
    unit="%",
    stacked=False,
    series=(
        Series(
            label=label_of(GpuState.tensor_active),
            ink="prefill",
            texture=Texture.SOLID,
            values=_gpu("tensor_active"),
            late=True,
            show=format_share,
        ),
        Series(
            label=label_of(GpuState.sm_active),
            ink="output",
            texture=Texture.DOTTED,
            values=_gpu("sm_active"),
            late=True,
            show=format_share,
        ),
    ),
    full=_whole,
)
MEMORY_BUSY = ChartPlan(
    title=label_of(GpuState.memory_busy),
    note="gpu, time with any access: no measure of how much",
    unit="%",
    series=(
        Series(
            label="busy",
            ink="faint",
            texture=Texture.LIGHT,
            values=_gpu("memory_busy"),
            late=True,
            show=format_share,
        ),
    ),
    full=_whole,
)
"""Where nobody counts cycles."""


def _without_cycles(shown: Snapshot) -> ChartPlan | None:
    gpu = gpu_of(shown)
    if gpu is None or any(each is not None for each in gpu.timeline.sm_active):
        return None
    known = any(each is not None for each in gpu.timeline.memory_busy)
    return MEMORY_BUSY if known else None


POWER = ChartPlan(
    title=label_of(GpuState.power_w),
    note="gpu, of the board",
    unit="W",
    series=(
        Series(
            label=label_of(GpuState.power_w),
            ink="waiting",
            texture=Texture.SOLID,
            values=_gpu("power_w"),
            late=True,
            show=_watts,
        ),
    ),
    full=_about_limit,
    limit=_power_limit,
    limit_label=label_of(GpuState.power_limit_w),
    show_limit=_watts,
)
CLOCK = ChartPlan(
    title=label_of(GpuState.sm_clock_mhz),
    note="gpu, MHz, throttled above",
    series=(
        Series(
            label="clock",
            ink="decode",
            texture=Texture.SOLID,
            values=_gpu("sm_clock_mhz"),
            late=True,
            show=_mhz,
        ),
    ),
    lane=Series(
        label=label_of(GpuState.throttled),
        ink="warn",
        texture=Texture.DOTTED,
        values=_gpu("throttled"),
        late=True,
        show=format_share,
        fold=max,
    ),
    lane_full=_whole,
    lane_unit="%",
    limit=_max_clock,
    limit_label="highest",
    show_limit=_mhz,
)
GPU_CHARTS: Sequence[ChartPlan] = (
    replace(
        HBM,
        optional=True,
        instead=lambda shown: HBM_SHARE if _peak(shown) is None else None,
    ),
    replace(SM, instead=_without_cycles),
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
"""What a process is called in a table, in a legend, and its ink."""
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
        Series(
            label=short,
            ink=ink,
            texture=texture,
            values=_of_role(role),
            late=True,
            show=_core,
        )
        for (role, (_, short, ink)), texture in zip(
            ROLES.items(), TEXTURES, strict=True
        )
    ),
    limit=_cores,
    limit_label="cores",
)


def _cpu_of_known_roles(shown: Snapshot) -> ChartPlan:
    """Only the processes that there are."""
    host = host_of(shown)
    known = host.timeline.cpu_by_role if host else {}
    series = tuple(
        each
        for role, each in zip(ROLES, _CPU.series, strict=True)
        if any(value is not None for value in known.get(role, ()))
    )
    return replace(_CPU, series=series or _CPU.series[:2])


CPU = replace(_CPU, instead=_cpu_of_known_roles)
LAG = ChartPlan(
    title="event loop",
    note="API server, how late it ran at worst",
    unit="s",
    optional=True,
    series=(
        Series(
            label="lag",
            ink="worst",
            texture=Texture.SOLID,
            values=_host("loop_lag_s"),
            late=True,
            fold=max,
        ),
    ),
)
BUSY = ChartPlan(
    title="cores",
    note="host, busy with anything",
    unit="%",
    series=(
        Series(
            label="busy",
            ink="cached",
            texture=Texture.DOTTED,
            values=_host("busy"),
            late=True,
            show=format_share,
        ),
    ),
    full=_whole,
)
HOST_CHARTS: Sequence[ChartPlan] = (
    replace(TRAFFIC, optional=True),
    CPU,
    BUSY,
    LAG,
)
