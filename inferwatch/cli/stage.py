"""The terminal, and who shows on it: one app after another, each leading back."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from textual.app import App

from inferwatch import watchdog
from inferwatch.cli.replaying import Opening, place
from inferwatch.compare.selection import ComparisonRequest
from inferwatch.errors import InferwatchError
from inferwatch.feed import Feed
from inferwatch.replay.player import Player
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.compare_app import CompareApp
from inferwatch.ui.onward import (
    CompareSessions,
    Onward,
    OpenSample,
    OpenSession,
    RunDemo,
)
from inferwatch.ui.shared.terminal import terminal
from inferwatch.ui.shared.view import View
from inferwatch.ui.start_app import StartApp


class Stage:
    """Shows a feed until people leave it; where they go from there, it follows.

    What is left goes on meanwhile, unseen, and is there when they come back.
    """

    def __init__(self) -> None:
        self._app: App[Onward | None] | None = None
        self._leaving = False

    def leave(self) -> None:
        """End whatever is shown, and whatever waits behind it."""
        self._leaving = True
        if self._app is not None:
            self._app.exit()

    @property
    def leads_back(self) -> bool:
        """Something waits behind what is shown next."""
        return self._app is not None

    async def show(
        self,
        feed: Feed,
        database: Path,
        *,
        view: View | None = None,
        until: asyncio.Task[None] | None = None,
    ) -> None:
        """Until it is left for good, or has ended by itself.

        The database is the one whose sessions are listed beside it.
        """
        view, news = view or View(), None
        view.database = database
        while not self._leaving and not (until and until.done()):
            app = InferwatchApp(feed, view, leads_back=self.leads_back, news=news)
            if until is not None:
                until.add_done_callback(lambda _, app=app: app.exit())  # type: ignore[misc]  # the app of this round
            onward = await self._run(app)
            if onward is None:
                return
            news = await self._go(app, onward)

    async def welcome(self, database: Path) -> None:
        """The start screen, until people have had enough."""
        news = None
        while not self._leaving:
            app = StartApp(database, news)
            onward = await self._run(app)
            if onward is None:
                return
            news = await self._go(app, onward)

    async def replay(self, database: Path, session: str, opening: Opening) -> None:
        """A recorded session.

        Raises:
            InferwatchError: it cannot be opened, or gone to, or has no such moment.
        """
        player = await asyncio.to_thread(Player.open, database, session)
        running = asyncio.create_task(player.run())
        try:
            await asyncio.sleep(0)  # cancelled before it began it would close nothing
            t_ns = opening.moment(player)
            going = asyncio.create_task(place(player, t_ns, opening))
            failed = asyncio.create_task(_failed(going))
            screen = "load" if player.only_load else "overview"
            view = View(window=opening.window, screen=screen)
            try:
                await self.show(player, database, view=view, until=failed)
            finally:
                failed.cancel()
                going.cancel()
            with suppress(asyncio.CancelledError):
                await going
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def _run(self, app: App[Onward | None]) -> Onward | None:
        before, self._app = self._app, app
        try:
            return await app.run_async()
        finally:
            self._app = before

    async def _compare(self, wanted: ComparisonRequest) -> None:
        """Sessions side by side.

        Raises:
            InferwatchError: there is nothing to see.
        """
        app = CompareApp(wanted)
        await self._run(app)
        if app.failure is not None:
            raise app.failure

    async def _go(self, app: App[Onward | None], onward: Onward) -> str | None:
        """Go there and come back; why that could not be, if so."""
        before, self._app = self._app, app  # it waits
        try:
            await self._visit(onward)
        except InferwatchError as error:
            return str(error)
        finally:
            self._app = before
        return None

    async def _visit(self, onward: Onward) -> None:
        match onward:
            case OpenSession(database=database, session=session):
                await self.replay(database, session, Opening())
            case OpenSample():
                from inferwatch.sample import sample_file

                path = await asyncio.to_thread(sample_file)
                await self.replay(path, "last", Opening(from_load=True))
            case RunDemo():
                from inferwatch.cli.stage_watch import watch_demo

                await watch_demo(self)
            case CompareSessions(database=database, sessions=sessions):
                await self._compare(
                    ComparisonRequest(database=database, sessions=sessions)
                )


async def _failed(task: asyncio.Task[None]) -> None:
    """Until it fails; one that ends well is waited for in vain."""
    await asyncio.wait([task])
    if task.cancelled() or task.exception() is None:
        await asyncio.Event().wait()


def on_stage(stage: Stage, showing: Coroutine[Any, Any, int | None]) -> int:
    """Show on the terminal until people leave, or we are told to end."""
    # Child processes must start before Textual takes the terminal's descriptors.
    resource_tracker.ensure_running()

    async def show() -> int:
        loop = asyncio.get_running_loop()

        def told() -> None:
            watchdog.end_within()
            stage.leave()

        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, told)
        terminal().when_gone(partial(_from_thread, loop, stage.leave))
        return await showing or 0

    return asyncio.run(show())


def _from_thread(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    """Do it in the loop, unless that is over."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(act)
