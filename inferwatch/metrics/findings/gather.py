"""Gathers the facts that diagnoses judge from the trackers of a Model."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Note
from inferwatch.metrics.cache.memory import HitPoint
from inferwatch.metrics.cache.tracker import MemoryTracker
from inferwatch.metrics.causes.cause import SlowRequests
from inferwatch.metrics.findings.facts import Around, Facts, MixedSteps, WaitingPrompts
from inferwatch.metrics.requests.outcomes import Outcomes
from inferwatch.metrics.requests.refusals import RefusalLog
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.requests.request_row import RequestState
from inferwatch.metrics.requests.slowest import SlowLog
from inferwatch.metrics.requests.starvation import starved_priority
from inferwatch.metrics.series.history import History
from inferwatch.metrics.series.quantiles import Ints
from inferwatch.metrics.series.samples import CounterTotals
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.servers.counted_requests import CountedRequests
from inferwatch.metrics.servers.scraped import ScrapedServers
from inferwatch.metrics.steps.counter import (
    COUNTED,
    SPENT_NS,
    StepCounter,
    ratio,
)
from inferwatch.metrics.steps.engines import Engines, known_sum
from inferwatch.metrics.steps.flow import scheduler_state
from inferwatch.metrics.steps.health import Health, HealthTracker, Verdict
from inferwatch.metrics.steps.speculation import METHOD, SpeculationCounter
from inferwatch.metrics.steps.stacks import StalledStacks
from inferwatch.metrics.steps.stalls import StallFinder
from inferwatch.metrics.steps.startup import startup_of
from inferwatch.metrics.tenants.tracker import TenantTracker

MOST_LOOKED_AT = 2_000
"""Largest number of waiting or running requests whose prompts are compared."""
LEAST_MIXED = 3
LEAST_DECODING = 5
"""Fewest decode-only steps for a meaningful median."""
FULL = 0.8
"""KV cache usage from which on wasted room is computed, 0-1."""
FEW = 0.1
"""Hit rate below which the hit rate of the session is computed, 0-1."""
LEAST_SIZES = 2
STARVED_S = 5.0
"""How long a request has to wait before its priority may starve."""
LOSSES_NS = 600 * NS_PER_S
TEN_S, MINUTE_S = 10, 60
LONGER = Window.MINUTE
SLOW = 2
"""Ratio of the slowest step of a minute to that of ten seconds above which the minute's
quantiles are computed; less than warm-up is found by.
"""
LOOKED_AT = [
    0,
    *(
        1 + COUNTED.index(name)
        for name in ("output_tokens", "prefill_tokens", *SPENT_NS.values())
    ),
]
"""Columns of the step counters that tell how prefill delays decode; 0 is the time."""
BATCH, PREEMPTIONS = (1 + COUNTED.index(name) for name in ("batch", "preemptions"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sources:
    """The trackers of one Model that facts are gathered from."""

    engines: Engines
    requests: RequestIndex
    steps: StepCounter
    outcomes: Outcomes
    refusals: RefusalLog
    slow: SlowLog
    tenants: TenantTracker
    stalls: StallFinder
    health: HealthTracker
    memory: MemoryTracker
    history: History
    speculation: SpeculationCounter
    scraped: ScrapedServers


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedMoment:
    """A tick, with the times at which the engine started, reported and was lost."""

    now_ns: int
    began_ns: int | None
    steps: CounterTotals
    """Counters of the steps of the last ten seconds."""
    up_ns: int | None
    """When watching began or the engine restarted."""
    heard_ns: int | None
    """When any engine process last sent a message."""
    lost: tuple[tuple[int, str], ...]
    """When engines were lost, and why, oldest first."""
    compilations: tuple[Note, ...] = ()
    """Of the last minute."""
    slow: SlowRequests | None = None
    counted: CountedRequests | None = None


def facts_of(sources: Sources, moment: JudgedMoment, around: Around) -> Facts:
    """Return the facts of one tick, which takes about a millisecond."""
    now_ns, began_ns = moment.now_ns, moment.began_ns
    engines = sources.engines
    work = scheduler_state(now_ns, engines, sources.requests)
    state = sources.health.state(now_ns, work)
    used = engines.kv[0] if engines.ranks else None
    blocks = known_sum(rank.total_blocks for rank in engines.ranks.values())
    kv_usage = used / blocks if used is not None and blocks else None
    minute = sources.steps.over(now_ns, LONGER)
    n, ttft_ns, spent_ns, slowest = sources.slow.spent(now_ns, Window.TEN_SECONDS)
    hit_rate = ratio(minute.sums["prefix_hits"], minute.sums["prefix_queries"])
    infos = engines.infos
    steps, up_ns = sources.steps, moment.up_ns
    begins = up_ns is not None and now_ns - up_ns <= MINUTE_S * NS_PER_S
    longest_s = _longest_s(moment.steps)
    slow = begins and _longest_s(minute) > SLOW * longest_s
    lost = [each for each in moment.lost if each[0] > now_ns - LOSSES_NS]
    full = kv_usage is not None and kv_usage >= FULL
    drafts = sources.speculation.counters.over(now_ns, LONGER)
    block_tokens = infos[0].kv_block_tokens if infos else None
    return Facts(
        now_ns=now_ns,
        up_s=(now_ns - up_ns) / NS_PER_S if up_ns is not None else 0.0,
        covered_s=_covered_s(now_ns, began_ns, TEN_S),
        minute_s=_covered_s(now_ns, began_ns, MINUTE_S),
        silent_s=_since_s(now_ns, moment.heard_ns),
        ranks=max(len(engines.ranks), 1),
        infos=infos,
        settings=engines.first_settings,
        startup=startup_of(engines.stages.values()) if engines.stages else None,
        live_limits=engines.live_limits,
        verdict=state,
        running=work.running,
        waiting=work.waiting,
        oldest_wait_s=work.oldest_wait_s,
        waited=_waited(sources.history, now_ns)
        if work.waiting or moment.slow is not None
        else 0,
        kv_usage=kv_usage,
        kv_blocks=blocks,
        block_tokens=block_tokens,
        steps=moment.steps,
        steps_minute=minute,
        drafts=drafts,
        speculates=bool(drafts.rows)
        or engines.first_settings.get(METHOD) is not None
        or sources.scraped.speculate(engines.sources),
        deferrals=sources.steps.deferrals.over(now_ns, Window.TEN_SECONDS).sums,
        outcomes=sources.outcomes.over(now_ns, LONGER),
        refused=(
            *(sources.refusals.over(now_ns, LONGER) or ()),
            *(moment.counted.refused if moment.counted else ()),
        ),
        counted=moment.counted,
        prompts=sources.outcomes.prompts.quantiles(now_ns, LONGER),
        ttft_n=n,
        ttft_ns=ttft_ns,
        spent_ns=spent_ns,
        slowest=slowest,
        slow=moment.slow,
        mixed=_mixed_steps(sources.steps, now_ns),
        behind=_waiting_prompts(sources.requests),
        noisy=sources.tenants.noisy(now_ns),
        starved=starved_priority(sources.requests, now_ns, STARVED_S),
        compilations=moment.compilations,
        stalls=sources.stalls.over(now_ns, LONGER),
        stacks=_stacks_of(sources.stalls, state),
        waste_share=sources.memory.waste_share(block_tokens) if full else None,
        hit_rate=hit_rate,
        hit_rate_ever=_hit_rate_ever(sources.steps, moment),
        reachable_hit_rate=_reachable(sources.memory.hit_curve(blocks), hit_rate),
        prefix_misses=partial(sources.memory.judged_misses, now_ns),
        slow_start=steps.durations(now_ns, LONGER) if slow else None,
        longest_s=longest_s if slow else None,
        lost_ns=tuple(t_ns for t_ns, _ in lost),
        has_log=any(each.log_path for each in engines.endpoints.values()),
        lost_why=lost[-1][1].partition("\n")[0] if lost else "",
        around=around,
        decode_steps=partial(_decode_steps, steps),
        held_batch=partial(_held_batch, steps, now_ns),
    )


def _stacks_of(stalls: StallFinder, state: Verdict) -> StalledStacks | None:
    """Return the stacks of the stall that goes on; None without them."""
    latest = stalls.stacks.latest
    goes_on = latest is not None and latest.stalled_ns == state.since_ns
    return latest if goes_on and state.health is Health.STALLED else None


def _hit_rate_ever(steps: StepCounter, moment: JudgedMoment) -> float | None:
    """Return the hit rate of the session; None unless recent hits are rare."""
    sums = moment.steps.sums
    if not sums["prefix_queries"] or sums["prefix_hits"] > FEW * sums["prefix_queries"]:
        return None
    whole = steps.over(moment.now_ns, Window.SESSION).sums
    return ratio(whole["prefix_hits"], whole["prefix_queries"])


def _waited(history: History, now_ns: int) -> int:
    """Return the most requests that waited at one rank in the last minute."""
    bins = history.columns(now_ns, LONGER)[2]
    return max((each.waiting_max for each in bins if each is not None), default=0)


def _reachable(curve: Sequence[HitPoint], hit_rate: float | None) -> float | None:
    """Return the hit rate of a larger cache: by what the estimates differ, not more."""
    rates = [point.hit_rate for point in curve if point.factor is not None]
    if hit_rate is None or len(rates) < LEAST_SIZES:
        return None
    now, larger = rates[0], rates[-1]
    return min(larger, hit_rate + larger - now)


def _since_s(now_ns: int, t_ns: int | None) -> float | None:
    return None if t_ns is None else (now_ns - t_ns) / NS_PER_S


def _covered_s(now_ns: int, began_ns: int | None, span_s: float) -> float:
    """Return how many of the last ``span_s`` seconds an engine was watched."""
    if began_ns is None:
        return 0.0
    return min(max(now_ns - began_ns, 0) / NS_PER_S, span_s)


def _longest_s(steps: CounterTotals) -> float:
    """Return the longest step's duration; 0 without any."""
    return max(steps.maxima[each] for each in SPENT_NS.values()) / NS_PER_S


