"""What charts by plotext need: a y axis that does not twitch, the colours it wrote."""

import math
import re
from collections.abc import Iterator

MARGIN = 8
"""Columns of the y axis: a label, a space and the axis itself; they never move."""
PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))


def nice_ceiling(peak: float) -> float:
    """The least of 1, 2, 5 · 10ⁿ that is not below the peak.

    >>> [nice_ceiling(peak) for peak in (0.7, 1.3, 3, 20, 21, 0)]
    [1.0, 2.0, 5.0, 20.0, 50.0, 1.0]
    """
    if peak <= 0:
        return 1.0
    power = float(f"1e{math.floor(math.log10(peak))}")
    for step in (1, 2, 5):
        if peak <= step * power * (1 + 1e-9):
            return step * power
    return 10 * power


def tick_text(value: float, unit: str = "") -> str:
    """A round value as short as can be.

    >>> tick_text(0.05, "s"), tick_text(2.5e-3, "s"), tick_text(5000), tick_text(0, "s")
    ('50 ms', '2.5 ms', '5k', '0')
    >>> tick_text(0.5), tick_text(0.5, "%"), tick_text(2, "s")
    ('0.5', '50%', '2 s')
    """
    if value == 0:
        return "0"
    if unit == "%":
        return f"{value * 100:g}%"
    if not unit and value < 1:
        return f"{value:g}"
    factor, prefix = next(pair for pair in PREFIXES if value >= pair[0] * 0.9999)
    gap = " " if unit else ""
    return f"{round(value / factor, 3):g}{gap}{prefix}{unit}"


class Ceiling:
    """The top of a y axis: grows at once, shrinks only with room to spare."""

    def __init__(self, least: float = 0.0) -> None:
        self._least = least
        self._top = 0.0

    def over(self, peak: float) -> float:
        """The top of the axis for this peak."""
        wanted = nice_ceiling(max(peak, self._least))
        spacious = nice_ceiling(max(peak * 1.2, self._least))
        if wanted > self._top or spacious < self._top:
            self._top = wanted
        return self._top


_PIECE = re.compile(r"((?:\x1b\[[\d;]*m)*)([^\x1b]+)")
_COLOUR = re.compile(r"38;5;(\d+)m")


def coloured_runs(row: str) -> Iterator[tuple[str, int | None]]:
    r"""Text and the number of its colour, None for none.

    >>> list(coloured_runs("5┤\x1b[0m\x1b[38;5;17m▄█\x1b[0m "))
    [('5┤', None), ('▄█', 17), (' ', None)]
    """
    for codes, text in _PIECE.findall(row):
        found = _COLOUR.search(codes)
        yield text, int(found[1]) if found else None
