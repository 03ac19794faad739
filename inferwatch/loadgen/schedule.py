"""The schedule of a run: which request is due when, before any of it is sent."""

import heapq
from collections.abc import Iterator
from itertools import chain, count, takewhile
from typing import NamedTuple

from collectors.clock import NS_PER_S
from collectors.readings import Phase
from inferwatch.loadgen.arrivals import arrival_times, burst_times
from inferwatch.loadgen.plan import LoadPlan
from inferwatch.loadgen.prompts import Prompt, Prompts


class Due(NamedTuple):
    """A request and its intended time, in ns from the start of the schedule."""

    offset_ns: int
    phase: Phase
    number: int
    prompt: Prompt
    burst: int | None = None
    """For the first request of a burst: how many requests the burst has."""


def schedule(plan: LoadPlan, rate_per_s: float) -> Iterator[Due]:
    """Everything that is due, in order of time, until the plan's duration."""
    prompts = Prompts(plan)
    due = heapq.merge(
        _steady(plan, prompts, rate_per_s),
        _bursts(plan, prompts),
        key=lambda each: each.offset_ns,
    )
    if plan.duration_s is None:
        return due
    end_ns = plan.duration_s * NS_PER_S
    return takewhile(lambda each: each.offset_ns < end_ns, due)


def _steady(plan: LoadPlan, prompts: Prompts, rate_per_s: float) -> Iterator[Due]:
    blocks = arrival_times(plan.arrivals, rate_per_s=rate_per_s, seed=plan.seed)
    for number, offset_ns in enumerate(chain.from_iterable(blocks)):
        prompt = prompts.make(Phase.STEADY, number)
        yield Due(int(offset_ns), Phase.STEADY, number, prompt)


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
