"""Makes the first page and the schema of a damaged copy readable again.

A file that was cut off says in its header how long it was, and SQLite refuses it; a
header that was overwritten can be written anew, because we know how we make our files.

So can the schema, when the copy's own cannot be read. Tables begin where they were
made: with ``auto_vacuum``, SQLite moves whatever is in the way, so the roots of all
tables lie one after the other, in the order of our migrations. A fresh file of the same
version therefore has the same first page, but for where the rest of the schema lies;
that is appended, and the first page told where it is now.
Offsets are those of https://www.sqlite.org/fileformat.html, sections 1.3 and 1.6.
"""

import sqlite3
import struct
from contextlib import closing, suppress
from os import SEEK_END
from pathlib import Path

from sqlite_utils import Database

from inferwatch.record.file.sqlite import connect
from inferwatch.record.tables.migrations import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    migrations,
)

MAGIC = b"SQLite format 3\x00"
PAGE_BYTES = 4096
"""SQLite's default, which we leave as it is."""
HEADER_BYTES = 100
OURS = tuple(
    f"CREATE TABLE {name}".encode()
    for name in ("schema_versions", "step_members", "client_requests", "load_events")
)
"""Stand in every file of ours, wherever its schema lies; one page may be lost."""
PAGE_COUNT_AT, FREELIST_AT, APPLICATION_AT = 28, 32, 68
INTERIOR = 5
CELL_COUNT_AT, LAST_CHILD_AT, CELLS_AT = 3, 8, 12
"""Within the header of such a page."""
COLUMNS = (
    "SELECT t.name, c.name FROM sqlite_master t, pragma_table_xinfo(t.name) c "
    "WHERE t.type = 'table'"
)


def is_ours(path: Path) -> bool:
    """Its header says so, or it holds our schema."""
    kept = b""
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
        if header[APPLICATION_AT:][:4] == APPLICATION_ID.to_bytes(4, "big"):
            return True
        file.seek(0)
        while block := file.read(1 << 20):
            if any(each in kept + block for each in OURS):
                return True
            kept = block[-max(map(len, OURS)) :]
    return False


def fix_header(path: Path) -> None:
    """Let the header say what is true of the file as it is now."""
    size_bytes = path.stat().st_size
    with path.open("r+b") as file:
        header = bytearray(file.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0"))
        page_bytes = _page_bytes(bytes(header))
        if page_bytes is None or header[: len(MAGIC)] != MAGIC:
            page_bytes, header = PAGE_BYTES, _new_header()
        pages = -(-size_bytes // page_bytes)
        change = header[24:28]
        struct.pack_into(">I", header, PAGE_COUNT_AT, pages)
        struct.pack_into(">II", header, FREELIST_AT, 0, 0)  # a torn list helps nobody
        header[92:96] = change  # the count of pages holds as of this change
        file.seek(0)
        file.write(header)
        file.truncate(pages * page_bytes)


def _page_bytes(header: bytes) -> int | None:
    """What the header says, if that can be."""
    (said,) = struct.unpack_from(">H", header, 16)
    said = 65536 if said == 1 else said
    possible = said >= 512 and said & (said - 1) == 0
    return said if possible else None


def _new_header() -> bytearray:
    """As SQLite writes it into a file of ours."""
    header = bytearray(HEADER_BYTES)
    header[: len(MAGIC)] = MAGIC
    struct.pack_into(">HBBBBBB", header, 16, PAGE_BYTES, 1, 1, 0, 64, 32, 32)
    struct.pack_into(">I", header, 24, 1)
    struct.pack_into(">III", header, 40, 1, 4, 0)  # schema cookie, format, cache
    struct.pack_into(">I", header, 56, 1)  # UTF-8
    return header


def has_whole_schema(copy: Path) -> bool:
    """It can be read, and every column of its version is in it."""
    version = _version(copy) or 1  # as long as it has the first tables, it will do
    wanted = _columns(_fresh(copy, min(version, SCHEMA_VERSION)))
    return wanted is not None and wanted <= (_columns(copy) or set())


def restore_schema(copy: Path) -> None:
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
    fix_header(copy)


def _children(first: bytes) -> list[int]:
    """Where in the first page the numbers of others stand."""
    (count,) = struct.unpack_from(">H", first, HEADER_BYTES + CELL_COUNT_AT)
    cells = struct.unpack_from(f">{count}H", first, HEADER_BYTES + CELLS_AT)
    return [*cells, HEADER_BYTES + LAST_CHILD_AT]
