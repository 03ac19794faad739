"""What a streamed answer has told so far; bytes and their stamp go in.

Events are cut and JSON is decoded when somebody asks or much has come: a stamp must not
wait for the decoding of what came with it.
"""

import msgspec

from inferwatch.loadgen.reply_chunks import Choice, Chunk, ServerTimes, Usage, chunks
from inferwatch.loadgen.sse import SseError, SseEvent, SseReader

DETAIL_CHARS = 200
UNREAD_BYTES = 32 << 10
"""Decoding this takes half a millisecond, and no more is kept undecoded."""
SHORT_BYTES = 1 << 10


class NotAnEventError(ValueError):
    """The server sent an event that is no completion."""


class Reply:
    """Reads one answer. A stamp is kept for each chunk that brought tokens."""

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
        """Where the server counts tokens in each chunk."""
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
        self._unread_bytes = 0
        self._stamps_ns: list[int] = []
        self._bare_end_ns: int | None = None
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
            self._raise_fault()

    @property
    def short(self) -> bool:
        """Too little is left to decode to be worth a delay."""
        return self._unread_bytes < SHORT_BYTES

    @property
    def stamps_ns(self) -> list[int]:
        """Of each chunk that brought tokens."""
        self._decode_all()
        return self._stamps_ns

    @property
    def error(self) -> str | None:
        """What the server reported as an error inside the stream."""
        self._decode_all()
        return self._error

    def end(self) -> None:
        """The stream ended in good order.

        A last chunk with a finish reason and no text may or may not have brought a
        token (an end-of-sequence token, or half a character, has no text): the
        server's count decides.

        Raises:
            SseError, NotAnEventError: what came makes no sense.
        """
        self._decode_all()
        self._raise_fault()
        if self._bare_end_ns is not None and self._stamps_fall_short():
            self._stamps_ns.append(self._bare_end_ns)

    def _stamps_fall_short(self) -> bool:
        return (self.output_tokens or 0) > len(self._stamps_ns)

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _decode_all(self) -> None:
        """Decode what waits; nothing after the first nonsense."""
        unread, self._unread, self._unread_bytes = self._unread, [], 0
        if self._fault is not None:
            return
        try:
            for data, at_ns in unread:
                before = len(self._stamps_ns)
                for event in self._sse.feed(data):
                    self._take(event, at_ns)
                self.merged_reads += len(self._stamps_ns) > before + 1
        except (SseError, NotAnEventError) as fault:
            self._fault = fault

    def _take(self, event: SseEvent, at_ns: int) -> None:
        if event.data == b"[DONE]":
            self.complete = True
        elif event.name == b"error":
            self._error = _text(event.data)
        else:
            self._take_chunk(_decode(event.data), at_ns)

    def _take_chunk(self, chunk: Chunk, at_ns: int) -> None:
        if chunk.error is not None:
            self._error = _text(msgspec.json.encode(chunk.error))
        if chunk.usage is not None:
            self._take_usage(chunk, chunk.usage)
        for choice in chunk.choices:
            self._take_choice(choice, at_ns)
            if self._looks:
                self._look(choice, at_ns)

    def _take_usage(self, chunk: Chunk, usage: Usage) -> None:
        """Of the whole answer at its end, else of what came so far."""
        self.complete |= not chunk.choices
        self.prompt_tokens = usage.prompt_tokens
        self.output_tokens = usage.completion_tokens
        self.times = chunk.metrics or self.times
        if chunk.choices and not self._stamps_ns:
            self.first_chunk_tokens = usage.completion_tokens or None

    def _take_choice(self, choice: Choice, at_ns: int) -> None:
        if choice.finish_reason is None:
            if not choice.opens:
                self._stamps_ns.append(at_ns)
            return
        self.complete = True
        if choice.said:
            self._stamps_ns.append(at_ns)
        else:
            self._bare_end_ns = at_ns

    def _look(self, choice: Choice, at_ns: int) -> None:
        """When the answer itself began, and what it said where that is kept."""
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
        """What it said."""
        words.append(choice.words)
        if self.ids is not None and choice.token_ids is not None:
            self.ids += choice.token_ids
        elif choice.said:
            self.ids = None  # with a gap they are worth nothing


def _decode(data: bytes) -> Chunk:
    try:
        return chunks.decode(data)
    except msgspec.MsgspecError as error:
        raise NotAnEventError(f"not a completion: {_text(data)}") from error


def _text(data: bytes) -> str:
    return data[:DETAIL_CHARS].decode("utf-8", "replace")
