"""What the load generator reports: the client's vantage."""

from typing import ClassVar

from collectors.readings.base import Reading
from collectors.readings.kinds import LoadKind, Phase


class LoadPlanned(Reading, frozen=True, kw_only=True):
    """What the load run that follows was asked to do."""

    t_ns: int
    plan: str
    """As JSON, without what may be secret."""


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
