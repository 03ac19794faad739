"""Lists and finds the sessions of a recording file."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from collectors.contract.clock import NS_PER_S, anchor
from inferwatch.errors import NoSuchSessionError, StorageError
from inferwatch.record.connections import reading, settle
from inferwatch.record.file.location import db_option
from inferwatch.record.file.recording_lock import forget_lock, still_recorded
from inferwatch.record.file.sqlite import RECOVER, transaction
from inferwatch.record.tables.session_state import SessionState

LAST = "last"
LONGEST_SILENCE_S = 86_400.0
"""A live recorder commits about every second, at least its host's samples."""
THERE = "SELECT 1 FROM sessions WHERE session = ? AND id = ? AND state <> ?"
BEGAN_BY_LAST_ANCHOR = """coalesce((
  SELECT wall_ns - t_ns FROM clock_anchors AS anchor
  WHERE anchor.session = sessions.session AND anchor.boot_id = sessions.boot_id
  ORDER BY t_ns DESC LIMIT 1
), started_ns)"""
"""Unix time of the end minus the duration, which differs from the start if the clocks
diverged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """What is known about a session without reading it."""

    session: int
    """Its number in the file."""
    id: str
    name: str | None
    command: str
    model: str | None
    state: SessionState
    reason: str | None
    """Why it ended, where known."""
    started_ns: int
    """Unix time, like the end; the duration is measured by the monotonic clock."""
    ended_ns: int | None
    """None while it goes on, or may go on."""
    duration_ns: int
    readings: int
    steps: int
    requests: int
    """Requests reported by an engine's probe."""
    client_requests: int = 0
    """If an engine reported none: requests reported by the client of load runs."""
    unrecorded: int
    """Readings that are missing in the recording."""
    inferwatch_version: str
    tags: str
    """Words separated by single spaces."""
    deleted_ns: int | None
    """Unix time at which it was put into the bin; None: it is not there."""
    imported_from: str | None
    """Tool and file it was imported from; None: it was recorded by us."""

    @property
    def called(self) -> str:
        """What lists of sessions show as its name: the command if it has none."""
        return self.name or self.command

    @property
    def duration_s(self) -> float:
        return self.duration_ns / NS_PER_S

    def began_text(self, form: str = "%Y-%m-%d %H:%M") -> str:
        """The start in local time; a dash if a salvaged session's is unknown."""
        if self.started_ns <= 0:
            return "–"
        return (
            f"{datetime.fromtimestamp(self.started_ns / NS_PER_S).astimezone():{form}}"
        )


_COLUMNS = tuple(field.name for field in fields(SessionRow))
_CLIENT = """CASE WHEN requests = 0 THEN (
  SELECT count(*) FROM client_requests AS told WHERE told.session = sessions.session
) ELSE 0 END AS client_requests"""
_NUMBERS = ("session", "started_ns", "duration_ns", "readings", "steps", "requests")
_TEXTS = ("id", "command", "inferwatch_version", "tags")
"""Columns that are never NULL."""
_ENDED = f"""CASE WHEN ended_ns IS NULL THEN duration_ns + {BEGAN_BY_LAST_ANCHOR}
ELSE ended_ns END AS ended_ns"""
_COMPUTED = {"client_requests": _CLIENT, "ended_ns": _ENDED}
_WANTED = [_COMPUTED.get(name, name) for name in _COLUMNS]
_LIST = f"SELECT {', '.join(_WANTED)}, boot_id, pid, birth FROM sessions "  # noqa: S608  our own names


def list_sessions(path: Path, *, bin_too: bool = False) -> list[SessionRow]:
    """The sessions of a file, newest first; with ``bin_too`` also those in the bin.

    Raises:
        StorageError: there is no such file, or it cannot be read.
    """
    with reading(path) as connection:
        every = rows_of(connection, path, bin_too=True)
    if not any(row.state is SessionState.RECORDING for row in every):
        settle(path, lambda connection: mark_interrupted(connection, path))
    return [row for row in every if bin_too or row.deleted_ns is None]


def rows_of(
    connection: sqlite3.Connection, path: Path, *, bin_too: bool
) -> list[SessionRow]:
    """The sessions of an open file, newest first; ``path`` is the original file's.

    What is open may be a copy, but recorders are found by the original name.
    """
    records = connection.execute(_LIST + "ORDER BY session DESC").fetchall()
    rows = (
        _row(dict(zip(_COLUMNS, values, strict=False)), path, values[-3:])
        for values in records
    )
    return [
        row
        for row in rows
        if row.state is not SessionState.GOING and (bin_too or row.deleted_ns is None)
    ]


def is_gone(connection: sqlite3.Connection, session: SessionRow) -> bool:
    """Whether the session was deleted permanently since; its number may be reused."""
    key = (session.session, session.id, SessionState.GOING)
    return connection.execute(THERE, key).fetchone() is None


