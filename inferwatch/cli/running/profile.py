"""Profiles steps of an engine that runs, or reads a profile again, and prints it."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import psutil

from collectors.contract.clock import SessionClock
from collectors.probe.profiling import DEFAULT_S, LONGEST_S, STEPS
from inferwatch.cli.running.attach import session_maker
from inferwatch.cli.running.profile_output import (
    NOTES,
    ProfileOptions,
    ReadProfile,
    print_profile,
)
from inferwatch.cli.running.recorded_profile import print_recorded
from inferwatch.cli.running.recording import open_recorder, where_recorded
from inferwatch.cli.say import (
    say,
    say_no_more,
    say_now,
)
from inferwatch.cli.servers.options import ServerOptions
from inferwatch.cli.words import is_address
from inferwatch.errors import (
    InferwatchError,
    SourceError,
    StorageError,
    UsageError,
)
from inferwatch.feed import ProfileProgress, ProfileStage
from inferwatch.formatting import counted
from inferwatch.live.alarms.alarms import WatchedRule
from inferwatch.live.alarms.rules import rules_of
from inferwatch.live.attached.attached_session import AttachedSession
from inferwatch.live.attached.nearby import nearby_engines
from inferwatch.live.pipeline import Pipeline
from inferwatch.live.watch import Watch
from inferwatch.metrics.model.model import Model
from inferwatch.printing.command import command
from inferwatch.printing.destination import Destination, page_at
from inferwatch.printing.document import Block
from inferwatch.printing.summary.profile import (
    context_of,
)
from inferwatch.printing.summary.profiler_commands import (
    EngineProcessCommand,
    profiler_commands,
)
from inferwatch.printing.text import document_text
from inferwatch.record.file.location import default_database
from inferwatch.visible import visible

COST = (
    "profiling {steps}: each takes longer meanwhile, and vLLM writes its traces within "
    "a step: expect a stall of some 100 ms to seconds"
)
LOOK_S = 0.5
"""How often it is looked whether a condition holds."""
TELL_S = 0.2
PROBE_S = 5.0
"""How long an engine's probe may take to be heard once its server has answered."""
LOST_S = 5.0
"""How long no server may answer while we wait for a condition."""
UNMET = 1


class ToldToEndError(InferwatchError):
    """We were told to end before there was a profile to print."""

    exit_status = 130


def run_profile(target: str | None, options: ProfileOptions) -> int:
    """Print a profile of an engine or of a session; return the exit status.

    Raises:
        UsageError: an option cannot be used.
        SourceError: the engine was lost, or cannot be profiled.
        StorageError: the session or its traces cannot be read.
        ToldToEndError: a signal came before there was anything to print.
    """
    destination = page_at(options.page, force=options.force, alone=not options.as_json)
    if options.most_s is not None and options.most_s > LONGEST_S:
        raise UsageError(f"--most is at most {LONGEST_S:g} s")
    if options.against_number is not None and options.against is None:
        raise UsageError("--against-number is for --against: name a session")
    if target is not None and not is_address(target):
        return print_recorded(target, options, destination)
    if options.number is not None:
        raise UsageError("--number is of a recorded session: name one")
    if options.against is not None:
        raise UsageError("--against compares recorded sessions: name one of them first")
    rules = rules_of(options.when) if options.when is not None else []
    return _live(
        target, options, destination, [WatchedRule(e, records=False) for e in rules]
    )


def _live(
    target: str | None,
    options: ProfileOptions,
    destination: Destination | None,
    rules: Sequence[WatchedRule],
) -> int:
    url = target or _only_engine()
    clock = SessionClock()
    make = session_maker(ServerOptions(urls=(url,)))
    recorder = open_recorder(
        "profile",
        clock,
        database=options.database,
        name=options.name,
        record=options.record and not options.commands,
    )
    watch = make(clock, Pipeline(Model(), recorder))
    if options.commands:
        say(document_text([each] for each in asyncio.run(_commands(watch))))
        return 0
    read = asyncio.run(_profile(watch, options, rules))
    if read is None:
        return UNMET
    print_profile(read, options, destination)
    if watch.record is not None:
        database = options.database or default_database()
        say(
            f"inferwatch: {where_recorded(watch.record.session_id, database)}", err=True
        )
    return 0


def _only_engine() -> str:
    """Return the address of the one engine on this node.

    Raises:
        SourceError: none runs.
        UsageError: several do.
    """
    engines = [
        each
        for each in asyncio.run(nearby_engines(hostages=True))
        if each.orphan_pid is None
    ]
    if not engines:
        raise SourceError("no engine runs on this node: give a URL")
    if len(engines) > 1:
        names = ", ".join(visible(each.attach_to) for each in engines)
        raise UsageError(f"several engines run on this node: give one of {names}")
    return engines[0].attach_to


