"""What is found out about a session in the background: its marks and its shape."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from time import monotonic

from inferwatch.errors import StorageError
from inferwatch.feed import Mark
from inferwatch.metrics.snapshot import Timeline
from inferwatch.replay.frame import UNREADABLE
from inferwatch.replay.marks import in_order, quick_marks, slow_marks
from inferwatch.replay.shape import shape
from inferwatch.replay.thread_work import until_done
from inferwatch.storage.file.connections import open_for_reading
from inferwatch.storage.file.faults import explain
from inferwatch.storage.sessions.session_state import SessionState
from inferwatch.storage.sessions.sessions import SessionRow, find

AGAIN_S = 10.0
"""Between two looks at a session that goes on."""
REST = 20
"""Times as long as looking took, at least: long sessions are looked at less often."""
INSTRUCTIONS = 50_000
"""Of SQLite's machine, between two looks at whether anybody still waits."""


class Overview:
    """Complete a while after opening; of what goes on, a while behind."""

    def __init__(self, path: Path, session: SessionRow) -> None:
        self.shape: Timeline | None = None
        self.marks: tuple[Mark, ...] = ()
        self.damage: str | None = None
        """Why not all of it can be found out; None when all is well."""
        self._path = path
        self._session = session
        self._quick: list[Mark] = []
        self._slow: list[Mark] = []
        self._given_up = False

    def add(self, mark: Mark) -> None:
        """One that was just made."""
        self._quick = [*self._quick, mark]
        self._arrange()

    async def run(self) -> None:
        """Find out, again and again while the session goes on; until cancelled."""
        while True:
            began_s = monotonic()
            await until_done(self.look, self._give_up)
            if self._session.state is not SessionState.RECORDING:
                return
            await asyncio.sleep(max(AGAIN_S, REST * (monotonic() - began_s)))

    def _give_up(self) -> None:
        self._given_up = True

    def look(self) -> None:
        """Ask the record; of a damaged one, what it says."""
        try:
            self._session = find(self._path, self._session.id)
            with closing(open_for_reading(self._path)) as connection:
                connection.set_progress_handler(lambda: self._given_up, INSTRUCTIONS)
                self._ask(connection)
        except (*UNREADABLE, StorageError) as error:
            if not self._given_up:  # whoever is told to end is interrupted
                self.damage = explain(error, Path(self._path.name))

    def _ask(self, connection: sqlite3.Connection) -> None:
        number = self._session.session
        self._quick = quick_marks(connection, number)
        self._arrange()
        self.shape = shape(connection, number, self._session.duration_ns)
        self._slow = slow_marks(connection, number)
        self._arrange()

    def _arrange(self) -> None:
        self.marks = in_order([*self._quick, *self._slow])
