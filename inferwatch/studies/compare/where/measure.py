"""A statistic of counted values, and how much of its change a part explains.

A part explains the change that would result if only it became as on the other side.
This is averaged over both orders, so that shares add up to one (Shapley 1953, A Value
for n-Person Games, with the part and the rest as its two players).
"""

from dataclasses import dataclass

import numpy as np

from inferwatch.studies.compare.metrics import STATISTICS
from inferwatch.studies.compare.statistics.resampling import (
    CountedValues,
    Draws,
    Floats,
)

BEYOND = 10
"""Fewest values beyond a quantile of a part."""
FEWEST = 30
"""Fewest values of a part on either side."""
SMALLER = {**STATISTICS, "p95": 0.95}
"""Statistics to fall back on when a part is too small for the metric's own."""
_NONE = np.zeros(0)


@dataclass(frozen=True, slots=True)
class Measure:
    """A statistic of rows of counts, or of rows with a numerator and a denominator."""

    above: Floats
    """Each column's value; 1 for a column that is itself the numerator."""
    below: Floats
    share: float | None = None
    """The level of a quantile; None for a mean or a rate."""
    other: str | None = None
    """Name of the statistic, if it is not the metric's own."""

    def of(self, rows: Floats) -> float:
        """The statistic over all rows together; NaN if they are empty."""
        return float(self.of_each(rows.sum(axis=0, keepdims=True))[0])

    def of_each(self, rows: Floats) -> Floats:
        n = rows @ self.below
        if self.share is None:
            ratios = rows @ self.above / np.where(n > 0, n, np.nan)
            return np.asarray(ratios, np.float64)
        upto = np.cumsum(rows, axis=1)
        rank = (upto < self.share * upto[:, -1:] - 1e-6).sum(axis=1)
        ratios = self.above[np.minimum(rank, rows.shape[1] - 1)]
        return np.where(n > 0, ratios, np.nan)

    def drawn(self, rows: Floats, draws: Draws) -> Floats:
        below = rows @ self.below
        if self.share is None:
            return draws.ratios(rows @ self.above, below)
        values = CountedValues(
            counts=rows.astype(np.int64), values_s=self.above, sums_s=_NONE, bins=_NONE
        )
        quantiles = draws.quantiles(values, self.share)
        return np.where(draws.weights @ below > 0, quantiles, np.nan)

    def fit_for(self, fewest: float) -> "Measure | None":
        """The nearest statistic for which ``fewest`` values are enough, or None."""
        if fewest < FEWEST:
            return None
        if self.share is None or fewest * min(self.share, 1 - self.share) >= BEYOND:
            return self
        for name, share in sorted(SMALLER.items(), reverse=True):
            if share < self.share and fewest * min(share, 1 - share) >= BEYOND:
                return Measure(self.above, self.below, share, name)
        return Measure(self.above, self.below, None, "mean")


def explained(
    measure: Measure, parts: tuple[Floats, Floats], whole: tuple[Floats, Floats]
) -> Floats:
    """The share of the total change that each part explains.

    Args:
        measure: The statistic that changed.
        parts: For A and B: one row per part, summed over time.
        whole: For A and B: a single row with everything.
    """
    scale = float((whole[0] @ measure.below).sum() / (whole[1] @ measure.below).sum())
    (part_a, part_b), (all_a, all_b) = parts, whole
    part_b, all_b = part_b * scale, all_b * scale
    with np.errstate(divide="ignore", invalid="ignore"):
        before, after = (np.log(measure.of_each(each)) for each in (all_a, all_b))
        only_it = np.log(measure.of_each(all_a - part_a + part_b)) - before
        all_else = np.log(measure.of_each(part_a + all_b - part_b)) - before
        total = after - before
        return np.asarray((only_it + total - all_else) / 2 / total, np.float64)
