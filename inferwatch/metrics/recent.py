"""Rows of integers of the last five minutes, the longest rolling window."""

from array import array
from collections.abc import Callable, Iterable

import numpy as np

from inferwatch.metrics.quantiles import Ints
from inferwatch.metrics.snapshot import Window

KEPT_NS = max(window.value for window in Window if window.value is not None)
LEAST_ROWS = 8_192
"""Old rows go in batches of at least this many, so that adding stays cheap."""


class RecentRows:
    """Keeps each row for five minutes; the first column is its time.

    Every row is handed to ``settle`` once, in batches: whoever keeps the whole session
    counts it there. Times need not be in order.
    """

    def __init__(self, width: int, settle: Callable[[Ints], None]) -> None:
        self._width = width
        self._settle = settle
        self._flat = array("q")
        self._settled_rows = 0
        self._trim_at = LEAST_ROWS * width

    def add(self, row: Iterable[int]) -> None:
        """Keep one row of ``width`` integers."""
        self._flat.extend(row)
        if len(self._flat) >= self._trim_at:
            self._trim()

    def extend(self, rows: Ints) -> None:
        """Keep many at once."""
        self._flat.frombytes(rows.tobytes())
        if len(self._flat) >= self._trim_at:
            self._trim()

    def later_than(self, t_ns: int) -> Ints:
        """The rows after a moment, as a copy."""
        rows = self._view()
        late = rows[:, 0] > t_ns
        first = int(late.argmax()) if len(late) else 0
        if late[first:].all():  # rows nearly always come in order
            return rows[first:].copy()
        return rows[late]

    def settle(self) -> None:
        """Hand on what was not yet handed on."""
        fresh = self._view()[self._settled_rows :].copy()
        if len(fresh):
            self._settle(fresh)
        self._settled_rows += len(fresh)

    def _view(self) -> Ints:
        """The rows in place. An array cannot grow while a view of it lives."""
        return np.frombuffer(self._flat, np.int64).reshape(-1, self._width)

    def _trim(self) -> None:
        self.settle()
        newest_ns = int(self._view()[:, 0].max())
        kept = self.later_than(newest_ns - KEPT_NS)
        self._flat = array("q")
        self._flat.frombytes(kept.tobytes())
        self._settled_rows = len(kept)
        self._trim_at = max(LEAST_ROWS * self._width, 2 * len(self._flat))
