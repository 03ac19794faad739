"""One request as screens show it."""

from dataclasses import dataclass
from enum import StrEnum

from inferwatch.metrics.causes.cause import Cause, Parts
from inferwatch.metrics.requests.request_names import request_name, sent_id


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
