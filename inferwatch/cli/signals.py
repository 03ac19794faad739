"""Turns Ctrl-C and its kin into an event."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interrupts() -> Iterator[asyncio.Event]:
    """Set when the user wants an end; there is still time to tell what was found."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in NUMBERS:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in NUMBERS:
            loop.remove_signal_handler(number)
