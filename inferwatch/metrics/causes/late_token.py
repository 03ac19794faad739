"""Explains late tokens by the steps since the token before.

The Model, which keeps the latest steps, and stories, which have all, use the same
rules.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low

import msgspec

from collectors.contract.readings import Step
from inferwatch.metrics.causes.cause import SPIKE_FACTOR, SPIKE_LEAST_NS, Cause
from inferwatch.metrics.series.union import Span, union_ns

LEAST_USUAL = 4
"""Fewest steps or gaps for the usual to be known."""
LEAST_ALIKE = 3
ALIKE = 2
"""Largest ratio of prefill tokens between steps that count as alike."""


class StepFact(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The facts of a step that explain late tokens."""

    end_ns: int
    duration_ns: int
    gap_ns: int
    """Time before it in which no step ran, though there was work."""
    prefill_tokens: int
    decode_tokens: int
    index: int = 0

    @classmethod
    def of(cls, step: Step, gap_ns: int) -> "StepFact":
        """Return the facts of a step; no step ran for ``gap_ns`` before it."""
        return cls(
            step.end_ns,
            step.duration_ns,
            gap_ns,
            step.prefill_tokens,
            step.decode_tokens,
            step.index,
        )

    @property
    def apart_ns(self) -> int:
        """The time since the end of the step before it, without idle time."""
        return self.duration_ns + self.gap_ns

    @property
    def is_prefill(self) -> bool:
        """Whether at least half of the step's tokens are prefill."""
        return self.prefill_tokens >= max(1, self.decode_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """Why a token was late, and the numbers behind it."""

    cause: Cause
    between_ns: int = 0
    """Time in which no step ran."""
    prefill_ns: int = 0
    """Time that steps with prefill took beyond a usual step."""
    slow_ns: int = 0
    """Time that other steps took beyond a usual step."""
    left_out_ns: int = 0
    """Time of usual steps that gave it no token."""
    prefill_tokens: int = 0
    """Prompt tokens in these steps, of all requests."""
    steps: int = 0
    worst: StepFact | None = None
    """The longest step."""
    usual_step_ns: int | None = None
    """The usual duration of a decode-only step."""


def spike_from_ns(usual_gap_ns: float) -> float:
    """Return the shortest spike: three times the usual gap, at least 5 ms."""
    return max(SPIKE_LEAST_NS, SPIKE_FACTOR * usual_gap_ns)


def is_spike(gap_ns: int, usual_gap_ns: float | None) -> bool:
    """Return whether a gap is a spike; False where the usual gap is unknown."""
    return usual_gap_ns is not None and gap_ns > spike_from_ns(usual_gap_ns)


def usual_gap_ns(apart_ns: Collection[int]) -> int | None:
    """Return the median time between ends of steps; None if there are too few."""
    return median_low(apart_ns) if len(apart_ns) >= LEAST_USUAL else None


def why_late(
    last_ns: int,
    t_ns: int,
    steps: Sequence[StepFact],
    recent: Sequence[StepFact],
    *,
    preempted: bool = False,
    clock_dropped: bool = False,
) -> Lateness:
    """Return why a request got no token between two moments.

    ``steps`` are those of its rank that ended after ``last_ns``, up to the one with the
    token at ``t_ns``; ``recent`` are steps before those, from which usual times follow.
    ``preempted`` and ``clock_dropped`` tell whether the request was preempted, or the
    clocks of an engine's GPU throttled, in between.
    """
    usual_ns = usual_step_ns(recent)
    between_ns, left_ns = t_ns - last_ns, last_ns
    spent_ns = {"prefill": 0, "slow": 0, "left out": 0}
    for number, each in enumerate(steps, start=1):
        took_ns = max(0, each.end_ns - max(left_ns, each.end_ns - each.duration_ns))
        between_ns, left_ns = between_ns - took_ns, each.end_ns
        by_prefill = each.is_prefill and not _is_odd(each, recent)
        if number == len(steps):  # a usual step is not a spike
            took_ns = max(0, took_ns - (usual_ns or 0))
        kind = "slow" if number == len(steps) else "left out"
        spent_ns["prefill" if by_prefill else kind] += took_ns
    time_ns = {
        Cause.HOST_STALL: max(0, between_ns),
        Cause.LONG_PREFILL: spent_ns["prefill"],
        Cause.SLOW_STEP: spent_ns["slow"],
        Cause.UNKNOWN: spent_ns["left out"],
    }
    cause = max(time_ns, key=lambda each: time_ns[each])
    if 2 * time_ns[cause] < sum(time_ns.values()) or not steps:
        cause = Cause.UNKNOWN
    if cause is Cause.SLOW_STEP and clock_dropped:
        cause = Cause.CLOCK_DROP
    return Lateness(
        cause=Cause.RECOMPUTE if preempted else cause,
        between_ns=time_ns[Cause.HOST_STALL],
        prefill_ns=time_ns[Cause.LONG_PREFILL],
        slow_ns=time_ns[Cause.SLOW_STEP],
        left_out_ns=time_ns[Cause.UNKNOWN],
        prefill_tokens=sum(each.prefill_tokens for each in steps),
        steps=len(steps),
        worst=max(steps, key=lambda each: each.duration_ns, default=None),
        usual_step_ns=usual_ns,
    )


def is_compiling(spans: Iterable[Span], last_ns: int, t_ns: int) -> bool:
    """Return whether compilations took half of a gap, or one in it has no known end."""
    inside = [span for span in spans if span[0] <= t_ns and last_ns <= span[1]]
    took_ns = union_ns(inside, last_ns, t_ns)
    unknown = any(start == end for start, end in inside)
    return bool(inside) and (unknown or 2 * took_ns >= t_ns - last_ns)


def usual_step_ns(recent: Sequence[StepFact]) -> int | None:
    """Return the median duration of decode-only steps; of all if these are too few."""
    decoding = [each.duration_ns for each in recent if not each.prefill_tokens]
    if len(decoding) < LEAST_USUAL:
        decoding = [each.duration_ns for each in recent]
    return median_low(decoding) if len(decoding) >= LEAST_USUAL else None


def _is_odd(step: StepFact, recent: Sequence[StepFact]) -> bool:
    """Return whether steps with about as many prompt tokens were much faster."""
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
