"""Durations counted by block and by value: all that resampling needs of millions.

A cell is a thousandth of its value wide (ten bits of a double's fraction, as in
:mod:`inferwatch.metrics.quantiles`), so the memory is fixed whatever the session.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collectors.clock import NS_PER_S
from inferwatch.metrics.quantiles import CELL_SHIFT, Ints

Floats = npt.NDArray[np.float64]

BUFFERED = 500_000
"""Values that are gathered before they are counted at one go."""
FIRST_CELL = int(np.float64(1.0).view(np.int64)) >> CELL_SHIFT
LAST_CELL = int(np.float64(1e14).view(np.int64)) >> CELL_SHIFT
"""A day and more, in ns."""
CELLS = LAST_CELL - FIRST_CELL + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """One metric's values in one session."""

    counts: Ints
    """Blocks by cells."""
    values_s: Floats
    """What a cell's values are taken for, ascending."""
    sums_s: Floats
    """Exact, one a block."""

    @property
    def n(self) -> int:
        """How many values."""
        return int(self.counts.sum())

    @property
    def per_block(self) -> Ints:
        """How many, block by block."""
        return np.asarray(self.counts.sum(axis=1), np.int64)

    def quantile_s(self, share: float) -> float | None:
        """Nearest rank, as everywhere; None of nothing."""
        upto = np.cumsum(self.counts.sum(axis=0))
        if not len(upto):
            return None
        rank = max(int(np.ceil(share * upto[-1] - 1e-9)), 1)
        return float(self.values_s[np.searchsorted(upto, rank)])

    @property
    def mean_s(self) -> float | None:
        """Exact; None of nothing."""
        return float(self.sums_s.sum()) / self.n if self.n else None


class Counter:
    """Counts values as they are read."""

    def __init__(self, blocks: int) -> None:
        self._counts = np.zeros(blocks * CELLS, np.int64)
        self._sums_ns = np.zeros(blocks)
        self._blocks = blocks
        self._waiting: list[tuple[Ints, Ints]] = []
        self._buffered = 0

    def add(self, block: Ints, values_ns: Ints) -> None:
        """Values and the block each is in; a block out of range is left out."""
        within = (block >= 0) & (block < self._blocks)
        self._waiting.append((block[within], values_ns[within]))
        self._buffered += len(block)
        if self._buffered > BUFFERED:
            self._count()

    def _count(self) -> None:
        if not self._waiting:
            return
        block = np.concatenate([each for each, _ in self._waiting])
        values = np.concatenate([each for _, each in self._waiting])
        self._waiting, self._buffered = [], 0
        at = block * CELLS + cells_of(values)
        self._counts += np.bincount(at, minlength=len(self._counts))
        self._sums_ns += np.bincount(block, values, minlength=self._blocks)

    def counted(self) -> Counted:
        """Only the cells that hold something."""
        self._count()
        counts = self._counts.reshape(self._blocks, CELLS)
        held = np.flatnonzero(counts.any(axis=0))
        return Counted(
            counts=counts[:, held],
            values_s=middle_of(held) / NS_PER_S,
            sums_s=self._sums_ns / NS_PER_S,
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


def counted(block: Ints, values_ns: Ints, blocks: int) -> Counted:
    """Of values that are there at once: exact, unless there are too many."""
    within = (block >= 0) & (block < blocks)
    block, values_ns = block[within], values_ns[within]
    if len(values_ns) > BUFFERED // blocks:
        counter = Counter(blocks)
        counter.add(block, values_ns)
        return counter.counted()
    values, cells = np.unique(values_ns, return_inverse=True)
    at = block * len(values) + cells
    counts = np.bincount(at, minlength=blocks * len(values))
    sums = np.bincount(block, values_ns, minlength=blocks)
    return Counted(
        counts=counts.reshape(blocks, len(values)),
        values_s=values / NS_PER_S,
        sums_s=sums / NS_PER_S,
    )
