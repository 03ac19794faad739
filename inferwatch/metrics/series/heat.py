"""How step times are spread: counts on a scale of two cells for each doubling."""

from collections.abc import Iterable

from collectors.contract.clock import NS_PER_S

Heat = tuple[tuple[int, int], ...]
"""Cells and how many steps lie in them, rising; those with none are left out."""


def cell_of(duration_ns: int) -> int:
    """The cell of a duration: the length of its square in bits, which is cheap.

    >>> cell_of(1_000_000), cell_of(1_400_000), cell_of(2_000_000)
    (40, 41, 42)
    """
    return (duration_ns * duration_ns).bit_length()


def begins_s(cell: int) -> float:
    """The least duration of a cell; that of the next one is √2 times as long.

    >>> round(begins_s(41) * 1e3, 3), begins_s(42) / begins_s(40)
    (1.049, 2.0)
    """
    return float(2 ** ((cell - 1) / 2)) / NS_PER_S


def merged(parts: Iterable[Heat]) -> dict[int, int]:
    """The counts of several columns together."""
    counts: dict[int, int] = {}
    for part in parts:
        for cell, count in part:
            counts[cell] = counts.get(cell, 0) + count
    return counts
