"""Checks a file's integrity, by SQLite's checks and our own.

Bytes may be damaged within a row, where SQLite does not look; false reports of SQLite
are ignored.
"""

import re
import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from functools import cache

import msgspec

from inferwatch.record.tables.reading_tables import every_table
from inferwatch.record.tables.session_state import SessionState
from inferwatch.record.tables.table import Reader

COLUMNS = (
    "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c "
    "WHERE t.type = 'table'"
)
ALL_FAULTS = 2**31 - 1
CLAIM = re.compile(
    r"(?:NULL|non-(?P<kind>\w+)) value in (?P<table>\w+)\.(?P<column>\w+)"
)
"""SQLite's report of a value its column does not accept."""
STORED = {"INT": "integer"}
"""SQLite's name of a stored value, where it differs from the column type's."""


@cache
def _readers() -> Mapping[tuple[str, str], Reader]:
    """By table and column, a function that decodes a value and fails if invalid."""
    tables = every_table()
    words = {
        (table.name, column): enum
        for table in tables
        for column, enum in table.enums.items()
    }
    blobs = {
        (blob.table, blob.column): blob.reader
        for table in tables
        for blob in table.blobs
    }
    return {("sessions", "state"): SessionState, **words, **blobs}


@cache
def _quick() -> Mapping[tuple[str, str], Reader]:
    """By table and column, a function that detects changed bytes without decoding."""
    blobs = [blob for table in every_table() for blob in table.blobs]
    return {(blob.table, blob.column): blob.quick for blob in blobs if blob.quick}


def first_unreadable_value(connection: sqlite3.Connection) -> str | None:
    """Table and column of a value that cannot be read; None if all can.

    Raises:
        sqlite3.DatabaseError: the file is too damaged to tell.
    """
    columns = set(connection.execute(COLUMNS))
    for (table, column), reader in _readers().items():
        if (table, column) not in columns:
            continue  # added by a later version
        distinct = "DISTINCT " if isinstance(reader, type) else ""
        values = connection.execute(
            f"SELECT {distinct}{column} FROM {table} WHERE {column} IS NOT NULL"  # noqa: S608  our own names
        )
        quick = _quick().get((table, column), reader)
        if not all(_reads(quick, value) for (value,) in values):
            return f"{table}.{column}"
    return None


Checks = Sequence[tuple[int, Reader]]
"""Positions in a row, and functions that read the values there."""


def checks_of(table: str, columns: Sequence[str]) -> Checks:
    """The checks for a table's rows, by position of the column."""
    return [
        (place, _readers()[table, name])
        for place, name in enumerate(columns)
        if (table, name) in _readers()
    ]


def makes_sense(checks: Checks, values: Sequence[object]) -> bool:
    """Whether every value of the row that can be checked is valid."""
    return all(
        values[place] is None or _reads(reader, values[place])
        for place, reader in checks
    )


def _reads(reader: Reader, value: object) -> bool:
    try:
        reader(value)
    except (ValueError, TypeError, KeyError, zlib.error, msgspec.MsgspecError):
        return False
    return True


def first_sqlite_fault(connection: sqlite3.Connection) -> str | None:
    """A fault of the file in SQLite's words; None if there is none.

    SQLite 3.40 checks the wrong column of tables WITHOUT ROWID whose key is not first,
    and finds NULL there, so its reports about values are verified.

    Raises:
        sqlite3.DatabaseError, UnicodeDecodeError: the file is too damaged to tell.
    """
    (fault,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if fault == "ok":
        return None
    refuted: set[str] = set()
    # Faults of the structure come first, then those of values, row by row.
    for (fault,) in connection.execute(f"PRAGMA quick_check({ALL_FAULTS})"):
        if fault not in refuted and not _is_refuted(connection, fault):
            return str(fault)
        refuted.add(fault)
    return None


def _is_refuted(connection: sqlite3.Connection, fault: str) -> bool:
    """Whether SQLite's report is wrong: no row has the value it speaks of."""
    claim = CLAIM.fullmatch(fault)
    if claim is None:
        return False
    kind = claim["kind"]
    types = [] if kind is None else [STORED.get(kind, kind.lower()), "null"]
    wrong = f"NOT IN ({', '.join('?' * len(types))})" if types else "= 'null'"
    rows = connection.execute(
        f"SELECT 1 FROM {claim['table']} "  # noqa: S608  our own names
        f"WHERE typeof({claim['column']}) {wrong} LIMIT 1",
        types,
    )
    return rows.fetchone() is None
