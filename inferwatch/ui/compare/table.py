"""The metrics of two sides in a table."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from inferwatch.formatting import UNKNOWN, counted
from inferwatch.studies.compare.comparison import Comparison, MetricResult, SessionPair
from inferwatch.studies.compare.quality import Quality, doubts
from inferwatch.studies.compare.reading.configuration import setting_name
from inferwatch.studies.compare.reading.session_numbers import ComparedSide
from inferwatch.studies.compare.report import (
    GLYPHS,
    MORE,
    PROBABLE,
    SHOWN,
    at_another_load,
    change_text,
    in_order,
    method_text,
    more_text,
    nearest_first,
    not_compared,
    pairing_sentence,
    peak_text,
    span_text,
    values_text,
    verdict_text,
    whose,
    window_text,
)
from inferwatch.studies.compare.side_names import heads, short_names
from inferwatch.studies.compare.verdicts import MetricVerdict
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    cells,
    fit,
    ruled,
    spread,
    wrapped,
)
from inferwatch.ui.kit.table import CursorTable, TableColumn

INKS = {
    MetricVerdict.BETTER: "good bold",
    MetricVerdict.WORSE: "bad bold",
    MetricVerdict.DIFFERS: "accent",
    MetricVerdict.PROBABLY_BETTER: "good",
    MetricVerdict.PROBABLY_WORSE: "bad",
    MetricVerdict.PROBABLY_DIFFERS: "accent",
    MetricVerdict.SAME: "muted",
    MetricVerdict.OPEN: "warn",
}
QUALITY_LOOKS = {
    Quality.VOID: ("✗", "bad bold"),
    Quality.DOUBTFUL: ("!", "warn"),
    Quality.UNKNOWN: ("–", "muted"),
    Quality.GOOD: ("✓", "good"),
}
"""Glyph and ink, the gravest first."""
SAYS_SOMETHING = frozenset((*SHOWN, *PROBABLE))
VICTORIES = {MetricVerdict.BETTER, MetricVerdict.PROBABLY_BETTER}


def verdict_ink(verdict: MetricVerdict, pair: SessionPair) -> str:
    """Return a verdict's ink; better at another load does not count as better."""
    if verdict in VICTORIES and at_another_load(pair):
        return "accent"
    return INKS[verdict]


def quality_text(pair: SessionPair) -> str:
    """Count a pair's quality checks: ``9 good, 1 doubtful: GPU clocks differ``."""
    many = Counter(check.quality for check in pair.quality)
    order = (Quality.GOOD, Quality.UNKNOWN, Quality.DOUBTFUL, Quality.VOID)
    counts = ", ".join(f"{many[each]} {each}" for each in order if many[each])
    grave = doubts(pair.quality)
    if len(grave) == 1:
        return f"{counts}: {grave[0].sentence}"
    named = ", ".join(check.subject for check in grave)
    return f"{counts}: {named}" if named else counts


NAME = 30
SUBJECT = 16


