"""What a probe reports: engines, their steps, the moments of requests."""

from typing import ClassVar

import msgspec

from collectors.readings.base import Reading
from collectors.readings.kinds import BoundBy, EventKind, Vantage


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


class Endpoint(Reading, frozen=True, kw_only=True):
    """Where an engine's HTTP server listens and which process it is."""

    t_ns: int
    pid: int
    model: str
    url: str | None = None
    uds: str | None = None
    log_path: str | None = None


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

    INSTANTS: ClassVar[tuple[str, ...]] = ("t_ns", "tokenised_ns")


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
    """CPU time of the probe's own sending thread."""
    rank: int = 0
    running: int | None = None
    """At that moment, steps or not; likewise below: true at rest, too."""
    waiting: int | None = None
    kv_used_blocks: int | None = None
