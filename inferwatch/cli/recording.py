"""Opens the record of a session as the options say."""

from pathlib import Path

from collectors.clock import NS_PER_S, SessionClock
from inferwatch.session.alarms.options import AlarmOptions
from inferwatch.storage.file.location import default_database
from inferwatch.storage.flight.flight_recorder import FlightRecorder
from inferwatch.storage.flight.kept_readings import KeptReadings
from inferwatch.storage.recording.recorder import Recorder
from inferwatch.storage.sessions.retention import prune_beside, set_limits
from inferwatch.watchdog import before_the_end


def open_recorder(
    command: str,
    clock: SessionClock,
    *,
    database: Path | None,
    name: str | None,
    record: bool,
) -> Recorder | None:
    """None when nothing is to be recorded.

    Raises:
        StorageError: the record cannot be opened.
        UsageError: a setting means nothing.
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
    """Keeps in memory what it records when a rule holds.

    Raises:
        UsageError: a setting means nothing.
    """
    path, limits = database or default_database(), set_limits()
    kept = KeptReadings(round(alarms.keep_s * NS_PER_S), alarms.keep_bytes)
    recorder = FlightRecorder(path, clock, kept, command=command)
    before_the_end(recorder.close)
    if limits is not None and path.exists():
        prune_beside(path, limits)
    return recorder
