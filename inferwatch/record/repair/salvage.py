"""Reads what can be read of a damaged file, and makes the result consistent.

A table is read in order of its key until a damaged page; the next readable key is then
searched for in increasing strides, and the rows in between are read backwards, up to
the damaged page.

What cannot be restored is left out or marked as unknown: a session without its row, a
source without its name, a step without its members.
"""

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec

from inferwatch import __version__
from inferwatch.record.repair.checks import checks_of, makes_sense
from inferwatch.record.repair.damage import SessionDamage, is_damage
from inferwatch.record.tables.migrations import session_tables
from inferwatch.record.tables.reading_tables import every_table
from inferwatch.record.tables.session_state import SessionState
from inferwatch.record.tables.steps import INSERT_MEMBERS, LISTS, unpack
from inferwatch.record.tables.table import insert_sql

FARTHEST = 1 << 62
Row = tuple[object, ...]
NAME_SOURCES = (
    "INSERT OR IGNORE INTO sources (session, source, name) "
    "SELECT DISTINCT session, source, 'unknown-' || source"
)
NOBODY: dict[str, Any] = {name: [] for name in LISTS}


@dataclass(frozen=True, slots=True)
class DamagedTable:
    """A table of the damaged file, and how to query its rows.

    Tables without a rowid are read session by session.
    """

    name: str
    columns: tuple[str, ...]
    key: str
    """An integer column that orders the rows."""
    by_session: bool

    def select(self, condition: str, order: str = "ASC") -> str:
        """A query for rows that avoids indexes, which may be damaged; key first."""
        only = "session = :session AND " if self.by_session else ""
        hint = "" if self.by_session else "NOT INDEXED "
        columns = ", ".join((self.key, *self.columns))
        return (
            f"SELECT {columns} FROM {self.name} {hint}"  # noqa: S608  our own names
            f"WHERE {only}{condition} ORDER BY {self.key} {order}"
        )


def damaged_table(connection: sqlite3.Connection, name: str) -> DamagedTable | None:
    """How to read a table; None if the file has no such table.

    Raises:
        sqlite3.DatabaseError: not even the schema can be read.
    """
    rows = connection.execute(
        "SELECT name, pk FROM pragma_table_info(?)", (name,)
    ).fetchall()
    if not rows:
        return None
    columns = tuple(column for column, _ in rows)
    keys = [column for column, pk in sorted(rows, key=lambda row: row[1]) if pk]
    (without_rowid,) = connection.execute(
        "SELECT wr FROM pragma_table_list WHERE name = ?", (name,)
    ).fetchone()
    if without_rowid and len(keys) > 1:
        return DamagedTable(name, columns, keys[1], by_session=True)
    return DamagedTable(name, columns, "rowid", by_session=False)


class Salvage:
    """Copies tables from a damaged file into a sound one."""

    def __init__(self, damaged: sqlite3.Connection, sound: sqlite3.Connection) -> None:
        self._damaged, self._sound = damaged, sound
        self.torn: list[str] = []
        self.rows: dict[str, int] = {}

    def copy(self, name: str, sessions: Sequence[int]) -> None:
        """Copy the readable, valid rows of a table."""
        table = damaged_table(self._damaged, name)
        if table is None:
            return
        insert = insert_sql(name, table.columns, "INSERT OR IGNORE")
        checks = checks_of(name, table.columns)
        self.rows[name] = 0
        for session in sessions if table.by_session else (0,):
            for _, *values in self._walk(table, session):
                if makes_sense(checks, values):
                    self.rows[name] += self._insert(name, insert, values)
                else:
                    self._tear(name)

    def _insert(self, name: str, insert: str, values: Sequence[object]) -> int:
        try:
            return self._sound.execute(insert, values).rowcount
        except (sqlite3.IntegrityError, sqlite3.InterfaceError, OverflowError):
            self._tear(name)
            return 0

    def _tear(self, name: str) -> None:
        if name not in self.torn:
            self.torn.append(name)

    def _walk(self, table: DamagedTable, session: int) -> Iterator[Row]:
        """All readable rows, skipping damaged pages."""
        reached = -FARTHEST
        while True:
            try:
                for row in self._read(table, session, reached, FARTHEST):
                    reached = int(str(row[0]))
                    yield row
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                self._tear(table.name)
            else:
                return
            beyond = self._next(table, session, reached)
            if beyond is None:
                return
            with suppress(sqlite3.DatabaseError):
                yield from self._read(table, session, reached, beyond, "DESC")
            reached = beyond

    def _next(self, table: DamagedTable, session: int, reached: int) -> int | None:
        """A later key from which rows are readable again; None if there is none."""
        stride, start = 1, max(reached, 0)
        while stride < FARTHEST:
            with suppress(sqlite3.DatabaseError):
                next(self._read(table, session, start + stride, FARTHEST), None)
                return start + stride
            stride *= 2
        return None

    def _read(
        self,
        table: DamagedTable,
        session: int,
        after: int,
        upto: int,
        order: str = "ASC",
    ) -> Iterator[Row]:
        bounds = {"session": session, "after": after, "upto": upto}
        condition = f"{table.key} > :after AND {table.key} <= :upto"
        yield from self._damaged.execute(table.select(condition, order), bounds)