@asynccontextmanager
async def _watched(watch: Watch) -> AsyncIterator[asyncio.Event]:
    """Watch until the context ends; yields what is set when we are told to stop."""
    watching = asyncio.create_task(watch.run())
    stop = asyncio.Event()
    watching.add_done_callback(lambda _: stop.set())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await _first(watch.settled, stop)
        if watch.failure is not None:
            raise SourceError(watch.failure)
        yield stop
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _first(*events: asyncio.Event) -> None:
    """Wait until any of these is set."""
    waits = [asyncio.create_task(each.wait()) for each in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()


async def _profile(
    watch: Watch, options: ProfileOptions, rules: Sequence[WatchedRule]
) -> ReadProfile | None:
    """Profile, and read what was profiled; None if a condition has not held.

    Raises:
        SourceError: the engine was lost, or cannot be profiled.
        ToldToEndError: a signal came before there was anything to print.
    """
    desk = watch.profile_desk
    async with _watched(watch) as stop:
        until_s = monotonic() + PROBE_S
        while desk.unavailable is not None and monotonic() < until_s:
            _go_on(watch, stop)
            await asyncio.sleep(LOOK_S)
        if desk.unavailable is not None:
            raise SourceError(watch.failure or desk.unavailable)
        if rules and not await _holds(watch, rules, options.within_s, stop):
            return None
        steps = STEPS if options.steps is None else options.steps
        say(f"inferwatch: {COST.format(steps=counted(steps, 'step'))}", err=True)
        await desk.begin(steps, most_s=options.most_s or DEFAULT_S)
        done = await _follow(watch, stop, options.database or default_database())
        profile = desk.shelf.find(done.key) if done.key else None
        if done.stage is not ProfileStage.DONE or profile is None:
            kept = profile is not None
            kind = StorageError if kept else SourceError
            raise kind(f"nothing was profiled: {done.text}")
        record, report = watch.record, await desk.report(profile.key)
        context = context_of(
            profile,
            watch.present(),
            record.session_id if record else None,
            watch.wall_text(profile.began_ns, ms=True),
            desk.shelf.held_up_ns(profile),
        )
        return ReadProfile(
            report=report,
            context=context,
            traces=desk.shelf.traces(profile),
        )


async def _holds(
    watch: Watch,
    rules: Sequence[WatchedRule],
    within_s: float | None,
    stop: asyncio.Event,
) -> bool:
    """Wait until a rule holds; False if none has in time.

    Raises:
        SourceError: the engine was lost meanwhile.
        ToldToEndError: a signal came.
    """
    text = " | ".join(each.rule.text for each in rules)
    say(f"inferwatch: waiting for {visible(text)}", err=True)
    watch.profile_desk.await_condition(text)
    until_s = monotonic() + (within_s if within_s is not None else float("inf"))
    answered_s = monotonic()
    while monotonic() < until_s:
        _go_on(watch, stop)
        if watch.failure is None:
            answered_s = monotonic()
        elif monotonic() - answered_s > LOST_S:
            raise SourceError(f"nothing was profiled: {watch.failure}")
        now = watch.present()
        judged = [] if now.catching_up else [each.look(now) for each in rules]
        if sentence := next((each.sentence for each in judged if each), None):
            say(f"inferwatch: {visible(sentence)}", err=True)
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await stop.wait()
    for each in rules:
        if each.why_unknown and not each.judged:
            why = f"{each.rule.text} could not be judged: {each.why_unknown}"
            say(f"inferwatch: {visible(why)}", err=True)
    say(f"inferwatch: nothing was profiled: {visible(text)} did not hold", err=True)
    return False


def _go_on(watch: Watch, stop: asyncio.Event) -> None:
    """Do nothing unless we are to stop.

    Raises:
        SourceError: the engine was lost.
        ToldToEndError: a signal came.
    """
    if not stop.is_set():
        return
    if watch.failure is not None:
        raise SourceError(f"nothing was profiled: {watch.failure}")
    raise ToldToEndError("nothing was profiled: it was told to end")


async def _follow(watch: Watch, stop: asyncio.Event, database: Path) -> ProfileProgress:
    """Show how it goes until it is read.

    A first signal ends the profile early, so that what has come is read; a further one,
    or one while it is read, ends us.

    Raises:
        ToldToEndError: we were told to.
    """
    desk = watch.profile_desk
    ended = asyncio.create_task(desk.ended())
    tasks: list[asyncio.Task[Any]] = [ended]
    told = ""
    try:
        while not ended.done():
            await asyncio.wait([ended], timeout=TELL_S)
            if stop.is_set() and not ended.done():
                stop.clear()
                if desk.progress.stage is ProfileStage.READING or len(tasks) > 1:
                    raise ToldToEndError(_unread(watch, database))
                tasks.append(asyncio.create_task(desk.stop()))
            text = _progress_text(desk.progress)
            if text != told:
                told = text
                _show(text)
    finally:
        if sys.stderr.isatty():
            say_no_more()
        for each in tasks:
            each.cancel()
    return desk.progress


def _unread(watch: Watch, database: Path) -> str:
    """Say how what was profiled can be read later."""
    if watch.profile_desk.progress.stage is not ProfileStage.READING:
        return "it was told to end: nothing was read of the profile"
    if watch.record is None or not watch.record.session_id:
        return "it was told to end: the traces were not read"
    again = command("profile", watch.record.session_id, database=database)
    return f"it was told to end: the traces were not read; `{again}` reads them"


def _progress_text(progress: ProfileProgress) -> str:
    text = NOTES.get(progress.stage, "")
    if progress.stage is ProfileStage.PROFILING and progress.steps is not None:
        text += f": {progress.steps:,} of {counted(progress.steps_asked, 'step')}"
    if progress.stage is ProfileStage.READING and progress.read_share is not None:
        text += f": {progress.read_share:.0%}"
    return text


def _show(text: str) -> None:
    """Show progress on a terminal alone: elsewhere the result is enough."""
    if sys.stderr.isatty() and text:
        say_now(text)


async def _commands(watch: AttachedSession) -> list[Block]:
    """Return commands of other profilers for the engine's processes."""
    async with _watched(watch):
        await asyncio.sleep(LOOK_S)  # until its processes were looked up
        found = watch.engine_processes()
    return profiler_commands([_process(pid, role) for pid, role in found])


def _process(pid: int, role: str) -> EngineProcessCommand:
    arguments: list[str] = []
    with suppress(psutil.Error, OSError):
        arguments = psutil.Process(pid).cmdline()
    return EngineProcessCommand(pid=pid, role=role, arguments=arguments)
