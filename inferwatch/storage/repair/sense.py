"""Whether a row from a damaged file means something: bytes may be torn within a row."""

import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from functools import cache

import msgspec

from inferwatch.storage.sessions.session_state import SessionState
from inferwatch.storage.tables.reading_tables import every_table
from inferwatch.storage.tables.table import Reader

COLUMNS = (
    "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c "
    "WHERE t.type = 'table'"
)


@cache
def _readers() -> Mapping[tuple[str, str], Reader]:
    """By table and column, what reads the value and fails where it makes no sense."""
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
    """What finds a changed byte sooner than reading the value does."""
    blobs = [blob for table in every_table() for blob in table.blobs]
    return {(blob.table, blob.column): blob.quick for blob in blobs if blob.quick}


def first_nonsense(connection: sqlite3.Connection) -> str | None:
    """A value that cannot be read, as its table and column; None when all can be.

    Raises:
        sqlite3.DatabaseError: the file is too damaged to tell.
    """
    known = set(connection.execute(COLUMNS))
    for (table, column), reader in _readers().items():
        if (table, column) not in known:
            continue  # a later version brings it
        distinct = "DISTINCT " if isinstance(reader, type) else ""
        values = connection.execute(
            f"SELECT {distinct}{column} FROM {table} WHERE {column} IS NOT NULL"  # noqa: S608  our own names
        )
        quick = _quick().get((table, column), reader)
        if not all(_reads(quick, value) for (value,) in values):
            return f"{table}.{column}"
    return None


Checks = Sequence[tuple[int, Reader]]
"""Places in a row, and what reads the values there."""


def checks_of(table: str, columns: Sequence[str]) -> Checks:
    """Of a table's rows, as they are selected."""
    return [
        (place, _readers()[table, name])
        for place, name in enumerate(columns)
        if (table, name) in _readers()
    ]


def makes_sense(checks: Checks, values: Sequence[object]) -> bool:
    """Every value of the row that can be checked."""
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
