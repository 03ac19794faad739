"""Open loop: each request leaves at its intended time, whatever the server does.

A late send is sent late and counted, never skipped, and moves no other send.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from collectors.clock import NS_PER_S, monotonic_ns
from inferwatch.loadgen.flights import Flight, Flights
from inferwatch.loadgen.schedule import Due

AHEAD = 128
"""Requests made before they are due, so that a burst leaves as one."""
SPARE_NS = 5_000_000
"""Nothing more is made ahead when something is due this soon."""


class OpenLoop:
    """Follows a schedule; at most ``max_in_flight`` of its requests at a time."""

    def __init__(
        self,
        flights: Flights,
        max_in_flight: int,
        on_burst: Callable[[int], None],
    ) -> None:
        self._flights = flights
        self._slots = asyncio.Semaphore(max_in_flight)
        self._on_burst = on_burst
        self._ready: deque[tuple[Due, Flight]] = deque()

    async def follow(self, schedule: Iterator[Due], start_ns: int) -> None:
        """Send all of it; the last ones are still in flight when this returns."""
        while await self._make_ahead(schedule, start_ns):
            due, flight = self._ready.popleft()
            await sleep_until(flight.call.intended_ns)
            if due.burst is not None:
                self._on_burst(due.burst)
            await self._slots.acquire()
            self._flights.spawn(self._fly(flight))

    async def _fly(self, flight: Flight) -> None:
        try:
            await self._flights.fly(flight)
        finally:
            self._slots.release()

    async def _make_ahead(self, schedule: Iterator[Due], start_ns: int) -> bool:
        """Make the next request, and more while there is time; False at the end."""
        while len(self._ready) < AHEAD and self._has_time():
            due = next(schedule, None)
            if due is None:
                break
            intended_ns = start_ns + due.offset_ns
            flight = self._flights.make(due.phase, due.prompt, intended_ns)
            self._ready.append((due, flight))
            await asyncio.sleep(0)  # stamps must not wait for this
        return bool(self._ready)

    def _has_time(self) -> bool:
        if not self._ready:
            return True
        _, flight = self._ready[0]
        return flight.call.intended_ns - monotonic_ns() > SPARE_NS


async def sleep_until(at_ns: int) -> None:
    """Return at a moment of the monotonic clock, or at once when it has passed."""
    while (left_ns := at_ns - monotonic_ns()) > 0:  # noqa: ASYNC110 - a clock
        await asyncio.sleep(left_ns / NS_PER_S)
