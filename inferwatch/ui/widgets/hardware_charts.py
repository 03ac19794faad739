"""Charts of the engine's GPUs, next to those of its requests and steps."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import UNKNOWN, format_bytes, format_rate
from inferwatch.metrics.hardware.view import Hardware
from inferwatch.metrics.number import number_of, numbers
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.renderables.plot import Texture
from inferwatch.ui.widgets.charts import (
    ChartPlan,
    Limit,
    Series,
    Values,
    share_chart,
    share_series,
)

GIGA = 1e9


def _of(field: object) -> Callable[[Snapshot], Values]:
    name = number_of(field).name

    def values(snapshot: Snapshot) -> Values:
        column: Values = getattr(snapshot.timeline, name)
        return column

    return values


def in_gigabytes(values: Callable[[Snapshot], Values]) -> Callable[[Snapshot], Values]:
    def scaled(snapshot: Snapshot) -> Values:
        return [None if each is None else each / GIGA for each in values(snapshot)]

    return scaled


def _peak(snapshot: Snapshot) -> float | None:
    """Return the total peak of the engine's GPUs in GB/s, None if one is unknown."""
    ours = [gpu.info for gpu in snapshot.gpus if gpu.watched is not False]
    peaks = [info.peak_bytes_per_s for info in ours]
    sizes = [peak / GIGA for peak in peaks if peak]
    return sum(sizes) if sizes and len(sizes) == len(peaks) else None


def _power_limit(snapshot: Snapshot) -> float | None:
    return snapshot.hardware.power_limit_w


def bytes_per_s_text(value: float | None) -> str:
    """Format bytes per second in nine columns.

    >>> bytes_per_s_text(3.61e12), bytes_per_s_text(None)
    ('3.61 TB/s', '        –')
    """
    return f"{UNKNOWN:>9}" if value is None else f"{format_bytes(value)}/s"


def watts(value: float | None) -> str:
    return f"{UNKNOWN:>4} W" if value is None else f"{value:4.0f} W"


late_share = partial(share_series, late=True)


def traffic_chart(
    title: str,
    measured: Callable[[Snapshot], Values],
    derived: Callable[[Snapshot], Values],
    peak: Limit,
) -> ChartPlan:
    """Return a chart of measured memory traffic with the derived one as its trace."""
    return ChartPlan(
        title=title,
        note="gpu, GB/s read and written",
        series=(
            Series(
                "measured", "mean", in_gigabytes(measured), late=True, show=format_rate
            ),
        ),
        trace=Series(
            "derived",
            "strong",
            in_gigabytes(derived),
            Texture.DOTTED,
            show=format_rate,
        ),
        limit=peak,
        limit_label="peak",
        show_limit=format_rate,
        optional=True,
    )


def _measured(snapshot: Snapshot) -> bool:
    return any(each is not None for each in snapshot.timeline.hbm_bytes_per_s)


TRAFFIC = ChartPlan(
    title="memory traffic",
    note="derived: weights once a step, and the KV cache read",
    unit="B",
    least=1e6,
    series=(
        Series(
            "derived",
            "mean",
            _of(Timeline.derived_bytes_per_s),
            Texture.DOTTED,
            show=bytes_per_s_text,
        ),
    ),
)
MEMORY = replace(
    traffic_chart(
        "HBM", _of(Timeline.hbm_bytes_per_s), _of(Timeline.derived_bytes_per_s), _peak
    ),
    substitute=lambda shown: None if _measured(shown) else TRAFFIC,
)
"""Measured traffic and, to compare, the derived one; the latter alone without a GPU."""
GPU_MEMORY = replace(
    MEMORY,
    substitute=lambda shown: None if _measured(shown) or not shown.gpus else TRAFFIC,
)
"""The same, but nothing where there is no GPU."""
ACTIVITY = share_chart(
    title="GPU",
    note="gpu, share of cycles and time, power above",
    series=(late_share("SM active", "output", _of(Timeline.sm_active)),),
    trace=late_share(
        "throttled", "warn", _of(Timeline.throttled), Texture.DOTTED, fold=max
    ),
    lane=Series("power", "waiting", _of(Timeline.power_w), late=True, show=watts),
    lane_full=_power_limit,
    lane_unit="W",
    optional=True,
)
HARDWARE_NUMBERS = numbers(
    Hardware.hbm_bytes_per_s,
    Hardware.hbm_share,
    Hardware.sm_active,
    Hardware.power_w,
    Hardware.joules_per_token,
    Hardware.derived_bytes_per_s,
)
"""Catalog keys for the help of a screen with these charts."""
HARDWARE_CHARTS: Sequence[ChartPlan] = (MEMORY, ACTIVITY)


class TrafficPerStep(NamedTuple):
    """Bytes of memory traffic per step."""

    measured: float | None
    derived: float | None


def step_traffic(snapshot: Snapshot, index: int) -> TrafficPerStep:
    """Return the memory traffic of a bin divided by its steps."""
    line = snapshot.timeline
    began_ns = line.start_ns + index * line.bin_ns
    passed_ns = min(line.bin_ns, snapshot.charts_end_ns - began_ns)
    if not line.steps[index] or passed_ns < line.bin_ns / 2:
        return TrafficPerStep(None, None)
    each_s = passed_ns / NS_PER_S / line.steps[index]

    def of(column: Values) -> float | None:
        rate = column[index] if index < len(column) else None
        return None if rate is None else rate * each_s

    return TrafficPerStep(of(line.hbm_bytes_per_s), of(line.derived_bytes_per_s))


def averaged_over_s(snapshot: Snapshot) -> float | None:
    """Return the averaging time of the GPU samples if it is longer than a bin."""
    spans = [gpu.span_s for gpu in snapshot.gpus if gpu.watched is not False]
    longest = max((span for span in spans if span is not None), default=0.0)
    return longest if longest * NS_PER_S > snapshot.timeline.bin_ns else None
