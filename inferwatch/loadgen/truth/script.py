"""Scripts of the truth server's responses, selected by the model's name.

``ttft=0.05,itl=0.02,variant=crlf``: token k is due at ``start + ttft + k * itl``, and
the variant names a peculiarity of the stream. ``freeze=0.8,every=2`` sends nothing in
the first 0.8 s of every 2 s; ``slots=4`` queues requests beyond four.
"""

import json
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from collectors.contract.clock import NS_PER_S

NEVER_NS = 1 << 62
FLOOD_TOKENS = 64
"""Tokens per send, for the variant that measures the client's limit."""
DEFAULT_MODEL = "ttft=0.05,itl=0.02"
TEXT = "\u00e9 "
"""Two bytes and a space per token, so that packets can split a character."""
BREAKS = {"broken", "error_event", "named_error", "junk", "unfinished"}
"""Variants that fail after half of the tokens."""
_BEGIN = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_LAST_CHUNK = b"0\r\n\r\n"


@dataclass
class TruthResponse:
    """A request and what was sent in response, as seen by the server."""

    request_id: str
    arrived_ns: int
    """When the kernel received its first bytes: later delays are part of our TTFT."""
    received_ns: int
    """When all of it was read."""
    prompt: Any
    max_tokens: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)
    chat: bool = False
    started_ns: int = 0
    """When a slot was free; at once without a limit."""
    sent_ns: list[int] = field(default_factory=list)
    finished: bool = False
    cut_off: bool = False
    """The client disconnected before the end."""
    cut_off_ns: int | None = None
    """When that was noticed."""

    def told(self) -> dict[str, Any]:
        """The response as plain data."""
        return asdict(self)


class ScheduledBytes(NamedTuple):
    """Part of a response: its bytes, when they are due, and the tokens in them."""

    due_ns: int
    data: bytes
    tokens: int = 0


class ResponseOptions(NamedTuple):
    """Options of a response, from the model's name."""

    ttft_ns: int
    itl_ns: int
    variant: str
    freeze_ns: int
    every_ns: int
    slots: int

    def thaw(self, t_ns: int) -> int:
        """The same time, or the end of the freeze if it is within one."""
        if not self.every_ns:
            return t_ns
        into_ns = t_ns % self.every_ns
        return t_ns if into_ns >= self.freeze_ns else t_ns - into_ns + self.freeze_ns


@lru_cache
def options_of(model: str) -> ResponseOptions:
    """The options in a model's name; anything else in it is ignored."""
    options = dict(part.split("=", 1) for part in model.split(",") if "=" in part)

    def ns(name: str, default: float) -> int:
        return int(float(options.get(name, default)) * NS_PER_S)

    return ResponseOptions(
        ttft_ns=ns("ttft", 0.01),
        itl_ns=ns("itl", 0.002),
        variant=options.get("variant", "plain"),
        freeze_ns=ns("freeze", 0),
        every_ns=ns("every", 0),
        slots=int(options.get("slots", 0)),
    )


