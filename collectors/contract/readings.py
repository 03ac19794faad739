"""The readings: everything a collector can report, one frozen Struct per kind.

A reading is the record in memory, on the wire and in the database at once; there is no
conversion layer.

Times are integer nanoseconds and their names end in ``_ns``. On the wire they are
monotonic times of the sender's boot; a collector converts them once (see
:mod:`collectors.contract.clock`) to *session time*: nanoseconds since the session
started. ``INSTANTS`` names the fields that are points in time, so that durations are
not converted. Unknown is ``None``, never zero.
"""

from enum import StrEnum
from typing import ClassVar

import msgspec


class Reading(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True, gc=False
):
    """Base class of everything a collector reports."""

    INSTANTS: ClassVar[tuple[str, ...]] = ("t_ns",)

    source: str = ""
    """Origin: an engine id, a GPU UUID or a load run. On the wire it is set only where
    it differs from the envelope's; the collector fills it in otherwise."""


class Vantage(StrEnum):
    """Who measured. Values of two vantages are never mixed under one label."""

    CLIENT = "client"
    FRONTEND = "frontend"
    ENGINE = "engine"
    SCRAPE = "scrape"
    GPU = "gpu"
    HOST = "host"


class BoundBy(StrEnum):
    """Why the head of the waiting queue was not scheduled in a step."""

    NOTHING = "nothing"
    """Nothing waited: the engine had capacity."""
    SEQS = "seqs"
    TOKENS = "tokens"
    KV = "kv"
    DEFERRED = "deferred"
    """All waiting requests were skipped, or the scheduler holds prefills: see
    ``Deferral``. Up to schema 8 these were recorded as OTHER."""
    OTHER = "other"


class Deferral(StrEnum):
    """Why a request waits although the scheduler has room for it."""

    GRAMMAR = "grammar"
    """The grammar of its structured output is being compiled."""
    TRANSFER = "KV transfer"
    """A KV connector loads its blocks, or looks them up."""
    ADAPTER = "adapter"
    """As many LoRA adapters as may be are in the batch, and its own is another."""
    ENCODER = "encoder"
    """Its images or sounds wait for the encoder, or come from another one."""
    STREAMING = "streaming input"
    """Its client has not sent the rest of its input."""
    HELD = "held prefill"
    """The engine computes prompts in some of its steps alone
    (``prefill_schedule_interval``)."""


class EventKind(StrEnum):
    """Events in the life of a request.

    Front end: arrived, first_token, finished. Engine: added (queued), scheduled (for
    the first time), finished. Engine-side tokens and preemptions are in the steps.
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
    """A finding began or ceased to hold."""
    SLO = "slo"
    """Objectives began to be missed, or are met again."""
    ALERT = "alert"
    """A rule of ``--record-on`` held, so what preceded it was recorded."""
    ASLEEP = "asleep"
    """The engine was put to sleep (``/sleep``)."""
    AWAKE = "awake"
    WEIGHTS = "weights"
    """The weights of a running engine were replaced."""
    COMPILATION = "compilation"
    """The engine compiled a kernel or captured a CUDA graph while it served."""
    STACKS = "stacks"
    """What holds a stalled engine, by the stacks of its processes."""


class LoadKind(StrEnum):
    """Events of a load generator."""

    STARTED = "started"
    WARMUP_ENDED = "warmup_ended"
    RATE = "rate"
    BURST = "burst"
    DRAINING = "draining"
    """No more requests are sent; those in flight may finish."""
    STOPPED = "stopped"


class Phase(StrEnum):
    """The part of a load run a client request belongs to; results exclude warm-up."""

    WARMUP = "warmup"
    STEADY = "steady"
    BURST = "burst"


# Reported by an engine's probe.


class EngineInfo(Reading, frozen=True, kw_only=True):
    """Configuration of an EngineCore: constant while it lives."""

    t_ns: int
    pid: int
    rank: int = 0
    model: str
    vllm_version: str
    device: str | None = None
    dtype: str | None = None
    num_kv_blocks: int | None = None
    """KV blocks available to requests: vLLM's num_gpu_blocks without the null block."""
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
    """UUIDs of the GPUs it runs on, where known."""
    weight_bytes: int | None = None
    """Weights as loaded, over all tensor- and pipeline-parallel ranks."""
    kv_bytes_per_token: int | None = None
    """KV cache per token, over all layers and parallel ranks."""


class Endpoint(Reading, frozen=True, kw_only=True):
    """The address of an engine's HTTP server, and its process."""

    t_ns: int
    pid: int
    model: str
    url: str | None = None
    uds: str | None = None
    log_path: str | None = None


RANK_BITS = 40


def rank_of(ordinal: int) -> int:
    """The data-parallel rank that assigned a request ordinal.

    Each rank counts up from ``rank << RANK_BITS``.
    """
    return ordinal >> RANK_BITS


