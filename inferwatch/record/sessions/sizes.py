"""How much of the file a session takes: an estimate, since sessions share pages."""

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from inferwatch.record.connections import reading
from inferwatch.record.tables.migrations import session_tables

COUNTED_UP_TO_BYTES = 100_000_000
"""Rows of larger files are not counted: that would read the whole file."""


class SizedBy(StrEnum):
    """How a size was estimated."""

    TABLES = "tables"
    """The pages of each table, shared out by rows."""
    READINGS = "readings"
    """The pages of the file, shared out by readings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What each session takes, by its number."""

    by: SizedBy
    used_bytes: int
    """All sessions together."""
    free_bytes: int
    """Left by what was deleted: vacuum gives it back to the disk."""
    of: dict[int, int]

    @property
    def file_bytes(self) -> int:
        """What the file takes."""
        return self.used_bytes + self.free_bytes


def sizes_in(path: Path) -> Sizes:
    """The sizes of all sessions of a file.

    Raises:
        StorageError: there is no such file, or it cannot be read.
    """
    with reading(path) as connection:
        return sizes(connection)


def sizes(connection: sqlite3.Connection) -> Sizes:
    """The sizes of all sessions of an open file."""
    page_bytes = _pragma(connection, "page_size")
    free_bytes = _pragma(connection, "freelist_count") * page_bytes
    used_bytes = _pragma(connection, "page_count") * page_bytes - free_bytes
    readings = dict(
        connection.execute("SELECT session, max(readings, 1) FROM sessions").fetchall()
    )
    by, of = SizedBy.READINGS, _shares(readings, used_bytes)
    if used_bytes <= COUNTED_UP_TO_BYTES and len(readings) > 1:
        with suppress(sqlite3.OperationalError):  # not every SQLite has dbstat
            by, of = SizedBy.TABLES, _by_tables(connection, list(readings))
    return Sizes(by=by, used_bytes=used_bytes, free_bytes=free_bytes, of=of)


def _by_tables(connection: sqlite3.Connection, numbers: list[int]) -> dict[int, int]:
    of = dict.fromkeys(numbers, 0)
    taken = dict(_table_bytes(connection))
    for table in session_tables(connection):
        rows = connection.execute(
            f"SELECT session, count(*) FROM {table} GROUP BY session"  # noqa: S608  our own names
        ).fetchall()
        for number, share in _shares(dict(rows), taken.get(table, 0)).items():
            of[number] = of.get(number, 0) + share
    return of


def _table_bytes(connection: sqlite3.Connection) -> Iterator[tuple[str, int]]:
    """Each table with its indexes."""
    yield from connection.execute(
        "SELECT m.tbl_name, sum(s.pgsize) FROM dbstat s "
        "JOIN sqlite_master m USING (name) WHERE s.aggregate = TRUE GROUP BY m.tbl_name"
    )


def _shares(weights: dict[int, int], whole_bytes: int) -> dict[int, int]:
    total = sum(weights.values())
    return {number: whole_bytes * weight // total for number, weight in weights.items()}


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)
