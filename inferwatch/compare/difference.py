"""How two sessions differ in one number, and how sure that is.

The interval is the expanded percentile interval: quantiles of the resampled
differences at levels a little further out, so that few blocks make it as wide as
Student's t would (Hesterberg 2015, What Teachers Should Know About the Bootstrap,
The American Statistician 69). It follows the skew of a p99, which mean ± 2 s.e. cannot.
"""

import math
from dataclasses import dataclass

import numpy as np

from inferwatch.compare.counted import Floats
from inferwatch.compare.small_samples import (
    NORMAL,
    freedom_of,
    normal_of_t,
    t_of_normal,
    widening,
)

ALPHA = 0.05
FEWEST_BEYOND = 10
"""With fewer draws on the other side of zero their share is no probability."""

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Drawn:
    """One number of one session: as it was, and as it might have been."""

    value: float
    draws: Floats
    blocks: int


class Difference:
    """B against A."""

    def __init__(self, a: Drawn, b: Drawn) -> None:
        self.a, self.b = a.value, b.value
        known = np.isfinite(a.draws) & np.isfinite(b.draws)
        drawn_a, drawn_b = a.draws[known], b.draws[known]
        self._differences = drawn_b - drawn_a
        self._ratios = _ratios(drawn_a, drawn_b, a.value, b.value)
        blocks = a.blocks, b.blocks
        variances = _variances(drawn_a, drawn_b, logs=self._ratios is not None)
        self._freedom = max(freedom_of(variances, blocks), 2.0)
        self._widening = widening(variances, blocks)

    @property
    def difference(self) -> float:
        """B - a."""
        return self.b - self.a

    @property
    def ratio(self) -> float | None:
        """B / a; None where a is nothing."""
        return self.b / self.a if self.a else None

    def span(self, alpha: float = ALPHA) -> Span:
        """The interval of the difference."""
        low, high = np.quantile(self._differences, self._levels(alpha))
        return float(low), float(high)

    def ratio_span(self, alpha: float = ALPHA) -> Span | None:
        """The interval of the ratio; None where there is no ratio."""
        if self._ratios is None:
            return None
        low, high = np.quantile(self._ratios, self._levels(alpha))
        return float(low), float(high)

    @property
    def p_value(self) -> float:
        """How often chance alone would make them differ as much."""
        below = float((self._differences < 0).sum())
        below += float((self._differences == 0).sum()) / 2
        draws = len(self._differences)
        if min(below, draws - below) >= FEWEST_BEYOND:
            deviate = abs(NORMAL.inv_cdf(below / draws))
        else:
            deviate = self._far_off()
        t = deviate / self._widening
        return 2 * NORMAL.cdf(-normal_of_t(t, self._freedom))

    def _far_off(self) -> float:
        """How many standard errors, when draws do not reach zero."""
        if self._ratios is not None:
            drawn, away = np.log(self._ratios), math.log(self.b / self.a)
        else:
            drawn, away = self._differences, self.difference
        spread = float(drawn.std())
        if spread == 0:
            return math.inf if away else 0.0
        return abs(away) / spread

    def _levels(self, alpha: float) -> Span:
        t = t_of_normal(NORMAL.inv_cdf(1 - alpha / 2), self._freedom)
        tail = NORMAL.cdf(-t * self._widening)
        return tail, 1 - tail


def _ratios(
    drawn_a: Floats, drawn_b: Floats, value_a: float, value_b: float
) -> Floats | None:
    if min(value_a, value_b) <= 0 or (drawn_a <= 0).any() or (drawn_b <= 0).any():
        return None
    return np.asarray(drawn_b / drawn_a, np.float64)


def _variances(drawn_a: Floats, drawn_b: Floats, *, logs: bool) -> Span:
    if logs:
        drawn_a, drawn_b = np.log(drawn_a), np.log(drawn_b)
    return float(drawn_a.var()), float(drawn_b.var())
