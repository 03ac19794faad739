"""Opens the recorder of a session by the options, and says what to do with it."""

from contextlib import suppress
from pathlib import Path

from collectors.contract.clock import NS_PER_S, SessionClock
from inferwatch.errors import InferwatchError
from inferwatch.live.alarms.options import AlarmOptions
from inferwatch.printing.command import command as typed
from inferwatch.printing.command import recorded_as
from inferwatch.record.file.location import default_database
from inferwatch.record.flight.flight_recorder import FlightRecorder
from inferwatch.record.flight.kept_readings import KeptReadings
from inferwatch.record.sessions.retention import prune_beside, set_limits
from inferwatch.record.sessions.sessions import list_sessions
from inferwatch.record.writing.recorder import Recorder
from inferwatch.studies.compare.runs.sides import session_before
from inferwatch.watchdog import before_the_end


def open_recorder(
    command: str,
    clock: SessionClock,
    *,
    database: Path | None,
    name: str | None,
    record: bool,
) -> Recorder | None:
    """Open a recorder; return None if nothing is to be recorded.

    Raises:
        StorageError: the record cannot be opened.
        UsageError: the retention setting cannot be parsed.
    """
    if not record:
        return None
    path, limits = database or default_database(), set_limits()
    recorder = Recorder.open(path, clock=clock, name=name, command=command)
    before_the_end(recorder.close)
    if limits is not None:
        prune_beside(path, limits)
    return recorder


def open_flight_recorder(
    command: str,
    clock: SessionClock,
    alarms: AlarmOptions,
    *,
    database: Path | None,
) -> FlightRecorder:
    """Open a flight recorder: it keeps readings in memory until a rule holds.

    Raises:
        UsageError: the retention setting cannot be parsed.
    """
    path, limits = database or default_database(), set_limits()
    readings = KeptReadings(round(alarms.keep_s * NS_PER_S), alarms.keep_bytes)
    recorder = FlightRecorder(path, clock, readings, command=command)
    before_the_end(recorder.close)
    if limits is not None and path.exists():
        prune_beside(path, limits)
    return recorder


def where_recorded(session: str, database: Path) -> str:
    """Say how to open a session again, and to compare it with the one before it."""
    text = recorded_as(session, database)
    with suppress(InferwatchError):
        rows = list_sessions(database)
        row = next((each for each in rows if each.id == session), None)
        before = None if row is None else session_before(rows, row)
        if row is not None and before is not None and row.requests:
            both = typed("compare", before.id, session, database=database)
            text += f" `{both}` compares it with the one before."
    return text
