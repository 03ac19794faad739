"""Parses a streamed response from timestamped bytes.

Events and JSON are decoded on demand or when much is pending: timestamping must not
wait for the decoding of earlier bytes.
"""

import json
import re
from typing import Annotated

import msgspec

from inferwatch.loadgen.exchange.sse import SseError, SseEvent, SseReader

# Extracts the message from a server's error, and nothing else.
#
# The rest of a body may contain parts of prompts and responses.

DETAIL_CHARS = 200
KEPT_BYTES = 16 << 10
"""Bytes kept of an error body: a message that starts later is not found."""
_MESSAGE = re.compile(rb'"(?:message|detail)"\s*:\s*("(?:[^"\\]|\\.)*)')
"""Finds a message in truncated JSON."""


def error_message(body: bytes) -> str | None:
    r"""Extract the message of a JSON error for display; None without one.

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
        document = msgspec.json.decode(body)
        message = _message(document) if isinstance(document, dict) else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        message = _of_a_piece(body)
    return shown(message or "") or None


def shown(text: str) -> str:
    """The text as one line of limited length, with control characters escaped."""
    line = " ".join(text.split())
    cut = line if len(line) <= DETAIL_CHARS else f"{line[: DETAIL_CHARS - 1]}…"
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in cut
    )


def _message(document: object) -> str | None:
    """The message in an error of OpenAI, vLLM, Ollama, TGI or FastAPI."""
    if isinstance(document, str):
        return document
    if isinstance(document, list):
        parts = (_message(each) for each in document)
        return "; ".join(part for part in parts if part) or None
    if not isinstance(document, dict):
        return None
    for name in ("error", "message", "detail", "msg"):
        if message := _message(document.get(name)):
            return message
    return None


def _of_a_piece(body: bytes) -> str | None:
    match = _MESSAGE.search(body[:KEPT_BYTES])
    if match is None:
        return None
    text = match[1].decode("utf-8", "replace")
    try:
        return str(json.loads(f'{text}"', strict=False))
    except ValueError:
        return text[1:]


DONE = b"[DONE]"
SHORTEST_DONE = len(b"data:" + DONE + b"\n\n")
FIELDS = {b"", b"data", b"event", b"id", b"retry"}
NO_MESSAGE = "an error without a message"
UNREAD_BYTES = 32 << 10
"""Most bytes left undecoded; decoding them takes half a millisecond."""
SHORT_BYTES = 1 << 10
MOST_ANSWER_BYTES = 128 << 20
"""About 400,000 chunks: a server that sends more is broken or malicious."""


MOST_TOKENS = 1 << 31
"""Larger counts and ids are invalid; sums of these still fit where they are stored."""
Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class Delta(msgspec.Struct, gc=False):
    """What a chunk adds to a chat message; reasoning counts as tokens, too."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[object] | None = None

    @property
    def thought(self) -> bool:
        """Whether the delta contains reasoning."""
        return bool(self.reasoning or self.reasoning_content)

    @property
    def said(self) -> bool:
        """Whether the delta contains tokens, be it text, tool calls or reasoning."""
        return bool(self.content or self.tool_calls) or self.thought


class Choice(msgspec.Struct, gc=False):
    """A choice of a chunk."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    token_ids: list[Tokens] | None = None
    """Returned if requested (``return_token_ids``) and supported."""

    @property
    def opens(self) -> bool:
        """Whether this is a chat's first chunk, which has a role and no token."""
        delta = self.delta
        return delta is not None and delta.role is not None and not delta.said

    @property
    def said(self) -> bool:
        """Whether the choice contains tokens."""
        return bool(self.text) or (self.delta is not None and self.delta.said)

    @property
    def words(self) -> str:
        """The choice's text, without its reasoning."""
        return self.text or (self.delta.content if self.delta else None) or ""


class Usage(msgspec.Struct, gc=False):
    """Token counts of a request, so far or final."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None


class ServerTimes(msgspec.Struct, gc=False):
    """vLLM's per-request metrics, measured by the engine's clock."""

    queue_time_ms: float | None = None
    """Queued in the engine to scheduled."""
    time_to_first_token_ms: float | None = None
    """Scheduled to first token: what we call prefill."""
    generation_time_ms: float | None = None
    """First token to last: what we call decode."""


NO_ERROR = msgspec.Raw(b"null")


class Chunk(msgspec.Struct, gc=False):
    """One event of a completion or chat stream; other fields are ignored."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw = NO_ERROR
    metrics: ServerTimes | None = None

    @property
    def failed(self) -> bool:
        """Whether the chunk reports an error; some servers always send an empty one."""
        return bytes(self.error) not in {b"null", b"false", b'""', b"{}"}


chunks = msgspec.json.Decoder(Chunk)


class NotAnEventError(ValueError):
    """The server sent an event that is not a completion."""


