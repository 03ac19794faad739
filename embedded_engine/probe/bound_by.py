"""Why the head of the waiting queue was not scheduled, read off after ``schedule()``.

The order is that of vLLM's own loop, which stops at the first of these:

1. nothing waits                                                  → nothing
2. it preempted in this step, so it did not look at the queue     → kv
3. the scheduler is paused                                        → other
4. the step's token budget is used up                             → tokens
5. as many sequences run as may                                   → seqs
6. all that wait are deferred (grammar, LoRA, remote KV)          → other
7. prompts are not chunked and the head's exceeds the budget left → tokens
8. the head's blocks, prefix hits aside, exceed the free ones     → kv
9. anything else (encoder budget, alignment, prefill balancing)   → other

Rule 8 reads the very state in which vLLM gave the head up: nothing is allocated
after that. It may call a request too big that a prefix hit would have made fit; then
vLLM would have scheduled it.
"""

from collections.abc import Callable

from collectors.readings import BoundBy
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.reader import Reader, Vllm


class Bound:
    """The rule, with the limits of one scheduler."""

    def __init__(self, scheduler: Vllm, missing: Callable[[str], None]) -> None:
        limits = Reader("Scheduler", names.LIMITS, missing).read(scheduler)
        budget, seqs, batched, chunked, speculation, watermark, groups, block = limits
        self._budget, self._seqs, self._batched = budget, seqs, batched
        self._chunked = chunked
        self._draft_slots = getattr(speculation, names.DRAFT_SLOTS, 0)
        self._watermark = watermark
        self._block = block if len(groups) == 1 else None
        self._gates = Reader("Scheduler", names.GATES, missing)
        self._size = Reader("Request", names.SIZE, missing)

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
        left = self._left(members, tokens)
        if left <= 0:
            return BoundBy.TOKENS
        if self._seqs is not None and running + sessions >= self._seqs:
            return BoundBy.SEQS
        head = _head(holding, deferred) or _head(waiting, deferred)
        return BoundBy.OTHER if head is None else self._by_head(head, free, left)

    def _left(self, members: int, tokens: int) -> float:
        """Tokens the step could still have taken."""
        left = float("inf")
        if self._budget is not None:
            left = self._budget - tokens
        if self._batched is not None:
            slots = self._draft_slots * (members + 1)
            left = min(left, self._batched - tokens - slots)
        return left

    def _by_head(self, head: Vllm, free: int | None, left: float) -> BoundBy:
        tokens = self._size.read(head)
        if not self._chunked and tokens > left:
            return BoundBy.TOKENS
        if self._block is None or free is None:
            return BoundBy.KV  # by elimination: what fits cannot be told
        blocks = -(-tokens // self._block) + self._watermark
        return BoundBy.KV if blocks > free else BoundBy.OTHER


def _head(queue: Vllm, deferred: Vllm) -> Vllm | None:
    """The first request that was not passed over."""
    if not deferred:
        return queue.peek_request() if queue else None
    return next((request for request in queue if request not in deferred), None)
