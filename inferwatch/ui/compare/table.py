"""The metrics of two sides in a table."""

from collections.abc import Callable, Iterable
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from inferwatch.formatting import counted
from inferwatch.studies.compare.comparison import MetricResult, SessionPair
from inferwatch.studies.compare.report import (
    GLYPHS,
    at_another_load,
    change_text,
    more_text,
    span_text,
    values_text,
    verdict_text,
    whose,
)
from inferwatch.studies.compare.verdicts import MetricVerdict
from inferwatch.ui.compare.rows import FOLD, CompareRow, FoldedRows, arranged, nearest
from inferwatch.ui.compare.styles import SAYS_SOMETHING, verdict_ink
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells, fit, spread
from inferwatch.ui.kit.table import CursorTable, TableColumn

FOLD_GLYPHS = {False: "▸", True: "▾"}
OTHER_LOAD = ", other load"
UNIT = " req"
"""Unit of what would settle a metric; left out without room, as is the other load: head
and detail have both."""


def compare_columns(pair: SessionPair) -> Iterable[TableColumn[CompareRow]]:
    """Return the columns; values are headed by the names of the sides."""

    def verdict(row: CompareRow, width: int) -> Line:
        return () if isinstance(row, FoldedRows) else _verdict(row, width, pair)

    return (
        TableColumn("metric", " metric", 17, _of(lambda row: f" {whose(row)}")),
        TableColumn(
            "before",
            f" {pair.a.name}",
            9,
            _of(lambda row: values_text(row)[0]),
            right=True,
            ink="accent",
        ),
        TableColumn(
            "after",
            f" {pair.b.name}",
            9,
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
    """Return a writer of cells, empty in a folded row."""
    return lambda row, _: TextRun(
        "" if isinstance(row, FoldedRows) else write(row), ink
    )


def _verdict(row: MetricResult, width: int, pair: SessionPair) -> Line:
    said = f"{GLYPHS[row.verdict]} {verdict_text(row)}"
    if row.verdict in SAYS_SOMETHING and at_another_load(pair):
        said += OTHER_LOAD
    if len(said) >= width:
        said = said.removesuffix(UNIT).removesuffix(OTHER_LOAD)
    return (cells(f" {said}", width, verdict_ink(row.verdict, pair)),)


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
        """Show two sides; the cursor stays on its metric, unfolded if need be."""
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
        """Some rows are inconclusive, others are not."""
        return any(isinstance(row, FoldedRows) for row in self.rows)

    def action_fold(self) -> None:
        if self.can_fold:
            self._unfolded = not self._unfolded
            self._arrange()

    def action_open(self) -> None:
        """Ignore the double click on the folded row, which folds on the first click."""

    def click_row(self, event: events.Click) -> None:
        """Unfold on a single click."""
        if event.chain == 1 and isinstance(self.pointed, FoldedRows):
            self.action_fold()

    def key_of(self, row: CompareRow) -> str:
        return FOLD if isinstance(row, FoldedRows) else row.metric.key

    def key_to_keep(self, before: int) -> str | None:
        """Move the cursor from a row that is folded to the folded row."""
        kept = super().key_to_keep(before)
        keys = [self.key_of(row) for row in self.rows]
        return FOLD if kept is not None and kept not in keys and FOLD in keys else kept

    def across(self, row: CompareRow, width: int) -> Line | None:
        """Draw a folded row: how many metrics, and which is nearest."""
        if not isinstance(row, FoldedRows):
            return None
        said = f" {FOLD_GLYPHS[row.unfolded]} {counted(len(row.results), 'row')}: "
        left = (
            TextRun(said, "warn"),
            TextRun(str(MetricVerdict.OPEN), "warn"),
            TextRun("  space folds" if row.unfolded else "  space unfolds", "faint"),
        )
        best = nearest(row.results)
        right: Line = ()
        if best is not None and self._pair is not None:
            more = more_text(best, self._pair)
            right = (TextRun(f"nearest: {whose(best)}, {more} ", "muted"),)
        return fit(spread(left, right, width), width)

    def title_of(self, column: TableColumn[CompareRow], width: int) -> TextRun:
        """Return a title; the last one is not padded."""
        title = super().title_of(column, width)
        last = column.key == "verdict"
        return title._replace(text=title.text.rstrip()) if last else title
