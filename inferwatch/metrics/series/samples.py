"""Values and counts at moments, over any window: their quantiles and sums."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.series.quantiles import (
    CountTable,
    DeferredCounts,
    Ints,
    of_weighted,
)
from inferwatch.metrics.series.recent_rows import Block, RecentRows, SavedRows
from inferwatch.metrics.series.window import Quantiles, Window

MICROSECOND = 1_000


class Samples:
    """Exact quantiles of durations in ns (or of counts, with ``unit`` and cell 1).

    A rolling window holds the samples after ``now - window``, that moment excluded, to
    the nanosecond. The session is exact to one cell. Equal samples of one moment are
    kept as one with a weight: all sequences of a step wait equally long.
    """

    def __init__(self, unit: int = NS_PER_S, cell: int = MICROSECOND) -> None:
        self._unit = unit
        self._table = CountTable(cell)
        self._rows = RecentRows(3, self._count, cell)

    def add(self, t_ns: int, value: int, weight: int = 1) -> None:
        """Add ``weight`` samples of ``value`` at a moment."""
        self._rows.add((t_ns, value, weight))

    def add_many(self, times_ns: Ints, values: Ints) -> None:
        ones = np.ones(len(values), np.int64)
        self._rows.extend(np.vstack((times_ns, values, ones)))

    def quantiles(self, now_ns: int, window: Window) -> Quantiles:
        if window.value is None:
            self._rows.flush()
            return self._table.quantiles(self._unit)
        _, values, weights = self._rows.later_than(now_ns - window.value)
        return of_weighted(values, weights, self._unit)

    def share_up_to(self, most: int, now_ns: int, window: Window) -> float | None:
        """Return the share of a window's samples up to ``most``; None without any."""
        if window.value is None:
            self._rows.flush()
            counted = self._table.up_to(most)
            return counted / self._table.n if self._table.n else None
        _, values, weights = self._rows.later_than(now_ns - window.value)
        whole = int(weights.sum())
        return int(weights[values <= most].sum()) / whole if whole else None

    @property
    def rows(self) -> RecentRows:
        return self._rows

    def restore(
        self, saved: SavedRows, blocks: Sequence[Block], deferred: DeferredCounts
    ) -> None:
        """Restore saved rows; the counts of sealed blocks are fetched later."""
        self._rows.restore(saved, blocks)
        self._table.defer(deferred)

    def _count(self, columns: Ints) -> None:
        _, values, weights = columns
        self._table.add(values, weights)


@dataclass(frozen=True, slots=True)
class CounterTotals:
    """The counts of a window: number of rows, and each column's sum and maximum."""

    rows: int
    sums: dict[str, int]
    maxima: dict[str, int]


class SavedCounters(msgspec.Struct, array_like=True):
    """Counters as checkpoints keep them, without rows; open rows are included."""

    count: int
    sums: list[int]
    maxima: list[int]


class Counters:
    """Rows of counts, one column per name, with sums over the session.

    A rolling window holds the rows after ``now - window``, that moment excluded.
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self._count = 0
        self._sums: Ints = np.zeros(len(names), np.int64)
        self._maxima: Ints = np.zeros(len(names), np.int64)
        self._rows = RecentRows(1 + len(names), self._add_flushed)

    def add(self, t_ns: int, *counts: int) -> None:
        """Add one count for each name, at a moment."""
        self._rows.add((t_ns, *counts))

    def over(self, now_ns: int, window: Window) -> CounterTotals:
        if window.value is None:
            self._rows.flush()
            return self._total(self._count, self._sums, self._maxima)
        return self.after(now_ns - window.value)

    def after(self, t_ns: int) -> CounterTotals:
        """Return the counts after a moment, at most five minutes ago."""
        return self._total(*self._rows.totals_after(t_ns))

    @property
    def rows(self) -> RecentRows:
        return self._rows

    def saved(self) -> SavedCounters:
        """Return the state that checkpoints keep; rows are saved apart."""
        return SavedCounters(self._count, self._sums.tolist(), self._maxima.tolist())

    def restore(
        self, saved: SavedCounters, rows: SavedRows, blocks: Sequence[Block]
    ) -> None:
        if not len(saved.sums) == len(saved.maxima) == len(self._names):
            raise msgspec.ValidationError("these are not the counts that were saved")
        self._count = saved.count
        self._sums = np.array(saved.sums, np.int64)
        self._maxima = np.array(saved.maxima, np.int64)
        self._rows.restore(rows, blocks)

    def _total(self, rows: int, sums: Ints, maxima: Ints) -> CounterTotals:
        return CounterTotals(
            rows,
            dict(zip(self._names, sums.tolist(), strict=True)),
            dict(zip(self._names, maxima.tolist(), strict=True)),
        )

    def _add_flushed(self, columns: Ints) -> None:
        counts = columns[1:]
        self._count += counts.shape[1]
        self._sums = self._sums + counts.sum(axis=1)
        self._maxima = np.maximum(self._maxima, counts.max(axis=1))
