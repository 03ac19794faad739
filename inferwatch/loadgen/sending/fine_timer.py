"""Wakes us at a moment, to some tens of microseconds.

An event loop's own timer is a millisecond coarse. Linux has ``timerfd``; Python has it
from 3.13 on, so until then libc is called. Where there is none, the loop's timer wakes
us earlier and the rest is spun away.
"""

import asyncio
import ctypes
import os
import sys
from contextlib import suppress

from collectors.contract.clock import NS_PER_S, monotonic_ns

EARLY_NS = 120_000
"""Waking up takes about that; what is left of it is spun away."""
COARSE_EARLY_NS = 1_500_000
_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1


class _TimerSpec(ctypes.Structure):
    """``struct itimerspec``: interval and value, each seconds and nanoseconds."""

    _fields_ = [(name, ctypes.c_long) for name in ("is_", "ins", "vs", "vns")]


class FineTimer:
    """Wakes one waiter at a time, at a moment or when told to."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._fileno = _timerfd()
        self._waiter: asyncio.Future[None] | None = None
        self._woken = False
        if self._fileno is not None:
            self._loop.add_reader(self._fileno, self._fired)

    async def until(self, at_ns: int) -> None:
        """Return at a moment of the monotonic clock, or at once when it has passed.

        Or earlier, when woken.
        """
        early_ns = COARSE_EARLY_NS if self._fileno is None else EARLY_NS
        self._woken = False
        while at_ns - monotonic_ns() > early_ns:
            await self._sleep(at_ns - early_ns)
            if self._woken:
                return
        while monotonic_ns() < at_ns:
            pass

    def wake(self) -> None:
        """End the wait of whoever waits."""
        self._woken = True
        self._end_sleep()

    def close(self) -> None:
        """Close the timer."""
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
    flags = os.O_NONBLOCK | os.O_CLOEXEC  # as TFD_NONBLOCK and TFD_CLOEXEC
    fileno = _libc.timerfd_create(_CLOCK_MONOTONIC, flags)
    return None if fileno < 0 else int(fileno)
