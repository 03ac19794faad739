"""Curves as dots of a braille grid, dashed so that they differ without colour."""

from collections.abc import Sequence
from itertools import pairwise

Curve = tuple[tuple[float, float], ...]
"""Points in order of x."""
PATTERNS = ("1", "11110000", "1100", "111100100", "111111001100", "10011110")
"""Dots that are drawn and left out along a curve; the first is solid."""


def dotted(
    curve: Curve,
    place: int,
    x_span: tuple[float, float],
    y_top: float,
    columns: int,
    rows: int,
) -> tuple[Sequence[float], Sequence[float]]:
    """The dots of the curve of the session at that place; 2 by 4 to a cell."""
    width, height = x_span[1] - x_span[0], y_top
    pattern = PATTERNS[place % len(PATTERNS)]
    xs: list[float] = []
    ys: list[float] = []
    at = 0
    for (x0, y0), (x1, y1) in pairwise(curve):
        across = abs(x1 - x0) / width * columns * 2
        up = abs(y1 - y0) / height * rows * 4
        dots = max(round(max(across, up)), 1)
        for dot in range(dots):
            if pattern[at % len(pattern)] == "1":
                xs.append(x0 + (x1 - x0) * dot / dots)
                ys.append(y0 + (y1 - y0) * dot / dots)
            at += 1
    return xs, ys
