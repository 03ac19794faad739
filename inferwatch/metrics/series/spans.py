"""Values that hold over spans of time, in bins of every window: means, sums, maxima.

A reading gives values from one moment to another; they are added to all bins that it
overlaps, in proportion. So bins add up in any order, a slow reading fills many narrow
bins, and where nothing was read there is a gap.
"""

from typing import ClassVar

import msgspec
import numpy as np

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.series.curves import Grid
from inferwatch.metrics.series.histograms import Floats
from inferwatch.metrics.series.history import BIN_NS, MOST_COLUMNS, SESSION_FINEST_NS
from inferwatch.metrics.series.saving import CHUNK, Parts, WrittenParts
from inferwatch.metrics.series.window import Window

LONGEST_NS = 300 * NS_PER_S
"""Longest span that one reading may cover."""
FARTHEST_NS = 1 << 60
"""Bounds session time to 36 years."""


class Level(msgspec.Struct):
    """Consecutive bins of one width, including empty ones."""

    bin_ns: int
    most: int
    """At least this many bins are kept, and at most twice as many."""
    rows: Floats
    first: int = 0
    """Number of the first bin; that many bins lie before it."""
    count: int = 0

    def reach(self, first: int, last: int, empty: float) -> Floats:
        """Return the bins of a range, created as needed; too old ones are left out."""
        if not self.count or first > self.first + self.count + 2 * self.most:
            self.first, self.count = first, 0
        newest = max(last, self.first + self.count - 1)
        oldest = min(first, self.first) if self.count else first
        if newest - oldest >= len(self.rows):
            oldest = max(oldest, newest - self.most + 1)
        if oldest != self.first or newest != self.first + self.count - 1:
            self._stretch(oldest, newest, empty)
        return self.rows[max(first - oldest, 0) : max(last - oldest + 1, 0)]

    def between(self, first: int, last: int, empty: float) -> Floats:
        """Return a copy of the bins of a range; empty ones where there are none."""
        result: Floats = np.full((max(last - first + 1, 0), self.rows.shape[1]), empty)
        begin, end = max(first, self.first), min(last + 1, self.first + self.count)
        if begin < end:
            rows = self.rows[begin - self.first : end - self.first]
            result[begin - first : end - first] = rows
        return result

    def _stretch(self, oldest: int, newest: int, empty: float) -> None:
        count = newest - oldest + 1
        if oldest == self.first:  # the usual case: only new bins are written
            self.rows[self.count : count] = empty
        else:
            self.rows[:count] = self.between(oldest, newest, empty)
        self.first, self.count = oldest, count


class SavedSpans(msgspec.Struct, array_like=True):
    """Spans as checkpoints keep them: the parts of each level."""

    levels: list[tuple[int, int, int, list[int]]]
    """For each level: bin width, number of the first bin, count, and parts."""


