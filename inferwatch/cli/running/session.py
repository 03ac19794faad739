"""Runs one watch, on the screen or headless, and stops what it started."""

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from collectors.contract.clock import SessionClock
from collectors.contract.collector import Listener
from collectors.contract.readings import Note, NoteKind
from inferwatch.cli.options import WatchOptions
from inferwatch.cli.running.recording import (
    open_flight_recorder,
    open_recorder,
    where_recorded,
)
from inferwatch.cli.say import say, say_json, say_no_more, say_now
from inferwatch.errors import SourceError
from inferwatch.live.engine.engine_session import EngineSession
from inferwatch.live.engine_source import EngineSource
from inferwatch.live.load.load_desk import MakeLoad
from inferwatch.live.pipeline import Pipeline
from inferwatch.live.watch import Watch
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.printing.summary.session import summarise, summary_text
from inferwatch.record.file.location import default_database
from inferwatch.visible import visible

BAR_CELLS = 24
NOTES_EVERY_S = 1.0


async def watch_headless(watch: Watch, options: WatchOptions) -> int:
    """Watch for the given time, and return the exit status.

    Raises:
        SourceError: the engine was lost or never came up.
    """
    await watch_to_the_end(watch, options)
    failure = watch.failure
    if options.as_json or watch.came_up or failure is None:
        _print_summary(watch, as_json=options.as_json)
    for line in watch.alarms.farewell() if watch.alarms else ():
        say(f"inferwatch: {line}", err=True)
    for line in watch.faults if options.once else ():  # otherwise they were noted
        say(f"inferwatch: {visible(line)}", err=True)
    if watch.record is not None and watch.record.message:
        say(f"inferwatch: {watch.record.message}", err=True)
    elif watch.record is not None and watch.record.flight is None and watch.came_up:
        database = options.database or default_database()
        where = where_recorded(watch.record.session_id, database)
        say(f"inferwatch: {where}", err=True)
    if failure is not None:
        raise SourceError(failure)
    return slo_status(watch.whole())


async def watch_to_the_end(watch: Watch, options: WatchOptions) -> None:
    """Watch for the given time, or until told to stop, with progress on stderr."""
    watching = asyncio.create_task(watch.run())
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await _until_end(watch, options, stop, watching)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


def slo_status(whole: Snapshot) -> int:
    """Return 1 if too few requests of the session held their objectives, else 0."""
    return 1 if whole.slo is not None and whole.slo.met is False else 0


