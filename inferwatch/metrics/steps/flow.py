"""A request's way through the engine: rates, queue, KV cache."""

from dataclasses import dataclass, field, replace
from typing import Annotated

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Vantage
from inferwatch.metrics.number import (
    NOW,
    Better,
    FlowColumn,
    FlowFact,
    Number,
    Unit,
    piece,
)
from inferwatch.metrics.requests.refusals import (
    RefusedGroup,
    refused_count,
    refused_failures,
)
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.series.samples import CounterTotals
from inferwatch.metrics.series.window import Quantiles
from inferwatch.metrics.steps.counter import ratio
from inferwatch.metrics.steps.engines import Engines, Rank, known_sum
from inferwatch.metrics.steps.lateness import STALL_LEAST_NS


@piece("flow", Vantage.ENGINE)
class Flow:
    """The path of requests through the engine, with rates over the window."""

    arrivals_per_s: Annotated[
        float | None,
        Number(
            "req/s",
            "Arrivals",
            "Requests that arrived per second, as seen by the frontend or the engine.",
            unit=Unit.PER_SECOND,
            place=FlowFact(FlowColumn.TRAFFIC, inside=True),
        ),
    ] = None
    finished_per_s: Annotated[
        float | None,
        Number(
            "done/s",
            "Finished",
            "Requests that finished per second; aborted and failed ones do not count.",
            unit=Unit.PER_SECOND,
            better=Better.HIGHER,
            place=FlowFact(FlowColumn.TRAFFIC),
        ),
    ] = None
    prompt_tokens_p50: Annotated[
        float | None,
        Number(
            "prompt",
            "Prompt length",
            "Median prompt length of the requests that arrived.",
            unit=Unit.TOKENS,
            place=FlowFact(FlowColumn.TRAFFIC, inside=True),
        ),
    ] = None
    waiting: Annotated[
        int | None,
        Number(
            "waiting",
            "Waiting requests",
            "Requests in the engine's queue, preempted ones included.",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
            span=NOW,
            place=FlowFact(FlowColumn.QUEUE, text="{:,}", alarm="warn"),
        ),
    ] = None
    adapters_waiting: Annotated[
        int | None,
        Number(
            "adapters",
            "Adapters waiting",
            "LoRA adapters needed only by waiting requests; a batch holds at most "
            "max_loras.",
            better=Better.LOWER,
            span=NOW,
            place=FlowFact(FlowColumn.QUEUE, text="{:,}", beside=True),
        ),
    ] = None
    """None where LoRA is off, like the adapters that run."""
    oldest_wait_s: Annotated[
        float | None,
        Number(
            "oldest",
            "Oldest wait",
            "How long the request that has waited longest has waited so far.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            span=NOW,
            place=FlowFact(FlowColumn.QUEUE, inside=True),
        ),
    ] = None
    kv_usage: Annotated[
        float | None,
        Number(
            "KV used",
            "KV usage",
            "Share of the KV blocks that live requests hold.",
            unit=Unit.SHARE,
            span=NOW,
            place=FlowFact(FlowColumn.QUEUE),
        ),
    ] = None
    running: Annotated[
        int | None,
        Number(
            "running",
            "Running requests",
            "Requests that have been scheduled and have not ended.",
            unit=Unit.REQUESTS,
            span=NOW,
            place=FlowFact(FlowColumn.DECODE, text="{:,}", limit="max_num_seqs"),
        ),
    ] = None
    adapters: Annotated[
        int | None,
        Number(
            "adapters",
            "Adapters in use",
            "LoRA adapters of the running requests; the base model is none.",
            span=NOW,
            place=FlowFact(FlowColumn.DECODE, text="{:,}", beside=True),
        ),
    ] = None
    batch_mean: Annotated[
        float | None,
        Number(
            "batch",
            "Batch size",
            "Requests per step, averaged over the steps of the window.",
            unit=Unit.REQUESTS,
            better=Better.HIGHER,
            place=FlowFact(FlowColumn.DECODE, text="{:.1f}"),
        ),
    ] = None
    prefill_tokens_per_s: Annotated[
        float | None,
        Number(
            "tok/s",
            "Prefill rate",
            "Prompt tokens computed per second; tokens computed again after a "
            "preemption count too.",
            unit=Unit.TOKENS_PER_SECOND,
            better=Better.HIGHER,
            place=FlowFact(FlowColumn.PREFILL),
        ),
    ] = None
    output_tokens_per_s: Annotated[
        float | None,
        Number(
            "tok/s",
            "Output rate",
            "Tokens produced per second.",
            unit=Unit.TOKENS_PER_SECOND,
            better=Better.HIGHER,
            place=FlowFact(FlowColumn.OUT),
        ),
    ] = None
    output_tokens_per_s_now: Annotated[
        float | None,
        Number(
            "tok/s",
            "Output rate now",
            "Tokens produced per second over the last two seconds, as in the status "
            "line.",
            unit=Unit.TOKENS_PER_SECOND,
            better=Better.HIGHER,
            span="last 2 s",
        ),
    ] = None
    tokens_per_s_per_user: Annotated[
        float | None,
        Number(
            "per user",
            "Stream speed",
            "Tokens per second that one stream receives: the inverse of the mean ITL.",
            unit=Unit.TOKENS_PER_SECOND,
            better=Better.HIGHER,
            place=FlowFact(FlowColumn.OUT),
        ),
    ] = None
    budget_usage: Annotated[
        float | None,
        Number(
            "budget",
            "max_num_batched_tokens used",
            "Share of max_num_batched_tokens that the steps used.",
            unit=Unit.SHARE,
            place=FlowFact(FlowColumn.PREFILL, inside=True),
        ),
    ] = None
    prefix_hit_rate: Annotated[
        float | None,
        Number(
            "hits",
            "Prefix-cache hit rate",
            "Share of the prompt tokens looked up in the prefix cache that were found "
            "there.",
            unit=Unit.SHARE,
            better=Better.HIGHER,
            place=FlowFact(FlowColumn.PREFILL),
        ),
    ] = None
    step_s: Annotated[
        Quantiles,
        Number(
            "step",
            "Step time",
            "How long a pass of scheduler and model took; idle time is left out.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            place=FlowFact(FlowColumn.DECODE, percentiles=("p50", "p99")),
        ),
    ] = field(default_factory=Quantiles)
    finished: Annotated[
        int,
        Number(
            "finished",
            "Finished requests",
            "Requests that finished; aborted and failed ones do not count.",
            unit=Unit.REQUESTS,
            better=Better.HIGHER,
            place=FlowFact(FlowColumn.TRAFFIC),
        ),
    ] = 0
    """Sequences: a request with ``n=4`` counts four times."""
    finished_as_sent: Annotated[
        int | None,
        Number(
            "as sent",
            "Finished requests, as sent",
            "Requests that finished, as people sent them: one that asks for several "
            "answers (n=4) is several sequences to the engine, each with a row and a "
            "latency of its own, and one request here.",
            unit=Unit.REQUESTS,
            better=Better.HIGHER,
        ),
    ] = None
    """None where single requests are not reported."""
    failed: Annotated[
        int,
        Number(
            "failed",
            "Failed requests",
            "Requests that failed: in the engine, because the engine was lost, or at "
            "the client.",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
            place=FlowFact(FlowColumn.OUT, alarm="bad"),
        ),
    ] = 0
    refused: Annotated[
        int | None,
        Number(
            "refused",
            "Refused requests",
            "Requests that the API server answered with 4xx or 5xx, or that were "
            "turned away before the engine had them; 2 lists them by reason.",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
            vantage=Vantage.FRONTEND,
            place=FlowFact(FlowColumn.OUT, alarm="warn", beside=True),
        ),
    ] = None
    """None where neither a probe nor the server's metrics tell."""
    aborted: Annotated[
        int,
        Number(
            "aborted",
            "Aborted requests",
            "Requests that were cancelled by whoever sent them.",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
            place=FlowFact(FlowColumn.OUT, inside=True),
        ),
    ] = 0
    preemptions: Annotated[
        int,
        Number(
            "preempted",
            "Preemptions",
            "How often a running request was put back into the queue to free its KV "
            "blocks.",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
            place=FlowFact(FlowColumn.QUEUE, alarm="warn"),
        ),
    ] = 0
    ended: Annotated[
        dict[str, int],
        Number(
            "ended",
            "Ended, by reason",
            "Requests that ended, by the reason that the server counts them.",
            unit=Unit.REQUESTS,
        ),
    ] = field(default_factory=dict)
    """By the server's finish reasons, if only it counts them: stop, length, abort,
    error.
    """

    @property
    def output_tokens_per_request(
        self,
    ) -> Annotated[
        float | None,
        Number(
            "answer",
            "Answer length",
            "Output tokens for each request that finished, over the window.",
            unit=Unit.TOKENS,
        ),
    ]:
        """Output tokens per finished request; None where unknown."""
        if not self.finished_per_s or self.output_tokens_per_s is None:
            return None
        return self.output_tokens_per_s / self.finished_per_s

    @property
    def failed_share(
        self,
    ) -> Annotated[
        float | None,
        Number(
            "failed",
            "Share that failed",
            "Failed requests of those that finished or failed.",
            unit=Unit.SHARE,
            better=Better.LOWER,
        ),
    ]:
        """Failed / (finished + failed) requests, 0-1; None without any."""
        ended = self.finished + self.failed
        return self.failed / ended if ended else None


