"""vLLM's V1 scheduler, step by step, for requests whose lengths are known.

It follows ``vllm/v1/core/sched/scheduler.py`` (0.32; the same since 0.9):

1. Running requests come first, in order of admission: each gets a token, or the next
   chunk of its prompt, while the step's token budget lasts. If blocks are missing, the
   request admitted last (by priority: the least important) is preempted, loses all it
   has computed, and goes to the head of the queue.
2. Then the queue, unless a request was just preempted: first come first served or by
   priority, while fewer than ``max_num_seqs`` run and the budget lasts. Admission needs
   blocks for all tokens of the request, not only for its first chunk.

All decoding requests advance by one token a step, so they are not visited one by one: a
counter of steps tells where each stands, which end and which need a block. Only if
blocks or tokens are short is every request visited.

What a preempted request had computed is found again in the prefix cache as far as its
blocks were not reused; :class:`FreeBlocks` knows which are reused first.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from collectors.contract.readings import BoundBy
from inferwatch.studies.what_if.setting import SchedulerSetting

STEPS_AT_ONCE = 2_000
"""How many steps are simulated between two reports of progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """A request as it reaches the scheduler."""

    index: int
    prompt_tokens: int
    output_tokens: int
    """The output tokens to generate; 0 if it was aborted before the first."""
    cached_tokens: int = 0
    """Prompt tokens that were in the prefix cache when it was first scheduled."""
    shared_blocks: int = 0
    """Cached blocks that other requests hold, so that they cost no free block."""
    priority: int = 0
    patience_ns: int | None = None
    """How long it waits for its first token before it is aborted; None for no limit."""


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A request in the simulated engine."""

    spec: RequestSpec
    due_ns: int
    added_ns: int
    """When the engine added it to its queue, which happens only between steps."""
    known: int
    """Prompt tokens plus output tokens so far."""
    computed: int = 0
    outputs: int = 0
    started_ns: int = -1
    first_ns: int = -1
    last_ns: int = -1
    decodes: bool = False
    """Whether each step gives it a token, so that its progress follows from the step
    counter.
    """
    since: int = 0
    """The step counter when decoding began; ``known`` and ``outputs`` are of that
    moment.
    """
    blocks: int = 0
    """Its own blocks; not updated while it decodes."""
    chunk: int = 0
    """Tokens scheduled in this step."""
    preemptions: int = 0


class FreeBlocks:
    """Free blocks, in the order in which vLLM allocates them.

    As in its ``BlockPool.free_blocks``: first those without cached content, the last
    freed first; then the others, least recently used first, and of each request its
    last block first. The order of blocks without content makes no difference here.
    """

    def __init__(self, blocks: int) -> None:
        self.count = blocks
        self._found_again: OrderedDict[SimulatedRequest, int] = OrderedDict()
        """Requests whose content is still cached in free blocks, next to be reused
        first."""
        self._empty = blocks

    def take(self, blocks: int) -> None:
        """Allocate the next blocks; the caller checked that there are enough."""
        self.count -= blocks
        from_empty = min(blocks, self._empty)
        self._empty -= from_empty
        self._drop(blocks - from_empty, last=False)

    def give(self, request: SimulatedRequest, blocks: int, full: int = 0) -> None:
        """Free all blocks of a request, ``full`` of which keep cached content."""
        self.count += blocks
        self._empty += blocks - full
        if full:
            self._found_again[request] = full

    def left(self, request: SimulatedRequest) -> int:
        """The number of free blocks that still hold a preempted request's cache."""
        return self._found_again.get(request, 0)

    def reuse(self, request: SimulatedRequest, blocks: int) -> None:
        """Allocate the request's own cached blocks, then those used most recently."""
        own = min(self._found_again.pop(request, 0), blocks)
        self.count -= blocks
        self._drop(blocks - own, last=True)

    def _drop(self, blocks: int, *, last: bool) -> None:
        while blocks > 0 and self._found_again:
            request, cached = self._found_again.popitem(last=last)
            if cached > blocks:
                self._found_again[request] = cached - blocks
                self._found_again.move_to_end(request, last=last)
            blocks -= cached
        self._empty -= max(blocks, 0)


