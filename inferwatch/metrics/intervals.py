"""How far off a mean or a percentile may be: 95% intervals that queueing cannot fool.

Latencies of neighbours resemble each other (they share a queue), so n of them say less
than n independent ones. The values, in order of time, are cut into batches; how much
the batches differ tells what the whole is worth. Means: Student's t over batch means
(Law and Kelton, Simulation Modeling and Analysis, "batch means"). Percentiles: order
statistics at the binomial's ranks, no distribution assumed (Conover, Practical
Nonparametric Statistics), for as many independent values as the batches show (Woodruff
1952, for samples in clusters). Shares: Wilson 1927.
"""

import math

import numpy as np
import numpy.typing as npt

from inferwatch.metrics.quantiles import PERCENTS

Numbers = npt.NDArray[np.float64]
Interval = tuple[float | None, float | None]
"""A side that the samples do not bound is None."""

ALPHA = 0.05
Z = 1.959963984540054
BATCHES = 20
FEWEST_FOR_BATCHES = 5 * BATCHES
_SMALL_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


def intervals(values: Numbers) -> dict[str, Interval]:
    """Of the mean and of each of PERCENTS; the values are in order of time."""
    if len(values) == 0:
        return {}
    ordered = np.sort(values)
    found = {"mean": mean_interval(values)}
    for name, percent in PERCENTS.items():
        found[name] = _percentile_interval(values, ordered, percent / 100)
    return found


def mean_interval(values: Numbers) -> Interval:
    """Of the mean."""
    parts = batch_means(values)
    if len(parts) < 2:
        return None, None
    middle = float(values.mean())
    half = student_t(len(parts) - 1) * float(parts.std(ddof=1)) / math.sqrt(len(parts))
    return middle - half, middle + half


def share_interval(good: int, n: int) -> tuple[float, float]:
    """Of a share of n: Wilson's, which stays within 0 and 1."""
    if n == 0:
        return 0.0, 1.0
    share, spread = good / n, Z * Z / n
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread**2 / 4) / (1 + spread)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def batch_means(values: Numbers) -> Numbers:
    """Of BATCHES equal stretches; with few values, these themselves."""
    if len(values) < FEWEST_FOR_BATCHES:
        return values
    each = len(values) // BATCHES
    means: Numbers = values[: each * BATCHES].reshape(BATCHES, each).mean(axis=1)
    return means


def student_t(freedom: int) -> float:
    """The 97.5% quantile of Student's t (Cornish and Fisher's expansion)."""
    if freedom in _SMALL_T:
        return _SMALL_T[freedom]
    first = (Z**3 + Z) / 4
    second = (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96
    third = (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384
    return Z + first / freedom + second / freedom**2 + third / freedom**3


def binomial_ranks(n: int, share: float) -> tuple[int, int]:
    """Ranks between which the quantile lies; 0 and n + 1 stand for no bound.

    The lower is the largest l with P(X <= l - 1) <= 2.5%, the upper the smallest u with
    P(X <= u - 1) >= 97.5%, X binomial.
    """
    middle, sigma = n * share, math.sqrt(n * share * (1 - share))
    low = max(0, math.floor(middle - 10 * sigma) - 10)
    high = min(n, math.ceil(middle + 10 * sigma) + 10)
    k = np.arange(low, high)
    steps = np.log((n - k) / (k + 1) * share / (1 - share))
    logs = np.concatenate(([0.0], np.cumsum(steps)))
    weights = np.exp(logs - logs.max())
    upto = np.cumsum(weights) / weights.sum()  # P(X <= low), P(X <= low + 1), ...
    lower = low + int(np.searchsorted(upto, ALPHA / 2, side="right"))
    upper = low + int(np.searchsorted(upto, 1 - ALPHA / 2)) + 1
    return lower, upper


def _percentile_interval(values: Numbers, ordered: Numbers, share: float) -> Interval:
    n = len(values)
    worth = _independent(values, float(ordered[math.ceil(n * share) - 1]), share)
    lower, upper = binomial_ranks(worth, share)
    below, above = (-(-rank * n // worth) - 1 for rank in (lower, upper))
    return (
        None if lower < 1 else float(ordered[below]),
        None if upper > worth else float(ordered[above]),
    )


def _independent(values: Numbers, quantile: float, share: float) -> int:
    """How many independent values would pin the quantile as well as these do."""
    n = len(values)
    if n < FEWEST_FOR_BATCHES:
        return n
    variance = float(batch_means((values <= quantile).astype(float)).var(ddof=1))
    if variance == 0:
        return n
    return max(1, min(n, int(share * (1 - share) * BATCHES / variance)))
