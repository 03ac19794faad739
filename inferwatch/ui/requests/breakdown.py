"""Where the time of all requests went: a bar, phases with causes, and buckets."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.strip import Strip

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    BRIEF_FLAGS,
    MILLISECONDS,
    SECONDS,
    TimeUnit,
    about,
    counted,
    duration_text,
    format_clock,
    format_count,
    format_durations,
    format_in,
    format_share,
    shared_unit,
)
from inferwatch.metrics.breakdown.view import (
    DIMENSIONS,
    Breakdown,
    BreakdownBucket,
    BreakdownPart,
)
from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.number import label_of
from inferwatch.metrics.requests.request_groups import GroupBy
from inferwatch.metrics.series.window import Quantiles
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.panel import NEXT_LOOK, LinePanel, Panel
from inferwatch.ui.kit.renderables.bars import split_bar
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    end_of,
    fit,
    join_whole,
    ruled,
)
from inferwatch.ui.kit.table import CursorTable, TableColumn
from inferwatch.ui.request.styles import CAUSES, PHASES, CauseStyle

NONE_ENDED = "no request ended in this window: w chooses another"
NEEDS_PROBE = "where the time went takes a probe in the server to tell"
OWN_PROMPT = "own prompt"
"""What ``Cause.PREFILL`` is called below its phase, which has the same name."""
CAUSE_INDENT = 5
"""Cells before a cause's name, its glyph included."""
ROOMY = 56
"""Width from which there are percentiles."""
WallText = Callable[[int], str]


class PhaseBar(Panel):
    """The phases of all requests as one bar of the whole width, with its legend."""

    DEFAULT_CSS = """
    PhaseBar { height: 3; }
    """
    _breakdown: Breakdown | None = None
    _span = ""

    def show(self, breakdown: Breakdown | None, span: str) -> None:
        self._breakdown, self._span = breakdown, span
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        del height
        told = self._breakdown
        back = (TextRun("v", "accent", "screen.view"), TextRun(" list", "muted"))
        if told is None:
            heading = f"where the time went in {self._span}"
            return [ruled((TextRun(heading, "strong"),), back, width)]
        took = duration_text(told.total_ns / NS_PER_S)
        text = f"{took} of {counted(told.requests, 'request')} ended in {self._span}"
        title = (TextRun("where the time went  ", "strong"), TextRun(text, "muted"))
        shares = [(each.share, *PHASES[each.phase][:2]) for each in told.phases]
        bar = (TextRun("  "), *split_bar(shares, max(width - 4, 1)))
        return [ruled(title, back, width), bar, self._legend(told, width)]

    @staticmethod
    def _legend(told: Breakdown, width: int) -> Line:
        """Name as many phases as fit, the largest first."""
        largest = sorted(told.phases, key=lambda each: -each.share)
        entries = [
            (
                TextRun(f"{PHASES[each.phase].glyph} ", PHASES[each.phase].ink),
                TextRun(f"{PHASES[each.phase].name} ", "muted"),
                TextRun(each.share_text),
            )
            for each in largest
        ]
        return (TextRun("  "), *join_whole(entries, width - 3, "   "))


class AfterLine(LinePanel):
    """What is told beside the sum: time after the E2EL, and requests left out."""

    _breakdown: Breakdown | None = None

    def show(self, breakdown: Breakdown | None) -> None:
        self._breakdown = breakdown
        self.redraw()

    def line(self, width: int) -> Line:
        told = self._breakdown
        if told is None:
            return ()
        parts: list[Line] = []
        if (handed := told.detokenised_s) is not None:
            texts = format_durations([handed.p50, handed.p99])
            p50, p99 = (
                about(f" {text.strip()}").strip()
                if name in handed.weak
                else text.strip()
                for name, text in zip(("p50", "p99"), texts, strict=True)
            )
            label = label_of(Breakdown.detokenised_s)
            parts.append(
                (
                    TextRun(f"{label}, after the E2EL: ", "muted"),
                    TextRun(f"p50 {p50}, p99 {p99}"),
                )
            )
        if told.left_out:
            count = counted(told.left_out, "request")
            parts.append((TextRun(f"{count} left out: arrival not seen", "warn"),))
        return (TextRun("  "), *join_whole(parts, width - 2, "   ")) if parts else ()


def _quantile(quantiles: Quantiles | None, name: str) -> TextRun:
    """Return a percentile in ms, marked if it rests on too few requests."""
    value = None if quantiles is None else getattr(quantiles, name)
    text = format_in(MILLISECONDS, value)
    if quantiles is None or value is None:
        return TextRun(text, "faint")
    weak = name in quantiles.weak
    return TextRun(about(f" {text}"), "faint") if weak else TextRun(text)


