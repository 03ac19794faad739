"""Parser for server-sent events, independent of how bytes are split.

Lines end in LF, CRLF or CR; ``data:`` may lack its space and span several lines;
comments and unknown fields are skipped; an event is complete at its blank line.
"""

from typing import NamedTuple

MAX_LINE_BYTES = 4 << 20
_PLAIN = b"data: "
_BETWEEN = b"\n\n" + _PLAIN


class SseError(ValueError):
    """The bytes are not an event stream."""


class SseEvent(NamedTuple):
    """A server-sent event: its data, and its name if it has one."""

    data: bytes
    name: bytes = b""


def _event(data: bytes) -> SseEvent:
    """An event without a name, created twice as fast as by its class."""
    return tuple.__new__(SseEvent, (data, b""))


class SseReader:
    """Takes bytes incrementally and returns the events they complete."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._after_cr = False
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._name = b""

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events completed by these bytes.

        Raises:
            SseError: a line or event is too long.
        """
        if not data:
            return []
        line_end = data.find(b"\n")  # faster than `in`, which first tries an integer
        if line_end >= 0 and self._plain and data.find(b"\r") < 0:
            if not self._rest and line_end == len(data) - 2 and data[:6] == _PLAIN:
                return [_event(data[6:-2])] if data[-1:] == b"\n" else self._take(data)
            return self._take_plain(bytes(self._rest) + data if self._rest else data)
        split_crlf = self._after_cr and data.startswith(b"\n")
        self._after_cr = data.endswith(b"\r")
        return self._take(data[1:] if split_crlf else data)

    @property
    def _plain(self) -> bool:
        """Whether no event is pending, or only part of its first line."""
        return not (self._data or self._name or self._after_cr)

    def _take_plain(self, data: bytes) -> list[SseEvent]:
        """Parse events of one ``data: `` line each, as nearly all are."""
        self._rest.clear()
        end = data.rfind(b"\n\n")
        events = data[len(_PLAIN) : end].split(_BETWEEN)
        plain = data.startswith(_PLAIN) and data.count(b"\n") == 2 * len(events)
        if end < 0 or not plain:
            return self._take(data)
        self._keep(data[end + 2 :])
        return [_event(event) for event in events]

    def _take(self, data: bytes) -> list[SseEvent]:
        if b"\n" not in data and b"\r" not in data:
            self._keep(data)
            return []
        return self._events(data)

    def _events(self, data: bytes) -> list[SseEvent]:
        lines = (bytes(self._rest) + data).splitlines(keepends=True)
        self._rest.clear()
        if lines[-1][-1:] not in b"\r\n":
            self._keep(lines.pop())
        events = (self._line(line.rstrip(b"\r\n")) for line in lines)
        return [event for event in events if event is not None]

    def _keep(self, data: bytes) -> None:
        self._rest += data
        if len(self._rest) > MAX_LINE_BYTES:
            raise SseError(f"a line of more than {MAX_LINE_BYTES} bytes")

    def _line(self, line: bytes) -> SseEvent | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
            self._data_bytes += len(value) + 1
            if self._data_bytes > MAX_LINE_BYTES:
                raise SseError(f"an event of more than {MAX_LINE_BYTES} bytes")
        elif field == b"event":
            self._name = value.removeprefix(b" ")
        return None

    def _dispatch(self) -> SseEvent | None:
        data, name = self._data, self._name
        self._data, self._data_bytes, self._name = [], 0, b""
        return SseEvent(b"\n".join(data), name) if data else None
