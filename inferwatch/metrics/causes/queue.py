"""Why requests wait in the queue of a rank: what bound each of its steps.

A request that a step does not schedule waits until the next one, because of what bound
the step. So nothing is kept per waiting request: a rank adds up its time by what bound
it, and the difference of two such accounts is a wait.
"""

import msgspec

from collectors.contract.readings import BoundBy, Deferral, Step
from inferwatch.metrics.causes.cause import (
    CAUSE_OF_DEFERRAL,
    DEFERRAL_CAUSES,
    TTFT_CAUSES,
    Cause,
)

PLACE = {cause: place for place, cause in enumerate(TTFT_CAUSES)}
"""Index of each cause in lists of nanoseconds by cause."""
UNKNOWN = PLACE[Cause.UNKNOWN]

CAUSE_OF_BOUND = {
    BoundBy.NOTHING: Cause.UNKNOWN,
    BoundBy.SEQS: Cause.QUEUE_SEQS,
    BoundBy.TOKENS: Cause.QUEUE_TOKENS,
    BoundBy.KV: Cause.QUEUE_KV,
    BoundBy.DEFERRED: Cause.QUEUE_DEFERRED,
    BoundBy.OTHER: Cause.QUEUE_OTHER,
}
"""Why a waiting request was not scheduled; a step that nothing bound schedules all."""
BOUND_OF_CAUSE = {
    **dict.fromkeys(DEFERRAL_CAUSES, BoundBy.DEFERRED),
    Cause.QUEUE_SEQS: BoundBy.SEQS,
    Cause.QUEUE_TOKENS: BoundBy.TOKENS,
    Cause.QUEUE_KV: BoundBy.KV,
    Cause.RECOMPUTE: BoundBy.KV,
    Cause.QUEUE_OTHER: BoundBy.OTHER,
}
"""What requests queued for, by the cause of their time."""

NO_STEP = -2
"""A step index that no index follows."""


def cause_of(step: Step) -> Cause:
    """Return why a waiting request was not scheduled in a step."""
    if step.bound_by is BoundBy.DEFERRED:
        return CAUSE_OF_DEFERRAL.get(step.deferred_by, Cause.QUEUE_DEFERRED)
    return CAUSE_OF_BOUND[step.bound_by]


def cause_before(step: Step) -> Cause | None:
    """Return why requests waited before a step while none ran; None if unknown."""
    if step.deferred_before is None:
        return None
    return CAUSE_OF_DEFERRAL.get(step.deferred_before, Cause.QUEUE_DEFERRED)


def nothing_spent() -> list[int]:
    return [0] * len(TTFT_CAUSES)


def largest(spent_ns: list[int]) -> Cause | None:
    """Return the cause with most time, the first of equals; None if all are zero."""
    most = max(spent_ns)
    return TTFT_CAUSES[spent_ns.index(most)] if most > 0 else None


class QueueAccount(msgspec.Struct, array_like=True):
    """The time of one rank by what bound its steps; saved as it is."""

    spent_ns: list[int] = msgspec.field(default_factory=nothing_spent)
    """Up to the start of the latest step, by place of TTFT_CAUSES."""
    start_ns: int | None = None
    """Start of the latest step, as are the fields below."""
    end_ns: int = 0
    index: int = 0
    place: int = UNKNOWN
    """Place in ``TTFT_CAUSES`` of what bound the step."""
    before_ns: int | None = None
    """When the step before it began; None if that was missed."""
    before_end_ns: int = 0
    """When the step before it ended."""
    idle_place: int | None = None
    """Place of why requests waited between the two, while none ran."""
    holds: bool = False
    """Whether it was to compute no prompts."""
    before_holds: bool = False

    def take(self, step: Step) -> None:
        """Add the next step of the rank, with the time up to its start."""
        follows, idle = step.index == self.index + 1, cause_before(step)
        if self.start_ns is None:
            self.before_ns = None
        else:
            passed_ns = max(0, step.start_ns - self.start_ns)
            if idle is not None and follows:
                idle_ns = min(passed_ns, max(0, step.start_ns - self.end_ns))
                self.spent_ns[PLACE[idle]] += idle_ns
                passed_ns -= idle_ns
            self.spent_ns[self.place if follows else UNKNOWN] += passed_ns
            self.before_ns = self.start_ns if follows else None
            self.before_end_ns = self.end_ns
        self.start_ns = step.start_ns
        self.end_ns, self.index = step.end_ns, step.index
        self.place = PLACE[cause_of(step)]
        self.idle_place = None if idle is None else PLACE[idle]
        self.before_holds = self.holds
        self.holds = step.deferred_by == Deferral.HELD

    def forget(self) -> None:
        """Record that readings were lost, so that steps may be missing."""
        self.index = NO_STEP

    def is_first_after(self, t_ns: int) -> bool:
        """Return whether the latest step is known to be the first since ``t_ns``."""
        if self.start_ns is None or self.start_ns < t_ns:
            return False
        if self.before_ns is None:
            return self.index == 0  # the first step of its process
        return self.before_ns < t_ns

    def up_to_now(self) -> list[int]:
        """Return the time by cause up to the end of the latest step."""
        spent_ns = self.spent_ns.copy()
        if self.start_ns is not None:
            under_way_ns = max(0, self.end_ns - self.start_ns)
            spent_ns[self.place] += under_way_ns
        return spent_ns
