"""Runs the app on the terminal until the user leaves or a signal ends it."""

import asyncio
import gc
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import resource_tracker

from inferwatch import watchdog
from inferwatch.cli.running.pages import open_page
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import OpeningPage
from inferwatch.ui.terminal.terminal import terminal

GARBAGE_EVERY = 10_000, 5, 20
"""Thresholds of the garbage collector: with Python's defaults it takes 1% of a core."""


class AppRunner:
    """Shows a page, and every page that is opened from it."""

    def __init__(self) -> None:
        self.app: InferwatchApp | None = None
        self._leaving = False

    def leave(self) -> None:
        """End the app, and open no further page."""
        self._leaving = True
        if self.app is not None:
            self.app.exit()

    async def show(self, opening: OpeningPage) -> None:
        """Show the page until the user leaves, or it ends by itself.

        Raises:
            InferwatchError: the page cannot be opened, or ended with an error.
        """
        async with opening as page:
            if self._leaving:
                return
            self.app = InferwatchApp(page, open_page)
            try:
                await self.app.run_async()
            finally:
                await self.app.close(terminal().say)


def show_on_screen(opening: OpeningPage, duration_s: float | None = None) -> int:
    """Show a page on the terminal, and return the exit status.

    Raises:
        InferwatchError: the page cannot be opened, or ended with an error.
    """
    # Child processes must start before Textual takes the terminal's descriptors.
    resource_tracker.ensure_running()
    gc.freeze()  # modules stay: they need not be searched for garbage
    gc.set_threshold(*GARBAGE_EVERY)

    async def show() -> None:
        loop, runner = asyncio.get_running_loop(), AppRunner()

        def on_signal() -> None:
            watchdog.end_within()
            runner.leave()

        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, on_signal)
        terminal().when_gone(partial(_from_thread, loop, runner.leave))
        if duration_s is not None:
            loop.call_later(duration_s, runner.leave)
        await runner.show(opening)

    asyncio.run(show())
    return 0


def _from_thread(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    """Call a function in the event loop, unless the loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(act)