class ReadingList(Panel):
    """A scrollable list of lines."""

    DEFAULT_CSS = """
    ReadingList { height: 1fr; }
    """

    _first = 0
    """Index of the top line."""

    def lines(self, width: int) -> Iterable[Line]:
        del width
        return ()

    def from_the_top(self) -> None:
        self._first = 0
        self.redraw()

    def move(self, lines: int) -> None:
        self._first += lines
        self.redraw()

    def on_mouse_scroll_down(self) -> None:
        self.move(2)

    def on_mouse_scroll_up(self) -> None:
        self.move(-2)

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Draw the lines that fit; the last row says how many follow."""
        lines = list(self.lines(width))
        self._first = max(min(self._first, len(lines) - height), 0)
        lines = lines[self._first :]
        if len(lines) > height:
            more = TextRun(f" … {len(lines) - height + 1} more lines: ↓", "muted")
            lines = [*lines[: height - 1], (more,)]
        return lines


class CompareQuality(ReadingList):
    """Checks of whether two sides are comparable, the gravest first."""

    _pair: SessionPair | None = None

    def show(self, pair: SessionPair) -> None:
        self._pair = pair
        self.from_the_top()

    def lines(self, width: int) -> Iterator[Line]:
        pair = self._pair
        if pair is None:
            return
        yield ruled((TextRun("can they be compared?", "strong"),), (), width)
        if not pair.is_repeated:
            yield from wrapped(f"{pairing_sentence(pair)}.", width)
        yield from wrapped(f"{pair.about_runs}.", width)
        for quality, (glyph, ink) in QUALITY_LOOKS.items():
            for check in pair.quality:
                if check.quality is quality:
                    head = (
                        TextRun(f" {glyph} ", ink),
                        cells(check.subject, SUBJECT, "strong"),
                    )
                    yield from _beside(head, check.sentence, width)


class CompareSetup(ReadingList):
    """Settings that differ, then what is compared and how."""

    _comparison: Comparison | None = None

    def show(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self.from_the_top()

    def lines(self, width: int) -> Iterable[Line]:
        return () if self._comparison is None else _settings(self._comparison, width)


def _settings(comparison: Comparison, width: int) -> Iterator[Line]:
    yield ruled((TextRun("settings that differ", "strong"),), (), width)
    size = max((width - NAME - 1) // len(comparison.sessions), 6)
    names = short_names(map(ComparedSide.of, comparison.sessions), size - 1)
    if comparison.settings:
        heads = [cells(name, size, "accent") for name in names]
        yield (cells(" setting", NAME, "muted"), *heads)
    for setting in comparison.settings:
        values = [UNKNOWN if each is None else each for each in setting.values]
        yield (
            cells(f" {setting_name(setting.name)}", NAME),
            *(cells(value, size) for value in values),
        )
    if not comparison.settings:
        yield (TextRun(" none of the recorded ones"),)
    yield ruled((TextRun("what is compared", "strong"),), (), width)
    peaks = [text for pair in comparison.pairs if (text := peak_text(pair))]
    missing = [text for text in (not_compared(comparison),) if text]
    for text in (*map(window_text, comparison.sessions), *peaks, *missing):
        yield from wrapped(text, width)
    yield ruled((TextRun("how it is judged", "strong"),), (), width)
    for text in (method_text(comparison), MORE):
        yield from wrapped(text, width)


def _beside(head: Line, text: str, width: int) -> Iterator[Line]:
    """Wrap a text to the right of its head; its later lines are indented."""
    indent = sum(len(run.text) for run in head)
    for number, line in enumerate(wrap(text, max(width - indent - 1, 10))):
        yield (*(head if not number else (TextRun(" " * indent),)), TextRun(line))


LEAST_FOLDED = 2
FOLD = "cannot tell"
"""Key of the row that folds inconclusive metrics."""


@dataclass(frozen=True, slots=True)
class FoldedRows:
    """Inconclusive metrics folded into one row."""

    results: tuple[MetricResult, ...]
    unfolded: bool
    """They are listed below the row."""


CompareRow = MetricResult | FoldedRows


def arranged(pair: SessionPair, *, unfolded: bool) -> list[CompareRow]:
    """Return a row per metric, conclusive ones first, many inconclusive ones folded."""
    rows = [
        each
        for verdict, results in in_order(pair).items()
        if verdict is not MetricVerdict.OPEN
        for each in results
    ]
    silent = pair.of(MetricVerdict.OPEN)
    if not rows or len(silent) < LEAST_FOLDED:
        return [*rows, *silent]
    fold = FoldedRows(tuple(silent), unfolded)
    return [*rows, fold, *(silent if unfolded else ())]


FOLD_GLYPHS = {False: "▸", True: "▾"}
UNIT = " req"
"""Unit of what would settle a metric; left out without room: the detail has it."""
VALUE = 10


def compare_columns(pair: SessionPair) -> Iterable[TableColumn[CompareRow]]:
    """Return the columns; values are headed by the sides and the flag that differs."""
    a, b = heads(pair, VALUE)

    def verdict(row: CompareRow, width: int) -> Line:
        return () if isinstance(row, FoldedRows) else _verdict(row, width, pair)

    return (
        TableColumn("metric", " metric", 17, _of(lambda row: f" {whose(row)}")),
        TableColumn(
            "before",
            f" {a}",
            VALUE + 1,
            _of(lambda row: values_text(row)[0]),
            right=True,
            ink="accent",
        ),
        TableColumn(
            "after",
            f" {b}",
            VALUE + 1,
            _of(lambda row: values_text(row)[1]),
            right=True,
            ink="accent",
        ),
        TableColumn(
            "change", "change", 7, _of(lambda row: change_text(row.ratio)), right=True
        ),
        TableColumn(
            "interval",
            "95% interval",
            15,
            _of(lambda row: span_text(row.ratio_span), "muted"),
            right=True,
        ),
        TableColumn("verdict", "  verdict", 0, verdict, least=0),
    )


def _of(
    write: Callable[[MetricResult], str], ink: str = ""
) -> Callable[[CompareRow, int], TextRun]:
    """Return a function that writes a metric's cell; the cell of a fold is empty."""
    return lambda row, _: TextRun(
        "" if isinstance(row, FoldedRows) else write(row), ink
    )


