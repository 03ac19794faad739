"""The facts: everything a collector can report, one frozen Struct a kind.

A reading is fact, wire format and row source at once; there is no conversion layer.

Times are integer nanoseconds and their names end in ``_ns``. On the wire they are
raw monotonic times of the sender's boot; a collector rebases them once (see
:mod:`collectors.contract.clock`) to *session time*: nanoseconds since the session
started.
``INSTANTS`` names the fields that are moments, so that durations stay as they are.
Unknown is ``None``, never zero.
"""

from enum import StrEnum
from typing import ClassVar

import msgspec


class Reading(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True, gc=False
):
    """Anything a collector reports; the base of all kinds."""

    INSTANTS: ClassVar[tuple[str, ...]] = ("t_ns",)

    source: str = ""
    """Where it comes from: an engine id, a GPU UUID, a load run. On the wire only
    where it differs from the envelope's: else the collector fills that in."""


class Vantage(StrEnum):
    """Who measured. Two vantages are never mixed under one label."""

    CLIENT = "client"
    FRONTEND = "frontend"
    ENGINE = "engine"
    SCRAPE = "scrape"
    GPU = "gpu"
    HOST = "host"


class BoundBy(StrEnum):
    """Why the head of the queue was not scheduled in a step."""

    NOTHING = "nothing"
    """Nothing waited: the engine had room."""
    SEQS = "seqs"
    TOKENS = "tokens"
    KV = "kv"
    DEFERRED = "deferred"
    """All that waited were passed over: for a grammar, a KV transfer, a LoRA slot, an
    encoder. Records of schema 8 and before have them among the others."""
    OTHER = "other"


class EventKind(StrEnum):
    """The moments of a request's life that are reported as events.

    Front end: arrived, first_token, finished. Engine: added (queued), scheduled
    (first time), finished. Engine-side tokens are in the steps, preemptions too.
    """

    ARRIVED = "arrived"
    FIRST_TOKEN = "first_token"
    ADDED = "added"
    SCHEDULED = "scheduled"
    FINISHED = "finished"


class NoteKind(StrEnum):
    """What a note is about."""

    STAGE = "stage"
    STARTED = "started"
    LOST = "lost"
    RESTARTED = "restarted"
    STOPPED = "stopped"
    DROPPED = "dropped"
    PROBE = "probe"
    RECORDER = "recorder"
    HOST = "host"
    GPU = "gpu"
    CANARY = "canary"
    BOOKMARK = "bookmark"
    FINDING = "finding"
    """A diagnosis began to hold, or no longer does."""
    SLO = "slo"
    """Objectives began to be missed, or are met again."""
    ALERT = "alert"
    """A rule of ``--record-on`` held: what came before it was kept."""


class LoadKind(StrEnum):
    """What a load generator did."""

    STARTED = "started"
    WARMUP_ENDED = "warmup_ended"
    RATE = "rate"
    BURST = "burst"
    DRAINING = "draining"
    """Nothing more is sent; what is in flight may end."""
    STOPPED = "stopped"


class Phase(StrEnum):
    """Which part of a load run a client request belongs to; warm-up is excluded."""

    WARMUP = "warmup"
    STEADY = "steady"
    BURST = "burst"


# What an engine's probe reports.


class EngineInfo(Reading, frozen=True, kw_only=True):
    """What an EngineCore is: constant while it lives."""

    t_ns: int
    pid: int
    rank: int = 0
    model: str
    vllm_version: str
    device: str | None = None
    dtype: str | None = None
    num_kv_blocks: int | None = None
    """KV blocks a request can use: vLLM's num_gpu_blocks less the null block."""
    kv_block_tokens: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int | None = None
    executor: str | None = None
    prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    gpus: list[str] = msgspec.field(default_factory=list)
    """UUIDs of the GPUs it runs on, where it can tell."""
    weight_bytes: int | None = None
    """Of the model as loaded, all tensor- and pipeline-parallel parts together."""
    kv_bytes_per_token: int | None = None
    """Of the KV cache, all layers and parts together."""


class Endpoint(Reading, frozen=True, kw_only=True):
    """Where an engine's HTTP server listens and which process it is."""

    t_ns: int
    pid: int
    model: str
    url: str | None = None
    uds: str | None = None
    log_path: str | None = None


RANK_BITS = 40


def rank_of(ordinal: int) -> int:
    """Which data-parallel rank of a server numbered a request so.

    Each counts up from its own number on, ``rank << RANK_BITS``.
    """
    return ordinal >> RANK_BITS


