"""The story of one request: its phases, chunks, steps and tokens."""

from dataclasses import dataclass, field
from enum import StrEnum

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import BoundBy
from inferwatch.metrics.causes.cause import Cause, Parts
from inferwatch.metrics.requests.request_row import RequestRow


class SpanKind(StrEnum):
    """The kinds of spans in a request's story."""

    NETWORK = "network"
    """From the client's send to the arrival at the front end; only for our own client.
    """
    TOKENISE = "tokenise"
    MEDIA = "media"
    """Fetching and decoding images, sounds and videos."""
    PREPROCESS = "preprocessing"
    """Of media, by the model's multimodal processor."""
    HANDOVER = "handover"
    """From the API server to the engine's queue."""
    QUEUE = "queue"
    TRANSFER = "KV transfer"
    CHUNK = "prefill"
    """One step that computed a part of its prompt."""
    LEFT_OUT = "left out"
    """Between two chunks, while it was in no step."""
    PREEMPTED = "preempted"
    """In the queue after a preemption."""
    RECOMPUTE = "recompute"
    """A step that recomputed what a preemption discarded."""
    THINKING = "thinking"
    """Decoding a reasoning model's tokens before its answer, where steps tell them."""
    DECODE = "decode"
    """Output tokens up to the last, or to the next preemption; those of the answer,
    where thinking is told."""
    SEND = "send"
    """From the engine's last token to the front end's end; not for a live request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorySpan:
    """A span of a request's time; spans are consecutive and do not overlap."""

    kind: SpanKind
    start_ns: int
    end_ns: int
    cause: Cause | None = None
    """Why it took time; a queue has one span for each cause."""
    tokens: int | None = None
    """Scheduled tokens; of thinking and decode, output tokens."""
    step: int | None = None
    """Index of the step if the span is a chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryStep:
    """A step that the request was in."""

    index: int
    start_ns: int
    end_ns: int
    duration_ns: int
    scheduled: int
    """The request's own tokens, as are those produced."""
    produced: int
    requests: int
    """Requests in the step."""
    tokens: int
    """Tokens of all requests in the step."""
    prefill_tokens: int
    bound_by: BoundBy
    running: int
    waiting: int
    deferred_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A token that came late."""

    t_ns: int
    """When it came."""
    gap_ns: int
    cause: Cause
    evidence: str
    """A sentence: whose prefill of how many tokens, or how long no step ran."""
    step: int
    """Index of the token's step."""
    blamed: str | None = None
    """Key of the request it waited for, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """Another request that was in prefill in steps of this one."""

    key: str
    name: str
    """The client's request id if known, else the engine's."""
    prefill_tokens: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStory:
    """Everything about one request, as of a moment.

    Times are session time. What the available readings do not show is left out, and
    ``missing`` says why.
    """

    row: RequestRow
    end_ns: int
    """Its last event; now while it is live."""
    spans: tuple[StorySpan, ...] = ()
    ttft_parts: Parts = ()
    """The parts add up to TTFT."""
    steps: tuple[StoryStep, ...] = ()
    """The latest steps if there are too many; the numbers below are of all."""
    steps_total: int = 0
    token_ns: tuple[int, ...] = ()
    """End of each step that gave it tokens."""
    gap_p50_ns: int | None = None
    gap_p99_ns: int | None = None
    spikes: tuple[Spike, ...] = ()
    companions: tuple[Companion, ...] = ()
    """Most tokens first."""
    kv_blocks: tuple[tuple[int, int], ...] = ()
    """Times, with the number of blocks held from then on; by the tokens computed so
    far.
    """
    kv_peak_blocks: int | None = None
    cached_tokens: int | None = None
    drafted_tokens: int | None = None
    """Speculative tokens drafted for it; None without speculative decoding."""
    accepted_tokens: int | None = None
    client: Parts = ()
    """Parts that a client of ours adds to the server's TTFT."""
    gpu: tuple[tuple[int, float | None, float | None, float | None], ...] = ()
    """Means over the engine's GPUs during the request.

    Time, share of HBM bandwidth, SM active, SM clock in MHz.
    """
    missing: tuple[str, ...] = field(default=())
    """What is not known and why, one sentence each."""

    @property
    def answer_after_s(self) -> float | None:
        """Arrival to the first token of a reasoning model's answer; None if unknown.

        Where steps gave several tokens, it is not known which gave that one.
        """
        thinking, times = self.row.thinking_tokens, self.token_ns
        if thinking is None or len(times) != self.row.output_tokens:
            return None
        if thinking >= len(times):
            return None
        return (times[thinking] - self.row.arrived_ns) / NS_PER_S
