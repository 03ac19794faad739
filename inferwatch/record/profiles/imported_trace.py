"""Ties a trace that somebody else took to a recorded session, by the wall clock.

It is copied beside the record and becomes a profile of the session, as if it had been
taken by us.
"""

import re
import sqlite3
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Profile, ProfileState
from inferwatch.errors import StorageError, UsageError
from inferwatch.formatting import wall_clock
from inferwatch.metrics.steps.profiles import ProfileLog
from inferwatch.profiles.reading import read_span
from inferwatch.profiles.trace_span import TraceSpan
from inferwatch.record.file.sqlite import transaction
from inferwatch.record.file.trace_folder import copy_plain, is_trace, traces_folder
from inferwatch.record.lookup.recorded_readings import chosen_readings
from inferwatch.record.sessions.housekeeping import changing, not_recorded
from inferwatch.record.sessions.sessions import SessionRow, rows_of
from inferwatch.record.tables.migrations import session_tables
from inferwatch.record.tables.reading_tables import every_table
from inferwatch.record.tables.table import RowBatch

ANCHORS = (
    "SELECT t_ns, wall_ns FROM clock_anchors JOIN sessions USING (session, boot_id) "
    "WHERE session = ? ORDER BY t_ns"
)
ENGINES = (
    "SELECT DISTINCT source, name FROM engines JOIN sources USING (session, source) "
    "WHERE session = ? ORDER BY name"
)
NOT_A_NAME = re.compile(r"[^\w.-]", re.ASCII)
SpanReader = Callable[[Path], Awaitable[TraceSpan]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTrace:
    """A trace that is a profile of a session now."""

    number: int
    """Of the profile, among those of the session."""
    key: str
    source: str
    begin_ns: int
    """In session time, like the end."""
    end_ns: int
    events: int
    place: Path


async def import_trace(
    database: Path,
    session: SessionRow,
    path: Path,
    source: str | None = None,
    read: SpanReader = read_span,
) -> ImportedTrace:
    """Make a trace a profile of a session; ``source`` is its engine, if of several.

    Raises:
        UsageError: it is not of the session's time, or of which engine is not said.
        StorageError: it is no trace, or the record cannot be written.
    """
    if not is_trace(path):
        raise UsageError(
            f"{path} is not called as a trace is: .json or .json.gz of torch's "
            "profiler, or .sqlite of Nsight Systems (`nsys export --type sqlite`)"
        )
    span = await read(path)
    with changing(database) as connection:
        not_recorded(rows_of(connection, database, bin_too=True), [session.session])
        number, name = _engine(connection, session, source)
        offset_ns = _offset_ns(connection, session, span.begin_ns)
        begin_ns, end_ns = span.begin_ns - offset_ns, span.end_ns - offset_ns
        if end_ns < 0 or begin_ns > session.duration_ns:
            raise UsageError(_elsewhen(session, span))
        key = f"imported-{_count(connection, session) + 1}"
        place = traces_folder(database, session.id) / (
            f"{key}_{NOT_A_NAME.sub('-', path.name)}"
        )
        begun = Profile(
            source=name,
            t_ns=begin_ns,
            rank=span.rank,
            number=_count(connection, session) + 1,
            state=ProfileState.STARTED,
            steps_asked=0,
            prefix=key,
            directory=str(place.parent),
            by=f"import of {path.name}",
            realtime_ns=span.begin_ns,
        )
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            copy_plain(path, place)
        except OSError as error:
            raise StorageError(f"{place}: {error.strerror or error}") from error
        try:
            _insert(connection, session, number, begun, end_ns, span.end_ns)
        except BaseException:
            place.unlink(missing_ok=True)
            raise
        return ImportedTrace(
            number=_position(connection, session, key),
            key=key,
            source=name,
            begin_ns=begin_ns,
            end_ns=end_ns,
            events=span.events,
            place=place,
        )


def _engine(
    connection: sqlite3.Connection, session: SessionRow, source: str | None
) -> tuple[int, str]:
    """Return the number and the name of the engine that a trace is of."""
    engines: Sequence[tuple[int, str]] = connection.execute(
        ENGINES, (session.session,)
    ).fetchall()
    found = [each for each in engines if source in {None, each[1]}]
    if len(found) == 1:
        return found[0]
    names = ", ".join(name for _, name in engines)
    if not engines:
        raise UsageError(f"{session.id} tells of no engine's steps: there is no probe")
    if source is not None:
        raise UsageError(f"{session.id} has no engine {source}: there is {names}")
    raise UsageError(f"{session.id} is of several engines: --source is one of {names}")


def _offset_ns(
    connection: sqlite3.Connection, session: SessionRow, wall_ns: int
) -> int:
    """Return what to take from the wall clock for session time, at that time."""
    anchors: Sequence[tuple[int, int]] = connection.execute(
        ANCHORS, (session.session,)
    ).fetchall() or [(0, session.started_ns)]
    at = bisect_right(anchors, wall_ns, key=lambda anchor: anchor[1])
    t_ns, anchor_ns = anchors[max(at - 1, 0)]
    return anchor_ns - t_ns


def _elsewhen(session: SessionRow, span: TraceSpan) -> str:
    ended_ns = session.started_ns + session.duration_ns
    return (
        f"the trace is of {_day(span.begin_ns)} to {_day(span.end_ns)}, and "
        f"{session.id} was watched from {_day(session.started_ns)} to {_day(ended_ns)}"
    )


def _day(wall_ns: int) -> str:
    return wall_clock(wall_ns) if wall_ns > NS_PER_S else "an unknown time"


def _count(connection: sqlite3.Connection, session: SessionRow) -> int:
    query = "SELECT count(*) FROM profiles WHERE session = ? AND state = ?"
    parameters = session.session, ProfileState.STARTED
    (count,) = connection.execute(query, parameters).fetchone()
    return int(count)


def _insert(
    connection: sqlite3.Connection,
    session: SessionRow,
    source: int,
    begun: Profile,
    end_ns: int,
    realtime_ns: int,
) -> None:
    """Add both readings after all others of the session."""
    ended = replace(
        begun, t_ns=end_ns, state=ProfileState.ENDED, realtime_ns=realtime_ns
    )
    (table,) = (each for each in every_table() if each.kind is Profile)
    with transaction(connection):
        ordinal = _latest(connection, session)
        batch = RowBatch()
        for at, each in enumerate((begun, ended), 1):
            table.add(batch, (session.session, ordinal + at, source), each)
        batch.insert(connection)


def _latest(connection: sqlite3.Connection, session: SessionRow) -> int:
    """Return the ordinal of a session's latest reading."""
    latest = 0
    for table in session_tables(connection):
        columns = connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
        if "ordinal" in {name for (name,) in columns}:
            (found,) = connection.execute(
                f"SELECT max(ordinal) FROM {table} WHERE session = ?",  # noqa: S608  our own names
                (session.session,),
            ).fetchone()
            latest = max(latest, found or 0)
    return latest


def _position(connection: sqlite3.Connection, session: SessionRow, key: str) -> int:
    """Return which of the session's profiles one is."""
    log = ProfileLog()
    for each in chosen_readings(connection, session.session, [Profile]):
        if isinstance(each, Profile):
            log.take(each)
    return next(each.number for each in log.every if key in each.prefixes)
