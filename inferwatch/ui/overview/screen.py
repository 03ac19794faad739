"""The overview: health, flow, latencies and charts."""

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from textual.widget import Widget

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import EngineInfo
from inferwatch.formatting import (
    UNKNOWN,
    format_count,
    format_duration,
    format_durations,
    format_rate,
    format_share,
)
from inferwatch.metrics.findings.tracker import MOST_SHOWN
from inferwatch.metrics.findings.traffic import EngineLost
from inferwatch.metrics.load.canary import Canary
from inferwatch.metrics.number import (
    NOW,
    FlowColumn,
    FlowFact,
    Number,
    Unit,
    number_of,
    numbers,
    numbers_in,
)
from inferwatch.metrics.requests.latencies import ITL, LENGTHS, TTFT
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import Quantiles, Window
from inferwatch.metrics.servers.server_counts import ServerCounts
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.flow import Flow
from inferwatch.metrics.steps.health import Health
from inferwatch.metrics.steps.speculation import Speculation
from inferwatch.ui.frame.watch_keys import KNOB_BINDINGS
from inferwatch.ui.frame.watch_screen import TALL, WatchScreen
from inferwatch.ui.kit.panel import LinePanel, Panel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    age_text,
    cells,
    fit,
    join_whole,
)
from inferwatch.ui.messages import LookAgain, LookAt
from inferwatch.ui.widgets import charts
from inferwatch.ui.widgets.counter_facts import MEAN, ROUGHLY, at_last_reading, step_s
from inferwatch.ui.widgets.finding_strip import FindingStrip, TrustLine
from inferwatch.ui.widgets.hardware_charts import GPU_MEMORY, HARDWARE_NUMBERS
from inferwatch.ui.widgets.help_drawer import (
    COST_NUMBERS,
    FLOW_NUMBERS,
    LATENCY_NUMBERS,
    SLO_NUMBERS,
    SPENDING_NUMBERS,
)
from inferwatch.ui.widgets.latency_table import LatencyTable, ReferenceRows
from inferwatch.ui.widgets.slow_line import SlowLine
from inferwatch.ui.widgets.speculation_facts import (
    SPECULATION_NUMBERS,
    speculation_facts,
)
from inferwatch.ui.widgets.time_chart import CHART_BINDINGS, CHART_KEYS, ChartStack

FORMATS: dict[Unit, Callable[[float | None], str]] = {
    Unit.PER_SECOND: format_rate,
    Unit.TOKENS_PER_SECOND: format_rate,
    Unit.SECONDS: format_duration,
    Unit.SHARE: format_share,
}
"""Formats by unit; others are counts."""
INKS = {
    FlowColumn.TRAFFIC: "strong",
    FlowColumn.QUEUE: "waiting",
    FlowColumn.PREFILL: "prefill",
    FlowColumn.DECODE: "decode",
    FlowColumn.OUT: "output",
}
LENGTH_OF = {FlowColumn.TRAFFIC: "prompt_tokens", FlowColumn.OUT: "output_tokens"}
"""Token counts whose mean is shown if single requests are not reported."""
KV_USAGE = number_of(Flow.kv_usage)
NOW_MARK = "•"
"""Follows the name of present values; all others cover the window."""
WIDEST = 20
"""Widest number, to keep labels and values together."""


class _Number(NamedTuple):
    """A number of a column as text."""

    label: str
    text: str
    ink: str = ""
    limit: str = ""
    now: bool = False

    def line(self, size: int) -> Line:
        """Draw the label on the left and the value on the right."""
        field = min(size - 1 if size < WIDEST else size - 3, WIDEST)
        now = NOW_MARK if self.now else ""
        room = max(field - len(self.label) - len(now), 0)
        text, limit = self.text, self.limit
        text += limit if len(text) + len(limit) <= room else ""
        gap = TextRun(" " * (size - field))
        number = cells(text, room, self.ink, right=True)
        return (TextRun(self.label, "muted"), TextRun(now, "accent"), number, gap)


