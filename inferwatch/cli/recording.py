"""Opens the record of a session as the options say."""

from pathlib import Path

from collectors.clock import SessionClock
from inferwatch.storage.file.location import default_database
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
