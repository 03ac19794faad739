"""Why the head of the waiting queue was not scheduled, read off after ``schedule()``.

The order is that of vLLM's own loop, which stops at the first of these:

1. nothing waits                                                  → nothing
2. it preempted in this step, so it did not look at the queue     → kv
3. the scheduler is paused                                        → other
4. the step's token budget is used up                             → tokens
5. as many sequences run as may                                   → seqs
6. all that wait are passed over (grammar, LoRA, remote KV)       → deferred
7. prompts are not chunked and the head's exceeds the budget left → tokens
8. the head's blocks, prefix hits aside, exceed the free ones     → kv
9. the head has inputs for the encoder, whose budget is used up   → deferred
10. anything else (alignment, prefill balancing)                  → other

Where vLLM keeps no list of the deferred (0.29 and before) one that was passed over for
a LoRA's sake cannot be told from one that was not looked at: for rule 6 only those
count that still wait for something.

Rule 8 reads the very state in which vLLM gave the head up: nothing is allocated
after that. It may call a request too big that a prefix hit would have made fit; then
vLLM would have scheduled it. Rule 9 goes by what is left: with such inputs, and with
room for the rest, it is nearly always the encoder that the head waits for.
"""

from collections.abc import Callable

from collectors.contract.readings import BoundBy
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.attribute_reader import AttributeReader, Vllm


class QueueHeadRule:
    """Tells why a scheduler did not take the head of its queue, step by step."""

    def __init__(self, scheduler: Vllm, missing: Callable[[str], None]) -> None:
        groups, block = AttributeReader("Scheduler", names.BLOCKS, missing).read(
            scheduler
        )
        self._block = block if len(groups) == 1 else None
        self._limits = AttributeReader("Scheduler", names.LIMITS, missing)
        self._gates = AttributeReader("Scheduler", names.GATES, missing)
        self._size = AttributeReader("Request", names.SIZE, missing)
        self._status = AttributeReader("Request", names.STATUS, missing)
        self._limits.read(scheduler)  # what is missing is said at birth
        self._gates.read(scheduler)

    def by(
        self,
        scheduler: Vllm,
        state: tuple[int, Vllm, Vllm, int | None],
        step: tuple[int, int, bool],
    ) -> BoundBy:
        """The rule, when something waits.

        ``state``: how many run, the two queues, free blocks. ``step``: how many
        requests and tokens were scheduled, whether it had to preempt.
        """
        running, waiting, holding, free = state
        members, tokens, preempted = step
        if preempted:
            return BoundBy.KV
        paused, sessions, deferred = self._gates.read(scheduler)
        if paused:
            return BoundBy.OTHER
        limits = self._limits.read(scheduler)
        left = _left(limits, members, tokens)
        if left <= 0:
            return BoundBy.TOKENS
        seqs = limits[1]
        if seqs is not None and running + sessions >= seqs:
            return BoundBy.SEQS
        head = self._head(holding, deferred) or self._head(waiting, deferred)
        if head is None:
            return BoundBy.DEFERRED
        return self._by_head(limits, head, free, left)

    def _by_head(
        self, limits: tuple[Vllm, ...], head: Vllm, free: int | None, left: float
    ) -> BoundBy:
        *_, chunked, _, watermark = limits
        tokens, encodes = self._size.read(head)
        if not chunked and tokens > left:
            return BoundBy.TOKENS
        if self._block is None or free is None:
            return BoundBy.KV  # by elimination: what fits cannot be told
        blocks = -(-tokens // self._block) + watermark
        if blocks > free:
            return BoundBy.KV
        return BoundBy.DEFERRED if encodes else BoundBy.OTHER

    def _head(self, queue: Vllm, deferred: Vllm) -> Vllm | None:
        """The first request that was not passed over."""
        if not queue:
            return None
        first = queue.peek_request()  # to iterate over a priority queue is dear
        if not self._is_deferred(first, deferred):
            return first
        others = (each for each in queue if not self._is_deferred(each, deferred))
        return next(others, None)

    def _is_deferred(self, request: Vllm, deferred: Vllm) -> bool:
        if callable(deferred):
            return bool(deferred(self._status.read(request)))
        return request in deferred


def _left(limits: tuple[Vllm, ...], members: int, tokens: int) -> float:
    """Tokens the step could still have taken."""
    budget, _, batched, _, speculation, _ = limits
    left = float("inf") if budget is None else budget - tokens
    if batched is not None:
        slots = getattr(speculation, names.DRAFT_SLOTS, 0) * (members + 1)
        left = min(left, batched - tokens - slots)
    return left
