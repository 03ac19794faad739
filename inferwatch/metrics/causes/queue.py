"""Why requests wait in the queue of a rank: what bound each of its steps.

Who waits at the ``schedule()`` of a step waits until that of the next, and what bound
the step is why. So nothing is kept for each of those who wait: a rank adds up its time
by what bound it, and of two of these accounts the difference is what lies between.
"""

import msgspec

from collectors.contract.readings import BoundBy, Step
from inferwatch.metrics.causes.cause import TTFT_CAUSES, Cause

PLACE = {cause: place for place, cause in enumerate(TTFT_CAUSES)}
"""Of a cause in a list of nanoseconds by cause."""
UNKNOWN = PLACE[Cause.UNKNOWN]

CAUSE_OF_BOUND = {
    BoundBy.NOTHING: Cause.UNKNOWN,
    BoundBy.SEQS: Cause.QUEUE_SEQS,
    BoundBy.TOKENS: Cause.QUEUE_TOKENS,
    BoundBy.KV: Cause.QUEUE_KV,
    BoundBy.DEFERRED: Cause.QUEUE_DEFERRED,
    BoundBy.OTHER: Cause.QUEUE_OTHER,
}
"""Why a request waits that was passed over; a step that nothing bound takes all."""
PLACE_OF_BOUND = {bound: PLACE[cause] for bound, cause in CAUSE_OF_BOUND.items()}

NO_STEP = -2
"""An index that none follows."""


def nothing_spent() -> list[int]:
    """Nanoseconds by cause, all zero."""
    return [0] * len(TTFT_CAUSES)


def largest(spent_ns: list[int]) -> Cause | None:
    """Where most of the time went, the first of several; None where there is none."""
    most = max(spent_ns)
    return TTFT_CAUSES[spent_ns.index(most)] if most > 0 else None


class QueueAccount(msgspec.Struct, array_like=True):
    """The time of one rank from step to step, by what bound it; saved as it is."""

    spent_ns: list[int] = msgspec.field(default_factory=nothing_spent)
    """Up to the start of the latest step, by place of TTFT_CAUSES."""
    start_ns: int | None = None
    """Of the latest step, likewise all below."""
    end_ns: int = 0
    index: int = 0
    place: int = UNKNOWN
    """The place in ``TTFT_CAUSES`` of what bound that step."""
    before_ns: int | None = None
    """When the step before it began; None where that was not told of."""
    before_end_ns: int = 0
    """When the step before it ended."""

    def take(self, step: Step) -> None:
        """A step of the rank, in their order: the time up to its start is told."""
        follows = step.index == self.index + 1
        if self.start_ns is None:
            self.before_ns = None
        else:
            passed_ns = max(0, step.start_ns - self.start_ns)
            self.spent_ns[self.place if follows else UNKNOWN] += passed_ns
            self.before_ns = self.start_ns if follows else None
            self.before_end_ns = self.end_ns
        self.start_ns = step.start_ns
        self.end_ns, self.index = step.end_ns, step.index
        self.place = PLACE_OF_BOUND[step.bound_by]

    def forget(self) -> None:
        """Readings were lost: what follows need not be the next step."""
        self.index = NO_STEP

    def is_first_after(self, t_ns: int) -> bool:
        """The latest step is known to be the first to begin at or after a moment."""
        if self.start_ns is None or self.start_ns < t_ns:
            return False
        if self.before_ns is None:
            return self.index == 0  # the first one that its process made
        return self.before_ns < t_ns

    def up_to_now(self) -> list[int]:
        """What was spent up to the end of the latest step."""
        spent_ns = self.spent_ns.copy()
        if self.start_ns is not None:
            under_way_ns = max(0, self.end_ns - self.start_ns)
            spent_ns[self.place] += under_way_ns
        return spent_ns
