"""The charts there are, each declared once and shown wherever it helps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    format_duration,
    format_durations,
    format_rate,
    format_share,
)
from inferwatch.metrics.number import label_of, number_of
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.renderables.bars import Texture
from inferwatch.ui.kit.renderables.time_axis import Fold, last

Values = Sequence[float | None]
Columns = tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One layer of a chart: where its values come from and how it looks."""

    label: str
    ink: str
    texture: Texture
    values: Callable[[Snapshot], Sequence[float | None]]
    show: Callable[[float | None], str] = format_duration
    """Writes one value for the heading; durations of a chart share their unit."""
    fold: Fold = fmean
    late: bool = False
    """It is told some time after it was: until then its last value heads the chart."""


def _no_limit(_: Snapshot) -> float | None:
    return None


def _as_is(limit: float) -> str:
    return f"{limit:g}"


def _no_other(_: Snapshot) -> "ChartPlan | None":
    return None


@dataclass(frozen=True, kw_only=True)
class ChartPlan:
    """A chart's heading, its layers from the bottom and its y axis."""

    title: str
    note: str
    """Who measured, and in what."""
    series: tuple[Series, ...]
    unit: str = ""
    stacked: bool = True
    """Layers lie on each other; else each is measured from zero, smallest first."""
    full: Callable[[Snapshot], float | None] = _no_limit
    """A fixed top of the axis, where there is one."""
    least: float = 0.0
    """The axis never shows less than this."""
    lane: Series | None = None
    """Drawn above the others on an axis of its own."""
    lane_full: Callable[[Snapshot], float | None] = _no_limit
    """A fixed top of that axis."""
    lane_unit: str = ""
    trace: Series | None = None
    """A dotted line over the others, to hold against them."""
    limit: Callable[[Snapshot], float | None] = _no_limit
    """What the values cannot exceed, drawn as a ceiling where they come near."""
    limit_label: str = ""
    show_limit: Callable[[float], str] = _as_is
    told_by: object = None
    """The column without which it is another chart, where a server tells no steps:"""
    counted: "ChartPlan | None" = None
    """that one, of what the server counts."""
    instead: "Callable[[Snapshot], ChartPlan | None]" = _no_other
    """Another chart that tells more of this snapshot; None: this one."""
    optional: bool = False
    """It has no place on the screen before there is a value."""

    def is_told(self, snapshot: Snapshot) -> bool:
        """There is a value to draw."""
        return any(
            value is not None
            for series in self.of(snapshot).drawn
            for value in series.values(snapshot)
        )

    def of(self, snapshot: Snapshot) -> "ChartPlan":
        """This, or what can be drawn instead."""
        other = self.instead(snapshot)
        if other is not None:
            return other
        if self.counted is None or not snapshot.without_steps:
            return self
        told = getattr(snapshot.timeline, number_of(self.told_by).name)
        return self if any(each is not None for each in told) else self.counted

    @property
    def drawn(self) -> tuple[Series, ...]:
        """All that is drawn: the layers, the lane, the trace."""
        over = (each for each in (self.lane, self.trace) if each is not None)
        return (*self.series, *over)

    def tops(self, columns: Sequence[Columns]) -> list[list[float]]:
        """For each column the upper edges of the layers, none in a gap."""
        return [self._tops_of(values) for values in zip(*columns, strict=True)]

    def texts(self, values: Sequence[float | None]) -> Sequence[str]:
        """What the heading says: a value for each layer."""
        if self.unit == "s":
            return format_durations(values)
        each = zip(self.drawn, values, strict=True)
        return [series.show(value) for series, value in each]

    def _tops_of(self, values: Sequence[float | None]) -> list[float]:
        if all(value is None for value in values):
            return []
        known = [value or 0.0 for value in values]
        return list(accumulate(known) if self.stacked else accumulate(known, max))


def _timeline(field: object) -> Callable[[Snapshot], Values]:
    """A column of the timeline as it is."""
    name = number_of(field).name

    def values(snapshot: Snapshot) -> Values:
        line = snapshot.timeline
        column: Values = getattr(line, name)
        return column or [None] * len(line.steps)

    return values


def _per_second(field: object) -> Callable[[Snapshot], Values]:
    """Counts per bin as a rate; the running bin counts only the time it has had."""
    name = number_of(field).name

    def values(snapshot: Snapshot) -> Values:
        line = snapshot.timeline
        seconds = [line.bin_ns / NS_PER_S] * len(line.steps)
        if seconds:
            began_ns = line.start_ns + (len(seconds) - 1) * line.bin_ns
            passed_s = (snapshot.charts_end_ns - began_ns) / NS_PER_S
            seconds[-1] = passed_s if passed_s > seconds[-1] / 2 else 0.0
        return _divide(getattr(line, name), seconds)

    return values


