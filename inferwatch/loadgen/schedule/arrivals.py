"""Intended times of requests: absolute, seeded, computed in advance.

A schedule in nanoseconds from its start cannot drift: a late send does not affect later
ones.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectors.contract.clock import NS_PER_S
from inferwatch.loadgen.plan.plan import Arrivals
from inferwatch.loadgen.plan.rates import RateSeries, flat
from inferwatch.loadgen.schedule.rate_integral import Floats, arrivals_by, moments_of

BLOCK = 1024


class _Piece(NamedTuple):
    """The rate from one change to the next."""

    since_s: float
    passed: float
    """Number of earlier arrivals."""
    rates: RateSeries

    def passed_by(self, at_s: float) -> float:
        return self.passed + arrivals_by(self.rates, at_s - self.since_s)

    def moments(self, arrivals: Floats) -> Floats:
        ahead = moments_of(self.rates, np.maximum(arrivals - self.passed, 0))
        return np.asarray(self.since_s + ahead, np.float64)


class ArrivalPace:
    """Due times of arrivals, at a rate that may be changed during the run.

    An arrival's number is the integral of the rate up to it. Arrivals before a change
    keep their times; later ones move according to the new rate. So there is neither a
    burst nor a gap at a change, and equal changes at equal times give equal due times.
    """

    def __init__(self, rates: RateSeries) -> None:
        self._pieces = [_Piece(0.0, 0.0, rates)]

    def rate_at(self, at_s: float) -> float:
        """Requests per second at a time after the last change."""
        last = self._pieces[-1]
        return last.rates.rate_at(max(at_s - last.since_s, 0.0))

    def change(self, at_s: float, rate_per_s: float) -> None:
        """Switch to another rate from this time on."""
        last = self._pieces[-1]
        at_s = max(at_s, last.since_s)
        self._pieces.append(_Piece(at_s, last.passed_by(at_s), flat(rate_per_s)))

    def due_ns(self, arrivals: Floats) -> NDArray[np.int64]:
        """Due times of arrivals (ascending); shorter if some are never due."""
        moments = [np.empty(0)]
        for piece, mine in self._shares(arrivals):
            moments.append(piece.moments(mine))
        return np.rint(np.concatenate(moments) * NS_PER_S).astype(np.int64)

    def _shares(self, arrivals: Floats) -> list[tuple[_Piece, Floats]]:
        """Split ascending arrivals by the rate that applies to them."""
        if not len(arrivals):
            return []
        starts = [piece.passed for piece in self._pieces]
        first = max(bisect_left(starts, arrivals[0]) - 1, 0)
        pieces = self._pieces[first:]
        cuts = np.searchsorted(arrivals, starts[first + 1 :], side="right")
        return list(zip(pieces, np.split(arrivals, cuts), strict=True))


def arrival_numbers(
    arrivals: Arrivals, *, seed: int, burstiness: float = 1.0
) -> Iterator[Floats]:
    """Arrivals of a process in units of its mean gap, in blocks, without end.

    So the rate stretches a seed's pattern without changing it.
    """
    rng = np.random.default_rng([seed, 0])
    reached = 0.0
    while True:
        in_mean_gaps = reached + np.cumsum(_gaps(arrivals, rng, burstiness))
        reached = in_mean_gaps[-1]
        yield in_mean_gaps


def counted_numbers(
    arrivals: Arrivals, count: int, *, seed: int, burstiness: float = 1.0
) -> Floats:
    """Exactly ``count`` arrivals in units of the mean gap, spread over ``count`` units.

    The gaps of a seed are scaled by a few percent to correct their total, so that
    number and duration are both as requested.
    """
    rng = np.random.default_rng([seed, 0])
    blocks = [_gaps(arrivals, rng, burstiness) for _ in range(-(-count // BLOCK))]
    in_mean_gaps = np.cumsum(np.concatenate(blocks)[:count])
    return np.asarray(in_mean_gaps * (count / in_mean_gaps[-1]), np.float64)


def arrival_times(
    arrivals: Arrivals, rates: RateSeries, *, seed: int, burstiness: float = 1.0
) -> Iterator[NDArray[np.int64]]:
    """Intended times in ns from the start, in blocks, as long as the rate lasts."""
    pace = ArrivalPace(rates)
    for numbers in arrival_numbers(arrivals, seed=seed, burstiness=burstiness):
        times = pace.due_ns(numbers)
        yield times
        if len(times) < len(numbers):
            return


def counted_times(
    arrivals: Arrivals,
    rates: RateSeries,
    count: int,
    *,
    seed: int,
    burstiness: float = 1.0,
) -> NDArray[np.int64]:
    """Exactly ``count`` intended times in ns, over their mean duration."""
    numbers = counted_numbers(arrivals, count, seed=seed, burstiness=burstiness)
    return ArrivalPace(rates).due_ns(numbers)


def burst_times(every_s: float) -> Iterator[int]:
    """Intended times of bursts in ns from the start, without end."""
    count = 0
    while True:
        count += 1
        yield round(count * every_s * NS_PER_S)


def _gaps(arrivals: Arrivals, rng: np.random.Generator, burstiness: float) -> Floats:
    """Random gaps between arrivals, with a mean of one."""
    if arrivals is Arrivals.CONSTANT:
        return np.ones(BLOCK)
    if arrivals is Arrivals.GAMMA:
        return rng.gamma(burstiness, 1 / burstiness, BLOCK)
    return rng.standard_exponential(BLOCK)
