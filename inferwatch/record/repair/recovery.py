"""Reads damaged files: copies readable rows into a sound file, counts the rest.

The damaged file itself is never written to.
"""

import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from os import SEEK_END
from pathlib import Path

from sqlite_utils import Database

from inferwatch.errors import NewerSchemaError, StorageError
from inferwatch.record.file.sqlite import (
    FileStamp,
    connect,
    copy_of,
    explain,
    log_of,
    make_private,
    transaction,
)
from inferwatch.record.file.trace_folder import copy_traces
from inferwatch.record.repair.checks import first_sqlite_fault, first_unreadable_value
from inferwatch.record.repair.damage import Damage, is_damage, rescue_command
from inferwatch.record.repair.salvage import Salvage, fill_holes
from inferwatch.record.tables.migrations import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    migrate,
    migrations,
    session_tables,
)
from inferwatch.record.tables.session_state import SessionState

# Restores the header and schema of a damaged copy.
#
# The header of a truncated file has a wrong length, which SQLite rejects; an
# overwritten header can be written again, since we know how our files are made.
#
# The schema can be restored, too. With ``auto_vacuum``, SQLite moves other pages out of
# the way of new tables, so the roots of all tables are consecutive, in the order of our
# migrations. Hence an empty file of the same version has the same first page, except
# for the location of the rest of the schema; that rest is appended, and the first page
# points to it. Offsets are those of https://www.sqlite.org/fileformat.html, sections
# 1.3 and 1.6.

MAGIC = b"SQLite format 3\x00"
PAGE_BYTES = 4096
"""SQLite's default."""
HEADER_BYTES = 100
OURS = tuple(
    f"CREATE TABLE {name}".encode()
    for name in ("schema_versions", "step_members", "client_requests", "load_events")
)
"""Occur in every file of ours, wherever its schema is; one page may be lost."""
PAGE_COUNT_AT, FREELIST_AT, APPLICATION_AT = 28, 32, 68
INTERIOR = 5
CELL_COUNT_AT, LAST_CHILD_AT, CELLS_AT = 3, 8, 12
"""Offsets in the header of an interior page."""
COLUMNS = (
    "SELECT t.name, c.name FROM sqlite_master t, pragma_table_xinfo(t.name) c "
    "WHERE t.type = 'table'"
)


def is_ours(path: Path) -> bool:
    """Whether a file's header marks it as a recording, or it contains our schema."""
    tail = b""
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
        if header[APPLICATION_AT:][:4] == APPLICATION_ID.to_bytes(4, "big"):
            return True
        file.seek(0)
        while block := file.read(1 << 20):
            if any(each in tail + block for each in OURS):
                return True
            tail = block[-max(map(len, OURS)) :]
    return False


