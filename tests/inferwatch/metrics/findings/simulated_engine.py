"""A scheduler that works in simulated time: what ails it is known beforehand."""

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, inf

from collectors.contract.readings import (
    AnyReading,
    BoundBy,
    EngineInfo,
    EngineSettings,
    EventKind,
    RequestEvent,
    Step,
    Tick,
    Vantage,
)

S = 1_000_000_000
MS = 1_000_000
Drawn = Callable[[random.Random], float]


@dataclass(slots=True, eq=False)
class Asked:
    """A request, as its client sends it."""

    number: int
    arrived_ns: int
    prompt: int
    output: int
    gives_up_ns: int | None = None
    computed: int = 0
    made: int = 0
    blocks: int = 0
    scheduled: bool = False
    cached: int = 0
    priority: int | None = None


@dataclass
class Engine:
    """One rank; its times are of a model of about a billion parameters."""

    source: str = "engine-1"
    seed: int = 7
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2_048
    kv_blocks: int = 4_000
    block_tokens: int = 16
    step_s: float = 0.015
    token_s: float = 0.00003
    """Of each token that a step computes."""
    gap_s: float = 0.0002
    api_s: float = 0.002
    rate_per_s: float | Callable[[float], float] = 3.0
    prompt: Drawn = lambda r: r.choice((60, 120, 200, 400))
    output: Drawn = lambda r: r.randint(20, 120)
    patience_s: Drawn | None = None
    """After which a client gives up."""
    priority: Callable[[random.Random], int] | None = None
    header_of: Callable[[int], str] | None = None
    """The header of a request, by the length of its prompt."""
    by_priority: bool = True
    """Whether it schedules by these, and tells them; else first come, first served."""
    hits: Drawn = lambda _: 0.0
    """Share of a prompt that the prefix cache has."""
    hits_until_s: float = inf
    stands_still: Callable[[float], bool] = lambda _: False
    prefix_caching: bool = True
    settings: dict[str, str | int | float | bool | None] = field(default_factory=dict)
    starts_s: float = 0.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._now_ns = round(self.starts_s * S)
        self._next_ns = self._now_ns
        self._number = self._index = self._used = 0
        self._waiting: deque[Asked] = deque()
        self._running: list[Asked] = []
        self._told: list[tuple[int, int, AnyReading]] = []
        self._order = 0
        self._last_end_ns = self._now_ns

    def run(self, seconds: float) -> Iterator[AnyReading]:
        """What it tells, in order, with a tick each second."""
        end_ns, tick_ns = self._now_ns + round(seconds * S), self._now_ns + S
        yield from self._beginning()
        while self._now_ns < end_ns:
            self._step()
            while self._told and self._told[0][0] <= self._now_ns:
                yield heappop(self._told)[2]
            while tick_ns <= self._now_ns:
                yield Tick(t_ns=tick_ns)
                tick_ns += S

    def _beginning(self) -> Iterator[AnyReading]:
        yield EngineInfo(
            source=self.source,
            t_ns=self._now_ns,
            pid=100,
            model="simulated",
            vllm_version="0",
            num_kv_blocks=self.kv_blocks,
            kv_block_tokens=self.block_tokens,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            prefix_caching=self.prefix_caching,
        )
        if self.settings:
            yield EngineSettings(
                source=self.source, t_ns=self._now_ns, settings=self.settings
            )

    def _tell(self, t_ns: int, reading: AnyReading) -> None:
        self._order += 1
        heappush(self._told, (t_ns, self._order, reading))

    def _event(
        self, kind: EventKind, asked: Asked, t_ns: int, *, front: bool, **more: object
    ) -> None:
        event = RequestEvent(
            source=self.source,
            t_ns=t_ns,
            kind=kind,
            vantage=Vantage.FRONTEND if front else Vantage.ENGINE,
            request_id=f"r{asked.number}",
            ordinal=None if front else asked.number,
            **more,  # type: ignore[arg-type]
        )
        self._tell(t_ns, event)

    def _arrivals(self) -> None:
        """Those that have come by now."""
        while self._next_ns <= self._now_ns:
            rate = self.rate_per_s
            at_s = self._next_ns / S
            per_s = rate(at_s) if callable(rate) else rate
            if per_s <= 0:
                self._next_ns += S // 10
                continue
            self._number += 1
            asked = Asked(
                number=self._number,
                arrived_ns=self._next_ns,
                prompt=max(round(self.prompt(self._random)), 1),
                output=max(round(self.output(self._random)), 1),
            )
            if self.priority is not None:
                drawn = self.priority(self._random)
                asked.priority = drawn if self.by_priority else None
            if self.patience_s is not None:
                asked.gives_up_ns = self._next_ns + round(
                    self.patience_s(self._random) * S
                )
            added_ns = asked.arrived_ns + round(self.api_s * S)
            self._event(
                EventKind.ARRIVED,
                asked,
                asked.arrived_ns,
                front=True,
                tokenised_ns=added_ns - 1000,
                prompt_tokens=asked.prompt,
                header=None if self.header_of is None else self.header_of(asked.prompt),
            )
            self._event(
                EventKind.ADDED,
                asked,
                added_ns,
                front=False,
                prompt_tokens=asked.prompt,
                priority=asked.priority,
            )
            self._waiting.append(asked)
            self._next_ns += max(round(self._random.expovariate(per_s) * S), 1000)

    def _step(self) -> None:  # noqa: C901, PLR0912, PLR0915  one schedule()
        self._arrivals()
        self._aborts()
        there = bool(self._running or self._waiting)
        if self.stands_still(self._now_ns / S) or not there:
            self._now_ns += 10 * MS
            return
        if self.priority is not None:
            first = sorted(self._waiting, key=lambda e: (e.priority or 0, e.arrived_ns))
            self._waiting = deque(first)
        start_ns, budget = self._now_ns, self.max_num_batched_tokens
        members: dict[Asked, int] = {}
        preempted: list[Asked] = []
        for asked in list(self._running):
            if asked in preempted or budget <= 0:
                continue
            tokens = min(self._wanted(asked), budget)
            while not self._grows(asked, tokens):
                victim = self._running.pop()
                self._release(victim)
                victim.computed = victim.cached = 0
                preempted.append(victim)
                self._waiting.appendleft(victim)
                members.pop(victim, None)
                if victim is asked:
                    break
            if asked in preempted:
                break
            members[asked] = tokens
            budget -= tokens
        bound, looked, found = BoundBy.NOTHING, 0, 0
        while self._waiting and not preempted:
            asked = self._waiting[0]
            if asked.arrived_ns + round(self.api_s * S) > start_ns:
                break
            if len(self._running) >= self.max_num_seqs:
                bound = BoundBy.SEQS
                break
            if budget <= 0:
                bound = BoundBy.TOKENS
                break
            if not asked.scheduled:
                looked += asked.prompt
                if self.prefix_caching and start_ns < self.hits_until_s * S:
                    share = self.hits(self._random)
                    asked.cached = min(int(asked.prompt * share), asked.prompt - 1)
                found += asked.cached
                asked.computed = asked.cached
            tokens = min(self._wanted(asked), budget)
            if not self._grows(asked, tokens):
                bound = BoundBy.KV
                break
            self._waiting.popleft()
            self._running.append(asked)
            if not asked.scheduled:
                asked.scheduled = True
                self._event(
                    EventKind.SCHEDULED,
                    asked,
                    start_ns,
                    front=False,
                    cached_tokens=asked.cached,
                )
            members[asked] = tokens
            budget -= tokens
        if preempted:
            bound = BoundBy.KV
        self._end(start_ns, members, preempted, bound, (looked, found))

    def _end(
        self,
        start_ns: int,
        members: dict[Asked, int],
        preempted: list[Asked],
        bound: BoundBy,
        prefix: tuple[int, int],
    ) -> None:
        if not members and not preempted:
            self._now_ns += MS
            return
        tokens = sum(members.values())
        took_s = self.step_s + self.token_s * tokens
        took_s *= self._random.uniform(0.97, 1.03)
        end_ns = start_ns + round(took_s * S)
        produced, again = [], 0
        prefills = [a for a in members if self._prefills(a)]
        for asked, n in members.items():
            again += n if asked in prefills and asked.made else 0
            asked.computed += n
            is_done = asked.computed >= self._before(asked)
            produced.append(int(is_done))
            asked.made += is_done
        step = Step(
            source=self.source,
            index=self._index,
            start_ns=start_ns,
            end_ns=end_ns,
            duration_ns=end_ns - start_ns,
            prefill_requests=len(prefills),
            decode_requests=len(members) - len(prefills),
            prefill_tokens=sum(members[a] for a in prefills),
            decode_tokens=len(members) - len(prefills),
            running=len(self._running),
            waiting=len(self._waiting),
            bound_by=bound,
            kv_used_blocks=self._used,
            kv_cached_blocks=0,
            kv_free_blocks=self.kv_blocks - self._used,
            preempted=[each.number for each in preempted],
            recomputed_tokens=again,
            prefix_queries=prefix[0] if self.prefix_caching else None,
            prefix_hits=prefix[1] if self.prefix_caching else None,
            members=[each.number for each in members],
            scheduled=list(members.values()),
            produced=produced,
        )
        self._index += 1
        self._tell(end_ns, step)
        self._now_ns = end_ns + round(self.gap_s * S)
        for asked, made in zip(members, produced, strict=True):
            if made and asked.made == 1:
                sent_ns = end_ns + 200_000
                self._event(EventKind.FIRST_TOKEN, asked, sent_ns, front=True)
            if made and asked.made >= asked.output:
                self._running.remove(asked)
                self._release(asked)
                self._finish(asked, end_ns, "stop")

    def _finish(self, asked: Asked, t_ns: int, reason: str) -> None:
        more = {"reason": reason, "output_tokens": asked.made}
        self._event(EventKind.FINISHED, asked, t_ns, front=False, **more)
        self._event(EventKind.FINISHED, asked, t_ns + 300_000, front=True, **more)

    def _aborts(self) -> None:
        """Clients that waited long enough are gone."""
        for asked in [*self._running, *self._waiting]:
            if asked.gives_up_ns is not None and asked.gives_up_ns <= self._now_ns:
                if asked in self._running:
                    self._running.remove(asked)
                else:
                    self._waiting.remove(asked)
                self._release(asked)
                self._finish(asked, self._now_ns, "abort")

    @staticmethod
    def _before(asked: Asked) -> int:
        """Tokens that must be computed before the next one comes."""
        return asked.prompt + asked.made

    def _prefills(self, asked: Asked) -> bool:
        return not asked.made or asked.computed < self._before(asked) - 1

    def _wanted(self, asked: Asked) -> int:
        return max(self._before(asked) - asked.computed, 1)

    def _grows(self, asked: Asked, tokens: int) -> bool:
        needed = ceil((asked.computed + tokens) / self.block_tokens)
        more = max(needed - asked.blocks, 0)
        if self._used + more > self.kv_blocks:
            return False
        asked.blocks += more
        self._used += more
        return True

    def _release(self, asked: Asked) -> None:
        self._used -= asked.blocks
        asked.blocks = 0
