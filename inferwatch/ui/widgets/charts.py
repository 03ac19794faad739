"""Every chart over time, declared once for all screens."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import accumulate
from statistics import fmean

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import BoundBy
from inferwatch.formatting import (
    bound_text,
    format_duration,
    format_durations,
    format_rate,
    format_share,
)
from inferwatch.metrics.number import label_of, number_of
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.renderables.plot import Fold, Texture, last

Values = Sequence[float | None]
Columns = tuple[float | None, ...]


Limit = Callable[[Snapshot], float | None]


@dataclass(frozen=True)
class Series:
    """One layer of a chart: where its values come from and how it looks."""

    label: str
    ink: str
    values: Callable[[Snapshot], Values]
    texture: Texture = Texture.SOLID
    _: KW_ONLY
    show: Callable[[float | None], str] = format_duration
    """Formats a value for the heading; durations of a chart share their unit."""
    fold: Fold = fmean
    late: bool = False
    """Values arrive late: until then the heading shows the last one."""
    brief: str = ""
    """The label where there is no room; empty for the usual one."""


def _no_limit(_: Snapshot) -> float | None:
    return None


def _as_is(limit: float) -> str:
    return f"{limit:g}"


def _no_other(_: Snapshot) -> "ChartPlan | None":
    return None


@dataclass(frozen=True, kw_only=True)
class ChartPlan:
    """A chart's heading, its layers from the bottom up and its y axis."""

    title: str
    note: str
    """Vantage and unit, shown after the title."""
    series: tuple[Series, ...]
    unit: str = ""
    stacked: bool = True
    """Stack the layers; otherwise each starts at zero, the smallest first."""
    full: Limit = _no_limit
    """Fixed top of the axis."""
    least: float = 0.0
    """Lowest top of the axis."""
    lane: Series | None = None
    """Series above the others, on an axis of its own."""
    lane_full: Limit = _no_limit
    """Fixed top of that axis."""
    lane_unit: str = ""
    trace: Series | None = None
    """Dotted line over the layers, to compare them with."""
    limit: Limit = _no_limit
    """Highest possible value, drawn as a ceiling if values come near it."""
    limit_label: str = ""
    show_limit: Callable[[float], str] = _as_is
    needs_column: object = None
    """Timeline column without which a server without steps gets the fallback."""
    fallback: "ChartPlan | None" = None
    """Chart of the server's own counters."""
    substitute: "Callable[[Snapshot], ChartPlan | None]" = _no_other
    """A chart that fits this snapshot better; None keeps this one."""
    optional: bool = False
    """Hidden until it has a value."""
    has_place: Callable[[Snapshot], bool] | None = None
    """Whether an optional chart is shown, where that is known before any value."""
    of_published: bool = False
    """Whether it can be drawn of steps that a server publishes, which have no output
    tokens."""

    def has_value(self, snapshot: Snapshot) -> bool:
        """Return whether any of its layers has a value; a trace only goes with them."""
        if self.has_place is not None:
            return self.has_place(snapshot)
        plan = self.of(snapshot)
        layers = (*plan.series, *((plan.lane,) if plan.lane is not None else ()))
        return any(
            value is not None for series in layers for value in series.values(snapshot)
        )

    def of(self, snapshot: Snapshot) -> "ChartPlan":
        """Return this chart, or the one to draw in its place."""
        other = self.substitute(snapshot)
        if other is not None:
            return other
        if self.fallback is None or not snapshot.without_steps:
            return self
        if snapshot.server_steps is not None and not self.of_published:
            return self.fallback
        column = getattr(snapshot.timeline, number_of(self.needs_column).name)
        return self if any(each is not None for each in column) else self.fallback

    @property
    def all_series(self) -> tuple[Series, ...]:
        """All series in drawing order: the layers, the lane, the trace over them."""
        over = (each for each in (self.lane, self.trace) if each is not None)
        return (*self.series, *over)

    def tops(self, columns: Sequence[Columns]) -> list[list[float]]:
        """Return the upper edges of the stacked layers per column, empty in a gap."""
        return [self._tops_of(values) for values in zip(*columns, strict=True)]

    def texts(self, values: Sequence[float | None]) -> Sequence[str]:
        """Format one value per series for the heading."""
        if self.unit == "s":
            return format_durations(values)
        each = zip(self.all_series, values, strict=True)
        return [series.show(value) for series, value in each]

    def _tops_of(self, values: Sequence[float | None]) -> list[float]:
        if all(value is None for value in values):
            return []
        numbers = [value or 0.0 for value in values]
        return list(accumulate(numbers) if self.stacked else accumulate(numbers, max))


