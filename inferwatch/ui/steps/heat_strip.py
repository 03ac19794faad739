"""The spread of step times over hours: a strip of shades on a log scale."""

from collections.abc import Mapping, Sequence

from textual import events

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.series.heat import Heat, begins_s, merged
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.plot import MARGIN, tick_text
from inferwatch.ui.kit.renderables.text import Line, TextRun, ruled, width_of
from inferwatch.ui.kit.renderables.time_axis import TimeAxis, shared_axis
from inferwatch.ui.widgets.charts import span_of
from inferwatch.ui.widgets.time_chart import TimeChart

SHADES = ((0.5, "█"), (0.2, "▓"), (0.05, "▒"), (0.01, "░"), (0.0, "·"))
"""From such a share of a column's steps on."""
DOUBLING = 2
"""Cells; rows are whole doublings, or several."""


class HeatStrip(Panel):
    """One column a stretch of time, one row a range of durations."""

    DEFAULT_CSS = """
    HeatStrip { height: 8; }
    """
    _axis: TimeAxis | None = None
    _columns: Sequence[Mapping[int, int]] = ()
    _marked: int | None = None
    _end = "now"

    def show(self, shown: Snapshot, cursor_ns: int | None, end: str = "now") -> None:
        """Take the columns of a snapshot, and what their end is called."""
        self._end = end
        line = shown.timeline
        width = self.size.width or self.screen.size.width
        axis = shared_axis(
            line.start_ns,
            line.bin_ns,
            len(line.steps),
            span_of(line, shown.window.value),
            max(width - MARGIN - 1, 1),
        )
        self._axis = axis
        heat: Sequence[Heat | None] = line.step_heat or (None,) * len(line.steps)
        self._columns = [
            merged(each for each in heat[low:high] if each) for low, high in axis.slices
        ]
        self._marked = None if cursor_ns is None else axis.column_at(cursor_ns)
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        """Point at the moment under the mouse."""
        column = event.x - MARGIN
        if self._axis is not None and column >= 0 and event.y:
            self.post_message(TimeChart.Clicked(self._axis.moment(column)))

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Heading, rows from the longest down, the time."""
        lines = [_heading(width)]
        rows = max(height - 2, 1)
        cells = [cell for column in self._columns for cell in column]
        if not cells or self._axis is None:
            return [*lines, (TextRun("  no step in this time", "faint"),)]
        first, a_row = scale_of(min(cells), max(cells), rows)
        for row in reversed(range(rows)):
            label = ""
            if row in {0, rows - 1}:
                label = tick_text(float(f"{begins_s(first + row * a_row):.2g}"), "s")
            text = "".join(
                "│" if place == self._marked else _shade(column, first, a_row, row)
                for place, column in enumerate(self._columns)
            )
            lines.append(
                (
                    TextRun(f"{label:>{MARGIN - 2}} │"[-MARGIN:], "faint"),
                    TextRun(text, "mean"),
                )
            )
        return [*lines, (TextRun(_time(self._axis, width, self._end), "muted"),)]


def scale_of(first: int, last: int, rows: int) -> tuple[int, int]:
    """The lowest cell and the cells a row, so that all have a row.

    >>> scale_of(44, 52, 6), scale_of(41, 67, 6), scale_of(50, 50, 6)
    ((44, 2), (40, 6), (50, 2))
    """
    a_row = DOUBLING
    while first - first % DOUBLING + rows * a_row <= last:
        a_row += DOUBLING
    return first - first % DOUBLING, a_row


def _shade(column: Mapping[int, int], first: int, a_row: int, row: int) -> str:
    begin = first + row * a_row
    held = sum(column.get(cell, 0) for cell in range(begin, begin + a_row))
    if not held:
        return " "
    share = held / sum(column.values())
    return next(glyph for least, glyph in SHADES if share >= least)


def _heading(width: int) -> Line:
    title = (
        TextRun("spread of step times", "strong"),
        TextRun(" log scale", "muted"),
    )
    shades = " ".join(
        f"{glyph} {least:.0%}" if least else f"{glyph} any"
        for least, glyph in reversed(SHADES)
    )
    legend: Line = (TextRun(shades, "muted"), TextRun(" of a column's steps", "muted"))
    if width_of(title) + width_of(legend) + 6 > width:
        legend = legend[:1]
    return ruled(title, legend, width)


def _time(axis: TimeAxis, width: int, end: str) -> str:
    span_s = axis.columns * axis.column_ns / NS_PER_S
    text = list(" " * width)
    for share in (0.0, 0.5, 1.0):
        ago_s = span_s * (1 - share)
        label = end if share == 1.0 else _ago(ago_s)
        at = MARGIN + round(share * (axis.columns - 1))
        start = max(min(at - len(label) // 2, width - len(label)), 0)
        text[start : start + len(label)] = label
    return "".join(text)


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"−{seconds:.3g} s"
    return f"−{seconds / 60:.3g} min" if seconds < 7_200 else f"−{seconds / 3600:.3g} h"
