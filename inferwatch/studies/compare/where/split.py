"""Splits the values of two sides into a part and the rest, and compares changes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inferwatch.metrics.series.intervals import ALPHA
from inferwatch.studies.compare.statistics.resampling import Draws, Floats, left_over
from inferwatch.studies.compare.statistics.significance import (
    Difference,
    Interval,
    Resampled,
)
from inferwatch.studies.compare.where.measure import Measure


@dataclass(frozen=True, slots=True)
class Split:
    """Both sides' values by block of time (rows), for a part and the rest."""

    part_a: Floats
    rest_a: Floats
    part_b: Floats
    rest_b: Floats
    measure: Measure
    explained: float
    """The part's share of the total change."""

    @property
    def counts(self) -> tuple[float, float, float, float]:
        """Numbers of values: of the part in A and B, then of the rest in A and B."""
        parts = self.part_a, self.part_b, self.rest_a, self.rest_b
        a, b, c, d = (float((each @ self.measure.below).sum()) for each in parts)
        return a, b, c, d

    @property
    def changes(self) -> tuple[float, float]:
        """Log ratios B / A of the part and of the rest."""
        of = self.measure.of
        part = _log(of(self.part_b), of(self.part_a))
        return part, _log(of(self.rest_b), of(self.rest_a))


def _log(above: float, below: float) -> float:
    """The logarithm of the ratio; NaN if it does not exist."""
    ratio = above / below if below else math.nan
    return math.log(ratio) if ratio > 0 else math.nan


@dataclass(frozen=True, slots=True)
class Judged:
    """A split, and whether the part changed significantly more than the rest."""

    split: Split
    apart: Difference
    """Compares the part's change with that of the rest."""
    part: Difference
    rest: Difference

    def is_apart(self, alpha: float) -> bool:
        """Whether the part changed significantly more than the rest."""
        span = self.apart.ratio_span(alpha)
        if span is None or self.part.ratio is None:
            return False
        low, high = span
        return low > 1 if self.part.ratio > 1 else high < 1

    @property
    def change(self) -> float:
        """The part's change in the metric's own unit."""
        return self.part.difference

    @property
    def part_span(self) -> Interval | None:
        return self.part.ratio_span(ALPHA)

    def is_all(self, negligible: float) -> bool:
        """Whether the rest shows no change, or only a negligible one."""
        if abs(self.rest.difference) <= negligible:
            return True
        change, elsewhere = self.split.changes
        left = abs(elsewhere / change) if change else math.inf
        if self.split.explained < 1 - LEFT or left > LEFT:
            return False
        low, high = self.rest.span()
        return low <= 0 <= high or left <= NEXT_TO_NOTHING


LEFT = 0.1
"""Largest share of a change outside the part that still counts as "all of it"."""
NEXT_TO_NOTHING = 0.05
"""A smaller share of the change is ignored, even if it is significant."""


def across(
    split: Split, draws: tuple[Draws, Draws], long: float, *, paired: bool
) -> Judged:
    """Judge a part and a rest at the same times: both use the same draws."""
    measure, (draws_a, draws_b) = split.measure, draws
    draws_of = [
        measure.drawn(rows, each)
        for rows, each in (
            (split.part_a, draws_a),
            (split.part_b, draws_b),
            (split.rest_a, draws_a),
            (split.rest_b, draws_b),
        )
    ]
    values = [
        measure.of(rows)
        for rows in (split.part_a, split.part_b, split.rest_a, split.rest_b)
    ]
    resampled = [
        Resampled(value, each, draws_a.blocks, left_over(long, draws_a.blocks))
        for value, each in zip(values, draws_of, strict=True)
    ]
    part_a, part_b, rest_a, rest_b = resampled
    return Judged(
        split=split,
        apart=Difference(_over(part_a, rest_a), _over(part_b, rest_b), paired=paired),
        part=Difference(part_a, part_b, paired=paired),
        rest=Difference(rest_a, rest_b, paired=paired),
    )


def in_turn(
    split: Split, draws: tuple[tuple[Draws, Draws], ...], *, paired: bool
) -> Judged:
    """Judge a part and a rest at different times: each uses draws of its own."""
    measure = split.measure
    (part_draws_a, part_draws_b), (rest_draws_a, rest_draws_b) = draws
    part_a, part_b, rest_a, rest_b = (
        Resampled(measure.of(rows), measure.drawn(rows, each), each.blocks)
        for rows, each in (
            (split.part_a, part_draws_a),
            (split.part_b, part_draws_b),
            (split.rest_a, rest_draws_a),
            (split.rest_b, rest_draws_b),
        )
    )
    return Judged(
        split=split,
        apart=Difference(_over(rest_b, rest_a), _over(part_b, part_a)),
        part=Difference(part_a, part_b, paired=paired),
        rest=Difference(rest_a, rest_b, paired=paired),
    )


def _over(above: Resampled, below: Resampled) -> Resampled:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = above.draws / below.draws
    ratio = above.value / below.value if below.value else math.nan
    return Resampled(ratio, ratios, above.blocks, max(above.left_over, below.left_over))


@dataclass(frozen=True, slots=True)
class GroupChange:
    """The log ratio by which a group changed, with its weight (1 / variance)."""

    log_ratio: float
    weight: float

    @classmethod
    def of(
        cls, a: Floats, b: Floats, measure: Measure, *, paired: bool
    ) -> "GroupChange":
        """The change of one group; its variance comes from a jackknife over blocks."""
        with np.errstate(divide="ignore", invalid="ignore"):
            log_values = [
                np.log(measure.drawn(rows, Draws.each_left_out(len(rows))))
                for rows in (a, b)
            ]
            parts = [log_values[1] - log_values[0]] if paired else log_values
        spread = sum((len(each) - 1) * float(each.var()) for each in parts)
        log_ratio = _log(measure.of(b), measure.of(a))
        if not math.isfinite(log_ratio) or not math.isfinite(spread):
            return cls(0.0, 0.0)
        return cls(log_ratio, 1 / (spread + LEAST_SPREAD))


LEAST_SPREAD = 1e-4
"""Smallest variance of a log ratio: none is known better than to a percent."""


def standing_out(changes: Sequence[GroupChange], part: Sequence[int]) -> float:
    """How much of the groups' variation is between the part and the rest."""
    inside = [changes[each] for each in part]
    outside = [each for place, each in enumerate(changes) if place not in part]
    means, weights = [], []
    for groups in (inside, outside):
        weight = sum(each.weight for each in groups)
        if not weight:
            return 0.0
        weights.append(weight)
        means.append(sum(each.log_ratio * each.weight for each in groups) / weight)
    variance = (means[0] - means[1]) ** 2
    return variance * weights[0] * weights[1] / sum(weights)
