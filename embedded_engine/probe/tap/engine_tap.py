"""Hooks on EngineCore's thread: each makes one small record and returns.

Numbers, and references to objects vLLM will not change, go into the channel; readings
are made of them on the channel's thread (see ``step_assembler``). Nothing is set on
vLLM's objects here; only :mod:`control.live_limits` does that, on request.

After a forward pass none of our data is in the CPU's caches, so every call and
attribute costs an access to main memory: hence there are few.
"""

import functools
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from time import monotonic_ns
from typing import Any

from collectors.contract.readings import BoundBy, Deferral
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.hooks import Fuse, Given, Hook
from embedded_engine.probe.tap.block_tap import BlockTap
from embedded_engine.probe.tap.idle_cache import IdleCache
from embedded_engine.probe.tap.step_assembler import NO_WORK, ONLY_DECODE, StepAssembler
from embedded_engine.probe.vllm_names import AttributeReader, Vllm
from embedded_engine.publishing.channel import Channel

# Why the head of the waiting queue was not scheduled, read off after ``schedule()``.
#
# The order is that of vLLM's own loop, which stops at the first of these:
#
# 1. nothing is waiting                                              → nothing
# 2. it preempted in this step, so it did not look at the queue      → kv
# 3. the scheduler is paused                                         → other
# 4. the step's token budget is used up                              → tokens
# 5. as many sequences are running as allowed                        → seqs
# 6. all waiting requests are skipped (grammar, LoRA, remote KV)     → deferred
# 7. the step was to hold prefills, and computed none                → deferred
# 8. without chunked prefill, the head's prompt exceeds the budget   → tokens
# 9. the head's blocks, prefix hits aside, exceed the free ones      → kv
# 10. the head has inputs for the encoder, whose budget is used up   → deferred
# 11. anything else (alignment)                                      → other
#
# Why requests are skipped is read off the first of them.
#
# Where vLLM keeps no list of deferred requests (0.29 and before), one skipped for its
# LoRA cannot be told from one not looked at: rule 6 then counts only requests whose
# status says that they wait for something.
#
# Rule 9 reads the state in which vLLM gave up on the head, since nothing is allocated
# afterwards. It may call a request too large that would fit with a prefix hit, but then
# vLLM would have scheduled it. Rule 10 is by elimination: a head with such inputs, and
# with room for everything else, is nearly always waiting for the encoder.


LOOKED_AT = 64
"""Running requests whose adapters are looked at."""