def _percentile(
    name: str, of: Callable[[object], Quantiles | None]
) -> TableColumn[BreakdownPart]:
    return TableColumn(
        name,
        f"{name} ms",
        9,
        lambda part, _: _quantile(of(part), name),
        right=True,
        from_width=ROOMY,
    )


def _look(part: BreakdownPart) -> CauseStyle:
    return PHASES[part.phase] if part.cause is None else CAUSES[part.cause]


def _name(part: BreakdownPart, width: int) -> Line:
    """Draw glyph and name of a phase, or of a cause below its phase."""
    look, is_phase = _look(part), part.cause is None
    name = look.name.removeprefix("queue: ").removeprefix("prefill: ")
    if part.cause is Cause.PREFILL:
        name = OWN_PROMPT
    if len(name) > width - CAUSE_INDENT:
        name = BRIEF_FLAGS.get(name, name)
    runs = (
        TextRun(" " if is_phase else " " * (CAUSE_INDENT - 2)),
        TextRun(f"{look.glyph} ", look.ink),
        TextRun(name, "" if is_phase else "muted"),
    )
    line = fit(runs, width)
    blank = width - sum(len(run.text) for run in line)
    return (*line, TextRun(" " * blank))


def _share_bar(part: BreakdownPart, width: int) -> Line:
    look = _look(part)
    filled = round(part.share * (width - 2))
    bar = TextRun(look.glyph * filled, look.ink)
    return (TextRun("  "), bar, TextRun(" " * (width - 2 - filled)))


class PartTable(CursorTable[BreakdownPart]):
    """Phases in order, each with its causes below it."""

    DEFAULT_CSS = """
    PartTable { height: 3fr; min-height: 5; }
    """
    MARGIN = 1

    def __init__(self) -> None:
        self._unit: TimeUnit = SECONDS
        self._nothing = NONE_ENDED
        super().__init__(
            (
                TableColumn(
                    "phase",
                    f" {label_of(BreakdownPart.phase)}",
                    28,
                    _name,
                    least=14,
                    grows=8,
                    most=36,
                ),
                TableColumn("total", "total", 10, self._total, right=True),
                TableColumn("share", "share", 7, self._share, right=True),
                _percentile("p50", attrgetter("took_s")),
                _percentile("p99", attrgetter("took_s")),
                TableColumn("bar", "", 16, _share_bar, least=6),
            )
        )

    def show(self, breakdown: Breakdown | None, nothing: str) -> None:
        """Show the phases; ``nothing`` says why there are none."""
        self._nothing = nothing
        if breakdown is None:
            self.show_rows(())
            return
        self._unit = shared_unit(each.total_ns / NS_PER_S for each in breakdown.phases)
        rows: list[BreakdownPart] = []
        for phase in breakdown.phases:
            rows += (phase, *breakdown.causes_of(phase.phase))
        self.show_rows(rows)

    def _total(self, part: BreakdownPart, _: int) -> TextRun:
        text = format_in(self._unit, part.total_ns / NS_PER_S)
        ink = "" if part.cause is None else "muted"
        return TextRun(about(f" {text}") if part.is_estimate else text, ink)

    @staticmethod
    def _share(part: BreakdownPart, _: int) -> TextRun:
        return TextRun(part.share_text, "" if part.cause is None else "muted")

    def key_of(self, row: BreakdownPart) -> str:
        return f"{row.phase}/{row.cause}"

    def action_open(self) -> None:
        """Phases lead nowhere; buckets do."""

    def empty_text(self) -> TextRun:
        return TextRun(self._nothing, "muted")

    def title_of(self, column: TableColumn[BreakdownPart], width: int) -> TextRun:
        if column.key == "total":
            column = replace(column, title=f"total {self._unit.name}")
        if column.key == "bar" and len(self.rows) >= self.size.height:
            column = replace(column, title="  tab ↓ scrolls", ink="accent")
        return super().title_of(column, width)

    def render_line(self, y: int) -> Strip:
        """Draw a row; the cursor only scrolls, so it is seen while it has the focus."""
        return super().render_line(y) if self.has_focus else self.plain_line(y)


