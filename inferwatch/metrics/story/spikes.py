"""Late tokens of one request, each with a cause and evidence."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter, itemgetter
from statistics import median

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import GpuSample, Step
from inferwatch.formatting import counted, format_duration
from inferwatch.metrics.causes.cause import SPIKE_FACTOR, SPIKE_LEAST_NS, Cause
from inferwatch.metrics.causes.late_token import (
    Lateness,
    StepFact,
    is_compiling,
    is_spike,
    why_late,
)
from inferwatch.metrics.requests.attribution import RECENT_STEPS
from inferwatch.metrics.steps.engines import gap_ns
from inferwatch.metrics.story.request_readings import Name, RequestReadings
from inferwatch.metrics.story.request_walk import OwnStep, RequestWalk
from inferwatch.metrics.story.story import Spike

MOST_SPIKES = 500
"""Largest number of late tokens; beyond it the longest gaps are kept."""
CLOCK_DROP = 0.9
"""Clock / usual clock of a GPU below which it was throttled."""

WHOSE = "{whose}"
"""Placeholder for a request's name in evidence."""
DURING = {
    Cause.SLOW_STEP: "",
    Cause.CLOCK_DROP: " while a GPU's clock was held down",
    Cause.COMPILATION: " while the engine compiled",
}
"""Evidence on why a step was slow."""
NEAR_NS = NS_PER_S
"""Tolerance in time, as clocks are usually read once a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateToken:
    """A late token, with the ordinal of the request that delayed it, if any."""

    spike: Spike
    culprit: int | None = None


def late_tokens(readings: RequestReadings, walked: RequestWalk) -> list[LateToken]:
    """Return late tokens by time, as measured on the engine's clock."""
    came = walked.with_token
    gaps = [
        (after.step.end_ns - before.step.end_ns, number)
        for number, (before, after) in enumerate(pairwise(came), start=1)
    ]
    if not gaps:
        return []
    usual_ns = median(gap for gap, _ in gaps)
    late = [each for each in gaps if is_spike(each[0], usual_ns)]
    late = sorted(sorted(late, reverse=True)[:MOST_SPIKES], key=itemgetter(1))
    low_ns = low_clocks_ns(readings.gpu_samples)
    return [
        _late_token(readings, walked, low_ns, came[number - 1], came[number])
        for _, number in late
    ]


def _late_token(
    readings: RequestReadings,
    walked: RequestWalk,
    low_ns: Sequence[int],
    before: OwnStep,
    own: OwnStep,
) -> LateToken:
    last_ns, t_ns = before.step.end_ns, own.step.end_ns
    since = readings.steps[before.place + 1 : own.place + 1]
    preempted = any(
        before.place < each.place <= own.place for each in walked.preemptions
    )
    oldest = max(0, own.place + 1 - RECENT_STEPS)
    why = why_late(
        last_ns,
        t_ns,
        _facts(readings.steps, max(oldest, before.place + 1), own.place + 1),
        _facts(readings.steps, oldest, before.place + 1),
        preempted=preempted,
        clock_dropped=_any_between(low_ns, last_ns, t_ns + NEAR_NS),
    )
    if not preempted and is_compiling(readings.compiled, last_ns, t_ns):
        why = replace(why, cause=Cause.COMPILATION)
    culprit = None
    if why.cause is Cause.LONG_PREFILL:
        culprit = _largest_prefill(since, readings.ordinal)
    member, tokens = culprit or (None, why.prefill_tokens)
    if why.cause is Cause.RECOMPUTE:
        tokens = _scheduled(walked, before.place, own.place)
    spike = Spike(
        t_ns=t_ns,
        gap_ns=t_ns - last_ns,
        cause=why.cause,
        evidence=_evidence(why, since, own, tokens),
        step=own.step.index,
    )
    return LateToken(spike=spike, culprit=member)


def _scheduled(walked: RequestWalk, after: int, up_to: int) -> int:
    """Return the tokens scheduled for the request in the steps between two places."""
    place = attrgetter("place")
    first = bisect_right(walked.own, after, key=place)
    end = bisect_right(walked.own, up_to, key=place)
    return sum(each.scheduled for each in walked.own[first:end])


def _facts(steps: Sequence[Step], first: int, end: int) -> list[StepFact]:
    return [
        StepFact.of(
            steps[place], gap_ns(steps[place - 1] if place else None, steps[place])
        )
        for place in range(first, end)
    ]


def prefilling(step: Step) -> list[tuple[int, int]]:
    """Return the members of a step in prefill with their tokens, most first.

    A step reports only their number: they are taken to be those with most scheduled
    tokens.
    """
    count = step.prefill_requests
    if not count:
        return []
    pairs = zip(step.members, step.scheduled, step.produced, strict=True)
    ranked = sorted(pairs, key=lambda each: (-each[1], each[2]))
    return [(member, scheduled) for member, scheduled, _ in ranked[:count]]