def _mixed_steps(steps: StepCounter, now_ns: int) -> MixedSteps | None:
    """Return how prefill in the same step delays decoding requests; None if unknown."""
    rows = steps.counters.rows.later_than(now_ns - TEN_S * NS_PER_S, LOOKED_AT)
    ends_ns, tokens, prompts, *spent_ns = rows
    duration_ns: Ints = np.sum(spent_ns, axis=0)
    decoding = (prompts == 0) & (tokens > 0)
    # The last chunk of a prompt yields a token itself, which is not a delayed one.
    delayed = (prompts > 0) & (tokens > 1)
    if delayed.sum() < LEAST_MIXED or decoding.sum() < LEAST_DECODING:
        return None
    usual_ns = float(np.median(duration_ns[decoding]))
    waited_ns = float((duration_ns * tokens)[delayed | decoding].sum())
    beyond = np.maximum(duration_ns[delayed] - usual_ns, 0) * tokens[delayed]
    longest = int(np.argmax(np.where(delayed, duration_ns, 0)))
    weights = tokens[delayed]
    return MixedSteps(
        steps=int(delayed.sum()),
        usual_s=usual_ns / NS_PER_S,
        mean_s=float((duration_ns[delayed] * weights).sum() / weights.sum()) / NS_PER_S,
        delay_share=float(beyond.sum()) / waited_ns,
        worst_ns=int(ends_ns[longest]),
        worst_s=float(duration_ns[longest]) / NS_PER_S,
        worst_tokens=int(prompts[longest]),
    )


