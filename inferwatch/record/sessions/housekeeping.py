"""Names, tags, the bin, imports: changes to recorded sessions.

Nothing is deleted permanently here; :mod:`inferwatch.record.sessions.erasing` does
that. Another program may be recording into the same file, so every change is one short
transaction.
"""

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from collectors.contract.clock import anchor
from inferwatch.errors import StorageError, UsageError
from inferwatch.record.connections import close_after_writing, open_for_writing
from inferwatch.record.file.sqlite import explain, transaction
from inferwatch.record.repair.recovery import damage_of_layout
from inferwatch.record.sessions.sessions import LAST, SessionRow, rows_of
from inferwatch.record.tables.migrations import session_tables
from inferwatch.record.tables.session_state import SessionState

PATIENCE_MS = 5_000
"""A recorder locks the file for milliseconds at a time."""
LONGEST_NAME = 80
LOOKS_LIKE_AN_ID = re.compile(r"s\d+")
TAG = re.compile(r"[\w.:+/=-]{1,40}")
KEEP = "keep"
"""Sessions with this tag are never pruned."""


@contextmanager
def changing(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the file for changes; it is one plain file again afterwards.

    Raises:
        StorageError: the file cannot be written; the message says what to do.
    """
    if not path.exists():
        raise StorageError(f"Nothing is recorded in {path} yet: try `inferwatch demo`")
    if damage := damage_of_layout(path):
        raise StorageError(damage.refusal)
    connection = open_for_writing(path)
    try:
        connection.execute(f"PRAGMA busy_timeout = {PATIENCE_MS}")
        yield connection
    except (sqlite3.Error, OSError) as error:
        raise StorageError(explain(error, path)) from error
    finally:
        close_after_writing(connection)


def checked_name(name: str) -> str | None:
    """A name as it is stored; None if it is empty.

    Raises:
        UsageError: it is reserved, too long or not printable.
    """
    name = " ".join(name.split())
    if name == LAST or LOOKS_LIKE_AN_ID.fullmatch(name):
        raise UsageError(f"{name!r} is reserved for session ids: choose another name")
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise UsageError(f"a name may have up to {LONGEST_NAME} printable characters")
    return name or None


def fitting_name(text: str) -> str | None:
    """The valid name closest to a text such as a file name."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if plain == LAST or LOOKS_LIKE_AN_ID.fullmatch(plain):
        plain = f"file {plain}"
    return plain[:LONGEST_NAME].rstrip() or None


def checked_tags(words: Iterable[str]) -> list[str]:
    """Tags as they are stored: each once, in the given order.

    Raises:
        UsageError: a word cannot be a tag.
    """
    tags = list(dict.fromkeys(words))
    for tag in tags:
        if not TAG.fullmatch(tag):
            raise UsageError(
                f"{tag!r} is not a tag: use up to 40 letters, digits and . : + / = _ -"
            )
    return tags


def rename(path: Path, number: int, name: str) -> None:
    """Name a session, or remove its name if empty.

    Raises:
        UsageError: the name is invalid.
        StorageError: the file cannot be written.
    """
    _set(path, "name = ?", [(checked_name(name), number)])


def retag(
    path: Path, number: int, change: Callable[[Sequence[str]], Iterable[str]]
) -> list[str]:
    """Replace the tags of a session by ``change`` of them; returns the new ones.

    Raises:
        UsageError: a word cannot be a tag.
        StorageError: the file cannot be written.
    """
    with changing(path) as connection, transaction(connection):
        row = connection.execute(
            "SELECT tags FROM sessions WHERE session = ?", (number,)
        ).fetchone()
        tags = checked_tags(change(row[0].split() if row else []))
        connection.execute(
            "UPDATE sessions SET tags = ? WHERE session = ?", (" ".join(tags), number)
        )
    return tags


def put_away(path: Path, numbers: Iterable[int]) -> None:
    """Put sessions into the bin: they are no longer listed, but can be restored.

    Raises:
        StorageError: one is being recorded, or the file cannot be written.
    """
    wanted = list(numbers)
    with changing(path) as connection, transaction(connection):
        not_recorded(rows_of(connection, path, bin_too=True), wanted)
        connection.executemany(
            "UPDATE sessions SET deleted_ns = ? WHERE session = ?",
            [(anchor().wall_ns, number) for number in wanted],
        )


def restore(path: Path, numbers: Iterable[int]) -> None:
    """Take sessions out of the bin.

    Raises:
        StorageError: the file cannot be written.
    """
    rows = [(None, number) for number in numbers]
    _set(path, "deleted_ns = ?", rows)


def not_recorded(rows: Iterable[SessionRow], numbers: Iterable[int]) -> None:
    """Refuse if one of these sessions is, or may be, still recorded.

    Raises:
        StorageError: the message names the session.
    """
    wanted = set(numbers)
    for row in rows:
        if row.session in wanted and row.state is SessionState.RECORDING:
            raise StorageError(
                f"{row.id} is still being recorded: stop that inferwatch first"
            )
        if row.session in wanted and row.state is SessionState.UNKNOWN:
            raise StorageError(
                f"it is unknown whether {row.id} is still being recorded, on another "
                "host or in another container: stop that inferwatch, or wait until "
                "a day has passed since its last reading; it can be replayed meanwhile"
            )


def _set(path: Path, what: str, rows: Sequence[tuple[object, ...]]) -> None:
    with changing(path) as connection, transaction(connection):
        connection.executemany(
            f"UPDATE sessions SET {what} WHERE session = ?",  # noqa: S608  our own words
            rows,
        )


def adopt(path: Path, other: Path) -> list[int]:
    """Copy every session of another file, in order; returns their numbers here.

    It is one transaction: after an interruption, none is copied.

    Raises:
        StorageError: the file cannot be written; the message says what to do.
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
    """Copy a session's rows under another number, without generated columns."""
    rows = connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
    names = [name for (name,) in rows if name != "session"]
    return connection.execute(
        f"INSERT INTO main.{table} (session, {', '.join(names)}) "  # noqa: S608  our own names
        f"SELECT {number}, {', '.join(names)} FROM other.{table} WHERE session = ?",
        (session,),
    )
