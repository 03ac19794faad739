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
from inferwatch.metrics.catalog import label_of
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
    told_by: str = ""
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
        told = getattr(snapshot.timeline, self.told_by)
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


def _timeline(name: str) -> Callable[[Snapshot], Values]:
    """A column of the timeline as it is."""

    def values(snapshot: Snapshot) -> Values:
        line = snapshot.timeline
        column: Values = getattr(line, name)
        return column or [None] * len(line.steps)

    return values


def _per_second(name: str) -> Callable[[Snapshot], Values]:
    """Counts per bin as a rate; the running bin counts only the time it has had."""

    def values(snapshot: Snapshot) -> Values:
        line = snapshot.timeline
        seconds = [line.bin_ns / NS_PER_S] * len(line.steps)
        if seconds:
            began_ns = line.start_ns + (len(seconds) - 1) * line.bin_ns
            passed_s = (snapshot.charts_end_ns - began_ns) / NS_PER_S
            seconds[-1] = passed_s if passed_s > seconds[-1] / 2 else 0.0
        return _divide(getattr(line, name), seconds)

    return values


def _per_step(name: str) -> Callable[[Snapshot], Values]:
    """Counts per bin as a mean over its steps."""

    def values(snapshot: Snapshot) -> Values:
        return _divide(getattr(snapshot.timeline, name), snapshot.timeline.steps)

    return values


def _divide(values: Values, by: Sequence[float]) -> Values:
    return [
        value / divisor if value is not None and divisor else None
        for value, divisor in zip(values, by, strict=True)
    ]


def _of_total(name: str) -> Callable[[Snapshot], Values]:
    """KV blocks as a share of all."""

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


def _worst(label: str, name: str) -> Series:
    return Series(
        label=label,
        ink="worst",
        texture=Texture.DOTTED,
        values=_timeline(name),
        fold=max,
    )


def _typical(label: str, name: str) -> Series:
    return Series(
        label=label,
        ink="mean",
        texture=Texture.SOLID,
        values=_timeline(name),
    )


def _mean_only(title: str, name: str, note: str = "") -> ChartPlan:
    """What a server's sums and counts tell: exact, but nothing of single requests."""
    return ChartPlan(
        title=title,
        note=f"scrape, exact mean{note}",
        unit="s",
        series=(_typical("mean", name),),
    )


TTFT = ChartPlan(
    title="TTFT",
    told_by="ttft_max_s",
    counted=_mean_only("TTFT", "ttft_mean_s"),
    note="frontend, worst over mean",
    unit="s",
    stacked=False,
    series=(_typical("mean", "ttft_mean_s"), _worst("max", "ttft_max_s")),
)
STEP_TIME = ChartPlan(
    told_by="step_max_s",
    counted=_mean_only("ITL", "itl_mean_s", ", about a step's time"),
    title="step time",
    note="engine, worst over mean",
    unit="s",
    stacked=False,
    series=(_typical("mean", "step_mean_s"), _worst("max", "step_max_s")),
)
FLOOR = ChartPlan(
    told_by="step_max_s",
    counted=STEP_TIME.counted,
    title="step time",
    note="engine, mean; its floor derived",
    unit="s",
    series=(
        _typical("step", "step_mean_s"),
        Series(
            label=label_of("timeline.gap_mean_s"),
            ink="waiting",
            texture=Texture.DOTTED,
            values=_timeline("gap_mean_s"),
        ),
    ),
    trace=Series(
        label=label_of("timeline.floor_mean_s"),
        ink="warn",
        texture=Texture.LIGHT,
        values=_timeline("floor_mean_s"),
    ),
)
"""What steps took, what passed between them, and what hardware would have needed."""
ITL = ChartPlan(
    told_by="itl_max_s",
    counted=_mean_only("ITL", "itl_mean_s"),
    title="ITL",
    note="engine, worst over mean",
    unit="s",
    stacked=False,
    series=(_typical("mean", "itl_mean_s"), _worst("max", "itl_max_s")),
)

_DECODE = Series(
    label=label_of("timeline.batch_decode"),
    ink="decode",
    texture=Texture.SOLID,
    values=_timeline("batch_decode"),
    show=_mean,
)
_PREFILL = Series(
    label=label_of("timeline.batch_prefill"),
    ink="prefill",
    texture=Texture.DOTTED,
    values=_timeline("batch_prefill"),
    show=_mean,
)
_WAITING = Series(
    label=label_of("timeline.waiting_max"),
    ink="waiting",
    texture=Texture.DOTTED,
    values=_timeline("waiting_max"),
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
            label=label_of("timeline.running_max"),
            ink="decode",
            texture=Texture.SOLID,
            values=_timeline("running_max"),
            fold=max,
            show=_count,
        ),
    ),
    lane=_WAITING,
    least=5,
)
BATCH = ChartPlan(
    told_by="batch_decode",
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
    return replace(plan, told_by="batch_decode", counted=replace(plan, note=note))


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
        label=label_of(f"timeline.{name}"),
        ink=ink,
        texture=texture,
        values=_of_total(name),
        fold=last,
        show=format_share,
    )
    for ink, texture, name in (
        ("kv", Texture.SOLID, "kv_used_blocks"),
        ("cached", Texture.DOTTED, "kv_cached_blocks"),
    )
)
KV_FREE = Series(
    label=label_of("timeline.kv_free_blocks"),
    ink="rule",
    texture=Texture.EMPTY,
    values=_of_total("kv_free_blocks"),
    fold=last,
    show=format_share,
)
KV = ChartPlan(
    told_by="kv_cached_blocks",
    counted=ChartPlan(
        title="KV cache",
        note="scrape, share of all blocks",
        unit="%",
        series=(
            Series(
                label=label_of("timeline.kv_usage"),
                ink="kv",
                texture=Texture.SOLID,
                values=_timeline("kv_usage"),
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
    label=label_of("timeline.output_tokens"),
    ink="output",
    texture=Texture.SOLID,
    values=_per_second("output_tokens"),
    show=format_rate,
)
OUTPUT = _by_scrape(
    ChartPlan(title="output", note="engine, tokens per second", series=(_OUT,))
)
TOKENS = ChartPlan(
    told_by="batch_decode",
    counted=OUTPUT.counted,
    title="tokens",
    note="engine, per step",
    series=(
        Series(
            label=label_of("timeline.output_tokens"),
            ink="output",
            texture=Texture.SOLID,
            values=_per_step("output_tokens"),
            show=_mean,
        ),
        Series(
            label=label_of("timeline.prefill_tokens"),
            ink="prefill",
            texture=Texture.DOTTED,
            values=_per_step("prefill_tokens"),
            show=_mean,
        ),
    ),
)
BOUND_BY = ChartPlan(
    told_by="bound_kv",
    counted=ChartPlan(
        title="prompts",
        note="scrape, tokens per second",
        series=(
            Series(
                label=label_of("timeline.prefill_tokens"),
                ink="prefill",
                texture=Texture.SOLID,
                values=_per_second("prefill_tokens"),
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
            label=label_of(f"timeline.bound_{cause}"),
            ink=cause,
            texture=texture,
            values=_timeline(f"bound_{cause}"),
            show=format_share,
        )
        for cause, texture in (
            ("kv", Texture.SOLID),
            ("seqs", Texture.DOTTED),
            ("tokens", Texture.MEDIUM),
            ("deferred", Texture.HEAVY),
            ("other", Texture.LIGHT),
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
                values=_timeline("preemptions"),
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