class Step(Reading, frozen=True, kw_only=True):
    """One pass of scheduler and model (vLLM: engine step, iteration).

    ``members``, ``scheduled`` and ``produced`` are parallel: request ordinal, tokens
    scheduled for it, tokens it produced. Every token of a step has the step's
    ``end_ns``, so these lists and ``end_ns`` are the token times.
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
    """end_ns minus the later of start_ns and the previous end_ns; idle time is left
    out."""
    prefill_requests: int = 0
    decode_requests: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    padded_tokens: int | None = None
    graph_mode: str | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    running: int = 0
    """Running requests after ``schedule()``."""
    waiting: int = 0
    """Waiting requests after ``schedule()``."""
    bound_by: BoundBy = BoundBy.NOTHING
    kv_used_blocks: int | None = None
    kv_cached_blocks: int | None = None
    """Free blocks that still hold a reusable prefix; vLLM counts them as free."""
    kv_free_blocks: int | None = None
    """Free blocks without content."""
    preempted: list[int] = msgspec.field(default_factory=list)
    """Ordinals of the requests preempted in this step."""
    recomputed_tokens: int = 0
    prefix_queries: int | None = None
    """Prompt tokens looked up in the prefix cache in this step."""
    prefix_hits: int | None = None
    members: list[int] = msgspec.field(default_factory=list)
    scheduled: list[int] = msgspec.field(default_factory=list)
    produced: list[int] = msgspec.field(default_factory=list)
    # Recordings address fields by position, so new ones are appended.
    drafts: int | None = None
    """Requests whose drafted tokens were verified in this step; None without any."""
    accepted_by_position: list[int] = msgspec.field(default_factory=list)
    """Drafts accepted up to each position, the first one first; empty without any."""
    deferred_by: str | None = None
    """A ``Deferral``: why requests were skipped, where ``bound_by`` is deferred; also
    where prompts begun before were held. None if the reason is not known."""
    deferred: int | None = None
    """Waiting requests that the scheduler skips; None where it does not count them."""
    deferred_before: str | None = None
    """Why requests waited between the step before and this one, while the engine had
    nothing else to do."""
    memberless: bool = False
    """The server itself published the step, which says how many requests were in it but
    not which: ``members``, output tokens and use of the KV cache are not known, nor
    what bound it (``bound_by`` is then ``nothing`` or ``other``: whether any waited).
    ``end_ns`` is when its message came, ``running`` counts its requests alone."""
    context_tokens: int | None = None
    """Tokens of its requests that the KV cache held already, where published."""

    @property
    def output_tokens(self) -> int:
        return sum(self.produced)


class RequestEvent(Reading, frozen=True, kw_only=True):
    """An event in the life of a request, seen by the engine or a front end.

    The two are joined by ``request_id``, vLLM's internal id. Engine events carry the
    ``ordinal`` that steps use for their members.
    """

    t_ns: int
    kind: EventKind
    vantage: Vantage
    request_id: str
    ordinal: int | None = None
    external_id: str | None = None
    """The request id known to the client (front end)."""
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
    # Recordings address fields by position, so new ones are appended.
    lora: str | None = None
    """Name of the LoRA adapter; None: the base model (added)."""
    priority: int | None = None
    """Lower values go first; None where all requests have the same (added)."""
    header: str | None = None
    """Value of the request header chosen for grouping (arrived)."""
    external_tokens: int | None = None
    """Cached tokens loaded by a KV connector (scheduled)."""
    thinking_tokens: int | None = None
    """Output tokens before the answer, with the token that ends the thinking; None
    where there is no reasoning parser, or nothing ended it (finished, engine)."""
    media_items: int | None = None
    """Images, sounds and videos of the prompt; None for text alone (arrived)."""
    media_cached: int | None = None
    """Of these, how many the multimodal cache held preprocessed (arrived)."""
    fetch_start_ns: int | None = None
    """When the first of the media was asked for, from a URL or out of the request's
    own bytes; like the next three of the front end (arrived)."""
    fetch_end_ns: int | None = None
    preprocess_start_ns: int | None = None
    """When vLLM's multimodal processor began: resizing, features, placeholders."""
    preprocess_end_ns: int | None = None
    top_p: float | None = None
    """Nucleus sampling; None where not told (arrived, added)."""
    processed_ns: int | None = None
    """When the last outputs had been detokenised and put into the client's stream. The
    time of the event, from which E2EL follows, is when they reached the front end, as
    vLLM counts (finished, front end)."""

    INSTANTS: ClassVar[tuple[str, ...]] = (
        *("t_ns", "tokenised_ns", "fetch_start_ns", "fetch_end_ns"),
        *("preprocess_start_ns", "preprocess_end_ns", "processed_ns"),
    )


