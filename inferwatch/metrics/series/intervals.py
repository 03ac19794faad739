"""Confidence intervals (95%) of means and percentiles of correlated latencies.

Latencies of neighbours are similar (they share a queue), so n of them say less than n
independent ones: about n / memory, the memory being the integrated autocorrelation
time, 1 + 2 times the sum of all autocorrelations. It is the larger of two estimates
that are not too small for few values:

- the initial monotone positive sequence (Geyer 1992, Practical Markov chain Monte
  Carlo), each autocovariance raised by what subtracting the estimated mean took away
  (Anderson 1971, The Statistical Analysis of Time Series, 8.2);
- (1 + r) / (1 - r), r being the upper 95% bound of the correlation of neighbours, with
  its bias of -(1 + 4r) / n (Marriott and Pope 1954, Bias in the estimation of
  autocorrelations) added.

Means: Student's t with one degree of freedom for three memories, and no narrower than
ten batch means give (Law and Kelton, Simulation Modeling and Analysis, "batch means").
Percentiles: order statistics at the binomial's ranks, no distribution assumed (Conover,
Practical Nonparametric Statistics), for the effective number of independent values
(Woodruff 1952, for samples in clusters). Shares: Wilson 1927. For fewer values than
FEWEST, or than two memories, there is no interval: nothing we know of covers the truth
there. ``benchmarks/interval_coverage.py`` checks the rest.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.series.quantiles import PERCENTS, Ints, of_weighted
from inferwatch.metrics.series.window import Quantiles

Numbers = npt.NDArray[np.float64]
Interval = tuple[float | None, float | None]
"""Lower and upper bound; None where the samples do not bound that side."""

ALPHA = 0.05
Z = 1.959963984540054
ONE_SIDED_Z = 1.6448536269514722
FEWEST = 30
LEAST_MEMORIES = 2
MEMORIES_A_FREEDOM = 3
BATCHES = 10
MOST = 4096
"""Longer series are reduced to this many means of neighbours."""
ROUNDS = 20
EPISODES = 20
_SMALL_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


def intervals(values: Numbers) -> dict[str, Interval]:
    """Return intervals of mean and PERCENTS; ``values`` are in order of time."""
    if len(values) == 0:
        return {}
    ordered = np.sort(values)
    by_name = {"mean": mean_interval(values)}
    worth = effective_size(values)
    for name, percent in PERCENTS.items():
        by_name[name] = _percentile_interval(values, ordered, percent / 100, worth)
    return by_name


def mean_interval(values: Numbers) -> Interval:
    worth = effective_size(values)
    if worth is None:
        return None, None
    middle = float(values.mean())
    half = worth.t * float(values.std(ddof=1)) / math.sqrt(worth.independent)
    batches = stretches(values, BATCHES)
    spread = float(batches.std(ddof=1)) / math.sqrt(BATCHES)
    half = max(half, student_t(BATCHES - 1) * spread)
    return middle - half, middle + half


def certain_of(good: Numbers, series: Iterable[Numbers] = ()) -> float:
    """Return the effective number of independent values for a share of ones.

    ``good`` are zeros and ones in order of time. Few ones do not show for how long
    values depend on each other; the latencies behind them (``series``) may. 0 where
    that is not known.
    """
    long_enough = [each for each in series if len(each) >= FEWEST]
    worth = [effective_size(each) for each in (good, *long_enough)]
    known = [each.certain for each in worth if each is not None]
    return min(float(len(good)), *known) if len(known) == len(worth) else 0.0


def share_interval(good: float, n: float) -> tuple[float, float]:
    """Return Wilson's interval of a share of n independent values, within 0 and 1."""
    if n == 0:
        return 0.0, 1.0
    share, spread = good / n, Z * Z / n
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread**2 / 4) / (1 + spread)
    return max(middle - half, 0.0), min(middle + half, 1.0)


@dataclass(frozen=True, slots=True)
class EffectiveSize:
    """How many independent values say as much as the correlated ones."""

    independent: float
    """The effective number of values."""
    freedom: int
    """Degrees of freedom of Student's t for their spread."""

    @property
    def t(self) -> float:
        """Half the width of an interval, in standard errors."""
        return student_t(self.freedom)

    @property
    def certain(self) -> float:
        """A lower bound of ``independent``, by which a mean's interval is widened."""
        return self.independent * (Z / self.t) ** 2


def effective_size(values: Numbers) -> EffectiveSize | None:
    """Return the effective number of independent values; None if there are too few."""
    if len(values) < FEWEST:
        return None
    short = stretches(values, MOST) if len(values) > MOST else values
    long = len(short) / memory(short)
    if long < LEAST_MEMORIES:
        return None
    variance, of_short = float(values.var()), float(short.var())
    # The variance around the estimated mean lacks the variance of that mean.
    independent = (long - 1) * (variance / of_short if of_short > 0 else 1.0)
    return EffectiveSize(independent, max(int(long / MEMORIES_A_FREEDOM), 1))