class _Column:
    """The numbers that have their place in a column, a line each."""

    def __init__(self, column: FlowColumn) -> None:
        self.title, self.ink = column.value, INKS[column]
        self._length = LENGTH_OF.get(column)
        self._facts = [
            (number, place)
            for number in numbers_in(Flow)
            if isinstance(place := number.place, FlowFact) and place.column is column
        ]

    def __len__(self) -> int:
        return sum(len(fact.percentiles) or 1 for _, fact in self._facts)

    def numbers(self, snapshot: Snapshot) -> list[_Number]:
        """Return the column's numbers; without steps, only those a server counts."""
        made: list[_Number] = []
        outside = snapshot.without_steps
        flow = at_last_reading(snapshot) if outside else snapshot.flow
        for number, fact in self._facts:
            value = getattr(flow, number.name)
            if outside and fact.inside and not value:
                continue
            if number is KV_USAGE and snapshot.server_counts.pools:
                made += _pools(snapshot)
                continue
            if outside and fact.percentiles:
                took = format_duration(step_s(snapshot)).strip()
                made.append(_Number(f"{number.label} {ROUGHLY}", took))
            elif fact.percentiles:
                made += _percentiles(number, fact, value)
            else:
                made.append(_number(number, fact, value, snapshot, first=not made))
        if made:
            made[0] = made[0]._replace(ink=made[0].ink or "strong")
        return [*made, *self._lengths(snapshot)] if outside else made

    def _lengths(self, snapshot: Snapshot) -> list[_Number]:
        return [
            _Number(f"{LENGTHS[each.metric].label} {MEAN}", _mean(each.quantiles.mean))
            for each in snapshot.lengths
            if each.metric == self._length and each.quantiles.mean is not None
        ]


def _pools(snapshot: Snapshot) -> list[_Number]:
    """Return the usage of each pool of a hybrid model's cache."""
    return [
        _Number(name, format_share(usage).strip(), now=True)
        for name, usage in snapshot.server_counts.pools
    ]


def _number(
    number: Number,
    fact: FlowFact,
    value: float | None,
    snapshot: Snapshot,
    *,
    first: bool,
) -> _Number:
    alarm = fact.alarm if value else ""
    mark = "▲ " if alarm and first else ""
    engine = snapshot.engines[0] if snapshot.engines else None
    return _Number(
        label=number.label,
        text=f"{mark}{_text(number, fact, value)}",
        ink=alarm,
        limit="" if value is None else _limit(fact, engine),
        now=number.span == NOW,
    )


def _percentiles(number: Number, fact: FlowFact, value: Quantiles) -> list[_Number]:
    """Return a line per percentile; only the first is labelled without its name."""
    names = fact.percentiles
    first, *others = _in_one_unit(value, names).items()
    return [
        _Number(number.label, first[1]),
        *(_Number(f"{number.label} {name}", text) for name, text in others),
    ]


def _mean(value: float | None) -> str:
    return format_rate(value).strip()


COLUMNS = tuple(map(_Column, FlowColumn))
LEAST_COLUMNS = tuple(
    column for column in COLUMNS if column.title != FlowColumn.PREFILL.value
)
"""Columns that are never left out."""
ALL_FROM = 72
"""Least width for all columns."""


class FlowPanel(Panel):
    """Traffic, queue, prefill, decode, output: columns joined by arrows.

    Which number stands where, and how, is told by its field.
    """

    DEFAULT_CSS = f"""
    FlowPanel {{ height: {1 + max(map(len, COLUMNS))}; }}
    """

    _snapshot: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        if self._snapshot is None:
            return ()
        visible = COLUMNS if width >= ALL_FROM else LEAST_COLUMNS
        sizes = _shares(width - 1, len(visible))
        columns = list(zip(visible, sizes, strict=True))
        now = _now_text(self._snapshot)
        last = _end(*columns[-1], now, self._snapshot.window)
        heads = [*(_arrow(*each) for each in columns[:-1]), last]
        rows = zip(
            *(_lines(*each, self._snapshot, height - 1) for each in columns),
            strict=True,
        )
        return [
            (TextRun(" "), *(run for cell in cells for run in cell))
            for cells in (heads, *rows)
        ]


def _now_text(snapshot: Snapshot) -> str:
    """Return the legend of present values: how old they are once the engine is lost."""
    lost_ns = snapshot.timeline.lost_ns
    if lost_ns is None:
        return "now"
    return f"{age_text(max(snapshot.now_ns - lost_ns, 0) / NS_PER_S)} old"


def _end(column: _Column, size: int, now: str, window: Window) -> Line:
    """Return the last column's heading, with a legend for values of now."""
    head = TextRun(f"{column.title} ", column.ink)
    room = size - len(column.title) - 1
    text = f" {now}, else {window.label}"
    text = text if len(text) + 4 <= room else f" {now}"
    rule = "─" * max(room - len(text) - 3, 0)
    mark, legend = TextRun(NOW_MARK, "accent"), TextRun(f"{text} ", "muted")
    return (head, TextRun(f"{rule} ", "rule"), mark, legend)


def _text(number: Number, fact: FlowFact, value: float | None) -> str:
    if fact.text is None:
        return FORMATS.get(number.unit, format_count)(value).strip()
    return UNKNOWN if value is None else fact.text.format(value)