class BlockMap(Reading, frozen=True, kw_only=True):
    """Holders of the KV blocks of one rank after a step, mostly as a change.

    Blocks are named by the engine's ids; in vLLM, 0 is the null block, which nobody
    holds. A block's reference count is the number of lists in ``blocks`` it is in.
    """

    t_ns: int
    rank: int = 0
    sequence: int
    """Counts the maps of this rank: after a gap only a whole map is usable."""
    whole: bool = False
    """The map is complete; otherwise it is relative to the one before."""
    num_blocks: int
    """Size of the pool, null block included: ids are smaller."""
    holders: list[int] = msgspec.field(default_factory=list)
    """Ordinals of requests whose blocks changed; parallel to the next three."""
    groups: list[int] = msgspec.field(default_factory=list)
    """KV cache group of each list; empty: all belong to the first group."""
    kept: list[int] = msgspec.field(default_factory=list)
    """Number of unchanged blocks at the start of each list."""
    blocks: list[list[int]] = msgspec.field(default_factory=list)
    """Blocks after the unchanged ones, in token order."""
    gone: list[int] = msgspec.field(default_factory=list)
    """Ordinals of requests that no longer hold blocks."""
    cached: list[int] = msgspec.field(default_factory=list)
    """Blocks whose cached content is new."""
    uncached: list[int] = msgspec.field(default_factory=list)
    """Blocks that lost their cached content, by eviction or a reset. A block whose
    content was replaced is in both lists."""
    cleared: bool = False
    """The whole cache was reset on demand; nothing was evicted."""
    cost_ns: int | None = None
    """Time this map cost the engine's thread."""


class PromptBlocks(Reading, frozen=True, kw_only=True):
    """Content hashes of a request's full blocks, reported when it ends."""

    t_ns: int
    rank: int = 0
    ordinal: int
    prompt_blocks: int
    """Full blocks of the prompt, which were looked up in the prefix cache."""
    total_blocks: int
    """Full blocks of prompt and output."""
    hashes: list[int] = msgspec.field(default_factory=list)
    """Hashes in order, 63 bits each: the engine's own, keyed by a random secret of its
    process. Equal content has equal hashes in one life of an engine; tokens cannot be
    derived."""
    places: list[int] = msgspec.field(default_factory=list)
    """Position of each hashed block in the request; empty: all blocks from 0 on."""
    one_in: int = 1
    """Only hashes divisible by this are reported, as a sample of all."""
    block_tokens: int | None = None
    # Recordings address fields by position, so new ones are appended.
    plain: list[int] = msgspec.field(default_factory=list)
    """Hashes of the tokens of the first blocks alone, each by itself: without what
    stands before it, nor salt, adapter or media. Keyed by the same secret."""
    salt: int | None = None
    """Hash of the request's cache salt, likewise; None without one."""
    prompt_tokens: int | None = None


class Totals(Reading, frozen=True, kw_only=True):
    """Counts of a probe since its process started."""

    t_ns: int
    steps: int = 0
    output_tokens: int = 0
    requests_added: int = 0
    requests_finished: int = 0
    probe_cost_ns: int = 0
    """Time spent in hooks on the engine's thread."""
    sender_cpu_ns: int | None = None
    """CPU time of the probe's own threads."""
    rank: int = 0
    running: int | None = None
    """Requests running at that moment; like the following fields, also valid when
    idle."""
    waiting: int | None = None
    kv_used_blocks: int | None = None
    loop_lag_max_ns: int | None = None
    """API server: worst lag of its event loop since the previous totals."""


class RefusalReason(StrEnum):
    """Why an API server refused a request."""

    TOO_LONG = "too long"
    """Prompt or output exceed max_model_len."""
    INVALID = "invalid parameter"
    UNKNOWN_MODEL = "unknown model"
    UNAUTHORISED = "unauthorised"
    QUEUE_FULL = "queue full"
    """Admission control: max_num_queued_reqs or max_num_queued_tokens."""
    ENGINE_DEAD = "engine dead"
    CANCELLED = "cancelled"
    """The client left before the engine had the request."""
    OTHER = "other"


ELSEWHERE = "other"
"""Route of what is no request to a model; never part of a share of the requests."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Refused requests of one kind, without anything a client wrote."""

    route: str
    """The route's template, or ELSEWHERE."""
    method: str
    """POST, GET or other."""
    status: int
    reason: RefusalReason = RefusalReason.OTHER
    parameter: str | None = None
    """Name of the parameter that was invalid, where the server gives it."""
    count: int
    """Since the process started."""
    new: int = 0
    """Of these, how many since the previous report."""
    asked_tokens: int | None = None
    """The most that one of them asked for, where it was too long and counted."""
    allowed_tokens: int | None = None
    """What the server allowed, where it was too long."""


class Refusals(Reading, frozen=True, kw_only=True):
    """Requests an API server refused: answered with 4xx or 5xx.

    Reported when it starts, and at most once a second when one more was refused.
    Requests that ended in an error of the engine are not among them: those failed.
    """

    t_ns: int
    pid: int
    """Several API servers of an engine count each for itself."""
    refused: list[Refusal] = msgspec.field(default_factory=list)
    whole: bool = True
    """All kinds; else those of which there are new ones."""


# Reported by a running server: over HTTP, in traces, in KV cache events.


