"""Bookmarks: in the file, so that they are there when the session is opened again."""

import sqlite3
from contextlib import closing
from pathlib import Path

from collectors.clock import anchor
from inferwatch.feed import Mark, MarkKind
from inferwatch.storage.file.transaction import transaction
from inferwatch.storage.sessions.housekeeping import changing
from inferwatch.storage.sessions.sessions import SessionRow

INSERT = "INSERT INTO bookmarks (session, t_ns, text, made_ns) VALUES (?, ?, ?, ?)"
SELECT = "SELECT t_ns, text FROM bookmarks WHERE session = ? ORDER BY t_ns, made_ns"


def keep_bookmark(path: Path, session: SessionRow, t_ns: int, text: str) -> Mark:
    """Mark a moment.

    Raises:
        StorageError: the file does not let us.
    """
    row = (session.session, t_ns, text, anchor().wall_ns)
    with changing(path) as connection, transaction(connection):
        connection.execute(INSERT, row)
    return _mark(t_ns, text)


def bookmarks(connection: sqlite3.Connection, session: int) -> list[Mark]:
    """Of a session, in order of time."""
    with closing(connection.execute(SELECT, (session,))) as rows:
        return [_mark(t_ns, text) for t_ns, text in rows]


def _mark(t_ns: int, text: str) -> Mark:
    return Mark(t_ns=t_ns, kind=MarkKind.BOOKMARK, text=text)
