"""The time line of single steps: time, phase and batch of each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.message import Message

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Step
from inferwatch.formatting import counted, format_duration
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.bars import BARS, Texture, stack
from inferwatch.ui.kit.renderables.plot import MARGIN, nice_ceiling, tick_text
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    join,
    merged,
    ruled,
    width_of,
)
from inferwatch.ui.steps.columns import StepColumn, StepKey, columns_of, key_of

LANE_ROWS = 2
"""Token budget and max_num_seqs."""
LANE_FROM = 8
"""Height below which there is one lane less."""
DECADES = 1
"""Least decades of the scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPicture:
    """What the time line shows."""

    steps: Sequence[Step] = ()
    """Oldest first."""
    why_none: str = "reading the steps…"
    a_column: int = 1
    chosen: StepKey | None = None
    budget: int | None = None
    max_seqs: int | None = None
    end: str = ""
    """Wall time of the right end."""


class StepLine(Panel):
    """A column per step, or per several; the newest is on the right."""

    DEFAULT_CSS = """
    StepLine { height: 1fr; min-height: 6; }
    """

    @dataclass
    class StepChosen(Message):
        """A step was clicked."""

        step: Step

    _picture = StepPicture()
    _columns: Sequence[StepColumn] = ()

    @property
    def capacity(self) -> int:
        """Columns that fit."""
        return max(self.size.width - MARGIN - 1, 1)

    def show(self, picture: StepPicture) -> None:
        self._picture = picture
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        place = event.x - MARGIN - self._left
        if event.y and 0 <= place < len(self._columns):
            self.post_message(self.StepChosen(self._columns[place].longest))

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Draw heading, bars, two lanes and the selected step."""
        picture = self._picture
        self._columns = columns_of(picture.steps, picture.a_column, self.capacity)
        if not self._columns:
            reason = (TextRun(f"  {picture.why_none}", "faint"),)
            return [self._heading(width), reason]
        lanes = LANE_ROWS if height >= LANE_FROM else LANE_ROWS - 1
        rows = max(height - 2 - lanes, 1)
        lines = [self._heading(width), *self._bars(rows)]
        lines.append(self._tokens())
        if lanes > 1:
            lines.append(self._requests())
        return [*lines, self._axis(width)]

    @property
    def _left(self) -> int:
        """Blank columns on the left: the newest step keeps its place."""
        return max(self.capacity - len(self._columns), 0)

    def _heading(self, width: int) -> Line:
        picture = self._picture
        a_column = counted(picture.a_column, "step").strip()
        scale = f"{a_column} a column"
        if picture.a_column > 1:
            scale += ", the longest of each"
        ranks = len({key_of(column.longest)[:2] for column in self._columns})
        if ranks > 1:
            scale += f", of {ranks} engines"
        title = (TextRun("single steps", "strong"), TextRun(f" {scale}", "muted"))
        legend = (
            (TextRun("█ ", "decode"), TextRun("decode", "muted")),
            (TextRun("⣿ ", "prefill"), TextRun("prefill", "muted")),
        )
        height = (TextRun("height: time, log", "muted"),)
        whole = join((height, *legend), "  ")
        if width_of(title) + width_of(whole) + 6 > width:
            whole = join(legend, "  ")
        return ruled(title, whole, width)

    def _bars(self, rows: int) -> list[Line]:
        low, high = scale_of([each.longest.duration_ns for each in self._columns])
        span = math.log(high / low)
        cells: dict[tuple[int, int], tuple[str, int]] = {}
        for at, column in enumerate(self._columns, self._left):
            took_ns = column.longest.duration_ns
            share = max(math.log(max(took_ns, low) / low) / span, 0.03)
            tops = [column.decode_share * share * rows, share * rows]
            textures = [Texture.SOLID, Texture.DOTTED]
            for cell in stack(tops, textures, at, rows):
                cells[cell.row, cell.column] = cell.glyph, cell.layer
        labels = {0: tick_text(low / NS_PER_S, "s")}
        labels[rows - 1] = tick_text(high / NS_PER_S, "s")
        if rows > 4:  # a decade lies in the middle, or near it
            middle = 10 ** round((math.log10(low) + math.log10(high)) / 2)
            row = int(math.log(middle / low) / span * rows)
            labels.setdefault(min(row, rows - 1), tick_text(middle / NS_PER_S, "s"))
        inks = ("decode", "prefill")
        return [
            (_label(labels.get(row, "")), *_row(cells, row, self.capacity, inks))
            for row in reversed(range(rows))
        ]

    def _tokens(self) -> Line:
        values = [column.tokens_max for column in self._columns]
        return self._lane("tokens", values, self._picture.budget, "tokens")

    def _requests(self) -> Line:
        values = [column.requests_max for column in self._columns]
        return self._lane("reqs", values, self._picture.max_seqs, "seqs")

    def _lane(self, name: str, values: list[int], limit: int | None, ink: str) -> Line:
        """Draw shares of a limit in one row; what reaches it is highlighted."""
        top = limit or max(values, default=0) or 1
        cells = [(" ", "")] * self._left
        for value in values:
            full = limit is not None and value >= limit
            glyph = "█" if full else _eighth(value / top)
            cells.append((glyph, "warn" if full else ink))
        return (_label(name), *merged(cells))

    def _axis(self, width: int) -> Line:
        """Draw the limits of the lanes, and the place of the selected step."""
        picture = self._picture
        place = self._place()
        budget, seqs = _limit(picture.budget), _limit(picture.max_seqs)
        limits_text = f"tokens of {budget} · requests of {seqs}"
        until = f"until {picture.end}" if picture.end else ""
        end = f"{until} ┘" if until else ""
        at = None if place is None else MARGIN + self._left + place
        start = MARGIN
        if at is not None and at <= start + len(limits_text):
            start = at + 2
        text = f"{'':{start}}{limits_text}"
        stop = width - 1  # where the time of the right end goes: not under the mark
        if at is not None and stop - len(end) - 1 <= at:
            stop, end = at - 1, until
        gap = max(stop - len(text) - len(end), 1)
        text = (text + " " * gap + end)[:width].ljust(width)
        if at is None:
            return (TextRun(text, "muted"),)
        return (
            TextRun(text[:at], "muted"),
            TextRun("▲", "marker"),
            TextRun(text[at + 1 :], "muted"),
        )

    def _place(self) -> int | None:
        chosen = self._picture.chosen
        if chosen is None:
            return None
        steps = self._picture.steps
        at = next((i for i, step in enumerate(steps) if key_of(step) == chosen), None)
        if at is None:
            return None
        inside = (
            place
            for place, each in enumerate(self._columns)
            if each.first <= at < each.first + each.count
        )
        return next(inside, None)


def scale_of(durations_ns: Sequence[int]) -> tuple[float, float]:
    """Return the ends of a log scale in ns: round, at least a decade apart.

    >>> scale_of([3_100_000, 9_000_000]), scale_of([3_100_000, 1_200_000_000])
    ((1000000.0, 10000000.0), (1000000.0, 2000000000.0))
    """
    high = nice_ceiling(max(durations_ns, default=1) or 1)
    low = 10.0 ** math.floor(math.log10(max(min(durations_ns, default=1), 1)))
    return min(low, 10.0 ** math.floor(math.log10(high) - DECADES)), high


def _eighth(share: float) -> str:
    """Return a bar; a known value is visible, and only a limit fills the cell."""
    if share <= 0:
        return " "
    return BARS[min(int(share * len(BARS)), len(BARS) - 1)]


def _limit(value: int | None) -> str:
    return "their peak" if value is None else f"{value:,}"


def _label(text: str) -> TextRun:
    return TextRun(f"{text:>{MARGIN - 2}} │"[-MARGIN:], "faint")


def _row(
    cells: dict[tuple[int, int], tuple[str, int]],
    row: int,
    width: int,
    inks: Sequence[str],
) -> Line:
    drawn = (cells.get((row, column), (" ", -1)) for column in range(width))
    return merged((glyph, inks[layer] if layer >= 0 else "") for glyph, layer in drawn)


def took(step: Step) -> str:
    return format_duration(step.duration_ns / NS_PER_S)
