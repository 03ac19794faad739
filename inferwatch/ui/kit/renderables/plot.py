"""What charts are drawn of: columns of time, stacked layers, a y axis with its ticks.

A column covers a fixed time range aligned to multiples of its width, so charts move
left by whole columns and keep their shape.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from statistics import fmean
from typing import NamedTuple

Fold = Callable[[list[float]], float]
"""Aggregates the bins of one column."""


def last(values: list[float]) -> float:
    """Fold a level, such as memory used, into a column: the last value counts."""
    return values[-1]


@dataclass(frozen=True)
class TimeAxis:
    """The latest ``span_ns`` of a timeline as ``columns`` columns of a chart."""

    bins_start_ns: int
    bin_ns: int
    bins: int
    span_ns: int
    columns: int

    @cached_property
    def column_ns(self) -> int:
        """The time that a column covers."""
        return max(self.span_ns // max(self.columns, 1), 1)

    @cached_property
    def start_ns(self) -> int:
        """The axis's left edge; its right edge is the end of the last bin."""
        end_ns = self.bins_start_ns + self.bins * self.bin_ns
        return (-(-end_ns // self.column_ns) - self.columns) * self.column_ns

    @cached_property
    def slices(self) -> tuple[tuple[int, int], ...]:
        """Index ranges of the bins in each column: those that end in it, or one."""
        return tuple(self._slice(column) for column in range(self.columns))

    def _slice(self, column: int) -> tuple[int, int]:
        left_ns = self.start_ns + column * self.column_ns - self.bins_start_ns
        low = left_ns // self.bin_ns
        high = (left_ns + self.column_ns) // self.bin_ns
        high = max(high, low + 1)
        return max(low, 0), max(min(high, self.bins), 0)

    def fold(
        self, values: Sequence[float | None], how: Fold = fmean
    ) -> tuple[float | None, ...]:
        """Return one value per column, None if all its bins are None."""
        folded: list[float | None] = []
        for low, high in self.slices:
            numbers = [value for value in values[low:high] if value is not None]
            folded.append(how(numbers) if numbers else None)
        return tuple(folded)

    def column_at(self, t_ns: int) -> int | None:
        """Return the column of a moment, None if it is out of range."""
        column = (t_ns - self.start_ns) // self.column_ns
        return column if 0 <= column < self.columns else None

    def moment(self, column: int) -> int:
        """Return the middle of a column in session time."""
        return self.start_ns + column * self.column_ns + self.column_ns // 2


shared_axis = lru_cache(maxsize=32)(TimeAxis)
"""Returns a cached axis, so that charts of one width compute its slices once."""


class Texture(StrEnum):
    """Glyphs of a layer from thin to full, to tell layers apart without colour."""

    SOLID = "▁▂▃▄▅▆▇█"
    DOTTED = "⣀⣤⣶⣿"
    LIGHT = "░"
    MEDIUM = "▒"
    HEAVY = "▓"
    EMPTY = " "

    @property
    def sample(self) -> str:
        """The glyph for legends."""
        return self[-1].replace(" ", "□")


LITTLE = 0.06
"""Share of a cell below which a layer is not visible in it."""
MOST = 0.6
"""A layer that fills this share of a cell replaces a thin one below."""


class BlockCell(NamedTuple):
    """One character of a chart and its layer."""

    column: int
    row: int
    glyph: str
    layer: int


LANE_FROM = 3
"""Least rows of a chart with a lane."""
DIVIDED_FROM = 4
"""Least rows for a line between chart and lane."""


def split(rows: int) -> tuple[int, int]:
    """Return the rows of a chart and of the lane below it; one may divide them.

    >>> split(2), split(3), split(4), split(8), split(13)
    ((2, 0), (2, 1), (2, 1), (5, 2), (8, 4))
    """
    if rows < LANE_FROM:
        return rows, 0
    lane = max((rows - 1) // 3, 1)
    return rows - lane - (rows >= DIVIDED_FROM), lane


def stack(
    tops: Sequence[float], textures: Sequence[Texture], column: int, rows: int
) -> Iterator[BlockCell]:
    """Yield the cells of a column of stacked layers, from the bottom.

    ``tops`` are the upper edges of the layers in cells, never falling.
    """
    for row in range(min(rows, math.ceil(max(tops, default=0)))):
        layer = _main_layer(tops, textures, row)
        if layer is None or textures[layer] is Texture.EMPTY:
            return
        glyph = _glyph(textures[layer], tops[layer] - row)
        if glyph is not None:
            yield BlockCell(column, row, glyph, layer)


def _main_layer(
    tops: Sequence[float], textures: Sequence[Texture], row: int
) -> int | None:
    """Return the layer to draw in a cell: the lowest, or if that is thin the next."""
    layer = _lowest_above(tops, row)
    if layer is None or textures[layer] is Texture.SOLID or tops[layer] > row + 0.5:
        return layer
    covering = _lowest_above(tops, row + MOST, after=layer)
    if covering is None or textures[covering] is Texture.EMPTY:
        return layer
    return covering


def _lowest_above(tops: Sequence[float], height: float, after: int = -1) -> int | None:
    """Return the first layer visibly higher than ``height``; None if none is.

    At the bottom every known value is visible, however small.
    """
    least = height + LITTLE if height else 0.0
    for layer in range(after + 1, len(tops)):
        if tops[layer] > least:
            return layer
    return None


def _glyph(texture: Texture, share: float) -> str | None:
    if share >= 1:
        return texture[-1]
    filled = round(share * len(texture))
    return texture[max(filled, 1) - 1] if filled or len(texture) > 1 else None


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
    r"""Yield texts of a row with their colour number, None without a colour.

    >>> list(coloured_runs("5┤\x1b[0m\x1b[38;5;17m▄█\x1b[0m "))
    [('5┤', None), ('▄█', 17), (' ', None)]
    """
    for codes, text in _PIECE.findall(row):
        colour = _COLOUR.search(codes)
        yield text, int(colour[1]) if colour else None
