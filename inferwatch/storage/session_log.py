"""The session's own row, as its recorder keeps it."""

import os
import sqlite3
from dataclasses import dataclass

from collectors.clock import SessionClock, anchor, boot_id
from collectors.processes import birth
from inferwatch import __version__
from inferwatch.storage.batch import Batch
from inferwatch.storage.columns import insert_sql
from inferwatch.storage.sessions import SessionState, mark_interrupted

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
PROGRESS = (
    "UPDATE sessions SET duration_ns = ?, readings = readings + ?, steps = steps + ?, "
    "requests = requests + ?, unrecorded = ?, model = coalesce(?, model) "
    "WHERE session = ?"
)
END = (
    "UPDATE sessions SET state = ?, reason = ?, duration_ns = ?, "
    "ended_ns = started_ns + ?, unrecorded = ? WHERE session = ?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLog:
    """Writes the row of one session; each call runs in the caller's transaction."""

    clock: SessionClock
    name: str | None
    command: str

    def begin(self, connection: sqlite3.Connection) -> int:
        """Give the session its number; whoever died before us is marked first."""
        mark_interrupted(connection)
        now = anchor()
        started_ns = now.wall_ns - (now.t_ns - self.clock.start_ns)
        pid = os.getpid()
        row = (
            *(self.name, self.command, SessionState.RECORDING),
            *(started_ns, self.clock.start_ns, __version__),
            *(boot_id(), pid, birth(pid)),
        )
        number = connection.execute(BEGIN, row).lastrowid
        return int(number or 0)

    def progress(
        self,
        connection: sqlite3.Connection,
        session: int,
        batch: Batch,
        unrecorded: int,
    ) -> None:
        """Count a batch in, so that the row is right whenever the recorder dies."""
        counts = (batch.readings, batch.steps, batch.requests, unrecorded, batch.model)
        row = (self.clock.now_ns(), *counts, session)
        connection.execute(PROGRESS, row)

    def end(
        self,
        connection: sqlite3.Connection,
        session: int,
        unrecorded: int,
        reason: str | None,
    ) -> None:
        """The session is complete."""
        now_ns = self.clock.now_ns()
        row = (SessionState.COMPLETE, reason, now_ns, now_ns, unrecorded, session)
        connection.execute(END, row)
