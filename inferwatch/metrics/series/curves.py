"""The reports of a load client over time, as columns of a chart's bins."""

from dataclasses import dataclass

import msgspec
import numpy as np

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.series.history import MOST_COLUMNS, SESSION_FINEST_NS
from inferwatch.metrics.series.quantiles import Ints
from inferwatch.metrics.series.samples import Samples
from inferwatch.metrics.series.window import Column, Window

MOST_POINTS = 4_096
LEAST_SHARE = 1e-3
"""Share of a bin that must be covered for a rate, 0-1."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The bins of a timeline: their start, width and number."""

    start_ns: int
    bin_ns: int
    count: int

    def edges_ns(self) -> Ints:
        """Return the edges of the bins, one more than there are bins."""
        return self.start_ns + self.bin_ns * np.arange(self.count + 1, dtype=np.int64)

    def index_of(self, times_ns: Ints) -> Ints:
        """Return the bin of each moment; -1 outside."""
        index: Ints = (times_ns - self.start_ns) // self.bin_ns
        inside = (index >= 0) & (index < self.count)
        return np.where(inside, index, -1)


def grid_over(begin_ns: int, end_ns: int) -> Grid:
    """Return the finest grid over a span with no more than MOST_COLUMNS bins."""
    bin_ns = SESSION_FINEST_NS
    while end_ns // bin_ns - begin_ns // bin_ns >= MOST_COLUMNS:
        bin_ns *= 2
    first = begin_ns // bin_ns
    return Grid(first * bin_ns, bin_ns, max(end_ns // bin_ns - first + 1, 1))


class RateCurve(msgspec.Struct, array_like=True):
    """A cumulative count, interpolated between reports; pauses do not count as time.

    Of thousands of points the older ones are thinned out, which makes them coarser.
    """

    points: list[tuple[int, int, int]] = []
    """Time, count so far, and time covered so far."""

    def add(self, from_ns: int, to_ns: int, count: int) -> None:
        """Count ``count`` events between two moments; calls are in order of time."""
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
        """Return the rate per second between two moments, or since the beginning."""
        if not self.points:
            return None
        first_ns = self.points[0][0] if from_ns is None else from_ns
        return self._rates(np.array([first_ns, to_ns], np.int64))[0]

    def columns(self, grid: Grid) -> Column:
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
        pairs = zip(rates.tolist(), known.tolist(), strict=True)
        return tuple(rate if there else None for rate, there in pairs)


class LevelCurve(msgspec.Struct, array_like=True):
    """A value that holds until the next one is set; None is no value."""

    changes: list[tuple[int, float | None]] = []

    def set_value(self, t_ns: int, value: float | None) -> None:
        """Set the value from ``t_ns`` on; calls are in order of time."""
        self.changes.append((t_ns, value))
        thin(self.changes)

    def columns(self, grid: Grid, now_ns: int) -> Column:
        """Return the value at the end of each bin, or now in the latest bin."""
        times = np.array([t_ns for t_ns, _ in self.changes], np.int64)
        ends = np.minimum(grid.edges_ns()[1:] - 1, now_ns)
        after = np.searchsorted(times, ends, side="right").tolist()
        return tuple(self.changes[i - 1][1] if i else None for i in after)

    def mean(self, now_ns: int) -> float | None:
        """Return the mean over the time with a value; None without any."""
        times = [t_ns for t_ns, _ in self.changes]
        spans = [
            (value, max(end_ns - t_ns, 0))
            for (t_ns, value), end_ns in zip(
                self.changes, [*times[1:], now_ns], strict=False
            )
            if value is not None
        ]
        whole_ns = sum(span_ns for _, span_ns in spans)
        if not whole_ns:
            return spans[-1][0] if spans else None
        return sum(value * span_ns for value, span_ns in spans) / whole_ns


def thin(points: list[tuple[int, int, int]] | list[tuple[int, float | None]]) -> None:
    """Drop every second value of the older half where there are too many."""
    if len(points) > MOST_POINTS:
        del points[1 : MOST_POINTS // 2 : 2]


class ChartedSamples(Samples):
    """Samples with their mean and worst in each bin of a timeline.

    Bins of a rolling window are made from its samples on demand, so folding stays
    cheap. Only those of the session are kept, and samples are added there by the
    thousand.
    """

    def __init__(self) -> None:
        super().__init__()
        self.session = SessionBins()

    def columns(self, window: Window, grid: Grid) -> tuple[Column, Column]:
        if window.value is None:
            self.rows.flush()
            return _columns(self.session.rows(), grid)
        times, values, weights = self.rows.later_than(grid.start_ns - 1)
        return _columns((times, weights, values * weights, values), grid)

    def _count(self, columns: Ints) -> None:
        super()._count(columns)
        self.session.add(columns)


class SessionBins(msgspec.Struct, array_like=True):
    """Count, sum and maximum in bins of half a second, doubled when there are many."""

    bin_ns: int = SESSION_FINEST_NS
    bins: dict[int, tuple[int, int, int]] = {}
    """Count, sum and maximum by number of the bin."""

    def add(self, columns: Ints) -> None:
        """Add samples, given as rows of times, values and weights."""
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
        """Return the start, count, sum and maximum of each bin."""
        rows = np.array(
            [(i * self.bin_ns, *values) for i, values in self.bins.items()], np.int64
        ).reshape(-1, 4)
        times, counts, sums, maxima = rows.T
        return times, counts, sums, maxima

    def _double(self) -> None:
        wide: dict[int, tuple[int, int, int]] = {}
        for index, values in self.bins.items():
            _merge(wide, index // 2, values)
        self.bins, self.bin_ns = wide, self.bin_ns * 2


def _merge(
    bins: dict[int, tuple[int, int, int]], index: int, part: tuple[int, int, int]
) -> None:
    n, total, worst = bins.get(index, (0, 0, 0))
    bins[index] = n + part[0], total + part[1], max(worst, part[2])


def _columns(rows: tuple[Ints, Ints, Ints, Ints], grid: Grid) -> tuple[Column, Column]:
    """Return means and maxima by bin of the grid; None is a gap."""
    times, counts, sums, maxima = rows
    where = grid.index_of(times)
    inside = where >= 0
    n, total, worst = np.zeros((3, grid.count), np.int64)
    np.add.at(n, where[inside], counts[inside])
    np.add.at(total, where[inside], sums[inside])
    np.maximum.at(worst, where[inside], maxima[inside])
    bins = list(zip(n.tolist(), total.tolist(), worst.tolist(), strict=True))
    means = tuple(
        sum_ns / many / NS_PER_S if many else None for many, sum_ns, _ in bins
    )
    worsts = tuple(worst_ns / NS_PER_S if many else None for many, _, worst_ns in bins)
    return means, worsts
