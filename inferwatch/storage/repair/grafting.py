"""Gives a damaged copy our schema back, when its own cannot be read.

Tables begin where they were made: with ``auto_vacuum``, SQLite moves whatever is in the
way, so the roots of all tables lie one after the other, in the order of our migrations.
A fresh file of the same version therefore has the same first page, but for where the
rest of the schema lies; that is appended, and the first page told where it is now.
Offsets are those of https://www.sqlite.org/fileformat.html, section 1.6.
"""

import sqlite3
import struct
from contextlib import closing, suppress
from os import SEEK_END
from pathlib import Path

from sqlite_utils import Database

from inferwatch.storage.file.connect import connect
from inferwatch.storage.repair.file_header import HEADER_BYTES, PAGE_BYTES, mend
from inferwatch.storage.tables.schema import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    migrations,
)

INTERIOR = 5
CELL_COUNT_AT, LAST_CHILD_AT, CELLS_AT = 3, 8, 12
"""Within the header of such a page."""
COLUMNS = (
    "SELECT t.name, c.name FROM sqlite_master t, pragma_table_xinfo(t.name) c "
    "WHERE t.type = 'table'"
)


def has_whole_schema(copy: Path) -> bool:
    """It can be read, and every column of its version is in it."""
    version = _version(copy) or 1  # as long as it has the first tables, it will do
    wanted = _columns(_fresh(copy, min(version, SCHEMA_VERSION)))
    return wanted is not None and wanted <= (_columns(copy) or set())


def graft(copy: Path) -> None:
    """Put the schema of its version in place of what is there.

    The version stands in a table that begins on the same page in all. Where that is
    lost too, what the first version knew is all that can be found.
    """
    _transplant(_fresh(copy, 1), copy)
    version = _version(copy)
    if version is not None and 1 < version <= SCHEMA_VERSION:
        _transplant(_fresh(copy, version), copy)


def _version(path: Path) -> int | None:
    with suppress(sqlite3.DatabaseError, UnicodeDecodeError):
        with closing(connect(path, "rw")) as connection:
            (found,) = connection.execute(
                "SELECT max(version) FROM schema_versions"
            ).fetchone()
            return found if isinstance(found, int) else None
    return None


def _columns(path: Path) -> set[tuple[str, str]] | None:
    with suppress(sqlite3.DatabaseError, UnicodeDecodeError):
        with closing(connect(path, "rw")) as connection:
            return set(connection.execute(COLUMNS))
    return None


def _fresh(copy: Path, version: int) -> Path:
    """An empty file of that version, as we make it."""
    path = copy.with_suffix(f".schema{version}")
    if path.exists():
        return path
    with closing(connect(path, "rwc")) as connection:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database = Database(connection, execute_plugins=False)
        migrations.apply(database, stop_before=f"version_{version + 1}")
    return path


def _transplant(fresh: Path, copy: Path) -> None:
    """The first page, and what it points to at the end of the copy."""
    pages = fresh.read_bytes()
    first = bytearray(pages[:PAGE_BYTES])
    if first[HEADER_BYTES] == INTERIOR:
        with copy.open("r+b") as file:
            number = -(-file.seek(0, SEEK_END) // PAGE_BYTES)
            for place in _children(bytes(first)):
                (child,) = struct.unpack_from(">I", first, place)
                file.seek(number * PAGE_BYTES)
                file.write(pages[(child - 1) * PAGE_BYTES : child * PAGE_BYTES])
                number += 1
                struct.pack_into(">I", first, place, number)
    with copy.open("r+b") as file:
        file.write(first)
    mend(copy)


def _children(first: bytes) -> list[int]:
    """Where in the first page the numbers of others stand."""
    (count,) = struct.unpack_from(">H", first, HEADER_BYTES + CELL_COUNT_AT)
    cells = struct.unpack_from(f">{count}H", first, HEADER_BYTES + CELLS_AT)
    return [*cells, HEADER_BYTES + LAST_CHILD_AT]
