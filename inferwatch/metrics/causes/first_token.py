"""Attributes the time of a request up to its first token, in whole nanoseconds.

The Model does so for all requests, a story for its own.
"""

import msgspec

from collectors.contract.readings import Step
from inferwatch.metrics.causes.cause import MEDIA_CAUSES, TTFT_CAUSES, Cause, Parts
from inferwatch.metrics.causes.queue import NO_STEP, PLACE, QueueAccount, nothing_spent

NS_PER_S = 1_000_000_000


class Wait(msgspec.Struct, array_like=True):
    """A request's time in the engine by cause, from its queue to its first token.

    ``spent_ns`` adds up to ``upto_ns - added_ns`` at every moment. Saved as it is.
    """

    added_ns: int
    upto_ns: int
    """The time is attributed up to here."""
    spent_ns: list[int] = msgspec.field(default_factory=nothing_spent)
    """In the order of ``TTFT_CAUSES``."""
    account: list[int] | None = None
    """The rank's account when a step first passed it over; None before and afterwards.
    """
    step: int | None = None
    """Index of the latest step it was in; None while it queues."""
    computed: int = 0
    """Computed tokens, including cached ones."""
    lost: int = 0
    """Computed tokens that a preemption discarded and that are not recomputed yet."""
    put_back: bool = False
    """Whether it waits to resume after a preemption."""
    before: tuple[int, int] | None = None
    """Start and end of the last step that began before it was queued."""

    @classmethod
    def since(cls, added_ns: int) -> "Wait":
        """Return the wait of a request queued at ``added_ns``."""
        return cls(added_ns=added_ns, upto_ns=added_ns)

    def passed_over(self, account: QueueAccount) -> None:
        """Record that the first step after queueing did not schedule the request."""
        self._spend_until_step(account)
        self.account = account.spent_ns.copy()

    def taken(self, account: QueueAccount, cached_tokens: int) -> None:
        """Record that the latest step is the first to schedule the request."""
        if self.account is None:
            self._spend_until_step(account)
        else:
            self.spent_ns = self.so_far(account.spent_ns)
            self.upto_ns = self.added_ns + sum(self.spent_ns)
        self.account, self.computed = None, cached_tokens

    def chunk(self, step: Step, tokens: int, *, held: bool = False) -> None:
        """Add a step that computed a part of its prompt.

        ``held``: the step before it was to compute no prompts.
        """
        first, begin_ns = self.step is None, step.end_ns - step.duration_ns
        if self.put_back or self.lost:
            self._spend(Cause.RECOMPUTE, begin_ns)
        elif not first and step.index != (self.step or 0) + 1:
            left_out = Cause.PREFILL_HELD if held else Cause.PREFILL_DELAYED
            self._spend(left_out, begin_ns)
        again = min(tokens, self.lost, step.recomputed_tokens)
        self.lost = self.lost - again if again == tokens else 0
        whole_ns = max(0, step.end_ns - self.upto_ns)
        own_ns = whole_ns
        if first:  # another step may still run before its own
            own_ns = min(whole_ns, step.duration_ns)
        everyone = max(tokens, step.prefill_tokens + step.decode_tokens, 1)
        again_ns = whole_ns * again // max(tokens, 1)
        own_ns = own_ns * (tokens - again) // everyone
        self._spend(Cause.RECOMPUTE, self.upto_ns + again_ns)
        self._spend(Cause.PREFILL, self.upto_ns + own_ns)
        self._spend(Cause.PREFILL_SHARED, step.end_ns)
        self.step, self.put_back = step.index, False
        self.computed += tokens

    def preempted(self, step: Step) -> None:
        self._spend(
            Cause.RECOMPUTE if self.lost else Cause.PREFILL_DELAYED, step.start_ns
        )
        self.lost, self.computed = max(self.lost, self.computed), 0
        self.put_back = True

    @property
    def is_new(self) -> bool:
        """Whether no step has begun since the request was queued."""
        return self.step is None and self.account is None

    def so_far(self, now_ns: list[int]) -> list[int]:
        """Return the time waited by cause; ``now_ns`` is its rank's time by cause."""
        if self.account is None:
            return self.spent_ns
        pairs = zip(self.spent_ns, now_ns, self.account, strict=True)
        return [spent + now - then for spent, now, then in pairs]

    def freeze(self, account: QueueAccount | None = None) -> None:
        """End the attribution of time; ``account`` is the rank's, None if unknown."""
        if account is not None and self.account is not None:
            self.spent_ns = self.so_far(account.up_to_now())
            self.upto_ns = self.added_ns + sum(self.spent_ns)
        self.account = None
        self.step = NO_STEP if self.step is None else self.step

    def _spend_until_step(self, account: QueueAccount) -> None:
        """Attribute the time up to the latest step to the step that ran until then.

        What followed, if none ran, is due to why requests were deferred. Where steps
        were missed, the cause of that time is unknown.
        """
        known = account.is_first_after(self.added_ns)
        if known and account.before_ns is not None:
            self.before = account.before_ns, account.before_end_ns
        cause = Cause.QUEUE_STEP if known else Cause.UNKNOWN
        if known and account.idle_place is not None:
            self._spend(cause, account.before_end_ns)
            cause = TTFT_CAUSES[account.idle_place]
        self._spend(cause, account.start_ns or 0)

    def _spend(self, cause: Cause, upto_ns: int) -> None:
        """Attribute the time up to a moment, if it is not attributed yet."""
        if upto_ns > self.upto_ns:
            self.spent_ns[PLACE[cause]] += upto_ns - self.upto_ns
            self.upto_ns = upto_ns


