"""The latencies of the window, one row each, exact."""

from collections.abc import Sequence
from typing import NamedTuple

from inferwatch.formatting import (
    UNKNOWN,
    TimeUnit,
    about,
    format_count,
    format_in,
    shared_unit,
)
from inferwatch.metrics.catalog import CATALOG, LatencyLine
from inferwatch.metrics.snapshot import Latency, Quantiles, Window
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.bars import sparkline
from inferwatch.ui.shared.renderables.text import Line, TextRun, cells

NAME_WIDTH = 10
UNIT_WIDTH = 3
VALUE_WIDTH = 8
COUNT_WIDTH = 8
VANTAGE_WIDTH = 9


class QuantileColumn(NamedTuple):
    """A quantile and from which width on there is room for it."""

    key: str
    from_width: int


COLUMNS = (
    QuantileColumn("p50", 0),
    QuantileColumn("p90", 100),
    QuantileColumn("p95", 72),
    QuantileColumn("p99", 0),
    QuantileColumn("max", 56),
    QuantileColumn("mean", 64),
)


class LatencyTable(Panel):
    """Quantiles, each row in one unit; dim and with a ``~`` on too few samples."""

    DEFAULT_CSS = """
    LatencyTable { height: 7; }
    """

    _latencies: Sequence[Latency] = ()
    _window = Window.MINUTE
    _of = "latency"

    def show(
        self, latencies: Sequence[Latency], window: Window, of: str = "latency"
    ) -> None:
        """Take the latencies of a window, or of something else that is named."""
        self._latencies, self._window, self._of = latencies, window, of
        self.redraw()

    @property
    def _over(self) -> str:
        """What the trend is over."""
        named = self._of != "latency" and self._window is Window.SESSION
        return "the run" if named else self._window.label

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The head and a row per latency."""
        del height
        shown = [column.key for column in COLUMNS if width >= column.from_width]
        trend = width - NAME_WIDTH - UNIT_WIDTH - VALUE_WIDTH * len(shown) - COUNT_WIDTH
        trend -= VANTAGE_WIDTH + 3
        vantage = VANTAGE_WIDTH if trend >= -1 else 0
        rows = [_row(each, shown, vantage, trend) for each in self._latencies]
        return [self._head(shown, vantage, trend), *rows]

    def _head(self, shown: Sequence[str], vantage: int, trend: int) -> Line:
        titles = [cells(key, VALUE_WIDTH, "muted", right=True) for key in shown]
        worst = " worst" if trend < 20 else f" worst, over {self._over}"
        return (
            cells(f" {self._of}", NAME_WIDTH + UNIT_WIDTH, "muted"),
            *titles,
            cells("n", COUNT_WIDTH, "muted", right=True),
            TextRun("  "),
            cells("seen by" if vantage else "", vantage, "muted"),
            cells(worst, trend + 1, "muted") if trend > 4 else TextRun(""),
        )


def _row(latency: Latency, shown: Sequence[str], vantage: int, trend: int) -> Line:
    metric = CATALOG[latency.metric]
    line = metric.line or LatencyLine(ink="mean")
    name = f"{'  ' if line.part else ' '}{metric.abbr}"
    ink = "muted" if line.part else "strong"
    quantiles = latency.quantiles
    unit = shared_unit(getattr(quantiles, column.key) for column in COLUMNS)
    return (
        cells(name, NAME_WIDTH, ink),
        cells(unit.name if quantiles.n else "", UNIT_WIDTH, "muted"),
        *(_value(quantiles, key, unit) for key in shown),
        cells(format_count(quantiles.n), COUNT_WIDTH, "muted", right=True),
        TextRun("  "),
        cells(latency.vantage.value if vantage else "", vantage, "faint"),
        TextRun(" "),
        TextRun(sparkline(latency.trend, max(trend, 0)), line.ink),
    )


def _value(quantiles: Quantiles, key: str, unit: TimeUnit) -> TextRun:
    value: float | None = getattr(quantiles, key)
    text = format_in(unit, value)
    if value is None:
        return cells(UNKNOWN, VALUE_WIDTH, "faint", right=True)
    if key in quantiles.weak:
        return cells(about(f" {text}"), VALUE_WIDTH, "faint", right=True)
    return cells(text, VALUE_WIDTH, right=True)
