"""One metric's samples, over any window."""

from collections.abc import Sequence

import numpy as np

from collectors.clock import NS_PER_S
from inferwatch.metrics.series.count_table import CountTable, Owed
from inferwatch.metrics.series.quantiles import Ints, of_weighted
from inferwatch.metrics.series.recent import Block, RecentRows, SavedRows
from inferwatch.metrics.snapshot import Quantiles, Window

MICROSECOND = 1_000


class Samples:
    """Exact quantiles of durations in ns (or of counts, with ``unit`` and cell 1).

    A rolling window holds the samples after ``now - window``, that moment excluded,
    to the nanosecond. The session is exact to one cell. Equal samples of one moment
    are kept as one with a weight: all sequences of a step wait equally long.
    """

    def __init__(self, unit: int = NS_PER_S, cell: int = MICROSECOND) -> None:
        self._unit = unit
        self._table = CountTable(cell)
        self._rows = RecentRows(3, self._count)

    def add(self, t_ns: int, value: int, weight: int = 1) -> None:
        """``weight`` samples of ``value`` at a moment."""
        self._rows.add((t_ns, value, weight))

    def add_many(self, times_ns: Ints, values: Ints) -> None:
        """A sample for each of these moments."""
        ones = np.ones(len(values), np.int64)
        self._rows.extend(np.vstack((times_ns, values, ones)))

    def quantiles(self, now_ns: int, window: Window) -> Quantiles:
        """Of the samples in a window that ends now."""
        if window.value is None:
            self._rows.settle()
            return self._table.quantiles(self._unit)
        _, values, weights = self._rows.later_than(now_ns - window.value)
        return of_weighted(values, weights, self._unit)

    @property
    def rows(self) -> RecentRows:
        """What a rolling window looks at."""
        return self._rows

    def restore(self, saved: SavedRows, blocks: Sequence[Block], owed: Owed) -> None:
        """Be as it was; what was counted up to the last sealed block is owed."""
        self._rows.restore(saved, blocks)
        self._table.owe(owed)

    def _count(self, columns: Ints) -> None:
        _, values, weights = columns
        self._table.add(values, weights)