@piece("kv", Vantage.ENGINE)
class KvState:
    """The KV cache now and at its peak."""

    total_blocks: Annotated[
        int | None,
        Number(
            "blocks",
            "KV blocks",
            "Blocks that requests can use; vLLM's null block is not counted.",
            unit=Unit.BLOCKS,
        ),
    ] = None
    used_blocks: Annotated[
        int | None,
        Number(
            "used",
            "Used blocks",
            "Blocks that live requests hold.",
            unit=Unit.BLOCKS,
            span=NOW,
        ),
    ] = None
    cached_blocks: Annotated[
        int | None,
        Number(
            "idle-cached",
            "Idle-cached blocks",
            "Blocks that no request holds, but that still keep a reusable prefix; "
            "vLLM counts them as free.",
            unit=Unit.BLOCKS,
            span=NOW,
        ),
    ] = None
    free_blocks: Annotated[
        int | None,
        Number(
            "free",
            "Free blocks",
            "Blocks that hold nothing.",
            unit=Unit.BLOCKS,
            span=NOW,
        ),
    ] = None
    peak_used_blocks: Annotated[
        int | None,
        Number(
            "peak used",
            "Peak",
            "The most blocks that were in use at once.",
            unit=Unit.BLOCKS,
            span="session",
        ),
    ] = None
    peak_usage: Annotated[
        float | None,
        Number(
            "peak used",
            "Peak, as a share",
            "The fullest the KV cache was, where only shares are told.",
            unit=Unit.SHARE,
            span="session",
        ),
    ] = None
    block_tokens: Annotated[
        int | None,
        Number(
            "tok/block",
            "Block size",
            "Tokens that one KV block holds.",
            unit=Unit.TOKENS,
        ),
    ] = None
    preemptions: Annotated[
        int,
        Number(
            "preemptions",
            "Preemptions",
            "How often a request was put back into the queue to free its blocks.",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
        ),
    ] = 0
    recomputed_tokens: Annotated[
        int,
        Number(
            "recomputed",
            "Recomputed tokens",
            "Tokens computed again in the window after a preemption.",
            unit=Unit.TOKENS,
            better=Better.LOWER,
        ),
    ] = 0
    prefix_queries: Annotated[
        int,
        Number(
            "queried",
            "Prefix queries",
            "Prompt tokens that were looked up in the prefix cache in the window.",
            unit=Unit.TOKENS,
        ),
    ] = 0
    prefix_hits: Annotated[
        int,
        Number(
            "hits",
            "Prefix hits",
            "Prompt tokens that were found in the prefix cache in the window.",
            unit=Unit.TOKENS,
            better=Better.HIGHER,
        ),
    ] = 0


