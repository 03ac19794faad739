"""One request told from its readings: each phase, chunk, step and token of it."""

from dataclasses import dataclass, field
from enum import StrEnum

from collectors.contract.readings import BoundBy
from inferwatch.metrics.causes.cause import Cause, Parts
from inferwatch.metrics.requests.request_row import RequestRow


class SpanKind(StrEnum):
    """What a request was in, for a while."""

    NETWORK = "network"
    """From the client's send to the front end's arrival; there where it is ours."""
    TOKENISE = "tokenise"
    HANDOVER = "handover"
    """From the API server to the engine's queue."""
    QUEUE = "queue"
    TRANSFER = "KV transfer"
    CHUNK = "prefill"
    """One step that computed a part of its prompt."""
    LEFT_OUT = "left out"
    """Between two chunks, in no step."""
    PREEMPTED = "preempted"
    """Back in the queue."""
    RECOMPUTE = "recompute"
    """A step that computed again what was lost."""
    DECODE = "decode"
    """From token to token, up to the last or the next preemption."""
    SEND = "send"
    """From the engine's last token to the front end's end; of a live one, not yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorySpan:
    """A stretch of a request's time; they follow one another without overlap."""

    kind: SpanKind
    start_ns: int
    end_ns: int
    cause: Cause | None = None
    """Why it was there: of a queue, a stretch for each reason."""
    tokens: int | None = None
    """Scheduled for it; of a decode, those that came out."""
    step: int | None = None
    """Index of the step that a chunk is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryStep:
    """A step that the request was in."""

    index: int
    start_ns: int
    end_ns: int
    duration_ns: int
    scheduled: int
    """Its own tokens; likewise the next."""
    produced: int
    requests: int
    """Requests that were in the step."""
    tokens: int
    """Tokens of all of them together."""
    prefill_tokens: int
    bound_by: BoundBy
    running: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A token that came late."""

    t_ns: int
    """When it came."""
    gap_ns: int
    cause: Cause
    evidence: str
    """One sentence: whose prefill of how many tokens, how long no step ran."""
    step: int
    """Index of the step it came out of."""
    blamed: str | None = None
    """Key of the request it waited for, where it was one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """Another request that was prefilled in steps of this one."""

    key: str
    name: str
    """The id that clients know, else the engine's."""
    prefill_tokens: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStory:
    """Everything about one request, as of a moment.

    Times are session time. What the readings at hand do not tell is left out and
    ``missing`` says why.
    """

    row: RequestRow
    end_ns: int
    """Of its last event, or the moment it is told of while it lives."""
    spans: tuple[StorySpan, ...] = ()
    ttft_parts: Parts = ()
    """They add up to the TTFT."""
    steps: tuple[StoryStep, ...] = ()
    """The latest of them, where there are too many; all count below."""
    steps_total: int = 0
    token_ns: tuple[int, ...] = ()
    """When tokens came out of the engine: the end of each step with some."""
    gap_p50_ns: int | None = None
    gap_p99_ns: int | None = None
    spikes: tuple[Spike, ...] = ()
    companions: tuple[Companion, ...] = ()
    """Most tokens first."""
    kv_blocks: tuple[tuple[int, int], ...] = ()
    """From when on it held how many: by the tokens computed so far."""
    kv_peak_blocks: int | None = None
    cached_tokens: int | None = None
    drafted_tokens: int | None = None
    """Speculated for it; None where nothing is."""
    accepted_tokens: int | None = None
    client: Parts = ()
    """Where the client is ours: what its TTFT has beyond the server's, before and
    behind it, by CLIENT_CAUSES."""
    gpu: tuple[tuple[int, float | None, float | None, float | None], ...] = ()
    """Samples in its time: moment, share of HBM bandwidth, SM active, SM clock in MHz;
    mean of the engine's GPUs."""
    missing: tuple[str, ...] = field(default=())
    """What is not known and why, a sentence each."""
