"""Rows of integers of the last five minutes, the longest rolling window."""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from inferwatch.metrics.series.quantiles import Ints
from inferwatch.metrics.series.window import Window

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
        """Sums of all columns but the time, as are the maxima."""
        ...

    @property
    def maxima(self) -> Ints:
        """The largest value of each column, at least 0."""
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
        self._open_until = width * BLOCK_ROWS
        self._flushed_rows = 0
        self._sealed = 0

    def add(self, row: Iterable[int]) -> None:
        self._open.extend(row)
        if len(self._open) >= self._open_until:
            self._seal()

    def extend(self, columns: Ints) -> None:
        self._open.frombytes(columns.T.tobytes())
        if len(self._open) >= self._open_until:
            self._seal()

    def release(self) -> None:
        """Stop passing rows to ``on_flush``, and drop the reference to it."""
        self._on_flush = _ignore

    def later_than(self, t_ns: int) -> Ints:
        """Return the rows after a moment, one array per column."""
        whole, part = self.parts_after(t_ns)
        return np.concatenate([*(block.columns for block in whole), part], axis=1)

    def totals_after(self, t_ns: int) -> tuple[int, Ints, Ints]:
        """Return count, sums and maxima of the rows after a moment.

        The time has no sum and no maximum.
        """
        whole, part = self.parts_after(t_ns)
        count = part.shape[1] + sum(block.rows for block in whole)
        sums = np.array([*(block.sums for block in whole), part[1:].sum(axis=1)])
        maxima = np.array([*(block.maxima for block in whole), _maxima(part)])
        return count, sums.sum(axis=0), maxima.max(axis=0)

    def parts_after(self, t_ns: int) -> tuple[list[Block], Ints]:
        """Return the blocks entirely after a moment, and later rows of other blocks."""
        whole = [block for block in self._blocks if block.first_ns > t_ns]
        edge = [b.columns for b in self._blocks if b.first_ns <= t_ns < b.last_ns]
        rest = np.concatenate([*edge, self._open_columns()], axis=1)
        return whole, rest[:, rest[0] > t_ns]

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