class Step(Reading, frozen=True, kw_only=True):
    """One pass of scheduler and model (vLLM: engine step, iteration).

    ``members``, ``scheduled`` and ``produced`` are parallel: request ordinal, tokens
    scheduled for it, tokens that came out. Every token of a step carries the step's
    ``end_ns``, so these three and ``end_ns`` are the token times.
    """

    INSTANTS: ClassVar[tuple[str, ...]] = ("start_ns", "end_ns")

    rank: int = 0
    index: int
    """Counts steps of this rank since its process started."""
    start_ns: int
    """Entry of ``schedule()``."""
    end_ns: int
    """Return of ``update_from_output()``."""
    duration_ns: int
    """end minus the later of start and the previous step's end; idle is left out."""
    prefill_requests: int = 0
    decode_requests: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    padded_tokens: int | None = None
    graph_mode: str | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    running: int = 0
    """After ``schedule()``."""
    waiting: int = 0
    """After ``schedule()``."""
    bound_by: BoundBy = BoundBy.NOTHING
    kv_used_blocks: int | None = None
    kv_cached_blocks: int | None = None
    """Idle blocks that still hold a reusable prefix; they count as free to vLLM."""
    kv_free_blocks: int | None = None
    """Idle blocks that hold nothing."""
    preempted: list[int] = msgspec.field(default_factory=list)
    """Ordinals of the requests preempted in this step."""
    recomputed_tokens: int = 0
    prefix_queries: int | None = None
    """Prompt tokens looked up in the prefix cache in this step."""
    prefix_hits: int | None = None
    members: list[int] = msgspec.field(default_factory=list)
    scheduled: list[int] = msgspec.field(default_factory=list)
    produced: list[int] = msgspec.field(default_factory=list)

    @property
    def output_tokens(self) -> int:
        """Tokens that came out of this step."""
        return sum(self.produced)


class RequestEvent(Reading, frozen=True, kw_only=True):
    """A moment in a request's life, seen by the engine or by a front end.

    The two are joined by ``request_id``, vLLM's internal one. Engine events carry the
    ``ordinal`` that steps use for their members.
    """

    t_ns: int
    kind: EventKind
    vantage: Vantage
    request_id: str
    ordinal: int | None = None
    external_id: str | None = None
    """The id the client knows (front end)."""
    tokenised_ns: int | None = None
    """When the tokenised request left the front end for the engine (arrived)."""
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache (scheduled, finished)."""
    output_tokens: int | None = None
    preemptions: int | None = None
    reason: str | None = None
    """Finish reason: stop, length, abort, error, repetition."""
    # Records name the fields below and above by their place: new ones come last.
    lora: str | None = None
    """Name of the adapter; None: the model itself (added)."""
    priority: int | None = None
    """As given, lower goes first; None where all have the same (added)."""
    header: str | None = None
    """Value of the one request header that people chose to group by (arrived)."""
    external_tokens: int | None = None
    """Of the cached, those that a KV connector brought from elsewhere (scheduled)."""

    INSTANTS: ClassVar[tuple[str, ...]] = ("t_ns", "tokenised_ns")


class BlockMap(Reading, frozen=True, kw_only=True):
    """Who holds which KV block of one rank, after a step; most tell what changed.

    Blocks go by the engine's own ids; of vLLM's, 0 is the null block, which nobody
    holds. A block's reference count is how many of the lists below it stands in.
    """

    t_ns: int
    rank: int = 0
    sequence: int
    """Counts the maps of this rank: after a gap only a whole one can be used."""
    whole: bool = False
    """It says everything; else what is new since the map before."""
    num_blocks: int
    """Of the pool, the null block included: ids are below this."""
    holders: list[int] = msgspec.field(default_factory=list)
    """Ordinals of requests whose blocks changed; as long as the three below."""
    groups: list[int] = msgspec.field(default_factory=list)
    """KV-cache group of each list; empty: all are of the first one."""
    kept: list[int] = msgspec.field(default_factory=list)
    """How many of its first blocks are as they were."""
    blocks: list[list[int]] = msgspec.field(default_factory=list)
    """Those after them, in the order of its tokens."""
    gone: list[int] = msgspec.field(default_factory=list)
    """Ordinals of requests that hold nothing any more."""
    cached: list[int] = msgspec.field(default_factory=list)
    """Blocks that can be reused by their content now, and could not, or by another."""
    uncached: list[int] = msgspec.field(default_factory=list)
    """Blocks whose content was given up: evicted, or all were forgotten. One that
    holds other content since then stands in both lists."""
    cleared: bool = False
    """All content was given up at once, on demand: nothing was evicted."""
    cost_ns: int | None = None
    """What taking this map cost on the engine's thread."""