def memory(values: Numbers) -> float:
    """Return the autocorrelation time: how many values count as one independent one."""
    n = len(values)
    if float(np.ptp(values)) == 0:
        return 1.0
    covariance = autocovariance(values)
    neighbours = float(covariance[1] / covariance[0])
    return max(_by_sequence(covariance), _by_neighbours(neighbours, n))


def autocovariance(values: Numbers) -> Numbers:
    """Return the autocovariance by lag, from 0 on."""
    n = len(values)
    spectrum = np.fft.rfft(values - values.mean(), 2 * n)
    return np.asarray(np.fft.irfft(np.abs(spectrum) ** 2)[:n] / n, np.float64)


def _by_sequence(covariance: Numbers) -> float:
    """Return the autocorrelation time by Geyer's sequence, at most half the series."""
    n = len(covariance)
    seen = 1 - np.arange(n) / n
    length = 1.0
    for _ in range(ROUNDS):
        raised = covariance + covariance[0] * length / n * seen
        pairs = raised[: n // 2 * 2].reshape(-1, 2).sum(axis=1) / raised[0]
        ends = np.flatnonzero(pairs <= 0)
        falling = np.minimum.accumulate(pairs[: ends[0]] if len(ends) else pairs)
        before, length = length, min(max(2 * float(falling.sum()) - 1, 1.0), n / 2)
        if abs(length - before) < 0.01 * before:
            break
    return length


def _by_neighbours(r: float, n: int) -> float:
    """Return the autocorrelation time of a first-order autoregression.

    The upper bound of its coefficient is used.
    """
    raised = min(r + (1 + 4 * max(r, 0.0)) / n, 0.9999)
    bound = math.tanh(math.atanh(raised) + ONE_SIDED_Z / math.sqrt(n - 3))
    bound = min(max(bound, 0.0), 0.9999)
    return (1 + bound) / (1 - bound)


def stretches(values: Numbers, count: int) -> Numbers:
    """Return the means of ``count`` equal stretches, without the rest at the end."""
    each = len(values) // count
    means: Numbers = values[: each * count].reshape(count, each).mean(axis=1)
    return means


def student_t(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t (Cornish and Fisher's expansion)."""
    if freedom in _SMALL_T:
        return _SMALL_T[freedom]
    first = (Z**3 + Z) / 4
    second = (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96
    third = (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384
    return Z + first / freedom + second / freedom**2 + third / freedom**3


def at_least(values: Numbers, share: float) -> float | None:
    """Return a lower bound of a quantile that one or two hiccups do not raise.

    It is the value at the lower of the binomial's ranks, for as many independent values
    as EPISODES stretches show. It is not an interval.
    """
    n = len(values)
    if n == 0:
        return None
    ordered = np.sort(values)
    worth = n
    if n >= 5 * EPISODES:
        high = values > ordered[math.ceil(n * share) - 1]
        variance = float(stretches(high.astype(float), EPISODES).var(ddof=1))
        if variance > 0:
            worth = max(1, min(n, int(share * (1 - share) * EPISODES / variance)))
    lower, _ = binomial_ranks(worth, share)
    return None if lower < 1 else float(ordered[-(-lower * n // worth) - 1])


def binomial_ranks(n: int, share: float) -> tuple[int, int]:
    """Return ranks between which the quantile lies; 0 and n + 1 stand for no bound.

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


def _percentile_interval(
    values: Numbers, ordered: Numbers, share: float, worth: EffectiveSize | None
) -> Interval:
    """Return the interval of a percentile.

    The effective number of values is the smaller of that of the values themselves and
    that of zeros and ones that say whether they are below the percentile.
    """
    n = len(values)
    below = effective_size((values <= ordered[math.ceil(n * share) - 1]).astype(float))
    if worth is None or below is None:
        return None, None
    count = min(max(int(min(worth.certain, below.certain)), 1), n)
    lower, upper = binomial_ranks(count, share)
    return (
        None if lower < 1 else float(ordered[(lower - 1) * n // count]),
        None if upper > count else float(ordered[-(-upper * n // count) - 1]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A latency of a whole run in seconds, with its intervals."""

    quantiles: Quantiles = field(default_factory=Quantiles)
    ci95: dict[str, Interval] = field(default_factory=dict)
    p99_at_least: float | None = None
    """A lower bound of p99 that one or two hiccups do not raise."""

    def as_json(self) -> dict[str, Any]:
        columns = ("mean", *PERCENTS, "max")
        return {
            "n": self.quantiles.n,
            **{name: getattr(self.quantiles, name) for name in columns},
            "ci95": {name: list(interval) for name, interval in self.ci95.items()},
            "weak": list(self.quantiles.weak),
        }


def estimate(values_ns: Ints) -> Estimate:
    """Return an estimate from durations in order of time."""
    ones = np.ones(len(values_ns), np.int64)
    values_s = values_ns / NS_PER_S
    return Estimate(
        quantiles=of_weighted(values_ns, ones, NS_PER_S),
        ci95=intervals(values_s),
        p99_at_least=at_least(values_s, 0.99),
    )
