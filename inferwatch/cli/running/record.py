"""Watches servers as a service, and lets others read the numbers."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from collectors.contract.clock import SessionClock
from collectors.contract.collector import Collector
from inferwatch.cli.options import WatchOptions
from inferwatch.cli.running.attach import session_maker, with_exporters
from inferwatch.cli.running.session import run_watch
from inferwatch.cli.say import say
from inferwatch.cli.servers.options import ServerOptions
from inferwatch.errors import SourceError, StorageError
from inferwatch.live.attached.nearby import nearby_engines
from inferwatch.live.outlets.endpoint import listen_address
from inferwatch.live.outlets.exact import ExactNumbers
from inferwatch.live.outlets.outlets import Outlets
from inferwatch.live.pipeline import Pipeline
from inferwatch.record.sessions.sessions import list_sessions
from inferwatch.record.tables.session_state import SessionState

COMMAND = "record"
STATE_WORDS = {
    SessionState.INTERRUPTED: "was interrupted",
    SessionState.UNKNOWN: "may still run",
}


def run_record(
    server_options: ServerOptions,
    options: WatchOptions,
    *,
    listen: str | None,
    otlp: str | None,
) -> int:
    """Record until told to stop, and return the exit status.

    Raises:
        UsageError: an option cannot be used, or the port cannot be bound.
        SourceError: no server answered within the given duration.
        StorageError: the record cannot be opened.
    """
    numbers = ExactNumbers()

    def others(clock: SessionClock, pipeline: Pipeline) -> Sequence[Collector]:
        outlets = Outlets(clock, numbers, lambda: pipeline.record)
        if earlier := _earlier_record(pipeline):
            outlets.say(earlier)
        if listen is not None:
            outlets.listen(*listen_address(listen))
        if otlp is not None:
            outlets.send_to(otlp)
        return [outlets]

    exports = listen is not None or otlp is not None
    try:
        make = session_maker(_with_engines_here(server_options), others)
        every = with_exporters(server_options, options)
        return run_watch(COMMAND, every, make, numbers.fold if exports else None)
    except SourceError as error:
        if options.duration_s is not None:
            raise
        say(f"inferwatch: ended while no server answers: {error}", err=True)
        return 0  # a service that is stopped has not failed


def _with_engines_here(server_options: ServerOptions) -> ServerOptions:
    """Add the engines on this node, if no server is named."""
    if server_options.name_any:
        return server_options
    engines = asyncio.run(nearby_engines(hostages=True))
    urls = [each.attach_to for each in engines if each.orphan_pid is None]
    if not urls:
        raise SourceError("no server runs on this node: give a URL")
    return replace(server_options, urls=tuple(urls))


def _earlier_record(pipeline: Pipeline) -> str | None:
    """Return a sentence on the earlier record that this one continues; None without."""
    record, path = pipeline.record, pipeline.database
    if record is None or path is None:
        return None
    try:
        rows = list_sessions(path)
    except StorageError:
        return None
    earlier = [
        row
        for row in rows
        if row.command == COMMAND
        and row.id != record.session_id
        and row.state is not SessionState.RECORDING
    ]
    if not earlier:
        return None
    last = max(earlier, key=lambda row: row.session)
    ended = STATE_WORDS.get(last.state, "ended")
    return f"goes on from {last.id}, which {ended}"
