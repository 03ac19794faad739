"""Brings what several processes tell of their past into the order it was sent in.

A newcomer gets each process's ring as fast as it comes: taken like that, the front end
would be half an hour ahead of its EngineCore.
"""

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace

from collectors.probe.reception import Passage


class SendingOrder:
    """Holds passages back while another process may yet tell of something earlier."""

    def __init__(self) -> None:
        self.awaited: set[int] = set()
        """Processes, by pid, whose past is not through."""
        self._held: dict[int, deque[Passage]] = {}

    def expect(self, pids: Iterable[int]) -> None:
        """These will tell of their past."""
        self.awaited.update(pids)

    def take(self, pid: int, passages: Iterable[Passage], *, caught_up: bool) -> None:
        """What a process told, in its own order, and whether its past is through."""
        self._held.setdefault(pid, deque()).extend(passages)
        if caught_up:
            self.awaited.discard(pid)

    def give_up(self, pids: Iterable[int]) -> None:
        """Wait for these no longer."""
        self.awaited.difference_update(pids)

    def released(self, most: int) -> list[Passage]:
        """The next ones whose turn has come, of about so many readings."""
        held = self._held
        turns = [(queue[0].sent_ns, pid) for pid, queue in held.items() if queue]
        heapify(turns)
        passages: list[Passage] = []
        size = 0
        while turns and size < most and all(map(held.get, self.awaited)):
            pid = turns[0][1]
            passages.append(held[pid].popleft())
            size += passages[-1].size
            if held[pid]:
                heapreplace(turns, (held[pid][0].sent_ns, pid))
            else:
                heappop(turns)
        return passages
