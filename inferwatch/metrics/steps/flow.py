"""A request's way through the engine: rates, queue, KV cache."""

from dataclasses import dataclass, field

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.series.samples import CounterTotals
from inferwatch.metrics.series.window import Quantiles
from inferwatch.metrics.steps.counter import ratio
from inferwatch.metrics.steps.engines import Engines, Rank, known_sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A request's way through the engine, rates over the window."""

    arrivals_per_s: float | None = None
    finished_per_s: float | None = None
    prompt_tokens_p50: float | None = None
    waiting: int | None = None
    oldest_wait_s: float | None = None
    kv_usage: float | None = None
    """Used / total blocks, 0-1, at the last step."""
    running: int | None = None
    batch_mean: float | None = None
    """Requests per step."""
    prefill_tokens_per_s: float | None = None
    """Prompt tokens computed, recomputation included."""
    output_tokens_per_s: float | None = None
    output_tokens_per_s_now: float | None = None
    """Over the last two seconds."""
    tokens_per_s_per_user: float | None = None
    """1 / mean ITL: what one stream reads."""
    budget_usage: float | None = None
    """Scheduled tokens / max_num_batched_tokens, mean over steps, 0-1."""
    prefix_hit_rate: float | None = None
    step_s: Quantiles = field(default_factory=Quantiles)
    finished: int = 0
    """Sequences: a request with ``n=4`` is four."""
    finished_as_sent: int | None = None
    """As people sent them; None where nobody tells of single ones."""
    failed: int = 0
    """Client failures and engine-side errors."""
    aborted: int = 0
    preemptions: int = 0
    """In the window, as all counts here."""
    ended: dict[str, int] = field(default_factory=dict)
    """By how they ended, in the server's words, where only it counts them: stop,
    length, abort, error."""

    @property
    def output_tokens_per_request(self) -> float | None:
        """Output tokens for each request that finished."""
        if not self.finished_per_s or self.output_tokens_per_s is None:
            return None
        return self.output_tokens_per_s / self.finished_per_s

    @property
    def failed_share(self) -> float | None:
        """Of those that finished or failed, 0-1."""
        ended = self.finished + self.failed
        return self.failed / ended if ended else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvState:
    """KV cache now and at its fullest."""

    total_blocks: int | None = None
    used_blocks: int | None = None
    cached_blocks: int | None = None
    free_blocks: int | None = None
    peak_used_blocks: int | None = None
    """In the session."""
    peak_usage: float | None = None
    """In the session, 0-1, where shares are told and not blocks."""
    block_tokens: int | None = None
    preemptions: int = 0
    """In the window."""
    recomputed_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0


LEAST_NS = NS_PER_S
"""A rate over less than a second would be noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """What an engine does now; None before anything is known, and once it is lost."""

    running: int | None = None
    waiting: int | None = None
    oldest_wait_s: float | None = None
    tokens_per_s: float | None = None
    """Output of the last two seconds."""

    @property
    def any(self) -> bool:
        """There is something to do."""
        return bool(self.running or self.waiting)


def scheduler_state(
    now_ns: int, engines: Engines, requests: RequestIndex
) -> SchedulerState:
    """Joins what engines said last with what requests told since.

    An engine speaks when a step ends: it is right about what it held then, loss or
    not. Requests speak at once: they know of a step still under way, and of a queue
    that no step serves. The larger number is the current one.
    """
    ranks = [rank for rank in engines.ranks.items() if not rank[1].lost]
    if not ranks and not requests.live:
        return SchedulerState()
    running = sum(_running(rank, requests, source) for (source, _), rank in ranks)
    waiting = sum(rank.waiting for _, rank in ranks) if running else 0
    since = [each.waiting_since_ns or now_ns for each in requests.waiting]
    return SchedulerState(
        running=max(running, len(requests.running)),
        waiting=max(waiting, len(requests.waiting)),
        oldest_wait_s=(now_ns - min(since)) / NS_PER_S if since else None,
    )


def _running(rank: Rank, requests: RequestIndex, source: str) -> int:
    """Still running of those that ran in the latest step."""
    if rank.at_rest is not None:
        return rank.at_rest.running or 0
    if rank.step is None:
        return 0
    known = requests.members(source)
    members = [known.get(ordinal) for ordinal in rank.step.members]
    return rank.step.running - sum(each is not None and each.ended for each in members)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTotals:
    """What the readings of a window add up to: the flow's rates are made of it."""

    covered_ns: int
    steps: CounterTotals
    outcomes: CounterTotals
    prompts: Quantiles
    durations: Quantiles
    itl: Quantiles

    def per_s(self, count: int) -> float | None:
        """A rate over the part of the window that was watched."""
        if self.covered_ns < LEAST_NS:
            return None
        return count * NS_PER_S / self.covered_ns


def flow(seen: WindowTotals, work: SchedulerState, kv: KvState) -> Flow:
    """From left to right: arrivals, queue, prefill, decode, out."""
    steps, outcomes = seen.steps.sums, seen.outcomes.sums
    return Flow(
        arrivals_per_s=seen.per_s(outcomes["arrived"]),
        finished_per_s=seen.per_s(outcomes["finished"]),
        prompt_tokens_p50=seen.prompts.p50,
        waiting=work.waiting,
        oldest_wait_s=work.oldest_wait_s,
        kv_usage=kv_usage(kv),
        running=work.running,
        batch_mean=ratio(steps["batch"], seen.steps.rows),
        prefill_tokens_per_s=seen.per_s(steps["prefill_tokens"]),
        output_tokens_per_s=seen.per_s(steps["output_tokens"]),
        output_tokens_per_s_now=work.tokens_per_s,
        tokens_per_s_per_user=1 / seen.itl.mean if seen.itl.mean else None,
        budget_usage=ratio(steps["budgeted_tokens"], steps["budget"]),
        prefix_hit_rate=ratio(steps["prefix_hits"], steps["prefix_queries"]),
        step_s=seen.durations,
        finished=outcomes["finished"],
        finished_as_sent=outcomes["finished_as_sent"],
        failed=outcomes["failed"],
        aborted=outcomes["aborted"],
        preemptions=steps["preemptions"],
    )


def kv_state(engines: Engines, steps: CounterTotals) -> KvState:
    """KV cache now, its peak, and what happened to it in the window."""
    used, cached, free = engines.kv if engines.ranks else (None, None, None)
    infos = engines.infos
    return KvState(
        total_blocks=known_sum(rank.total_blocks for rank in engines.ranks.values()),
        used_blocks=used,
        cached_blocks=cached,
        free_blocks=free,
        peak_used_blocks=engines.peak_used_blocks,
        block_tokens=infos[0].kv_block_tokens if infos else None,
        preemptions=steps.sums["preemptions"],
        recomputed_tokens=steps.sums["recomputed_tokens"],
        prefix_queries=steps.sums["prefix_queries"],
        prefix_hits=steps.sums["prefix_hits"],
    )


def kv_usage(kv: KvState) -> float | None:
    """Used / total, 0-1."""
    if kv.used_blocks is None or not kv.total_blocks:
        return None
    return kv.used_blocks / kv.total_blocks
