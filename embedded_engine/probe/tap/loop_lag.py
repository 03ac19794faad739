"""How late an API server's event loop runs: what its clients wait for unseen.

A timer of the loop's own, set again each time: it holds nothing up, and is gone when
the loop is. What holds the loop up for longer than the timer takes is always seen,
shorter hold-ups now and then; at rest the timer hardly fires. To wake a loop that has
nothing else to do is what it costs, some 0.1 ms.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic_ns

from collectors.contract.clock import NS_PER_S

EVERY_S = 0.05
"""While requests live: the length of a hold-up is known to within that."""
AT_REST_S = 0.25
MOST = 1_000
"""Lateness that nobody took is kept so many times, more than a beat has."""


class LoopLag:
    """Measures how late the event loop runs in which it was told to."""

    def __init__(self, rests: Callable[[], bool], stops: Callable[[], bool]) -> None:
        """``rests`` says that no request lives, ``stops`` that it shall end."""
        self._rests, self._stops = rests, stops
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due_ns = 0
        self._late: deque[int] = deque(maxlen=MOST)

    def follow(self) -> None:
        """Measure in the loop that runs here, if one does."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if loop is not self._loop:
            self._loop = loop
            self._set(loop)

    def take(self) -> int | None:
        """The worst since it was asked before, in ns, and asked on any thread.

        Of what holds the loop up right now as far as it has lasted. None where no
        loop runs.
        """
        if self._loop is None or not self._loop.is_running():
            return None
        worst = max(monotonic_ns() - self._due_ns, 0)
        while self._late:
            worst = max(worst, self._late.popleft())
        return worst

    def _set(self, loop: asyncio.AbstractEventLoop) -> None:
        seconds = AT_REST_S if self._rests() else EVERY_S
        self._due_ns = monotonic_ns() + int(seconds * NS_PER_S)
        loop.call_later(seconds, self._fired, loop)

    def _fired(self, loop: asyncio.AbstractEventLoop) -> None:
        self._late.append(max(monotonic_ns() - self._due_ns, 0))
        if loop is self._loop and not self._stops():
            self._set(loop)
        elif loop is self._loop:
            self._loop = None
