"""What a streamed answer has told so far; bytes and their stamp go in.

Events are cut and JSON is decoded when somebody asks or much has come: a stamp must not
wait for the decoding of what came with it.
"""

import json
import re
from typing import Annotated

import msgspec

from inferwatch.loadgen.exchange.sse import SseError, SseEvent, SseReader

# What may be kept of a server's error: its own message, and nothing else it sent.
#
# The rest of a body can hold parts of answers and prompts.

DETAIL_CHARS = 200
KEPT_BYTES = 16 << 10
"""Of a body that is no answer: a message that begins later is not found."""
_MESSAGE = re.compile(rb'"(?:message|detail)"\s*:\s*("(?:[^"\\]|\\.)*)')
"""Where the JSON around it was cut off."""


def error_message(body: bytes) -> str | None:
    r"""The message in a JSON error, fit to show; None where there is none.

    >>> error_message(b'{"error": {"message": "There is no \\u001bmodel."}}')
    'There is no \\x1bmodel.'
    >>> error_message(b'{"detail": [{"msg": "Field required", "input": "Hello"}]}')
    'Field required'
    >>> error_message(b'{"error": {"message": "cut o')
    'cut o'
    >>> error_message(b"Hello, world") is None
    True
    """
    try:
        told = msgspec.json.decode(body)
        found = _message(told) if isinstance(told, dict) else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = _of_a_piece(body)
    return shown(found or "") or None


def shown(text: str) -> str:
    """The text in one line, cut, with what a terminal would obey made visible."""
    line = " ".join(text.split())
    cut = line if len(line) <= DETAIL_CHARS else f"{line[: DETAIL_CHARS - 1]}…"
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in cut
    )


def _message(told: object) -> str | None:
    """The message in an error of OpenAI, vLLM, Ollama, TGI or FastAPI."""
    if isinstance(told, str):
        return told
    if isinstance(told, list):
        parts = (_message(each) for each in told)
        return "; ".join(part for part in parts if part) or None
    if not isinstance(told, dict):
        return None
    for name in ("error", "message", "detail", "msg"):
        if found := _message(told.get(name)):
            return found
    return None


def _of_a_piece(body: bytes) -> str | None:
    found = _MESSAGE.search(body[:KEPT_BYTES])
    if found is None:
        return None
    text = found[1].decode("utf-8", "replace")
    try:
        return str(json.loads(f'{text}"', strict=False))
    except ValueError:
        return text[1:]


DONE = b"[DONE]"
SHORTEST_DONE = len(b"data:" + DONE + b"\n\n")
FIELDS = {b"", b"data", b"event", b"id", b"retry"}
NO_MESSAGE = "an error without a message"
UNREAD_BYTES = 32 << 10
"""Decoding this takes half a millisecond, and no more is kept undecoded."""
SHORT_BYTES = 1 << 10
MOST_ANSWER_BYTES = 128 << 20
"""Some 400,000 chunks: a server that sends more has lost count, or means harm."""


MOST_TOKENS = 1 << 31
"""A count or an id beyond is nonsense; sums of these still fit where we keep them."""
Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class Delta(msgspec.Struct, gc=False):
    """What a chat's chunk adds to its message; reasoning counts as tokens, too."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[object] | None = None

    @property
    def thought(self) -> bool:
        """Whether it brings reasoning."""
        return bool(self.reasoning or self.reasoning_content)

    @property
    def said(self) -> bool:
        """Whether it brings tokens."""
        return bool(self.content or self.tool_calls) or self.thought


class Choice(msgspec.Struct, gc=False):
    """One choice of a chunk: the part of one answer that it brings."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    token_ids: list[Tokens] | None = None
    """Where they were asked for (``return_token_ids``) and the server knows how."""

    @property
    def opens(self) -> bool:
        """Whether it is a chat's first chunk, which has a role and no token."""
        delta = self.delta
        return delta is not None and delta.role is not None and not delta.said

    @property
    def said(self) -> bool:
        """Whether it brings tokens."""
        return bool(self.text) or (self.delta is not None and self.delta.said)

    @property
    def words(self) -> str:
        """The text of the answer itself, without its reasoning."""
        return self.text or (self.delta.content if self.delta else None) or ""


class Usage(msgspec.Struct, gc=False):
    """Token counts of a request, so far or in all."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None


class ServerTimes(msgspec.Struct, gc=False):
    """vLLM's per-request metrics, as the engine's own clock measured them."""

    queue_time_ms: float | None = None
    """Queued in the engine to scheduled."""
    time_to_first_token_ms: float | None = None
    """Scheduled to first token: what we call prefill."""
    generation_time_ms: float | None = None
    """First token to last: what we call decode."""


NO_ERROR = msgspec.Raw(b"null")


class Chunk(msgspec.Struct, gc=False):
    """One event of a completion's or a chat's stream, as far as we read it."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw = NO_ERROR
    metrics: ServerTimes | None = None

    @property
    def failed(self) -> bool:
        """Whether it reports an error; some servers send an empty one each time."""
        return bytes(self.error) not in {b"null", b"false", b'""', b"{}"}


