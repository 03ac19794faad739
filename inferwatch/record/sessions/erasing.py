"""Deletes sessions permanently and returns their space to the disk.

Both work in short transactions with pauses in between, so that a recorder of the same
file never waits long.
"""

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from inferwatch.record.checkpoints.file import checkpoint_sizes, forget_checkpoints
from inferwatch.record.connections import reading
from inferwatch.record.file.recording_lock import forget_lock
from inferwatch.record.file.sqlite import transaction
from inferwatch.record.file.trace_folder import forget_traces, trace_sizes
from inferwatch.record.sessions.housekeeping import changing, not_recorded
from inferwatch.record.sessions.sessions import list_sessions, rows_of
from inferwatch.record.tables.migrations import session_tables
from inferwatch.record.tables.session_state import SessionState

Told = Callable[[float], None]
"""Receives the progress, 0 to 1."""
SLICE_S = 0.05
FIRST_SLICE = 500
PAGES_A_SLICE = 500


def cut_short(path: Path) -> list[int]:
    """Sessions whose deletion was started but not finished.

    Raises:
        StorageError: the file cannot be read.
    """
    with reading(path) as connection:
        return _going(connection)


def erase(path: Path, numbers: Iterable[int], told: Told = lambda _: None) -> int:
    """Delete sessions permanently; returns the number of rows deleted.

    From the start they are hidden from everyone: an interrupted deletion is finished by
    the next one.

    Raises:
        StorageError: one is or may be being recorded, or the file cannot be written.
    """
    wanted = list(numbers)
    deleted = 0
    with changing(path) as connection:
        with transaction(connection):
            not_recorded(rows_of(connection, path, bin_too=True), wanted)
            connection.executemany(
                "UPDATE sessions SET state = ? WHERE session = ?",
                [(SessionState.GOING, number) for number in wanted],
            )
        left = _going(connection)
        tables = session_tables(connection)
        for done, number in enumerate(left):
            forget_checkpoints(path, number)
            forget_traces(path, number)
            forget_lock(path, number)
            for place, table in enumerate((*tables, "sessions")):
                deleted += sum(_slices(connection, table, number))
                told((done + (place + 1) / (len(tables) + 1)) / len(left))
    return deleted


def vacuum(path: Path, told: Told = lambda _: None) -> int:
    """Return free pages to the disk; returns their size in bytes.

    Raises:
        StorageError: the file cannot be written.
    """
    before = path.stat().st_size if path.exists() else 0
    for number in _deleted_sessions(path):
        forget_checkpoints(path, number)
        forget_traces(path, number)
    with changing(path) as connection:
        (mode,) = connection.execute("PRAGMA auto_vacuum").fetchone()
        if mode:
            _give_back(connection, told)
        else:  # a file copied by another tool
            connection.execute("VACUUM")
    told(1.0)
    return max(before - path.stat().st_size, 0)


def beside(path: Path, numbers: Iterable[int]) -> int:
    """Bytes freed beside the file when sessions are deleted and it is vacuumed.

    The sessions' own traces count as part of them, and are left out.

    Raises:
        StorageError: the file cannot be read.
    """
    gone = _deleted_sessions(path)
    going = gone.union(numbers)
    checkpoints = (
        size for number, size in checkpoint_sizes(path).items() if number in going
    )
    traces = (size for number, size in trace_sizes(path).items() if number in gone)
    return sum(checkpoints) + sum(traces)


def _deleted_sessions(path: Path) -> set[int]:
    """Numbers of deleted sessions whose checkpoints or traces still exist."""
    sessions = checkpoint_sizes(path).keys() | trace_sizes(path).keys()
    return sessions - {row.session for row in list_sessions(path, bin_too=True)}


def _going(connection: sqlite3.Connection) -> list[int]:
    query = "SELECT session FROM sessions WHERE state = ?"
    return [number for (number,) in connection.execute(query, (SessionState.GOING,))]


def _slices(connection: sqlite3.Connection, table: str, number: int) -> Iterator[int]:
    """Delete the session's rows of a table in slices; yields the size of each."""
    keys = ", ".join(_key(connection, table))
    delete = (
        f"DELETE FROM {table} WHERE ({keys}) IN "  # noqa: S608  our own names
        f"(SELECT {keys} FROM {table} WHERE session = ? LIMIT ?)"
    )
    limit = FIRST_SLICE
    while True:
        began_s = time.monotonic()
        with transaction(connection):
            rows = connection.execute(delete, (number, limit)).rowcount
        took_s = time.monotonic() - began_s
        yield rows
        if rows < limit:
            return
        time.sleep(took_s)
        limit = limit * 2 if took_s < SLICE_S else max(limit // 2, 1)


def _key(connection: sqlite3.Connection, table: str) -> list[str]:
    rows = connection.execute(
        "SELECT name FROM pragma_table_info(?) WHERE pk ORDER BY pk", (table,)
    )
    return [name for (name,) in rows] or ["rowid"]


def _give_back(connection: sqlite3.Connection, told: Told) -> None:
    first = left = _free_pages(connection)
    while left:
        began_s = time.monotonic()
        connection.execute(f"PRAGMA incremental_vacuum({PAGES_A_SLICE})").fetchall()
        now_left = _free_pages(connection)
        if now_left >= left:
            return
        left = now_left
        told(1 - left / first)
        time.sleep(time.monotonic() - began_s)


def _free_pages(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(count)