def _in_one_unit(quantiles: Quantiles, names: Sequence[str]) -> dict[str, str]:
    """Format percentiles of a latency in one unit."""
    texts = format_durations(getattr(quantiles, name) for name in names)
    return {name: text.strip() for name, text in zip(names, texts, strict=True)}


def _limit(fact: FlowFact, engine: EngineInfo | None) -> str:
    limit = getattr(engine, fact.limit) if engine and fact.limit else None
    return f"/{limit:,}" if limit else ""


def _lines(column: _Column, size: int, snapshot: Snapshot, height: int) -> list[Line]:
    lines = [number.line(size) for number in column.numbers(snapshot)]
    return [*lines, *[(TextRun(" " * size),)] * height][:height]


def _arrow(column: _Column, size: int) -> Line:
    head = TextRun(f"{column.title} ", column.ink)
    room = size - len(column.title) - 1
    return (head, TextRun("─" * (room - 2) + "▶ ", "rule"))


def _shares(width: int, count: int) -> list[int]:
    """Split a width into ``count`` nearly equal numbers of cells."""
    return [width * (i + 1) // count - width * i // count for i in range(count)]


class CanaryLine(LinePanel):
    """The canary's latencies over the window, as seen by the client."""

    DEFAULT_CSS = """
    CanaryLine { display: none; }
    CanaryLine.-flying { display: block; }
    """

    _canary: Canary | None = None
    _now_ns = 0

    def show(self, snapshot: Snapshot) -> None:
        self._canary, self._now_ns = snapshot.canary, snapshot.now_ns
        self.set_class(snapshot.canary is not None, "-flying")
        self.redraw()

    def line(self, width: int) -> Line:
        """Draw the most important results of the canary that fit."""
        canary = self._canary
        if canary is None:
            return ()
        parts = (
            (TextRun("canary", "strong"), TextRun(" client", "faint")),
            _latency(TTFT, canary.ttft_s),
            _latency(ITL, canary.itl_s),
            self._counts(canary),
            self._last(canary),
            (
                TextRun(format_count(canary.tokens).strip()),
                TextRun(" tokens of its own in the server's counts", "muted"),
            ),
        )
        return fit((TextRun(" "), *join_whole(parts, width - 2)), width)

    def _counts(self, canary: Canary) -> Line:
        sent = TextRun(f"n {canary.sent:,}", "muted")
        if not canary.failed:
            return (sent,)
        return (sent, TextRun(f" ▲ {canary.failed:,} failed", "bad"))

    def _last(self, canary: Canary) -> Line:
        if canary.last is None:
            return ()
        age = age_text(max(self._now_ns - canary.last.sent_ns, 0) / NS_PER_S)
        if canary.last.failure is not None:
            why = canary.last.detail or canary.last.failure
            return (TextRun(f"last {age} ago: ", "muted"), TextRun(why, "bad"))
        return (TextRun(f"last {age} ago", "muted"),)


class SpeculationLine(LinePanel):
    """What speculative decoding brings, where it is on, over the window."""

    DEFAULT_CSS = """
    SpeculationLine { display: none; }
    SpeculationLine.-on { display: block; }
    """

    _speculation: Speculation | None = None

    def show(self, snapshot: Snapshot) -> None:
        self._speculation = snapshot.speculation
        self.set_class(snapshot.speculation is not None, "-on")
        self.redraw()

    def line(self, width: int) -> Line:
        """Draw its facts, as many as fit."""
        told = self._speculation
        if told is None:
            return ()
        head = (TextRun("speculation", "strong"), TextRun(f" {told.vantage}", "faint"))
        facts = (
            (TextRun(f"{label} ", "muted"), TextRun(text))
            for label, text, _ in speculation_facts(told)
        )
        return fit((TextRun(" "), *join_whole((head, *facts), width - 2)), width)


def _latency(number: Number, quantiles: Quantiles) -> Line:
    """Return the canary's median and maximum: it has too few requests for others."""
    p50, worst = format_durations((quantiles.p50, quantiles.max))
    label = TextRun(f"{number.label} ", "muted")
    if quantiles.p50 is None:
        return (label, TextRun(UNKNOWN, "faint"))
    return (
        label,
        TextRun("p50 ", "muted"),
        TextRun(p50.strip(), "strong"),
        TextRun("  max ", "muted"),
        TextRun(worst.strip()),
    )


STRIP = 2
"""Rows of findings on a screen that is neither short nor tall."""
TINY = 22
"""Height below which table and charts alternate."""


class OverviewScreen(WatchScreen):
    """Verdict, flow, latencies, and charts on one time axis."""

    NAME = "overview"
    KEY = "1"
    LABEL = "Overview"
    QUESTION = "Is it healthy, and if not, what limits it?"
    EXPLAINS = (
        *LATENCY_NUMBERS,
        *FLOW_NUMBERS,
        *numbers(
            Timeline.batch_decode,
            Timeline.batch_prefill,
            Timeline.waiting_max,
            Timeline.kv_cached_blocks,
            ServerCounts.pools,
        ),
        *SPECULATION_NUMBERS,
        *HARDWARE_NUMBERS,
        *SLO_NUMBERS,
        *SPENDING_NUMBERS,
        *COST_NUMBERS,
    )
    KEYS = CHART_KEYS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter",
            "slowest",
            "slowest",
            tooltip="The slowest request and why; without a known cause, all of them",
        ),
        *CHART_BINDINGS,
        *KNOB_BINDINGS,
    ]
    DEFAULT_CSS = """
    OverviewScreen {
        &.-short SlowLine { display: none; }
        LatencyTable { margin-top: 1; }
        #chart-0 { height: 5fr; }
        #chart-1 { height: 4fr; }
        #chart-2, #chart-3, #chart-4 { height: 3fr; }
        &.-short FlowPanel { height: 4; }
        &.-untouched LatencyTable { display: none; }
        &.-short FlowPanel, &.-short LatencyTable { margin: 0; }
        &.-tiny FlowPanel { height: 2; }
        &.-tiny.-elsewhere FlowPanel, &.-tiny.-lost FlowPanel { display: none; }
        &.-tiny.-untouched FlowPanel { display: none; }
        &.-tiny SpeculationLine { display: none; }
        &.-tiny ChartStack, &.-tiny.-charted LatencyTable { display: none; }
        &.-tiny.-charted ChartStack { display: block; }
        &.-untouched ChartStack { display: none; }
    }
    """

    WORST_KEY = "enter"
    WILL_SHOW = "latencies, batch, KV blocks and tokens over time"
    TELLS_HOW = True

    def compose_panels(self) -> Iterable[Widget]:
        yield FindingStrip()
        yield TrustLine()
        yield SlowLine(self.WORST_KEY)
        yield FlowPanel()
        yield LatencyTable()
        yield SpeculationLine()
        yield CanaryLine()
        yield ChartStack(
            (charts.TTFT, charts.BATCH, charts.KV, charts.OUTPUT, GPU_MEMORY),
            most_telling=1,
        )

    def fit_height(self) -> None:
        """Fit the screen's parts to its height, and set a CSS class if it is tiny."""
        super().fit_height()
        self.set_class(self.size.height < TINY, "-tiny")

    def action_chart(self, by: int) -> None:
        """Show the next chart alone; on tiny screens alternate with the table."""
        charted = self.has_class("-charted")
        turns = self.query_one(ChartStack).at_end(by) if charted else True
        if self.has_class("-tiny") and turns:
            self.toggle_class("-charted")
            self.post_message(LookAgain())
        if charted or not self.has_class("-tiny"):
            super().action_chart(by)

    def show_panels(self, snapshot: Snapshot) -> None:
        is_lost = snapshot.verdict.health is Health.LOST
        self.set_class(is_lost, "-lost")
        found = snapshot.findings
        if is_lost:  # the banner tells it
            found = tuple(each for each in found if each.name != EngineLost.NAME)
        rows = MOST_SHOWN if self.size.height >= TALL else STRIP
        rows = 1 if self.is_short else rows
        strip, trust = self.query_one(FindingStrip), self.query_one(TrustLine)
        # doubts take the last of the rows; of a single one only what is left
        trust.display = bool(snapshot.trust) and (rows > 1 or not found)
        strip.display = rows > trust.display
        hidden = bool(snapshot.trust) and not trust.display
        strip.show(found, rows - trust.display, doubts=hidden)
        trust.show(snapshot.trust)
        self.query_one(FlowPanel).show(snapshot)
        self.query_one(SpeculationLine).show(snapshot)
        self.query_one(CanaryLine).show(snapshot)
        table = self.query_one(LatencyTable)
        target = snapshot.slo.target if snapshot.slo is not None else None
        table.hold_against(target, self._against())
        table.show(snapshot.latencies, snapshot.window)

    def _against(self) -> ReferenceRows | None:
        reference = self.view.reference
        if reference is None:
            return None
        rows = {each.metric: each for each in reference.snapshot.latencies}
        return ReferenceRows(reference.title.partition(" ")[0], rows)

    def action_slowest(self) -> None:
        """Open the slowest request, or the list sorted by TTFT."""
        if self._slow is not None and self._slow.groups:
            self.action_worst()
            return
        self.view.slowest_first = True
        self.post_message(LookAt("requests"))
