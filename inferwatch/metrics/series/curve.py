"""What is told now and then, as columns: counts so far, and levels that hold."""

from dataclasses import dataclass

import msgspec
import numpy as np

from collectors.clock import NS_PER_S
from inferwatch.metrics.load.view import Column
from inferwatch.metrics.series.quantiles import Ints

MOST_POINTS = 4_096
LEAST_SHARE = 1e-3
"""Of a bin that must be covered, for its rate to mean something."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The bins of a timeline."""

    start_ns: int
    bin_ns: int
    count: int

    def edges_ns(self) -> Ints:
        """Where each begins, and where the last ends."""
        return self.start_ns + self.bin_ns * np.arange(self.count + 1, dtype=np.int64)

    def index_of(self, times_ns: Ints) -> Ints:
        """The bin of each moment; -1 outside."""
        index: Ints = (times_ns - self.start_ns) // self.bin_ns
        inside = (index >= 0) & (index < self.count)
        return np.where(inside, index, -1)


class Curve(msgspec.Struct, array_like=True):
    """A count that grows, straight between what was told; pauses count as no time.

    Of thousands of points the older ones are thinned: then they tell the same, coarser.
    """

    points: list[tuple[int, int, int]] = []
    """A moment, the count and the time covered until then."""

    def add(self, from_ns: int, to_ns: int, count: int) -> None:
        """So many between two moments; they come in order."""
        if not self.points:
            self.points.append((from_ns, 0, 0))
        at_ns, counted, covered_ns = self.points[-1]
        from_ns = max(from_ns, at_ns)
        if to_ns <= from_ns:
            self.points[-1] = (at_ns, counted + count, covered_ns)
            return
        if from_ns > at_ns:
            self.points.append((from_ns, counted, covered_ns))
        self.points.append((to_ns, counted + count, covered_ns + to_ns - from_ns))
        thin(self.points)

    def over(self, from_ns: int | None, to_ns: int) -> float | None:
        """Per second between two moments, or from the beginning."""
        if not self.points:
            return None
        first_ns = self.points[0][0] if from_ns is None else from_ns
        return self._rates(np.array([first_ns, to_ns], np.int64))[0]

    def columns(self, grid: Grid) -> Column:
        """Per second in each bin."""
        if not self.points:
            return (None,) * grid.count
        return self._rates(grid.edges_ns())

    def _rates(self, edges_ns: Ints) -> Column:
        moments, counted, covered = np.array(self.points, np.float64).T
        edges = edges_ns.astype(np.float64)
        counts = np.diff(np.interp(edges, moments, counted))
        times_s = np.diff(np.interp(edges, moments, covered)) / NS_PER_S
        least_s = np.diff(edges) / NS_PER_S * LEAST_SHARE
        known = times_s > np.maximum(least_s, 0)
        rates = np.divide(counts, times_s, out=np.zeros_like(counts), where=known)
        told = zip(rates.tolist(), known.tolist(), strict=True)
        return tuple(rate if there else None for rate, there in told)


class Levels(msgspec.Struct, array_like=True):
    """A value that holds until the next one is told; None is no value."""

    changes: list[tuple[int, float | None]] = []

    def tell(self, t_ns: int, value: float | None) -> None:
        """From now on; moments come in order."""
        self.changes.append((t_ns, value))
        thin(self.changes)

    def columns(self, grid: Grid, now_ns: int) -> Column:
        """What held at the end of each bin; of the running one, now."""
        times = np.array([t_ns for t_ns, _ in self.changes], np.int64)
        ends = np.minimum(grid.edges_ns()[1:] - 1, now_ns)
        after = np.searchsorted(times, ends, side="right").tolist()
        return tuple(self.changes[i - 1][1] if i else None for i in after)


def thin(points: list[tuple[int, int, int]] | list[tuple[int, float | None]]) -> None:
    """Of too many, drop every second of the older half."""
    if len(points) > MOST_POINTS:
        del points[1 : MOST_POINTS // 2 : 2]