class ServerInfo(Reading, frozen=True, kw_only=True):
    """What a server reports about itself; repeated when it changes."""

    t_ns: int
    name: str
    """Name given by the user, else host and port."""
    family: str
    """vllm, sglang, llamacpp or openai: a module of ``collectors.servers.families``."""
    url: str | None = None
    """The address, without user, password and query."""
    uds: str | None = None
    version: str | None = None
    models: list[str] = msgspec.field(default_factory=list)
    max_model_len: int | None = None
    started_wall_ns: int | None = None
    """Unix time at which its process started."""
    num_kv_blocks: int | None = None
    """KV blocks available to requests of one rank."""
    kv_block_tokens: int | None = None
    insecure: bool = False
    """Its certificate is not verified: anybody could answer in its place."""
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    """Other configuration, in the server's own terms."""
    advice: list[str] = msgspec.field(default_factory=list)
    """How to make it report more: a sentence each, naming a flag or variable."""


class Contact(Reading, frozen=True, kw_only=True):
    """Whether a server answers; reported when that changes, and at a restart."""

    t_ns: int
    answers: bool
    why: str | None = None
    """Why it does not answer, or what is wrong with its response, as text for users."""
    restarted: bool = False
    """It was restarted: its counters begin at zero."""
    round_trip_ns: int | None = None


