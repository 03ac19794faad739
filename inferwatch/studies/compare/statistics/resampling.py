"""Block bootstrap: a session's time in blocks, and resamplings of those blocks.

A block must be long compared with the autocorrelation time ("memory") of the series, or
blocks are not independent. A few long blocks cost little, as ten to thirty batches say
nearly all there is to say (Schmeiser 1982, Batch size effects in the analysis of
simulation output; Law and Kelton, Simulation Modeling and Analysis, "batch means"). The
memory is the integrated autocorrelation time, summed over the initial positive sequence
(Geyer 1992, Practical Markov chain Monte Carlo).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.series.intervals import autocovariance
from inferwatch.metrics.series.quantiles import CELL_SHIFT, Ints

Floats = npt.NDArray[np.float64]

BINS = 240
"""Bins per span: fine enough for its autocorrelation time and for a chart."""
PIECES = 60
"""Pieces per span for which values are counted; blocks consist of whole pieces."""
CHOICES = (30, 20, 15, 12, 10, 6)
"""Possible numbers of blocks; each divides PIECES."""
CHANCES = 20
"""Number of blocks for correlations between metrics, the same for all of them."""
MEMORIES_A_BLOCK = 10
MEMORIES_MADE_UP_FOR = 5
"""For shorter blocks, whose understated spread is corrected by :func:`left_over`."""
LEAST_MEMORIES = {0.99: 20, 0.90: 20}
"""Shortest span for a quantile, in autocorrelation times."""
LEAST_MEMORIES_ELSE = 10
LEAST_BLOCKS = 3.0
"""Fewest effective blocks for an interval."""


def memories(values: Floats) -> float:
    """Length of a series in autocorrelation times; unknown bins are interpolated."""
    known = np.isfinite(values)
    if known.sum() < 10:
        return float(len(values))
    filled = np.interp(np.arange(len(values)), np.flatnonzero(known), values[known])
    return len(values) / _autocorrelation_time(filled)


def _autocorrelation_time(values: Floats) -> float:
    """The integrated autocorrelation time in bins; 1 if bins are independent."""
    covariance = autocovariance(values)
    if covariance[0] <= 0:
        return 1.0
    pairs = (covariance / covariance[0]).reshape(-1, 2).sum(axis=1)
    ends = np.flatnonzero(pairs <= 0)
    positive = pairs[: ends[0]] if len(ends) else pairs
    return max(2 * float(positive.sum()) - 1, 1.0)


def blocks_for(long: float, each: float = MEMORIES_A_BLOCK) -> int:
    """How many blocks to cut a span into, given its length in autocorrelation times.

    Args:
        long: The span's length in autocorrelation times.
        each: Autocorrelation times per block; MEMORIES_MADE_UP_FOR if
            :func:`left_over` corrects the result.
    """
    return next((n for n in CHOICES if n * each <= long), CHOICES[-1])


def too_short(long: float, share: float | None) -> float:
    """How many times longer the span should be; at most 1 if it is long enough."""
    least = LEAST_MEMORIES.get(share or 0.0, LEAST_MEMORIES_ELSE)
    return least / long


def left_over(long: float, blocks: int) -> float:
    """Factor by which correlated blocks understate the standard error.

    For a first-order process the variance of a block's mean is too small by a share of
    half an autocorrelation time / the length of a block.
    """
    return float(1 / np.sqrt(1 - min(blocks / long / 2, 0.75)))


def as_many_blocks(amounts: Floats) -> float:
    """The effective number of blocks, given the amount in each.

    It is 1 for a load that sends all requests at once, however long the session is.
    """
    squares = float((amounts**2).sum())
    return float(amounts.sum()) ** 2 / squares if squares else 0.0


def merged(pieces: Floats, blocks: int) -> Floats:
    shape = (blocks, len(pieces) // blocks, *pieces.shape[1:])
    return np.asarray(pieces.reshape(shape).sum(axis=1), np.float64)


# Histograms of durations by time and value: enough to resample millions of them.
#
# A cell is a thousandth of its value wide (ten bits of a double's fraction, as in
# :mod:`inferwatch.metrics.series.quantiles`), so the memory
# is fixed whatever the session.

BUFFERED = 500_000
"""Values are buffered up to this number before they are counted."""
FEW = 5_000
"""Up to this many values are counted exactly."""
FIRST_CELL = int(np.float64(1.0).view(np.int64)) >> CELL_SHIFT
LAST_CELL = int(np.float64(1e14).view(np.int64)) >> CELL_SHIFT
"""The upper limit is more than a day, in ns."""
CELLS = LAST_CELL - FIRST_CELL + 1


@dataclass(frozen=True, kw_only=True)
class CountedValues:
    """One metric's values in one session, counted by piece of time and by value."""

    counts: Ints
    """Pieces of the span by cells."""
    values_s: Floats
    """The value that stands for each cell, ascending."""
    sums_s: Floats
    """Exact sums, one per bin."""
    bins: Floats
    """The number of values in each bin."""

    @property
    def n(self) -> int:
        return int(self.bins.sum())

    @property
    def means(self) -> Floats:
        """The mean of each bin; NaN where there is no value."""
        means = np.full(BINS, np.nan)
        np.divide(self.sums_s, self.bins, out=means, where=self.bins > 0)
        return means

    @cached_property
    def upto(self) -> Ints:
        """The cumulative count of values, by cell."""
        return np.cumsum(self.counts.sum(axis=0))

    @cached_property
    def _upto_by_blocks(self) -> dict[int, Floats]:
        return {}

    def upto_in(self, blocks: int) -> Floats:
        """The cumulative count within each block; shape is cells by blocks."""
        if blocks not in self._upto_by_blocks:
            counts = merged(self.counts.astype(np.float64), blocks).T
            self._upto_by_blocks[blocks] = np.cumsum(counts, axis=0)
        return self._upto_by_blocks[blocks]

    def quantile_s(self, share: float) -> float:
        return float(self.values_s[self.cell_of(share)])

    def cell_of(self, share: float) -> int:
        rank = max(int(np.ceil(share * self.upto[-1] - 1e-9)), 1)
        return int(np.searchsorted(self.upto, rank))


