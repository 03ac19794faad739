"""Closed loop: users who ask again as soon as they are answered and have thought.

A closed loop hides queueing: a slow server is asked less. What it shows well is how
many tokens per second a server can bring.
"""

import asyncio
from collections.abc import Callable, Iterator

from collectors.clock import NS_PER_S, monotonic_ns
from collectors.readings import Phase
from inferwatch.loadgen.call import Call
from inferwatch.loadgen.flights import Flights
from inferwatch.loadgen.prompts import Prompt
from inferwatch.loadgen.transport.seam import Exchange

RETRY_S = 0.25
"""A server that refuses is not asked faster than this."""


class ClosedLoop:
    """``users`` requests in flight, until told to stop or the prompts run out."""

    def __init__(
        self, flights: Flights, prompts: Iterator[Prompt], think_s: float = 0.0
    ) -> None:
        self.calls: list[Call] = []
        """Those that began, while ``keep`` is set."""
        self.keep = False
        self._flights = flights
        self._prompts = prompts
        self._think_ns = int(think_s * NS_PER_S)
        self._open = True

    async def run(self, users: int, phase: Callable[[], Phase]) -> None:
        """Until all users have stopped."""
        self._flights.ensure(users)
        first = [self._next() for _ in range(users)]
        await asyncio.gather(*(self._user(phase, each) for each in first))

    def stop(self) -> None:
        """No user asks again; what is in flight goes on."""
        self._open = False

    async def _user(
        self, phase: Callable[[], Phase], exchange: Exchange | None
    ) -> None:
        due_ns = monotonic_ns()
        while exchange is not None and self._open:
            call = exchange.call
            call.intended_ns, call.phase = due_ns, phase()
            if self.keep:
                self.calls.append(call)
            ended = self._flights.fly(exchange)
            await asyncio.sleep(0)  # the others first: they are due, too
            exchange = self._next()
            await ended
            due_ns = await self._think(call)

    def _next(self) -> Exchange | None:
        """The next request, made while its user still waits for an answer."""
        prompt = next(self._prompts, None) if self._open else None
        return prompt and self._flights.make(Phase.STEADY, prompt, 0)

    async def _think(self, call: Call) -> int:
        """When the next question is due: it counts from the end of the answer."""
        if call.failure is not None:
            await asyncio.sleep(RETRY_S)
            return monotonic_ns()
        due_ns = (call.end_ns or monotonic_ns()) + self._think_ns
        if (left_ns := due_ns - monotonic_ns()) > 0:
            await asyncio.sleep(left_ns / NS_PER_S)
        return due_ns
