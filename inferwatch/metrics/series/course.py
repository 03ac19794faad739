"""Samples that also tell their course: mean and worst in each bin of a timeline."""

import msgspec
import numpy as np

from collectors.clock import NS_PER_S
from inferwatch.metrics.load.view import Column
from inferwatch.metrics.series.curve import Grid
from inferwatch.metrics.series.history import MOST_COLUMNS, SESSION_FINEST_NS
from inferwatch.metrics.series.quantiles import Ints
from inferwatch.metrics.series.samples import Samples
from inferwatch.metrics.snapshot import Window


class Course(Samples):
    """Bins of a rolling window are made of its samples when asked for.

    Folding stays as cheap as it was. Only those of the session are kept, and samples
    are put there by the thousand.
    """

    def __init__(self) -> None:
        super().__init__()
        self.session = SessionBins()

    def columns(self, window: Window, grid: Grid) -> tuple[Column, Column]:
        """Mean and worst in seconds."""
        if window.value is None:
            self._rows.settle()
            return _columns(self.session.rows(), grid)
        times, values, weights = self._rows.later_than(grid.start_ns - 1)
        return _columns((times, weights, values * weights, values), grid)

    def _count(self, columns: Ints) -> None:
        super()._count(columns)
        self.session.add(columns)


class SessionBins(msgspec.Struct, array_like=True):
    """Count, sum and maximum in bins of half a second, doubled when there are many."""

    bin_ns: int = SESSION_FINEST_NS
    bins: dict[int, tuple[int, int, int]] = {}
    """By its number, the count, sum and maximum of each."""

    def add(self, columns: Ints) -> None:
        """Samples: moment, value, weight."""
        times, values, weights = columns
        indexes, where = np.unique(times // self.bin_ns, return_inverse=True)
        sums = np.zeros((3, len(indexes)), np.int64)
        np.add.at(sums[0], where, weights)
        np.add.at(sums[1], where, values * weights)
        np.maximum.at(sums[2], where, values)
        for index, n, total, worst in zip(
            indexes.tolist(), *sums.tolist(), strict=True
        ):
            _merge(self.bins, index, (n, total, worst))
        while max(self.bins) - min(self.bins) >= MOST_COLUMNS:
            self._double()

    def rows(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Where a bin begins, its count, sum and maximum."""
        rows = np.array(
            [(i * self.bin_ns, *held) for i, held in self.bins.items()], np.int64
        ).reshape(-1, 4)
        times, counts, sums, maxima = rows.T
        return times, counts, sums, maxima

    def _double(self) -> None:
        wide: dict[int, tuple[int, int, int]] = {}
        for index, held in self.bins.items():
            _merge(wide, index // 2, held)
        self.bins, self.bin_ns = wide, self.bin_ns * 2


def _merge(
    bins: dict[int, tuple[int, int, int]], index: int, part: tuple[int, int, int]
) -> None:
    n, total, worst = bins.get(index, (0, 0, 0))
    bins[index] = n + part[0], total + part[1], max(worst, part[2])


def _columns(rows: tuple[Ints, Ints, Ints, Ints], grid: Grid) -> tuple[Column, Column]:
    """Counts, sums and maxima at moments, put into bins."""
    times, counts, sums, maxima = rows
    where = grid.index_of(times)
    inside = where >= 0
    n, total, worst = np.zeros((3, grid.count), np.int64)
    np.add.at(n, where[inside], counts[inside])
    np.add.at(total, where[inside], sums[inside])
    np.maximum.at(worst, where[inside], maxima[inside])
    told = list(zip(n.tolist(), total.tolist(), worst.tolist(), strict=True))
    means = tuple(
        sum_ns / many / NS_PER_S if many else None for many, sum_ns, _ in told
    )
    worsts = tuple(worst_ns / NS_PER_S if many else None for many, _, worst_ns in told)
    return means, worsts
