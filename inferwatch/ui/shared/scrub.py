"""Going through time by keys: held keys go faster, and no key overtakes a picture."""

from collections.abc import Awaitable, Callable, Sequence

from collectors.clock import NS_PER_S
from inferwatch.feed import Mark, Playback

STEP_NS = NS_PER_S
"""What one ``[`` or ``]`` goes."""
HELD_S = 0.15
"""Keys that come faster than this are one key, held."""
REPEATS = 5
"""The step doubles every so many."""
DOUBLINGS = 8
"""At most: four minutes a key."""
SPEEDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


class HeldKey:
    """How far a key goes: the longer it is held, the further."""

    def __init__(self) -> None:
        self._way = 0
        self._last_s = float("-inf")
        self._repeats = 0

    def step_ns(self, way: int, now_s: float) -> int:
        """Signed; ``way`` is -1 or 1."""
        held = way == self._way and now_s - self._last_s < HELD_S
        self._repeats = self._repeats + 1 if held else 0
        self._way, self._last_s = way, now_s
        doublings = min(self._repeats // REPEATS, DOUBLINGS)
        return way * STEP_NS * (1 << doublings)


def next_speed(speed: float, by: int) -> float:
    """The next slower or faster one of a few round speeds.

    >>> next_speed(1.0, 1), next_speed(0.1, -1), next_speed(3.0, -1)
    (2.0, 0.1, 2.0)
    """
    if by > 0:
        return next((each for each in SPEEDS if each > speed * 1.001), SPEEDS[-1])
    slower = [each for each in SPEEDS if each < speed * 0.999]
    return slower[-1] if slower else SPEEDS[0]


def mark_from(marks: Sequence[Mark], here_ns: int, by: int) -> Mark | None:
    """The next mark after a moment, or the last one before it."""
    if by > 0:
        return next((mark for mark in marks if mark.t_ns > here_ns), None)
    return next((mark for mark in reversed(marks) if mark.t_ns < here_ns), None)


class Scrub:
    """Carries out wishes one at a time; of those that wait only the newest counts.

    So each picture on the way is seen, however fast keys come, and steps add up.
    """

    def __init__(self, playback: Playback) -> None:
        self._playback = playback
        self._target_ns: int | None = None
        self._steps = 0
        self._live = False
        self._busy = False

    @property
    def here_ns(self) -> int:
        """Where we are, or will be."""
        target_ns = self._target_ns
        return self._playback.position_ns if target_ns is None else target_ns

    async def seek(self, t_ns: int) -> None:
        """Go to a moment."""
        start_ns, end_ns = self._playback.span_ns
        self._target_ns = min(max(t_ns, start_ns), end_ns)
        self._steps, self._live = 0, False
        await self._go()

    async def step(self, count: int) -> None:
        """Go on by engine steps."""
        self._steps += count
        self._live = False
        await self._go()

    async def go_live(self) -> None:
        """Go to the end."""
        self._target_ns, self._steps, self._live = None, 0, True
        await self._go()

    async def _go(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while wish := self._next():
                await wish()
        finally:
            self._busy = False

    def _next(self) -> Callable[[], Awaitable[None]] | None:
        playback = self._playback
        if self._live:
            self._live = False
            return playback.go_live
        if self._target_ns is not None:
            return self._seek
        if self._steps:
            count, self._steps = self._steps, 0
            return lambda: playback.step(count)
        return None

    async def _seek(self) -> None:
        target_ns = self._target_ns
        if target_ns is None:
            return
        try:
            await self._playback.seek(target_ns)
        finally:
            if self._target_ns == target_ns:
                self._target_ns = None
