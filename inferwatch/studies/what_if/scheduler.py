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
    """The output tokens that it will make; 0 if it was aborted before the first."""
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

    asked: RequestSpec
    due_ns: int
    added_ns: int
    """When the engine added it to its queue: only between steps."""
    known: int
    """Tokens of its prompt and of its output so far."""
    computed: int = 0
    outputs: int = 0
    started_ns: int = -1
    first_ns: int = -1
    last_ns: int = -1
    decodes: bool = False
    """Whether each step gives it a token, so that its progress follows from the
    counter."""
    since: int = 0
    """The counter when decoding began; ``known`` and ``outputs`` are as of then."""
    blocks: int = 0
    """Blocks of its own; not kept up to date while it decodes."""
    chunk: int = 0
    """Tokens scheduled in this step."""
    preemptions: int = 0


class FreeBlocks:
    """Free blocks, in the order in which vLLM allocates them.

    As in its ``BlockPool.free_blocks``: first those without cached content, the last
    freed first; then the others, least recently used first, of each request its last
    block first. The order among the former makes no difference here.
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

    def give(self, live: SimulatedRequest, blocks: int, full: int = 0) -> None:
        """Free all blocks of a request, ``full`` of which keep cached content."""
        self.count += blocks
        self._empty += blocks - full
        if full:
            self._found_again[live] = full

    def left(self, live: SimulatedRequest) -> int:
        """Return how many free blocks still cache a preempted request."""
        return self._found_again.get(live, 0)

    def reuse(self, live: SimulatedRequest, blocks: int) -> None:
        """Allocate its own cached blocks, then those that were used most recently."""
        own = min(self._found_again.pop(live, 0), blocks)
        self.count -= blocks
        self._drop(blocks - own, last=True)

    def _drop(self, blocks: int, *, last: bool) -> None:
        while blocks > 0 and self._found_again:
            live, held = self._found_again.popitem(last=last)
            if held > blocks:
                self._found_again[live] = held - blocks
                self._found_again.move_to_end(live, last=last)
            blocks -= held
        self._empty -= max(blocks, 0)


class StepDurations(Protocol):
    """Tells how long simulated steps take."""

    def step_ns(self, load: "StepLoad", now_ns: int) -> tuple[int, int]:
        """Return how long a step of that load takes, and the gap after it."""
        ...


@dataclass(slots=True)
class StepLoad:
    """What a step computes."""

    decoding: int = 0
    prefilling: int = 0
    prefill_tokens: int = 0
    context_tokens: int = 0
    """Tokens in the cache of all requests that decode."""
    pairs: float = 0.0
    """Pairs of query and key tokens in attention, of all requests that prefill."""


class ArrivalSource(Protocol):
    """Tells when requests arrive."""

    def due(self, now_ns: int) -> Iterable[tuple[int, RequestSpec]]:
        """Yield the requests that arrive up to now, in order, with their times."""
        ...

    def next_ns(self) -> int | None:
        """Return when the next request arrives; None if no more do."""
        ...

    def ended(self, asked: RequestSpec, now_ns: int) -> None:
        """Take note that a request ended or was aborted: its user can send the next."""
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
    """Time in steps."""
    members: int = 0
    """The requests of all steps, added up."""
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
        self.run = SimulationResult()
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
        # Of the requests that decode.
        self._counter = 0
        self._decoding = 0
        self._context = 0
        """Their computed tokens are this plus the counter for each."""
        self._need = [0] * setting.block_tokens
        """How many need a block at a counter, by the counter modulo the block size."""
        self._ends: dict[int, list[SimulatedRequest]] = {}
        # Of the present step.
        self._preempted = 0
        self._longest_chunk = 0
        self._bound = BoundBy.NOTHING

    def simulate(self, start_ns: int) -> SimulationResult:
        """Simulate from a time until all requests have ended."""
        deque(self.go_on(start_ns), maxlen=0)
        return self.run

    def go_on(self, start_ns: int) -> Iterator[int]:
        """Simulate, and yield the number of steps now and then."""
        run, now_ns, previous_ns = self.run, start_ns, start_ns
        run.start_ns = start_ns
        while True:
            for due_ns, asked in self._arrivals.due(now_ns):
                self._queue(
                    SimulatedRequest(asked, due_ns, now_ns, asked.prompt_tokens)
                )
            if not self._running and not self._waiting:
                next_ns = self._arrivals.next_ns()
                if next_ns is None:
                    break
                now_ns = previous_ns = max(now_ns, next_ns)
                continue
            load, held = self._schedule(now_ns)
            if load is None:
                continue  # the head of the queue was aborted, or is too big
            took_ns, gap_ns = self._costs.step_ns(load, now_ns)
            end_ns = now_ns + took_ns
            self._count(load, took_ns)
            self._finish_step(end_ns, previous_ns, held)
            previous_ns, now_ns = end_ns, end_ns + gap_ns
            if not run.steps % STEPS_AT_ONCE:
                yield run.steps
        run.end_ns = previous_ns

    # Queue.

    def _queue(self, live: SimulatedRequest, *, first: bool = False) -> None:
        if isinstance(self._waiting, list):
            turn = next(self._turn)
            heappush(self._waiting, (live.asked.priority, live.due_ns, turn, live))
        elif first:
            self._waiting.appendleft(live)
        else:
            self._waiting.append(live)

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
        """Return the step's load, and the decoding requests that get no token."""
        self._preempted = 0
        self._longest_chunk = self._long_prefill()
        load = StepLoad()
        budget = self.setting.max_num_batched_tokens
        wanted = [self._wanted(each) for each in self._prefilling]
        held: Sequence[SimulatedRequest] = ()
        if self._fits(wanted, budget):
            for live, tokens in zip(self._prefilling, wanted, strict=True):
                chunk = min(tokens, budget - self._decoding - load.prefill_tokens)
                self._prefill(live, chunk, load)
            self._free.take(self._need[self._counter % len(self._need)])
        else:
            held = self._one_by_one(budget, load)
        load.decoding = self._decoding - len(held)
        load.context_tokens = self._context + self._decoding * self._counter
        budget -= load.decoding + load.prefill_tokens
        budget = self._admit(budget, load, now_ns)
        if not load.decoding and not load.prefill_tokens:
            return None, held
        if self._waiting:
            self._bound = self._bound_by(budget)
        else:
            self._bound = BoundBy.NOTHING
        return load, held

    def _wanted(self, live: SimulatedRequest) -> int:
        left = live.known - live.computed
        return min(left, self._longest_chunk) if self._longest_chunk else left

    def _long_prefill(self) -> int:
        """Return the most tokens of one prompt in a step (0: no limit)."""
        setting = self.setting
        present = len(self._running) + len(self._waiting)
        if not setting.long_prefill_tokens or present <= 1:
            return 0
        if not setting.fair_prefill:
            return setting.long_prefill_tokens
        share = setting.max_num_batched_tokens // present
        return max(setting.long_prefill_tokens, share)

    def _fits(self, wanted: Sequence[int], budget: int) -> bool:
        """Tell whether all running requests get their tokens, save perhaps the last.

        Decoding requests come before it, so they need not be visited.
        """
        left, blocks = budget - self._decoding, 0
        if left < 0:
            return False
        for place, (live, tokens) in enumerate(
            zip(self._prefilling, wanted, strict=True)
        ):
            chunk = min(tokens, left)
            is_last = place == len(wanted) - 1 and self._running[-1] is live
            if chunk < tokens and not (is_last and chunk):
                return False
            left -= chunk
            blocks += self._blocks_for(live, live.computed + chunk) - live.blocks
        if self._decoding:
            blocks += self._need[self._counter % len(self._need)]
        return blocks <= self._free.count

    def _one_by_one(self, budget: int, load: StepLoad) -> Sequence[SimulatedRequest]:
        """Schedule by visiting each request, as blocks or tokens are short."""
        scheduled: set[int] = set()
        place = 0
        while place < len(self._running) and budget > 0:
            live = self._running[place]
            chunk = 1 if live.decodes else min(self._wanted(live), budget)
            known = self._computed(live) + chunk
            need = self._blocks_for(live, known) - self._blocks(live)
            while need > self._free.count:
                victim = self._victim()
                before = self._running.index(victim)
                if id(victim) in scheduled:
                    scheduled.discard(id(victim))
                    budget += self._restore(victim, load)
                place -= before < place
                self._preempt(victim)
                if victim is live:
                    return self._left_out(scheduled)
            if live.decodes:
                self._free.take(need)
            else:
                self._prefill(live, chunk, load)
            scheduled.add(id(live))
            budget -= chunk
            place += 1
        return self._left_out(scheduled)

    def _left_out(self, scheduled: set[int]) -> Sequence[SimulatedRequest]:
        return [r for r in self._running if r.decodes and id(r) not in scheduled]

    def _restore(self, victim: SimulatedRequest, load: StepLoad) -> int:
        """Undo the victim's part of this step, and return its tokens."""
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
        return max(self._running, key=lambda r: (r.asked.priority, r.due_ns))

    def _prefill(self, live: SimulatedRequest, chunk: int, load: StepLoad) -> None:
        live.chunk = chunk
        blocks = self._blocks_for(live, live.computed + chunk)
        self._free.take(blocks - live.blocks)
        live.blocks = blocks
        load.prefilling += 1
        load.prefill_tokens += chunk
        load.pairs += _pairs(live)

    def _admit(self, budget: int, load: StepLoad, now_ns: int) -> int:
        """Admit requests from the queue while possible; return the budget left."""
        setting = self.setting
        while (
            budget > 0
            and self._waiting
            and not self._preempted
            and len(self._running) < setting.max_num_seqs
        ):
            live = self._head()
            patience_ns = live.asked.patience_ns
            if patience_ns is not None and now_ns > live.added_ns + patience_ns:
                self._give_up(live, now_ns)
                continue
            found = self._found(live)
            tokens = live.known - found
            if self._longest_chunk:
                tokens = min(tokens, self._longest_chunk)
            if not setting.chunked_prefill and tokens > budget:
                break
            tokens = min(tokens, budget)
            whole = live.known if setting.whole_prompt_must_fit else found + tokens
            need = self._blocks_for(live, whole)
            if (
                need + (setting.watermark_blocks if self._running else 0)
                > self._free.count
            ):
                if self._running:
                    break
                self._pop()
                self.run.too_big.append(live.asked)
                self._arrivals.ended(live.asked, now_ns)
                continue
            self._pop()
            live.computed = found
            live.blocks = self._blocks_for(live, found)
            self._free.reuse(live, live.blocks)
            if live.started_ns < 0:
                live.started_ns = now_ns
            self._running.append(live)
            self._prefilling.append(live)
            self._prefill(live, tokens, load)
            budget -= tokens
        return budget

    def _give_up(self, live: SimulatedRequest, now_ns: int) -> None:
        self._pop()
        self.run.given_up.append(live)
        self._arrivals.ended(live.asked, now_ns)

    def _found(self, live: SimulatedRequest) -> int:
        """Return how many of its tokens are in the prefix cache."""
        if not self.setting.prefix_caching:
            return 0
        size, most = self.setting.block_tokens, live.known - 1
        found = min(live.asked.cached_tokens, most)
        if left := self._free.left(live):
            whole = min(live.asked.shared_blocks + left, most // size)
            found = max(found, whole * size)
        return found

    def _bound_by(self, budget: int) -> BoundBy:
        if self._preempted:
            return BoundBy.KV
        if budget <= 0:
            return BoundBy.TOKENS
        if len(self._running) >= self.setting.max_num_seqs:
            return BoundBy.SEQS
        live = self._head()
        if not self.setting.chunked_prefill and live.known - self._found(live) > budget:
            return BoundBy.TOKENS
        return BoundBy.KV

    # After the step.

    def _count(self, load: StepLoad, took_ns: int) -> None:
        run = self.run
        run.steps += 1
        run.busy_ns += took_ns
        members = load.decoding + load.prefilling
        run.members += members
        run.most_members = max(run.most_members, members)
        run.most_prefill_tokens = max(run.most_prefill_tokens, load.prefill_tokens)
        run.bound_ns[self._bound] = run.bound_ns.get(self._bound, 0) + took_ns
        if not self._unlimited:
            used = (self.setting.kv_blocks or 0) - self._free.count
            run.peak_blocks = max(run.peak_blocks, used)

    def _finish_step(
        self, end_ns: int, previous_ns: int, held: Sequence[SimulatedRequest]
    ) -> None:
        """Hand out the tokens of the step; requests with all of theirs end."""
        for live in held:
            self._stop_decoding(live)
        if self._decoding:
            self.run.gaps_ns.append(end_ns - previous_ns)
            self.run.gap_weights.append(self._decoding)
        self._counter += 1
        for live in self._ends.pop(self._counter, ()):
            self._stop_decoding(live, ends=True)
            self._end(live, end_ns)
        for live in held:
            self._decode(live)
        if self._prefilling:
            self._prefilling = [
                each for each in self._prefilling if not self._advance(each, end_ns)
            ]

    def _advance(self, live: SimulatedRequest, end_ns: int) -> bool:
        """Advance a prefill by its chunk, and tell whether that was the last."""
        live.computed += live.chunk
        live.chunk = 0
        if live.computed < live.known:
            return False
        live.known += 1
        live.outputs += 1
        if live.first_ns < 0:
            live.first_ns = end_ns
        else:
            self.run.gaps_ns.append(end_ns - live.last_ns)
            self.run.gap_weights.append(1)
        live.last_ns = end_ns
        if live.outputs >= live.asked.output_tokens:
            self._end(live, end_ns)
        else:
            self._decode(live)
        return True

    def _end(self, live: SimulatedRequest, end_ns: int) -> None:
        live.last_ns = end_ns
        self._give_back(live)
        self._running.remove(live)
        self.run.ended.append(live)
        self._arrivals.ended(live.asked, end_ns)

    def _preempt(self, live: SimulatedRequest) -> None:
        if live.decodes:
            self._stop_decoding(live)
        else:
            self._prefilling.remove(live)
        self._give_back(live)
        live.blocks = live.chunk = 0
        live.preemptions += 1
        self._running.remove(live)
        self._queue(live, first=True)
        self._preempted += 1
        self.run.preemptions += 1

    # Blocks, and the progress of decoding requests.

    def _give_back(self, live: SimulatedRequest) -> None:
        """Free its blocks; the full ones stay cached until they are reused."""
        full = live.computed // self.setting.block_tokens - live.asked.shared_blocks
        kept = min(max(full, 0), live.blocks) if self.setting.prefix_caching else 0
        self._free.give(live, live.blocks, kept)

    def _blocks_for(self, live: SimulatedRequest, tokens: int) -> int:
        return max(
            0, -(-tokens // self.setting.block_tokens) - live.asked.shared_blocks
        )

    def _computed(self, live: SimulatedRequest) -> int:
        if not live.decodes:
            return live.computed
        return live.known - 1 + self._counter - live.since

    def _blocks(self, live: SimulatedRequest) -> int:
        if not live.decodes:
            return live.blocks
        return self._blocks_for(live, self._computed(live))

    def _decode(self, live: SimulatedRequest) -> None:
        """Give it a token in each step from the next one on."""
        live.decodes, live.since = True, self._counter
        self._decoding += 1
        self._context += live.known - 1 - live.since
        self._need[(live.since + 1 - live.known) % len(self._need)] += 1
        left = live.asked.output_tokens - live.outputs
        self._ends.setdefault(live.since + left, []).append(live)

    def _stop_decoding(self, live: SimulatedRequest, *, ends: bool = False) -> None:
        """Set its fields from the counter, and count it apart again."""
        live.decodes = False
        self._decoding -= 1
        self._context -= live.known - 1 - live.since
        self._need[(live.since + 1 - live.known) % len(self._need)] -= 1
        if not ends:
            left = live.asked.output_tokens - live.outputs
            self._ends[live.since + left].remove(live)
        passed = self._counter - live.since
        # This step made a token that no step has computed yet.
        live.computed = live.known - 1 + passed
        live.known += passed
        live.outputs += passed
        live.blocks = self._blocks_for(live, live.computed)


def _pairs(live: SimulatedRequest) -> float:
    return live.chunk * (live.computed + live.chunk / 2)