def ttft_spent(
    wait: Wait | None,
    arrived_ns: int,
    ttft_ns: int,
    first_ns: int | None,
    tokenised_ns: int | None = None,
    media_ns: tuple[int, int] = (0, 0),
) -> list[int]:
    """Return a TTFT split by cause, in the order of TTFT_CAUSES.

    The parts add up to the TTFT. An engine takes requests into its queue between two
    steps: time on the way there during which a step ran counts as the step's, not as
    the API server's.

    ``wait`` is None where the engine's reports were lost. ``arrived_ns`` and
    ``ttft_ns`` are the front end's; ``first_ns`` is when the engine made the first
    token and ``tokenised_ns`` when the request left the front end, None where unknown.
    ``media_ns`` is what fetching and preprocessing media took.
    """
    unknown = PLACE[Cause.UNKNOWN]
    if wait is not None:
        spent_ns = wait.spent_ns.copy()
        api_ns = wait.added_ns - arrived_ns
        send_ns = 0 if first_ns is None else arrived_ns + ttft_ns - first_ns
        held_ns = wait_ns(wait, tokenised_ns)
        for cause, took_ns in zip(MEDIA_CAUSES, media_ns, strict=True):
            spent_ns[PLACE[cause]] = took_ns
        api_ns -= held_ns + sum(media_ns)
        spent_ns[PLACE[Cause.API]] = api_ns
        spent_ns[PLACE[Cause.QUEUE_STEP]] += held_ns
        spent_ns[PLACE[Cause.SEND]] = send_ns
        left_ns = ttft_ns - sum(spent_ns)
        if min(api_ns, send_ns, left_ns) >= 0:
            spent_ns[unknown] += left_ns
            return spent_ns
    # Parts that contradict the front end's TTFT are not used.
    spent_ns = nothing_spent()
    spent_ns[unknown] = ttft_ns
    return spent_ns


def wait_ns(wait: Wait, tokenised_ns: int | None) -> int:
    """Return how long a step ran while the request was on its way to the engine."""
    if tokenised_ns is None or wait.before is None:
        return 0
    start_ns, end_ns = wait.before
    return max(0, min(end_ns, wait.added_ns) - max(start_ns, tokenised_ns))


def parts_of(spent_ns: list[int]) -> Parts:
    """Return the parts of a TTFT in seconds, without zeros."""
    pairs = zip(TTFT_CAUSES, spent_ns, strict=True)
    return tuple((cause, ns / NS_PER_S) for cause, ns in pairs if ns)
