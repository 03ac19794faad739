"""A trend in one row."""

from collections.abc import Sequence
from itertools import pairwise

BARS = "▁▂▃▄▅▆▇"
"""Not the full block: rows of trends would flow together."""


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The newest values, scaled from zero to their peak; a gap is a space.

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
    """The worst of each group, so that no spike is folded away."""
    edges = [len(values) * edge // width for edge in range(width + 1)]
    return [_peak(values[low:high]) for low, high in pairwise(edges)]


def _peak(group: Sequence[float | None]) -> float | None:
    return max((value for value in group if value is not None), default=None)
