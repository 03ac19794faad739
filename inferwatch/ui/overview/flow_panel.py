"""A request's way through the engine, from left to right, rates over the window."""

from collections.abc import Callable, Sequence

from collectors.readings import EngineInfo
from inferwatch.formatting import (
    UNKNOWN,
    format_count,
    format_duration,
    format_rate,
    format_share,
)
from inferwatch.metrics.catalog import CATALOG, FlowColumn, FlowFact, Metric, Unit
from inferwatch.metrics.snapshot import Flow
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, cells

FORMATS: dict[Unit, Callable[[float | None], str]] = {
    Unit.PER_SECOND: format_rate,
    Unit.TOKENS_PER_SECOND: format_rate,
    Unit.SECONDS: format_duration,
    Unit.SHARE: format_share,
}
"""Of all other units: as a count."""
INKS = {
    FlowColumn.TRAFFIC: "strong",
    FlowColumn.QUEUE: "waiting",
    FlowColumn.PREFILL: "prefill",
    FlowColumn.DECODE: "decode",
    FlowColumn.OUT: "output",
}
WIDEST = 20
"""Labels and values stay together, however wide the screen."""


class _Column:
    """The numbers that the catalog puts into a column, a line each."""

    def __init__(self, column: FlowColumn) -> None:
        self.title, self.ink = column.value, INKS[column]
        self._numbers = [
            (metric, fact, percentile)
            for metric in CATALOG.values()
            if (fact := metric.flow) and fact.column is column
            for percentile in fact.percentiles or ("",)
        ]

    def __len__(self) -> int:
        """How many lines."""
        return len(self._numbers)

    def line(self, row: int, size: int, flow: Flow, engine: EngineInfo | None) -> Line:
        """Label on the left, value flush right in a field that keeps its place."""
        if row >= len(self):
            return (TextRun(" " * size),)
        metric, fact, percentile = self._numbers[row]
        value = getattr(flow, metric.key.removeprefix("flow."))
        label, ink, mark = metric.abbr, "" if row else "strong", ""
        if percentile:
            value = getattr(value, percentile)
            label += f" {percentile}" if percentile != fact.percentiles[0] else ""
        if fact.alarm and value:
            ink, mark = fact.alarm, "" if row else "▲ "
        text = f"{mark}{_text(metric, fact, value)}{_limit(fact, engine)}"
        field = min(size - 1 if size < WIDEST else size - 3, WIDEST)
        room = max(field - len(label), 0)
        gap = TextRun(" " * (size - field))
        return (TextRun(label, "muted"), cells(text, room, ink, right=True), gap)


COLUMNS = tuple(map(_Column, FlowColumn))


class FlowPanel(Panel):
    """Traffic, queue, prefill, decode, out: a column each, joined by arrows.

    Which number stands where, and how, is told by its row in the catalog.
    """

    DEFAULT_CSS = f"""
    FlowPanel {{ height: {1 + max(map(len, COLUMNS))}; }}
    """

    _flow = Flow()
    _engine: EngineInfo | None = None

    def show(self, flow: Flow, engine: EngineInfo | None) -> None:
        """Take the flow of the window, through an engine that may have told of it."""
        self._flow, self._engine = flow, engine
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Heads and arrows, then the facts."""
        sizes = _shares(width - 1, len(COLUMNS))
        columns = list(zip(COLUMNS, sizes, strict=True))
        heads = [_arrow(each, size) for each, size in columns]
        rows = [
            [each.line(row, size, self._flow, self._engine) for each, size in columns]
            for row in range(height - 1)
        ]
        return [
            (TextRun(" "), *(run for cell in cells for run in cell))
            for cells in (heads, *rows)
        ]


def _text(metric: Metric, fact: FlowFact, value: float | None) -> str:
    if fact.text is None:
        return FORMATS.get(metric.unit, format_count)(value).strip()
    return UNKNOWN if value is None else fact.text.format(value)


def _limit(fact: FlowFact, engine: EngineInfo | None) -> str:
    limit = getattr(engine, fact.limit) if engine and fact.limit else None
    return f"/{limit}" if limit else ""


def _arrow(column: _Column, size: int) -> Line:
    head = TextRun(f"{column.title} ", column.ink)
    room = size - len(column.title) - 1
    if column is COLUMNS[-1]:
        return (head, TextRun("─" * (room - 1) + " ", "rule"))
    return (head, TextRun("─" * (room - 2) + "▶ ", "rule"))


def _shares(width: int, count: int) -> list[int]:
    """The width in whole cells, differing by at most one."""
    return [width * (i + 1) // count - width * i // count for i in range(count)]