def _verdict(row: MetricResult, width: int, pair: SessionPair) -> Line:
    text = f"{GLYPHS[row.verdict]} {verdict_text(row)}"
    if len(text) >= width:
        text = text.removesuffix(UNIT)
    return (cells(f" {text}", width, verdict_ink(row.verdict, pair)),)


class CompareTable(CursorTable[CompareRow]):
    """Conclusive metrics, then one row for the others, which can be unfolded."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "up",
            "step(-1)",
            "metric",
            key_display="↑ ↓",
            tooltip="Another metric; its interval, its distribution, when and for whom",
        ),
        Binding(
            "space,enter",
            "fold",
            "unfold",
            key_display="space",
            tooltip="Show the metrics of which nothing can be told, or fold them again",
        ),
        Binding("home", "step(-1000)", "first", show=False),
        Binding("end", "step(1000)", "last", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(())
        self._pair: SessionPair | None = None
        self._unfolded = False

    @property
    def pointed_result(self) -> MetricResult | None:
        row = self.pointed
        return None if isinstance(row, FoldedRows) else row

    def show(self, pair: SessionPair) -> None:
        """Show a pair; the cursor stays on its metric, which is unfolded if hidden."""
        pointed = self._key
        self._pair = pair
        hidden = {each.metric.key for each in pair.of(MetricVerdict.OPEN)}
        self._unfolded |= pointed in hidden
        self.columns = tuple(compare_columns(pair))
        self._arrange()

    def _arrange(self) -> None:
        if self._pair is not None:
            self.show_rows(arranged(self._pair, unfolded=self._unfolded))
            self.action_step(0)
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        can = {"fold": self.can_fold, "step": bool(self.rows)}.get(action)
        return super().check_action(action, parameters) if can is None else can

    @property
    def can_fold(self) -> bool:
        """Whether there are both inconclusive metrics to fold and others."""
        return any(isinstance(row, FoldedRows) for row in self.rows)

    def action_fold(self) -> None:
        if self.can_fold:
            self._unfolded = not self._unfolded
            self._arrange()

    def action_open(self) -> None:
        """Ignore the double click on the folded row, which folds on the first click."""

    def click_row(self, event: events.Click) -> None:
        """Fold or unfold the inconclusive metrics on a single click."""
        if event.chain == 1 and isinstance(self.pointed, FoldedRows):
            self.action_fold()

    def key_of(self, row: CompareRow) -> str:
        return FOLD if isinstance(row, FoldedRows) else row.metric.key

    def key_to_keep(self, before: int) -> str | None:
        """Return the key of the same row, or of the fold if that row is in it."""
        key = super().key_to_keep(before)
        keys = [self.key_of(row) for row in self.rows]
        return FOLD if key is not None and key not in keys and FOLD in keys else key

    def across(self, row: CompareRow, width: int) -> Line | None:
        """Draw a fold: how many metrics it has, and which is nearest to a verdict."""
        if not isinstance(row, FoldedRows):
            return None
        text = f" {FOLD_GLYPHS[row.unfolded]} {counted(len(row.results), 'row')}: "
        left = (
            TextRun(text, "warn"),
            TextRun(str(MetricVerdict.OPEN), "warn"),
            TextRun("  space folds" if row.unfolded else "  space unfolds", "faint"),
        )
        best = next(iter(nearest_first(row.results)), None)
        right: Line = ()
        if best is not None and self._pair is not None:
            more = more_text(best, self._pair)
            right = (TextRun(f"nearest: {whose(best)}, {more} ", "muted"),)
        return fit(spread(left, right, width), width)

    def title_of(self, column: TableColumn[CompareRow], width: int) -> TextRun:
        """Return the title of a column; that of the last column is not padded."""
        title = super().title_of(column, width)
        last = column.key == "verdict"
        return title._replace(text=title.text.rstrip()) if last else title
