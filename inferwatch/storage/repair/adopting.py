"""Sessions that were written into a file of their own move into another."""

import sqlite3
from contextlib import closing
from pathlib import Path

from inferwatch.errors import StorageError
from inferwatch.storage.file.connections import close_after_writing, open_for_writing
from inferwatch.storage.file.faults import explain
from inferwatch.storage.file.transaction import transaction
from inferwatch.storage.sessions.housekeeping import PATIENCE_MS
from inferwatch.storage.tables.schema import session_tables


def adopt(path: Path, other: Path) -> list[int]:
    """Copy every session of the other file, in its order; their numbers here.

    It is one transaction: whatever ends us on the way, none has come.

    Raises:
        StorageError: the file does not let us; the message says what to do.
    """
    try:
        with closing(open_for_writing(path)) as connection:
            connection.execute(f"PRAGMA busy_timeout = {PATIENCE_MS}")
            connection.execute("ATTACH ? AS other", (str(other),))
            with transaction(connection):
                rows = connection.execute(
                    "SELECT session FROM other.sessions ORDER BY session"
                ).fetchall()
                adopted = [_adopt(connection, session) for (session,) in rows]
            connection.execute("DETACH other")
            close_after_writing(connection)
    except sqlite3.Error as error:
        raise StorageError(explain(error, path)) from error
    return adopted


def _adopt(connection: sqlite3.Connection, session: int) -> int:
    number = _copy(connection, "sessions", "NULL", session).lastrowid
    for table in session_tables(connection):
        _copy(connection, table, str(number), session)
    return int(number or 0)


def _copy(
    connection: sqlite3.Connection, table: str, number: str, session: int
) -> sqlite3.Cursor:
    """A session's rows of a table, under another number; generated columns are not."""
    rows = connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
    names = [name for (name,) in rows if name != "session"]
    return connection.execute(
        f"INSERT INTO main.{table} (session, {', '.join(names)}) "  # noqa: S608  our own names
        f"SELECT {number}, {', '.join(names)} FROM other.{table} WHERE session = ?",
        (session,),
    )
