"""The metrics of two sessions, one row each; one is chosen."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from inferwatch.compare.comparison import MetricResult, SessionPair
from inferwatch.compare.report import (
    GLYPHS,
    change_text,
    span_text,
    value_text,
    verdict_text,
)
from inferwatch.compare.verdicts import MetricVerdict
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, cells

INKS = {
    MetricVerdict.BETTER: "good bold",
    MetricVerdict.WORSE: "bad bold",
    MetricVerdict.DIFFERS: "accent",
    MetricVerdict.SAME: "muted",
    MetricVerdict.OPEN: "warn",
}
NAME, VALUE, CHANGE, SPAN = 14, 9, 7, 15
WHEEL_ROWS = 3


class _Row(NamedTuple):
    """A heading, who measured, or a metric."""

    heading: str = ""
    result: MetricResult | None = None


class CompareTable(Panel, can_focus=True):
    """Headed by who measured; the cursor stands on metrics only."""

    DEFAULT_CSS = """
    CompareTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "step(-1)", "metric", key_display="↑↓", tooltip="Another metric"),
        Binding("down", "step(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home", "step(-1000)", "first", show=False),
        Binding("end", "step(1000)", "last", show=False),
    ]

    @dataclass
    class Chosen(Message):
        """The cursor came to another metric."""

        result: MetricResult

    _pair: SessionPair | None = None
    _rows: Sequence[_Row] = ()
    _key = ""
    _top = 0

    def show(self, pair: SessionPair) -> None:
        """Take two sessions; the cursor stays on its metric."""
        self._pair, self._rows = pair, tuple(_rows(pair))
        keys = [each.metric.key for each in pair.results]
        if self._key not in keys:
            self._key = keys[0]
        self._point(self._index)

    @property
    def _index(self) -> int:
        """Where the chosen metric stands among the metrics."""
        results = self._pair.results if self._pair else ()
        keys = [each.metric.key for each in results]
        return keys.index(self._key) if self._key in keys else 0

    @property
    def _cursor(self) -> int:
        """Where it stands among the rows."""
        found = (
            index
            for index, row in enumerate(self._rows)
            if row.result and row.result.metric.key == self._key
        )
        return next(found, 0)

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Titles, then the rows in sight."""
        if self._pair is None:
            return ()
        self._follow()
        rows = self._rows[self._top : self._top + max(height - 1, 0)]
        return [self._head(self._pair), *(_line(row, width) for row in rows)]

    def _head(self, pair: SessionPair) -> Line:
        titles = (pair.a.name, pair.b.name)
        return (
            cells(" metric", NAME, "muted"),
            *(cells(f" {title}", VALUE, "accent", right=True) for title in titles),
            cells("change", CHANGE, "muted", right=True),
            cells("95% interval", SPAN, "muted", right=True),
            TextRun("  verdict", "muted"),
        )

    def render_line(self, y: int) -> Strip:
        """A row; the one under the cursor stands out."""
        strip = super().render_line(y)
        if y and self._rows and self._top + y - 1 == self._cursor:
            back = Style(bgcolor=self.ink("chosen").bgcolor)
            return Strip(
                [Segment(part.text, (part.style or Style()) + back) for part in strip]
            )
        return strip

    def _follow(self) -> None:
        """Scroll so that the chosen row is in sight, with the heading above it."""
        room = max(self.size.height - 1, 1)
        cursor = self._cursor
        above = cursor - 1 if cursor and not self._rows[cursor - 1].result else cursor
        self._top = min(max(self._top, cursor - room + 1), above)

    def action_step(self, by: int) -> None:
        """Move the cursor by metrics."""
        if self._pair:
            self._point(self._index + by)

    def action_page(self, by: int) -> None:
        """Move the cursor by what is in sight."""
        self.action_step(by * max(self.size.height - 3, 1))

    def _point(self, index: int) -> None:
        if self._pair is None:
            return
        result = self._pair.results[min(max(index, 0), len(self._pair.results) - 1)]
        self._key = result.metric.key
        self.redraw()
        self.refresh()
        self.post_message(self.Chosen(result))

    def on_click(self, event: events.Click) -> None:
        """Point at a row."""
        index = self._top + event.y - 1
        row = self._rows[index] if event.y and index < len(self._rows) else None
        if row and row.result and self._pair:
            self._point(self._pair.results.index(row.result))

    def on_mouse_scroll_down(self) -> None:
        """Later rows."""
        self.action_step(WHEEL_ROWS)

    def on_mouse_scroll_up(self) -> None:
        """Earlier rows."""
        self.action_step(-WHEEL_ROWS)


def _rows(pair: SessionPair) -> Iterator[_Row]:
    """A heading wherever the name or the vantage changes."""
    before = ""
    for each in pair.results:
        vantage = f"seen by {each.metric.vantage}"
        if vantage != before:
            yield _Row(heading=vantage)
        before = vantage
        yield _Row(result=each)


def _line(row: _Row, width: int) -> Line:
    if row.result is None:
        dashes = "─" * max(width - len(row.heading) - 4, 0)
        return (
            TextRun("─ ", "rule"),
            TextRun(f"{row.heading} ", "muted"),
            TextRun(dashes, "rule"),
        )
    result = row.result
    values = [value_text(result, value) for value in (result.a, result.b)]
    glyph = f"  {GLYPHS[result.verdict]} {verdict_text(result)}"
    statistic = result.metric.statistic or ""
    return (
        cells(f" {result.metric.name:<9}{statistic}", NAME, "strong"),
        *(cells(text, VALUE, right=True) for text in values),
        cells(change_text(result.ratio), CHANGE, right=True),
        cells(span_text(result.ratio_span), SPAN, "muted", right=True),
        cells(
            glyph,
            max(width - NAME - 2 * VALUE - CHANGE - SPAN, 0),
            INKS[result.verdict],
        ),
    )
