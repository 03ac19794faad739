"""A request in progress: its intended time, its outcome, and the readings it yields.

A server that refuses sends a status and an error message instead of a response.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from itertools import pairwise

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import Phase, RequestRecord, TokenTimes
from inferwatch.loadgen.exchange.reply import (
    KEPT_BYTES,
    NotAnEventError,
    Reply,
    error_message,
    shown,
)
from inferwatch.loadgen.exchange.sse import SseError
from inferwatch.loadgen.prompts.prompts import Prompt

LATE_NS = 10_000_000
"""Sends later than this after their intended time count as late."""

LONGEST_MS = 1e9
"""Eleven days: longer times reported by a server are invalid."""


class Failure(StrEnum):
    """The kinds of failure of a request."""

    REFUSED = "refused"
    TIMEOUT = "timeout"
    HTTP_3XX = "http_3xx"
    HTTP_4XX = "http_4xx"
    HTTP_5XX = "http_5xx"
    BROKEN_STREAM = "broken_stream"
    EMPTY = "empty"
    SERVER_ERROR_EVENT = "server_error_event"
    ABORTED = "aborted"
    HUNG_UP = "hung_up"
    """By us, in the middle of the response, as planned."""


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """A request from its intended time to its end."""

    index: int
    external_id: str
    phase: Phase
    intended_ns: int
    prompt: Prompt
    sent_ns: int | None = None
    end_ns: int | None = None
    reply: Reply = field(default_factory=Reply)
    failure: Failure | None = None
    detail: str | None = None
    answered: bool = False
    """The stream ended properly; whether it was a response is decided by
    :meth:`judge`."""

    @property
    def late(self) -> bool:
        return self.lag_ns > LATE_NS

    @property
    def lag_ns(self) -> int:
        """Nanoseconds from the intended time to the send; 0 for a call never sent."""
        return 0 if self.sent_ns is None else self.sent_ns - self.intended_ns

    def fail(self, failure: Failure, detail: str = "") -> None:
        """Record a failure; the first one stays.

        An error reported in the stream precedes a disconnection that follows it.
        """
        if self.failure is not None:
            return
        fault = self.reply.error
        if fault is not None and failure not in {Failure.ABORTED, Failure.HUNG_UP}:
            failure, detail = Failure.SERVER_ERROR_EVENT, fault
        self.failure = failure
        self.detail = detail or None

    def cut(self, failure: Failure, detail: str = "") -> None:
        """End the call early: a failure, unless ``[DONE]`` had arrived already."""
        if self.failure is None and self.reply.done_ns is not None:
            self.answered = True
        else:
            self.fail(failure, detail)

    @property
    def heard_enough(self) -> bool:
        """Whether the client should hang up now, after the planned number of chunks.

        Checked only for requests that are to hang up, since it decodes the stream.
        """
        after = self.prompt.hang_up_after
        return after is not None and len(self.reply.stamps_ns) >= after

    def hang_up(self) -> None:
        """Record that the client hung up, unless the response was complete before."""
        self.cut(Failure.HUNG_UP, f"after {self.prompt.hang_up_after} chunks")
        if self.failure is Failure.HUNG_UP:
            self.end_ns = monotonic_ns()  # before anybody can see it

    def judge(self) -> None:
        """Decode the ended stream, and decide whether it was a complete response.

        Deferred until needed, because other requests may be due when a stream ends.
        """
        if not self.answered:
            return
        self.answered = False
        try:
            self.reply.end()
        except (SseError, NotAnEventError) as error:
            self.fail(Failure.BROKEN_STREAM, str(error))
        if self.reply.error is not None:
            self.fail(Failure.SERVER_ERROR_EVENT, self.reply.error)
        elif not self.reply.stamps_ns:
            self.fail(Failure.EMPTY, "the stream ended without a token")
        elif not self.reply.complete:
            self.fail(Failure.BROKEN_STREAM, "the stream ended without a finish")

    def record(self) -> RequestRecord:
        self.judge()
        stamps, times = self.reply.stamps_ns, self.reply.times
        return RequestRecord(
            index=self.index,
            external_id=self.external_id,
            phase=self.phase,
            intended_ns=self.intended_ns,
            sent_ns=self.sent_ns,
            first_token_ns=stamps[0] if stamps else None,
            last_token_ns=stamps[-1] if stamps else None,
            end_ns=self.end_ns,
            prompt_tokens=self.reply.prompt_tokens or self.prompt.tokens,
            output_tokens=self.reply.output_tokens,
            failure=self.failure,
            detail=self.detail,
            class_name=self.prompt.class_name,
            turn=self.prompt.turn,
            first_content_ns=self.reply.first_content_ns,
            first_chunk_tokens=self.reply.first_chunk_tokens,
            server_queue_ns=_ns(times.queue_time_ms),
            server_prefill_ns=_ns(times.time_to_first_token_ms),
            server_decode_ns=_ns(times.generation_time_ms),
        )

    def token_times(self) -> TokenTimes | None:
        """Arrival times of the response's chunks; None if none arrived."""
        self.judge()
        stamps = self.reply.stamps_ns
        if not stamps:
            return None
        gaps_ns = [later - earlier for earlier, later in pairwise(stamps)]
        return TokenTimes(
            external_id=self.external_id,
            first_ns=stamps[0],
            gaps_ns=gaps_ns,
            by_kernel=self.reply.by_kernel,
        )


def _ns(ms: float | None) -> int | None:
    """Milliseconds as ns; None for invalid values."""
    return round(ms * 1e6) if ms is not None and 0 <= ms <= LONGEST_MS else None


class ErrorResponse:
    """A server's refusal: its status and error message.

    Only as much of the body is read as can hold the message.
    """

    def __init__(self) -> None:
        self._beginning = b""

    @property
    def complete(self) -> bool:
        """Whether enough of the body was read to find the error message."""
        return len(self._beginning) >= KEPT_BYTES

    def read(self, data: bytes) -> None:
        """Take a piece of the response's body."""
        self._beginning += data[: KEPT_BYTES - len(self._beginning)]

    def tell(self, call: Call, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Fail the call with the status and the server's message."""
        parts = [str(status), error_message(self._beginning) or _phrase(status)]
        for name in (b"location", b"retry-after"):
            if name in headers:
                value = shown(headers[name].decode("latin-1").partition("?")[0])
                parts.append(f"({name.decode()}: {value})")
        kind = f"http_{status // 100}xx" if 300 <= status < 600 else "broken_stream"
        call.fail(Failure(kind), " ".join(part for part in parts if part))


def _phrase(status: int) -> str:
    """The standard phrase of a status, instead of the server's own."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


class UnreachableError(Exception):
    """There is no address to send to; the message can be shown to users."""
