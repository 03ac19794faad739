"""The schedule of a run: which request is due when, before any of it is sent."""

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, takewhile
from typing import NamedTuple

from collectors.clock import NS_PER_S
from collectors.readings import Phase
from inferwatch.loadgen.arrivals import arrival_times, burst_times, counted_times
from inferwatch.loadgen.plan import Arrivals, LoadPlan
from inferwatch.loadgen.prompts import Prompt, Prompts
from inferwatch.loadgen.rates import RateSeries, flat


class Due(NamedTuple):
    """A request and its intended time, in ns from the start of the schedule."""

    offset_ns: int
    phase: Phase
    number: int
    prompt: Prompt
    burst: int | None = None
    """For the first request of a burst: how many requests the burst has."""


def schedule(plan: LoadPlan, prompts: Prompts, rates: RateSeries) -> Iterator[Due]:
    """Everything that is due, in order of time, to the plan's duration or count."""
    warmup_ns = warmup_of(plan)
    due: Iterator[Due] = heapq.merge(
        _later(_steady(plan, prompts, rates), warmup_ns),
        _later(_bursts(plan, prompts), warmup_ns),
        key=lambda each: each.offset_ns,
    )
    if plan.arrivals is Arrivals.TRACE:
        due = _trace(plan, prompts, warmup_ns)
    whole = chain(_warm_up(plan, prompts, rates), due)
    return takewhile(_within(plan, warmup_ns), whole)


def warmup_of(plan: LoadPlan) -> int:
    """How long the schedule's own warm-up takes, in ns."""
    return 0 if plan.measures_rate else int(plan.warmup_s * NS_PER_S)


def _within(plan: LoadPlan, warmup_ns: int) -> Callable[[Due], bool]:
    """Whether a request is still part of the plan; asked of each, in order."""
    end_ns = None
    if plan.duration_s is not None:
        end_ns = warmup_ns + plan.duration_s * NS_PER_S
    numbers = count(1)

    def within(due: Due) -> bool:
        in_time = end_ns is None or due.offset_ns < end_ns
        if plan.requests is None or due.phase is Phase.WARMUP:
            return in_time
        return in_time and next(numbers) <= plan.requests

    return within


def _later(dues: Iterator[Due], by_ns: int) -> Iterator[Due]:
    return (due._replace(offset_ns=due.offset_ns + by_ns) for due in dues)


def _warm_up(plan: LoadPlan, prompts: Prompts, rates: RateSeries) -> Iterator[Due]:
    """At the rate at which the rest begins; a trace warms up by its own beginning."""
    warmup_ns, rate_per_s = warmup_of(plan), rates.rate_at(0)
    if not warmup_ns or not rate_per_s or plan.arrivals is Arrivals.TRACE:
        return iter(())
    dues = _steady(plan, prompts, flat(rate_per_s), Phase.WARMUP)
    return takewhile(lambda due: due.offset_ns < warmup_ns, dues)


def _steady(
    plan: LoadPlan, prompts: Prompts, rates: RateSeries, phase: Phase = Phase.STEADY
) -> Iterator[Due]:
    for number, offset_ns in enumerate(_times(plan, rates, phase)):
        yield Due(int(offset_ns), phase, number, prompts.make(phase, number))


def _times(plan: LoadPlan, rates: RateSeries, phase: Phase) -> Iterable[int]:
    """The warm-up's are drawn apart, so that it changes nothing of the rest."""
    seed = plan.seed + (1 << 32) * (phase is Phase.WARMUP)
    pattern, burstiness = plan.arrivals, plan.burstiness
    if plan.requests and phase is Phase.STEADY:
        counted: list[int] = counted_times(
            pattern, rates, plan.requests, seed=seed, burstiness=burstiness
        ).tolist()
        return counted
    blocks = arrival_times(pattern, rates, seed=seed, burstiness=burstiness)
    return chain.from_iterable(block.tolist() for block in blocks)


def _trace(plan: LoadPlan, prompts: Prompts, warmup_ns: int) -> Iterator[Due]:
    """What was seen, at its times; the beginning is warm-up."""
    for number, row in enumerate(plan.trace):
        offset_ns = round(row.offset_s / plan.speed * NS_PER_S)
        phase = Phase.WARMUP if offset_ns < warmup_ns else Phase.STEADY
        yield Due(offset_ns, phase, number, prompts.seen(row, number))


def _bursts(plan: LoadPlan, prompts: Prompts) -> Iterator[Due]:
    if plan.burst_every_s is None:
        return
    numbers = count()
    for offset_ns in burst_times(plan.burst_every_s):
        members = _enough(plan.burst_tokens, prompts, numbers)
        for position, (number, prompt) in enumerate(members):
            size = None if position else len(members)
            yield Due(offset_ns, Phase.BURST, number, prompt, size)


def _enough(
    kv_tokens: int, prompts: Prompts, numbers: Iterator[int]
) -> list[tuple[int, Prompt]]:
    """The next prompts that together ask for this much KV cache."""
    members: list[tuple[int, Prompt]] = []
    while kv_tokens > 0:
        number = next(numbers)
        members.append((number, prompts.make(Phase.BURST, number)))
        kv_tokens -= members[-1][1].kv_tokens
    return members
