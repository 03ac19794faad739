"""Named counts that add up over any window."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from inferwatch.metrics.series.quantiles import Ints
from inferwatch.metrics.series.recent import Block, RecentRows, SavedRows
from inferwatch.metrics.snapshot import Window


@dataclass(frozen=True, slots=True)
class Total:
    """What a window adds up to."""

    rows: int
    sums: dict[str, int]
    maxima: dict[str, int]


class SavedTallies(msgspec.Struct, array_like=True):
    """Tallies but for their rows, those of open rows included."""

    count: int
    sums: list[int]
    maxima: list[int]


class Tallies:
    """Rows of counts, one column a name; the session's sums never forget.

    A rolling window holds the rows after ``now - window``, that moment excluded.
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self._count = 0
        self._sums: Ints = np.zeros(len(names), np.int64)
        self._maxima: Ints = np.zeros(len(names), np.int64)
        self._rows = RecentRows(1 + len(names), self._settle)

    def add(self, t_ns: int, *counts: int) -> None:
        """One count for each name, at a moment."""
        self._rows.add((t_ns, *counts))

    def over(self, now_ns: int, window: Window) -> Total:
        """Of a window that ends now."""
        if window.value is None:
            self._rows.settle()
            return self._total(self._count, self._sums, self._maxima)
        count, sums, maxima = self._rows.totals_after(now_ns - window.value)
        return self._total(count, sums, maxima)

    @property
    def rows(self) -> RecentRows:
        """What a rolling window looks at."""
        return self._rows

    def saved(self) -> SavedTallies:
        """Besides the rows."""
        return SavedTallies(self._count, self._sums.tolist(), self._maxima.tolist())

    def restore(
        self, saved: SavedTallies, rows: SavedRows, blocks: Sequence[Block]
    ) -> None:
        """Be as it was."""
        if not len(saved.sums) == len(saved.maxima) == len(self._names):
            raise msgspec.ValidationError("these are not the counts that were saved")
        self._count = saved.count
        self._sums = np.array(saved.sums, np.int64)
        self._maxima = np.array(saved.maxima, np.int64)
        self._rows.restore(rows, blocks)

    def _total(self, rows: int, sums: Ints, maxima: Ints) -> Total:
        return Total(
            rows,
            dict(zip(self._names, sums.tolist(), strict=True)),
            dict(zip(self._names, maxima.tolist(), strict=True)),
        )

    def _settle(self, columns: Ints) -> None:
        counts = columns[1:]
        self._count += counts.shape[1]
        self._sums = self._sums + counts.sum(axis=1)
        self._maxima = np.maximum(self._maxima, counts.max(axis=1))
