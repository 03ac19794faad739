"""A request's way through the engine, left to right: what is now, and the window."""

from collections.abc import Callable, Sequence

from collectors.readings import EngineInfo
from inferwatch.formatting import (
    UNKNOWN,
    format_count,
    format_duration,
    format_durations,
    format_rate,
    format_share,
)
from inferwatch.metrics.catalog import (
    CATALOG,
    NOW,
    FlowColumn,
    FlowFact,
    Metric,
    Unit,
)
from inferwatch.metrics.snapshot import Flow, Quantiles, Snapshot, Window
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
NOW_MARK = "•"
"""Stands behind the name of what holds now; all else is of the window."""
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
        shown = ""
        label, ink, mark = metric.abbr, "" if row else "strong", ""
        if percentile:
            shown = _in_one_unit(value, fact.percentiles)[percentile]
            value = getattr(value, percentile)
            label += f" {percentile}" if percentile != fact.percentiles[0] else ""
        if fact.alarm and value:
            ink, mark = fact.alarm, "" if row else "▲ "
        shown = shown or _text(metric, fact, value)
        limit = "" if value is None else _limit(fact, engine)
        field = min(size - 1 if size < WIDEST else size - 3, WIDEST)
        now = NOW_MARK if metric.span == NOW else ""
        room = max(field - len(label) - len(now), 0)
        text = f"{mark}{shown}"
        text += limit if len(text) + len(limit) <= room else ""
        gap = TextRun(" " * (size - field))
        number = cells(text, room, ink, right=True)
        return (TextRun(label, "muted"), TextRun(now, "accent"), number, gap)


COLUMNS = tuple(map(_Column, FlowColumn))
LEAST_COLUMNS = tuple(
    column for column in COLUMNS if column.title != FlowColumn.PREFILL.value
)
"""Those that are never left out."""
ALL_FROM = 72
"""Cells; with fewer there is no room for all columns."""


class FlowPanel(Panel):
    """Traffic, queue, prefill, decode, out: a column each, joined by arrows.

    Which number stands where, and how, is told by its row in the catalog.
    """

    DEFAULT_CSS = f"""
    FlowPanel {{ height: {1 + max(map(len, COLUMNS))}; }}
    """

    _flow = Flow()
    _engine: EngineInfo | None = None
    _window = Window.MINUTE

    def show(self, shown: Snapshot) -> None:
        """Take the flow, through an engine that may have told of itself."""
        self._flow, self._window = shown.flow, shown.window
        self._engine = shown.engines[0] if shown.engines else None
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Heads and arrows, then the facts."""
        shown = COLUMNS if width >= ALL_FROM else LEAST_COLUMNS
        sizes = _shares(width - 1, len(shown))
        columns = list(zip(shown, sizes, strict=True))
        heads = [*(_arrow(*each) for each in columns[:-1]), self._end(*columns[-1])]
        rows = [
            [each.line(row, size, self._flow, self._engine) for each, size in columns]
            for row in range(height - 1)
        ]
        return [
            (TextRun(" "), *(run for cell in cells for run in cell))
            for cells in (heads, *rows)
        ]

    def _end(self, column: _Column, size: int) -> Line:
        """The last head, and what of all these numbers is now."""
        head = TextRun(f"{column.title} ", column.ink)
        room = size - len(column.title) - 1
        told = f" now, else {self._window.label}"
        told = told if len(told) + 4 <= room else " now"
        rule = "─" * max(room - len(told) - 3, 0)
        mark, legend = TextRun(NOW_MARK, "accent"), TextRun(f"{told} ", "muted")
        return (head, TextRun(f"{rule} ", "rule"), mark, legend)


def _text(metric: Metric, fact: FlowFact, value: float | None) -> str:
    if fact.text is None:
        return FORMATS.get(metric.unit, format_count)(value).strip()
    return UNKNOWN if value is None else fact.text.format(value)


def _in_one_unit(quantiles: Quantiles, names: Sequence[str]) -> dict[str, str]:
    """Percentiles of one latency are read together."""
    texts = format_durations(getattr(quantiles, name) for name in names)
    return {name: text.strip() for name, text in zip(names, texts, strict=True)}


def _limit(fact: FlowFact, engine: EngineInfo | None) -> str:
    limit = getattr(engine, fact.limit) if engine and fact.limit else None
    return f"/{limit:,}" if limit else ""


def _arrow(column: _Column, size: int) -> Line:
    head = TextRun(f"{column.title} ", column.ink)
    room = size - len(column.title) - 1
    return (head, TextRun("─" * (room - 2) + "▶ ", "rule"))


def _shares(width: int, count: int) -> list[int]:
    """The width in whole cells, differing by at most one."""
    return [width * (i + 1) // count - width * i // count for i in range(count)]
