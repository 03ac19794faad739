"""A recorded session for exporters: a consistent snapshot, in bounded memory."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from collectors.contract.readings import AnyReading, Note, NoteKind
from embedded_engine.engine.logs import redacted
from inferwatch.errors import StorageError
from inferwatch.record.connections import open_for_reading
from inferwatch.record.file.sqlite import explain
from inferwatch.record.sessions.sessions import SessionRow, find
from inferwatch.record.tables.codec import recorded
from inferwatch.record.tables.table import SourceNames


def note_text(note: Note) -> str:
    """The text of a note; for a lost engine without the log lines below the cause."""
    if note.kind is not NoteKind.LOST:
        return note.text
    return redacted(note.text.partition("\n")[0])


EVERY = 5_000
"""The number of rows between two progress reports."""
BOOKMARKS = "SELECT t_ns, text FROM bookmarks WHERE session = ? ORDER BY t_ns"
SOURCES = "SELECT source, name FROM sources WHERE session = ?"


class ExportProgress(Protocol):
    """Receives progress of reading a table or the readings."""

    def at(self, what: str, done: int, expected: int | None) -> None:
        """Report progress; ``expected`` is None if the total is unknown."""
        ...


class NoProgress:
    """Ignores how far an export has come."""

    def at(self, what: str, done: int, expected: int | None) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One session in an open file, as of the moment it was opened."""

    session: SessionRow
    database: Path
    connection: sqlite3.Connection
    progress: ExportProgress
    start_monotonic_ns: int
    """Session time plus this is the host's monotonic clock."""
    imported_from: str | None

    @property
    def sources(self) -> dict[int, str]:
        """The names of engines, GPUs and load runs, by their numbers."""
        return SourceNames(self.connection.execute(SOURCES, (self.session.session,)))

    @property
    def bookmarks(self) -> list[tuple[int, str]]:
        query = self.connection.execute(BOOKMARKS, (self.session.session,))
        return query.fetchall()

    def readings(self) -> Iterator[AnyReading]:
        numbered = recorded(self.connection, self.session.session)
        for done, (_, reading) in enumerate(numbered):
            if done % EVERY == 0:
                self.progress.at("readings", done, self.session.readings)
            yield reading


@contextmanager
def opened(
    database: Path, name: str, progress: ExportProgress | None = None
) -> Iterator[Recording]:
    """Open a session by its id, name or ``last``.

    Raises:
        StorageError: the session does not exist or cannot be read.
    """
    session = find(database, name)
    with closing(open_for_reading(database)) as connection:
        try:
            connection.execute("BEGIN")  # all tables as of the same moment
            start_ns, imported_from = connection.execute(
                "SELECT start_monotonic_ns, imported_from FROM sessions "
                "WHERE session = ?",
                (session.session,),
            ).fetchone()
            yield Recording(
                session=session,
                database=database,
                connection=connection,
                progress=progress or NoProgress(),
                start_monotonic_ns=start_ns,
                imported_from=imported_from,
            )
        except sqlite3.Error as error:
            raise StorageError(explain(error, database)) from error
