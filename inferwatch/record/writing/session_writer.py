"""Writes the rows of a session into an open file."""

import os
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from collectors.contract.clock import SessionClock, anchor, boot_id
from collectors.contract.liveness import birth
from inferwatch import __version__
from inferwatch.errors import SessionDeletedError
from inferwatch.record.connections import (
    close_after_writing,
    closed_on_failure,
    open_for_writing,
)
from inferwatch.record.file.recording_lock import RecordingLock
from inferwatch.record.file.sqlite import file_id, transaction
from inferwatch.record.sessions.sessions import BEGAN_BY_LAST_ANCHOR, mark_interrupted
from inferwatch.record.tables.codec import Queued, ReadingEncoder
from inferwatch.record.tables.session_state import SessionState
from inferwatch.record.tables.table import UNSTORABLE, RowBatch, insert_sql

BEGIN = insert_sql(
    "sessions",
    (
        "name",
        "command",
        "state",
        "started_ns",
        "start_monotonic_ns",
        "inferwatch_version",
        "boot_id",
        "pid",
        "birth",
    ),
)
IS_THERE = f"WHERE session = ? AND state <> '{SessionState.GOING}'"
PROGRESS = (
    "UPDATE sessions SET duration_ns = ?, readings = readings + ?, steps = steps + ?, "  # noqa: S608  our own words
    "requests = requests + ?, unrecorded = ?, model = coalesce(?, model), "
    # an older inferwatch that cannot see us may have marked us interrupted
    f"state = '{SessionState.RECORDING}', ended_ns = NULL {IS_THERE}"
)
END = (
    "UPDATE sessions SET state = ?, reason = ?, duration_ns = ?, "  # noqa: S608  our own words
    f"ended_ns = ? + {BEGAN_BY_LAST_ANCHOR}, unrecorded = ? {IS_THERE}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """What is known about a session before it is recorded."""

    clock: SessionClock
    name: str | None
    command: str


class SessionWriter:
    """Writes the rows of a session into an open file, from start to end."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        file: tuple[int, int],
        number: int,
        clock: SessionClock,
        lock: RecordingLock | None,
    ) -> None:
        self.file = file
        """The open file, see :func:`file_id`, as its name may refer to another by
        now."""
        self.number = number
        self.ended_ns: int | None = None
        """None while the session goes on."""
        self._connection = connection
        self._clock = clock
        self._lock = lock
        self._encoder = ReadingEncoder(number)

    @classmethod
    def begin(cls, path: Path, about: NewSession) -> Self:
        """Create a session, after marking those whose recorder died.

        Raises:
            StorageError, sqlite3.Error, OSError: the file cannot be written.
        """
        connection = open_for_writing(path)
        with closed_on_failure(connection):
            file = file_id(path)
            mark_interrupted(connection, path)
            with transaction(connection):
                row = connection.execute(BEGIN, _first_row(about)).lastrowid
        number = int(row or 0)
        lock = RecordingLock.take(path, number)
        return cls(connection, file, number, about.clock, lock)

    @property
    def started_ns(self) -> int:
        """Recorded start of the session, in Unix time."""
        query = "SELECT started_ns FROM sessions WHERE session = ?"
        (started_ns,) = self._connection.execute(query, (self.number,)).fetchone()
        return int(started_ns)

    def batch(self, readings: Iterable[Queued]) -> RowBatch:
        return self._encoder.batch(readings)

    def write(self, batch: RowBatch, unrecorded: int) -> int:
        """Commit a batch, or as much of it as can be stored; returns rows lost.

        ``unrecorded``: readings lost already, those of the batch included.

        Raises:
            SessionDeletedError: another program deleted the session. sqlite3.Error: the
                file is at fault; the same batch may be retried.
        """
        with suppress(*UNSTORABLE), transaction(self._connection):
            batch.insert(self._connection)
            self._progress(batch, batch.readings, unrecorded)
            return 0
        with transaction(self._connection):
            lost = batch.insert_what_can_be(self._connection)
            self._progress(batch, batch.readings - lost, unrecorded + lost)
        return lost

    def end(self, unrecorded: int, reason: str | None) -> None:
        """Mark the session as complete and leave one plain file, if possible.

        Raises:
            SessionDeletedError: another program deleted the session.
        """
        self.ended_ns = now_ns = self._clock.now_ns()
        row = (SessionState.COMPLETE, reason, now_ns, now_ns, unrecorded, self.number)
        ended = False
        try:
            with suppress(sqlite3.Error):
                with transaction(self._connection):
                    self._update(END, row)
                ended = True
        finally:
            close_after_writing(self._connection)
            if self._lock is not None:
                self._lock.release(ended=ended)

    def _progress(self, batch: RowBatch, readings: int, unrecorded: int) -> None:
        """Update the session's row, to be correct whenever the recorder dies."""
        counts = (readings, batch.steps, batch.requests, unrecorded, batch.model)
        row = (self._clock.now_ns(), *counts, self.number)
        self._update(PROGRESS, row)

    def _update(self, statement: str, row: tuple[object, ...]) -> None:
        if not self._connection.execute(statement, row).rowcount:
            raise SessionDeletedError(
                f"session s{self.number} was deleted by another program: start "
                "inferwatch again to record"
            )


def _first_row(about: NewSession) -> tuple[object, ...]:
    now, pid = anchor(), os.getpid()
    started_ns = now.wall_ns - (now.t_ns - about.clock.start_ns)
    return (
        about.name,
        about.command,
        SessionState.RECORDING,
        started_ns,
        about.clock.start_ns,
        __version__,
        boot_id(),
        pid,
        birth(pid),
    )