def gone(session: SessionRow) -> str:
    """Message that a session was deleted."""
    return f"session {session.id} was deleted meanwhile"


def find(path: Path, wanted: str) -> SessionRow:
    """The session with an id, a name, a unique prefix of either, or the ``last`` one.

    One without a name is called by its command. Of several sessions with the same name,
    the newest is meant. Those in the bin are not found; they can be restored.

    Raises:
        NoSuchSessionError: there is none, or the prefix is ambiguous.
        StorageError: there is no such file, or it cannot be read.
    """
    return pick(list_sessions(path), wanted, path)


def pick(rows: Sequence[SessionRow], wanted: str, path: Path) -> SessionRow:
    """The wanted session among these, which are newest first.

    Raises:
        NoSuchSessionError: there is none, or the prefix is ambiguous.
    """
    found = meant(rows, wanted)
    names = {row.called for row in found}
    if len(found) != 1 and not (len(names) == 1 and names.pop().startswith(wanted)):
        raise NoSuchSessionError(_no_such(path, wanted, found))
    return found[0]


def meant(rows: Sequence[SessionRow], wanted: str) -> Sequence[SessionRow]:
    """The sessions of these that a word may mean, in the same order.

    It is the word of their id, their name or their command, in this order, or else the
    beginning of one.
    """
    if wanted == LAST:
        return rows[:1]
    tests: tuple[Callable[[SessionRow], bool], ...] = (
        lambda row: row.id == wanted,
        lambda row: row.name == wanted,
        lambda row: row.called == wanted,
        lambda row: row.id == f"s{wanted}",
        lambda row: row.id.startswith(wanted) or row.called.startswith(wanted),
    )
    every = ([row for row in rows if test(row)] for test in tests)
    return next(filter(None, every), [])


def _no_such(path: Path, name: str, begun: Sequence[SessionRow]) -> str:
    if begun:
        which = ", ".join(f"{row.id} ({row.called})" for row in begun[:10])
        return f"{name!r} is ambiguous: it may mean {which}; type more of it, or the id"
    command = f"`inferwatch sessions{db_option(path)}`"
    return f"No session {name!r} in {path}: {command} lists them"


def _row(columns: dict[str, Any], path: Path, owner: Sequence[object]) -> SessionRow:
    if not all(isinstance(columns[name], int) for name in _NUMBERS) or not all(
        isinstance(columns[name], str) for name in _TEXTS
    ):
        raise StorageError(
            f"the record is damaged: the row of session {columns['session']} makes no "
            f"sense; {RECOVER}"
        )
    try:
        state = SessionState(str(columns["state"]))
    except ValueError:
        state = SessionState.INTERRUPTED
    ended_ns = columns["ended_ns"]
    if state is SessionState.RECORDING:
        state = _state_now(path, columns["session"], owner, ended_ns)
        ended_ns = ended_ns if state is SessionState.INTERRUPTED else None
    return SessionRow(**{**columns, "state": state, "ended_ns": ended_ns})


def _state_now(
    path: Path, session: int, owner: Sequence[object], last_ns: int
) -> SessionState:
    """State of a session whose row says that it is being recorded.

    ``owner``: boot id, PID and start time; ``last_ns``: Unix time of its last commit.
    """
    boot, pid, born = owner
    goes_on = still_recorded(path, session, boot=boot, pid=pid, born=born)
    if goes_on is None:
        silent_s = (anchor().wall_ns - last_ns) / NS_PER_S
        dead = silent_s > LONGEST_SILENCE_S
        return SessionState.INTERRUPTED if dead else SessionState.UNKNOWN
    return SessionState.RECORDING if goes_on else SessionState.INTERRUPTED


def mark_interrupted(connection: sqlite3.Connection, path: Path) -> None:
    """Mark sessions whose recorder died as interrupted at their last commit."""
    query = (
        f"SELECT session, boot_id, pid, birth, {_ENDED} "  # noqa: S608  our own words
        "FROM sessions WHERE state = ?"
    )
    recording = connection.execute(query, (SessionState.RECORDING,)).fetchall()
    dead = [
        session
        for session, *owner, last_ns in recording
        if _state_now(path, session, owner, last_ns) is SessionState.INTERRUPTED
    ]
    if not dead:
        return
    with transaction(connection):
        connection.executemany(
            f"UPDATE sessions SET state = ?, ended_ns = duration_ns + "  # noqa: S608  our own words
            f"{BEGAN_BY_LAST_ANCHOR} WHERE session = ? AND state = ?",
            [(SessionState.INTERRUPTED, each, SessionState.RECORDING) for each in dead],
        )
    for session in dead:
        forget_lock(path, session)
