"""What a screen may know: one frozen picture of everything at one moment.

Made by :meth:`inferwatch.metrics.model.Model.snapshot`; screens and the headless
summary read it and nothing else. Live and replayed sessions give equal snapshots.
Times ``*_ns`` are session time. Unknown is ``None``; an empty bin is a gap.
"""

import re
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from collectors.readings import (
    BoundBy,
    CanaryRequest,
    Endpoint,
    EngineInfo,
    GpuInfo,
    HostInfo,
    LiveLimits,
    LoadEvent,
    LoadKind,
    Note,
    ServerInfo,
    Step,
    Vantage,
)
from inferwatch.metrics.causes.cause import Cause, Parts, SlowRequests
from inferwatch.metrics.engine.request_names import request_name, sent_id
from inferwatch.metrics.findings.finding import Finding, PastFinding
from inferwatch.metrics.floor.view import Limits
from inferwatch.metrics.kv.memory import BlockPicture, Memory
from inferwatch.metrics.load.view import ClientTimeline, FailureCount, LoadRun, RunState
from inferwatch.metrics.price.view import Spending
from inferwatch.metrics.slo.view import SloState
from inferwatch.metrics.steps.efficiency import BatchCurve, Stall
from inferwatch.metrics.steps.heat import Heat

__all__ = [
    "Bracket",
    "Brackets",
    "Canary",
    "ClientTimeline",
    "ClientView",
    "Cost",
    "FailureCount",
    "Flow",
    "GpuState",
    "GpuTimeline",
    "Hardware",
    "Health",
    "HostState",
    "HostTimeline",
    "KvState",
    "Latency",
    "LoadRun",
    "PrefixCache",
    "ProcessState",
    "Quantiles",
    "RequestRow",
    "RequestState",
    "RunState",
    "ServerState",
    "Snapshot",
    "StepTotals",
    "Timeline",
    "Verdict",
    "Via",
    "Window",
]


class Window(Enum):
    """The span a number covers; ``value`` in ns, None for the whole session."""

    TEN_SECONDS = 10_000_000_000
    MINUTE = 60_000_000_000
    FIVE_MINUTES = 300_000_000_000
    SESSION = None

    @property
    def label(self) -> str:
        """As screens write it."""
        return {
            Window.TEN_SECONDS: "10 s",
            Window.MINUTE: "60 s",
            Window.FIVE_MINUTES: "5 min",
            Window.SESSION: "session",
        }[self]

    @property
    def span(self) -> str:
        """As sentences say it."""
        whole = self is Window.SESSION
        return "the whole session" if whole else f"the last {self.label}"


class Health(StrEnum):
    """The verdict in one word, worst last."""

    STARTING = "starting"
    IDLE = "idle"
    HEALTHY = "healthy"
    QUEUEING = "queueing"
    STALLED = "stalled"
    LOST = "lost"


class RequestState(StrEnum):
    """How far a request has come, or how it ended."""

    ARRIVED = "arrived"
    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"

    @property
    def live(self) -> bool:
        """Still in the engine or on its way there."""
        return self not in {
            RequestState.FINISHED,
            RequestState.ABORTED,
            RequestState.FAILED,
        }


