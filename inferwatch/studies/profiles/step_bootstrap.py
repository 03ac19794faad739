"""The difference between mean steps of two profiles, with an interval.

Steps that follow each other are alike, so blocks of them are resampled. The interval is
of these steps alone: how much two profiles of the same engine differ is not in it.
"""

from collections.abc import Sequence

import numpy as np

from inferwatch.studies.compare.statistics.resampling import (
    LEAST_BLOCKS,
    MEMORIES_MADE_UP_FOR,
    Floats,
    blocks_for,
    left_over,
    memories,
)
from inferwatch.studies.compare.statistics.significance import (
    Difference,
    Interval,
    Resampled,
)

DRAWS = 2_000
FEWEST = 6
"""Steps on either side, for an interval."""


def difference_interval(
    before: Sequence[float], after: Sequence[float]
) -> Interval | None:
    """Return the 95% interval of the difference of means; None for too few values."""
    sides = _resampled(before, 0), _resampled(after, 1)
    if sides[0] is None or sides[1] is None:
        return None
    return Difference(sides[0], sides[1]).span()


def _resampled(series: Sequence[float], seed: int) -> Resampled | None:
    """Resample the mean of a series, which is in order of time."""
    values: Floats = np.array(series, np.float64)
    if len(values) < FEWEST:
        return None
    long = memories(values[: len(values) // 2 * 2])
    if long < LEAST_BLOCKS:
        return None
    parts = np.array_split(values, blocks_for(long, MEMORIES_MADE_UP_FOR))
    sums = np.array([each.sum() for each in parts])
    counts = np.array([len(each) for each in parts])
    chosen = np.random.default_rng(seed).integers(len(parts), size=(DRAWS, len(parts)))
    return Resampled(
        value=float(values.mean()),
        draws=sums[chosen].sum(axis=1) / counts[chosen].sum(axis=1),
        blocks=len(parts),
        left_over=left_over(long, len(parts)),
    )
