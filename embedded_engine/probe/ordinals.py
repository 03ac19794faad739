"""Numbers for request ids: steps name their members by them.

They count up per EngineCore, and rank r starts at ``r << 40``, so they are unique in a
server.
"""

from collections import deque
from collections.abc import Iterable

RANK_BITS = 40
REMEMBERED = 4_096
"""Ended requests whose ordinals are kept: a step under way may still name them."""


class Ordinals:
    """Of one EngineCore."""

    def __init__(self, rank: int) -> None:
        self._next = rank << RANK_BITS
        self._known: dict[str, int] = {}
        self._past: deque[tuple[str, int]] = deque()

    def new(self, request_id: str) -> int:
        """For a request that comes, even when its id was seen before."""
        ordinal = self._known[request_id] = self._next
        self._next += 1
        return ordinal

    def of(self, request_id: str) -> int:
        """One it has, else a new one: its coming was dropped, or cannot be seen."""
        known = self._known.get(request_id)
        return self.new(request_id) if known is None else known

    def of_all(self, request_ids: Iterable[str]) -> list[int]:
        """In their order."""
        try:
            return list(map(self._known.__getitem__, request_ids))
        except KeyError:
            return [self.of(request_id) for request_id in request_ids]

    def ended(self, request_id: str) -> int:
        """The ordinal of a request that goes; it is forgotten after a while."""
        ordinal = self.of(request_id)
        self._past.append((request_id, ordinal))
        if len(self._past) > REMEMBERED:
            old_id, old = self._past.popleft()
            if self._known.get(old_id) == old:  # else the id came again
                del self._known[old_id]
        return ordinal
