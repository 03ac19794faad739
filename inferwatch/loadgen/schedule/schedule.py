"""The schedule of a run: which request is due when, decided in advance."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count, islice, takewhile
from typing import NamedTuple, Self

import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Phase
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.loadgen.plan.rates import RateSeries, flat
from inferwatch.loadgen.prompts.prompts import Prompt, Prompts
from inferwatch.loadgen.schedule.arrivals import (
    ArrivalPace,
    arrival_numbers,
    burst_times,
    counted_numbers,
)
from inferwatch.loadgen.schedule.rate_integral import Floats

FIRST_EXTRA = 1 << 30
"""Number of the first request of bursts that users ask for during the run."""


class DueRequest(NamedTuple):
    """A request and its intended time, in ns from the start of the schedule."""

    offset_ns: int
    phase: Phase
    number: int
    prompt: Prompt
    burst: int | None = None
    """For the first request of a burst: the number of requests in it."""
    arrival: float | None = None
    """Its arrival number, if changes of the rate move it."""


class DueStream:
    """Requests of one kind in order of time; taken ones can be given back."""

    def __init__(self, dues: Iterable[DueRequest] = ()) -> None:
        self._dues = iter(dues)
        self._front: deque[DueRequest] = deque()

    def __iter__(self) -> Iterator[DueRequest]:
        while self.head is not None:
            yield self.take()

    @property
    def head(self) -> DueRequest | None:
        """The next request; None if there is none."""
        if not self._front and (due := self._next()) is not None:
            self._front.append(due)
        return self._front[0] if self._front else None

    def take(self) -> DueRequest:
        """Remove and return the head, which must exist."""
        return self._front.popleft()

    def give_back(self, dues: Iterable[DueRequest]) -> None:
        """Put back the requests taken last, in order."""
        self._front.extendleft(reversed(list(dues)))

    def _next(self) -> DueRequest | None:
        return next(self._dues, None)


class PacedDueStream(DueStream):
    """Arrivals at a rate that may be changed during the run."""

    def __init__(
        self,
        numbers: Iterator[Floats],
        pace: ArrivalPace,
        prompt: Callable[[int], Prompt],
        *,
        phase: Phase,
        after_ns: int = 0,
    ) -> None:
        super().__init__()
        self._numbers = numbers
        self._pace = pace
        self._prompt = prompt
        self._phase = phase
        self._after_ns = after_ns
        self._block: Floats = np.empty(0)
        self._offsets: list[int] = []
        self._at = self._before = 0

    def retime(self) -> None:
        """Compute new due times after a change of the rate."""
        self._offsets[self._at :] = self._offsets_of(self._block[self._at :])
        front = list(self._front)
        moved = self._offsets_of(np.array([due.arrival for due in front], np.float64))
        pairs = zip(front, moved, strict=True)
        self._front = deque(due._replace(offset_ns=at) for due, at in pairs)

    def _offsets_of(self, arrivals: Floats) -> list[int]:
        offsets: list[int] = (self._pace.due_ns(arrivals) + self._after_ns).tolist()
        return offsets

    def _next(self) -> DueRequest | None:
        """The next request; None while the rate is zero."""
        if self._at == len(self._block):
            self._before += self._at
            self._at, self._block = 0, next(self._numbers, np.empty(0))
            self._offsets = self._offsets_of(self._block)
        if self._at >= len(self._offsets):
            return None
        at, number = self._at, self._before + self._at
        self._at += 1
        return DueRequest(
            self._offsets[at],
            self._phase,
            number,
            self._prompt(number),
            arrival=float(self._block[at]),
        )


class Schedule:
    """All requests in order of time, up to the plan's duration or count."""

    def __init__(self, plan: LoadPlan, prompts: Prompts, rates: RateSeries) -> None:
        warmup_ns = warmup_of(plan)
        self._warmup_ns, self._prompts = warmup_ns, prompts
        self._extra = FIRST_EXTRA
        """Number of the next request that is in no plan."""
        self._pace = ArrivalPace(rates)
        self._left = plan.requests
        self._end_ns = float("inf")
        if plan.duration_s is not None:
            self._end_ns = warmup_ns + plan.duration_s * NS_PER_S
        self._steady = _steady(plan, prompts, self._pace)
        self._streams = {
            Phase.WARMUP: _warm_up(plan, prompts, rates),
            Phase.STEADY: self._steady,
            Phase.BURST: DueStream(_bursts(plan, prompts, warmup_ns)),
        }
        if plan.arrivals is Arrivals.TRACE:
            self._streams = {Phase.STEADY: DueStream(_trace(plan, prompts, warmup_ns))}

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> DueRequest:
        heads = ((s.head, s) for s in self._streams.values())
        dues = [(head, stream) for head, stream in heads if head is not None]
        if not dues:
            raise StopIteration
        head, stream = min(dues, key=lambda each: each[0].offset_ns)
        counted = head.phase is not Phase.WARMUP and self._left is not None
        if head.offset_ns >= self._end_ns or (counted and not self._left):
            raise StopIteration
        if counted and self._left is not None:
            self._left -= 1
        return stream.take()

    def rate_at(self, at_ns: int) -> float:
        """Requests per second of the steady phase, at a time of the schedule."""
        return self._pace.rate_at(self._steady_s(at_ns))

    def change(
        self, at_ns: int, rate_per_s: float, unsent: Iterable[DueRequest]
    ) -> None:
        """Switch to another rate from a time on.

        ``unsent`` are given back, and returned again at their new times.
        """
        self._pace.change(self._steady_s(at_ns), rate_per_s)
        unsent = list(unsent)
        for phase, stream in self._streams.items():
            stream.give_back(due for due in unsent if due.phase is phase)
        self._steady.retime()
        if self._left is not None:
            self._left += sum(due.phase is not Phase.WARMUP for due in unsent)

    def burst(self, at_ns: int, requests: int, unsent: Iterable[DueRequest]) -> None:
        """Make requests due together at a time, which no plan asked for.

        ``unsent`` are given back, and returned again after them.
        """
        unsent = list(unsent)
        for phase, stream in self._streams.items():
            stream.give_back(due for due in unsent if due.phase is phase)
        if self._left is not None:
            self._left += sum(due.phase is not Phase.WARMUP for due in unsent)
        numbers = range(self._extra, self._extra + requests)
        self._extra += requests
        self._streams[Phase.BURST].give_back(
            DueRequest(
                at_ns,
                Phase.BURST,
                number,
                self._prompts.make(Phase.BURST, number),
                None if place else requests,
            )
            for place, number in enumerate(numbers)
        )

    def _steady_s(self, at_ns: int) -> float:
        return max(at_ns - self._warmup_ns, 0) / NS_PER_S


