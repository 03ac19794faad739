"""How far step costs are drawn on beyond the steps that were seen, and how surely.

Steps of up to twice the requests or prompt tokens are priced by the slope of the curve.
How far off that is, is tried on the recording itself: learned from its smaller half,
what do its largest steps cost? A step is never taken to cost less than the largest
seen, nor more than as many of these as it holds: computing more at once is not dearer
than doing so by turns.
"""

import math
from dataclasses import dataclass

import numpy as np

from inferwatch.studies.what_if.recorded_steps import Bools, Floats, Ints, RecordedSteps
from inferwatch.studies.what_if.scheduler import StepLoad
from inferwatch.studies.what_if.step_cost import StepCost

REACH = 2.0
"""How many times the largest batch that was seen a step may hold."""
LEAST_ERROR = 0.15
"""Smallest assumed error of a step with REACH times as many: one try may be luck."""
UNTRIED_ERROR = 1.0
"""The error where there are too few smaller steps to try it: all that is possible."""
FEWEST_TRIED = 10
NEAR_THE_MOST = 0.9
"""Steps with at least this share of the most requests or tokens are those tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReach:
    """Up to where step costs may be drawn on, and the error at REACH."""

    cost: StepCost
    batch_error: float
    prefill_error: float

    @classmethod
    def of(cls, cost: StepCost, steps: RecordedSteps) -> "StepReach":
        decodes = steps.prefill_tokens == 0
        prefills = ~decodes
        return cls(
            cost=cost,
            batch_error=_tried(steps, steps.members, decodes),
            prefill_error=_tried(steps, steps.prefill_tokens, prefills),
        )

    def is_beyond(self, load: StepLoad) -> bool:
        """Whether nobody knows what the step costs."""
        return max(self._times(load)) > REACH

    def is_drawn_on(self, load: StepLoad) -> bool:
        """Whether it is larger than any step that was seen."""
        return (
            load.decoding + load.prefilling > self.cost.most_members
            or load.prefill_tokens > self.cost.most_prefill_tokens
        )

    def expected_ns(self, load: StepLoad, side: int) -> float:
        """The step's duration: as expected (0), or at either end of its error (±1)."""
        expected = self.cost.expected_ns(load)
        if not side:
            return expected
        batch, prefill = (math.log(e) / math.log(REACH) for e in self._times(load))
        off = self.batch_error * batch + self.prefill_error * prefill
        least = self.cost.expected_ns(self._largest(load))
        if side < 0:
            return min(max(expected * (1 - off), least), expected)
        most = least * max(self._times(load))
        return max(min(expected * (1 + off), most), expected)

    def _times(self, load: StepLoad) -> tuple[float, float]:
        """By which factor it exceeds the most requests, and the most prompt tokens."""
        members = load.decoding + load.prefilling
        return (
            max(members / self.cost.most_members, 1.0),
            max(load.prefill_tokens / max(self.cost.most_prefill_tokens, 1), 1.0),
        )

    def _largest(self, load: StepLoad) -> StepLoad:
        """The part of the step that is no larger than any seen."""
        batch, prefill = (1 / each for each in self._times(load))
        return StepLoad(
            decoding=int(load.decoding * batch),
            prefilling=max(int(load.prefilling * batch), int(load.prefilling > 0)),
            prefill_tokens=int(load.prefill_tokens * prefill),
            context_tokens=int(load.context_tokens * batch),
            pairs=load.pairs * prefill,
        )


def _tried(steps: RecordedSteps, sizes: Ints, kind: Bools) -> float:
    """The error of the largest steps of a kind, learned from those of half the size."""
    most = int(sizes[kind].max()) if kind.any() else 0
    small = sizes <= most / REACH
    large = kind & (sizes >= NEAR_THE_MOST * most)
    known = small & kind
    if min(known.sum(), large.sum()) < FEWEST_TRIED or sizes[known].min() == most:
        return UNTRIED_ERROR
    learned = StepCost(steps.where(small))
    missed: Floats = steps.took_ns[large] / learned.expected(steps.where(large)) - 1
    return max(abs(float(np.median(missed))), LEAST_ERROR)
