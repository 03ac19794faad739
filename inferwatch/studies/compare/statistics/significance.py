"""The difference of one number between two sessions, with interval and p-value.

The interval is the expanded percentile interval: quantiles of the resampled differences
at levels a little further out, so that few blocks make it as wide as Student's t would
(Hesterberg 2015, What Teachers Should Know About the Bootstrap, The American
Statistician 69). It follows the skew of a p99, which mean ± 2 s.e. cannot.

Levels so far out that few draws lie there are not read off the draws: six blocks can be
drawn in so few ways that the outermost draws say nothing about one chance in a
thousand. There the interval and the p-value continue as a normal distribution would, on
each side from the last level that enough draws support.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Protocol

import numpy as np

from inferwatch.metrics.series.intervals import ALPHA
from inferwatch.studies.compare.statistics.resampling import Floats

NORMAL = NormalDist()
FEWEST_BEYOND = 10
"""With fewer draws on the other side of zero, their share is not used as p-value."""
DUST = 1e-12
"""Relative rounding error of float sums, below which a difference is zero."""
MOST_LOG = 700.0
"""Limit of log ratios, so that their exponential is a finite float."""

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Resampled:
    """One number of one session, as measured and in each resampling."""

    value: float
    draws: Floats
    blocks: float
    """The effective number of blocks; see :func:`resampling.as_many_blocks`."""
    left_over: float = 1.0
    """Factor by which blocks that are too short understate the spread."""


class AnyDifference(Protocol):
    """The difference of one number between sides A and B, by any statistic."""

    a: float
    b: float

    @property
    def difference(self) -> float:
        """The difference b - a."""

    @property
    def ratio(self) -> float | None:
        """The ratio b / a; None if a is 0."""

    def span(self, alpha: float = ALPHA) -> Interval:
        """The interval of the difference."""

    def ratio_span(self, alpha: float = ALPHA) -> Interval | None:
        """The interval of the ratio; None if there is no ratio."""

    @property
    def p_value(self) -> float:
        """The two-sided p-value."""


class Difference:
    """The difference of one number between sessions A and B, from resamplings.

    Paired sessions are resampled together: each draw has the same blocks of both, so
    that what affected both (a burst, a long prompt) cancels out.
    """

    def __init__(self, a: Resampled, b: Resampled, *, paired: bool = False) -> None:
        self.a, self.b = a.value, b.value
        known = np.isfinite(a.draws) & np.isfinite(b.draws)
        drawn_a, drawn_b = a.draws[known], b.draws[known]
        differences = drawn_b - drawn_a
        dust = DUST * max(abs(a.value), abs(b.value))
        self._differences = np.where(np.abs(differences) < dust, 0.0, differences)
        self._ratios = _ratios(drawn_a, drawn_b, a.value, b.value)
        self._logs = self._ratios is not None and bool((drawn_b > 0).all())
        fewest = min(a.blocks, b.blocks)
        self._freedom = fewest - 1
        self._widening = math.sqrt(fewest / (fewest - 1))
        if not paired:
            blocks = a.blocks, b.blocks
            variances = _variances(drawn_a, drawn_b, logs=self._logs)
            self._freedom = freedom_of(variances, blocks)
            self._widening = widening(variances, blocks)
        self._widening *= max(a.left_over, b.left_over)

    @property
    def difference(self) -> float:
        return self.b - self.a

    @property
    def ratio(self) -> float | None:
        return self.b / self.a if self.a else None

    def span(self, alpha: float = ALPHA) -> Interval:
        """The interval of the difference; excludes 0 only if the ratio's excludes 1.

        Beyond the draws, both continue as normal distributions, each on its own scale,
        and could disagree about the sign. There the ratio's interval decides.
        """
        low, high = self._quantile_interval(self._differences, self.difference, alpha)
        ratios = self.ratio_span(alpha)
        if ratios is not None and (low > 0) != (ratios[0] > 1):
            low = self.a * (ratios[0] - 1)
        if ratios is not None and (high < 0) != (ratios[1] < 1):
            high = self.a * (ratios[1] - 1)
        return low, high

    def ratio_span(self, alpha: float = ALPHA) -> Interval | None:
        if self._ratios is None:
            return None
        if not self._logs:
            return self._quantile_interval(self._ratios, self.b / self.a, alpha)
        log_span = self._quantile_interval(
            np.log(self._ratios), math.log(self.b / self.a), alpha
        )
        low, high = (math.exp(max(min(end, MOST_LOG), -MOST_LOG)) for end in log_span)
        return low, high

    def _quantile_interval(self, draws: Floats, value: float, alpha: float) -> Interval:
        """The interval of ``value`` by the quantiles of its draws.

        Beyond the draws, each end continues with the spread of the draws on its side.
        """
        deviate = t_beyond(alpha, int(self._freedom)) * self._widening
        tail, least = NORMAL.cdf(-deviate), FEWEST_BEYOND / len(draws)
        low, high = map(
            float, np.quantile(draws, (max(tail, least), 1 - max(tail, least)))
        )
        if tail >= least:
            return low, high
        times = deviate / NORMAL.inv_cdf(1 - least)
        return (
            value - max(value - low, 0.0) * times,
            value + max(high - value, 0.0) * times,
        )

    @property
    def p_value(self) -> float:
        below = float((self._differences < 0).sum())
        below += float((self._differences == 0).sum()) / 2
        draws = len(self._differences)
        if min(below, draws - below) >= FEWEST_BEYOND:
            deviate = abs(NORMAL.inv_cdf(below / draws))
        else:
            deviate = self._far_off()
        return beyond_t(deviate / self._widening, self._freedom)

    def _far_off(self) -> float:
        """Distance from zero in standard errors, where the draws do not reach zero.

        It uses the spread on the side of zero: a p99 is skewed, and its other tail does
        not show whether there is a difference.
        """
        if self._ratios is not None and self._logs:
            draws, away = np.log(self._ratios), math.log(self.b / self.a)
        else:
            draws, away = self._differences, self.difference
        tail = FEWEST_BEYOND / len(draws)
        edge = float(np.quantile(draws, tail if away > 0 else 1 - tail))
        reach = abs(away - edge)
        if reach == 0:
            return math.inf if away else 0.0
        return abs(away) / reach * NORMAL.inv_cdf(1 - tail)


def _ratios(
    drawn_a: Floats, drawn_b: Floats, value_a: float, value_b: float
) -> Floats | None:
    if value_a <= 0 or value_b < 0 or (drawn_a <= 0).any():
        return None
    return np.asarray(drawn_b / drawn_a, np.float64)


def _variances(drawn_a: Floats, drawn_b: Floats, *, logs: bool) -> Interval:
    if logs:
        drawn_a, drawn_b = np.log(drawn_a), np.log(drawn_b)
    return float(drawn_a.var()), float(drawn_b.var())


# Student's t: how much wider an interval from few blocks must be than one from many.
#
# Its distribution is a finite sum for whole degrees of freedom (Abramowitz and Stegun,
# Handbook of Mathematical Functions, 26.7.3 and 26.7.4); linear interpolation between
# them is slightly too wide. Nothing else here would need scipy.

FARTHEST = 1e6
HALVINGS = 60


def beyond_t(t: float, freedom: float) -> float:
    """The two-sided tail probability of Student's t."""
    whole = max(math.floor(freedom), 1)
    if freedom > whole:
        part = freedom - whole
        return (1 - part) * beyond_t(t, whole) + part * beyond_t(t, whole + 1)
    if math.isinf(t):
        return 0.0
    angle = math.atan(abs(t) / math.sqrt(whole))
    sine, cosine = math.sin(angle), math.cos(angle)
    term = sine * (cosine if whole % 2 else 1.0)
    within = 0.0 if whole == 1 else term
    for k in range(3 if whole % 2 else 2, whole - 1, 2):
        term *= (k - 1) / k * cosine**2
        within += term
    if whole % 2:
        within = 2 / math.pi * (angle + within)
    return max(1 - within, 0.0)


@lru_cache(maxsize=4096)
def t_beyond(share: float, freedom: float) -> float:
    """The two-sided critical value of Student's t."""
    low, high = 0.0, FARTHEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if beyond_t(middle, freedom) > share:
            low = middle
        else:
            high = middle
    return high


def freedom_of(variances: Interval, blocks: tuple[float, float]) -> float:
    """Welch's degrees of freedom of a difference (Welch 1947)."""
    parts = [v / (b - 1) * v for v, b in zip(variances, blocks, strict=True)]
    together = sum(variances)
    return together * together / sum(parts) if sum(parts) > 0 else sum(blocks) - 2.0


def widening(variances: Interval, blocks: tuple[float, float]) -> float:
    """Factor to widen intervals by: b blocks show only 1 - 1/b of the variance."""
    together = sum(variances)
    if together <= 0:
        return 1.0
    whole = sum(v * b / (b - 1) for v, b in zip(variances, blocks, strict=True))
    return math.sqrt(whole / together)
