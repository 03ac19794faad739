"""What a streamed completion has told so far; bytes and their stamp go in."""

import msgspec

from inferwatch.loadgen.sse import SseEvent, SseReader

DETAIL_CHARS = 200


class NotAnEventError(ValueError):
    """The server sent an event that is no completion."""


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_chunks = msgspec.json.Decoder(_Chunk)


class Reply:
    """Reads one answer. A stamp is kept for each chunk that brought tokens."""

    def __init__(self) -> None:
        self._sse = SseReader()
        self._bare_end_ns: int | None = None
        self.stamps_ns: list[int] = []
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.complete = False
        """The server said it is done: a finish reason, usage or ``[DONE]``."""
        self.error: str | None = None
        """What the server reported as an error inside the stream."""

    def read(self, data: bytes, at_ns: int) -> None:
        """Take bytes that arrived at a moment.

        Raises:
            SseError, NotAnEventError: the bytes make no sense.
        """
        for event in self._sse.feed(data):
            self._take(event, at_ns)

    def end(self) -> None:
        """The stream ended in good order.

        A last chunk with a finish reason and no text may or may not have brought a
        token (an end-of-sequence token, or half a character, has no text): the
        server's count decides.
        """
        if self._bare_end_ns is not None and self._stamps_fall_short():
            self.stamps_ns.append(self._bare_end_ns)

    def _stamps_fall_short(self) -> bool:
        return (self.output_tokens or 0) > len(self.stamps_ns)

    def _take(self, event: SseEvent, at_ns: int) -> None:
        if event.data == b"[DONE]":
            self.complete = True
        elif event.name == b"error":
            self.error = _text(event.data)
        else:
            self._take_chunk(_decode(event.data), at_ns)

    def _take_chunk(self, chunk: _Chunk, at_ns: int) -> None:
        if chunk.error is not None:
            self.error = _text(msgspec.json.encode(chunk.error))
        if chunk.usage is not None:
            self.complete |= not chunk.choices
            self.prompt_tokens = chunk.usage.prompt_tokens
            self.output_tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            self._take_choice(choice, at_ns)

    def _take_choice(self, choice: _Choice, at_ns: int) -> None:
        if choice.finish_reason is None or choice.text:
            self.stamps_ns.append(at_ns)
        else:
            self._bare_end_ns = at_ns
        self.complete |= choice.finish_reason is not None


def _decode(data: bytes) -> _Chunk:
    try:
        return _chunks.decode(data)
    except msgspec.MsgspecError as error:
        raise NotAnEventError(f"not a completion: {_text(data)}") from error


def _text(data: bytes) -> str:
    return data[:DETAIL_CHARS].decode("utf-8", "replace")