class Reply:
    """Parses one response and keeps a timestamp for each chunk with tokens.

    A chunk without text, reasoning or tool call may hold half a character or an
    end-of-sequence token, or nothing at all. It is stamped only if the server's token
    count says so, and is the first token only of a response that never has any text.
    """

    def __init__(self, *, keep_words: bool = False) -> None:
        self.by_kernel = True
        """Whether the kernel stamped all reads; set by the reader."""
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.complete = False
        """The server signalled the end: finish reason, usage or ``[DONE]``."""
        self.merged_reads = 0
        """Reads with several chunks of tokens under one stamp."""
        self.first_content_ns: int | None = None
        """First token after reasoning, where the response began with reasoning."""
        self.first_chunk_tokens: int | None = None
        """Tokens in the first chunk, if the server's count tells."""
        self.content_type = ""
        """Content type of the body."""
        self.times = ServerTimes()
        """The server's own measurements, if sent."""
        self.words: list[str] | None = [] if keep_words else None
        """Pieces of the text, kept for the next turn of a conversation."""
        self.ids: list[int] | None = [] if keep_words else None
        """The same as token ids; None if the server sends none."""
        self._looks = True
        """Choices still need a closer look than for tokens."""
        self._reasoned = self._answers = False
        self._error: str | None = None
        self._sse = SseReader()
        self._unread: list[tuple[bytes, int]] = []
        self._unread_bytes = self._read_bytes = 0
        self._looked_at = 0
        """Number of undecoded pieces already checked for ``[DONE]``."""
        self._stamps_ns: list[int] = []
        self._leading_ns: list[int] = []
        """Chunks without content before the first with content."""
        self._blank_ns: list[int] = []
        """Chunks without content after it, which only the final count can classify."""
        self._done_ns: int | None = None
        self._beginning: bytes | None = b""
        """Start of a body without events so far; None after the first event."""
        self._fault: ValueError | None = None

    def read(self, data: bytes, at_ns: int) -> None:
        """Take bytes with their arrival time.

        Raises:
            SseError, NotAnEventError: the stream is malformed.
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
        """Whether so few bytes are undecoded that decoding them takes no time."""
        return self._unread_bytes < SHORT_BYTES

    @property
    def stamps_ns(self) -> list[int]:
        """Timestamps of chunks with tokens."""
        self._decode_all()
        return self._stamps_ns

    @property
    def error(self) -> str | None:
        """The error reported inside the stream."""
        self._decode_all()
        return self._error

    @property
    def done_ns(self) -> int | None:
        """When ``[DONE]`` arrived: the response ended then, whatever follows."""
        self._decode_all()
        return self._done_ns

    def looks_done(self) -> bool:
        """Whether new bytes may contain ``[DONE]``; :attr:`done_ns` is exact."""
        fresh, self._looked_at = self._unread[self._looked_at :], len(self._unread)
        return self._done_ns is not None or any(
            len(data) < SHORTEST_DONE or data.find(DONE) >= 0 for data, _ in fresh
        )

    def end(self) -> None:
        """Finish decoding, as the stream ended properly.

        Raises:
            SseError, NotAnEventError: the stream was malformed.
        """
        self._decode_all()
        if self._beginning:
            self._take_whole(self._beginning)
        self._raise_fault()
        self._stamp_blanks(self.output_tokens or 0)

    def _stamp_blanks(self, tokens: int) -> None:
        """Stamp as many of the chunks without content as the token count requires.

        If it exceeds their number, some chunks hold several tokens and none is stamped.
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
        """Handle a body without a complete event: an unterminated one, or an error."""
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
        """Decode pending bytes, up to the first error."""
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
            message = error_message(event.data)
            self._error = message or shown(event.data.decode("utf-8", "replace"))
        else:
            self._take_chunk(_decode(event.data), event.data, at_ns)

    def _take_chunk(self, chunk: Chunk, data: bytes, at_ns: int) -> None:
        brought = None
        if chunk.error is not NO_ERROR and chunk.failed:
            self._error = error_message(data) or NO_MESSAGE
        elif not chunk.choices and chunk.usage is None:
            self._error = error_message(data) or self._error
        if chunk.usage is not None:
            brought = self._tokens_in(chunk.usage)
            self._take_usage(chunk, chunk.usage)
        for choice in chunk.choices:
            self._take_choice(choice, at_ns, brought)
            if self._looks:
                self._note_start(choice, at_ns)

    def _tokens_in(self, usage: Usage) -> int | None:
        """Tokens in this chunk, by the server's running count; None in the first."""
        if self.output_tokens is None:
            return None
        return (usage.completion_tokens or 0) - self.output_tokens

    def _take_usage(self, chunk: Chunk, usage: Usage) -> None:
        """Take the token counts of a response, be they final or running."""
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

    def _note_start(self, choice: Choice, at_ns: int) -> None:
        """Note when the response begins after reasoning; keep its text if wanted."""
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
        words.append(choice.words)
        if self.ids is not None and choice.token_ids is not None:
            self.ids += choice.token_ids
        elif choice.said:
            self.ids = None  # useless with gaps


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
    """Whether the first line is that of an event stream."""
    field, colon, _ = body.lstrip().partition(b"\n")[0].partition(b":")
    return field in FIELDS if colon else not body.strip()
