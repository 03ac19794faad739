"""Quantiles that are observed values.

The p-quantile of n values is the one at rank ceil(p·n) when they are sorted (nearest
rank): always an observation, never a number between two. Windows and the whole session
use the same definition.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inferwatch.metrics.series.window import Quantiles

Ints = npt.NDArray[np.int64]

PERCENTS = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}

CELL_SHIFT = 42
"""Keeps ten bits of a double's fraction: cells a thousandth of their value wide."""


def ranks(n: int) -> list[int]:
    """Return the rank of each of PERCENTS among n sorted values, counted from 1."""
    return [-(-n * percent // 100) for percent in PERCENTS.values()]


def weak_percentiles(n: int) -> tuple[str, ...]:
    """Return the percentiles with fewer than 10/(1-p) values."""
    return tuple(
        name for name, percent in PERCENTS.items() if n * (100 - percent) < 1000
    )


def of_weighted(values: Ints, weights: Ints, unit: int) -> Quantiles:
    """Return the quantiles of values with weights, divided by ``unit``."""
    n = int(weights.sum())
    if n == 0:
        return Quantiles()
    picked = [*_values_at(values, weights, ranks(n)), int(values.max())]
    return describe(n, int(values @ weights), picked, unit)


def describe(n: int, total: int, picked: Sequence[int], unit: int) -> Quantiles:
    """Return quantiles, given the values at PERCENTS and the maximum."""
    p50, p90, p95, p99, maximum = (value / unit for value in picked)
    return Quantiles(
        n=n,
        mean=total / n / unit,
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=maximum,
        weak=weak_percentiles(n),
    )


def _values_at(values: Ints, weights: Ints, wanted: Sequence[int]) -> list[int]:
    """Return the values at these ranks, without sorting them all.

    A double's bits grow with its value, so their upper part defines narrow cells, finer
    for small values. Only the cells that hold a wanted rank are sorted. Zeros are in
    the cell of 1, which has no other values.
    """
    cells = np.maximum(values, 1).astype(np.float64).view(np.int64) >> CELL_SHIFT
    cells -= cells.min()
    upto = np.cumsum(np.bincount(cells, weights))
    sorted_cells: dict[int, tuple[Ints, Ints]] = {}
    result = []
    for rank in wanted:
        cell = int(np.searchsorted(upto, rank))
        if cell not in sorted_cells:
            inside = cells == cell
            sorted_cells[cell] = _sorted(values[inside], weights[inside])
        ordered, upto_each = sorted_cells[cell]
        before = int(upto[cell - 1]) if cell else 0
        result.append(int(ordered[np.searchsorted(upto_each, rank - before)]))
    return result


def _sorted(values: Ints, weights: Ints) -> tuple[Ints, Ints]:
    order = np.argsort(values)
    return values[order], np.cumsum(weights[order])


DENSE_CELLS = 1_000_000
BLOCK = 1_000
TAIL_LIMIT = 100_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellCounts:
    """The counts that some values add to a CountTable."""

    cells: Ints
    """Sorted and unique; values below 0 are in cell 0."""
    counts: Ints
    total: int
    maximum: int


DeferredCounts = Callable[[], list[CellCounts]]


def counts_of(values: Ints, weights: Ints, cell: int) -> CellCounts:
    cells, which = np.unique(np.maximum(values // cell, 0), return_inverse=True)
    counts = np.zeros(len(cells), np.int64)
    np.add.at(counts, which, weights)
    return CellCounts(
        cells=cells,
        counts=counts,
        total=int((values * weights).sum()),
        maximum=max(0, int(values.max(initial=0))),
    )


class CountTable:
    """The values of a whole session in fixed memory, exact to one cell.

    ``cell`` is its width in the values' unit: one microsecond for durations. Up to a
    million cells (a second) are in a table; larger values, which are few, in a sorted
    list of cells. Should that list outgrow its limit, its cells become ten times wider.
    Count, sum and maximum are exact.
    """

    def __init__(self, cell: int) -> None:
        self.n = 0
        self._cell = cell
        self._sum = 0
        self._max = 0
        self._dense: Ints = np.zeros(0, np.int64)
        self._blocks = np.zeros(DENSE_CELLS // BLOCK, np.int64)
        self._tail: Ints = np.zeros(0, np.int64)
        self._tail_counts: Ints = np.zeros(0, np.int64)
        self._tail_width = 1
        self._deferred: DeferredCounts | None = None

    @property
    def cell(self) -> int:
        return self._cell

    def defer(self, deferred: DeferredCounts) -> None:
        """Set a function that fetches the counts when quantiles are first needed."""
        self._deferred = deferred

    def add_counts(self, counts: CellCounts) -> None:
        self.n += int(counts.counts.sum())
        self._sum += counts.total
        self._max = max(self._max, counts.maximum)
        small = int(np.searchsorted(counts.cells, DENSE_CELLS))
        self._add_small(counts.cells[:small], counts.counts[:small])
        if small < len(counts.cells):
            self._add_tail(counts.cells[small:], counts.counts[small:])

    def add(self, values: Ints, weights: Ints) -> None:
        """Count each value as many times as its weight says."""
        self.n += int(weights.sum())
        self._sum += int((values * weights).sum())
        self._max = max(self._max, int(values.max(initial=0)))
        cells = np.maximum(values // self._cell, 0)
        small = cells < DENSE_CELLS
        self._add_small(cells[small], weights[small])
        if not small.all():
            self._add_tail(cells[~small], weights[~small])

    def quantiles(self, unit: int) -> Quantiles:
        """Return the quantiles of all values, each the lower edge of its cell."""
        self._fetch()
        if self.n == 0:
            return Quantiles()
        picked = [self._cell_at(rank) * self._cell for rank in ranks(self.n)]
        return describe(self.n, self._sum, [*picked, self._max], unit)

    def up_to(self, most: int) -> int:
        """Return how many values are at most ``most``, exact to one cell."""
        self._fetch()
        cell = most // self._cell
        small = self._dense[: cell + 1].sum()
        return int(small + self._tail_counts[self._tail <= cell].sum())

    def _fetch(self) -> None:
        if self._deferred is not None:
            for counts in self._deferred():
                self.add_counts(counts)
            self._deferred = None

    def _cell_at(self, rank: int) -> int:
        """Return the cell of the value at a rank."""
        before = np.cumsum(self._blocks)
        block = int(np.searchsorted(before, rank))
        if block == len(before):
            above = np.cumsum(self._tail_counts) + before[-1]
            return int(self._tail[np.searchsorted(above, rank)])
        start = block * BLOCK
        inside = np.cumsum(self._dense[start : start + BLOCK])
        left = rank - (int(before[block - 1]) if block else 0)
        return start + int(np.searchsorted(inside, left))

    def _add_small(self, cells: Ints, weights: Ints) -> None:
        """Count small cells; the table doubles when it has to grow."""
        needed = int(cells.max(initial=-1)) // BLOCK * BLOCK + BLOCK
        if needed > len(self._dense):
            size = min(max(needed, 2 * len(self._dense)), DENSE_CELLS)
            grown = np.zeros(size, np.int64)
            grown[: len(self._dense)] = self._dense
            self._dense = grown
        np.add.at(self._dense, cells, weights)
        np.add.at(self._blocks, cells // BLOCK, weights)

    def _add_tail(self, cells: Ints, weights: Ints) -> None:
        self._tail = np.concatenate((self._tail, cells))
        self._tail_counts = np.concatenate((self._tail_counts, weights))
        self._merge_tail()
        while len(self._tail) > TAIL_LIMIT:
            self._tail_width *= 10
            self._merge_tail()

    def _merge_tail(self) -> None:
        """Sort the list of large cells, and join equal ones."""
        coarse = self._tail // self._tail_width * self._tail_width
        self._tail, which = np.unique(coarse, return_inverse=True)
        counts = np.zeros(len(self._tail), np.int64)
        np.add.at(counts, which, self._tail_counts)
        self._tail_counts = counts
