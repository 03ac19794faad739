"""Compares sides with several runs each, so that run-to-run variation counts.

A machine drifts between runs, and only repeated runs show how much. So each run is one
observation, and Welch's t test compares the logarithms of what the runs measured (Welch
1947). Resampling requests within runs on top would count their noise twice. Runs are
not paired by their order: three pairs leave two degrees of freedom, and where the
machine drifts steadily and A always comes first, intervals of pairs cover the truth in
71%, not 95%.

Where one side has a single run, the other side's variance is used for it.
"""

import math
from collections.abc import Sequence
from statistics import fmean, geometric_mean

import numpy as np

from inferwatch.metrics.series.intervals import ALPHA
from inferwatch.studies.compare.statistics.resampling import Floats
from inferwatch.studies.compare.statistics.significance import (
    MOST_LOG,
    Interval,
    beyond_t,
    t_beyond,
)

FINEST = 3e-4
"""Values are rounded to a thousandth, so runs with equal values may still differ."""
MOST_RUNS = 30
"""With more runs than this no estimate of further runs is given."""


class RunDifference:
    """The difference of one number between sides of several runs each."""

    def __init__(self, a: Sequence[float], b: Sequence[float]) -> None:
        """``a`` and ``b`` have one value per run; one needs two or more runs."""
        self.runs = len(a), len(b)
        self._logs = min(*a, *b) > 0
        self.a, self.b = self._middle(a), self._middle(b)
        values = [np.log(each) if self._logs else np.array(each) for each in (a, b)]
        scale = 1.0 if self._logs else max(abs(self.a), abs(self.b))
        spreads = _spreads(values, FINEST * scale)
        parts = [v / len(each) for v, each in zip(spreads, values, strict=True)]
        self._error = math.sqrt(sum(parts))
        self._freedom = _freedom(parts, self.runs)
        self._away = float(values[1].mean() - values[0].mean())

    def _middle(self, values: Sequence[float]) -> float:
        """The mean of a side's runs."""
        return geometric_mean(values) if self._logs else fmean(values)

    @property
    def difference(self) -> float:
        return self.b - self.a

    @property
    def ratio(self) -> float | None:
        return self.b / self.a if self.a else None

    def span(self, alpha: float = ALPHA) -> Interval:
        """The interval of the difference, derived from the ratio's if there is one."""
        if (ratios := self.ratio_span(alpha)) is not None:
            return self.a * (ratios[0] - 1), self.a * (ratios[1] - 1)
        reach = t_beyond(alpha, self._freedom) * self._error
        return self.difference - reach, self.difference + reach

    def ratio_span(self, alpha: float = ALPHA) -> Interval | None:
        """The interval of the ratio; None if a run measured 0."""
        if not self._logs:
            return None
        reach = t_beyond(alpha, self._freedom) * self._error
        ends = (self._away - reach, self._away + reach)
        low, high = (math.exp(max(min(end, MOST_LOG), -MOST_LOG)) for end in ends)
        return low, high

    @property
    def p_value(self) -> float:
        if not self._error:
            return 1.0
        return beyond_t(abs(self._away) / self._error, self._freedom)

    def more_runs(self, times: float) -> int | None:
        """Further runs per side to narrow the interval ``times``-fold, or None."""
        fewest = min(self.runs)
        now = t_beyond(ALPHA, self._freedom) * self._error
        spread = self._error / math.sqrt(sum(1 / runs for runs in self.runs))
        for runs in range(max(fewest + 1, 2), MOST_RUNS + 1):
            wide = t_beyond(ALPHA, 2.0 * runs - 2) * spread * math.sqrt(2 / runs)
            if wide * times <= now:
                return runs - fewest
        return None


def _spreads(values: Sequence[Floats], least: float) -> list[float]:
    """Variances of the runs; a side with one run uses the other side's."""
    variances = [float(v.var(ddof=1)) if len(v) > 1 else None for v in values]
    other = next(each for each in variances if each is not None)
    return [max(other if v is None else v, least**2) for v in variances]


def _freedom(parts: Sequence[float], runs: tuple[int, int]) -> float:
    """Welch's degrees of freedom, rounded down to a tenth."""
    if min(runs) == 1:
        return max(runs) - 1.0
    below = sum(p * p / (n - 1) for p, n in zip(parts, runs, strict=True))
    return math.floor(sum(parts) ** 2 / below * 10) / 10 if below else sum(runs) - 2.0
