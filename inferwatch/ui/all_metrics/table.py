"""The table of all metrics of a server."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType

from inferwatch.formatting import format_value, format_value_bracket
from inferwatch.metrics.series.window import Bracket
from inferwatch.metrics.servers.every_metric import EveryMetric, MetricValue
from inferwatch.ui.kit.renderables.bars import sparkline
from inferwatch.ui.kit.renderables.text import TextRun
from inferwatch.ui.kit.row_filter import FieldKind, FilterField
from inferwatch.ui.kit.table import CursorTable, TableColumn, number_column

KINDS = ("counter", "gauge", "histogram", "summary")
MOST_UNFOLDED = 200
"""Series of a metric that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """A metric, or one of its series."""

    key: str
    metric: EveryMetric
    now: MetricValue
    labels: str = ""
    """Of a single series."""
    folded: int = 0
    """How many series it stands for; 0 for one of several."""

    @property
    def title(self) -> str:
        if not self.folded:
            return f"   {self.labels}"
        return f" {self.metric.name}"


def metric_columns() -> Iterable[TableColumn[MetricRow]]:
    return (
        TableColumn(
            "name",
            " metric",
            46,
            lambda row, _: TextRun(row.title, "" if row.folded else "muted"),
            value=lambda row: row.metric.name,
            ascending=True,
            gap=1,
            least=24,
            grows=2,
            most=70,
            filter=FilterField("name", lambda row: row.metric.name),
        ),
        TableColumn(
            "type",
            "type",
            10,
            lambda row, _: TextRun(row.metric.kind if row.folded else "", "muted"),
            value=lambda row: row.metric.kind or None,
            ascending=True,
            from_width=90,
            filter=FilterField("type", lambda row: row.metric.kind, choices=KINDS),
        ),
        TableColumn(
            "series",
            "series",
            7,
            lambda row, _: TextRun(
                f"{row.folded:,}" if row.folded > 1 else "", "muted"
            ),
            value=lambda row: row.folded or None,
            right=True,
            from_width=70,
            filter=FilterField("series", lambda row: row.folded, FieldKind.COUNT),
        ),
        _number("value", "value", 13, lambda now: now.value),
        _number("rate", "per s", 10, lambda now: now.per_s),
        _number("mean", "mean", 10, lambda now: now.mean, from_width=80),
        _bracket("p50", lambda now: now.p50, from_width=130),
        _bracket("p99", lambda now: now.p99, from_width=104),
        TableColumn(
            "trend",
            "  trend",
            16,
            lambda row, width: TextRun(f"  {_trend(row, width - 2)}", "output"),
            least=10,
        ),
    )


def _trend(row: MetricRow, width: int) -> str:
    return sparkline(row.now.trend, min(width, len(row.now.trend)))


def _number(
    key: str,
    title: str,
    width: int,
    number: Callable[[MetricValue], float | None],
    *,
    from_width: int = 0,
) -> TableColumn[MetricRow]:
    return number_column(
        key, title, width, lambda row: number(row.now), _write, from_width=from_width
    )


def _write(_: MetricRow, known: float | None) -> TextRun:
    return TextRun("" if known is None else format_value(known))


def _bracket(
    key: str, bracket: Callable[[MetricValue], Bracket | None], *, from_width: int
) -> TableColumn[MetricRow]:
    def value(row: MetricRow) -> float | None:
        known = bracket(row.now)
        return None if known is None else known.low

    def write(row: MetricRow, _: int) -> TextRun:
        known = bracket(row.now)
        if known is None:
            return TextRun("")
        return TextRun(format_value_bracket(known.low, known.high))

    return TableColumn(
        key, key, 14, write, value=value, right=True, from_width=from_width
    )


class MetricTable(CursorTable[MetricRow]):
    """A row a metric, by name; enter shows its series."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "series", tooltip="Show or hide its series"),
    ]

    def __init__(self) -> None:
        super().__init__(metric_columns(), sorted_by="name")
        self.descending = False
        self._unfolded: set[str] = set()
        self.remark = ""
        """Why there are no rows."""

    def show(self, metrics: Sequence[EveryMetric]) -> None:
        self.show_rows(
            [
                MetricRow(
                    key=each.name, metric=each, now=each.now, folded=len(each.series)
                )
                for each in metrics
            ]
        )

    def fold(self, key: str) -> None:
        """Show the series of a metric, or hide them."""
        name = key.partition("{")[0]
        self._unfolded ^= {name}
        self._key = name
        self.list_again()

    def key_of(self, row: MetricRow) -> str:
        return row.key

    def below(self, row: MetricRow) -> Iterable[MetricRow]:
        """Return the series of an unfolded metric."""
        if row.key not in self._unfolded:
            return ()
        return [
            MetricRow(
                key=f"{row.key}{{{each.labels}}}",
                metric=row.metric,
                now=each.now,
                labels=each.labels or "no labels",
            )
            for each in row.metric.series[:MOST_UNFOLDED]
        ]

    def words_of(self, row: MetricRow) -> Iterable[str | None]:
        metric = row.metric
        return (metric.name, metric.help, *(each.labels for each in metric.series))

    def empty_text(self) -> TextRun:
        return TextRun(self.remark or "no metric matches the filter", "muted")