class PromptBlocks(Reading, frozen=True, kw_only=True):
    """The full blocks of a request by the hash of their content, told at its end."""

    t_ns: int
    rank: int = 0
    ordinal: int
    prompt_blocks: int
    """How many full blocks its prompt had: these were looked up in the cache."""
    total_blocks: int
    """With those of its output."""
    hashes: list[int] = msgspec.field(default_factory=list)
    """In order, 63 bits each: of the engine's own hash, with a key that its process
    made up. Equal content has equal numbers in one life of an engine; never tokens."""
    places: list[int] = msgspec.field(default_factory=list)
    """Where in the request each stands; empty: they are all there, from 0 on."""
    one_in: int = 1
    """Only hashes divisible by this are told: what they tell stands for all."""
    block_tokens: int | None = None


class Totals(Reading, frozen=True, kw_only=True):
    """What a probe has counted since its process started, at a moment."""

    t_ns: int
    steps: int = 0
    output_tokens: int = 0
    requests_added: int = 0
    requests_finished: int = 0
    probe_cost_ns: int = 0
    """Time spent in the hooks on the engine's thread."""
    sender_cpu_ns: int | None = None
    """CPU time of the probe's own threads, which make readings and send them."""
    rank: int = 0
    running: int | None = None
    """At that moment, steps or not; likewise below: true at rest, too."""
    waiting: int | None = None
    kv_used_blocks: int | None = None
    loop_lag_max_ns: int | None = None
    """API server: how late its event loop ran at worst since the totals before."""


# What a running server tells those who ask: over HTTP, in traces, in cache events.


class ServerInfo(Reading, frozen=True, kw_only=True):
    """What a server is, as far as it tells; reported when first known, and anew."""

    t_ns: int
    name: str
    """What people call it: given by them, else its host and port."""
    family: str
    """vllm, sglang, llamacpp or openai: a module each of
    ``collectors.servers.families``."""
    url: str | None = None
    """Without user, password and query."""
    uds: str | None = None
    version: str | None = None
    models: list[str] = msgspec.field(default_factory=list)
    max_model_len: int | None = None
    started_wall_ns: int | None = None
    """Unix time at which its process began."""
    num_kv_blocks: int | None = None
    """KV blocks a request can use, of one rank."""
    kv_block_tokens: int | None = None
    insecure: bool = False
    """Its certificate is not verified: anybody could answer in its place."""
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    """What else it tells of its configuration, in its own words."""
    advice: list[str] = msgspec.field(default_factory=list)
    """What would make more of it known: a flag or variable each, in a sentence."""


class Contact(Reading, frozen=True, kw_only=True):
    """Whether a server answers; reported when that changes, and at a restart."""

    t_ns: int
    answers: bool
    why: str | None = None
    """Why it does not, or what is wrong with what it answers, fit to show."""
    restarted: bool = False
    """Its counters began anew: what follows is another life of it."""
    round_trip_ns: int | None = None


