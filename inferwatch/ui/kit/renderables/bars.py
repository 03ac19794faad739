"""Bars of block characters: stacked layers, sparklines, request phases."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import accumulate, pairwise
from math import ceil
from typing import NamedTuple

from inferwatch.ui.kit.renderables.text import Line, TextRun


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
    """Return the rows of a chart and of its lane; one may be left for a divider.

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
    """Yield the cells of one column from the bottom.

    ``tops`` are the upper edges of the layers in cells, never falling.
    """
    for row in range(min(rows, ceil(max(tops, default=0)))):
        layer = _main_layer(tops, textures, row)
        if layer is None or textures[layer] is Texture.EMPTY:
            return
        glyph = _glyph(textures[layer], tops[layer] - row)
        if glyph is not None:
            yield BlockCell(column, row, glyph, layer)


def _main_layer(
    tops: Sequence[float], textures: Sequence[Texture], row: int
) -> int | None:
    """Return the lowest layer in a cell, or the one above if that is thin."""
    layer = _lowest_above(tops, row)
    if layer is None or textures[layer] is Texture.SOLID or tops[layer] > row + 0.5:
        return layer
    covering = _lowest_above(tops, row + MOST, after=layer)
    if covering is None or textures[covering] is Texture.EMPTY:
        return layer
    return covering


def _lowest_above(tops: Sequence[float], height: float, after: int = -1) -> int | None:
    """Return the first layer that is visibly higher than ``height``.

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


BARS = "▁▂▃▄▅▆▇"
"""Without the full block, which would join sparklines of neighbouring rows."""


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return the newest values as bars, scaled to their peak; a gap is a space.

    >>> sparkline([0, 1, None, 4, 8], 5)
    '▁▁ ▄▇'
    >>> sparkline([1, 9, 2, 8], 2)
    '▇▆'
    """
    if not values or width <= 0:
        return " " * width
    folded = _peaks(values, width)
    peak = max((value for value in folded if value is not None), default=0) or 1
    return "".join(_bar(value, peak) for value in folded)


def _bar(value: float | None, peak: float) -> str:
    if value is None:
        return " "
    return BARS[max(round(value / peak * len(BARS)) - 1, 0)]


def _peaks(values: Sequence[float | None], width: int) -> list[float | None]:
    """Return the maximum of each group, so that peaks stay visible."""
    edges = [len(values) * edge // width for edge in range(width + 1)]
    return [_peak(values[low:high]) for low, high in pairwise(edges)]


def _peak(group: Sequence[float | None]) -> float | None:
    return max((value for value in group if value is not None), default=None)


PARTS = "▏▎▍▌▋▊▉"
EMPTY, MARK = "░", "│"


def gauge(share: float | None, width: int, ink: str, mark: float | None = None) -> Line:
    """Return a share as a bar, exact to an eighth of a cell, with a mark over it.

    >>> "".join(run.text for run in gauge(0.5, 9, "")), gauge(None, 3, "")[0].text
    ('████▌░░░░', '···')
    >>> "".join(run.text for run in gauge(1.2, 4, "", mark=0.9))
    '███│'
    """
    if width <= 0:
        return ()
    if share is None:
        return (TextRun("·" * width, "rule"),)
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    whole, part = divmod(eighths, 8)
    filled = "█" * whole + (PARTS[part - 1] if part else "")
    bar = [(filled, ink), (EMPTY * (width - len(filled)), "rule")]
    if mark is not None:
        at = min(int(mark * width), width - 1)
        before, after = bar[0][0][:at], bar[0][0][at + 1 :]
        gap = EMPTY * (at - len(before))
        rest = EMPTY * (width - at - 1 - len(after))
        bar = [(before, ink), (gap, "rule"), (MARK, "marker")]
        bar += [(after, ink), (rest, "rule")]
    return tuple(TextRun(text, name) for text, name in bar if text)


def split_bar(parts: Sequence[tuple[float, str, str]], width: int) -> Line:
    """Return shares (how much, glyph, ink) side by side; the rest is empty.

    >>> "".join(run.text for run in split_bar([(0.5, "█", ""), (0.25, "▒", "")], 8))
    '████▒▒░░'
    """
    ends = list(accumulate((share for share, _, _ in parts), initial=0.0))
    edges = [round(min(end, 1.0) * width) for end in ends]
    drawn = [
        TextRun(glyph * (high - low), ink)
        for (_, glyph, ink), (low, high) in zip(parts, pairwise(edges), strict=True)
        if high > low
    ]
    return (*drawn, TextRun(EMPTY * (width - edges[-1]), "rule"))


Phase = tuple[str, float | None, str]
"""Name, seconds, ink."""


def waterfall(phases: Sequence[Phase], width: int, glyphs: str = "█") -> Line:
    """Return all known phases as one bar.

    >>> [run.text for run in waterfall([("a", 1, ""), ("b", 3, "")], 8, "░█")]
    ['░░', '██████']
    """
    ends = list(accumulate((seconds or 0.0 for _, seconds, _ in phases), initial=0.0))
    if not ends[-1]:
        return ()
    edges = [round(end / ends[-1] * width) for end in ends]
    return tuple(
        TextRun(glyphs[index % len(glyphs)] * (high - low), ink)
        for index, ((_, _, ink), (low, high)) in enumerate(
            zip(phases, pairwise(edges), strict=True)
        )
        if high > low
    )
