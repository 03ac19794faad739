"""Makes what was salvaged whole again, so that every reader can read it.

What cannot be had back is left out or said to be unknown: a session without its row, a
source without its name, a step without its members.
"""

import sqlite3
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec

from inferwatch import __version__
from inferwatch.storage.repair.damage import SessionDamage
from inferwatch.storage.sessions.session_state import SessionState
from inferwatch.storage.tables.reading_tables import every_table
from inferwatch.storage.tables.schema import session_tables
from inferwatch.storage.tables.steps import INSERT_MEMBERS, LISTS, unpack
from inferwatch.storage.tables.table import insert_sql

NAME_SOURCES = (
    "INSERT OR IGNORE INTO sources (session, source, name) "
    "SELECT DISTINCT session, source, 'unknown-' || source"
)
NOBODY: dict[str, Any] = {name: [] for name in LISTS}


def mend(connection: sqlite3.Connection) -> list[SessionDamage]:
    """Fill the holes; what each session has lost."""
    tables = session_tables(connection)
    _name_sessions(connection, tables)
    _name_sources(connection, tables)
    return [
        _mend_session(connection, *row)
        for row in connection.execute(
            "SELECT session, id, readings FROM sessions ORDER BY session"
        ).fetchall()
    ]


def _name_sessions(connection: sqlite3.Connection, tables: list[str]) -> None:
    """Those whose row is lost while readings of theirs are there."""
    found = " UNION ".join(f"SELECT session FROM {table}" for table in tables)  # noqa: S608  our own names
    lost = connection.execute(
        f"SELECT session FROM ({found}) WHERE session NOT IN "  # noqa: S608  our own names
        "(SELECT session FROM sessions)"
    ).fetchall()
    columns = ("session", "command", "state", "started_ns", "start_monotonic_ns")
    names = (*columns, "duration_ns", "readings", "inferwatch_version", "boot_id")
    insert = insert_sql("sessions", (*names, "pid"))
    for (number,) in lost:
        began_ns, raw_ns = _began(connection, number)
        upto_ns, readings = _extent(connection, number)
        row = (number, "unknown", SessionState.INTERRUPTED, began_ns, raw_ns)
        connection.execute(insert, (*row, upto_ns, readings, __version__, "", 0))


def _began(connection: sqlite3.Connection, number: int) -> tuple[int, int]:
    """Unix time of the start by a clock anchor; 0 when there is none."""
    found = connection.execute(
        "SELECT wall_ns - t_ns FROM clock_anchors WHERE session = ? ORDER BY t_ns",
        (number,),
    ).fetchone()
    return (found[0] if found else 0), 0


def _extent(connection: sqlite3.Connection, number: int) -> tuple[int, int]:
    """How long the session was and how many readings it had, at least."""
    upto_ns, ordinal = connection.execute(
        "SELECT max(t_ns), max(ordinal) FROM ("
        "SELECT end_ns t_ns, ordinal FROM steps WHERE session = :n UNION ALL "
        "SELECT t_ns, ordinal FROM ticks WHERE session = :n)",
        {"n": number},
    ).fetchone()
    return upto_ns or 0, ordinal or 0


def _name_sources(connection: sqlite3.Connection, tables: list[str]) -> None:
    for table in tables:
        columns = connection.execute(
            "SELECT name FROM pragma_table_info(?)", (table,)
        ).fetchall()
        if ("source",) in columns and table != "sources":
            connection.execute(f"{NAME_SOURCES} FROM {table}")


def _mend_session(
    connection: sqlite3.Connection,
    number: int,
    id_: str,
    readings: int,
) -> SessionDamage:
    _drop_members(connection, number)
    bare = list(_without_members(connection, number))
    for run in bare:
        row = (number, run[0], len(run), _pack(dict.fromkeys(run, NOBODY)))
        connection.execute(INSERT_MEMBERS, row)
    lost = max(readings - _readings(connection, number), 0)
    if lost:
        connection.execute(
            "UPDATE sessions SET unrecorded = unrecorded + ?, reason = ? "
            "WHERE session = ?",
            (lost, f"the file is damaged: {lost:,} readings are lost", number),
        )
    return SessionDamage(
        id=id_, readings=readings, lost=lost, membersless=sum(map(len, bare))
    )


def _readings(connection: sqlite3.Connection, number: int) -> int:
    """How many there are."""
    count = [
        f"SELECT {table.readings} FROM {table.name} WHERE session = ?"  # noqa: S608  our own names
        for table in every_table()
    ]
    return sum(connection.execute(query, (number,)).fetchone()[0] for query in count)


def _drop_members(connection: sqlite3.Connection, number: int) -> None:
    """Of steps that are lost themselves."""
    steps = {
        ordinal
        for (ordinal,) in connection.execute(
            "SELECT ordinal FROM steps WHERE session = ?", (number,)
        )
    }
    for ordinal, blob in connection.execute(
        "SELECT ordinal, members FROM step_members WHERE session = ?", (number,)
    ).fetchall():
        held = unpack(blob)
        left = {each: lists for each, lists in held.items() if each in steps}
        if len(left) < len(held):
            connection.execute(
                "UPDATE step_members SET steps = ?, members = ? "
                "WHERE session = ? AND ordinal = ?",
                (len(left), _pack(left), number, ordinal),
            )
    connection.execute("DELETE FROM step_members WHERE steps = 0")


def _without_members(
    connection: sqlite3.Connection, number: int
) -> Iterator[list[int]]:
    """Runs of steps whose blob is lost: no blob may come between them."""
    covered: set[int] = set()
    for (blob,) in connection.execute(
        "SELECT members FROM step_members WHERE session = ?", (number,)
    ):
        covered |= unpack(blob).keys()
    run: list[int] = []
    for (ordinal,) in connection.execute(
        "SELECT ordinal FROM steps WHERE session = ? ORDER BY ordinal", (number,)
    ).fetchall():
        if ordinal not in covered:
            run.append(ordinal)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _pack(held: dict[int, dict[str, Any]]) -> bytes:
    """As the members of steps are kept."""
    differences = [after - before for before, after in pairwise([0, *held])]
    packed: dict[str, object] = {"ordinals": differences}
    packed |= {name: [lists[name] for lists in held.values()] for name in LISTS}
    return zlib.compress(msgspec.json.encode(packed))