async def _until_end(
    watch: Watch,
    options: WatchOptions,
    stop: asyncio.Event,
    watching: asyncio.Task[None],
) -> None:
    """Wait until the watch ends: by its duration, a stop, a lost engine, or a fault."""
    progress = HeadlessProgress(watch, options.duration_s, options.tell_every_s)
    waits = [asyncio.create_task(event.wait()) for event in (stop, watch.lost)]
    work = watch.settled.wait() if options.once else progress.show()
    showing = asyncio.ensure_future(work)
    try:
        await asyncio.wait(
            [*waits, showing, watching], return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        for task in (*waits, showing):
            task.cancel()
        progress.clear()


class HeadlessProgress:
    """Progress: a changing line on a terminal, elsewhere one every five seconds."""

    def __init__(
        self, watch: Watch, duration_s: float | None, tell_every_s: float = 5.0
    ) -> None:
        self._watch = watch
        self._duration_s = duration_s
        self._tell_every_s = tell_every_s
        self._live_line = sys.stderr.isatty()
        self._last_told: Note | None = None

    async def show(self) -> None:
        """Print the progress until the duration of the watch is over."""
        while not self._watch.begun.is_set():
            self._tell_stages()
            await asyncio.sleep(0.1)
        self._tell_stages()
        await self._count(time.monotonic())

    async def _count(self, began_s: float) -> None:
        interval_s = 0.5 if self._live_line else self._tell_every_s
        due_s = began_s
        while True:
            self._tell_stages()
            now_s = time.monotonic()
            left_s = float("inf")
            if self._duration_s is not None:
                left_s = began_s + self._duration_s - now_s
            if now_s >= due_s or left_s <= 0:
                self._tell_numbers(now_s - began_s)
                due_s = now_s + interval_s
            if left_s <= 0:
                return
            await asyncio.sleep(min(due_s - now_s, NOTES_EVERY_S, left_s))

    def clear(self) -> None:
        """Clear the progress line, so that other output can follow."""
        if self._live_line:
            say_no_more()

    def _tell_stages(self) -> None:
        notes = self._watch.notes
        places = (at for at, note in enumerate(notes, 1) if note is self._last_told)
        for note in notes[next(places, 0) :]:
            self.clear()
            text = note.text.partition("\n")[0]  # the end of a log may follow
            say(f"{note.t_ns / 1e9:6.1f} s  {visible(text)}", err=True)
            self._last_told = note

    def _tell_numbers(self, elapsed_s: float) -> None:
        text = _numbers(
            self._watch.snapshot(
                SnapshotQuery(Window.TEN_SECONDS, requests=False, client=False)
            )
        )
        if self._duration_s is not None:
            done = min(elapsed_s / self._duration_s, 1.0)
            filled = round(done * BAR_CELLS)
            bar = "━" * filled + "╌" * (BAR_CELLS - filled)
            text = f"{bar} {elapsed_s:4.0f}/{self._duration_s:.0f} s  {text}"
        else:
            text = f"{elapsed_s:6.0f} s  {text}"
        if self._live_line:
            say_now(text)
        else:
            say(text, err=True)


def _numbers(snapshot: Snapshot) -> str:
    """Return the present token rate and the requests running and waiting, as text."""
    flow = snapshot.flow
    tokens = flow.output_tokens_per_s_now
    rate = "–" if tokens is None else f"{tokens:,.0f}"
    running = "–" if flow.running is None else flow.running
    waiting = "–" if flow.waiting is None else flow.waiting
    return f"{rate} tok/s  {running} running  {waiting} waiting"


def _print_summary(watch: Watch, *, as_json: bool) -> None:
    """Print the summary of the whole session, up to its end."""
    record = watch.record
    summary = summarise(watch.whole(), record.session_id if record else None)
    if record is not None and record.flight is not None:
        summary |= {
            "session_id": next(reversed(record.flight.sessions), None),
            "session_ids": list(record.flight.sessions),
            "in_memory": {
                "keep_s": record.flight.keep_s,
                "kept_s": record.flight.kept_s,
                "kept_bytes": record.flight.kept_bytes,
                "cut_short": record.flight.cut_short,
            },
        }
    if as_json:
        say_json(summary)
    else:
        say(summary_text(summary))


MakeWatch = Callable[[SessionClock, Pipeline], Watch]


def run_engine_watch(
    command: str,
    options: WatchOptions,
    source: EngineSource,
    make_load: MakeLoad | None = None,
    first_stage: str | None = None,
) -> int:
    """Watch an engine until told to stop, and return the exit status.

    Args:
        command: The command that watches.
        options: Its options.
        source: Where the engine comes from.
        make_load: Plans the load, if there is to be one.
        first_stage: What the list of the start's stages begins with.

    Raises:
        StorageError: the record cannot be opened.
        SourceError: the engine was lost or never came up, and there is no screen.
    """

    def make(clock: SessionClock, pipeline: Pipeline) -> EngineSession:
        if first_stage is not None:
            note = Note(t_ns=clock.start_ns, kind=NoteKind.STAGE, text=first_stage)
            pipeline.take([clock.rebase(note, "")])
        return EngineSession(clock, pipeline, source, make_load)

    return run_watch(command, options, make)


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
    watch.stacks.is_on &= options.stacks
    if options.slo is not None:
        watch.hold_to(options.slo)
    if options.prices is not None:
        watch.pay(options.prices)
    if alarms.any:
        watch.look_out(alarms, flight, options.name)
    if options.headless:
        return asyncio.run(watch_headless(watch, options))
    from inferwatch.cli.running.on_screen import show_on_screen
    from inferwatch.cli.running.pages import watch_page
    from inferwatch.ui.terminal.terminal import terminal

    database = options.database or default_database()
    watching = watch_page(watch, database, terminal().say)
    return show_on_screen(watching, options.duration_s)
