"""Parses an HTTP/1.1 response incrementally."""

from collections.abc import Callable

MAX_HEAD_BYTES = 64 << 10
MAX_SIZE_LINE_BYTES = 4 << 10
MAX_LENGTH_DIGITS = 18
NO_BODY = {204, 304}

Take = Callable[[bytes, int], None]


class NotHttpError(ValueError):
    """The bytes are not an HTTP/1.1 response."""


class HttpResponse:
    """One response; ``take`` receives its body with the timestamp of the last byte."""

    def __init__(self, take: Take) -> None:
        self.status: int | None = None
        """Set once the head is complete."""
        self.headers: dict[bytes, bytes] = {}
        """By name in lower case."""
        self.finished = False
        self.reusable = False
        """The connection can carry another request."""
        self._take = take
        self._state = self._head
        self._rest = b""
        self._left = 0

    def feed(self, data: bytes, at_ns: int) -> None:
        """Take bytes with their arrival time.

        Raises:
            NotHttpError: they are malformed.
        """
        while data and not self.finished:
            data = self._state(data, at_ns)
        if data:
            self.reusable = False  # unsolicited data

    def end(self) -> bool:
        """The connection was closed; True if the response is complete."""
        self.reusable = False
        self.finished = self.finished or self._state == self._to_close
        return self.finished

    # Each state consumes bytes and returns those for the next state.

    def _head(self, data: bytes, at_ns: int) -> bytes:  # noqa: ARG002 - a state
        data = self._rest + data
        head, blank, rest = data.partition(b"\r\n\r\n")
        if not blank:
            self._keep(data, MAX_HEAD_BYTES, "the head")
            if not data.startswith(b"HTTP/"[: len(data)]):
                raise NotHttpError("not HTTP")
            return b""
        self._rest = b""
        self._parse(head)
        return rest

    def _sized(self, data: bytes, at_ns: int) -> bytes:
        mine, rest = data[: self._left], data[self._left :]
        self._left -= len(mine)
        self._take(mine, at_ns)
        self.finished = self._left == 0
        return rest

    def _to_close(self, data: bytes, at_ns: int) -> bytes:
        self._take(data, at_ns)
        return b""

    def _chunked(self, data: bytes, at_ns: int) -> bytes:
        """Pass on all chunks in these bytes as one piece."""
        if not self._left and not self._rest and self._one_chunk(data, at_ns):
            return b""
        data = self._rest + data if self._rest else data
        self._rest = b""
        pieces: list[bytes] = []
        position = self._continue_chunk(data, pieces) if self._left else 0
        while position < len(data):
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                self._keep(data[position:], MAX_SIZE_LINE_BYTES, "a chunk's size")
                break
            size, start = _size(data[position:line_end]), line_end + 2
            if not size:
                self._give(pieces, at_ns)
                self._state = self._trailer
                return data[start:]
            position = start + size + 2
            pieces.append(data[start : start + size])
            self._left = max(position - len(data), 0)
        self._give(pieces, at_ns)
        return b""

    def _one_chunk(self, data: bytes, at_ns: int) -> bool:
        """Consume the bytes if they are exactly one HTTP chunk, as most are."""
        start = data.find(b"\r\n") + 2
        if start == 1 or not (size := _size(data[: start - 2])):
            return False
        whole = start + size + 2 == len(data)
        if whole:
            self._take(data[start:-2], at_ns)
        return whole

    def _continue_chunk(self, data: bytes, pieces: list[bytes]) -> int:
        """Consume more of a begun HTTP chunk; returns how many bytes it took."""
        pieces.append(data[: max(self._left - 2, 0)])
        used = min(self._left, len(data))
        self._left -= used
        return used

    def _trailer(self, data: bytes, at_ns: int) -> bytes:  # noqa: ARG002 - a state
        data = self._rest + data
        self._rest = b""
        if data.startswith(b"\r\n"):
            self.finished = True
            return data[2:]
        _, blank, rest = data.partition(b"\r\n\r\n")
        if not blank:
            self._keep(data, MAX_HEAD_BYTES, "the trailer")
            return b""
        self.finished = True
        return rest

    # Helpers.

    def _give(self, pieces: list[bytes], at_ns: int) -> None:
        if pieces:
            self._take(pieces[0] if len(pieces) == 1 else b"".join(pieces), at_ns)

    def _keep(self, data: bytes, limit: int, what: str) -> None:
        if len(data) > limit:
            raise NotHttpError(f"{what} is longer than {limit} bytes")
        self._rest = data

    def _parse(self, head: bytes) -> None:
        status_line, *lines = head.split(b"\r\n")
        status = _status(status_line)
        if 100 <= status < 200:
            return  # an interim response: the final one follows
        self.headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in lines)
        }
        self.status = status
        self._expect_body(status_line)

    def _expect_body(self, status_line: bytes) -> None:
        option = self.headers.get(b"connection", b"").lower()
        old = status_line.startswith(b"HTTP/1.0")
        self.reusable = b"keep-alive" in option if old else b"close" not in option
        if b"chunked" in self.headers.get(b"transfer-encoding", b"").lower():
            self._state = self._chunked
        elif self.status in NO_BODY:
            self.finished = True
        elif (length := self.headers.get(b"content-length")) is not None:
            self._left = _decimal(length)
            self._state = self._sized
            self.finished = self._left == 0
        else:
            self._state = self._to_close


def _status(line: bytes) -> int:
    version, _, rest = line.partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        raise NotHttpError("not HTTP/1.1")
    return int(rest[:3])


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > MAX_LENGTH_DIGITS:
        raise NotHttpError("a content length that is not a number")
    return int(text)


def _size(line: bytes) -> int:
    """The size in the first line of an HTTP chunk; extensions are ignored."""
    try:
        size = int(line, 16)
    except ValueError:
        size = _extended_size(line)
    if size < 0:
        raise NotHttpError("a chunk size that is not a number")
    return size


def _extended_size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError:
        raise NotHttpError("a chunk size that is not a number") from None
