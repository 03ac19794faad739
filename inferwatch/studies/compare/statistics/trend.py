"""Tests whether a number rose or fell during a session, gradually or in one step.

The means of equal blocks of time, each several autocorrelation times ("memories") long,
are nearly independent whatever the series, so the slope of a straight line through
their logarithms is judged by Student's t (batch means: Law and Kelton, Simulation
Modeling and Analysis; the test of a slope: Draper and Smith, Applied Regression
Analysis, ch. 1). A step gives the line a slope, too. The memory is measured on the
residuals of the line or of the best step, whichever is shorter: with the change in it
every drift would look like a long memory, and so be excused. Bursts scatter the blocks
and so widen the interval.
"""

from dataclasses import dataclass

import numpy as np

from inferwatch.studies.compare.statistics.resampling import (
    BINS,
    Floats,
    blocks_for,
    left_over,
    memories,
    merged,
)
from inferwatch.studies.compare.statistics.significance import beyond_t

LEAST_MEMORIES = 30
"""Fewest autocorrelation times; a shorter series' wandering looks like a drift."""
LEAST_KNOWN = 10
"""Fewest known bins for estimating the autocorrelation time."""
THIRDS = 3
EDGE = 0.15
"""A step nearer to either end, as a share of the session, is a burst or warm-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The change of a number from the first third of a session to the last."""

    ratio: float
    """The mean of the last third divided by that of the first."""
    p_value: float
    """The p-value of the slope."""


def trend_of(above: Floats, below: Floats) -> Trend | None:
    """The trend of a mean or rate, from numerators and denominators per bin.

    None if there are too few values, or if the autocorrelation time is too long.
    """
    known = (below > 0) & (above > 0)
    if known.sum() < LEAST_KNOWN:
        return None
    means = np.full(len(above), np.nan)
    means[known] = np.log(above[known] / below[known])
    long = max(memories(rest(means)) for rest in (_without_line, _without_step))
    blocks = blocks_for(long)
    sums, weights = merged(above, blocks), merged(below, blocks)
    thirds = merged(above, THIRDS) / np.maximum(merged(below, THIRDS), 1e-300)
    if long < LEAST_MEMORIES or not (sums > 0).all() or not (weights > 0).all():
        return None
    slope, error = _line(np.log(sums / weights))
    error *= left_over(long, blocks)
    p_value = beyond_t(slope / error, blocks - 2) if error else float(slope == 0)
    return Trend(ratio=float(thirds[-1] / thirds[0]), p_value=p_value)


def _without_line(values: Floats) -> Floats:
    at = np.arange(BINS) - (BINS - 1) / 2
    known = np.isfinite(values)
    slope, height = np.polyfit(at[known], values[known], 1)
    return np.asarray(values - slope * at - height, np.float64)


def _without_step(values: Floats) -> Floats:
    """The residuals after removing the best-fitting step."""
    known = np.isfinite(values)
    sums, counts = np.cumsum(np.where(known, values, 0.0)), np.cumsum(known)
    places = np.arange(int(BINS * EDGE), int(BINS * (1 - EDGE)))
    before, n_before = sums[places - 1], np.maximum(counts[places - 1], 1)
    after, n_after = sums[-1] - before, np.maximum(counts[-1] - n_before, 1)
    best = int(np.argmax(before**2 / n_before + after**2 / n_after))
    levels = np.where(
        np.arange(BINS) < places[best],
        before[best] / n_before[best],
        after[best] / n_after[best],
    )
    return np.asarray(values - levels, np.float64)


def _line(values: Floats) -> tuple[float, float]:
    at = np.arange(len(values)) - (len(values) - 1) / 2
    spread = float(at @ at)
    slope = float(at @ values) / spread
    rest = values - values.mean() - slope * at
    variance = float(rest @ rest) / (len(values) - 2)
    return slope, float(np.sqrt(variance / spread))
