"""Open loop: each request is sent at its intended time, whatever the server does.

A late request is sent and counted as late, never skipped, and does not delay others.
"""

import asyncio
import ctypes
import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from collectors.contract.clock import NS_PER_S, monotonic_ns
from collectors.contract.readings import Phase
from inferwatch.loadgen.exchange.transport import Exchange
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.schedule.schedule import DueRequest, Schedule, warmup_of
from inferwatch.loadgen.sending.conversations import OpenConversations
from inferwatch.loadgen.sending.in_flight import InFlight

# A timer accurate to tens of microseconds.
#
# An event loop's own timer has a resolution of a millisecond. Linux has ``timerfd``;
# Python supports it from 3.13 on, so libc is called instead. Elsewhere the loop's timer
# wakes early and the rest is spent spinning.

EARLY_NS = 120_000
"""Typical wake-up latency; the remainder is spent spinning."""
COARSE_EARLY_NS = 1_500_000
_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1


class _TimerSpec(ctypes.Structure):
    """``struct itimerspec``: interval and value, each seconds and nanoseconds."""

    _fields_ = [(name, ctypes.c_long) for name in ("is_", "ins", "vs", "vns")]


class FineTimer:
    """Wakes one waiter at a time, at a given time or on request."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._fileno = _timerfd()
        self._waiter: asyncio.Future[None] | None = None
        self._woken = False
        if self._fileno is not None:
            self._loop.add_reader(self._fileno, self._fired)

    async def until(self, at_ns: int) -> None:
        """Return at a monotonic time, at once if it has passed, or when woken."""
        early_ns = COARSE_EARLY_NS if self._fileno is None else EARLY_NS
        self._woken = False
        while at_ns - monotonic_ns() > early_ns:
            await self._sleep(at_ns - early_ns)
            if self._woken:
                return
        while monotonic_ns() < at_ns:
            pass

    def wake(self) -> None:
        """End the current wait."""
        self._woken = True
        self._end_sleep()

    def close(self) -> None:
        if self._fileno is not None:
            self._loop.remove_reader(self._fileno)
            os.close(self._fileno)
            self._fileno = None

    async def _sleep(self, until_ns: int) -> None:
        self._waiter = self._loop.create_future()
        if self._fileno is None:
            sleep_s = (until_ns - monotonic_ns()) / NS_PER_S
            alarm = self._loop.call_later(sleep_s, self._end_sleep)
            await self._waiter
            alarm.cancel()
            return
        seconds, rest_ns = divmod(until_ns, NS_PER_S)
        spec = _TimerSpec(0, 0, seconds, rest_ns)
        _libc.timerfd_settime(self._fileno, _ABSOLUTE, ctypes.byref(spec), None)
        await self._waiter

    def _fired(self) -> None:
        if self._fileno is not None:
            with suppress(BlockingIOError):
                os.read(self._fileno, 8)
        self._end_sleep()

    def _end_sleep(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


_libc = ctypes.CDLL(None, use_errno=True)


def _timerfd() -> int | None:
    if sys.platform != "linux":
        return None
    flags = os.O_NONBLOCK | os.O_CLOEXEC  # the values of TFD_NONBLOCK and TFD_CLOEXEC
    fileno = _libc.timerfd_create(_CLOCK_MONOTONIC, flags)
    return None if fileno < 0 else int(fileno)


AHEAD = 128
"""Requests prepared in advance, so that a burst is sent at once."""
SPARE_NS = 5_000_000
"""No further requests are prepared when one is due this soon."""
TOGETHER_NS = 50_000_000
"""Connections for requests due within this time are opened together in advance."""


class OpenLoop:
    """Sends a schedule's requests, at most ``max_in_flight`` at a time."""

    def __init__(
        self,
        in_flight: InFlight,
        schedule: Schedule,
        plan: LoadPlan,
        on_burst: Callable[[int], None],
    ) -> None:
        self._in_flight = in_flight
        self._schedule = schedule
        self._slots = asyncio.Semaphore(plan.max_in_flight)
        self._conversations = OpenConversations(plan, in_flight, self._slots)
        self._warmup_ns = warmup_of(plan)
        self._on_burst = on_burst
        self._timer = FineTimer()
        self._start_ns = 0
        self._changed = False
        self._held_until_ns = 0
        """When a request last had to wait for one in flight to end."""
        self._ready: deque[tuple[DueRequest, Exchange]] = deque()
        self._made: dict[tuple[Phase, int], Exchange] = {}
        """Prepared requests whose due times have changed."""

    async def follow(self, start_ns: int) -> None:
        """Send the whole schedule; the last requests are in flight on return."""
        self._start_ns = start_ns
        self._conversations.begin(start_ns, self._warmup_ns)
        try:
            while await self._make_ahead():
                self._changed = False
                await self._timer.until(self._ready[0][1].call.intended_ns)
                if self._changed:
                    continue  # another request may be due first now, and later
                due, exchange = self._ready.popleft()
                if due.burst is not None:
                    self._on_burst(due.burst)
                await self._wait_for_slot(exchange)
                ended = self._in_flight.send(exchange)
                ended.add_done_callback(self._ended)
                self._conversations.begun(exchange.call, ended)
            await self._conversations.end()
        finally:
            self._timer.close()

    def change(self, now_ns: int, rate_per_s: float) -> None:
        """Switch to another rate; prepared requests that are not due yet move, too."""
        unsent = self._unprepared()
        self._schedule.change(now_ns - self._start_ns, rate_per_s, unsent)
        self._changed = True
        self._timer.wake()

    def burst(self, now_ns: int, requests: int) -> None:
        """Send requests together now, beside those of the schedule."""
        unsent = self._unprepared()
        self._schedule.burst(now_ns - self._start_ns, requests, unsent)
        self._changed = True
        self._timer.wake()

    def _unprepared(self) -> list[DueRequest]:
        """Take back the prepared requests, which are kept for when they are due."""
        self._made |= {(due.phase, due.number): each for due, each in self._ready}
        unsent = [due for due, _ in self._ready]
        self._ready.clear()
        return unsent

    async def _wait_for_slot(self, exchange: Exchange) -> None:
        """Wait while too many are in flight, and count the requests this delays."""
        is_held_back = exchange.call.intended_ns < self._held_until_ns
        if self._slots.locked():
            await self._slots.acquire()
            is_held_back, self._held_until_ns = True, monotonic_ns()
        else:
            await self._slots.acquire()
        if is_held_back:
            self._in_flight.held_back(exchange)

    def _ended(self, _ended: asyncio.Future[None]) -> None:
        self._slots.release()

    async def _make_ahead(self) -> bool:
        """Prepare the next request, and more if there is time; False at the end."""
        made = len(self._ready)
        while len(self._ready) < AHEAD and self._has_time():
            due = next(self._schedule, None)
            if due is None:
                break
            self._ready.append((due, self._make(due)))
            await asyncio.sleep(0)  # timestamps must not wait for this
        if len(self._ready) > made:
            self._in_flight.ensure(self._together())
        return bool(self._ready)

    def _make(self, due: DueRequest) -> Exchange:
        intended_ns = self._start_ns + due.offset_ns
        exchange = self._made.pop((due.phase, due.number), None)
        if exchange is None:
            return self._in_flight.make(due.phase, due.prompt, intended_ns)
        exchange.call.intended_ns = intended_ns
        return exchange

    def _has_time(self) -> bool:
        if not self._ready:
            return True
        _, exchange = self._ready[0]
        return exchange.call.intended_ns - monotonic_ns() > SPARE_NS

    def _together(self) -> int:
        first_ns = self._ready[0][1].call.intended_ns
        return sum(
            exchange.call.intended_ns - first_ns < TOGETHER_NS
            for _, exchange in self._ready
        )