class BucketTable(CursorTable[BreakdownBucket]):
    """The buckets of one dimension, each with its phases as a bar."""

    DEFAULT_CSS = """
    BucketTable { height: 2fr; min-height: 4; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", tooltip="The requests of this bucket"),
    ]
    MARGIN = 1

    def __init__(self) -> None:
        self.by = GroupBy.LENGTH
        """The dimension shown."""
        self._unit: TimeUnit = SECONDS
        self._whole_ns = 0
        self._wall: WallText = format_clock
        super().__init__(self._columns())

    def _columns(self) -> Iterable[TableColumn[BreakdownBucket]]:
        return (
            TableColumn(
                "name",
                "bucket",
                20,
                lambda bucket, width: TextRun(
                    f" {end_of(self.name_of(bucket), width - 2)}", "strong"
                ),
                gap=1,
                least=14,
                grows=4,
                most=48,
            ),
            TableColumn(
                "requests",
                label_of(BreakdownBucket.requests),
                7,
                lambda bucket, _: TextRun(format_count(bucket.requests).strip()),
                value=attrgetter("requests"),
                right=True,
            ),
            TableColumn(
                "total",
                "E2EL",
                9,
                lambda bucket, _: TextRun(
                    format_in(self._unit, bucket.total_ns / NS_PER_S)
                ),
                value=attrgetter("total_ns"),
                right=True,
            ),
            TableColumn("share", "share", 7, self._share, right=True),
            TableColumn(
                "p50",
                "p50 ms",
                8,
                lambda bucket, _: _quantile(bucket.e2el_s, "p50"),
                right=True,
                from_width=ROOMY,
            ),
            TableColumn(
                "p99",
                "p99 ms",
                9,
                lambda bucket, _: _quantile(bucket.e2el_s, "p99"),
                right=True,
                from_width=ROOMY,
            ),
            TableColumn("bar", "  of which", 18, _phases_bar, least=8),
        )

    def _share(self, bucket: BreakdownBucket, _: int) -> TextRun:
        share = bucket.total_ns / self._whole_ns if self._whole_ns else None
        return TextRun(format_share(share).strip())

    def show(self, breakdown: Breakdown | None, wall: WallText) -> None:
        """Show the chosen dimension, or the first that has buckets."""
        self._wall = wall
        if breakdown is None:
            self.show_rows(())
            return
        if not breakdown.of(self.by):
            self.by = next((d for d in DIMENSIONS if breakdown.of(d)), self.by)
        buckets = breakdown.of(self.by)
        self._unit = shared_unit(each.total_ns / NS_PER_S for each in buckets)
        self._whole_ns = breakdown.total_ns
        self.show_rows(buckets)

    def next_dimension(self, breakdown: Breakdown) -> None:
        """Choose the next dimension that has buckets."""
        told = [each for each in DIMENSIONS if breakdown.of(each)]
        if told:
            here = told.index(self.by) if self.by in told else -1
            self.by = told[(here + 1) % len(told)]
            self.to_first()

    def name_of(self, bucket: BreakdownBucket) -> str:
        """Return the bucket's value; of a time, when it begins on the clock."""
        since_ns = bucket.since_ns
        return (
            bucket.name if since_ns is None else f"from {self._wall(since_ns).strip()}"
        )

    def key_of(self, row: BreakdownBucket) -> str:
        return row.name

    def empty_text(self) -> TextRun:
        return TextRun("")

    def title_of(self, column: TableColumn[BreakdownBucket], width: int) -> TextRun:
        if column.key == "name":
            title = replace(column, title=f" G by {self.by}", ink="accent")
            return super().title_of(title, width)._replace(action="screen.group")
        if column.key == "total":
            column = replace(column, title=f"E2EL {self._unit.name}")
        return super().title_of(column, width)


def _phases_bar(bucket: BreakdownBucket, width: int) -> Line:
    whole_ns = max(bucket.total_ns, 1)
    shares = [(took / whole_ns, *PHASES[phase][:2]) for phase, took in bucket.parts]
    return (TextRun("  "), *split_bar(shares, max(width - 2, 1)))


class BreakdownPanel(Vertical):
    """Bar, phases and buckets; draws only while it is shown."""

    DEFAULT_CSS = """
    BreakdownPanel { display: none; height: 1fr; }
    """

    _breakdown: Breakdown | None = None

    def compose(self) -> ComposeResult:
        yield PhaseBar()
        yield PartTable()
        yield AfterLine()
        yield BucketTable()

    def show(self, snapshot: Snapshot, wall: WallText) -> None:
        told = self._breakdown = snapshot.breakdown
        self.query_one(PhaseBar).show(told, snapshot.window.span)
        nothing = NEEDS_PROBE if snapshot.without_steps else NONE_ENDED
        if not snapshot.asked.breakdown:
            nothing = NEXT_LOOK
        self.query_one(PartTable).show(told, nothing)
        self.query_one(AfterLine).show(told)
        self.buckets.show(told, wall)

    @property
    def buckets(self) -> BucketTable:
        return self.query_one(BucketTable)

    def next_dimension(self) -> None:
        if self._breakdown is not None:
            self.buckets.next_dimension(self._breakdown)
