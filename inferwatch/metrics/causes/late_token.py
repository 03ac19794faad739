"""Why a token came late: what the steps since the one before it did.

Pure, of plain facts, so that the Model, which knows the latest steps, and stories,
which know them all, come to the same.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low

import msgspec

from collectors.contract.readings import Step
from inferwatch.metrics.causes.cause import SPIKE_FACTOR, SPIKE_LEAST_NS, Cause

LEAST_USUAL = 4
"""Fewer steps, or gaps, say nothing of what is usual."""
LEAST_ALIKE = 3
ALIKE = 2
"""Steps with up to so many times the prefill tokens, or down to, are alike."""


class StepFact(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What of a step makes tokens late."""

    end_ns: int
    duration_ns: int
    gap_ns: int
    """How long no step was under way before it, though there was work."""
    prefill_tokens: int
    decode_tokens: int
    index: int = 0

    @classmethod
    def of(cls, step: Step, gap_ns: int) -> "StepFact":
        """The facts of a step, with ``engines.gap_ns`` before it."""
        return cls(
            step.end_ns,
            step.duration_ns,
            gap_ns,
            step.prefill_tokens,
            step.decode_tokens,
            step.index,
        )

    @property
    def is_prefill(self) -> bool:
        """Prompts are at least half of what it computes."""
        return self.prefill_tokens >= max(1, self.decode_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """Why a token came late, and the numbers that say so."""

    cause: Cause
    between_ns: int = 0
    """How long no step was under way."""
    prefill_ns: int = 0
    """What steps with prompts took beyond a usual step."""
    slow_ns: int = 0
    """What steps of usual work did."""
    left_out_ns: int = 0
    """What steps of usual work took that gave it no token."""
    prefill_tokens: int = 0
    """In these steps, of all prompts."""
    steps: int = 0
    worst: StepFact | None = None
    """The step that took longest."""
    usual_step_ns: int | None = None
    """What a step that only decodes usually takes."""


def spike_from_ns(usual_gap_ns: float) -> float:
    """A gap beyond this is a spike: three times the usual and 5 ms."""
    return max(SPIKE_LEAST_NS, SPIKE_FACTOR * usual_gap_ns)


def is_spike(gap_ns: int, usual_gap_ns: float | None) -> bool:
    """Whether a gap is a spike; False where nobody knows what is usual."""
    return usual_gap_ns is not None and gap_ns > spike_from_ns(usual_gap_ns)


def usual_gap_ns(recent: Iterable[StepFact]) -> int | None:
    """Median of what lies between two ends of steps while there is work."""
    gaps = [each.duration_ns + each.gap_ns for each in recent]
    return median_low(gaps) if len(gaps) >= LEAST_USUAL else None


def why_late(
    last_ns: int,
    t_ns: int,
    steps: Sequence[StepFact],
    recent: Sequence[StepFact],
    *,
    preempted: bool = False,
    clock_dropped: bool = False,
) -> Lateness:
    """Why there was no token of a request between two moments.

    Args:
        last_ns: When its token before came.
        t_ns: When this one did.
        steps: Of its rank that ended after that one, up to the one with this.
        recent: Steps before those, of usual work or not.
        preempted: It was put back into the queue in between.
        clock_dropped: The clocks of a GPU of its engine were held down in between.
    """
    usual_ns = usual_step_ns(recent)
    between_ns, left_ns = t_ns - last_ns, last_ns
    spent_ns = {"prefill": 0, "slow": 0, "left out": 0}
    for number, each in enumerate(steps, start=1):
        took_ns = max(0, each.end_ns - max(left_ns, each.end_ns - each.duration_ns))
        between_ns, left_ns = between_ns - took_ns, each.end_ns
        by_prefill = each.is_prefill and not _is_odd(each, recent)
        if number == len(steps):  # a usual step would have been no spike
            took_ns = max(0, took_ns - (usual_ns or 0))
        kind = "slow" if number == len(steps) else "left out"
        spent_ns["prefill" if by_prefill else kind] += took_ns
    found = {
        Cause.HOST_STALL: max(0, between_ns),
        Cause.LONG_PREFILL: spent_ns["prefill"],
        Cause.SLOW_STEP: spent_ns["slow"],
        Cause.UNKNOWN: spent_ns["left out"],
    }
    cause = max(found, key=lambda each: found[each])
    if 2 * found[cause] < sum(found.values()) or not steps:
        cause = Cause.UNKNOWN
    if cause is Cause.SLOW_STEP and clock_dropped:
        cause = Cause.CLOCK_DROP
    return Lateness(
        cause=Cause.RECOMPUTE if preempted else cause,
        between_ns=found[Cause.HOST_STALL],
        prefill_ns=found[Cause.LONG_PREFILL],
        slow_ns=found[Cause.SLOW_STEP],
        left_out_ns=found[Cause.UNKNOWN],
        prefill_tokens=sum(each.prefill_tokens for each in steps),
        steps=len(steps),
        worst=max(steps, key=lambda each: each.duration_ns, default=None),
        usual_step_ns=usual_ns,
    )


def usual_step_ns(recent: Sequence[StepFact]) -> int | None:
    """Median of the steps that only decode; of all where these are too few."""
    decoding = [each.duration_ns for each in recent if not each.prefill_tokens]
    if len(decoding) < LEAST_USUAL:
        decoding = [each.duration_ns for each in recent]
    return median_low(decoding) if len(decoding) >= LEAST_USUAL else None


def _is_odd(step: StepFact, recent: Sequence[StepFact]) -> bool:
    """Others with as many prompt tokens took far less: these are not why."""
    tokens = step.prefill_tokens
    alike = [
        each.duration_ns
        for each in recent
        if each.is_prefill
        and tokens <= ALIKE * each.prefill_tokens <= ALIKE**2 * tokens
    ]
    if len(alike) < LEAST_ALIKE:
        return False
    return step.duration_ns > SPIKE_FACTOR * median_low(alike)
