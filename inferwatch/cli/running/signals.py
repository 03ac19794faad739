"""Turns SIGINT, SIGTERM and SIGHUP into an event."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interrupts() -> Iterator[asyncio.Event]:
    """Yield an event that SIGINT, SIGTERM or SIGHUP sets, so results are printed."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in NUMBERS:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in NUMBERS:
            loop.remove_signal_handler(number)
