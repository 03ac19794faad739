"""What waits to be written: bounded, because memory is not the record's to take."""

from collections import deque

from inferwatch.storage.checkpoints.checkpoints import Checkpoint
from inferwatch.storage.tables.table import Numbered

CAPACITY = 50_000
"""Readings: about four minutes of a busy engine."""

Put = Numbered | tuple[int, Checkpoint]


class Inbox:
    """Filled by one thread, emptied by another; deque's ends are atomic."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.refused = 0
        """Readings that found no room, or came after the end."""
        self._capacity = capacity
        self._waiting: deque[Put] = deque()

    def put(self, numbered: Numbered) -> None:
        """Let it wait, or count it as refused; returns at once either way."""
        if len(self._waiting) < self._capacity:
            self._waiting.append(numbered)
        else:
            self.refused += 1

    def put_if_room(self, numbered: tuple[int, Checkpoint]) -> None:
        """What nobody misses when there is none."""
        if len(self._waiting) < self._capacity:
            self._waiting.append(numbered)

    def take(self, limit: int) -> list[Put]:
        """The oldest ones."""
        count = min(limit, len(self._waiting))
        return [self._waiting.popleft() for _ in range(count)]

    def shut(self) -> None:
        """Nothing will be taken any more: what waits and what comes is refused."""
        self._capacity = 0
        for _, each in self.take(len(self._waiting)):
            self.refused += not isinstance(each, Checkpoint)

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)