class QueueHeadRule:
    """Determines why a scheduler did not take the head of its queue."""

    def __init__(self, scheduler: Vllm, missing: Callable[[str], None]) -> None:
        groups, block = AttributeReader("Scheduler", names.BLOCKS, missing).read(
            scheduler
        )
        self._block = block if len(groups) == 1 else None
        self._limits = AttributeReader("Scheduler", names.LIMITS, missing)
        self._gates = AttributeReader("Scheduler", names.GATES, missing)
        self._size = AttributeReader("Request", names.SIZE, missing)
        self._status = AttributeReader("Request", names.STATUS, missing)
        self._deferral = AttributeReader("Request", names.DEFERRAL, missing)
        self._running = AttributeReader("Scheduler", names.RUNNING, missing)
        self._skipped: Vllm = ()
        self._limits.read(scheduler)  # reports missing attributes at start-up
        self._gates.read(scheduler)

    def by(
        self,
        scheduler: Vllm,
        state: tuple[int, Vllm, Vllm, int | None],
        step: tuple[int, int, bool, bool],
    ) -> tuple[BoundBy, str | None]:
        """Why the head of the queue was not scheduled, and why it was deferred if so.

        Only when requests are waiting. ``state``: number of running requests, the two
        queues, free blocks. ``step``: requests and tokens scheduled, whether it
        preempted, and whether it held prefills.
        """
        running, waiting, holding, free = state
        members, tokens, preempted, holds = step
        paused, sessions, deferred = self._gates.read(scheduler)
        self._skipped = deferred
        if preempted or paused:
            return BoundBy.KV if preempted else BoundBy.OTHER, None
        limits = self._limits.read(scheduler)
        left = _left(limits, members, tokens)
        if left <= 0:
            return BoundBy.TOKENS, None
        seqs = limits[1]
        if seqs is not None and running + sessions >= seqs:
            return BoundBy.SEQS, None
        head = self._head(holding, deferred) or self._head(waiting, deferred)
        if head is None:
            first = (holding or waiting).peek_request()
            return BoundBy.DEFERRED, self._deferral_of(scheduler, first)
        if holds:
            return BoundBy.DEFERRED, Deferral.HELD
        return self._by_head(limits, head, free, left)

    @property
    def deferred(self) -> int | None:
        """Number of requests skipped as of then; None if vLLM keeps no list of them."""
        return None if callable(self._skipped) else len(self._skipped)

    def _by_head(
        self, limits: tuple[Vllm, ...], head: Vllm, free: int | None, left: float
    ) -> tuple[BoundBy, str | None]:
        *_, chunked, _, watermark = limits
        tokens, encodes = self._size.read(head)
        if not chunked and tokens > left:
            return BoundBy.TOKENS, None
        if self._block is None or free is None:
            return BoundBy.KV, None  # by elimination, as its blocks are unknown
        blocks = -(-tokens // self._block) + watermark
        if blocks > free:
            return BoundBy.KV, None
        if encodes:
            return BoundBy.DEFERRED, Deferral.ENCODER
        return BoundBy.OTHER, None

    def _deferral_of(self, scheduler: Vllm, request: Vllm) -> str | None:
        """Why vLLM skips a request: by its status, else by what it could wait for."""
        status, adapter = self._deferral.read(request)
        named = names.DEFERRALS.get(getattr(status, "name", ""))
        if named is not None:
            return named
        transfers = getattr(scheduler, names.CONNECTOR, None) is not None
        encoders = getattr(scheduler, names.ENCODER_CONNECTOR, None) is not None
        if adapter is not None and (
            not (transfers or encoders) or self._are_enough(scheduler, adapter)
        ):
            return Deferral.ADAPTER
        if transfers:
            return Deferral.TRANSFER
        return Deferral.ENCODER if encoders else None

    def _are_enough(self, scheduler: Vllm, adapter: Vllm) -> bool:
        """Whether the batch has as many other adapters as may be, as far as is seen."""
        running, _ = self._running.read(scheduler)
        read = self._deferral.read
        adapters = (read(each)[1] for each in islice(running, LOOKED_AT))
        there = {getattr(each, names.LORA_ID, 0) for each in adapters if each}
        most = getattr(getattr(scheduler, "lora_config", None), "max_loras", 0)
        return getattr(adapter, names.LORA_ID, 0) not in there and len(there) >= most

    def _head(self, queue: Vllm, deferred: Vllm) -> Vllm | None:
        """The first waiting request that was not skipped; None if all were."""
        if not queue:
            return None
        first = queue.peek_request()  # iterating over a priority queue is expensive
        if not self._is_deferred(first, deferred):
            return first
        others = (each for each in queue if not self._is_deferred(each, deferred))
        return next(others, None)

    def _is_deferred(self, request: Vllm, deferred: Vllm) -> bool:
        if callable(deferred):
            return bool(deferred(self._status.read(request)))
        return request in deferred


def _left(limits: tuple[Vllm, ...], members: int, tokens: int) -> float:
    """Tokens that the scheduler could still have added to the step."""
    budget, _, batched, _, speculation, _ = limits
    left = float("inf") if budget is None else budget - tokens
    if batched is not None:
        slots = getattr(speculation, names.DRAFT_SLOTS, 0) * (members + 1)
        left = min(left, batched - tokens - slots)
    return left


NOTHING = BoundBy.NOTHING
UNSCHEDULED_NS = 10_000_000
"""How often to look why nothing is scheduled: vLLM asks its scheduler each millisecond
while requests wait for something, and none runs."""


class PrefillTracker:
    """Tells prefill from decode, and counts recomputed tokens.

    Only requests in prefill are tracked, so a step of pure decode costs nothing.

    A request is in prefill from its first chunk, or its first one after a preemption,
    to the chunk that computes the last of its known tokens. What it had computed before
    a preemption is recomputed, unless it is still in the prefix cache.
    """

    def __init__(self, missing: Callable[[str], None]) -> None:
        self.prefilling: set[str] = set()
        """Requests whose next chunk is prefill."""
        self._requests = AttributeReader("Scheduler", names.REQUESTS, missing)
        self._progress = AttributeReader("Request", names.PROGRESS, missing)
        self._lost: dict[str, int] = {}

    def preempted(self, request_id: str, computed: int) -> None:
        """Take note of a preempted request, which lost its computed tokens."""
        self.prefilling.discard(request_id)
        self._lost[request_id] = max(computed, self._lost.get(request_id, 0))

    def ended(self, request_id: str) -> None:
        """Forget a request that finished."""
        self.prefilling.discard(request_id)
        self._lost.pop(request_id, None)

    def of_step(
        self,
        scheduler: Vllm,
        members: Mapping[str, int],
        starting: Collection[str],
    ) -> tuple[int, int, int]:
        """Number of requests in prefill, their tokens, and recomputed tokens of a step.

        Called after ``schedule()``, when scheduled tokens already count as computed.
        """
        self.prefilling.update(starting)
        requests = self._requests.read(scheduler)
        here = [r for r in self.prefilling if r in members and r in requests]
        recomputed = 0
        for request_id in here:
            computed, more = self._progress.read(requests[request_id])
            recomputed += self._again(request_id, computed, members[request_id])
            if not more:
                self.prefilling.discard(request_id)
        return len(here), sum(map(members.__getitem__, here)), recomputed

    def _again(self, request_id: str, computed: int, scheduled: int) -> int:
        """How many of the tokens just scheduled had been computed before."""
        lost = self._lost.get(request_id)
        if lost is None:
            return 0
        if computed >= lost:
            del self._lost[request_id]
        return max(0, min(computed, lost) - (computed - scheduled))


@dataclass(slots=True)
class StepHook(Hook):
    """The hook on a method that every step calls, inactive until there is a tap.

    Of the callbacks only ``before`` is called, and only around ``schedule()``.
    Its wrapper also does the tap's work in a plain step, and calls by local names: with
    cold caches each further call, object and attribute costs a tenth of a microsecond
    or more.
    """

    tap: "EngineTap | None" = None


class ScheduleHook(StepHook):
    """The hook on ``schedule()``, with which a step begins, unless it has no tokens."""

    def around(self, original: Callable[..., Any], fuse: Fuse) -> Callable[..., Any]:
        @functools.wraps(original)
        def schedule(scheduler: Vllm, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            tap = self.tap
            if tap is None or fuse.blown:
                return original(scheduler, *args, **kwargs)
            before = self.before
            entered = monotonic_ns()
            if before is not None:
                try:
                    before(scheduler, (*args, *kwargs.values()), entered)
                except Exception as error:
                    fuse.blow(f"{original.__qualname__}: {error!r}")
                fuse.cost_ns += monotonic_ns() - entered
            output = original(scheduler, *args, **kwargs)
            returned = monotonic_ns()
            try:
                read, begin, length = tap.step.read, tap.begin, tap.length
                members, tokens, new, resumed = read(output)
                if tokens:
                    read = tap.queues.read
                    running, waiting, holding = read(scheduler)
                    waits = length(waiting) + length(holding)
                    if new or resumed or waits or tap.prefilling or tap.preempted:
                        given = (*args, *kwargs.values())
                        tap.eventful(scheduler, output, entered, waits, given)
                    else:
                        runs = len(running)
                        begin((output, members, entered, tokens, runs, ONLY_DECODE))
                else:
                    tap.unscheduled(scheduler, entered)
            except Exception as error:
                fuse.blow(f"{original.__qualname__}: {error!r}")
            fuse.cost_ns += monotonic_ns() - returned
            return output

        return schedule


class UpdateHook(StepHook):
    """The hook on ``update_from_output()``, with which a step ends."""

    def around(self, original: Callable[..., Any], fuse: Fuse) -> Callable[..., Any]:
        @functools.wraps(original)
        def update(scheduler: Vllm, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            tap = self.tap
            if tap is None or fuse.blown:
                return original(scheduler, *args, **kwargs)
            entered = monotonic_ns()
            outputs = original(scheduler, *args, **kwargs)
            returned = monotonic_ns()
            try:
                output = (*args, *kwargs.values())[0] if kwargs else args[0]
                append, ticket, read = tap.append, tap.ticket, tap.size.read
                kv = read(tap.free), tap.idle_cache.cached
                append((ticket(), tap.end, output, outputs, entered, returned, kv))
                if returned >= tap.blocks.due_ns:
                    tap.blocks.take(returned)
            except Exception as error:
                fuse.blow(f"{original.__qualname__}: {error!r}")
            fuse.cost_ns += monotonic_ns() - returned
            return outputs

        return update


def length_of(queues: Collection[Vllm]) -> Callable[[Vllm], int]:
    """The cheapest function for the lengths of queues.

    vLLM's first-come queue is a deque, with a ``__len__`` of Python code around the
    deque's.
    """
    plain = all(isinstance(queue, deque) for queue in queues)
    return deque.__len__ if plain else len


def thinking_end(scheduler: Vllm) -> list[int]:
    """The tokens that end a model's thinking; empty without a reasoning parser."""
    for path in names.THINKING_END:
        with suppress(AttributeError):
            if tokens := attrgetter(path)(scheduler):
                return list(tokens)
    return []


def thinking_tokens(output: Sequence[int], end: Sequence[int]) -> int | None:
    """How many tokens of an output are thinking, its end included; None if it has none.

    One search for each request that ends, over numbers.
    """
    at = -1
    with suppress(ValueError):
        while True:
            at = output.index(end[0], at + 1)
            if list(output[at : at + len(end)]) == [*end]:
                return at + len(end)
    return None


def engine_hooks() -> dict[str, Hook]:
    """The hooks of an EngineTap by the key of the vLLM method they are for."""
    return {
        "schedule": ScheduleHook(),
        "update": UpdateHook(),
        "add": Hook(),
        "preempt": Hook(),
        "reset": Hook(),
        "free": Hook(),
    }


def keeps_cadence(scheduler: Vllm) -> bool:
    """Whether too few steps ran since the last one that computed a prompt."""
    interval, executed, last = (getattr(scheduler, name) for name in names.CADENCE)
    return bool(executed - last < interval)


class EngineTap:
    """Hooks on one scheduler, from its creation on."""

    def __init__(
        self,
        scheduler: Vllm,
        story: StepAssembler,
        idle_cache: IdleCache,
        blocks: BlockTap,
        channel: Channel,
        missing: Callable[[str], None],
    ) -> None:
        self._story = story
        self.begin, self.end = story.under_way.append, story.end
        self.append, self.ticket = channel.append, channel.ticket
        self._put = channel.put
        self.idle_cache = idle_cache
        self.blocks = blocks
        self._bound = QueueHeadRule(scheduler, missing)
        self._prefills = PrefillTracker(missing)
        self.prefilling = self._prefills.prefilling
        self.free = AttributeReader("Scheduler", names.FREE_QUEUE, missing).read(
            scheduler
        )
        self.size = AttributeReader("FreeKVCacheBlockQueue", names.QUEUE_SIZE, missing)
        self.queues = AttributeReader("Scheduler", names.QUEUES, missing)
        _, *queues = self.queues.read(scheduler)
        self.length = length_of(queues)
        """The function that counts the requests in a queue."""
        self.step = AttributeReader("SchedulerOutput", names.STEP, missing)
        self._first = AttributeReader("NewRequestData", names.FIRST, missing)
        self._queued = AttributeReader("Request", names.QUEUED, missing)
        self._computed = AttributeReader("Request", names.COMPUTED, missing)
        self._ended = AttributeReader("Request", names.ENDED, missing)
        self._requests = AttributeReader("Scheduler", names.REQUESTS, missing)
        self._prefill = AttributeReader("Request", names.PREFILL, missing)
        policy, connector = AttributeReader("Scheduler", names.POLICY, missing).read(
            scheduler
        )
        self._by_priority = getattr(policy, "value", None) == names.BY_PRIORITY
        self._has_connector = connector is not None
        self._thinking_end = thinking_end(scheduler)
        self.preempted: list[str] = []
        self._out_of_blocks = False
        self._capacity = AttributeReader("Scheduler", names.CAPACITY_BOUND, missing)
        self._has_cadence = getattr(scheduler, names.CADENCE[0], 0) > 1
        self._unscheduled_due_ns = 0
        """When to look again why nothing is scheduled."""
        self._deferred_before: str | None = None
        """Why requests waited when it was last looked."""

    @property
    def free_blocks(self) -> int | None:
        """KV blocks no request uses now."""
        free: int | None = self.size.read(self.free)
        return free

    def take(self, hooks: Mapping[str, Hook]) -> None:
        """Install the hooks on the scheduler's methods."""
        for hook in hooks.values():
            if isinstance(hook, StepHook):
                hook.tap = self
        hooks["add"].after = self._added
        hooks["preempt"].before = self._preempts
        hooks["reset"].after = self._reset
        hooks["free"].after = self._freed

    def unscheduled(self, scheduler: Vllm, at_ns: int) -> None:
        """Nothing was scheduled, as while all requests wait for something."""
        if at_ns < self._unscheduled_due_ns:
            return
        self._unscheduled_due_ns = at_ns + UNSCHEDULED_NS
        running, waiting, holding = self.queues.read(scheduler)
        self._deferred_before = None
        if waiting or holding:
            state = len(running), waiting, holding, self.free_blocks
            step = 0, 0, False, False
            _, self._deferred_before = self._bound.by(scheduler, state, step)

    def eventful(
        self, scheduler: Vllm, output: Vllm, entered: int, waits: int, given: Given
    ) -> None:
        """A step begins in which more happens than decode, or requests wait.

        ``given`` are the arguments of ``schedule()``, which may ask it to hold
        prefills.
        """
        members, tokens, new, resumed = self.step.read(output)
        starting: Sequence[str] = ()
        if new or resumed:
            starting = self._starting(scheduler, new, resumed, entered)
        running, waiting, holding = self.queues.read(scheduler)
        work = NO_WORK
        if starting or self.prefilling:
            work = self._prefills.of_step(scheduler, members, starting)
        # One that holds prefills computes no more of a prompt than its last token.
        holds = True in given or (self._has_cadence and keeps_cadence(scheduler))
        holds = holds and work[1] <= work[0] and not self._capacity.read(scheduler)
        bound, deferral, deferred = NOTHING, None, None
        if waits:
            state = len(running), waiting, holding, self.free_blocks
            step = len(members), tokens, self._out_of_blocks, holds
            bound, deferral = self._bound.by(scheduler, state, step)
            deferred = self._bound.deferred
        elif holds and self.prefilling:
            deferral = Deferral.HELD
        preempted: Sequence[str] = ()
        if self.preempted:
            preempted, self.preempted = self.preempted, []
            self._out_of_blocks = False
        deferrals = deferral, deferred, self._deferred_before
        self._deferred_before = None
        more = waits, bound, preempted, work, deferrals
        self.begin((output, members, entered, tokens, len(running), more))

    def _starting(
        self, scheduler: Vllm, new: Vllm, resumed: Vllm, at_ns: int
    ) -> list[str]:
        starting = list(resumed)
        for request in new:
            request_id, cached = self._first.read(request)
            starting.append(request_id)
            external = None
            if self._has_connector:
                external = self._external_tokens(scheduler, request_id)
            self._put(self._story.scheduled, at_ns, request_id, cached, external)
        return starting

    def _external_tokens(self, scheduler: Vllm, request_id: str) -> int | None:
        """Prompt tokens of a request loaded by a KV connector."""
        request = self._requests.read(scheduler).get(request_id)
        stats = None if request is None else self._prefill.read(request)
        tokens: int | None = getattr(stats, names.EXTERNAL_TOKENS, None)
        return tokens

    def _added(self, _: Vllm, given: Given, __: None, ___: int, returned: int) -> None:
        """After ``add_request()``: a request was queued."""
        request_id, prompt_tokens, max_tokens, params, lora, priority = (
            self._queued.read(given[0])
        )
        temperature = getattr(params, names.TEMPERATURE, None)
        top_p = getattr(params, names.TOP_P, None)
        asked = prompt_tokens, max_tokens, temperature, top_p
        adapter = None if lora is None else getattr(lora, names.LORA_NAME, None)
        kind = adapter, priority if self._by_priority else None
        self._put(self._story.added, returned, request_id, asked, kind)

    def _preempts(self, _: Vllm, given: Given, __: int) -> None:
        """Before ``_preempt_request()``, which resets the count of computed tokens."""
        request_id, computed = self._computed.read(given[0])
        self._prefills.preempted(request_id, computed)
        self.preempted.append(request_id)
        self._out_of_blocks = True

    def _reset(self, *_: Vllm) -> None:
        """After ``reset_prefix_cache()``, which preempts even with free KV blocks."""
        self._out_of_blocks = False

    def _freed(self, _: Vllm, given: Given, __: Vllm, ___: int, returned: int) -> None:
        """After ``_free_request()``: a request finished or was aborted."""
        request_id, tokens, preemptions, reason = self._ended.read(given[0])
        self._prefills.ended(request_id)
        self._deferred_before, self._unscheduled_due_ns = None, 0
        why = str(reason())
        thinking = None
        if self._thinking_end:
            output = getattr(given[0], names.OUTPUT_IDS, ())
            thinking = thinking_tokens(output, self._thinking_end)
        counts = tokens, preemptions, thinking
        self._put(self._story.freed, returned, request_id, why, counts)
        if self.blocks.hears_ends:
            self.blocks.ended.append((returned, given[0]))
