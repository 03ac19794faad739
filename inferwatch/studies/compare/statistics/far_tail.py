"""A p99 that few requests cannot measure may still be told from another.

A p99 is never below its p90, which far fewer requests measure well. Where the p90 of
one session lies beyond the p99 of the other, their p99 differ, however wide the
interval of the first would be: an engine that let one request in ten wait is told from
one that let none. By how much at most stays unknown; by how much at least is known.
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
"""What an end is that is not known."""


def nearer_than(metric: JudgedMetric) -> JudgedMetric | None:
    """The p90 of what that is a p99 of; None of other numbers."""
    if not metric.needs_length:
        return None
    return KEYS[metric.key.replace("p99", "p90")]


class TailDifference:
    """How two p99 differ at least: as :class:`Difference`, and open on one side.

    Args:
        tails: One p99 and the other.
        apart: The lower one, and of the other session the p90.
    """

    def __init__(self, tails: tuple[float, float], apart: Difference) -> None:
        self.a, self.b = tails
        self._apart = apart

    @property
    def difference(self) -> float:
        """B - a, as measured."""
        return self.b - self.a

    @property
    def ratio(self) -> float | None:
        """B / a, as measured."""
        return self.b / self.a if self.a else None

    @property
    def p_value(self) -> float:
        """How often chance alone would take even the p90 so far."""
        return self._apart.p_value

    @property
    def holds(self) -> bool:
        """The p90 of the higher one does lie beyond, and by more than chance."""
        same_way = self._apart.difference * self.difference > 0
        return same_way and self.p_value <= ALPHA

    def span(self, alpha: float = ALPHA) -> Interval:
        """The interval of the difference; its far end is not known."""
        low, high = self._apart.span(alpha)
        return (low, FARTHEST) if self.difference > 0 else (-self.a, high)

    def ratio_span(self, alpha: float = ALPHA) -> Interval | None:
        """The interval of the ratio; its far end is not known."""
        span = self._apart.ratio_span(alpha)
        if span is None:
            return None
        return (span[0], FARTHEST) if self.difference > 0 else (0.0, span[1])
