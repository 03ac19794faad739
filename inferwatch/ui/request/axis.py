"""The time axis that all lanes and charts of a request share."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import floor, log10

import numpy as np

from collectors.contract.clock import NS_PER_S
from inferwatch.ui.kit.renderables.text import Line, TextRun, merged
from inferwatch.ui.request.moments import Ints, StoryMoments

LABEL_WIDTH = 12
"""Columns of names left of the axis."""
VALUE_WIDTH = 12
"""Columns of values right of the axis."""
TICK_ROOM = 12
"""Least distance of tick labels in columns."""
MARGIN = 0.5
"""Margin on either side of a zoomed phase, as a share of it."""
CURSOR = "│"
CLOCK_STEPS_S = (60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 10_800.0, 86_400.0)

Cell = tuple[str, str]
"""Glyph and ink."""
BLANK: Cell = (" ", "")


class Zoom(StrEnum):
    """The time range shown."""

    LIFE = "whole life"
    FIRST = "up to the first token"
    CURSOR = "around the cursor"

    @property
    def next(self) -> "Zoom":
        every = list(Zoom)
        return every[(every.index(self) + 1) % len(every)]


@dataclass(frozen=True)
class Axis:
    """A time range in columns; zero is the arrival of the request."""

    start_ns: int
    end_ns: int
    columns: int
    zero_ns: int

    @cached_property
    def edges(self) -> Ints:
        """The session times of the edges of the columns."""
        return np.linspace(self.start_ns, self.end_ns, self.columns + 1).astype(
            np.int64
        )

    def column_at(self, t_ns: int) -> int | None:
        """Return the column of a moment, None if it is out of range."""
        if not self.start_ns <= t_ns <= self.end_ns:
            return None
        span_ns = max(self.end_ns - self.start_ns, 1)
        return min((t_ns - self.start_ns) * self.columns // span_ns, self.columns - 1)

    def moment(self, column: int) -> int:
        """Return the middle of a column."""
        span_ns = self.end_ns - self.start_ns
        return self.start_ns + (2 * column + 1) * span_ns // (2 * self.columns)


def axis_of(
    moments: StoryMoments, zoom: Zoom, cursor_ns: int | None, columns: int, gaps: int
) -> Axis:
    """Return the time axis of a zoom; the gap strip has ``gaps`` columns."""
    start_ns, end_ns = moments.start_ns, moments.end_ns
    stop = None if cursor_ns is None else moments.stop_at(cursor_ns)
    if zoom is Zoom.FIRST:
        end_ns = min(max(moments.ttft_end_ns, start_ns + 1), end_ns)
    elif zoom is Zoom.CURSOR and stop is not None and stop.gap is not None:
        seen = moments.columns(gaps, stop.gap)
        start_ns = int(moments.tokens[seen.first])
        end_ns = int(moments.tokens[seen.first + len(seen.worst)])
    elif zoom is Zoom.CURSOR and stop is not None and stop.span is not None:
        span = stop.span
        more_ns = max(round((span.end_ns - span.start_ns) * MARGIN), 500)
        start_ns = max(span.start_ns - more_ns, start_ns)
        end_ns = min(span.end_ns + more_ns, end_ns)
    return Axis(
        start_ns, max(end_ns, start_ns + 1), max(columns, 1), moments.arrived_ns
    )


def row(label: str, cells: Sequence[Cell], value: str, ink: str = "muted") -> Line:
    return (
        TextRun(f"{label:>{LABEL_WIDTH - 1}} ", ink),
        *merged(cells),
        TextRun(f" {value:>{VALUE_WIDTH - 2}} "),
    )


def pointed(cells: Sequence[Cell], column: int | None) -> Sequence[Cell]:
    """Draw the cursor over a column of cells; a glyph there stays visible."""
    if column is None:
        return cells
    glyph, ink = cells[column]
    here = (CURSOR, "marker") if glyph == " " else (glyph, f"{ink} chosen".strip())
    return [*cells[:column], here, *cells[column + 1 :]]


def tick_line(axis: Axis, cursor: int | None) -> list[Cell]:
    """Return ticks at round times since arrival, and the place of the cursor."""
    cells: list[Cell] = [BLANK] * axis.columns
    span_s = (axis.end_ns - axis.start_ns) / NS_PER_S
    step_s = round_step(span_s * TICK_ROOM / axis.columns)
    first = -(-(axis.start_ns - axis.zero_ns) // round(step_s * NS_PER_S))
    free = 0
    for place in range(max(floor(span_s / step_s) + 2, 1)):
        t_s = (first + place) * step_s
        column = axis.column_at(axis.zero_ns + round(t_s * NS_PER_S))
        if column is None or column < free:
            continue
        text = f"╵{tick_text(t_s, step_s)}"
        if column + len(text) > axis.columns:
            break
        if cursor is not None and column <= cursor < column + len(text):
            continue
        cells[column : column + len(text)] = [(glyph, "faint") for glyph in text]
        free = column + len(text) + 1
    if cursor is not None:
        cells[cursor] = ("▲", "accent")
    return cells


def round_step(least_s: float) -> float:
    """Return the smallest of 1, 2, 5 · 10ⁿ seconds not below ``least_s``.

    From half a minute on it is a round number of seconds, minutes or hours.

    >>> [f"{round_step(each):g}" for each in (0.0012, 0.3, 5, 7, 40, 100, 9_000)]
    ['0.002', '0.5', '5', '10', '60', '120', '10800']
    """
    if least_s > CLOCK_STEPS_S[0] / 2:
        return next((s for s in CLOCK_STEPS_S if s >= least_s), CLOCK_STEPS_S[-1])
    power = floor(log10(max(least_s, 1e-9)))
    steps = (float(f"{digit}e{power}") for digit in (1, 2, 5, 10))
    return next((each for each in steps if each >= least_s * (1 - 1e-9)), 10.0**power)


def tick_text(t_s: float, step_s: float) -> str:
    """Return a time with enough digits to differ from the next tick.

    >>> tick_text(0, 1), tick_text(0.05, 0.01), tick_text(12.35, 0.05)
    ('0', '50 ms', '12.35 s')
    >>> tick_text(0.0002, 0.0001), tick_text(600, 60), tick_text(1.5, 0.5)
    ('200 µs', '10 min', '1.5 s')
    """
    if abs(t_s) < step_s / 2:
        return "0"
    if step_s >= 60:
        return f"{t_s / 60:,.0f} min"
    if abs(t_s) >= 1:
        return f"{t_s:,.{max(-floor(log10(step_s) + 1e-9), 0)}f} s"
    if step_s >= 1e-3:
        return f"{t_s * 1e3:,.0f} ms"
    return f"{t_s * 1e6:,.0f} µs"
