"""Values and counts at moments, over any window: their quantiles and sums.

Single rows are kept for five minutes, the longest rolling window; the session is
counted as rows are flushed.
"""

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception's name
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.series.quantiles import (
    CountTable,
    DeferredCounts,
    Ints,
    of_weighted,
)
from inferwatch.metrics.series.window import Quantiles, Window

KEPT_NS = max(window.value for window in Window if window.value is not None)
BLOCK_ROWS = 1_024


class Block(Protocol):
    """Rows as one array per column, with their sums and maxima."""

    @property
    def rows(self) -> int: ...

    @property
    def columns(self) -> Ints:
        """The rows, one array per column."""
        ...

    @property
    def first_ns(self) -> int: ...

    @property
    def last_ns(self) -> int: ...

    @property
    def sums(self) -> Ints:
        """The sum of each column except the time."""
        ...

    @property
    def maxima(self) -> Ints:
        """The largest value of each column except the time, at least 0."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class SealedBlock:
    """A full block of rows in memory, which never changes again."""

    columns: Ints
    first_ns: int
    last_ns: int
    sums: Ints
    maxima: Ints

    @property
    def rows(self) -> int:
        return int(self.columns.shape[1])


class SavedRows(msgspec.Struct, array_like=True, frozen=True):
    """A RecentRows as checkpoints keep it, without its blocks."""

    sealed: int
    """Number of blocks so far; the latest ones are kept."""
    kept: int
    cell: int | None
    """As in SealedBlocks."""


class SealedBlocks(NamedTuple):
    """The sealed blocks of a RecentRows, to be saved."""

    sealed: int
    """Number of blocks so far."""
    latest: tuple[Block, ...]
    """The blocks that a window may still reach."""
    cell: int | None
    """Width of the cells in which values are counted; None if they are not."""


class RecentRows:
    """Keeps each row for five minutes; the first column is its time.

    Rows are kept in blocks that know their sums, so a window reads single rows only of
    the blocks at its edge. Times need not be in order. Every row is passed to
    ``on_flush`` once, to be counted for the whole session.
    """

    def __init__(
        self, width: int, on_flush: Callable[[Ints], None], cell: int | None = None
    ) -> None:
        self._cell = cell
        self._width = width
        self._on_flush = on_flush
        self._blocks: deque[Block] = deque()
        self._open = array("q")
        self._packed = Struct(f"{width}q").pack
        self._open_until = width * BLOCK_ROWS
        self._flushed_rows = 0
        self._sealed = 0

    def add(self, row: Sequence[int]) -> None:
        """Add one row.

        Raises:
            OverflowError: a number takes more than 64 bits.
        """
        try:
            packed = self._packed(*row)
        except StructError as error:
            raise OverflowError(f"no row can hold {row}") from error
        self._open.frombytes(packed)  # "extend" takes five times as long
        if len(self._open) >= self._open_until:
            self._seal()

    def extend(self, columns: Ints) -> None:
        self._open.frombytes(columns.T.tobytes())
        if len(self._open) >= self._open_until:
            self._seal()

    def release(self) -> None:
        """Stop passing rows to ``on_flush``, and drop the reference to it."""
        self._on_flush = _ignore

    def later_than(self, t_ns: int, columns: Sequence[int] | None = None) -> Ints:
        """Return the rows after a moment, one array for each column, or of some."""
        which = slice(None) if columns is None else columns
        whole, part = self.parts_after(t_ns, which)
        kept = (block.columns[which] for block in whole)
        return np.concatenate([*kept, part], axis=1)

    def totals_after(self, t_ns: int) -> tuple[int, Ints, Ints]:
        """Return count, sums and maxima of the rows after a moment.

        The time has no sum and no maximum.
        """
        if not self._blocks and not self._open:
            return 0, *np.zeros((2, self._width - 1), np.int64)
        whole, part = self.parts_after(t_ns)
        count = part.shape[1] + sum(block.rows for block in whole)
        sums = np.array([*(block.sums for block in whole), part[1:].sum(axis=1)])
        maxima = np.array([*(block.maxima for block in whole), _maxima(part)])
        return count, sums.sum(axis=0), maxima.max(axis=0)

    def parts_after(
        self, t_ns: int, which: slice | Sequence[int] = slice(None)
    ) -> tuple[list[Block], Ints]:
        """Return the blocks entirely after a moment, and later rows of other blocks.

        Of these rows only some columns, the time among them, where so asked.
        """
        whole = [block for block in self._blocks if block.first_ns > t_ns]
        rest = self._open_columns()[which]
        rest = rest[:, rest[0] > t_ns]
        edge = (b for b in self._blocks if b.first_ns <= t_ns < b.last_ns)
        parts = [b.columns[which][:, b.columns[0] > t_ns] for b in edge]
        return whole, np.concatenate([*parts, rest], axis=1) if parts else rest

    def flush(self) -> None:
        """Pass the rows to ``on_flush`` that were not passed yet."""
        fresh = self._open_columns()[:, self._flushed_rows :]
        if fresh.size:
            self._on_flush(fresh)
        self._flushed_rows += fresh.shape[1]

    def saved(self) -> SavedRows:
        """Seal the open rows, and return the state to restore with the blocks."""
        if self._open:
            self._seal()
        return SavedRows(sealed=self._sealed, kept=len(self._blocks), cell=self._cell)

    @property
    def blocks(self) -> SealedBlocks:
        """The blocks sealed so far that windows may still reach."""
        return SealedBlocks(self._sealed, tuple(self._blocks), self._cell)

    def restore(self, saved: SavedRows, blocks: Sequence[Block]) -> None:
        if len(blocks) != saved.kept:
            raise msgspec.ValidationError("these are not the rows that were saved")
        self._blocks = deque(blocks)
        self._sealed = saved.sealed

    def _open_columns(self) -> Ints:
        return np.array(self._open, np.int64).reshape(-1, self._width).T

    def _seal(self) -> None:
        """Seal the open block, and drop blocks that are out of every window."""
        self.flush()
        columns = np.ascontiguousarray(self._open_columns())
        times = columns[0]
        self._blocks.append(
            SealedBlock(
                columns=columns,
                first_ns=int(times.min()),
                last_ns=int(times.max()),
                sums=columns[1:].sum(axis=1),
                maxima=_maxima(columns),
            )
        )
        self._sealed += 1
        self._open, self._flushed_rows = array("q"), 0
        oldest_ns = self._blocks[-1].last_ns - KEPT_NS
        while self._blocks[0].last_ns <= oldest_ns:
            self._blocks.popleft()


def _ignore(_: Ints) -> None:
    """Discard rows that are no longer counted."""


def _maxima(columns: Ints) -> Ints:
    maxima: Ints = columns[1:].max(axis=1, initial=0)
    return maxima


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
        self.rows = RecentRows(3, self._count, cell)
        """Time, value and weight of each sample."""

    def add(self, t_ns: int, value: int, weight: int = 1) -> None:
        self.rows.add((t_ns, value, weight))

    def add_many(self, times_ns: Ints, values: Ints) -> None:
        ones = np.ones(len(values), np.int64)
        self.rows.extend(np.vstack((times_ns, values, ones)))

    def quantiles(self, now_ns: int, window: Window) -> Quantiles:
        if window.value is None:
            self.rows.flush()
            return self._table.quantiles(self._unit)
        _, values, weights = self.rows.later_than(now_ns - window.value)
        return of_weighted(values, weights, self._unit)

    def share_up_to(self, most: int, now_ns: int, window: Window) -> float | None:
        """Return the share of a window's samples up to ``most``; None without any."""
        if window.value is None:
            self.rows.flush()
            counted = self._table.up_to(most)
            return counted / self._table.n if self._table.n else None
        _, values, weights = self.rows.later_than(now_ns - window.value)
        whole = int(weights.sum())
        return int(weights[values <= most].sum()) / whole if whole else None

    def restore(
        self, saved: SavedRows, blocks: Sequence[Block], deferred: DeferredCounts
    ) -> None:
        """Restore saved rows; the counts of sealed blocks are fetched later."""
        self.rows.restore(saved, blocks)
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
        self.rows = RecentRows(1 + len(names), self._add_flushed)

    def add(self, t_ns: int, *counts: int) -> None:
        """Add one count for each name, at a moment."""
        self.rows.add((t_ns, *counts))

    def over(self, now_ns: int, window: Window) -> CounterTotals:
        if window.value is None:
            self.rows.flush()
            return self._total(self._count, self._sums, self._maxima)
        return self.after(now_ns - window.value)

    def after(self, t_ns: int) -> CounterTotals:
        """Return the counts after a moment, at most five minutes ago."""
        return self._total(*self.rows.totals_after(t_ns))

    def saved(self) -> SavedCounters:
        """Return the state for a checkpoint, without rows."""
        return SavedCounters(self._count, self._sums.tolist(), self._maxima.tolist())

    def restore(
        self, saved: SavedCounters, rows: SavedRows, blocks: Sequence[Block]
    ) -> None:
        if not len(saved.sums) == len(saved.maxima) == len(self._names):
            raise msgspec.ValidationError("these are not the counts that were saved")
        self._count = saved.count
        self._sums = np.array(saved.sums, np.int64)
        self._maxima = np.array(saved.maxima, np.int64)
        self.rows.restore(rows, blocks)

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
