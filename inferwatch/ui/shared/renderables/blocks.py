"""Layers stacked in a column of character cells, to an eighth of a cell."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from math import ceil
from typing import NamedTuple


class Texture(StrEnum):
    """How a layer looks without colour: its cells from thin to full."""

    SOLID = "▁▂▃▄▅▆▇█"
    DOTTED = "⣀⣤⣶⣿"
    LIGHT = "░"
    MEDIUM = "▒"
    EMPTY = " "

    @property
    def sample(self) -> str:
        """For legends."""
        return self[-1].replace(" ", "□")


FULL = "█"
MOST = 0.6
"""A layer that fills so much of a cell may colour the whole of its background."""


class Cell(NamedTuple):
    """One character of a chart: ``above`` is the layer that shines through."""

    column: int
    row: int
    glyph: str
    layer: int
    above: int | None = None


def stack(
    tops: Sequence[float], textures: Sequence[Texture], column: int, rows: int
) -> Iterator[Cell]:
    """The cells of one column, from the bottom.

    ``tops`` are the upper edges of the layers in cells, never falling.
    """
    for row in range(min(rows, ceil(max(tops, default=0)))):
        layer = _main_layer(tops, textures, row)
        if layer is None or textures[layer] is Texture.EMPTY:
            return
        glyph = _glyph(textures[layer], tops[layer] - row)
        if glyph is None:
            continue
        above = None
        if textures[layer] is Texture.SOLID and glyph != FULL:
            above = _lowest_above(tops, row + MOST, after=layer)
        if above is not None and textures[above] is Texture.EMPTY:
            above = None
        yield Cell(column, row, glyph, layer, above)


def _main_layer(
    tops: Sequence[float], textures: Sequence[Texture], row: int
) -> int | None:
    """Whose glyph a cell gets: the lowest there, unless it is thin and covered."""
    layer = _lowest_above(tops, row)
    if layer is None or textures[layer] is Texture.SOLID or tops[layer] > row + 0.5:
        return layer
    covering = _lowest_above(tops, row + MOST, after=layer)
    if covering is None or textures[covering] is Texture.EMPTY:
        return layer
    return covering


def _lowest_above(tops: Sequence[float], height: float, after: int = -1) -> int | None:
    """The first layer that reaches noticeably over a height."""
    for layer in range(after + 1, len(tops)):
        if tops[layer] > height + 0.06:
            return layer
    return None


def _glyph(texture: Texture, share: float) -> str | None:
    if share >= 1:
        return texture[-1]
    filled = round(share * len(texture))
    return texture[max(filled, 1) - 1] if filled or len(texture) > 1 else None