def whole(status: str, body: bytes, *headers: str) -> bytes:
    """A complete HTTP response as bytes."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "Error"}}).encode()


REFUSALS = {
    "http_429": whole("429 Too Many", _error("slow down"), "Retry-After: 1"),
    "http_404": whole("404 Not Found", _error("no such model")),
    "http_500": whole("500 Oops", _error("engine dead")),
    "redirect": whole("302 Found", b"", "Location: /v1/completions"),
    "silent": b"",
    "hangup": b"",
}


class ResponseScript:
    """The parts of one response; ``keep``: the connection stays open."""

    def __init__(self, answer: TruthResponse, options: ResponseOptions) -> None:
        self._answer = answer
        self._options = options
        self._variant = options.variant
        self._end = b"\r\n\r\n" if self._variant == "crlf" else b"\n\n"
        self._bundle = 4 if self._variant == "bundle" else 1
        self.keep = self._variant not in {"hangup", "broken"}

    def parts(self) -> Iterator[ScheduledBytes]:
        """Everything to send, in order."""
        if self._variant in REFUSALS:
            yield ScheduledBytes(0, REFUSALS[self._variant])
            if self._variant == "silent":
                yield ScheduledBytes(NEVER_NS, b"")
            return
        yield ScheduledBytes(0, _BEGIN)
        if self._variant == "early_role":
            yield from self._event(_role())
        if self._variant == "empty" or (yield from self._tokens()):
            yield from self._done()

    def _tokens(self) -> Generator[ScheduledBytes, None, bool]:
        """All tokens, or half and a failure; True if the stream may end properly."""
        count = self._answer.max_tokens
        if self._variant == "flood":
            yield from self._flood(count)
            count = 0
        for first in range(0, count, self._bundle):
            if first == count // 2 and self._variant in BREAKS:
                yield from self._break()
                return False
            yield from self._token(first)
        yield from self._usage()
        return True

    def _flood(self, count: int) -> Iterator[ScheduledBytes]:
        """Yield tokens as fast as possible: many chunks per send, cached for reuse."""
        for first in range(0, count, FLOOD_TOKENS):
            tokens = min(FLOOD_TOKENS, count - first)
            data = _flood(tokens, last=first + tokens == count, chat=self._answer.chat)
            yield ScheduledBytes(0, data, tokens)

    def _token(self, first: int) -> Iterator[ScheduledBytes]:
        if self._variant == "keepalive":
            yield from self._raw(b": still here\n\n")
        count = min(self._bundle, self._answer.max_tokens - first)
        last = first + count == self._answer.max_tokens
        bare = last and self._variant == "bare_last"
        text, finish = "" if bare else TEXT * count, "length" if last else None
        event = self._encode(_choice(text, finish, chat=self._answer.chat))
        options = self._options
        due_ns = self._answer.started_ns + options.ttft_ns + first * options.itl_ns
        yield from self._raw(event, options.thaw(due_ns), tokens=1)

    def _break(self) -> Iterator[ScheduledBytes]:
        if self._variant == "error_event":
            error = {"error": {"message": "engine is gone", "code": 500}}
            yield from self._event(json.dumps(error).encode())
        elif self._variant == "named_error":
            yield from self._raw(b"event: error\ndata: engine is gone\n\n")
        elif self._variant == "junk":
            yield from self._raw(b"data: {this is not json\n\n")
        if self._variant != "broken":
            yield ScheduledBytes(0, _LAST_CHUNK)

    def _usage(self) -> Iterator[ScheduledBytes]:
        if self._variant == "extra_finish":
            yield from self._event(_choice("", "stop", chat=self._answer.chat))
        if self._variant in {"no_usage", "no_done_no_usage"}:
            return
        usage = {
            "prompt_tokens": len(self._answer.prompt),
            "completion_tokens": self._answer.max_tokens,
        }
        yield from self._event(_data(chat=self._answer.chat, choices=[], usage=usage))

    def _done(self) -> Iterator[ScheduledBytes]:
        if not self._variant.startswith("no_done"):
            yield from self._raw(b"data: [DONE]" + self._end)
        self._answer.finished = True
        yield ScheduledBytes(0, _LAST_CHUNK)

    def _event(self, event: bytes) -> Iterator[ScheduledBytes]:
        yield from self._raw(self._encode(event))

    def _encode(self, event: bytes) -> bytes:
        space = b"" if self._variant == "no_space" else b" "
        return b"data:" + space + event + self._end

    def _raw(
        self, data: bytes, due_ns: int = 0, *, tokens: int = 0
    ) -> Iterator[ScheduledBytes]:
        """Yield data as one HTTP chunk, or as one per byte in the bytewise variant."""
        step = 1 if self._variant == "bytewise" else len(data)
        for start in range(0, len(data), step):
            chunk = _chunk(data[start : start + step])
            yield ScheduledBytes(due_ns, chunk, 0 if start else tokens)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@lru_cache
def _flood(tokens: int, *, last: bool, chat: bool) -> bytes:
    end = _choice(TEXT, "length" if last else None, chat=chat)
    events = [_choice(TEXT, None, chat=chat)] * (tokens - 1) + [end]
    return b"".join(_chunk(b"data: " + event + b"\n\n") for event in events)


@lru_cache
def _choice(text: str, finish: str | None, *, chat: bool) -> bytes:
    content = {"delta": {"content": text}} if chat else {"text": text}
    choice = {"index": 0, **content, "finish_reason": finish}
    return _data(chat=chat, choices=[choice])


@lru_cache
def _role() -> bytes:
    delta = {"role": "assistant", "content": ""}
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return _data(chat=True, choices=[choice])


def _data(*, chat: bool, **fields: object) -> bytes:
    """An event's JSON; some clients check the name of its object."""
    name = "chat.completion.chunk" if chat else "text_completion"
    return json.dumps({"object": name, **fields}).encode()
