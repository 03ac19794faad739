"""The last half hour of envelopes, for who attaches late."""

from collections import deque
from dataclasses import dataclass

HALF_HOUR_NS = 30 * 60 * 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RingEntry:
    """An envelope as it was sent."""

    seq: int
    t_ns: int
    accounted: int
    """Readings emitted or dropped before this envelope."""
    envelope: bytes


class Ring:
    """Keeps the newest envelopes within limits of bytes and age."""

    def __init__(self, limit_bytes: int, limit_ns: int = HALF_HOUR_NS) -> None:
        self.limit_bytes = limit_bytes
        self.limit_ns = limit_ns
        self.used_bytes = 0
        self._entries: deque[RingEntry] = deque()

    def put(self, entry: RingEntry) -> None:
        """Keep one more; the oldest make room."""
        self._entries.append(entry)
        self.used_bytes += len(entry.envelope)
        while self._entries and self._too_much(entry.t_ns):
            self.used_bytes -= len(self._entries.popleft().envelope)

    def _too_much(self, now_ns: int) -> bool:
        too_old = now_ns - self._entries[0].t_ns > self.limit_ns
        return too_old or self.used_bytes > self.limit_bytes

    @property
    def oldest(self) -> RingEntry | None:
        """None when it is empty."""
        return self._entries[0] if self._entries else None

    def envelopes(self) -> deque[bytes]:
        """All of them, oldest first; the caller's own."""
        return deque(entry.envelope for entry in self._entries)