class Via(StrEnum):
    """How readings of a server come to us, the best first."""

    PROBE = "probe"
    TRACES = "traces"
    SCRAPE = "scrape"
    PROMETHEUS = "prometheus"
    CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How the engine is, fit to show."""

    health: Health
    sentence: str
    """Of an engine that died, the end of its log follows in lines of its own."""
    since_ns: int | None = None

    @property
    def headline(self) -> str:
        """The first line, where there is room for no log."""
        return self.sentence.partition("\n")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Exact quantiles of n samples; seconds for latencies, else the metric's unit."""

    n: int = 0
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    weak: tuple[str, ...] = ()
    """Names of percentiles with fewer than 10/(1-p) samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """What is known of a value by the bucket it fell in: above low, at most high."""

    low: float
    high: float | None
    """None: beyond the last bound."""

    @property
    def coarse(self) -> bool:
        """Wider than a factor of two: finer buckets would tell more."""
        return self.high is None or self.high > 2 * self.low


@dataclass(frozen=True, slots=True, kw_only=True)
class Brackets:
    """Percentiles of a scraped histogram over the window: bounds, never a digit."""

    p50: Bracket | None = None
    p90: Bracket | None = None
    p95: Bracket | None = None
    p99: Bracket | None = None
    max: Bracket | None = None
    interpolated: dict[str, float] = field(default_factory=dict)
    """By percentile, what ``histogram_quantile`` makes of it: what a Grafana panel
    shows. Never a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """One row of the latency table."""

    metric: str
    """Key in :mod:`inferwatch.metrics.catalog`, such as ``ttft_s``."""
    vantage: Vantage
    quantiles: Quantiles
    trend: tuple[float | None, ...] = ()
    """Worst value per bin of the timeline, oldest first; of a scraped one the mean."""
    brackets: Brackets | None = None
    """Where only buckets are known; the quantiles then have n and mean alone."""
    objective_s: float | None = None
    """What it is to stay below."""
    met: tuple[float, float] | None = None
    """The least and the greatest share of the n that met the objective, 0-1: equal
    where each is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """One server of the session, or one rank of it: a row of the fleet."""

    source: str
    rank: str = "0"
    info: ServerInfo | None = None
    via: Via = Via.SCRAPE
    """The best source there is of it."""
    answers: bool | None = None
    """None before it was asked."""
    why: str | None = None
    """Why it does not answer, or what is wrong with its answers."""
    last_ns: int | None = None
    """Of the last reading."""
    restarted_ns: int | None = None
    """When it last began anew while watched."""
    round_trip_ns: int | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    arrivals_per_s: float | None = None
    """Requests that ended, where arrivals are not told; likewise below: over the
    window."""
    output_tokens_per_s: float | None = None
    prefix_hit_rate: float | None = None
    failed: int | None = None
    """Requests that ended in an error."""
    preemptions: int | None = None
    latencies: tuple[Latency, ...] = ()
    """As those of the snapshot, of this server alone, without trends."""
    remark: str | None = None
    """How it stands out among the others, such as "queue 5× the median"."""
    live_limits: tuple[LiveLimits, ...] = ()
    """Of its ranks, where they may be changed while it runs."""


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
class Timeline:
    """Everything over time on one axis: columns of equal length, oldest first.

    Column ``i`` covers ``start_ns + i*bin_ns`` up to the next; None is a gap. Bins are
    aligned to multiples of ``bin_ns``, so columns keep their place as time goes on.
    """

    start_ns: int = 0
    bin_ns: int = 1
    lost_ns: int | None = None
    """Columns end here, when the engine was lost: what led to it stays in sight."""
    ttft_mean_s: tuple[float | None, ...] = ()
    ttft_max_s: tuple[float | None, ...] = ()
    itl_mean_s: tuple[float | None, ...] = ()
    itl_max_s: tuple[float | None, ...] = ()
    batch_prefill: tuple[float | None, ...] = ()
    """Mean prefilling requests per step."""
    batch_decode: tuple[float | None, ...] = ()
    batch_max: tuple[int | None, ...] = ()
    waiting_max: tuple[int | None, ...] = ()
    prefill_tokens: tuple[int | None, ...] = ()
    """Prompt tokens scheduled in the bin."""
    output_tokens: tuple[int | None, ...] = ()
    prefill_share: tuple[float | None, ...] = ()
    """Of the time of the bin's steps, that of prefill, 0-1; of a mixed step by its
    tokens."""
    decode_tokens: tuple[int | None, ...] = ()
    """Scheduled for requests that decode."""
    kv_used_blocks: tuple[int | None, ...] = ()
    """At the bin's last step."""
    kv_cached_blocks: tuple[int | None, ...] = ()
    kv_free_blocks: tuple[int | None, ...] = ()
    step_mean_s: tuple[float | None, ...] = ()
    step_max_s: tuple[float | None, ...] = ()
    steps: tuple[int, ...] = ()
    bound_seqs: tuple[float | None, ...] = ()
    """Share of the time of the bin's steps bound by seqs, 0-1; likewise below."""
    bound_tokens: tuple[float | None, ...] = ()
    bound_kv: tuple[float | None, ...] = ()
    bound_deferred: tuple[float | None, ...] = ()
    bound_other: tuple[float | None, ...] = ()
    preemptions: tuple[int | None, ...] = ()
    slowest_step: tuple[Step | None, ...] = ()
    """The longest step of each bin, without its members."""
    step_heat: tuple[Heat | None, ...] = ()
    """How the durations of each bin's steps are spread: cells and counts."""
    running_max: tuple[int | None, ...] = ()
    """Most requests that ran at once, as a server told; empty where it tells steps."""
    kv_usage: tuple[float | None, ...] = ()
    """Share of KV blocks in use, 0-1, at the bin's last reading; likewise."""
    restarts_ns: tuple[int, ...] = ()
    """When a server began anew within the columns."""
    hbm_bytes_per_s: tuple[float | None, ...] = ()
    """gpu: measured, of the engine's GPUs together; likewise all below. Empty where
    there is none."""
    hbm_share: tuple[float | None, ...] = ()
    """gpu: of what their memory could move, 0-1, mean."""
    sm_active: tuple[float | None, ...] = ()
    """gpu: 0-1, mean."""
    power_w: tuple[float | None, ...] = ()
    throttled: tuple[float | None, ...] = ()
    """gpu: share of the time for which the clocks of any were held down."""
    derived_bytes_per_s: tuple[float | None, ...] = ()
    """Not measured: weights once a step and the KV cache that each request reads."""
    host_busy: tuple[float | None, ...] = ()
    """Share of the host's cores that were busy, 0-1."""
    floor_mean_s: tuple[float | None, ...] = ()
    """Mean floor of the bin's steps; empty where peak or shape are not known."""
    gap_mean_s: tuple[float | None, ...] = ()
    """Mean time between two steps with work in the engine; likewise."""

    def index_at(self, t_ns: int) -> int | None:
        """The column that covers a moment, None outside."""
        index = (t_ns - self.start_ns) // self.bin_ns
        return int(index) if 0 <= index < len(self.steps) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One request, as far as it is known."""

    key: str
    """Source and internal id: stable while the session lasts."""
    request_id: str
    external_id: str | None = None
    sequence: int | None = None
    """Its place among the answers to one request; None: there is no other."""
    ordinal: int | None = None
    state: RequestState = RequestState.ARRIVED
    arrived_ns: int = 0
    """Front-end arrival where seen, else the engine's queueing."""
    added_ns: int | None = None
    """engine: since when it has been queued."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    queue_s: float | None = None
    """engine: queued to first scheduled."""
    prefill_s: float | None = None
    """engine: first scheduled to first token."""
    ttft_s: float | None = None
    """front end: arrival to first token."""
    tpot_s: float | None = None
    """engine: (last - first token) / (output tokens - 1), so far."""
    itl_last_s: float | None = None
    itl_max_s: float | None = None
    decode_s: float | None = None
    e2el_s: float | None = None
    """front end: arrival to last token."""
    preemptions: int = 0
    reason: str | None = None
    cause: Cause | None = None
    """The largest part of its TTFT, or of its wait so far."""
    ttft_parts: Parts = ()
    """They add up to the TTFT; empty until it is known."""
    itl_cause: Cause | None = None
    """Why its longest gap came late; None where that was no spike."""
    lora: str | None = None
    priority: int | None = None
    header: str | None = None
    """Of the header that was chosen to group by."""
    class_name: str | None = None
    """client: its class in a mix of classes."""
    missed: tuple[str, ...] | None = None
    """Objectives it missed; None where it was not judged."""

    @property
    def name(self) -> str:
        """What people call it."""
        return request_name(self.request_id, self.external_id)

    @property
    def sent_key(self) -> str:
        """The same for all sequences of one request."""
        if self.sequence is None:
            return self.key
        source = self.key.removesuffix(self.request_id)
        return f"{source}{sent_id(self.request_id, self.external_id)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """What the steps of the window add up to."""

    count: int = 0
    batch_mean: float | None = None
    batch_max: int | None = None
    duration_s: Quantiles = field(default_factory=Quantiles)
    share_by_bound: dict[BoundBy, float] = field(default_factory=dict)
    """Share of the steps' time, 0-1, sums to 1 where there was any."""
    steps_by_bound: dict[BoundBy, int] = field(default_factory=dict)
    """How many steps, adds up to the count."""
    output_tokens: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    gap_share: float | None = None
    """Of the time in which there was work, that in which no step was under way."""
    share_by_graph: dict[str, float] = field(default_factory=dict)
    """Share of the steps' time by CUDA-graph mode; empty where none was told."""
    padded_share: float | None = None
    """Padding among the tokens computed, 0-1."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCache:
    """What the events of a prefix cache tell; counts are of the window."""

    ranks: int = 1
    """That tell, each with a cache of its own."""
    blocks: int = 0
    """Full blocks that are cached now, in use or idle."""
    block_tokens: int | None = None
    stored: int = 0
    evicted: int = 0
    stored_again: int = 0
    """Computed anew though they had been cached before: evicted too early."""
    stored_per_s: float | None = None
    evicted_per_s: float | None = None
    lifetime_s: Quantiles = field(default_factory=Quantiles)
    """Of the blocks evicted, from their coming."""
    beginnings: int = 0
    """Cached blocks with which a prompt begins; likewise all below: now."""
    branches: int = 0
    """After which prompts go on in different ways."""
    deepest: int = 0
    """Blocks one after the other, from the beginning of a prompt."""
    missed: int = 0
    """Batches of events that never arrived, in the session."""
    partial: bool = False
    """For want of those there may be more blocks, or fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientView:
    """One load run as its client saw it, warm-up left out; everything is of that run.

    Where nothing else is said, of all of it so far.
    """

    run: LoadRun | None = None
    number: int = 1
    """Of the session's runs, in order of their beginning."""
    elsewhere: bool = False
    """Somebody else started it: it cannot be changed or stopped from here."""
    latencies: tuple[Latency, ...] = ()
    """ttft_s (from the intended send), tpot_s, itl_s, e2el_s."""
    rate_per_s: float | None = None
    """Asked now."""
    events: tuple[LoadEvent, ...] = ()
    """The latest 200, oldest first; changes of the rate included."""
    timeline: ClientTimeline = field(default_factory=ClientTimeline)
    asked_mean_per_s: float | None = None
    """Over the time in which a rate was asked."""
    achieved_per_s: float | None = None
    """Over the time in which it was sending; bursts included."""
    slo: str | None = None
    judged: int = 0
    good: int = 0
    """Requests that held every objective at once, of the judged."""
    verdict: str = "UNKNOWN"
    """OK, CLIENT-BOUND or UNKNOWN: now, and of the whole run once it has ended."""
    reasons: tuple[str, ...] = ()
    cause: str | None = None
    """Who kept the client's host busy when it was too slow, where that is known."""
    send_lag_p99_s: float | None = None
    """As of the run's last ten seconds; likewise below."""
    recv_lag_p99_s: float | None = None
    merged_share: float | None = None
    cpu_share: float | None = None
    others: tuple["ClientView", ...] = ()
    """The session's other runs, each likewise; the latest 100, oldest first."""

    @property
    def users(self) -> int | None:
        """Of a closed loop, as last told; None in an open one."""
        told = (each.users for each in reversed(self.events) if each.users is not None)
        return next(told, None)

    @property
    def measured_per_s(self) -> float | None:
        """The rate that it was told first: what a warm-up measured, or the plan's."""
        told = (each for each in self.events if each.kind is LoadKind.RATE)
        return next((each.rate_per_s for each in told), None)

    @property
    def runs(self) -> tuple["ClientView", ...]:
        """This run and the others, in order of their beginning."""
        return tuple(sorted((self, *self.others), key=lambda each: each.number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """What our own tiny requests met, over the window; their client's vantage.

    Their tokens are in every count of the server, and subtracted from none.
    """

    sent: int = 0
    failed: int = 0
    tokens: int | None = 0
    """Prompt and output; None: the server counts none."""
    ttft_s: Quantiles = field(default_factory=Quantiles)
    """From the send."""
    itl_s: Quantiles = field(default_factory=Quantiles)
    """Between chunks."""
    last: CanaryRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What watching costs and loses."""

    dropped_readings: int = 0
    unrecorded_readings: int = 0
    self_cpu_s: float | None = None
    """inferwatch's own CPU so far."""
    self_cpu_share: float | None = None
    """Of one core, over the last samples."""
    process_cpu_share: dict[str, float] = field(default_factory=dict)
    """By role: api, core, worker, load, inferwatch; share of one core."""
    probe_us_per_step: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTimeline:
    """One GPU over time, in the columns of the snapshot's timeline; None is a gap."""

    hbm_bytes_per_s: tuple[float | None, ...] = ()
    hbm_share: tuple[float | None, ...] = ()
    sm_active: tuple[float | None, ...] = ()
    sm_occupancy: tuple[float | None, ...] = ()
    tensor_active: tuple[float | None, ...] = ()
    memory_busy: tuple[float | None, ...] = ()
    power_w: tuple[float | None, ...] = ()
    sm_clock_mhz: tuple[float | None, ...] = ()
    throttled: tuple[float | None, ...] = ()
    """Share of the time for which its clocks were held down."""
    memory_used_bytes: tuple[float | None, ...] = ()
    pcie_bytes_per_s: tuple[float | None, ...] = ()
    nvlink_bytes_per_s: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU, or a MIG slice: what it did last, and over the window.

    A value is the latest there is of its field; ``*_mean`` and what else says so is of
    the window. Shares are 0-1.
    """

    source: str
    """Its UUID."""
    info: GpuInfo
    watched: bool | None = None
    """An engine that is watched runs on it; None where that is not known."""
    via: str | None = None
    """Who measured the averages: gpm, dcgm; None where nobody did."""
    last_ns: int | None = None
    """Of the last sample."""
    span_s: float | None = None
    """What the latest averages cover."""
    hbm_bytes_per_s: float | None = None
    hbm_bytes_per_s_mean: float | None = None
    hbm_share: float | None = None
    hbm_share_mean: float | None = None
    sm_active: float | None = None
    sm_active_mean: float | None = None
    sm_occupancy: float | None = None
    tensor_active: float | None = None
    tensor_active_mean: float | None = None
    gpu_busy: float | None = None
    """Share of time; so is the next. Neither is a measure of how much."""
    memory_busy: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_w_mean: float | None = None
    """By the energy counter where there is one."""
    energy_j: float | None = None
    """Over the window."""
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    """Why clocks are held down now, in words."""
    throttled: dict[str, float] = field(default_factory=dict)
    """Share of the window for which they were, by reason."""
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    memory_used_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    memory_by_pid: dict[int, int | None] = field(default_factory=dict)
    """Bytes, of the processes that use it."""
    timeline: GpuTimeline = field(default_factory=GpuTimeline)
    """Empty unless asked for."""

    @property
    def is_simulated(self) -> bool:
        """No GPU stands behind it: its driver says so."""
        return "simulated" in (self.info.driver or "").lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """One process of a host, over the last seconds."""

    pid: int
    role: str
    cpu_share: float | None = None
    """Of one core."""
    rss_bytes: int | None = None
    threads: int | None = None
    throttled: float | None = None
    """Share of the time for which its control group's quota held it back, 0-1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimeline:
    """One host over time, in the columns of the snapshot's timeline."""

    busy: tuple[float | None, ...] = ()
    """Share of its cores, 0-1."""
    cpu_by_role: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Shares of one core."""
    loop_lag_s: tuple[float | None, ...] = ()
    """Of the API server's event loop, worst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """One host: its cores, its memory, and the processes that matter."""

    source: str = ""
    """Empty: where inferwatch runs."""
    info: HostInfo | None = None
    last_ns: int | None = None
    cores: int | None = None
    busy: float | None = None
    """Cores, over the last seconds."""
    run_queue: int | None = None
    memory_used_bytes: int | None = None
    api_loop_lag_s: float | None = None
    """Worst of the window, of the API servers' event loops."""
    own_loop_lag_s: float | None = None
    """Worst of the window, of inferwatch's."""
    processes: tuple[ProcessState, ...] = ()
    timeline: HostTimeline = field(default_factory=HostTimeline)
    """Empty unless asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The GPUs of the engine together; of all where nobody knows which are its.

    Over the window where nothing else is said.
    """

    gpus: int = 0
    """How many these are."""
    no_gpu: str | None = None
    """Why there is none to measure."""
    hbm_bytes_per_s: float | None = None
    """Now, as all up to the means: the latest sample of each."""
    hbm_share: float | None = None
    sm_active: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    hbm_bytes_per_s_mean: float | None = None
    hbm_share_mean: float | None = None
    sm_active_mean: float | None = None
    power_w_mean: float | None = None
    energy_j: float | None = None
    joules_per_token: float | None = None
    """Energy of the boards for each output token, over at least five seconds."""
    tokens_per_s_per_w: float | None = None
    """Output tokens."""
    derived_bytes_per_s: float | None = None
    """Not measured: weights once a step and the KV cache that each request reads."""
    derived_weights_share: float | None = None
    """Of these bytes, the weights', 0-1."""
    weight_bytes: int | None = None
    kv_bytes: int | None = None
    """Of all KV blocks."""


def _natural(name: str) -> list[tuple[int, str]]:
    """Digits count as numbers."""
    parts = re.split(r"(\d{1,18})", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything, at one moment, over one window."""

    now_ns: int
    window: Window
    covered_ns: int
    """How much of the window there was an engine to watch; rates are over this."""
    verdict: Verdict
    catching_up: bool = False
    """Probes still tell of the past: nothing is judged until the present is reached."""
    engines: tuple[EngineInfo, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    servers: tuple[ServerState, ...] = ()
    """Those attached to, in order of first contact; ranks one after the other."""
    shown_source: str | None = None
    """All else here is of this server alone; None: of all together."""
    via: Via | None = None
    """The best source of the latencies; None before there is one."""
    advice: tuple[str, ...] = ()
    """What would make more known: a flag or variable each, in a sentence."""
    gpus: tuple[GpuState, ...] = ()
    hosts: tuple[HostState, ...] = ()
    """Ours first."""
    hardware: Hardware = field(default_factory=Hardware)
    last_token_ns: int | None = None
    flow: Flow = field(default_factory=Flow)
    latencies: tuple[Latency, ...] = ()
    """ttft_s, queue_s, prefill_s, tpot_s, itl_s, e2el_s in this order."""
    lengths: tuple[Latency, ...] = ()
    """Where only buckets tell them: prompt_tokens and output_tokens of requests,
    step_tokens of engine steps; in tokens, mean and brackets."""
    timeline: Timeline = field(default_factory=Timeline)
    latest_step: Step | None = None
    """The last one that ended, without its members; None after a loss."""
    steps: StepTotals = field(default_factory=StepTotals)
    kv: KvState = field(default_factory=KvState)
    prefix_cache: PrefixCache | None = None
    """None where no server tells of single blocks."""
    memory: Memory | None = None
    """None where no probe tells of an engine."""
    block_maps: tuple[BlockPicture, ...] = ()
    """One a rank whose probe copies its pool; without holes, or not there."""
    slowest: SlowRequests | None = None
    """None before a request got its first token in the window."""
    batch_curve: BatchCurve | None = None
    """None before there were steps."""
    stalls: tuple[Stall, ...] = ()
    """Of the window, newest first, at most 50."""
    limits: Limits | None = None
    """None where no engine tells of its steps."""
    findings: tuple[Finding, ...] = ()
    """At most three, what costs most first."""
    past_findings: tuple[PastFinding, ...] = ()
    """The latest 200 that are over, in the order of their ends."""
    slo: SloState | None = None
    """None where none was given."""
    spending: Spending | None = None
    """None where neither a price nor energy is known."""
    settings: dict[str, str | int | float | bool | None] = field(default_factory=dict)
    """Of the engine as it told them, by vLLM's flags; of the first rank."""
    live_limits: tuple[LiveLimits, ...] = ()
    """Of engines whose limits may be changed while they run, one a rank; the infos of
    ``engines`` have what is in force."""
    limit_changes: tuple[LiveLimits, ...] = ()
    """The latest 64 of each rank, oldest first, those in force included."""
    requests: tuple[RequestRow, ...] = ()
    """Live ones and the latest ended ones, at most 2,000, newest arrival first."""
    requests_evicted: int = 0
    requests_seen: int = 0
    """In the session, those without a row included."""
    client: ClientView | None = None
    canary: Canary | None = None
    """None before there was one."""
    cost: Cost = field(default_factory=Cost)
    notes: tuple[Note, ...] = ()
    """The latest 200, oldest first; stages included."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The servers, each once, in the order of their names: 2 before 10."""
        return tuple(sorted({each.source for each in self.servers}, key=_natural))

    @property
    def server(self) -> ServerState | None:
        """The one that all else is of; None where there is none, or several."""
        found = {each.source: each for each in reversed(self.shown_servers)}
        return next(iter(found.values())) if len(found) == 1 else None

    @property
    def shown_servers(self) -> tuple[ServerState, ...]:
        """Those that all else is of, rank by rank."""
        one = self.shown_source
        return tuple(each for each in self.servers if one in {None, each.source})

    @property
    def without_steps(self) -> bool:
        """No engine tells of its steps: all is known from what servers count."""
        return bool(self.servers) and not self.engines

    @property
    def charts_end_ns(self) -> int:
        """Now, or when the engine was lost."""
        lost_ns = self.timeline.lost_ns
        return self.now_ns if lost_ns is None else lost_ns