class Histogram(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A cumulative histogram as in Prometheus, since its process started."""

    bounds: list[float]
    """Upper bounds in ascending order, without ``+Inf``."""
    counts: list[int]
    """Cumulative counts per bound, and the total at the end: one more than bounds."""
    sum: float


REFUSED = "refused"
"""Name of refused requests in ``EngineSample.others``, as ``refused{kind}``: a reason,
or a route and its status."""


class EngineSample(Reading, frozen=True, kw_only=True):
    """One rank's metrics at a moment: one scrape.

    Counters count since the process started; unknown is ``None`` or absent.
    """

    t_ns: int
    """The middle of the exchange."""
    uncertainty_ns: int = 0
    """Half the duration of the exchange: the error of ``t_ns``."""
    by_prometheus: bool = False
    """Scraped by a Prometheus server, and read from it later."""
    rank: str = "0"
    """The ``engine`` label: one data-parallel rank."""
    model: str | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """0 to 1."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    prefix_queries: int | None = None
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int | None = None
    preemptions: int | None = None
    finished: dict[str, int] = msgspec.field(default_factory=dict)
    """Finished requests by reason: stop, length, abort, error."""
    histograms: dict[str, Histogram] = msgspec.field(default_factory=dict)
    """By key: ttft_s, itl_s, tpot_s, e2el_s, queue_s, prefill_s,
    decode_s, inference_s; prompt_tokens and output_tokens of a request; step_tokens of
    an engine step; block_lifetime_s, block_idle_s (before eviction) and
    block_reuse_gap_s of KV blocks."""
    others: dict[str, float] = msgspec.field(default_factory=dict)
    """Metrics specific to the server family, by its own name; REFUSED by ours."""


class MetricsPage(Reading, frozen=True, kw_only=True):
    """All that a server's ``/metrics`` exposes, every ten seconds."""

    INSTANTS: ClassVar[tuple[str, ...]] = ("t_ns", "whole_ns")

    t_ns: int
    """The middle of the exchange."""
    whole: bool = False
    """All lines; else the values that changed since the latest whole one."""
    left_out: int = 0
    """Lines beyond the longest page that is kept."""
    lines: list[str] = msgspec.field(default_factory=list)
    """All lines, comments included; only of a whole one."""
    places: list[int] = msgspec.field(default_factory=list)
    """Numbers of the lines with another value than in the whole one, rising."""
    values: list[str] = msgspec.field(default_factory=list)
    """These values, as written; parallel to ``places``."""
    whole_ns: int | None = None
    """``t_ns`` of that whole one; None for a whole one."""


class RequestSpan(Reading, frozen=True, kw_only=True):
    """A finished request from the server's own trace."""

    INSTANTS: ClassVar[tuple[str, ...]] = ("arrived_ns", "end_ns")

    request_id: str
    """The request id known to the client."""
    arrived_ns: int
    end_ns: int
    uncertainty_ns: int = 0
    """Error of both times, if taken from another host's wall clock; durations are
    exact."""
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
    """Changes of the prefix cache in one step: blocks by hash, never tokens."""

    t_ns: int
    rank: int = 0
    sequence: int
    missed: int = 0
    """Batches lost before this one."""
    stored: list[int] = msgspec.field(default_factory=list)
    """Hashes of blocks stored in the cache."""
    parents: list[int | None] = msgspec.field(default_factory=list)
    """The block before each stored one, None at the start of a prompt; parallel to
    ``stored``."""
    removed: list[int] = msgspec.field(default_factory=list)
    cleared: bool = False
    """The cache was emptied before anything in ``stored``."""
    block_tokens: int | None = None
    # Recordings address fields by position, so new ones are appended.
    medium: str | None = None
    """The tier these blocks are in, as the server names it, such as CPU or DISK; None:
    the GPU's cache."""


class WatchedSlo(Reading, frozen=True, kw_only=True):
    """Objectives for requests from now on, as ``--slo`` writes them."""

    t_ns: int
    slo: str


# Reported by the load generator: the client's vantage.


class LoadPlanned(Reading, frozen=True, kw_only=True):
    """The plan of the load run that follows."""

    t_ns: int
    plan: str
    """JSON, without secrets."""
    elsewhere: bool = False
    """Another process started the run."""


class RequestRecord(Reading, frozen=True, kw_only=True):
    """A complete request as the load generator's client saw it."""

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
    """The X-Request-Id sent; the engine's external id contains it."""
    phase: Phase
    intended_ns: int
    sent_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    end_ns: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    failure: str | None = None
    """The kind of failure; None on success."""
    detail: str | None = None
    class_name: str | None = None
    """Request class in a mix of classes."""
    turn: int | None = None
    """Turn of its conversation, from 1; None for single requests."""
    first_content_ns: int | None = None
    """First token after reasoning, where the response began with reasoning."""
    first_chunk_tokens: int | None = None
    """Tokens in the first chunk, where the server counts them."""
    server_queue_ns: int | None = None
    """Per-request metrics in the response, where vLLM sends them: queued to scheduled;
    scheduled to first token; first to last token."""
    server_prefill_ns: int | None = None
    server_decode_ns: int | None = None


class TokenTimes(Reading, frozen=True, kw_only=True):
    """Arrival times of the chunks of one client request (vantage client)."""

    INSTANTS: ClassVar[tuple[str, ...]] = ("first_ns",)

    external_id: str
    first_ns: int
    gaps_ns: list[int]
    by_kernel: bool | None = None
    """True: the kernel stamped every arrival. False: some were stamped when the client
    read them."""


class LoadEvent(Reading, frozen=True, kw_only=True):
    """The load generator started or ended something."""

    t_ns: int
    kind: LoadKind
    rate_per_s: float | None = None
    users: int | None = None
    """Concurrent users of a closed loop."""
    changed: bool = False
    """The user changed it during the run, deviating from the plan."""
    text: str = ""


class ClientSample(Reading, frozen=True, kw_only=True):
    """Accuracy of the load generator, over a second or over its whole run."""

    t_ns: int
    span_ns: int
    """Time covered, up to ``t_ns``."""
    final: bool = False
    """Covers the whole run without warm-up; the last of the run."""
    transport: str
    """raw or httpx."""
    sends: int = 0
    """Requests sent; over the whole run, each must have its RequestRecord."""
    late_sends: int = 0
    """Requests sent more than 10 ms after their intended time."""
    send_lag_p50_ns: int | None = None
    """Time from the intended time to the send."""
    send_lag_p99_ns: int | None = None
    send_lag_max_ns: int | None = None
    tokens: int = 0
    """Chunks with tokens, of finished requests."""
    kernel_stamps: int = 0
    """Chunks the kernel stamped."""
    reads: int = 0
    """Socket reads, whatever arrived."""
    merged_reads: int = 0
    """Reads with several chunks of tokens; all but the last chunk arrived earlier than
    stamped."""
    recv_lag_p50_ns: int | None = None
    """From the kernel's stamp to our read; None without kernel stamps."""
    recv_lag_p99_ns: int | None = None
    recv_lag_max_ns: int | None = None
    cpu_s: float = 0.0
    """CPU time of the process in this span."""
    in_flight: int = 0
    held_back: int | None = None
    """Requests delayed because the plan's most concurrent requests were in flight."""


class CanaryRequest(Reading, frozen=True, kw_only=True):
    """A small request of our own to a server in use, as a probe of what clients see.

    Its source is that server. It belongs to no load run.
    """

    INSTANTS: ClassVar[tuple[str, ...]] = ("sent_ns", "first_token_ns")

    sent_ns: int
    first_token_ns: int | None = None
    gaps_ns: list[int] = msgspec.field(default_factory=list)
    """Gaps between chunks, each of which may hold several tokens."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    by_kernel: bool | None = None
    """The kernel stamped the arrival of each chunk."""
    failure: str | None = None
    """The kind of failure; None on success."""
    detail: str | None = None


class AnswerHashes(Reading, frozen=True, kw_only=True):
    """Hashes of a server's responses to fixed prompts at temperature 0, never text.

    The n-th number of a response is the hash of its first n tokens, so two responses
    are equal up to the first number that differs.
    """

    t_ns: int
    model: str
    asked: int
    """Hash of the prompts and request options: only equal ones are comparable."""
    by_tokens: bool
    """The server returned token ids; otherwise words of the text are counted."""
    alone: list[list[int]]
    """Per prompt, each sent on its own."""
    together: list[list[int]]
    """Per prompt, all sent at once: in other batches."""
    # Recordings address fields by position, so new ones are appended.
    chosen: list[list[float]] = []
    """Per prompt sent alone, the log-prob of each token; empty where it is not told."""
    scored_of: int | None = None
    """Hash of the baseline's prompts and tokens; None if nothing was scored."""
    scored_alone: list[list[float]] = []
    """Per prompt, the log-prob of each of the baseline's tokens, one by one."""
    scored_together: list[list[float]] = []
    """The same, all sent at once."""


# Reported by the machine: its clocks, processes and GPUs.


class ClockAnchor(Reading, frozen=True, kw_only=True):
    """Wall and monotonic clock of one boot, read together."""

    t_ns: int
    wall_ns: int
    """Unix time."""
    uncertainty_ns: int
    boot_id: str


class ProcessUsage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Resource usage of a process so far."""

    pid: int
    role: str
    """api, core, worker, load, inferwatch, agent."""
    cpu_s: float
    """User and system time in seconds since it started."""
    rss_bytes: int
    threads: int | None = None
    throttled_s: float | None = None
    """Time a CPU quota throttled its control group, summed over cores; None without a
    quota."""


class HostInfo(Reading, frozen=True, kw_only=True):
    """Hardware of a host; reported again when it changes.

    Its samples have the same source: empty for the host inferwatch runs on, else the
    host's name.
    """

    t_ns: int
    name: str
    cpu: str | None = None
    """The CPU model."""
    cores: int | None = None
    memory_bytes: int | None = None
    """Memory installed, or the limit of the engine's control group."""


class HostSample(Reading, frozen=True, kw_only=True):
    """CPU and memory of the watched processes, ours included, and of their host."""

    t_ns: int
    processes: list[ProcessUsage]
    loop_lag_s: float | None = None
    """Worst lag of inferwatch's event loop in the interval."""
    cores: int | None = None
    """Cores inferwatch may use."""
    busy_s: float | None = None
    """Busy seconds of those cores since boot, by all processes."""
    run_queue: int | None = None
    """Threads running or waiting for a core at this moment, without the one that reads
    this."""
    memory_used_bytes: int | None = None
    """Used part of ``HostInfo.memory_bytes``, without reclaimable caches."""


class NamedProcesses(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Processes of one name, and the cores they used together."""

    name: str
    cores: float
    count: int
    pid: int
    """Of the one that used most."""


class OtherProcesses(Reading, frozen=True, kw_only=True):
    """Which processes besides the watched ones used most of a host's cores.

    Reported while these keep the host busy.
    """

    t_ns: int
    largest: list[NamedProcesses]


class GpuInfo(Reading, frozen=True, kw_only=True):
    """A GPU or MIG slice, or the reason why there is none.

    Its source is its UUID. Reported when found and whenever it changes, also when it is
    lost.
    """

    t_ns: int
    name: str | None = None
    uuid: str | None = None
    absent_because: str | None = None
    """Why there is no GPU at all, with a remedy."""
    lost_because: str | None = None
    """Why a GPU found earlier does not respond."""
    host: str | None = None
    """Host name, if it is not the host inferwatch runs on."""
    index: int | None = None
    """NVML's index, which may differ from CUDA's."""
    pci_bus_id: str | None = None
    architecture: str | None = None
    """For example Hopper or Ampere."""
    driver: str | None = None
    """Driver version; contains *simulated* where there is no real GPU."""
    memory_bytes: int | None = None
    memory_bus_bits: int | None = None
    max_sm_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    peak_bytes_per_s: float | None = None
    """Peak memory bandwidth, reads and writes together."""
    peak_from: str | None = None
    """clock and bus width, data sheet, or you (--peak-gbps)."""
    sheet_bytes_per_s: float | None = None
    """Peak memory bandwidth by the data sheet, where known."""
    peak_flops: float | None = None
    """FLOP/s at the model's dtype, where given by --peak-tflops."""
    parent_uuid: str | None = None
    """UUID of the GPU a MIG slice belongs to."""
    profile: str | None = None
    """Profile of a MIG slice, such as 1g.10gb."""
    missing: dict[str, str] = msgspec.field(default_factory=dict)
    """Why values are unavailable and how to get them, by field of GpuSample."""


class GpuSample(Reading, frozen=True, kw_only=True):
    """Activity of a GPU up to a moment. Its source is its UUID; unknown is ``None``.

    Ratios are 0 to 1. Fields not read for this sample are ``None``, never repeated:
    each has its own interval.
    """

    t_ns: int
    span_ns: int | None = None
    """Time covered by the averages of GPM or DCGM, up to ``t_ns``."""
    via: str = "nvml"
    """Source of the averages: gpm or dcgm; nvml without averages."""
    # Averages over the span.
    dram_active: float | None = None
    """Share of the peak memory bandwidth, reads and writes together."""
    peak_bytes_per_s: float | None = None
    """That peak, at the current memory clock."""
    sm_active: float | None = None
    """Share of SM cycles with at least one warp assigned."""
    sm_occupancy: float | None = None
    """Resident warps relative to the most that fit."""
    tensor_active: float | None = None
    """Share of cycles in which any tensor pipe was active."""
    pcie_tx_bytes_per_s: float | None = None
    """Sent by the GPU."""
    pcie_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    # Share of time with any activity at all: not a measure of load.
    gpu_busy: float | None = None
    memory_busy: float | None = None
    """Never a bandwidth."""
    # Current values.
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: int | None = None
    """NVML's bit mask of clocks event reasons."""
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    memory_used_bytes: int | None = None
    """Memory in use, without what the driver reserves."""
    memory_reserved_bytes: int | None = None
    # Counters: they rise until the driver is reloaded.
    energy_mj: int | None = None
    """Energy of the board in millijoules."""
    throttled_ns: dict[str, int] = msgspec.field(default_factory=dict)
    """Time clocks were throttled: power_cap, sync_boost, thermal, hw_thermal,
    power_brake."""
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None


class GpuProcesses(Reading, frozen=True, kw_only=True):
    """Processes that use a GPU, whose UUID is the source; listed rarely: it is slow."""

    t_ns: int
    memory_bytes: dict[int, int | None]
    """By PID on the host, which may be unknown in a container."""


class StackSource(StrEnum):
    """What read the stacks of a process."""

    PY_SPY = "py-spy"
    """From outside: it also reads a process that is stopped."""
    FAULTHANDLER = "faulthandler"
    """The process itself, asked by a signal that its probe has registered."""
    WATCHDOG = "vLLM's watchdog"
    """vLLM itself, in its log (``--watchdog-config``)."""


class ThreadStack(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one thread was executing; no values, ever."""

    name: str
    frames: list[str] = []
    """As ``function (file:line)``, the innermost first."""


class Stacks(Reading, frozen=True, kw_only=True):
    """What each thread of one process of an engine was executing as it stalled.

    Taken once in a stall, of all processes of the engine on this host.
    """

    INSTANTS: ClassVar[tuple[str, ...]] = ("t_ns", "stalled_ns")

    t_ns: int
    pid: int
    process: str
    """API server, EngineCore or worker; numbered where there are several."""
    stalled_ns: int
    """When the stall began: the end of the step before it."""
    taken_by: StackSource | None = None
    threads: list[ThreadStack] = []
    """The main thread first, if it was read; empty where none could be."""
    why: str | None = None
    """Why no thread could be read, or not by py-spy, as text for users."""
    stopped: bool = False
    """Whether a signal or a debugger had stopped the process: none of it ran."""
    paused_ns: int | None = None
    """How long the process was paused at most while it was read; 0: not at all."""


# Reported by inferwatch itself: notes, settings, and when snapshots were taken.


class ModelConfig(Reading, frozen=True, kw_only=True):
    """The model's configuration, as its own config.json has it."""

    t_ns: int
    rank: int = 0
    model: str
    config: str
    """JSON of a Hugging Face ``config.json``, reduced to the text model."""
    dtype: str | None = None
    """Dtype of activations and unquantised weights, such as ``bfloat16``."""
    kv_dtype: str | None = None
    """Dtype of the KV cache, resolved: never ``auto``."""
    quantization: str | None = None
    """vLLM's name of the method, such as ``fp8``."""


class EngineSettings(Reading, frozen=True, kw_only=True):
    """Current values of an engine's flags, by vLLM's names."""

    t_ns: int
    rank: int = 0
    settings: dict[str, str | int | float | bool | None]
    """For example ``max_num_seqs``: 256. Unknown flags are missing."""


class LimitChange(StrEnum):
    """Why an engine's limits changed."""

    START = "start"
    """The start-up values; nobody has changed them."""
    SET = "set"
    """A client changed them."""
    RESET = "reset"
    """A client restored the start-up values."""
    WATCHER_GONE = "watcher gone"
    """The client that set them disconnected, so the start-up values are back."""


class LiveLimits(Reading, frozen=True, kw_only=True):
    """Limits of an engine's scheduler from this moment on, if they can be changed.

    Reported only by engines started with control: at start-up, and with the first step
    under new limits, or at once while idle. Limits can be lowered from their start-up
    values and raised back, never beyond.
    """

    t_ns: int
    rank: int = 0
    version: int
    """Counts changes; a change names the version it is based on."""
    change: LimitChange
    max_num_seqs: int
    """Running requests; if more run already, none is preempted and none admitted."""
    max_num_batched_tokens: int
    """Tokens per step; a step with more running requests than this has more."""
    start_max_num_seqs: int
    start_max_num_batched_tokens: int
    by: str | None = None
    """Who changed them, as text for users; None at start-up."""
    kept: bool = False
    """They stay when the client that set them disconnects."""
    fixed: dict[str, str] = {}
    """By name (``max_num_batched_tokens``): why this engine does not allow changing
    it."""

    @property
    def in_force(self) -> bool:
        """Whether a limit is below its start-up value."""
        return (
            self.max_num_seqs < self.start_max_num_seqs
            or self.max_num_batched_tokens < self.start_max_num_batched_tokens
        )


class ProfileState(StrEnum):
    """How far a profile has come."""

    STARTED = "started"
    ENDED = "ended"
    """The profiler is off, and its traces are written."""
    FAILED = "failed"
    """It could not be started or ended; ``why`` says what happened."""


class Profile(Reading, frozen=True, kw_only=True):
    """A profile of some steps of an engine by its own profiler.

    Reported once as it starts and once as it ends, with the same ``number``. The traces
    are files of the engine's host: ``directory/{prefix}*``, one per worker.
    """

    t_ns: int
    """When the profiler was on, or when its traces were written."""
    rank: int = 0
    number: int
    """Counts the profiles of an EngineCore."""
    state: ProfileState
    steps_asked: int
    steps: int | None = None
    """Steps that ended while it was on, as counted by the probe; None at the start."""
    prefix: str
    directory: str
    by: str | None = None
    """Who asked for it, as text for users."""
    why: str | None = None
    """Why it ended before it had all its steps, or failed, as text for users."""
    switch_ns: int | None = None
    """How long the engine was held up by switching it on, or off with its traces
    written. Traces of steps that were counted by vLLM are written within a step."""
    realtime_ns: int
    """The host's wall clock at ``t_ns``, by which traces are stamped."""


class WorkerMemory(Reading, frozen=True, kw_only=True):
    """Memory use of one worker's device after start-up, in bytes."""

    t_ns: int
    rank: int = 0
    worker: int = 0
    """Index among the tensor- and pipeline-parallel workers of the rank."""
    gpu: str | None = None
    """UUID of the GPU."""
    total_bytes: int | None = None
    """Memory of the device."""
    allowed_bytes: int | None = None
    """Share allowed by ``gpu_memory_utilization``."""
    weight_bytes: int | None = None
    kv_bytes: int | None = None
    activation_bytes: int | None = None
    """Peak of the profiling run."""
    graph_bytes: int | None = None
    """CUDA graphs."""
    workspace_bytes: int | None = None
    """Memory outside torch: NCCL, libraries, contexts."""
    read_from: dict[str, str] = {}
    """Where each value was read, by field name."""
    load_s: float | None = None
    """Time to load the weights."""


class Stage(StrEnum):
    """A part of an engine's start; the parts of one worker do not overlap."""

    IMPORTS = "imports"
    """From the server's first process until its first worker has all its modules."""
    DEVICE = "device"
    """The device is initialised, and processes find each other."""
    BUILD = "build model"
    """The model's modules are created, without their weights."""
    LOAD_WEIGHTS = "load weights"
    """Weights are read and copied to the device; where files are mapped into memory,
    one cannot be told from the other."""
    READ = "read"
    """Weights are read, where the loader does it apart from copying."""
    TRANSFER = "transfer"
    """Weights that were read are copied to the device."""
    PROCESS = "process weights"
    """Weights are quantised, or brought into the formats of their kernels."""
    PROFILE = "profile run"
    """A step of dummies, which tells how much memory is left for the KV cache."""
    COMPILE = "compile"
    """torch.compile, or loading what it compiled before."""
    KV = "KV allocation"
    CAPTURE = "graph capture"
    WARM_UP = "warm-up"


OF_WEIGHTS = (Stage.LOAD_WEIGHTS, Stage.READ)
"""Stages in which weights come from files; a start has one of them."""


class StartupStage(Reading, frozen=True, kw_only=True):
    """A stage of an engine's start, as one of its workers went through it."""

    t_ns: int
    """When it began; of compilations, when what compiled began."""
    duration_ns: int
    stage: Stage
    rank: int = 0
    worker: int | None = None
    """Index among the tensor- and pipeline-parallel workers of the rank; None: before
    there were workers."""
    n_bytes: int | None = None
    """Bytes of weights, KV cache or graphs, as they were read or allocated."""
    storage_bytes: int | None = None
    """Of weights, what storage had to fetch: the rest was cached in memory. Some
    network file systems do not count it."""
    waited_ns: int | None = None
    """Time in which the loading thread waited instead of running."""
    cached: bool | None = None
    """Whether what was compiled came from vLLM's cache."""


class MeasuredPeak(Reading, frozen=True, kw_only=True):
    """Peaks of a host or GPU measured by ``doctor --measure-peak``."""

    t_ns: int
    device: str
    """Name of the CPU or GPU."""
    threads: int | None = None
    """Threads used to measure a CPU."""
    bytes_per_s: float | None = None
    """Memory bandwidth of a copy as in STREAM, reads and writes together."""
    read_bytes_per_s: float | None = None
    """Memory bandwidth of reads."""
    cached_bytes_per_s: dict[int, float] = {}
    """Read bandwidth by working set size in bytes: what fits into CPU caches is read
    faster. The largest size gives that of memory."""
    flops: dict[str, float] = {}
    """FLOP/s of a matrix product, by dtype such as ``float32``."""
    measured_wall_s: float | None = None
    """Unix time of the measurement in seconds."""


class Prices(Reading, frozen=True, kw_only=True):
    """Prices of time and energy, as given by the user."""

    t_ns: int
    gpu_hour: float | None = None
    """Per GPU, or per host without a GPU."""
    kwh: float | None = None
    currency: str = "$"


class Note(Reading, frozen=True, kw_only=True):
    """An event worth recording, as text for users."""

    t_ns: int
    kind: NoteKind
    text: str
    count: int | None = None
    duration_ns: int | None = None
    """How long it took from ``t_ns`` on (compilation); None if that is not known."""


class Tick(Reading, frozen=True, kw_only=True):
    """The time of a snapshot; replay takes its snapshots at the same times."""

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
    | MetricsPage
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
    | OtherProcesses
    | GpuInfo
    | GpuSample
    | GpuProcesses
    | ModelConfig
    | EngineSettings
    | LiveLimits
    | WorkerMemory
    | StartupStage
    | MeasuredPeak
    | Prices
    | Note
    | Totals
    | Refusals
    | Stacks
    | Profile
    | Tick
)