def _per_step(field: object) -> Callable[[Snapshot], Values]:
    """Counts per bin as a mean over its steps."""
    name = number_of(field).name

    def values(snapshot: Snapshot) -> Values:
        return _divide(getattr(snapshot.timeline, name), snapshot.timeline.steps)

    return values


def _divide(values: Values, by: Sequence[float]) -> Values:
    return [
        value / divisor if value is not None and divisor else None
        for value, divisor in zip(values, by, strict=True)
    ]


def _of_total(field: object) -> Callable[[Snapshot], Values]:
    """KV blocks as a share of all."""
    name = number_of(field).name

    def values(snapshot: Snapshot) -> Values:
        total = snapshot.kv.total_blocks
        if not total:
            return [None] * len(snapshot.timeline.steps)
        column: Sequence[int | None] = getattr(snapshot.timeline, name)
        return [None if value is None else value / total for value in column]

    return values


def _count(value: float | None) -> str:
    return "   –" if value is None else f"{value:4.0f}"


def _mean(value: float | None) -> str:
    return "    –" if value is None else f"{value:5.1f}"


def _whole(_: Snapshot) -> float:
    return 1.0


def _worst(label: str, field: object) -> Series:
    return Series(
        label=label,
        ink="worst",
        texture=Texture.DOTTED,
        values=_timeline(field),
        fold=max,
    )


def _typical(label: str, field: object) -> Series:
    return Series(
        label=label,
        ink="mean",
        texture=Texture.SOLID,
        values=_timeline(field),
    )


def _mean_only(title: str, field: object, note: str = "") -> ChartPlan:
    """What a server's sums and counts tell: exact, but nothing of single requests."""
    return ChartPlan(
        title=title,
        note=f"scrape, exact mean{note}",
        unit="s",
        series=(_typical("mean", field),),
    )


TTFT = ChartPlan(
    title="TTFT",
    told_by=Timeline.ttft_max_s,
    counted=_mean_only("TTFT", Timeline.ttft_mean_s),
    note="frontend, worst over mean",
    unit="s",
    stacked=False,
    series=(_typical("mean", Timeline.ttft_mean_s), _worst("max", Timeline.ttft_max_s)),
)
STEP_TIME = ChartPlan(
    told_by=Timeline.step_max_s,
    counted=_mean_only("ITL", Timeline.itl_mean_s, ", about a step's time"),
    title="step time",
    note="engine, worst over mean",
    unit="s",
    stacked=False,
    series=(_typical("mean", Timeline.step_mean_s), _worst("max", Timeline.step_max_s)),
)
FLOOR = ChartPlan(
    told_by=Timeline.step_max_s,
    counted=STEP_TIME.counted,
    title="step time",
    note="engine, mean; its floor derived",
    unit="s",
    series=(
        _typical("step", Timeline.step_mean_s),
        Series(
            label=label_of(Timeline.gap_mean_s),
            ink="waiting",
            texture=Texture.DOTTED,
            values=_timeline(Timeline.gap_mean_s),
        ),
    ),
    trace=Series(
        label=label_of(Timeline.floor_mean_s),
        ink="warn",
        texture=Texture.LIGHT,
        values=_timeline(Timeline.floor_mean_s),
    ),
)
"""What steps took, what passed between them, and what hardware would have needed."""
ITL = ChartPlan(
    told_by=Timeline.itl_max_s,
    counted=_mean_only("ITL", Timeline.itl_mean_s),
    title="ITL",
    note="engine, worst over mean",
    unit="s",
    stacked=False,
    series=(_typical("mean", Timeline.itl_mean_s), _worst("max", Timeline.itl_max_s)),
)

_DECODE = Series(
    label=label_of(Timeline.batch_decode),
    ink="decode",
    texture=Texture.SOLID,
    values=_timeline(Timeline.batch_decode),
    show=_mean,
)
_PREFILL = Series(
    label=label_of(Timeline.batch_prefill),
    ink="prefill",
    texture=Texture.DOTTED,
    values=_timeline(Timeline.batch_prefill),
    show=_mean,
)
_WAITING = Series(
    label=label_of(Timeline.waiting_max),
    ink="waiting",
    texture=Texture.DOTTED,
    values=_timeline(Timeline.waiting_max),
    fold=max,
    show=_count,
)


def _max_num_seqs(snapshot: Snapshot) -> float | None:
    """How many requests a step can have, where all engines say the same."""
    limits = {info.max_num_seqs for info in snapshot.engines}
    return limits.pop() if len(limits) == 1 else None