class Spans:
    """Sums over time: each value weighted by how long it applied."""

    EMPTY = 0.0
    REDUCE: ClassVar[np.ufunc] = np.add

    def __init__(self, width: int) -> None:
        self._width = width
        self._levels = {
            window: self._level(width_ns, (window.value or 0) // width_ns)
            for window, width_ns in BIN_NS.items()
        }
        self._levels[Window.SESSION] = self._level(SESSION_FINEST_NS, MOST_COLUMNS // 2)

    def add(self, begin_ns: int, end_ns: int, values: Floats) -> None:
        """Add values that applied from one moment to another."""
        begin_ns = max(begin_ns, end_ns - LONGEST_NS)
        if not -FARTHEST_NS < begin_ns < end_ns < FARTHEST_NS:
            return
        for window, level in self._levels.items():
            if window is Window.SESSION:
                self._widen(level, begin_ns, end_ns)
            first, last = begin_ns // level.bin_ns, (end_ns - 1) // level.bin_ns
            rows = level.reach(first, last, self.EMPTY)
            if first == last and len(rows):
                self._put(rows[0], values, end_ns - begin_ns)
            elif len(rows):
                edges = level.bin_ns * np.arange(last + 1 - len(rows), last + 2)
                lengths = np.minimum(edges[1:], end_ns) - np.maximum(
                    edges[:-1], begin_ns
                )
                self._put(rows, values, lengths[:, None])

    def over(self, now_ns: int, window: Window) -> Floats:
        """Return the bins of the window that ends now, reduced to one row."""
        level = self._levels[window]
        if window.value is None:
            return self._together(level.rows[: level.count])
        last = now_ns // level.bin_ns
        first = last - window.value // level.bin_ns + 1
        return self._together(level.between(first, last, self.EMPTY))

    def columns(self, window: Window, grid: Grid) -> Floats:
        """Return a row for each bin of a grid over the window."""
        level = self._levels[window]
        wide = max(grid.bin_ns // level.bin_ns, 1)
        """Number of this level's bins in one of the grid's."""
        narrow = max(level.bin_ns // grid.bin_ns, 1)
        first = grid.start_ns // level.bin_ns
        last = (grid.start_ns + grid.count * grid.bin_ns - 1) // level.bin_ns
        if narrow > 1:
            rows = self._part(level.between(first, last, self.EMPTY), narrow)
            begin_ns = grid.start_ns + grid.bin_ns * np.arange(grid.count)
            result: Floats = rows[begin_ns // level.bin_ns - first]
            return result
        # Only existing bins are read: a grid may span years.
        result = np.full((grid.count, self._width), self.EMPTY)
        begin, end = max(first, level.first), min(last + 1, level.first + level.count)
        if begin < end:
            level_rows = level.rows[begin - level.first : end - level.first]
            places = (np.arange(begin, end) - first) // wide
            starts = np.flatnonzero(np.diff(places, prepend=-1))
            result[places[starts]] = self.REDUCE.reduceat(level_rows, starts, axis=0)
        return result

    @property
    def first_ns(self) -> int | None:
        """When the first bin of the session began."""
        level = self._levels[Window.SESSION]
        return level.first * level.bin_ns if level.count else None

    def saved(self, parts: Parts) -> SavedSpans:
        """Return the state for a checkpoint; full chunks are in lasting ``parts``."""
        return SavedSpans(
            [
                (each.bin_ns, each.first, each.count, _chunks(each, parts))
                for each in self._levels.values()
            ]
        )

    def restore(self, saved: SavedSpans, parts: WrittenParts) -> None:
        for level, state in zip(self._levels.values(), saved.levels, strict=True):
            level.bin_ns, level.first, count, numbers = state
            content = b"".join(parts.get(number, bytes) for number in numbers)
            rows = np.frombuffer(content, np.float64).reshape(-1, self._width)
            if len(rows) != count or count > len(level.rows) or level.bin_ns <= 0:
                raise msgspec.ValidationError("these are not the bins that were saved")
            level.count = count
            level.rows[:count] = rows

    def _level(self, bin_ns: int, columns: int) -> Level:
        rows = np.full((2 * columns, self._width), self.EMPTY)
        return Level(bin_ns=bin_ns, most=columns, rows=rows)

    def _widen(self, level: Level, begin_ns: int, end_ns: int) -> None:
        """Widen the bins of the session so that they reach back to its beginning."""
        while level.count:
            first = min(level.first, begin_ns // level.bin_ns)
            last = max(level.first + level.count - 1, (end_ns - 1) // level.bin_ns)
            if last - first < len(level.rows):
                return
            odd = level.first % 2
            pairs = (odd + level.count + 1) // 2
            rows = np.full((2 * pairs, self._width), self.EMPTY)
            rows[odd : odd + level.count] = level.rows[: level.count]
            merged = self._together(rows.reshape(pairs, 2, self._width), axis=1)
            level.bin_ns *= 2
            level.first, level.count = level.first // 2, pairs
            level.rows[:pairs] = merged

    # For sums; Worsts overrides these.

    def _put(self, rows: Floats, values: Floats, held_ns: Floats | int) -> None:
        rows += values * held_ns

    def _part(self, rows: Floats, of: int) -> Floats:
        return rows / of

    def _together(self, rows: Floats, axis: int = 0) -> Floats:
        together: Floats = self.REDUCE.reduce(rows, axis=axis, initial=self.EMPTY)
        return together


class Worsts(Spans):
    """The maximum of each value in a span of time; NaN where there was none."""

    EMPTY = np.nan
    REDUCE: ClassVar[np.ufunc] = np.fmax

    def _put(self, rows: Floats, values: Floats, _held_ns: Floats | int) -> None:
        np.fmax(rows, values, out=rows)

    def _part(self, rows: Floats, _of: int) -> Floats:
        return rows


def _chunks(level: Level, parts: Parts) -> list[int]:
    """Save the bins in parts cut at fixed places, and return their numbers."""
    end = level.first + level.count
    cuts = [level.first, *range(-(-(level.first + 1) // CHUNK) * CHUNK, end, CHUNK)]
    numbers = []
    for begin in cuts if level.count else ():
        until = min(begin - begin % CHUNK + CHUNK, end)
        rows = level.rows[begin - level.first : until - level.first]
        lasts = until - begin == CHUNK and until < end - CHUNK
        numbers.append(parts.add(rows.tobytes(), lasts=lasts))
    return numbers


def told_of(values: Floats) -> tuple[float | None, ...]:
    """Return a column with None for gaps."""
    gaps = np.isnan(values).tolist()
    pairs = zip(values.tolist(), gaps, strict=True)
    return tuple(None if gap else value for value, gap in pairs)