def _largest_prefill(
    steps: Sequence[Step], ordinal: int | None
) -> tuple[int, int] | None:
    """Return the other request with most prompt tokens in these steps, if any."""
    tokens: dict[int, int] = {}
    for step in steps:
        for member, scheduled in prefilling(step):
            if member != ordinal:
                tokens[member] = tokens.get(member, 0) + scheduled
    return max(tokens.items(), key=itemgetter(1), default=None)


def low_clocks_ns(samples: Sequence[GpuSample]) -> list[int]:
    """Return when a GPU's clock was well below its usual one, by time."""
    by_gpu: dict[str, list[tuple[int, int]]] = {}
    for each in samples:
        if each.sm_clock_mhz is not None:
            by_gpu.setdefault(each.source, []).append((each.t_ns, each.sm_clock_mhz))
    low = []
    for clocks in by_gpu.values():
        least_mhz = CLOCK_DROP * median(mhz for _, mhz in clocks)
        low += [t_ns for t_ns, mhz in clocks if mhz < least_mhz]
    return sorted(low)


def _any_between(moments_ns: Sequence[int], start_ns: int, end_ns: int) -> bool:
    at = bisect_left(moments_ns, start_ns)
    return at < len(moments_ns) and moments_ns[at] <= end_ns


def _seconds(ns: int) -> str:
    return format_duration(ns / NS_PER_S).strip()


def _evidence(why: Lateness, since: Sequence[Step], own: OwnStep, tokens: int) -> str:
    """Return the evidence as a sentence, with a placeholder for a name."""
    usual = why.usual_step_ns
    than = f", {_seconds(usual)} is usual" if usual is not None else ""
    worst = why.worst
    match why.cause:
        case Cause.RECOMPUTE:
            return (
                f"preempted: {counted(tokens, 'token')} had to be computed before the "
                "next one came"
            )
        case Cause.HOST_STALL:
            running = own.step.running
            return (
                f"no step was under way for {_seconds(why.between_ns)} though "
                f"{counted(running, 'request')} ran"
            )
        case Cause.LONG_PREFILL:
            worked_ns = sum(each.duration_ns for each in since)
            steps = "in the same step" if why.steps == 1 else f"in {why.steps} steps"
            return (
                f"prefill of {WHOSE}, {counted(tokens, 'token')}, {steps}: "
                f"{_seconds(worked_ns)}{than}"
            )
        case Cause.SLOW_STEP | Cause.CLOCK_DROP | Cause.COMPILATION if (
            worst is not None
        ):
            meanwhile = DURING[why.cause]
            return (
                f"a step with {counted(worst.decode_tokens, 'decode token')} took "
                f"{_seconds(worst.duration_ns)}{meanwhile}{than}: slow for all in it"
            )
    without = sum(1 for each in since if each is not own.step)
    if without:
        return (
            f"{counted(without, 'step')} gave it no token, for no reason that is told"
        )
    return "no step, stall or preemption explains it"


def named(late: LateToken, name: Name | None) -> Spike:
    """Return the late token's spike with the name of the request that delayed it."""
    key, whose = name or (None, "others")
    evidence = late.spike.evidence.replace(WHOSE, whose, 1)
    return replace(late.spike, evidence=evidence, blamed=key)


def merged_tokens(readings: RequestReadings, walked: RequestWalk) -> list[LateToken]:
    """Return gaps that a client of ours saw but the engine did not cause."""
    times = readings.token_times
    came = walked.with_token
    if times is None or not times.gaps_ns or len(came) < 2:
        return []
    usual_ns = median(times.gaps_ns)
    made = [each.step.end_ns for each in came]
    delay_ns = max(0, times.first_ns - made[0])
    merged: list[LateToken] = []
    t_ns, at = times.first_ns, 0
    for gap in times.gaps_ns:
        last_ns, t_ns = t_ns, t_ns + gap
        if not is_spike(gap, usual_ns):
            continue
        while at < len(made) and made[at] <= last_ns - delay_ns:
            at += 1
        end = at
        while end < len(made) and made[end] <= t_ns - delay_ns // 2:
            end += 1
        here = made[max(at - 1, 0) : end]
        worst_ns = max((b - a for a, b in pairwise(here)), default=gap)
        if end - at < 2 or worst_ns > max(SPIKE_LEAST_NS, gap / SPIKE_FACTOR):
            continue  # the engine itself was late
        own = came[end - 1]
        spike = Spike(
            t_ns=t_ns,
            gap_ns=gap,
            cause=Cause.MERGED,
            evidence=(
                f"the client got {counted(end - at, 'output')} after "
                f"{_seconds(gap)} at once; the engine had made them at most "
                f"{_seconds(worst_ns)} apart"
            ),
            step=own.step.index,
        )
        merged.append(LateToken(spike=spike))
    return sorted(
        sorted(merged, key=lambda each: -each.spike.gap_ns)[:MOST_SPIKES],
        key=lambda each: each.spike.t_ns,
    )