class Histogram(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A cumulative histogram as Prometheus has it, since its process began."""

    bounds: list[float]
    """Upper bounds, rising, without the infinite one."""
    counts: list[int]
    """How many were at most each bound, and last how many there were: one more."""
    sum: float


class EngineSample(Reading, frozen=True, kw_only=True):
    """What one rank of a server says of itself at a moment: one scrape.

    Counters count since the process began; unknown is ``None`` or absent.
    """

    t_ns: int
    """The middle of the exchange."""
    uncertainty_ns: int = 0
    """Half of what the exchange took: the moment is known to within it."""
    by_prometheus: bool = False
    """A Prometheus server scraped it, and told us later."""
    rank: str = "0"
    """The ``engine`` label: one data-parallel rank."""
    model: str | None = None
    # Gauges.
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """0-1."""
    # Counters.
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    prefix_queries: int | None = None
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int | None = None
    preemptions: int | None = None
    finished: dict[str, int] = msgspec.field(default_factory=dict)
    """Requests by how they ended: stop, length, abort, error."""
    histograms: dict[str, Histogram] = msgspec.field(default_factory=dict)
    """By key of the catalog: ttft_s, itl_s, tpot_s, e2el_s, queue_s, prefill_s,
    decode_s, inference_s; prompt_tokens and output_tokens of a request;
    step_tokens of an engine step."""
    others: dict[str, float] = msgspec.field(default_factory=dict)
    """What only its family has, by the name the family gives it."""


class RequestSpan(Reading, frozen=True, kw_only=True):
    """A finished request as the server's own trace tells it, whoever sent it."""

    INSTANTS: ClassVar[tuple[str, ...]] = ("arrived_ns", "end_ns")

    request_id: str
    """The id the client knows."""
    arrived_ns: int
    end_ns: int
    uncertainty_ns: int = 0
    """Of both, where another host's wall clock told them; durations are exact."""
    ttft_ns: int | None = None
    queue_ns: int | None = None
    prefill_ns: int | None = None
    decode_ns: int | None = None
    e2el_ns: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None


class KvCacheEvents(Reading, frozen=True, kw_only=True):
    """What changed in the prefix cache in one step: blocks by hash, never tokens."""

    t_ns: int
    rank: int = 0
    sequence: int
    missed: int = 0
    """Batches that did not arrive before this one."""
    stored: list[int] = msgspec.field(default_factory=list)
    """Hashes of blocks that were cached."""
    parents: list[int | None] = msgspec.field(default_factory=list)
    """The block before each, None where it begins a prompt; as long as ``stored``."""
    removed: list[int] = msgspec.field(default_factory=list)
    cleared: bool = False
    """All were forgotten, before what is stored here."""
    block_tokens: int | None = None


class WatchedSlo(Reading, frozen=True, kw_only=True):
    """What requests are to hold from now on, as ``--slo`` writes it."""

    t_ns: int
    slo: str


# What the load generator reports: the client's vantage.


class LoadPlanned(Reading, frozen=True, kw_only=True):
    """What the load run that follows was asked to do."""

    t_ns: int
    plan: str
    """As JSON, without what may be secret."""
    elsewhere: bool = False
    """Somebody else started it; we only listen."""


class RequestRecord(Reading, frozen=True, kw_only=True):
    """One request as the load generator's client saw it, complete."""

    INSTANTS: ClassVar[tuple[str, ...]] = (
        "intended_ns",
        "sent_ns",
        "first_token_ns",
        "first_content_ns",
        "last_token_ns",
        "end_ns",
    )

    index: int
    external_id: str
    """The X-Request-Id it sent; the engine's external id contains it."""
    phase: Phase
    intended_ns: int
    sent_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    end_ns: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    failure: str | None = None
    """None when it succeeded, else the kind of failure."""
    detail: str | None = None
    class_name: str | None = None
    """Its class in a mix of classes."""
    turn: int | None = None
    """Of its conversation, from 1; None where a conversation is one question."""
    first_content_ns: int | None = None
    """When an answer that began with reasoning came to what it answers."""
    first_chunk_tokens: int | None = None
    """Where the server counts tokens in each chunk."""
    server_queue_ns: int | None = None
    """As the answer itself says, where vLLM gives per-request metrics: queued in the
    engine to scheduled; to the first token; to the last."""
    server_prefill_ns: int | None = None
    server_decode_ns: int | None = None


class TokenTimes(Reading, frozen=True, kw_only=True):
    """When the chunks of one client request arrived (vantage client)."""

    INSTANTS: ClassVar[tuple[str, ...]] = ("first_ns",)

    external_id: str
    first_ns: int
    gaps_ns: list[int]
    by_kernel: bool | None = None
    """True: the kernel stamped each as it came in. False: the client did for some, when
    it read them."""


class LoadEvent(Reading, frozen=True, kw_only=True):
    """Something the load generator began or ended."""

    t_ns: int
    kind: LoadKind
    rate_per_s: float | None = None
    users: int | None = None
    """Of a closed loop."""
    changed: bool = False
    """Somebody asked for it on the way: the plan says otherwise."""
    text: str = ""


class ClientSample(Reading, frozen=True, kw_only=True):
    """How well the load generator itself did, over a second or over its whole run."""

    t_ns: int
    span_ns: int
    """What it covers, up to ``t_ns``."""
    final: bool = False
    """Covers the whole run, warm-up left out; the last of the run."""
    transport: str
    """raw or httpx."""
    sends: int = 0
    """Requests that set out; of the whole run, each must have its record."""
    late_sends: int = 0
    """More than 10 ms after their intended time."""
    send_lag_p50_ns: int | None = None
    """From the intended time to the send."""
    send_lag_p99_ns: int | None = None
    send_lag_max_ns: int | None = None
    tokens: int = 0
    """Chunks that brought tokens, of requests that have ended."""
    kernel_stamps: int = 0
    """How many of these the kernel has stamped."""
    reads: int = 0
    """From sockets, whatever came."""
    merged_reads: int = 0
    """Brought several chunks with tokens; all but the last of them came earlier than
    their stamp says."""
    recv_lag_p50_ns: int | None = None
    """From the kernel's stamp of a read to ours; None where the kernel stamps none."""
    recv_lag_p99_ns: int | None = None
    recv_lag_max_ns: int | None = None
    cpu_s: float = 0.0
    """The process's, in this span."""
    in_flight: int = 0
    held_back: int | None = None
    """Requests that left late because as many as the plan allows were in flight."""


class CanaryRequest(Reading, frozen=True, kw_only=True):
    """A tiny request of ours to a server that others use: what a client of it sees.

    Its source is that server. It is no part of any load run.
    """

    INSTANTS: ClassVar[tuple[str, ...]] = ("sent_ns", "first_token_ns")

    sent_ns: int
    first_token_ns: int | None = None
    gaps_ns: list[int] = msgspec.field(default_factory=list)
    """Between its chunks; one of them may bring several tokens."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    by_kernel: bool | None = None
    """The kernel stamped each chunk as it came in."""
    failure: str | None = None
    """None when it succeeded, else the kind of failure."""
    detail: str | None = None


class AnswerHashes(Reading, frozen=True, kw_only=True):
    """How a server answered fixed prompts at temperature 0: hashes, never words.

    The n-th number of an answer stands for its first n tokens, so two answers are equal
    up to the first number that differs.
    """

    t_ns: int
    model: str
    asked: int
    """Hash of the prompts and of how they were asked: only equal ones compare."""
    by_tokens: bool
    """The server told token ids; else it is words of its text that are counted."""
    alone: list[list[int]]
    """Of each prompt, asked one after the other."""
    together: list[list[int]]
    """Of each, all asked at once: in other batches."""


# What the machine reports: its clocks, processes and GPUs.


class ClockAnchor(Reading, frozen=True, kw_only=True):
    """Wall and monotonic clock of one boot, read together."""

    t_ns: int
    wall_ns: int
    """Unix time."""
    uncertainty_ns: int
    boot_id: str


class ProcessUsage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one process has used so far."""

    pid: int
    role: str
    """api, core, worker, load, inferwatch, agent."""
    cpu_s: float
    """User and system seconds since it started."""
    rss_bytes: int
    threads: int | None = None
    throttled_s: float | None = None
    """How long a CPU quota has kept its control group from running so far, added up
    over the cores it wanted; None where it has no quota."""


class HostInfo(Reading, frozen=True, kw_only=True):
    """What a host is; reported once.

    Its samples have the same source: empty for the host on which inferwatch runs, else
    the host's name.
    """

    t_ns: int
    name: str
    cpu: str | None = None
    """The model of its processors."""
    cores: int | None = None
    memory_bytes: int | None = None
    """What it has, or what a control group grants us of it."""


class HostSample(Reading, frozen=True, kw_only=True):
    """CPU and memory of the processes that matter, ours included, and of their host."""

    t_ns: int
    processes: list[ProcessUsage]
    loop_lag_s: float | None = None
    """How late inferwatch's own event loop ran in the interval (worst)."""
    cores: int | None = None
    """That inferwatch may use."""
    busy_s: float | None = None
    """What all processes of the host have used of those cores since it started."""
    run_queue: int | None = None
    """Threads of the host that ran or waited for a core at this moment, without the
    one that looked."""
    memory_used_bytes: int | None = None
    """Of ``HostInfo.memory_bytes``, caches that can be dropped left out."""


class GpuInfo(Reading, frozen=True, kw_only=True):
    """A GPU or a MIG slice of one, or why there is none to measure.

    Its source is its UUID. Reported when first known, and anew when anything of it
    changes, such as that it is lost.
    """

    t_ns: int
    name: str | None = None
    uuid: str | None = None
    absent_because: str | None = None
    """There is none at all, and why, with what to do about it."""
    lost_because: str | None = None
    """It was there and does not answer now."""
    host: str | None = None
    """Where it is, if not where inferwatch runs."""
    index: int | None = None
    """As the driver counts, which need not be as CUDA does."""
    pci_bus_id: str | None = None
    architecture: str | None = None
    """Hopper, Ampere…"""
    driver: str | None = None
    """Its version; with the word *simulated* where no GPU stands behind it."""
    memory_bytes: int | None = None
    memory_bus_bits: int | None = None
    max_sm_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    peak_bytes_per_s: float | None = None
    """What its memory could move, read and write together."""
    peak_from: str | None = None
    """clock and bus width, data sheet, or you (--peak-gbps)."""
    sheet_bytes_per_s: float | None = None
    """The same as its data sheet has it, where we know it."""
    peak_flops: float | None = None
    """FLOP/s at the model's dtype, where you said so (--peak-tflops)."""
    parent_uuid: str | None = None
    """Of a MIG slice: the GPU it is part of."""
    profile: str | None = None
    """Of a MIG slice: its size, such as 1g.10gb."""
    missing: dict[str, str] = msgspec.field(default_factory=dict)
    """What cannot be read of it: by field of GpuSample, why and what would help."""


class GpuSample(Reading, frozen=True, kw_only=True):
    """What a GPU did up to a moment. Its source is its UUID; unknown is ``None``.

    Shares are 0-1. A field that was not read anew in this sample is ``None``, not
    repeated: each has a rate of its own.
    """

    t_ns: int
    span_ns: int | None = None
    """What the averages cover, up to ``t_ns``: those from GPM or DCGM."""
    via: str = "nvml"
    """Who measured the averages: gpm, dcgm; nvml where there are none."""
    # Averages over the span.
    dram_active: float | None = None
    """Of what the memory could move: reads and writes together."""
    peak_bytes_per_s: float | None = None
    """What that is a share of, at the memory clock of this moment."""
    sm_active: float | None = None
    """Of the SMs' cycles, those with a warp assigned."""
    sm_occupancy: float | None = None
    """Resident warps of those that fit."""
    tensor_active: float | None = None
    """Of the cycles, those in which any tensor pipe was in use."""
    pcie_tx_bytes_per_s: float | None = None
    """From the GPU."""
    pcie_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    # Time in which anything was under way at all: no measure of how much.
    gpu_busy: float | None = None
    memory_busy: float | None = None
    """Never a bandwidth."""
    # As of the moment.
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: int | None = None
    """NVML's bits of clocks event reasons."""
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    memory_used_bytes: int | None = None
    """Without what the driver reserves."""
    memory_reserved_bytes: int | None = None
    # Counters: they only rise, until the driver is loaded anew.
    energy_mj: int | None = None
    """Of the board, in thousandths of a joule."""
    throttled_ns: dict[str, int] = msgspec.field(default_factory=dict)
    """Time for which clocks were held down: power_cap, sync_boost, thermal,
    hw_thermal, power_brake."""
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None


class GpuProcesses(Reading, frozen=True, kw_only=True):
    """Who uses a GPU, whose source it has; listed rarely, for it costs most."""

    t_ns: int
    memory_bytes: dict[int, int | None]
    """By process id of the host, which a container need not know."""


# What watching itself reports: what is worth remembering, and when it looked.


class ModelConfig(Reading, frozen=True, kw_only=True):
    """What the model of an engine is built of, as its own configuration says."""

    t_ns: int
    rank: int = 0
    model: str
    config: str
    """JSON of a Hugging Face ``config.json``, of the text model alone."""
    dtype: str | None = None
    """Of activations and of weights that are not quantised, such as ``bfloat16``."""
    kv_dtype: str | None = None
    """Of the KV cache, resolved: never ``auto``."""
    quantization: str | None = None
    """vLLM's name of the method, such as ``fp8``."""


class EngineSettings(Reading, frozen=True, kw_only=True):
    """What an engine is set to now, by the names of vLLM's flags."""

    t_ns: int
    rank: int = 0
    settings: dict[str, str | int | float | bool | None]
    """Such as ``max_num_seqs``: 256. What it does not tell is left out."""


class LimitChange(StrEnum):
    """Why an engine's limits are what they are from a moment on."""

    START = "start"
    """The values it was started with; nobody has changed them."""
    SET = "set"
    """Somebody chose them."""
    RESET = "reset"
    """Somebody went back to the values it was started with."""
    WATCHER_GONE = "watcher gone"
    """Whoever chose them is gone, so the start-up values are back."""


class LiveLimits(Reading, frozen=True, kw_only=True):
    """What limits an engine's scheduler from this moment on, where it may be changed.

    Only an engine that was started with control tells it: once when it is born, and
    at the first step that goes by other limits, or at once where there is none for now.
    Limits go down from their start-up values, and back; never above.
    """

    t_ns: int
    rank: int = 0
    version: int
    """Counts changes; who changes says which version that is a change of."""
    change: LimitChange
    max_num_seqs: int
    """Requests that may run; where more do, none is preempted, none admitted."""
    max_num_batched_tokens: int
    """Tokens a step may have; a step that must serve more running requests has more."""
    start_max_num_seqs: int
    start_max_num_batched_tokens: int
    by: str | None = None
    """Who changed them, fit to show; None at start."""
    kept: bool = False
    """They stay when whoever set them goes."""
    fixed: dict[str, str] = {}
    """By ``max_num_batched_tokens``: why this engine does not let it be changed."""

    @property
    def in_force(self) -> bool:
        """Something is lower than it was at start."""
        return (
            self.max_num_seqs < self.start_max_num_seqs
            or self.max_num_batched_tokens < self.start_max_num_batched_tokens
        )


class WorkerMemory(Reading, frozen=True, kw_only=True):
    """Who has the memory of one worker's device, once the engine is up; in bytes."""

    t_ns: int
    rank: int = 0
    worker: int = 0
    """Its place among the tensor- and pipeline-parallel workers of the rank."""
    gpu: str | None = None
    """UUID."""
    total_bytes: int | None = None
    """Of the device."""
    allowed_bytes: int | None = None
    """What the engine may use of it: ``gpu_memory_utilization``."""
    weight_bytes: int | None = None
    kv_bytes: int | None = None
    activation_bytes: int | None = None
    """Peak of the profiling run."""
    graph_bytes: int | None = None
    """CUDA graphs."""
    workspace_bytes: int | None = None
    """What is not torch's: NCCL, libraries, contexts."""
    read_from: dict[str, str] = {}
    """By the name of a field above, where it was read."""
    load_s: float | None = None
    """What loading its weights took."""


class MeasuredPeak(Reading, frozen=True, kw_only=True):
    """What a host or GPU was measured to do, by ``doctor --measure-peak``."""

    t_ns: int
    device: str
    """The name of the processor or GPU."""
    threads: int | None = None
    """Of a processor, with which it was measured."""
    bytes_per_s: float | None = None
    """Memory, read and written together, of a copy as STREAM does it."""
    read_bytes_per_s: float | None = None
    """Memory, only read."""
    cached_bytes_per_s: dict[int, float] = {}
    """Of reading again and again, by how many bytes: what fits into a processor's
    caches is read faster than memory. The largest is memory's."""
    flops: dict[str, float] = {}
    """FLOP/s of a matrix product, by dtype such as ``float32``."""
    measured_wall_s: float | None = None
    """When, seconds since the epoch."""


class Prices(Reading, frozen=True, kw_only=True):
    """What time or energy costs, as somebody said."""

    t_ns: int
    gpu_hour: float | None = None
    """Of one GPU, or of the host where there is none."""
    kwh: float | None = None
    currency: str = "$"


class Note(Reading, frozen=True, kw_only=True):
    """Something worth remembering at a moment, fit to show."""

    t_ns: int
    kind: NoteKind
    text: str
    count: int | None = None


class Tick(Reading, frozen=True, kw_only=True):
    """A moment at which a snapshot was taken; replay takes the same ones."""

    t_ns: int


AnyReading = (
    ClockAnchor
    | EngineInfo
    | Endpoint
    | Step
    | RequestEvent
    | BlockMap
    | PromptBlocks
    | ServerInfo
    | Contact
    | EngineSample
    | RequestSpan
    | KvCacheEvents
    | WatchedSlo
    | RequestRecord
    | TokenTimes
    | LoadPlanned
    | LoadEvent
    | ClientSample
    | CanaryRequest
    | AnswerHashes
    | HostInfo
    | HostSample
    | GpuInfo
    | GpuSample
    | GpuProcesses
    | ModelConfig
    | EngineSettings
    | LiveLimits
    | WorkerMemory
    | MeasuredPeak
    | Prices
    | Note
    | Totals
    | Tick
)