def warmup_of(plan: LoadPlan) -> int:
    """Length in ns of the warm-up that is part of the schedule."""
    return 0 if plan.measures_rate else int(plan.warmup_s * NS_PER_S)


def _warm_up(plan: LoadPlan, prompts: Prompts, rates: RateSeries) -> DueStream:
    """The requests of the warm-up, at the initial rate, with its own random numbers."""
    warmup_ns, rate_per_s = warmup_of(plan), rates.rate_at(0)
    if not warmup_ns or not rate_per_s:
        return DueStream()
    stream = PacedDueStream(
        _numbers(plan, plan.seed + (1 << 32)),
        ArrivalPace(flat(rate_per_s)),
        partial(prompts.make, Phase.WARMUP),
        phase=Phase.WARMUP,
    )
    return DueStream(takewhile(lambda due: due.offset_ns < warmup_ns, stream))


def _steady(plan: LoadPlan, prompts: Prompts, pace: ArrivalPace) -> PacedDueStream:
    numbers = _numbers(plan, plan.seed)
    if plan.requests:
        numbers = iter([_counted(plan, plan.requests)])
    make = partial(prompts.make, Phase.STEADY)
    after_ns = warmup_of(plan)
    return PacedDueStream(numbers, pace, make, phase=Phase.STEADY, after_ns=after_ns)


def _numbers(plan: LoadPlan, seed: int) -> Iterator[Floats]:
    return arrival_numbers(plan.arrivals, seed=seed, burstiness=plan.burstiness)


def _counted(plan: LoadPlan, requests: int) -> Floats:
    return counted_numbers(
        plan.arrivals, requests, seed=plan.seed, burstiness=plan.burstiness
    )


def _trace(plan: LoadPlan, prompts: Prompts, warmup_ns: int) -> Iterator[DueRequest]:
    """The requests of the trace at their times; the first ones are the warm-up."""
    for number, row in enumerate(plan.trace):
        offset_ns = round(row.offset_s / plan.speed * NS_PER_S)
        phase = Phase.WARMUP if offset_ns < warmup_ns else Phase.STEADY
        yield DueRequest(offset_ns, phase, number, prompts.seen(row, number))


def _bursts(plan: LoadPlan, prompts: Prompts, after_ns: int) -> Iterator[DueRequest]:
    if plan.burst_every_s is None:
        return
    numbers = count()
    for offset_ns in burst_times(plan.burst_every_s):
        members = _members(plan, prompts, numbers)
        for position, (number, prompt) in enumerate(members):
            size = None if position else len(members)
            yield DueRequest(after_ns + offset_ns, Phase.BURST, number, prompt, size)


def _members(
    plan: LoadPlan, prompts: Prompts, numbers: Iterator[int]
) -> list[tuple[int, Prompt]]:
    """The requests of the next burst."""
    if plan.burst_requests is None:
        return _enough(plan.burst_tokens, prompts, numbers)
    burst = islice(numbers, plan.burst_requests)
    return [(number, prompts.make(Phase.BURST, number)) for number in burst]


def _enough(
    kv_tokens: int, prompts: Prompts, numbers: Iterator[int]
) -> list[tuple[int, Prompt]]:
    """The next prompts that together need this much KV cache."""
    members: list[tuple[int, Prompt]] = []
    while kv_tokens > 0:
        number = next(numbers)
        members.append((number, prompts.make(Phase.BURST, number)))
        kv_tokens -= members[-1][1].kv_tokens
    return members
