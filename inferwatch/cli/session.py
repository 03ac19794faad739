"""Runs one watch, on the screen or headless, and leaves nothing behind."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

import click

from collectors.clock import SessionClock
from inferwatch.cli.headless import watch_headless
from inferwatch.cli.recording import open_recorder
from inferwatch.config import WatchOptions
from inferwatch.errors import SourceError
from inferwatch.metrics.model import Model
from inferwatch.pipeline import Pipeline
from inferwatch.watching.sources import EngineSource
from inferwatch.watching.watch import MakeLoad, Watch


def run_watch(
    command: str,
    options: WatchOptions,
    source: EngineSource,
    make_load: MakeLoad | None = None,
) -> int:
    """Watch until told to stop; the exit status.

    Raises:
        StorageError: the record cannot be opened.
        SourceError: the engine was lost or never came, and nobody was looking.
    """
    clock = SessionClock()
    recorder = open_recorder(
        command,
        clock,
        database=options.database,
        name=options.name,
        record=options.record,
    )
    watch = Watch(clock, Pipeline(Model(), recorder), source, make_load)
    if options.headless:
        return asyncio.run(watch_headless(watch, options))
    _ready_terminal()
    return asyncio.run(_watch_on_screen(watch, options))


def _ready_terminal() -> None:
    """Child processes must start before Textual takes the terminal's descriptors."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()


async def _watch_on_screen(watch: Watch, options: WatchOptions) -> int:
    from inferwatch.app import InferwatchApp

    app = InferwatchApp(watch)
    watching = asyncio.create_task(watch.run())
    watching.add_done_callback(lambda _: app.exit())
    _on_signals(app.exit)
    if options.duration_s is not None:
        asyncio.get_running_loop().call_later(options.duration_s, app.exit)
    try:
        await app.run_async()
    finally:
        runs_on = watch.served and watch.live.is_set()
        if not runs_on:
            _say("stopping the engine ...")
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    return _say_goodbye(watch, runs_on=runs_on)


def _on_signals(leave: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, leave)


def _say_goodbye(watch: Watch, *, runs_on: bool) -> int:
    if runs_on:
        _say("detached; the engine runs on. `inferwatch` finds it again.")
    if watch.record is not None:
        _say(f"recorded as {watch.record.session_id}. `inferwatch sessions` lists.")
    if watch.lost.is_set():
        raise SourceError(watch.reason)
    return 0


def _say(text: str) -> None:
    """Tell people, if the terminal is still there to be told."""
    with suppress(OSError):
        click.echo(text, err=True)