def fix_header(path: Path) -> None:
    """Make the header of an SQLite file match the file's actual size."""
    size_bytes = path.stat().st_size
    with path.open("r+b") as file:
        header = bytearray(file.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0"))
        page_bytes = _page_bytes(bytes(header))
        if page_bytes is None or header[: len(MAGIC)] != MAGIC:
            page_bytes, header = PAGE_BYTES, _new_header()
        pages = -(-size_bytes // page_bytes)
        change = header[24:28]
        struct.pack_into(">I", header, PAGE_COUNT_AT, pages)
        # a damaged freelist is useless
        struct.pack_into(">II", header, FREELIST_AT, 0, 0)
        header[92:96] = change  # the page count is valid for this change counter
        file.seek(0)
        file.write(header)
        file.truncate(pages * page_bytes)


def _page_bytes(header: bytes) -> int | None:
    """The page size in an SQLite header; None if it is invalid."""
    (size,) = struct.unpack_from(">H", header, 16)
    size = 65536 if size == 1 else size
    possible = size >= 512 and size & (size - 1) == 0
    return size if possible else None


def _new_header() -> bytearray:
    """The header that SQLite writes into a recording."""
    header = bytearray(HEADER_BYTES)
    header[: len(MAGIC)] = MAGIC
    struct.pack_into(">HBBBBBB", header, 16, PAGE_BYTES, 1, 1, 0, 64, 32, 32)
    struct.pack_into(">I", header, 24, 1)
    # schema cookie, schema format, cache size
    struct.pack_into(">III", header, 40, 1, 4, 0)
    struct.pack_into(">I", header, 56, 1)  # UTF-8
    return header


def has_whole_schema(copy: Path) -> bool:
    """Whether the schema is readable and has all columns of the file's version."""
    version = _version(copy) or 1  # with an unknown version, the first tables suffice
    columns = _columns(_empty_recording(copy, min(version, SCHEMA_VERSION)))
    return columns is not None and columns <= (_columns(copy) or set())


def restore_schema(copy: Path) -> None:
    """Replace the schema by that of the file's version.

    The version is in a table that starts on the same page in all versions. If that is
    lost as well, only tables of the first version can be found.
    """
    _transplant(_empty_recording(copy, 1), copy)
    version = _version(copy)
    if version is not None and 1 < version <= SCHEMA_VERSION:
        _transplant(_empty_recording(copy, version), copy)


def _version(path: Path) -> int | None:
    with suppress(sqlite3.DatabaseError, UnicodeDecodeError):
        with closing(connect(path, "rw")) as connection:
            (version,) = connection.execute(
                "SELECT max(version) FROM schema_versions"
            ).fetchone()
            return version if isinstance(version, int) else None
    return None


def _columns(path: Path) -> set[tuple[str, str]] | None:
    with suppress(sqlite3.DatabaseError, UnicodeDecodeError):
        with closing(connect(path, "rw")) as connection:
            return set(connection.execute(COLUMNS))
    return None


def _empty_recording(copy: Path, version: int) -> Path:
    """Create an empty recording of a schema version, unless it exists."""
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
    """Copy the first page of a fresh file, and append the pages it points to."""
    pages = fresh.read_bytes()
    first = bytearray(pages[:PAGE_BYTES])
    if first[HEADER_BYTES] == INTERIOR:
        with copy.open("r+b") as file:
            number = -(-file.seek(0, SEEK_END) // PAGE_BYTES)
            for place in _child_offsets(bytes(first)):
                (child,) = struct.unpack_from(">I", first, place)
                file.seek(number * PAGE_BYTES)
                file.write(pages[(child - 1) * PAGE_BYTES : child * PAGE_BYTES])
                number += 1
                struct.pack_into(">I", first, place, number)
    with copy.open("r+b") as file:
        file.write(first)
    fix_header(copy)


def _child_offsets(first: bytes) -> list[int]:
    """Offsets, in a file's first page, of the numbers of the pages it points to."""
    (count,) = struct.unpack_from(">H", first, HEADER_BYTES + CELL_COUNT_AT)
    cells = struct.unpack_from(f">{count}H", first, HEADER_BYTES + CELLS_AT)
    return [*cells, HEADER_BYTES + LAST_CHILD_AT]


CHECKED_UP_TO_BYTES = 32_000_000
"""Larger files are not checked on every opening."""
SALVAGED_UP_TO_BYTES = 500_000_000
"""Larger files are salvaged only on request, as it takes minutes."""
SESSIONS_LOOKED_FOR = 64
"""Session numbers tried if nothing tells which exist."""
OF_NO_SESSION = ("tunes", "tune_trials")
"""Tables whose rows stay when sessions are deleted."""


def damage_of(path: Path) -> Damage | None:
    """The losses of a damaged file; None if no damage was found.

    Raises:
        StorageError: nothing at all can be read.
    """
    copy = readable_copy(path)
    return copy[1] if copy else None


def damage_of_layout(path: Path) -> Damage | None:
    """The losses of a file SQLite itself finds faulty, which writing would make worse.

    Raises:
        StorageError: nothing at all can be read.
    """
    sound = log_of(path).exists() or _is_laid_out(FileStamp.of(path))
    return None if sound else damage_of(path)


def readable_copy(path: Path, *, certain: bool = False) -> tuple[Path, Damage] | None:
    """A sound copy of a damaged file, and its losses; None without damage.

    ``certain``: reading the file has failed already.

    Raises:
        StorageError: nothing at all can be read.
    """
    stamp = FileStamp.of(path)
    if not certain and (log_of(path).exists() or _is_sound(stamp)):
        return None
    if path.stat().st_size > SALVAGED_UP_TO_BYTES:
        raise StorageError(
            f"{path} is damaged: {rescue_command(path)} saves what can be read"
        )
    return _salvaged(stamp)


def recover_into(path: Path, into: Path) -> Damage:
    """Save what can be read of a damaged file in a new file.

    Raises:
        StorageError: nothing at all can be read, or the new file exists.
    """
    if into.exists():
        raise StorageError(f"{into} exists: choose another file to save into")
    if not path.exists():
        raise StorageError(f"{path} does not exist")
    damage = _salvage(path, into)
    with closing(connect(into, "rw")) as connection:  # nobody records into the new file
        states = SessionState.INTERRUPTED, SessionState.RECORDING
        connection.execute("UPDATE sessions SET state = ? WHERE state = ?", states)
    copy_traces(path, into)
    return damage


@lru_cache(maxsize=64)
def _is_sound(stamp: FileStamp) -> bool:
    """Whether neither SQLite nor we find a fault, without checking large files."""
    return _is_laid_out(stamp) and _finds_nothing(stamp, first_unreadable_value)


@lru_cache(maxsize=64)
def _is_laid_out(stamp: FileStamp) -> bool:
    return _finds_nothing(stamp, first_sqlite_fault)


def _finds_nothing(
    stamp: FileStamp, look: Callable[[sqlite3.Connection], str | None]
) -> bool:
    if stamp.path.stat().st_size > CHECKED_UP_TO_BYTES:
        return True
    try:
        with closing(connect(stamp.path, "ro")) as connection:
            return look(connection) is None
    except UnicodeDecodeError:
        return False
    except sqlite3.DatabaseError as error:
        return not is_damage(error)


@lru_cache(maxsize=64)
def _salvaged(stamp: FileStamp) -> tuple[Path, Damage]:
    sound = copy_of(stamp.path).with_suffix(".sound")
    return sound, _salvage(stamp.path, sound)


def _salvage(path: Path, into: Path) -> Damage:
    try:
        if not is_ours(path):
            raise StorageError(
                f"{path} is damaged, or not a recording of inferwatch: "
                "nothing can be read of it"
            )
        copy = copy_of(path)
        fix_header(copy)
        if not has_whole_schema(copy):
            restore_schema(copy)
        with closing(connect(copy, "rw")) as damaged:
            damaged.text_factory = lambda data: data.decode("utf-8", "replace")
            # allows reading a damaged schema
            damaged.execute("PRAGMA writable_schema = ON")
            make_private(into)
            with _removed_on_failure(into), closing(connect(into, "rwc")) as sound:
                return _copied(path, damaged, sound)
    except (sqlite3.Error, OSError) as error:
        raise StorageError(explain(error, path)) from error


@contextmanager
def _removed_on_failure(into: Path) -> Iterator[None]:
    """Remove the new file on failure: a partial one could pass for a complete one."""
    try:
        yield
    except BaseException:
        into.unlink(missing_ok=True)
        raise


def _copied(
    path: Path, damaged: sqlite3.Connection, sound: sqlite3.Connection
) -> Damage:
    _refuse_newer(damaged, path)
    sound.execute("PRAGMA auto_vacuum = INCREMENTAL")
    sound.execute("PRAGMA synchronous = OFF")
    migrate(sound, path)
    salvage = Salvage(damaged, sound)
    with transaction(sound):
        salvage.copy("sessions", ())
        numbers = list(_numbers(damaged, sound))
        for table in session_tables(sound):
            salvage.copy(table, numbers)
        for table in OF_NO_SESSION:
            salvage.copy(table, ())
        sessions = fill_holes(sound)
    return Damage(
        path=path,
        sessions=tuple(sessions),
        rows=salvage.rows,
        torn=tuple(salvage.torn),
    )


def _numbers(damaged: sqlite3.Connection, sound: sqlite3.Connection) -> Iterator[int]:
    """Numbers of the sessions that the damaged file may contain."""
    (highest,) = sound.execute("SELECT max(session) FROM sessions").fetchone()
    last = max(highest or 0, SESSIONS_LOOKED_FOR)
    with suppress(sqlite3.DatabaseError):
        (used,) = damaged.execute("SELECT max(seq) FROM sqlite_sequence").fetchone()
        last = used or last
    return iter(range(1, last + 1))


def _refuse_newer(damaged: sqlite3.Connection, path: Path) -> None:
    """Reject files of a newer inferwatch, whose tables may have another meaning."""
    with suppress(sqlite3.DatabaseError):
        (version,) = damaged.execute(
            "SELECT max(version) FROM schema_versions"
        ).fetchone()
        if version is not None and version > SCHEMA_VERSION:
            raise NewerSchemaError(
                f"{path} is damaged, and was written by a newer inferwatch"
            )