class ValueCounter:
    """Counts values by time and size while a session is read."""

    def __init__(self) -> None:
        self._counts = np.zeros(PIECES * CELLS, np.int32)
        self._sums_ns, self._bins = np.zeros(BINS), np.zeros(BINS)
        self._waiting: list[tuple[Ints, Ints]] = []
        self._buffered = 0

    def add(self, place: Ints, values_ns: Ints) -> None:
        """Add values with their bins; those outside the span are dropped."""
        within = (place >= 0) & (place < BINS)
        self._waiting.append((place[within], values_ns[within]))
        self._buffered += len(place)
        if self._buffered > BUFFERED:
            self._count()

    def _count(self) -> None:
        if not self._waiting:
            return
        place = np.concatenate([each for each, _ in self._waiting])
        values = np.concatenate([each for _, each in self._waiting])
        self._waiting, self._buffered = [], 0
        at = place // (BINS // PIECES) * CELLS + cells_of(values)
        np.add.at(self._counts, at, 1)
        self._sums_ns += np.bincount(place, values, minlength=BINS)
        self._bins += np.bincount(place, minlength=BINS)

    def counted(self) -> CountedValues:
        self._count()
        counts = self._counts.reshape(PIECES, CELLS)
        cells = np.flatnonzero(counts.any(axis=0))
        return CountedValues(
            counts=counts[:, cells].astype(np.int64),
            values_s=middle_of(cells) / NS_PER_S,
            sums_s=self._sums_ns / NS_PER_S,
            bins=self._bins,
        )


def cells_of(values_ns: Ints) -> Ints:
    """The histogram cell of each value; values below 1 ns share the first cell."""
    bits = np.maximum(values_ns, 1).astype(np.float64).view(np.int64)
    return np.asarray(np.minimum((bits >> CELL_SHIFT) - FIRST_CELL, CELLS - 1))


def middle_of(cells: Ints) -> Floats:
    """The middle of each cell in ns; whole numbers below 1024."""
    bits = ((cells + FIRST_CELL) << CELL_SHIFT) + (1 << (CELL_SHIFT - 1))
    middles = bits.view(np.float64)
    return np.where(middles < 1024, np.floor(middles), middles)


def counted(place: Ints, values_ns: Ints) -> CountedValues:
    """Count values that are all in memory: exactly, unless there are many."""
    within = (place >= 0) & (place < BINS)
    place, values_ns = place[within], values_ns[within]
    if len(values_ns) > FEW:
        counter = ValueCounter()
        counter.add(place, values_ns)
        return counter.counted()
    values, cells = np.unique(values_ns, return_inverse=True)
    at = place // (BINS // PIECES) * len(values) + cells
    counts = np.bincount(at, minlength=PIECES * len(values))
    sums_ns = np.bincount(place, values_ns, minlength=BINS).astype(np.float64)
    return CountedValues(
        counts=counts.reshape(PIECES, len(values)),
        values_s=values / NS_PER_S,
        sums_s=sums_ns / NS_PER_S,
        bins=np.bincount(place, minlength=BINS).astype(np.float64),
    )


# Resampled sessions: blocks of time drawn with replacement.
#
# Requests of one run share a queue and a batch, so they cannot be drawn one by one:
# what happened in a stretch of time stays together (Carlstein 1986, The use of
# subseries values; Künsch 1989, The jackknife and the bootstrap for general stationary
# observations; Lahiri 2003, Resampling Methods for Dependent Data).

DRAWS = 4000


@dataclass(frozen=True, slots=True)
class Draws:
    """How often each block of time occurs in each resampling of a session."""

    weights: Floats
    """Shape: draws by blocks."""

    @property
    def blocks(self) -> int:
        return int(self.weights.shape[1])

    @classmethod
    def make(cls, blocks: int, seed: tuple[int, ...], draws: int = DRAWS) -> "Draws":
        random = np.random.default_rng(seed)
        equal = np.full(blocks, 1 / blocks)
        return cls(random.multinomial(blocks, equal, size=draws).astype(np.float64))

    @classmethod
    def each_left_out(cls, blocks: int) -> "Draws":
        """Draws that each leave out one block (jackknife)."""
        return cls(np.ones((blocks, blocks)) - np.eye(blocks))

    def ratios(self, above: Floats, below: Floats) -> Floats:
        """The ratio of block sums in each draw; NaN if the denominator is 0."""
        divisor = self.weights @ below
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((self.weights @ above) / divisor, np.float64)

    def quantiles(self, values: CountedValues, share: float) -> Floats:
        """The quantile in each draw by nearest rank, found by bisection."""
        upto = values.upto_in(self.blocks)
        ranks = np.ceil(share * (self.weights @ upto[-1]) - 1e-6)
        low = np.zeros(len(ranks), np.int64)
        high = np.full(len(ranks), len(upto) - 1)
        for _ in range((len(upto) - 1).bit_length()):
            middle = (low + high) // 2
            reached = np.einsum("db,db->d", self.weights, upto[middle])
            enough = reached >= ranks
            high = np.where(enough, middle, high)
            low = np.where(enough, low, np.minimum(middle + 1, high))
        return np.asarray(values.values_s[low], np.float64)
