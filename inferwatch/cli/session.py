"""Runs one watch, on the screen or headless, and stops what it started."""

import asyncio
from collections.abc import Callable

from collectors.contract.clock import SessionClock
from collectors.contract.collector import Listener
from inferwatch.cli.headless import watch_headless
from inferwatch.cli.options import WatchOptions
from inferwatch.cli.recording import open_flight_recorder, open_recorder
from inferwatch.live.engine.engine_session import EngineSession
from inferwatch.live.engine_source import EngineSource
from inferwatch.live.load.load_desk import MakeLoad
from inferwatch.live.pipeline import Pipeline
from inferwatch.live.watch import Watch
from inferwatch.metrics.model.model import Model
from inferwatch.record.file.location import default_database

MakeWatch = Callable[[SessionClock, Pipeline], Watch]


def run_engine_watch(
    command: str,
    options: WatchOptions,
    source: EngineSource,
    make_load: MakeLoad | None = None,
) -> int:
    """Watch an engine until told to stop, and return the exit status.

    Raises:
        StorageError: the record cannot be opened.
        SourceError: the engine was lost or never came up, and there is no screen.
    """
    return run_watch(
        command,
        options,
        lambda clock, pipeline: EngineSession(clock, pipeline, source, make_load),
    )


def run_watch(
    command: str,
    options: WatchOptions,
    make: MakeWatch,
    listener: Listener | None = None,
) -> int:
    """Watch until told to stop, and return the exit status.

    Raises:
        StorageError: the record cannot be opened.
        SourceError: what is watched was lost or never came up, and there is no screen.
    """
    clock, alarms = SessionClock(), options.alarms
    flight, recorder = None, None
    if alarms.record_on is not None:
        flight = open_flight_recorder(command, clock, alarms, database=options.database)
    else:
        recorder = open_recorder(
            command,
            clock,
            database=options.database,
            name=options.name,
            record=options.record,
        )
    watch = make(clock, Pipeline(Model(), flight or recorder, listener))
    watch.read_gpus(options.gpus)
    if options.slo is not None:
        watch.hold_to(options.slo)
    if options.prices is not None:
        watch.pay(options.prices)
    if alarms.any:
        watch.look_out(alarms, flight, options.name)
    if options.headless:
        return asyncio.run(watch_headless(watch, options))
    from inferwatch.cli.on_screen import show_on_screen
    from inferwatch.cli.pages import watch_page
    from inferwatch.ui.terminal.terminal import terminal

    database = options.database or default_database()
    watching = watch_page(watch, database, terminal().say)
    return show_on_screen(watching, options.duration_s)