def _decode_steps(steps: StepCounter, from_ns: int, until_ns: int) -> dict[int, float]:
    """Return the median step that only decodes, by batch size, where it is known."""
    rows = steps.counters.rows.later_than(from_ns, [*LOOKED_AT, BATCH])
    ends_ns, _, prompts, *spent_ns, batches = rows
    which = (ends_ns <= until_ns) & (prompts == 0) & (batches > 0)
    sizes, durations_ns = batches[which], np.sum(spent_ns, axis=0)[which]
    found, counts = np.unique(sizes, return_counts=True)
    return {
        int(size): float(np.median(durations_ns[sizes == size])) / NS_PER_S
        for size, count in zip(found, counts, strict=True)
        if count >= LEAST_DECODING
    }


def _held_batch(steps: StepCounter, now_ns: int) -> int | None:
    """Return the largest batch of the minute in a step without preemptions."""
    since_ns = now_ns - MINUTE_S * NS_PER_S
    batches, preempted = steps.counters.rows.later_than(since_ns, [BATCH, PREEMPTIONS])
    return int(batches[preempted == 0].max(initial=0)) or None


def _waiting_prompts(requests: RequestIndex) -> WaitingPrompts | None:
    """Return the longest prompt in prefill and those behind it; None without any."""
    computed = [
        each
        for each in _some(requests.running)
        if each.stage is RequestState.PREFILL and each.prompt_tokens is not None
    ]
    longest = max(computed, key=lambda each: each.prompt_tokens or 0, default=None)
    if longest is None or longest.prompt_tokens is None:
        return None
    prompts = [
        each.prompt_tokens
        for each in (*_some(requests.waiting), *computed)
        if each is not longest and each.prompt_tokens is not None
    ]
    if not prompts:
        return None
    return WaitingPrompts(
        waiting=len(prompts),
        waiting_p50=round(median(prompts)),
        longest=longest.prompt_tokens,
        longest_key=longest.key,
    )


def _some(requests: Iterable[Request]) -> list[Request]:
    return [each for each, _ in zip(requests, range(MOST_LOOKED_AT), strict=False)]
