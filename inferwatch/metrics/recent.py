"""Rows of integers of the last five minutes, the longest rolling window."""

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from inferwatch.metrics.quantiles import Ints
from inferwatch.metrics.snapshot import Window

KEPT_NS = max(window.value for window in Window if window.value is not None)
BLOCK_ROWS = 1_024


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Rows side by side, one array a column, and what they add up to."""

    columns: Ints
    first_ns: int
    last_ns: int
    sums: Ints
    maxima: Ints


class RecentRows:
    """Keeps each row for five minutes; the first column is its time.

    Rows are kept in blocks that know their sums, so that a window has to look closer
    only at the blocks on its edge. Times need not be in order. Every row is handed to
    ``settle`` once: whoever keeps the whole session counts it there.
    """

    def __init__(self, width: int, settle: Callable[[Ints], None]) -> None:
        self._width = width
        self._settle = settle
        self._blocks: deque[Block] = deque()
        self._open = array("q")
        self._open_until = width * BLOCK_ROWS
        self._settled_rows = 0

    def add(self, row: Iterable[int]) -> None:
        """Keep one row of ``width`` integers."""
        self._open.extend(row)
        if len(self._open) >= self._open_until:
            self._seal()

    def extend(self, columns: Ints) -> None:
        """Keep many at once."""
        self._open.frombytes(columns.T.tobytes())
        if len(self._open) >= self._open_until:
            self._seal()

    def later_than(self, t_ns: int) -> Ints:
        """The rows after a moment, one array a column."""
        whole, part = self._cut(t_ns)
        return np.concatenate([*(block.columns for block in whole), part], axis=1)

    def totals_after(self, t_ns: int) -> tuple[int, Ints, Ints]:
        """Of the rows after a moment: count, and sums and maxima but of the time."""
        whole, part = self._cut(t_ns)
        count = part.shape[1] + sum(block.columns.shape[1] for block in whole)
        sums = np.array([*(block.sums for block in whole), part[1:].sum(axis=1)])
        maxima = np.array([*(block.maxima for block in whole), _maxima(part)])
        return count, sums.sum(axis=0), maxima.max(axis=0)

    def settle(self) -> None:
        """Hand on what was not yet handed on."""
        fresh = self._open_columns()[:, self._settled_rows :]
        if fresh.size:
            self._settle(fresh)
        self._settled_rows += fresh.shape[1]

    def _cut(self, t_ns: int) -> tuple[list[Block], Ints]:
        """Blocks entirely after a moment, and the rows after it of all others."""
        whole = [block for block in self._blocks if block.first_ns > t_ns]
        edge = [b.columns for b in self._blocks if b.first_ns <= t_ns < b.last_ns]
        rest = np.concatenate([*edge, self._open_columns()], axis=1)
        return whole, rest[:, rest[0] > t_ns]

    def _open_columns(self) -> Ints:
        return np.array(self._open, np.int64).reshape(-1, self._width).T

    def _seal(self) -> None:
        """Close the open block; those that no window reaches any more go."""
        self.settle()
        columns = np.ascontiguousarray(self._open_columns())
        times = columns[0]
        self._blocks.append(
            Block(
                columns=columns,
                first_ns=int(times.min()),
                last_ns=int(times.max()),
                sums=columns[1:].sum(axis=1),
                maxima=_maxima(columns),
            )
        )
        self._open, self._settled_rows = array("q"), 0
        oldest_ns = self._blocks[-1].last_ns - KEPT_NS
        while self._blocks[0].last_ns <= oldest_ns:
            self._blocks.popleft()


def _maxima(columns: Ints) -> Ints:
    maxima: Ints = columns[1:].max(axis=1, initial=0)
    return maxima
