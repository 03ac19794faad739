"""Durations counted by time and by value: all that resampling needs of millions.

A cell is a thousandth of its value wide (ten bits of a double's fraction, as in
:mod:`inferwatch.metrics.series.quantiles`), so the memory
is fixed whatever the session.
"""

from dataclasses import dataclass

import numpy as np

from collectors.clock import NS_PER_S
from inferwatch.compare.rhythm import BINS, PIECES, Floats, memories
from inferwatch.metrics.series.quantiles import CELL_SHIFT, Ints

BUFFERED = 500_000
"""Values that are gathered before they are counted at one go."""
FEW = 5_000
"""So many are counted as they are."""
FIRST_CELL = int(np.float64(1.0).view(np.int64)) >> CELL_SHIFT
LAST_CELL = int(np.float64(1e14).view(np.int64)) >> CELL_SHIFT
"""A day and more, in ns."""
CELLS = LAST_CELL - FIRST_CELL + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """One metric's values in one session."""

    counts: Ints
    """Pieces of the span by cells."""
    values_s: Floats
    """What a cell's values are taken for, ascending."""
    sums_s: Floats
    """Exact, one a bin."""
    bins: Floats
    """How many values, one a bin."""

    @property
    def n(self) -> int:
        """How many values."""
        return int(self.bins.sum())

    @property
    def memories(self) -> float:
        """How many times its own memory the span is long."""
        means = np.full(BINS, np.nan)
        np.divide(self.sums_s, self.bins, out=means, where=self.bins > 0)
        return memories(means)

    def quantile_s(self, share: float) -> float:
        """Nearest rank, as everywhere; there must be a value."""
        upto = np.cumsum(self.counts.sum(axis=0))
        rank = max(int(np.ceil(share * upto[-1] - 1e-9)), 1)
        return float(self.values_s[np.searchsorted(upto, rank)])


class Counter:
    """Counts values as they are read."""

    def __init__(self) -> None:
        self._counts = np.zeros(PIECES * CELLS, np.int32)
        self._sums_ns, self._bins = np.zeros(BINS), np.zeros(BINS)
        self._waiting: list[tuple[Ints, Ints]] = []
        self._buffered = 0

    def add(self, place: Ints, values_ns: Ints) -> None:
        """Values and the bin each is in; those out of range are left out."""
        within = (place >= 0) & (place < BINS)
        self._waiting.append((place[within], values_ns[within]))
        self._buffered += len(place)
        if self._buffered > BUFFERED:
            self._count()

    def _count(self) -> None:
        if not self._waiting:
            return
        place = np.concatenate([each for each, _ in self._waiting])
        values = np.concatenate([each for _, each in self._waiting])
        self._waiting, self._buffered = [], 0
        at = place // (BINS // PIECES) * CELLS + cells_of(values)
        np.add.at(self._counts, at, 1)
        self._sums_ns += np.bincount(place, values, minlength=BINS)
        self._bins += np.bincount(place, minlength=BINS)

    def counted(self) -> Counted:
        """Only the cells that hold something."""
        self._count()
        counts = self._counts.reshape(PIECES, CELLS)
        held = np.flatnonzero(counts.any(axis=0))
        return Counted(
            counts=counts[:, held].astype(np.int64),
            values_s=middle_of(held) / NS_PER_S,
            sums_s=self._sums_ns / NS_PER_S,
            bins=self._bins,
        )


def cells_of(values_ns: Ints) -> Ints:
    """Below a nanosecond is one cell, too."""
    bits = np.maximum(values_ns, 1).astype(np.float64).view(np.int64)
    return np.asarray(np.minimum((bits >> CELL_SHIFT) - FIRST_CELL, CELLS - 1))


def middle_of(cells: Ints) -> Floats:
    """The middle of each, in ns; whole below a thousand."""
    bits = ((cells + FIRST_CELL) << CELL_SHIFT) + (1 << (CELL_SHIFT - 1))
    middles = bits.view(np.float64)
    return np.where(middles < 1024, np.floor(middles), middles)


def counted(place: Ints, values_ns: Ints) -> Counted:
    """Of values that are there at once: exact, unless they are many."""
    within = (place >= 0) & (place < BINS)
    place, values_ns = place[within], values_ns[within]
    if len(values_ns) > FEW:
        counter = Counter()
        counter.add(place, values_ns)
        return counter.counted()
    values, cells = np.unique(values_ns, return_inverse=True)
    at = place // (BINS // PIECES) * len(values) + cells
    counts = np.bincount(at, minlength=PIECES * len(values))
    sums_ns = np.bincount(place, values_ns, minlength=BINS).astype(np.float64)
    return Counted(
        counts=counts.reshape(PIECES, len(values)),
        values_s=values / NS_PER_S,
        sums_s=sums_ns / NS_PER_S,
        bins=np.bincount(place, minlength=BINS).astype(np.float64),
    )
