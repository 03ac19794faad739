"""Kinds of requests that a schedule is made of, each in order of its own time."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from collectors.readings import Phase
from inferwatch.loadgen.plan.rates import Floats
from inferwatch.loadgen.prompts.prompts import Prompt
from inferwatch.loadgen.schedule.pace import Pace


class Due(NamedTuple):
    """A request and its intended time, in ns from the start of the schedule."""

    offset_ns: int
    phase: Phase
    number: int
    prompt: Prompt
    burst: int | None = None
    """For the first request of a burst: how many requests the burst has."""
    arrival: float | None = None
    """Its number in the pattern, where a change of the rate moves it."""


class Stream:
    """The first can be looked at, and what was taken can be given back."""

    def __init__(self, dues: Iterable[Due] = ()) -> None:
        self._dues = iter(dues)
        self._front: deque[Due] = deque()

    def __iter__(self) -> Iterator[Due]:
        """All that comes."""
        while self.head is not None:
            yield self.take()

    @property
    def head(self) -> Due | None:
        """What is due next; None when nothing is."""
        if not self._front and (due := self._next()) is not None:
            self._front.append(due)
        return self._front[0] if self._front else None

    def take(self) -> Due:
        """The head, which there must be."""
        return self._front.popleft()

    def give_back(self, dues: Iterable[Due]) -> None:
        """What was taken last, in order."""
        self._front.extendleft(reversed(list(dues)))

    def _next(self) -> Due | None:
        return next(self._dues, None)


class Paced(Stream):
    """Arrivals of a pattern, as fast as a pace says."""

    def __init__(
        self,
        numbers: Iterator[Floats],
        pace: Pace,
        prompt: Callable[[int], Prompt],
        *,
        phase: Phase,
        after_ns: int = 0,
    ) -> None:
        super().__init__()
        self._numbers = numbers
        self._pace = pace
        self._prompt = prompt
        self._phase = phase
        self._after_ns = after_ns
        self._block: Floats = np.empty(0)
        self._offsets: list[int] = []
        self._at = self._before = 0

    def retime(self) -> None:
        """The pace has changed; what has left does not matter any more."""
        self._offsets[self._at :] = self._offsets_of(self._block[self._at :])
        front = list(self._front)
        moved = self._offsets_of(np.array([due.arrival for due in front], np.float64))
        pairs = zip(front, moved, strict=True)
        self._front = deque(due._replace(offset_ns=at) for due, at in pairs)

    def _offsets_of(self, arrivals: Floats) -> list[int]:
        offsets: list[int] = (self._pace.due_ns(arrivals) + self._after_ns).tolist()
        return offsets

    def _next(self) -> Due | None:
        """None where the rate has come to nothing; a change may wake it again."""
        if self._at == len(self._block):
            self._before += self._at
            self._at, self._block = 0, next(self._numbers, np.empty(0))
            self._offsets = self._offsets_of(self._block)
        if self._at >= len(self._offsets):
            return None
        at, number = self._at, self._before + self._at
        self._at += 1
        return Due(
            self._offsets[at],
            self._phase,
            number,
            self._prompt(number),
            arrival=float(self._block[at]),
        )
