"""Opens the pages that the app shows, and closes them when they are left."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from collectors.contract.clock import SessionClock
from inferwatch import watchdog
from inferwatch.cli.running.recording import open_recorder, where_recorded
from inferwatch.cli.running.replay_start import ReplayStart, begin_replay
from inferwatch.errors import SourceError, UsageError
from inferwatch.live.attached.nearby import nearby_engines
from inferwatch.live.engine.demo import demo_load, demo_source
from inferwatch.live.engine.engine_session import EngineSession
from inferwatch.live.engine_source import FoundEngine
from inferwatch.live.pipeline import Pipeline
from inferwatch.live.watch import Watch
from inferwatch.metrics.model.model import Model
from inferwatch.record.file.location import default_database
from inferwatch.record.replay.player import Player
from inferwatch.record.replay.replay_state import AS_RECORDED, ReplayOverrides
from inferwatch.sample import sample_file
from inferwatch.ui.messages import (
    GoTo,
    OpenComparison,
    OpenDemo,
    OpenSample,
    OpenServed,
    OpenServers,
    OpenSession,
)
from inferwatch.ui.pages import (
    ComparePage,
    OpeningPage,
    SessionPage,
    StartPage,
    Tell,
    TunePage,
)
from inferwatch.ui.view import View

if TYPE_CHECKING:
    from inferwatch.studies.compare.runs.selection import ComparisonRequest
    from inferwatch.studies.tune.progress import TuneTask


def open_page(wish: GoTo, tell: Tell) -> OpeningPage:
    """Return the page that a screen asks for.

    Raises:
        UsageError: there is no such page.
    """
    match wish:
        case OpenSession(database=database, session=session):
            return replay_page(database, session, ReplayStart())
        case OpenSample():
            return _sample_page()
        case OpenDemo():
            return _demo_page(tell)
        case OpenServers(urls=urls):
            return _attach_page(urls, tell)
        case OpenServed(engine_id=engine_id):
            return _served_page(engine_id, tell)
        case OpenComparison(database=database, sessions=sessions):
            from inferwatch.studies.compare.runs.selection import ComparisonRequest

            return compare_page(ComparisonRequest(database=database, sessions=sessions))
    raise UsageError(f"nothing is opened by {wish}")


@asynccontextmanager
async def start_page(database: Path) -> AsyncIterator[StartPage]:
    from inferwatch.cli.servers.fleet import named_servers

    yield StartPage(database, nearby_engines, named_servers())


@asynccontextmanager
async def replay_page(
    database: Path,
    session: str,
    start: ReplayStart,
    overrides: ReplayOverrides = AS_RECORDED,
) -> AsyncIterator[SessionPage]:
    """Open a recorded session.

    Raises:
        InferwatchError: it cannot be opened, or has no such moment.
    """
    player = await asyncio.to_thread(Player.open, database, session, overrides)
    running = asyncio.create_task(player.run())
    try:
        await asyncio.sleep(0)  # a task cancelled before its first step closes nothing
        t_ns = start.moment(player)
        going = asyncio.create_task(begin_replay(player, t_ns, start))
        failed = asyncio.create_task(_failed(going))
        screen = "hardware" if player.only_hardware else "overview"
        screen = "load" if player.only_load else screen
        view = View(window=start.window, screen=screen, database=database)
        try:
            yield SessionPage(player, view, over=failed)
        finally:
            failed.cancel()
            going.cancel()
        with suppress(asyncio.CancelledError):
            await going
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def _failed(task: asyncio.Task[None]) -> None:
    """Return once the task has failed; wait for ever if it succeeds."""
    await asyncio.wait([task])
    if task.cancelled() or task.exception() is None:
        await asyncio.Event().wait()


@asynccontextmanager
async def _sample_page() -> AsyncIterator[SessionPage]:
    path = await asyncio.to_thread(sample_file)
    async with replay_page(path, "last", ReplayStart(from_load=True)) as sample:
        yield sample


@asynccontextmanager
async def watch_page(
    watch: Watch, database: Path, tell: Tell
) -> AsyncIterator[SessionPage]:
    """Show a live watch; the sessions of ``database`` are listed beside it.

    Raises:
        SourceError: the engine was lost.
    """
    watching = asyncio.create_task(watch.run())
    with watchdog.patience(watchdog.ENDS_ENGINE_S):
        try:
            screen = "hardware" if watch.only_hardware else "overview"
            view = View(screen=screen, database=database)
            yield SessionPage(watch, view, over=watching)
        finally:
            runs_on = watch.runs_on
            if watch.load_desk.running:
                tell("stopping the load ...")
            if not runs_on:
                tell("stopping the engine ...")
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
    _say_goodbye(watch, database, tell, runs_on=runs_on)


def _say_goodbye(watch: Watch, database: Path, tell: Tell, *, runs_on: bool) -> None:
    if runs_on:
        tell(watch.farewell)
    for line in watch.alarms.farewell() if watch.alarms else ():
        tell(line)
    if watch.record is not None and watch.record.flight is None:
        tell(where_recorded(watch.record.session_id, database))
    if watch.failure is not None:
        raise SourceError(watch.failure)


@asynccontextmanager
async def _demo_page(tell: Tell) -> AsyncIterator[SessionPage]:
    """Open the demo, chosen on a screen.

    Raises:
        InferwatchError: it cannot be recorded, or the engine was lost.
    """
    source = demo_source()
    clock, pipeline = _recorded("demo")
    watch = EngineSession(clock, pipeline, source, demo_load(0))
    async with watch_page(watch, default_database(), tell) as demo:
        yield demo


@asynccontextmanager
async def _attach_page(urls: Sequence[str], tell: Tell) -> AsyncIterator[SessionPage]:
    """Attach to running servers, chosen on a screen.

    Raises:
        InferwatchError: an address is wrong, or it cannot be recorded.
    """
    from inferwatch.cli.servers.fleet import servers_of
    from inferwatch.cli.servers.options import ServerOptions
    from inferwatch.live.attached.attached_session import AttachedSession

    servers = servers_of(ServerOptions(urls=urls))
    clock, pipeline = _recorded("attach")
    watch = AttachedSession(clock, pipeline, servers)
    async with watch_page(watch, default_database(), tell) as attached:
        yield attached


@asynccontextmanager
async def _served_page(engine_id: str, tell: Tell) -> AsyncIterator[SessionPage]:
    """Watch an engine that inferwatch serves, chosen on a screen.

    Raises:
        InferwatchError: it is gone, or it cannot be recorded.
    """
    source = FoundEngine.of(engine_id)
    clock, pipeline = _recorded("attach")
    watch = EngineSession(clock, pipeline, source)
    async with watch_page(watch, default_database(), tell) as served:
        yield served


def _recorded(command: str) -> tuple[SessionClock, Pipeline]:
    """Return the clock and the recording pipeline of a session started on a screen."""
    clock = SessionClock()
    recorder = open_recorder(command, clock, database=None, name=None, record=True)
    return clock, Pipeline(Model(), recorder)


@asynccontextmanager
async def compare_page(request: "ComparisonRequest") -> AsyncIterator[ComparePage]:
    """Compare sessions.

    Raises:
        InferwatchError: the comparison failed.
    """
    compared = ComparePage(request)
    yield compared
    if compared.failure is not None:
        raise compared.failure


@asynccontextmanager
async def tune_page(task: "TuneTask", tell: Tell) -> AsyncIterator[TunePage]:
    """Run a tune while people watch it; on leaving, end it with what it has.

    Raises:
        InferwatchError: it could not be carried out.
    """
    stop = asyncio.Event()
    running = asyncio.ensure_future(task.run(stop))
    with watchdog.patience(watchdog.ENDS_ENGINE_S):
        try:
            yield TunePage(task, running, stop)
        finally:
            if not running.done():
                tell("ending the tune, and the engine that it started ...")
            stop.set()
            await running