chunks = msgspec.json.Decoder(Chunk)


class NotAnEventError(ValueError):
    """The server sent an event that is no completion."""


class Reply:
    """Reads one answer. A stamp is kept for each chunk that brought tokens.

    What a chunk says decides: one without text, reasoning or the call of a tool may
    hold half a character or an end-of-sequence token, but just as well nothing. It
    is stamped where the server's own count says so, and is the first token only of
    an answer that never says anything.
    """

    def __init__(self, *, keep_words: bool = False) -> None:
        self.by_kernel = True
        """The kernel stamped all that came; whoever reads the socket knows."""
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.complete = False
        """The server said it is done: a finish reason, usage or ``[DONE]``."""
        self.merged_reads = 0
        """Reads that brought several chunks with tokens under one stamp."""
        self.first_content_ns: int | None = None
        """Of an answer that began with reasoning: when it came to what it answers."""
        self.first_chunk_tokens: int | None = None
        """Those that had come with its stamp, where the server's count tells."""
        self.content_type = ""
        """Of the body, as the server says."""
        self.times = ServerTimes()
        """As the server measured them, where it says so."""
        self.words: list[str] | None = [] if keep_words else None
        """What it said, piece by piece, for whoever has to repeat it."""
        self.ids: list[int] | None = [] if keep_words else None
        """The same as token ids; None where the server gives none."""
        self._looks = True
        """There may be more to know of a choice than that it brought tokens."""
        self._reasoned = self._answers = False
        self._error: str | None = None
        self._sse = SseReader()
        self._unread: list[tuple[bytes, int]] = []
        self._unread_bytes = self._read_bytes = 0
        self._looked_at = 0
        """Of what is unread, so many pieces."""
        self._stamps_ns: list[int] = []
        self._leading_ns: list[int] = []
        """Of chunks without content before the first that has some."""
        self._blank_ns: list[int] = []
        """Of such chunks after it, where only the count at the end can tell."""
        self._done_ns: int | None = None
        self._beginning: bytes | None = b""
        """Of a body that has not brought an event yet."""
        self._fault: ValueError | None = None

    def read(self, data: bytes, at_ns: int) -> None:
        """Take bytes that arrived at a moment.

        Raises:
            SseError, NotAnEventError: what came makes no sense.
        """
        self._unread.append((data, at_ns))
        self._unread_bytes += len(data)
        if self._unread_bytes > UNREAD_BYTES:
            self._decode_all()
            if self._read_bytes > MOST_ANSWER_BYTES:
                raise SseError(f"an answer of more than {MOST_ANSWER_BYTES} bytes")
            self._raise_fault()

    @property
    def short(self) -> bool:
        """Whether too little is left to decode to be worth a delay."""
        return self._unread_bytes < SHORT_BYTES

    @property
    def stamps_ns(self) -> list[int]:
        """The stamp of each chunk that brought tokens."""
        self._decode_all()
        return self._stamps_ns

    @property
    def error(self) -> str | None:
        """The error that the server reported inside the stream."""
        self._decode_all()
        return self._error

    @property
    def done_ns(self) -> int | None:
        """When the server said ``[DONE]``: the answer ended then, whatever follows."""
        self._decode_all()
        return self._done_ns

    def looks_done(self) -> bool:
        """Whether what came since the last look may end it; :attr:`done_ns` knows."""
        fresh, self._looked_at = self._unread[self._looked_at :], len(self._unread)
        return self._done_ns is not None or any(
            len(data) < SHORTEST_DONE or data.find(DONE) >= 0 for data, _ in fresh
        )

    def end(self) -> None:
        """The stream ended in good order.

        Raises:
            SseError, NotAnEventError: what came makes no sense.
        """
        self._decode_all()
        if self._beginning:
            self._take_whole(self._beginning)
        self._raise_fault()
        self._stamp_blanks(self.output_tokens or 0)

    def _stamp_blanks(self, tokens: int) -> None:
        """Stamp as many of the chunks without content as the count asks for.

        More than there are chunks: some hold several, and nothing is told of these.
        """
        if not self._stamps_ns:
            self._stamps_ns = self._leading_ns[-tokens:] if tokens else []
            return
        silent = len(self._leading_ns) + len(self._blank_ns)
        left = tokens - len(self._stamps_ns)
        if not 0 < left <= silent:
            return
        if left == silent and self._leading_ns and self.first_chunk_tokens is None:
            self.first_chunk_tokens = len(self._leading_ns) + 1
        self._stamps_ns = sorted(self._stamps_ns + self._blank_ns[:left])

    def _take_whole(self, body: bytes) -> None:
        """Take a body without events: its last event may lack its end, or an error."""
        try:
            for event in self._sse.feed(b"\n\n"):
                self._take(event, 0)
        except SseError as fault:
            self._fault = self._fault or fault
        if self._beginning is None or _is_stream(body):
            return
        self._error = error_message(body)
        kind = shown(self.content_type) or "unknown type"
        self._fault = NotAnEventError(f"not a stream of events but a body of {kind}")

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _decode_all(self) -> None:
        """Decode what waits, up to the first thing that makes no sense."""
        self._read_bytes += self._unread_bytes
        unread, self._unread, self._unread_bytes = self._unread, [], 0
        self._looked_at = 0
        try:
            for data, at_ns in unread:
                if self._fault is not None or self._done_ns is not None:
                    return
                before = len(self._stamps_ns)
                if self._beginning is not None:
                    self._beginning += data[: KEPT_BYTES - len(self._beginning)]
                for event in self._sse.feed(data):
                    self._take(event, at_ns)
                self.merged_reads += len(self._stamps_ns) > before + 1
        except (SseError, NotAnEventError) as fault:
            self._fault = fault

    def _take(self, event: SseEvent, at_ns: int) -> None:
        self._beginning = None
        if self._done_ns is not None:
            return
        if event.data == DONE:
            self.complete = True
            self._done_ns = at_ns
        elif event.name == b"error":
            told = error_message(event.data)
            self._error = told or shown(event.data.decode("utf-8", "replace"))
        else:
            self._take_chunk(_decode(event.data), event.data, at_ns)

    def _take_chunk(self, chunk: Chunk, data: bytes, at_ns: int) -> None:
        brought = None
        if chunk.error is not NO_ERROR and chunk.failed:
            self._error = error_message(data) or NO_MESSAGE
        elif not chunk.choices and chunk.usage is None:
            self._error = error_message(data) or self._error
        if chunk.usage is not None:
            brought = self._brought(chunk.usage)
            self._take_usage(chunk, chunk.usage)
        for choice in chunk.choices:
            self._take_choice(choice, at_ns, brought)
            if self._looks:
                self._look(choice, at_ns)

    def _brought(self, usage: Usage) -> int | None:
        """How many tokens this chunk brought, where each chunk counts those so far."""
        if self.output_tokens is None:
            return None
        return (usage.completion_tokens or 0) - self.output_tokens

    def _take_usage(self, chunk: Chunk, usage: Usage) -> None:
        """Take the counts of the whole answer, else of what came so far."""
        self.complete |= not chunk.choices
        self.prompt_tokens = usage.prompt_tokens
        self.output_tokens = usage.completion_tokens
        self.times = chunk.metrics or self.times
        if chunk.choices and not self._stamps_ns:
            self.first_chunk_tokens = usage.completion_tokens or None

    def _take_choice(self, choice: Choice, at_ns: int, brought: int | None) -> None:
        ends = choice.finish_reason is not None
        self.complete |= ends
        if choice.said or (self._stamps_ns and (brought or 0) > 0):
            self._stamps_ns.append(at_ns)
        elif choice.opens and not ends:
            return
        elif not self._stamps_ns:
            self._leading_ns.append(at_ns)
        elif brought is None:
            self._blank_ns.append(at_ns)

    def _look(self, choice: Choice, at_ns: int) -> None:
        """Note when the answer itself began, and what it said where that is kept."""
        if choice.delta is not None and choice.delta.thought:
            self._reasoned = True
        elif choice.said and not self._answers:
            self._answers = True
            self.first_content_ns = at_ns if self._reasoned else None
        if self.words is None:
            self._looks = not self._answers
        else:
            self._keep(choice, self.words)

    def _keep(self, choice: Choice, words: list[str]) -> None:
        """Keep what it said."""
        words.append(choice.words)
        if self.ids is not None and choice.token_ids is not None:
            self.ids += choice.token_ids
        elif choice.said:
            self.ids = None  # with a gap they are worth nothing


def _decode(data: bytes) -> Chunk:
    try:
        return chunks.decode(data)
    except UnicodeDecodeError as error:
        raise NotAnEventError("not a completion: not UTF-8") from error
    except RecursionError as error:
        raise NotAnEventError("not a completion: nested too deep") from error
    except msgspec.MsgspecError as error:
        raise NotAnEventError(f"not a completion: {shown(str(error))}") from error


def _is_stream(body: bytes) -> bool:
    """Whether the first line is one of events or their comments."""
    field, colon, _ = body.lstrip().partition(b"\n")[0].partition(b":")
    return field in FIELDS if colon else not body.strip()
