"""Shows a live watch on the terminal, and says goodbye when it is left."""

import asyncio
from contextlib import suppress
from pathlib import Path

from collectors.clock import SessionClock
from inferwatch import watchdog
from inferwatch.cli.recording import open_recorder
from inferwatch.cli.stage import Stage
from inferwatch.errors import SourceError
from inferwatch.metrics.model import Model
from inferwatch.session.demo import demo_load, demo_source
from inferwatch.session.pipeline import Pipeline
from inferwatch.session.watch import Watch
from inferwatch.storage.file.location import default_database
from inferwatch.ui.shared.terminal import terminal


async def watch_on(
    stage: Stage, watch: Watch, database: Path, duration_s: float | None = None
) -> int:
    """Until it is left; the exit status.

    Raises:
        SourceError: the engine was lost.
    """
    watching = asyncio.create_task(watch.run())
    if duration_s is not None:
        asyncio.get_running_loop().call_later(duration_s, stage.leave)
    with watchdog.patience(watchdog.ENDS_ENGINE_S):
        try:
            await stage.show(watch, database, until=watching)
        finally:
            runs_on = watch.served and watch.live.is_set()
            if watch.load_desk.running:
                terminal().say("ending the load ...")
            if not runs_on:
                terminal().say("stopping the engine ...")
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
    return _say_goodbye(watch, runs_on=runs_on)


async def watch_demo(stage: Stage) -> None:
    """The demo, begun from a screen.

    Raises:
        InferwatchError: it cannot be recorded, or the engine was lost.
    """
    source, clock = demo_source(), SessionClock()
    recorder = open_recorder("demo", clock, database=None, name=None, record=True)
    watch = Watch(clock, Pipeline(Model(), recorder), source, demo_load(0))
    await watch_on(stage, watch, default_database())


def _say_goodbye(watch: Watch, *, runs_on: bool) -> int:
    if runs_on:
        terminal().say("detached; the engine runs on. `inferwatch` finds it again.")
    if watch.record is not None:
        terminal().say(
            f"recorded as {watch.record.session_id}. `inferwatch sessions` lists."
        )
    if watch.lost.is_set():
        raise SourceError(watch.reason)
    return 0
