"""Intended times: absolute, seeded, made before anything is sent.

A schedule in nanoseconds from its start cannot drift: a late send moves no other.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from collectors.clock import NS_PER_S
from inferwatch.loadgen.plan import Arrivals

BLOCK = 1024


def arrival_times(
    arrivals: Arrivals, *, rate_per_s: float, seed: int
) -> Iterator[NDArray[np.int64]]:
    """Intended times in ns from the start, in blocks, without end.

    The gaps are drawn in units of the mean gap, so the rate stretches a seed's
    pattern and does not change it.
    """
    rng = np.random.default_rng([seed, 0])
    mean_gap_ns = NS_PER_S / rate_per_s
    reached = 0.0
    while True:
        in_mean_gaps = reached + np.cumsum(_gaps(arrivals, rng))
        reached = in_mean_gaps[-1]
        yield (in_mean_gaps * mean_gap_ns).astype(np.int64)


def burst_times(every_s: float) -> Iterator[int]:
    """Intended times of the bursts in ns from the start, without end."""
    count = 0
    while True:
        count += 1
        yield round(count * every_s * NS_PER_S)


def _gaps(arrivals: Arrivals, rng: np.random.Generator) -> NDArray[np.float64]:
    """Gaps with a mean of one."""
    if arrivals is Arrivals.CONSTANT:
        return np.ones(BLOCK)
    return rng.standard_exponential(BLOCK)
