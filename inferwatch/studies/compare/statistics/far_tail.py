"""Decides between two p99 even if one has too few requests for an interval.

A p99 is never below its p90, which far fewer requests measure well. Where the p90 of
one session lies beyond the p99 of the other, their p99 differ, however wide the
interval of the first would be: an engine that lets one request in ten wait is told from
one that lets none wait. The difference has a lower bound but no upper one.
"""

import math

from inferwatch.metrics.series.intervals import ALPHA
from inferwatch.studies.compare.metrics import KEYS, JudgedMetric
from inferwatch.studies.compare.statistics.significance import (
    MOST_LOG,
    Difference,
    Interval,
)

FARTHEST = math.exp(MOST_LOG)
"""Stands for the unknown end of an interval."""


def nearer_than(metric: JudgedMetric) -> JudgedMetric | None:
    """The p90 of the same distribution as this p99; None for other metrics."""
    if not metric.needs_length:
        return None
    return KEYS[metric.key.replace("p99", "p90")]


class TailDifference:
    """A lower bound of the difference of two p99, with an interval open on one side.

    Args:
        tails: The p99 of A and of B.
        apart: The difference between the lower p99 and the other's p90.
    """

    def __init__(self, tails: tuple[float, float], apart: Difference) -> None:
        self.a, self.b = tails
        self._apart = apart

    @property
    def difference(self) -> float:
        return self.b - self.a

    @property
    def ratio(self) -> float | None:
        return self.b / self.a if self.a else None

    @property
    def p_value(self) -> float:
        """The p-value of the higher side's p90 against the other's p99."""
        return self._apart.p_value

    @property
    def holds(self) -> bool:
        """Whether the higher side's p90 is significantly beyond the other's p99."""
        same_way = self._apart.difference * self.difference > 0
        return same_way and self.p_value <= ALPHA

    def span(self, alpha: float = ALPHA) -> Interval:
        """The interval of the difference, open at the far end."""
        low, high = self._apart.span(alpha)
        return (low, FARTHEST) if self.difference > 0 else (-self.a, high)

    def ratio_span(self, alpha: float = ALPHA) -> Interval | None:
        """The interval of the ratio, open at the far end."""
        span = self._apart.ratio_span(alpha)
        if span is None:
            return None
        return (span[0], FARTHEST) if self.difference > 0 else (0.0, span[1])
