"""Runs the app on the terminal until people leave it, or we are told to end."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import resource_tracker

from inferwatch import watchdog
from inferwatch.cli.pages import open_page
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import OpeningPage
from inferwatch.ui.terminal.terminal import terminal


class AppRunner:
    """Shows a page, and all that is gone to from there."""

    def __init__(self) -> None:
        self.app: InferwatchApp | None = None
        self._leaving = False

    def leave(self) -> None:
        """End whatever is shown, and whatever waits behind it."""
        self._leaving = True
        if self.app is not None:
            self.app.exit()

    async def show(self, opening: OpeningPage) -> None:
        """Until it is left for good, or has ended by itself.

        Raises:
            InferwatchError: it cannot be opened, or ended with one.
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
    """Show a page on the terminal; the exit status.

    Raises:
        InferwatchError: it cannot be opened, or ended with one.
    """
    # Child processes must start before Textual takes the terminal's descriptors.
    resource_tracker.ensure_running()

    async def show() -> None:
        loop, runner = asyncio.get_running_loop(), AppRunner()

        def told() -> None:
            watchdog.end_within()
            runner.leave()

        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, told)
        terminal().when_gone(partial(_from_thread, loop, runner.leave))
        if duration_s is not None:
            loop.call_later(duration_s, runner.leave)
        await runner.show(opening)

    asyncio.run(show())
    return 0


def _from_thread(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    """Do it in the loop, unless that is over."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(act)