def fill_holes(connection: sqlite3.Connection) -> list[SessionDamage]:
    """Make the file consistent; returns the losses of each session."""
    tables = session_tables(connection)
    _name_sessions(connection, tables)
    _name_sources(connection, tables)
    return [
        _repair_session(connection, *row)
        for row in connection.execute(
            "SELECT session, id, readings FROM sessions ORDER BY session"
        ).fetchall()
    ]


def _name_sessions(connection: sqlite3.Connection, tables: list[str]) -> None:
    """Create rows for sessions that have readings but no row."""
    query = " UNION ".join(f"SELECT session FROM {table}" for table in tables)  # noqa: S608  our own names
    lost = connection.execute(
        f"SELECT session FROM ({query}) WHERE session NOT IN "  # noqa: S608  our own names
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
    """Start of a session: Unix time by its first clock anchor, or 0; session time 0."""
    anchor = connection.execute(
        "SELECT wall_ns - t_ns FROM clock_anchors WHERE session = ? ORDER BY t_ns",
        (number,),
    ).fetchone()
    return (anchor[0] if anchor else 0), 0


def _extent(connection: sqlite3.Connection, number: int) -> tuple[int, int]:
    """Lower bounds of a session's duration and number of readings."""
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


def _repair_session(
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
    for mend in (each for table in every_table() for each in table.mend):
        connection.execute(mend, {"session": number})
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
    count = [
        f"SELECT {table.readings} FROM {table.name} WHERE session = ?"  # noqa: S608  our own names
        for table in every_table()
    ]
    return sum(connection.execute(query, (number,)).fetchone()[0] for query in count)


def _drop_members(connection: sqlite3.Connection, number: int) -> None:
    """Drop members of steps that are lost themselves."""
    steps = {
        ordinal
        for (ordinal,) in connection.execute(
            "SELECT ordinal FROM steps WHERE session = ?", (number,)
        )
    }
    for ordinal, blob in connection.execute(
        "SELECT ordinal, members FROM step_members WHERE session = ?", (number,)
    ).fetchall():
        members = unpack(blob)
        left = {each: lists for each, lists in members.items() if each in steps}
        if len(left) < len(members):
            connection.execute(
                "UPDATE step_members SET steps = ?, members = ? "
                "WHERE session = ? AND ordinal = ?",
                (len(left), _pack(left), number, ordinal),
            )
    connection.execute("DELETE FROM step_members WHERE steps = 0")


def _without_members(
    connection: sqlite3.Connection, number: int
) -> Iterator[list[int]]:
    """Runs of successive steps whose members are lost."""
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


def _pack(members: dict[int, dict[str, Any]]) -> bytes:
    """Members of steps in their stored form."""
    differences = [after - before for before, after in pairwise([0, *members])]
    packed: dict[str, object] = {"ordinals": differences}
    packed |= {name: [lists[name] for lists in members.values()] for name in LISTS}
    return zlib.compress(msgspec.json.encode(packed))
