"""Rows of labelled numbers for the totals of a screen."""

from collections.abc import Sequence
from itertools import zip_longest

from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    cells_of,
    fit,
    join,
    ruled,
    width_of,
)

Fact = tuple[str, str, str]
"""Label, value, colour of the label."""

ROOMY = 100


class TotalsPanel(Panel):
    """A heading and rows of labelled numbers."""

    _title = ""
    _aside = ""
    _rows: Sequence[Sequence[Fact]] = ()
    _sizes: Sequence[int] = ()
    """Widths of the columns, which grow but never shrink, so that nothing moves."""

    def on_resize(self) -> None:
        self._sizes = ()
        super().on_resize()

    def show(self, title: str, aside: str, rows: Sequence[Sequence[Fact]]) -> None:
        self._title, self._aside, self._rows = title, aside, rows
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        del height
        right = (TextRun(self._aside, "muted"),) if self._aside else ()
        head = ruled((TextRun(self._title, "strong"),), right, width)
        if width < ROOMY:
            return [head, *(_row(row, "  ", width) for row in self._rows)]
        rows, self._sizes = _aligned(self._rows, self._sizes)
        return [head, *(_row(row, "   ", width) for row in rows)]


def _aligned(
    rows: Sequence[Sequence[Fact]], least: Sequence[int]
) -> tuple[Sequence[Sequence[Fact]], Sequence[int]]:
    """Pad the facts of all rows so that they stand in columns; return their widths too.

    A fact alone in its row is a sentence and takes no column.
    """
    several = [row for row in rows if len(row) > 1] or rows
    widths = [[cells_of(f"{a}{b}") for a, b, _ in row] for row in several]
    columns = zip_longest(least, *widths)
    sizes = [max(size or 0 for size in column) for column in columns]
    aligned = [
        [
            (label, value + " " * (size - cells_of(f"{label}{value}")), ink)
            for (label, value, ink), size in zip(row, sizes, strict=False)
        ]
        if len(row) > 1
        else row
        for row in rows
    ]
    return aligned, sizes


def _row(row: Sequence[Fact], gap: str, width: int) -> Line:
    """Draw as many facts as fit uncut: half a number would be wrong."""
    facts = [
        (TextRun(f"{label} ", ink or "muted"), TextRun(value))
        for label, value, ink in row
    ]
    for count in range(len(facts), 1, -1):
        line = (TextRun("  "), *join(facts[:count], gap))
        if width_of(line) <= width:
            return line
    return fit((TextRun("  "), *join(facts[:1])), width)