class StepDurations(Protocol):
    """The durations of simulated steps."""

    def step_ns(self, load: "StepLoad", now_ns: int) -> tuple[int, int]:
        """The duration of a step with this load, and the gap after it."""
        ...


@dataclass(slots=True)
class StepLoad:
    """The work of one step."""

    decoding: int = 0
    prefilling: int = 0
    prefill_tokens: int = 0
    context_tokens: int = 0
    """Tokens in the cache of all requests that decode."""
    pairs: float = 0.0
    """Pairs of query and key tokens in attention, of all requests that prefill."""


class ArrivalSource(Protocol):
    """The arrivals of requests."""

    def due(self, now_ns: int) -> Iterable[tuple[int, RequestSpec]]:
        """Yield the requests that arrive up to now, in order, with their times."""
        ...

    def next_ns(self) -> int | None:
        """When the next request arrives; None if there are no more."""
        ...

    def ended(self, spec: RequestSpec, now_ns: int) -> None:
        """Called when a request ended or was aborted; its user can send the next."""
        ...


@dataclass(slots=True)
class SimulationResult:
    """The result of a simulation."""

    ended: list[SimulatedRequest] = field(default_factory=list)
    given_up: list[SimulatedRequest] = field(default_factory=list)
    too_big: list[RequestSpec] = field(default_factory=list)
    """Requests whose prompts do not fit into the KV cache at all."""
    gaps_ns: list[int] = field(default_factory=list)
    gap_weights: list[int] = field(default_factory=list)
    steps: int = 0
    busy_ns: int = 0
    """Total time of all steps."""
    members: int = 0
    """The sum of batch sizes over all steps."""
    most_members: int = 0
    most_prefill_tokens: int = 0
    peak_blocks: int = 0
    preemptions: int = 0
    bound_ns: dict[BoundBy, int] = field(default_factory=dict)
    start_ns: int = 0
    end_ns: int = 0