def _timeline(field: object) -> Callable[[Snapshot], Values]:
    name = number_of(field).name

    def values(snapshot: Snapshot) -> Values:
        line = snapshot.timeline
        column: Values = getattr(line, name)
        return column or [None] * len(line.steps)

    return values


def _per_second(field: object) -> Callable[[Snapshot], Values]:
    """Return a function for counts per second; the last bin goes by its time so far."""
    name = number_of(field).name

    def values(snapshot: Snapshot) -> Values:
        line = snapshot.timeline
        seconds = [line.bin_ns / NS_PER_S] * len(line.steps)
        if seconds:
            began_ns = line.start_ns + (len(seconds) - 1) * line.bin_ns
            passed_s = (snapshot.charts_end_ns - began_ns) / NS_PER_S
            passed_s = min(passed_s, seconds[-1])
            seconds[-1] = passed_s if passed_s > seconds[-1] / 2 else 0.0
        return _divide(getattr(line, name) or [None] * len(seconds), seconds)

    return values


def _per_step(field: object) -> Callable[[Snapshot], Values]:
    """Return a function for counts per step in each bin."""
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
    """Return a function for KV blocks as a share of all blocks."""
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


def whole(_: Snapshot) -> float:
    return 1.0


share_series = partial(Series, show=format_share)
share_chart = partial(ChartPlan, unit="%", full=whole)
_count_series = partial(Series, fold=max, show=_count)
_mean_series = partial(Series, show=_mean)
_block_series = partial(share_series, fold=last)


def latency_chart(
    title: str,
    note: str,
    mean: Callable[[Snapshot], Values],
    most: Callable[[Snapshot], Values],
) -> ChartPlan:
    """Return a chart of a latency: its maximum over its mean."""
    return ChartPlan(
        title=title,
        note=note,
        unit="s",
        stacked=False,
        series=(
            Series("mean", "mean", mean),
            Series("max", "worst", most, Texture.DOTTED, fold=max),
        ),
    )


def _latency(
    vantage: str, title: str, mean: object, most: object, fallback: ChartPlan
) -> ChartPlan:
    note = f"{vantage}, worst over mean"
    chart = latency_chart(title, note, _timeline(mean), _timeline(most))
    return replace(chart, needs_column=most, fallback=fallback)


def _mean_only(title: str, field: object) -> ChartPlan:
    """Return a chart of a latency's exact mean, from a server's sum and count."""
    return ChartPlan(
        title=title,
        note="scrape, exact mean",
        unit="s",
        series=(Series("mean", "mean", _timeline(field)),),
    )


