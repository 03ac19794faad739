"""Axis tops, ticks and colours for charts."""

import math
import re
from collections.abc import Iterable, Iterator

MARGIN = 8
"""Columns of the y axis: label, space and line."""
MIDDLE_FROM = 5
"""Least rows for a tick between the ends."""
PREFIXES = (
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1.0, ""),
    (1e-3, "m"),
    (1e-6, "µ"),
    (1e-9, "n"),
)


STEPS = (1.0, 2.0, 2.5, 5.0)
"""Axes end at one of these times a power of ten."""


def nice_ceiling(peak: float) -> float:
    """Return the least of 1, 2, 2.5 and 5 · 10ⁿ not below the peak.

    >>> [nice_ceiling(peak) for peak in (0.7, 1.3, 0.23, 20, 21, 4500, 0)]
    [1.0, 2.0, 0.25, 20.0, 25.0, 5000.0, 1.0]
    """
    if peak <= 0:
        return 1.0
    power = float(f"1e{math.floor(math.log10(peak))}")
    for step in STEPS:
        if peak <= step * power * (1 + 1e-9):
            return step * power
    return 10 * power


NEAR = 0.25
"""Share of a limit from which a peak makes the limit the top of the axis."""


def axis_top(peak: float, least: float = 0.0, limit: float | None = None) -> float:
    """Return the top of a y axis, which depends only on the values drawn.

    >>> axis_top(4500), axis_top(3, least=5), axis_top(30, 5, limit=32)
    (5000.0, 5.0, 32)
    >>> axis_top(12, 5, limit=256), axis_top(33, 5, limit=32)
    (20.0, 50.0)
    """
    if limit and NEAR * limit <= peak <= limit:
        return limit
    return nice_ceiling(max(peak, least))


def ticks(
    top: float, rows: int, unit: str = "", base: int = 0
) -> list[tuple[int, str]]:
    """Return rows and labels: zero, the top, and a round value between if it fits.

    >>> ticks(0.25, 5, "s")
    [(0, '0'), (2, '100 ms'), (4, '250 ms')]
    >>> ticks(200, 4), ticks(32, 1), ticks(5, 3, base=2)
    ([(0, '0'), (3, '200')], [(0, '32')], [(2, '0'), (4, '5')])
    """
    shares = [0.0, 1.0] if rows > 1 else [1.0]
    if rows >= MIDDLE_FROM:
        odd = f"{top:e}"[:3] in {"2.5", "5.0"}
        shares.insert(1, 0.4 if odd else 0.5)
    labels: list[tuple[int, str]] = []
    for share in shares:
        whole = bool(unit) or (share * top).is_integer()
        label = tick_text(share * top, unit)
        if share in {0.0, 1.0} or (whole and len(label) <= MARGIN - 2):
            labels.append((base + min(int(share * rows), rows - 1), label))
    return labels


def axis_labels(labels: Iterable[tuple[int, str]], width: int) -> str:
    """Return labels in one row, each centred at its column.

    >>> axis_labels([(0, "0 s"), (5, "5"), (11, "10 s")], 12)
    '0 s  5  10 s'
    """
    text = list(" " * width)
    for column, label in labels:
        start = max(min(column - len(label) // 2, width - len(label)), 0)
        text[start : start + len(label)] = label
    return "".join(text)


def tick_text(value: float, unit: str = "") -> str:
    """Return a short label with a metric prefix.

    >>> tick_text(0.05, "s"), tick_text(2.5e-3, "s"), tick_text(5000), tick_text(0, "s")
    ('50 ms', '2.5 ms', '5k', '0')
    >>> tick_text(5e12, "B"), tick_text(2.5e9, "B")
    ('5 TB', '2.5 GB')
    >>> tick_text(0.5), tick_text(0.5, "%"), tick_text(2, "s")
    ('0.5', '50%', '2 s')
    >>> tick_text(3352)
    '3.35k'
    """
    if value == 0:
        return "0"
    if unit == "%":
        return f"{value * 100:g}%"
    if not unit and value < 1:
        return f"{value:g}"
    fits = (pair for pair in PREFIXES if value >= pair[0] * 0.9999)
    factor, prefix = next(fits, PREFIXES[-1])
    gap = " " if unit else ""
    return f"{value / factor:.3g}{gap}{prefix}{unit}"


_PIECE = re.compile(r"((?:\x1b\[[\d;]*m)*)([^\x1b]+)")
_COLOUR = re.compile(r"38;5;(\d+)m")


def coloured_runs(row: str) -> Iterator[tuple[str, int | None]]:
    r"""Yield text and its colour number, None without a colour.

    >>> list(coloured_runs("5┤\x1b[0m\x1b[38;5;17m▄█\x1b[0m "))
    [('5┤', None), ('▄█', 17), (' ', None)]
    """
    for codes, text in _PIECE.findall(row):
        colour = _COLOUR.search(codes)
        yield text, int(colour[1]) if colour else None
