"""The metrics of two sessions, one row each, and their columns."""

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType

from inferwatch.compare.comparison import MetricResult, SessionPair
from inferwatch.compare.report import (
    GLYPHS,
    change_text,
    span_text,
    values_text,
    verdict_text,
)
from inferwatch.compare.verdicts import MetricVerdict
from inferwatch.ui.shared.renderables.text import Line, TextRun, cells
from inferwatch.ui.shared.table import CursorTable, TableColumn

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


def compare_columns(before: str, after: str) -> Iterable[TableColumn[MetricResult]]:
    """The columns of a comparison; values are headed by the names of the sessions."""
    return (
        TableColumn("metric", " metric", 14, _metric),
        TableColumn(
            "before",
            f" {before}",
            9,
            lambda row, _: TextRun(values_text(row)[0]),
            right=True,
            ink="accent",
        ),
        TableColumn(
            "after",
            f" {after}",
            9,
            lambda row, _: TextRun(values_text(row)[1]),
            right=True,
            ink="accent",
        ),
        TableColumn(
            "change",
            "change",
            7,
            lambda row, _: TextRun(change_text(row.ratio)),
            right=True,
        ),
        TableColumn(
            "interval",
            "95% interval",
            15,
            lambda row, _: TextRun(span_text(row.ratio_span), "muted"),
            right=True,
        ),
        TableColumn("verdict", "  verdict", 0, _verdict, least=0),
    )


def _metric(row: MetricResult, _: int) -> TextRun:
    return TextRun(f" {row.metric.name:<9}{row.metric.statistic or ''}", "strong")


def _verdict(row: MetricResult, width: int) -> Line:
    text = f"  {GLYPHS[row.verdict]} {verdict_text(row)}"
    return (cells(text, width, INKS[row.verdict]),)


class CompareTable(CursorTable[MetricResult]):
    """All metrics of a comparison, grouped by who measured them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "up",
            "step(-1)",
            "metric",
            key_display="↑ ↓",
            tooltip="Another metric; its interval and distribution",
        ),
        Binding("home", "step(-1000)", "first", show=False),
        Binding("end", "step(1000)", "last", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(())

    def show(self, pair: SessionPair) -> None:
        """Take two sessions; the cursor stays on its metric."""
        self.columns = tuple(compare_columns(pair.a.name, pair.b.name))
        self.show_rows(pair.results)
        self.action_step(0)

    def key_of(self, row: MetricResult) -> str:
        """The key of its metric."""
        return row.metric.key

    def heading_of(self, row: MetricResult) -> str:
        """Who measured it: engine and client may both tell of a latency."""
        return f"seen by {row.metric.vantage}"

    def title_of(self, column: TableColumn[MetricResult], width: int) -> TextRun:
        """The last title ends with its text."""
        title = super().title_of(column, width)
        last = column.key == "verdict"
        return title._replace(text=title.text.rstrip()) if last else title