_REQUESTS = ChartPlan(
    title="requests",
    note="scrape, running, queue above",
    series=(
        Series(
            label=label_of(Timeline.running_max),
            ink="decode",
            texture=Texture.SOLID,
            values=_timeline(Timeline.running_max),
            fold=max,
            show=_count,
        ),
    ),
    lane=_WAITING,
    least=5,
)
BATCH = ChartPlan(
    told_by=Timeline.batch_decode,
    counted=_REQUESTS,
    title="batch",
    note="engine, requests per step, queue above",
    series=(_DECODE, _PREFILL),
    lane=_WAITING,
    limit=_max_num_seqs,
    limit_label="max_num_seqs",
    least=5,
)


def _by_scrape(plan: ChartPlan) -> ChartPlan:
    """The same, and who else can tell it."""
    note = plan.note.replace("engine", "scrape")
    return replace(
        plan, told_by=Timeline.batch_decode, counted=replace(plan, note=note)
    )


WAITING = _by_scrape(
    ChartPlan(
        title="waiting",
        note="engine, most requests",
        series=(replace(_WAITING, texture=Texture.SOLID),),
        least=5,
    )
)

_KV = tuple(
    Series(
        label=label_of(field),
        ink=ink,
        texture=texture,
        values=_of_total(field),
        fold=last,
        show=format_share,
    )
    for ink, texture, field in (
        ("kv", Texture.SOLID, Timeline.kv_used_blocks),
        ("cached", Texture.DOTTED, Timeline.kv_cached_blocks),
    )
)
KV_FREE = Series(
    label=label_of(Timeline.kv_free_blocks),
    ink="rule",
    texture=Texture.EMPTY,
    values=_of_total(Timeline.kv_free_blocks),
    fold=last,
    show=format_share,
)
KV = ChartPlan(
    told_by=Timeline.kv_cached_blocks,
    counted=ChartPlan(
        title="KV cache",
        note="scrape, share of all blocks",
        unit="%",
        series=(
            Series(
                label=label_of(Timeline.kv_usage),
                ink="kv",
                texture=Texture.SOLID,
                values=_timeline(Timeline.kv_usage),
                fold=last,
                show=format_share,
            ),
        ),
        full=_whole,
    ),
    title="KV cache",
    note="engine, share of all blocks",
    unit="%",
    series=(*_KV, KV_FREE),
    full=_whole,
)

_OUT = Series(
    label=label_of(Timeline.output_tokens),
    ink="output",
    texture=Texture.SOLID,
    values=_per_second(Timeline.output_tokens),
    show=format_rate,
)
OUTPUT = _by_scrape(
    ChartPlan(title="output", note="engine, tokens per second", series=(_OUT,))
)
TOKENS = ChartPlan(
    told_by=Timeline.batch_decode,
    counted=OUTPUT.counted,
    title="tokens",
    note="engine, per step",
    series=(
        Series(
            label=label_of(Timeline.output_tokens),
            ink="output",
            texture=Texture.SOLID,
            values=_per_step(Timeline.output_tokens),
            show=_mean,
        ),
        Series(
            label=label_of(Timeline.prefill_tokens),
            ink="prefill",
            texture=Texture.DOTTED,
            values=_per_step(Timeline.prefill_tokens),
            show=_mean,
        ),
    ),
)
BOUND_BY = ChartPlan(
    told_by=Timeline.bound_kv,
    counted=ChartPlan(
        title="prompts",
        note="scrape, tokens per second",
        series=(
            Series(
                label=label_of(Timeline.prefill_tokens),
                ink="prefill",
                texture=Texture.SOLID,
                values=_per_second(Timeline.prefill_tokens),
                show=format_rate,
            ),
        ),
    ),
    title="bound by",
    note="engine, share of the steps' time",
    unit="%",
    full=_whole,
    series=tuple(
        Series(
            label=label_of(field),
            ink=cause,
            texture=texture,
            values=_timeline(field),
            show=format_share,
        )
        for cause, texture, field in (
            ("kv", Texture.SOLID, Timeline.bound_kv),
            ("seqs", Texture.DOTTED, Timeline.bound_seqs),
            ("tokens", Texture.MEDIUM, Timeline.bound_tokens),
            ("deferred", Texture.HEAVY, Timeline.bound_deferred),
            ("other", Texture.LIGHT, Timeline.bound_other),
        )
    ),
)
PREEMPTIONS = _by_scrape(
    ChartPlan(
        title="preemptions",
        note="engine, requests",
        series=(
            Series(
                label="sum",
                ink="warn",
                texture=Texture.SOLID,
                values=_timeline(Timeline.preemptions),
                fold=sum,
                show=_count,
            ),
        ),
        least=5,
    )
)


def span_of(timeline: Timeline, window_ns: int | None) -> int:
    """How much time the charts show: the window, even before it has passed."""
    return max(window_ns or 0, len(timeline.steps) * timeline.bin_ns)