LEAST_NS = NS_PER_S
"""Shortest time for a rate; over less it would be noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """The present work of an engine.

    None before it is known, and once the engine is lost.
    """

    running: int | None = None
    waiting: int | None = None
    oldest_wait_s: float | None = None
    tokens_per_s: float | None = None
    """Output over the last two seconds."""
    untaken: int = 0
    """Requests sent to an engine that has not told of them for a while, and has no
    others."""
    untaken_since_ns: int | None = None

    @property
    def any(self) -> bool:
        return bool(self.running or self.waiting or self.untaken)


def scheduler_state(
    now_ns: int, engines: Engines, requests: RequestIndex
) -> SchedulerState:
    """Return running and waiting requests as engines and requests reported last.

    An engine reports when a step ends, and is right about that moment even after
    losses. Requests report at once, also while a step runs, and while they wait and no
    step runs. The larger number is the current one.
    """
    ranks = [rank for rank in engines.ranks.items() if not rank[1].lost]
    if not ranks and not requests.live:
        return SchedulerState()
    running = sum(_running(rank, requests, source) for (source, _), rank in ranks)
    waiting = sum(rank.waiting for _, rank in ranks) if running else 0
    since = [each.waiting_since_ns or now_ns for each in requests.waiting]
    idle = not running and not requests.running and not since
    late_ns = now_ns - STALL_LEAST_NS
    untaken = [t_ns for t_ns in requests.untaken() if t_ns < late_ns] if idle else []
    return SchedulerState(
        running=max(running, len(requests.running)),
        waiting=max(waiting, len(requests.waiting)),
        oldest_wait_s=(now_ns - min(since)) / NS_PER_S if since else None,
        untaken=len(untaken),
        untaken_since_ns=min(untaken, default=None),
    )


def _running(rank: Rank, requests: RequestIndex, source: str) -> int:
    """Return how many requests of the latest step are still running."""
    if rank.at_rest is not None:
        return rank.at_rest.running or 0
    if rank.step is None:
        return 0
    by_ordinal = requests.members(source)
    members = [by_ordinal.get(ordinal) for ordinal in rank.step.members]
    return rank.step.running - sum(each is not None and each.ended for each in members)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTotals:
    """Totals of a window, from which rates follow."""

    covered_ns: int
    steps: CounterTotals
    outcomes: CounterTotals
    refused: tuple[RefusedGroup, ...] | None
    """None where no API server reports it."""
    prompts: Quantiles
    durations: Quantiles
    itl: Quantiles

    def per_s(self, count: int) -> float | None:
        """Return a rate over the watched part of the window; None below a second."""
        if self.covered_ns < LEAST_NS:
            return None
        return count * NS_PER_S / self.covered_ns


def flow(totals: WindowTotals, work: SchedulerState, kv: KvState) -> Flow:
    """Return the flow, from arrivals over queue, prefill and decode to the end."""
    steps, outcomes = totals.steps.sums, totals.outcomes.sums
    return Flow(
        arrivals_per_s=totals.per_s(outcomes["arrived"]),
        finished_per_s=totals.per_s(outcomes["finished"]),
        prompt_tokens_p50=totals.prompts.p50,
        waiting=work.waiting,
        oldest_wait_s=work.oldest_wait_s,
        kv_usage=kv_usage(kv),
        running=work.running,
        batch_mean=ratio(steps["batch"], totals.steps.rows),
        prefill_tokens_per_s=totals.per_s(steps["prefill_tokens"]),
        output_tokens_per_s=totals.per_s(steps["output_tokens"]),
        output_tokens_per_s_now=work.tokens_per_s,
        tokens_per_s_per_user=1 / totals.itl.mean if totals.itl.mean else None,
        budget_usage=ratio(steps["budgeted_tokens"], steps["budget"]),
        prefix_hit_rate=ratio(steps["prefix_hits"], steps["prefix_queries"]),
        step_s=totals.durations,
        finished=outcomes["finished"],
        finished_as_sent=outcomes["finished_as_sent"],
        failed=outcomes["failed"] - refused_failures(outcomes, totals.refused or ()),
        refused=None if totals.refused is None else refused_count(totals.refused),
        aborted=outcomes["aborted"],
        preemptions=steps["preemptions"],
    )


def with_adapters(flow: Flow, requests: RequestIndex) -> Flow:
    """Add the LoRA adapters that requests use, where LoRA is on."""
    runs = {each.lora for each in requests.running} - {None}
    waits = {each.lora for each in requests.waiting} - {None}
    return replace(flow, adapters=len(runs), adapters_waiting=len(waits - runs))


ADAPTERS = "max_loras"
"""The setting that tells that LoRA is on."""


def kv_state(engines: Engines, steps: CounterTotals) -> KvState:
    """Return the KV cache now, its peak, and its counters in the window."""
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
    """Return used / total blocks, 0-1; None where unknown."""
    if kv.used_blocks is None or not kv.total_blocks:
        return None
    return kv.used_blocks / kv.total_blocks