class Scheduler:
    """Simulates one engine with one setting."""

    def __init__(
        self, setting: SchedulerSetting, costs: StepDurations, arrivals: ArrivalSource
    ) -> None:
        self.setting, self._costs, self._arrivals = setting, costs, arrivals
        self.result = SimulationResult()
        self._waiting: (
            deque[SimulatedRequest] | list[tuple[int, int, int, SimulatedRequest]]
        )
        self._waiting = [] if setting.by_priority else deque()
        self._turn = count()
        self._running: list[SimulatedRequest] = []
        self._prefilling: list[SimulatedRequest] = []
        self._unlimited = setting.kv_blocks is None
        blocks = 1 << 60 if setting.kv_blocks is None else setting.kv_blocks
        self._free = FreeBlocks(blocks)
        # Decoding requests.
        self._counter = 0
        self._decoding = 0
        self._context = 0
        """Computed tokens of all decoding requests, minus the step counter for each."""
        self._need = [0] * setting.block_tokens
        """Requests that need a block, by the step counter modulo the block size."""
        self._ends: dict[int, list[SimulatedRequest]] = {}
        # The current step.
        self._preempted = 0
        self._longest_chunk = 0
        self._bound = BoundBy.NOTHING

    def simulate(self, start_ns: int) -> SimulationResult:
        """Simulate from a time until all requests have ended."""
        deque(self.go_on(start_ns), maxlen=0)
        return self.result

    def go_on(self, start_ns: int) -> Iterator[int]:
        """Simulate, yielding the number of steps from time to time."""
        result, now_ns, previous_ns = self.result, start_ns, start_ns
        result.start_ns = start_ns
        while True:
            for due_ns, spec in self._arrivals.due(now_ns):
                self._queue(SimulatedRequest(spec, due_ns, now_ns, spec.prompt_tokens))
            if not self._running and not self._waiting:
                next_ns = self._arrivals.next_ns()
                if next_ns is None:
                    break
                now_ns = previous_ns = max(now_ns, next_ns)
                continue
            load, unscheduled = self._schedule(now_ns)
            if load is None:
                continue  # the head of the queue was aborted, or is too big
            took_ns, gap_ns = self._costs.step_ns(load, now_ns)
            end_ns = now_ns + took_ns
            self._count(load, took_ns)
            self._finish_step(end_ns, previous_ns, unscheduled)
            previous_ns, now_ns = end_ns, end_ns + gap_ns
            if not result.steps % STEPS_AT_ONCE:
                yield result.steps
        result.end_ns = previous_ns

    # Queue.

    def _queue(self, request: SimulatedRequest, *, first: bool = False) -> None:
        if isinstance(self._waiting, list):
            turn = next(self._turn)
            heappush(
                self._waiting, (request.spec.priority, request.due_ns, turn, request)
            )
        elif first:
            self._waiting.appendleft(request)
        else:
            self._waiting.append(request)

    def _head(self) -> SimulatedRequest:
        head = self._waiting[0]
        return head if isinstance(head, SimulatedRequest) else head[-1]

    def _pop(self) -> None:
        if isinstance(self._waiting, list):
            heappop(self._waiting)
        else:
            self._waiting.popleft()

    # One step.

    def _schedule(
        self, now_ns: int
    ) -> tuple[StepLoad | None, Sequence[SimulatedRequest]]:
        """The step's load, and the decoding requests that get no token."""
        self._preempted = 0
        self._longest_chunk = self._long_prefill()
        load = StepLoad()
        budget = self.setting.max_num_batched_tokens
        demand = [self._demand(each) for each in self._prefilling]
        unscheduled: Sequence[SimulatedRequest] = ()
        if self._fits(demand, budget):
            for request, tokens in zip(self._prefilling, demand, strict=True):
                chunk = min(tokens, budget - self._decoding - load.prefill_tokens)
                self._prefill(request, chunk, load)
            self._free.take(self._need[self._counter % len(self._need)])
        else:
            unscheduled = self._one_by_one(budget, load)
        load.decoding = self._decoding - len(unscheduled)
        load.context_tokens = self._context + self._decoding * self._counter
        budget -= load.decoding + load.prefill_tokens
        budget = self._admit(budget, load, now_ns)
        if not load.decoding and not load.prefill_tokens:
            return None, unscheduled
        if self._waiting:
            self._bound = self._bound_by(budget)
        else:
            self._bound = BoundBy.NOTHING
        return load, unscheduled

    def _demand(self, request: SimulatedRequest) -> int:
        left = request.known - request.computed
        return min(left, self._longest_chunk) if self._longest_chunk else left

    def _long_prefill(self) -> int:
        """Most tokens of one prompt per step; 0 for no limit."""
        setting = self.setting
        present = len(self._running) + len(self._waiting)
        if not setting.long_prefill_tokens or present <= 1:
            return 0
        if not setting.fair_prefill:
            return setting.long_prefill_tokens
        share = setting.max_num_batched_tokens // present
        return max(setting.long_prefill_tokens, share)

    def _fits(self, demand: Sequence[int], budget: int) -> bool:
        """Whether all running requests get their tokens, except perhaps the last one.

        Decoding requests are ahead of it, so that they need not be visited.
        """
        left, blocks = budget - self._decoding, 0
        if left < 0:
            return False
        for place, (request, tokens) in enumerate(
            zip(self._prefilling, demand, strict=True)
        ):
            chunk = min(tokens, left)
            is_last = place == len(demand) - 1 and self._running[-1] is request
            if chunk < tokens and not (is_last and chunk):
                return False
            left -= chunk
            blocks += (
                self._blocks_for(request, request.computed + chunk) - request.blocks
            )
        if self._decoding:
            blocks += self._need[self._counter % len(self._need)]
        return blocks <= self._free.count

    def _one_by_one(self, budget: int, load: StepLoad) -> Sequence[SimulatedRequest]:
        """Schedule by visiting each request, as blocks or tokens are short."""
        scheduled: set[int] = set()
        place = 0
        while place < len(self._running) and budget > 0:
            request = self._running[place]
            chunk = 1 if request.decodes else min(self._demand(request), budget)
            tokens_after = self._computed(request) + chunk
            need = self._blocks_for(request, tokens_after) - self._blocks(request)
            while need > self._free.count:
                victim = self._victim()
                before = self._running.index(victim)
                if id(victim) in scheduled:
                    scheduled.discard(id(victim))
                    budget += self._restore(victim, load)
                place -= before < place
                self._preempt(victim)
                if victim is request:
                    return self._left_out(scheduled)
            if request.decodes:
                self._free.take(need)
            else:
                self._prefill(request, chunk, load)
            scheduled.add(id(request))
            budget -= chunk
            place += 1
        return self._left_out(scheduled)

    def _left_out(self, scheduled: set[int]) -> Sequence[SimulatedRequest]:
        return [r for r in self._running if r.decodes and id(r) not in scheduled]

    def _restore(self, victim: SimulatedRequest, load: StepLoad) -> int:
        """Take the victim out of this step, and return the tokens it had been given."""
        if victim.decodes:
            after = self._blocks_for(victim, self._computed(victim) + 1)
            self._free.give(victim, after - self._blocks(victim))
            return 1
        load.prefilling -= 1
        load.prefill_tokens -= victim.chunk
        load.pairs -= _pairs(victim)
        return victim.chunk

    def _victim(self) -> SimulatedRequest:
        if not self.setting.by_priority:
            return self._running[-1]
        return max(self._running, key=lambda r: (r.spec.priority, r.due_ns))

    def _prefill(self, request: SimulatedRequest, chunk: int, load: StepLoad) -> None:
        request.chunk = chunk
        blocks = self._blocks_for(request, request.computed + chunk)
        self._free.take(blocks - request.blocks)
        request.blocks = blocks
        load.prefilling += 1
        load.prefill_tokens += chunk
        load.pairs += _pairs(request)

    def _admit(self, budget: int, load: StepLoad, now_ns: int) -> int:
        """Admit requests from the queue while possible; return the budget left."""
        setting = self.setting
        while (
            budget > 0
            and self._waiting
            and not self._preempted
            and len(self._running) < setting.max_num_seqs
        ):
            request = self._head()
            patience_ns = request.spec.patience_ns
            if patience_ns is not None and now_ns > request.added_ns + patience_ns:
                self._give_up(request, now_ns)
                continue
            cached = self._cached_tokens(request)
            tokens = request.known - cached
            if self._longest_chunk:
                tokens = min(tokens, self._longest_chunk)
            if not setting.chunked_prefill and tokens > budget:
                break
            tokens = min(tokens, budget)
            whole = request.known if setting.whole_prompt_must_fit else cached + tokens
            need = self._blocks_for(request, whole)
            if (
                need + (setting.watermark_blocks if self._running else 0)
                > self._free.count
            ):
                if self._running:
                    break
                self._pop()
                self.result.too_big.append(request.spec)
                self._arrivals.ended(request.spec, now_ns)
                continue
            self._pop()
            request.computed = cached
            request.blocks = self._blocks_for(request, cached)
            self._free.reuse(request, request.blocks)
            if request.started_ns < 0:
                request.started_ns = now_ns
            self._running.append(request)
            self._prefilling.append(request)
            self._prefill(request, tokens, load)
            budget -= tokens
        return budget

    def _give_up(self, request: SimulatedRequest, now_ns: int) -> None:
        self._pop()
        self.result.given_up.append(request)
        self._arrivals.ended(request.spec, now_ns)

    def _cached_tokens(self, request: SimulatedRequest) -> int:
        """The number of the request's tokens that are in the prefix cache."""
        if not self.setting.prefix_caching:
            return 0
        size, most = self.setting.block_tokens, request.known - 1
        cached = min(request.spec.cached_tokens, most)
        if left := self._free.left(request):
            whole = min(request.spec.shared_blocks + left, most // size)
            cached = max(cached, whole * size)
        return cached

    def _bound_by(self, budget: int) -> BoundBy:
        if self._preempted:
            return BoundBy.KV
        if budget <= 0:
            return BoundBy.TOKENS
        if len(self._running) >= self.setting.max_num_seqs:
            return BoundBy.SEQS
        request = self._head()
        if (
            not self.setting.chunked_prefill
            and request.known - self._cached_tokens(request) > budget
        ):
            return BoundBy.TOKENS
        return BoundBy.KV

    # After the step.

    def _count(self, load: StepLoad, took_ns: int) -> None:
        result = self.result
        result.steps += 1
        result.busy_ns += took_ns
        members = load.decoding + load.prefilling
        result.members += members
        result.most_members = max(result.most_members, members)
        result.most_prefill_tokens = max(
            result.most_prefill_tokens, load.prefill_tokens
        )
        result.bound_ns[self._bound] = result.bound_ns.get(self._bound, 0) + took_ns
        if not self._unlimited:
            used = (self.setting.kv_blocks or 0) - self._free.count
            result.peak_blocks = max(result.peak_blocks, used)

    def _finish_step(
        self, end_ns: int, previous_ns: int, unscheduled: Sequence[SimulatedRequest]
    ) -> None:
        """Give each member its token; requests that have all of theirs end."""
        for request in unscheduled:
            self._stop_decoding(request)
        if self._decoding:
            self.result.gaps_ns.append(end_ns - previous_ns)
            self.result.gap_weights.append(self._decoding)
        self._counter += 1
        for request in self._ends.pop(self._counter, ()):
            self._stop_decoding(request, ends=True)
            self._end(request, end_ns)
        for request in unscheduled:
            self._decode(request)
        if self._prefilling:
            self._prefilling = [
                each for each in self._prefilling if not self._advance(each, end_ns)
            ]

    def _advance(self, request: SimulatedRequest, end_ns: int) -> bool:
        """Advance a prefill by its chunk; returns whether that was the last one."""
        request.computed += request.chunk
        request.chunk = 0
        if request.computed < request.known:
            return False
        request.known += 1
        request.outputs += 1
        if request.first_ns < 0:
            request.first_ns = end_ns
        else:
            self.result.gaps_ns.append(end_ns - request.last_ns)
            self.result.gap_weights.append(1)
        request.last_ns = end_ns
        if request.outputs >= request.spec.output_tokens:
            self._end(request, end_ns)
        else:
            self._decode(request)
        return True

    def _end(self, request: SimulatedRequest, end_ns: int) -> None:
        request.last_ns = end_ns
        self._give_back(request)
        self._running.remove(request)
        self.result.ended.append(request)
        self._arrivals.ended(request.spec, end_ns)

    def _preempt(self, request: SimulatedRequest) -> None:
        if request.decodes:
            self._stop_decoding(request)
        else:
            self._prefilling.remove(request)
        self._give_back(request)
        request.blocks = request.chunk = 0
        request.preemptions += 1
        self._running.remove(request)
        self._queue(request, first=True)
        self._preempted += 1
        self.result.preemptions += 1

    # Blocks, and the progress of decoding requests.

    def _give_back(self, request: SimulatedRequest) -> None:
        """Free the request's blocks; full ones stay cached until they are reused."""
        full = (
            request.computed // self.setting.block_tokens - request.spec.shared_blocks
        )
        cached = min(max(full, 0), request.blocks) if self.setting.prefix_caching else 0
        self._free.give(request, request.blocks, cached)

    def _blocks_for(self, request: SimulatedRequest, tokens: int) -> int:
        return max(
            0, -(-tokens // self.setting.block_tokens) - request.spec.shared_blocks
        )

    def _computed(self, request: SimulatedRequest) -> int:
        if not request.decodes:
            return request.computed
        return request.known - 1 + self._counter - request.since

    def _blocks(self, request: SimulatedRequest) -> int:
        if not request.decodes:
            return request.blocks
        return self._blocks_for(request, self._computed(request))

    def _decode(self, request: SimulatedRequest) -> None:
        """Start decoding: the request gets a token in each step from the next on."""
        request.decodes, request.since = True, self._counter
        self._decoding += 1
        self._context += request.known - 1 - request.since
        self._need[(request.since + 1 - request.known) % len(self._need)] += 1
        left = request.spec.output_tokens - request.outputs
        self._ends.setdefault(request.since + left, []).append(request)

    def _stop_decoding(self, request: SimulatedRequest, *, ends: bool = False) -> None:
        """Stop decoding, and update the request's fields from the step counter."""
        request.decodes = False
        self._decoding -= 1
        self._context -= request.known - 1 - request.since
        self._need[(request.since + 1 - request.known) % len(self._need)] -= 1
        if not ends:
            left = request.spec.output_tokens - request.outputs
            self._ends[request.since + left].remove(request)
        passed = self._counter - request.since
        # This step made a token that no step has computed yet.
        request.computed = request.known - 1 + passed
        request.known += passed
        request.outputs += passed
        request.blocks = self._blocks_for(request, request.computed)


def _pairs(request: SimulatedRequest) -> float:
    return request.chunk * (request.computed + request.chunk / 2)
