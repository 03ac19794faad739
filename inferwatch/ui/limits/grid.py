"""A plot on logarithmic axes, in cells of text and dots of braille."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import floor, log10

from inferwatch.ui.kit.renderables.plot import MARGIN, tick_text
from inferwatch.ui.kit.renderables.text import Line, merged

DOTS = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)
"""Braille bits of a cell: left and right column, from the bottom."""
BRAILLE = 0x2800
FREE = "rule"
"""Ink of lines that text may cover."""


@dataclass(frozen=True, slots=True)
class LogAxes:
    """Decades at the edges of a grid of cells."""

    left: float
    right: float
    bottom: float
    top: float
    columns: int
    rows: int

    def column(self, x: float) -> float:
        """Return the column of a value, in cells from the left."""
        share = (log10(x) - self.left) / (self.right - self.left)
        return share * self.columns

    def row(self, y: float) -> float:
        """Return the row of a value, in cells from the bottom."""
        return (log10(y) - self.bottom) / (self.top - self.bottom) * self.rows

    def x(self, column: float) -> float:
        """Return the value at a column."""
        exponent = self.left + column / self.columns * (self.right - self.left)
        return float(10**exponent)

    def cell(self, x: float, y: float) -> tuple[int, int]:
        """Return column and row, clamped to the grid."""
        column, row = int(self.column(x)), floor(self.row(y))
        return (
            min(max(column, 0), self.columns - 1),
            min(max(row, 0), self.rows - 1),
        )

    def decades(
        self, text: Callable[[float], str], steps: Sequence[int] = (1,)
    ) -> dict[int, str]:
        """Return labels of the y axis by row, at least two rows apart.

        Where there are ``steps``, the first ones of each decade take precedence.
        """
        labels: dict[int, str] = {}
        powers = range(floor(self.bottom), floor(self.top) + 1)
        for value in (step * 10.0**power for step in steps for power in powers):
            row = floor(self.row(value))
            is_free = not any(abs(row - each) < 2 for each in labels)
            if is_free and 0 <= row < self.rows:
                labels[row] = text(value)
        return labels


@dataclass(slots=True)
class PlotGrid:
    """Cells to draw into, from the bottom."""

    columns: int
    rows: int
    cells: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    dots: dict[tuple[int, int], int] = field(default_factory=dict)

    def put(self, column: int, row: int, text: str, ink: str) -> None:
        """Write a text from a cell on; what is outside the grid is left out."""
        for at, glyph in enumerate(text, column):
            if 0 <= at < self.columns and 0 <= row < self.rows:
                self.cells[at, row] = glyph, ink

    def dot(self, x: int, y: int, ink: str) -> None:
        """Set a braille dot; a cell has 2 by 4 dots."""
        at = x // 2, y // 4
        if 0 <= at[0] < self.columns and 0 <= at[1] < self.rows:
            self.dots[at] = self.dots.get(at, 0) | DOTS[x % 2][y % 4]
            self.cells[at] = chr(BRAILLE + self.dots[at]), ink

    def curve(
        self, axes: LogAxes, at: Callable[[float], float], ink: Callable[[float], str]
    ) -> None:
        """Draw a function in dots, without holes where it is steep."""
        before: int | None = None
        for dot in range(self.columns * 2):
            x = axes.x((dot + 0.5) / 2)
            y = floor(axes.row(at(x)) * 4)
            first = y
            if before is not None:
                first = min(before + 1, y) if y >= before else y
            last = y if before is None else max(y, before - 1)
            for each in range(first, last + 1):
                self.dot(dot, each, ink(x))
            before = y

    def is_free(self, column: int, row: int, cells: int) -> bool:
        """Return True if the cells are in the grid and hold nothing important."""
        return (
            column >= 0
            and column + cells <= self.columns
            and 0 <= row < self.rows
            and all(
                self.cells.get((at, row), ("", FREE))[1] == FREE
                for at in range(column, column + cells)
            )
        )

    def line(self, row: int) -> Line:
        return merged(
            self.cells.get((column, row), (" ", "")) for column in range(self.columns)
        )


def axis_label(text: str | None) -> str:
    """Return the y axis of a row, with its label."""
    return f"{text:>{MARGIN - 2}} ┤" if text else f"{'':>{MARGIN - 1}}│"


def foot(axes: LogAxes, places: Sequence[tuple[int, str]], ink: str) -> Line:
    """Return the x axis with decades, and with names from some columns on.

    A name that has no room moves to the left, and is left out where another is.
    """
    text = [(" ", "faint")] * (MARGIN + axes.columns)
    occupied = set[int]()

    def write(label: str, at: int, ink: str, beside: int) -> None:
        cells = set(range(at - 1, at + len(label) + beside))
        if not cells & occupied:
            occupied.update(cells)
            text[at : at + len(label)] = [(each, ink) for each in label]

    for column, name in places:
        write(name, MARGIN + min(column, axes.columns - len(name)), ink, 1)
    for exponent in range(int(axes.left), int(axes.right) + 1):
        label = tick_text(10.0**exponent)
        at = MARGIN + round(axes.column(10.0**exponent)) - len(label) // 2
        write(label, min(at, MARGIN + axes.columns - len(label)), "faint", 1)
    return merged(text)