_TTFT_MEAN = _mean_only("TTFT", Timeline.ttft_mean_s)
_ITL_MEAN = _mean_only("ITL", Timeline.itl_mean_s)
TTFT = _latency(
    "frontend", "TTFT", Timeline.ttft_mean_s, Timeline.ttft_max_s, _TTFT_MEAN
)
ITL = _latency("engine", "ITL", Timeline.itl_mean_s, Timeline.itl_max_s, _ITL_MEAN)
STEP_TIME = replace(
    _latency(
        "engine",
        "step time",
        Timeline.step_mean_s,
        Timeline.step_max_s,
        replace(_ITL_MEAN, note=f"{_ITL_MEAN.note}, about a step's time"),
    ),
    of_published=True,
)
FLOOR = ChartPlan(
    needs_column=Timeline.step_max_s,
    fallback=STEP_TIME.fallback,
    title="step time",
    note="engine, mean; its floor derived",
    unit="s",
    series=(
        Series("step", "mean", _timeline(Timeline.step_mean_s)),
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
"""Step time, the gaps between steps and the least time the hardware needs."""
_DECODE = _mean_series(
    label=label_of(Timeline.batch_decode),
    ink="decode",
    values=_timeline(Timeline.batch_decode),
)
_PREFILL = _mean_series(
    label=label_of(Timeline.batch_prefill),
    ink="prefill",
    texture=Texture.DOTTED,
    values=_timeline(Timeline.batch_prefill),
)
_WAITING = _count_series(
    label=label_of(Timeline.waiting_max),
    ink="waiting",
    texture=Texture.DOTTED,
    values=_timeline(Timeline.waiting_max),
)


def _max_num_seqs(snapshot: Snapshot) -> float | None:
    limits = {info.max_num_seqs for info in snapshot.engines}
    return limits.pop() if len(limits) == 1 else None


_REQUESTS = ChartPlan(
    title="requests",
    note="scrape, running, queue above",
    series=(
        _count_series(
            label=label_of(Timeline.running_max),
            ink="decode",
            values=_timeline(Timeline.running_max),
        ),
    ),
    lane=_WAITING,
    least=5,
)
BATCH = ChartPlan(
    of_published=True,
    needs_column=Timeline.batch_decode,
    fallback=_REQUESTS,
    title="batch",
    note="engine, requests per step, queue above",
    series=(_DECODE, _PREFILL),
    lane=_WAITING,
    limit=_max_num_seqs,
    limit_label="max_num_seqs",
    least=5,
)


def _by_scrape(plan: ChartPlan) -> ChartPlan:
    """Return the chart; where a server reports no steps, its note says "scrape"."""
    note = plan.note.replace("engine", "scrape")
    return replace(
        plan, needs_column=Timeline.batch_decode, fallback=replace(plan, note=note)
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
    _block_series(
        label=label_of(field),
        ink=ink,
        texture=texture,
        values=_of_total(field),
    )
    for ink, texture, field in (
        ("kv", Texture.SOLID, Timeline.kv_used_blocks),
        ("cached", Texture.DOTTED, Timeline.kv_cached_blocks),
    )
)
KV_FREE = _block_series(
    label=label_of(Timeline.kv_free_blocks),
    ink="rule",
    texture=Texture.EMPTY,
    values=_of_total(Timeline.kv_free_blocks),
)
KV = share_chart(
    needs_column=Timeline.kv_cached_blocks,
    fallback=share_chart(
        title="KV cache",
        note="scrape, share of all blocks",
        series=(
            _block_series(
                label=label_of(Timeline.kv_usage),
                ink="kv",
                values=_timeline(Timeline.kv_usage),
            ),
        ),
    ),
    title="KV cache",
    note="engine, share of all blocks",
    series=(*_KV, KV_FREE),
)

_OUT = Series(
    label=label_of(Timeline.output_tokens),
    ink="output",
    values=_per_second(Timeline.output_tokens),
    show=format_rate,
)
OUTPUT = _by_scrape(
    ChartPlan(title="output", note="engine, tokens per second", series=(_OUT,))
)
TOKENS = ChartPlan(
    needs_column=Timeline.batch_decode,
    fallback=OUTPUT.fallback,
    title="tokens",
    note="engine, per step",
    series=(
        _mean_series(
            label=label_of(Timeline.output_tokens),
            ink="output",
            values=_per_step(Timeline.output_tokens),
        ),
        _mean_series(
            label=label_of(Timeline.prefill_tokens),
            ink="prefill",
            texture=Texture.DOTTED,
            values=_per_step(Timeline.prefill_tokens),
        ),
    ),
)
BOUND_BY = share_chart(
    needs_column=Timeline.bound_kv,
    fallback=ChartPlan(
        title="prompts",
        note="scrape, tokens per second",
        series=(
            Series(
                label=label_of(Timeline.prefill_tokens),
                ink="prefill",
                values=_per_second(Timeline.prefill_tokens),
                show=format_rate,
            ),
        ),
    ),
    title="bound by",
    note="engine, share of the steps' time",
    series=tuple(
        share_series(
            label=label_of(field),
            ink=cause,
            texture=texture,
            values=_timeline(field),
            brief=bound_text(BoundBy(cause), briefly=True),
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
SPECULATION = _by_scrape(
    share_chart(
        title="speculation",
        note="engine, share of drafts, length above",
        series=(
            share_series(
                label=label_of(Timeline.acceptance),
                ink="decode",
                values=_timeline(Timeline.acceptance),
            ),
        ),
        lane=_mean_series(
            label=label_of(Timeline.acceptance_length),
            ink="output",
            values=_timeline(Timeline.acceptance_length),
        ),
        lane_unit="tok",
        optional=True,
        has_place=lambda snapshot: snapshot.speculation is not None,
    )
)
"""There from the start where an engine is set to speculate."""
PREEMPTIONS = _by_scrape(
    ChartPlan(
        title="preemptions",
        note="engine, requests",
        series=(
            Series(
                "sum", "warn", _timeline(Timeline.preemptions), fold=sum, show=_count
            ),
        ),
        least=5,
    )
)


def span_of(timeline: Timeline, window_ns: int | None) -> int:
    """Return the time range of the charts: the window, even before it has passed."""
    return max(window_ns or 0, len(timeline.steps) * timeline.bin_ns)
