"""Intended times: absolute, seeded, made before anything is sent.

A schedule in nanoseconds from its start cannot drift: a late send moves no other.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from collectors.clock import NS_PER_S
from inferwatch.loadgen.plan.plan import Arrivals
from inferwatch.loadgen.plan.rates import Floats, RateSeries
from inferwatch.loadgen.schedule.pace import Pace

BLOCK = 1024


def arrival_numbers(
    arrivals: Arrivals, *, seed: int, burstiness: float = 1.0
) -> Iterator[Floats]:
    """The arrivals of a pattern at a rate of one, in blocks, without end.

    The gaps are drawn in units of the mean gap, so the rate stretches a seed's
    pattern and does not change it.
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
    """Just ``count`` arrivals, in just the time that they take on average.

    The gaps of the same seed are stretched by their common error, a few percent, so
    that what was asked for is what is sent: number and duration are both fixed.
    """
    rng = np.random.default_rng([seed, 0])
    blocks = [_gaps(arrivals, rng, burstiness) for _ in range(-(-count // BLOCK))]
    in_mean_gaps = np.cumsum(np.concatenate(blocks)[:count])
    return np.asarray(in_mean_gaps * (count / in_mean_gaps[-1]), np.float64)


def arrival_times(
    arrivals: Arrivals, rates: RateSeries, *, seed: int, burstiness: float = 1.0
) -> Iterator[NDArray[np.int64]]:
    """Intended times in ns from the start, in blocks, as long as the rate lasts."""
    pace = Pace(rates)
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
    """Just ``count`` intended times, in just the time that they take on average."""
    numbers = counted_numbers(arrivals, count, seed=seed, burstiness=burstiness)
    return Pace(rates).due_ns(numbers)


def burst_times(every_s: float) -> Iterator[int]:
    """Intended times of the bursts in ns from the start, without end."""
    count = 0
    while True:
        count += 1
        yield round(count * every_s * NS_PER_S)


def _gaps(arrivals: Arrivals, rng: np.random.Generator, burstiness: float) -> Floats:
    """Gaps with a mean of one."""
    if arrivals is Arrivals.CONSTANT:
        return np.ones(BLOCK)
    if arrivals is Arrivals.GAMMA:
        return rng.gamma(burstiness, 1 / burstiness, BLOCK)
    return rng.standard_exponential(BLOCK)
