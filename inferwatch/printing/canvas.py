"""A plot in characters, between its axes; what is drawn on it, its users decide."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import groupby
from operator import itemgetter

from inferwatch.printing.axis import PlotAxis

GUTTER = 8
"""Columns for the labels beside the axis."""
COLUMNS_A_TICK, ROWS_A_TICK = 14, 4


class PlotStyle(StrEnum):
    """The style of a piece of a row; whoever displays it chooses the colour."""

    NONE = "none"
    AXIS = "axis"
    LABEL = "label"
    STAIRS = "stairs"
    """Steps that join points of the frontier."""
    INTERVAL = "interval"
    POINT = "point"
    """A setting that another beats in both throughput and latency."""
    FRONTIER = "frontier"
    BEST = "best"
    PRESENT = "present"


PlotRow = tuple[tuple[str, PlotStyle], ...]
"""Pieces of text from left to right, without a line end."""


class PlotCanvas:
    """The cells of a plot, and where values are on it."""

    def __init__(self, width: int, height: int, x: PlotAxis, y: PlotAxis) -> None:
        self.width, self.height, self.x, self.y = width, height, x, y
        self.cells: dict[tuple[int, int], tuple[str, PlotStyle]] = {}
        """By column and row, from the top left."""

    @property
    def most_ticks(self) -> int:
        """Most labels below the plot."""
        return self.width // COLUMNS_A_TICK + 1

    def column(self, x: float) -> int:
        """The column of a value."""
        return round(self.x.share(x) * (self.width - 1))

    def row(self, y: float) -> int:
        """The row of a value."""
        return round((1 - self.y.share(y)) * (self.height - 1))

    def put(self, column: int, row: int, sign: str, style: PlotStyle) -> None:
        """Draw a sign where nothing is yet."""
        self.cells.setdefault((column, row), (sign, style))

    def rows(self, ticks: Sequence[tuple[float, str]]) -> Iterator[PlotRow]:
        """The rows of the plot and of its axis, with ``ticks`` below it."""
        marks = {
            self.row(value): text
            for value, text in self.y.counts(self.height // ROWS_A_TICK + 1)
        }
        for row in range(self.height):
            label = marks.get(row, "").rjust(GUTTER)
            edge = "┤" if row in marks else "│"
            cells = [
                self.cells.get((column, row), (" ", PlotStyle.NONE))
                for column in range(self.width)
            ]
            yield (
                (label, PlotStyle.LABEL),
                (edge, PlotStyle.AXIS),
                *_pieces(cells),
            )
        yield from self._below(ticks)

    def _below(self, ticks: Sequence[tuple[float, str]]) -> Iterator[PlotRow]:
        line, words = ["─"] * self.width, [" "] * (self.width + GUTTER + 1)
        free = 0
        for value, text in ticks:
            column = self.column(value)
            line[column] = "┬"
            begin = min(GUTTER + 1 + column - len(text) // 2, len(words) - len(text))
            if begin >= free:
                words[begin : begin + len(text)] = text
                free = begin + len(text) + 2
        yield (
            (" " * GUTTER, PlotStyle.NONE),
            ("└" + "".join(line), PlotStyle.AXIS),
        )
        yield (("".join(words).rstrip(), PlotStyle.LABEL),)


def _pieces(cells: Sequence[tuple[str, PlotStyle]]) -> Iterator[tuple[str, PlotStyle]]:
    """Joins neighbouring cells of one style; drops blanks at the end."""
    last = max((n for n, (sign, _) in enumerate(cells) if sign != " "), default=-1)
    for style, run in groupby(cells[: last + 1], itemgetter(1)):
        yield "".join(sign for sign, _ in run), style
