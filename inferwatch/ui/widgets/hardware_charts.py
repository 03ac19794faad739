"""What the engine's GPUs do over time, beside the charts of its requests and steps."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    UNKNOWN,
    format_bytes,
    format_rate,
    format_share,
)
from inferwatch.metrics.hardware.view import Hardware
from inferwatch.metrics.number import number_of, numbers
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.renderables.bars import Texture
from inferwatch.ui.widgets.charts import ChartPlan, Series, Values

GIGA = 1e9


def _of(field: object) -> Callable[[Snapshot], Values]:
    name = number_of(field).name

    def values(shown: Snapshot) -> Values:
        column: Values = getattr(shown.timeline, name)
        return column

    return values


def _in_gigabytes(field: object) -> Callable[[Snapshot], Values]:
    def values(shown: Snapshot) -> Values:
        return [None if each is None else each / GIGA for each in _of(field)(shown)]

    return values


def _peak(shown: Snapshot) -> float | None:
    """Of the engine's GPUs together, in GB/s; None where that of one is not known."""
    ours = [gpu.info for gpu in shown.gpus if gpu.watched is not False]
    peaks = [info.peak_bytes_per_s for info in ours]
    known = [peak / GIGA for peak in peaks if peak]
    return sum(known) if known and len(known) == len(peaks) else None


def _power_limit(shown: Snapshot) -> float | None:
    return shown.hardware.power_limit_w


def _whole(_: Snapshot) -> float:
    return 1.0


def bytes_per_s_text(value: float | None) -> str:
    """Nine columns.

    >>> bytes_per_s_text(3.61e12), bytes_per_s_text(None)
    ('3.61 TB/s', '        –')
    """
    return f"{UNKNOWN:>9}" if value is None else f"{format_bytes(value)}/s"


def _watts(value: float | None) -> str:
    return f"{UNKNOWN:>4} W" if value is None else f"{value:4.0f} W"


def _measured(shown: Snapshot) -> bool:
    return any(each is not None for each in shown.timeline.hbm_bytes_per_s)


TRAFFIC = ChartPlan(
    title="memory traffic",
    note="derived: weights once a step, and the KV cache read",
    unit="B",
    least=1e6,
    series=(
        Series(
            label="derived",
            ink="mean",
            texture=Texture.DOTTED,
            values=_of(Timeline.derived_bytes_per_s),
            show=bytes_per_s_text,
        ),
    ),
)
MEMORY = ChartPlan(
    title="HBM",
    note="gpu, GB/s read and written",
    series=(
        Series(
            label="measured",
            ink="mean",
            texture=Texture.SOLID,
            values=_in_gigabytes(Timeline.hbm_bytes_per_s),
            late=True,
            show=format_rate,
        ),
    ),
    trace=Series(
        label="derived",
        ink="strong",
        texture=Texture.DOTTED,
        values=_in_gigabytes(Timeline.derived_bytes_per_s),
        show=format_rate,
    ),
    limit=_peak,
    limit_label="peak",
    show_limit=format_rate,
    instead=lambda shown: None if _measured(shown) else TRAFFIC,
    optional=True,
)
"""Measured, and against it what the steps need; without a GPU that alone."""
ACTIVITY = ChartPlan(
    title="GPU",
    note="gpu, share of cycles and time, power above",
    unit="%",
    series=(
        Series(
            label="SM active",
            ink="output",
            texture=Texture.SOLID,
            values=_of(Timeline.sm_active),
            late=True,
            show=format_share,
        ),
    ),
    trace=Series(
        label="throttled",
        ink="warn",
        texture=Texture.DOTTED,
        values=_of(Timeline.throttled),
        late=True,
        show=format_share,
        fold=max,
    ),
    full=_whole,
    lane=Series(
        label="power",
        ink="waiting",
        texture=Texture.SOLID,
        values=_of(Timeline.power_w),
        late=True,
        show=_watts,
    ),
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
"""What the help of a screen with such charts explains."""
HARDWARE_CHARTS: Sequence[ChartPlan] = (MEMORY, ACTIVITY)


class MovedByStep(NamedTuple):
    """What memory moved for each step of a bin, in bytes; None is unknown."""

    measured: float | None
    derived: float | None


def step_traffic(shown: Snapshot, index: int) -> MovedByStep:
    """Of the bin, shared out among its steps: they do not idle while they run."""
    line = shown.timeline
    began_ns = line.start_ns + index * line.bin_ns
    passed_ns = min(line.bin_ns, shown.charts_end_ns - began_ns)
    if not line.steps[index] or passed_ns < line.bin_ns / 2:
        return MovedByStep(None, None)
    each_s = passed_ns / NS_PER_S / line.steps[index]

    def of(column: Values) -> float | None:
        rate = column[index] if index < len(column) else None
        return None if rate is None else rate * each_s

    return MovedByStep(of(line.hbm_bytes_per_s), of(line.derived_bytes_per_s))


def averaged_over_s(shown: Snapshot) -> float | None:
    """What a reading of the GPUs covers, where that is longer than a bin."""
    spans = [gpu.span_s for gpu in shown.gpus if gpu.watched is not False]
    longest = max((span for span in spans if span is not None), default=0.0)
    return longest if longest * NS_PER_S > shown.timeline.bin_ns else None
