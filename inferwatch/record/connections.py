"""Opens the recording file for writing or for reading only."""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from inferwatch.errors import StorageError
from inferwatch.record.file.sqlite import (
    PRIMARY_CODE,
    FileStamp,
    connect,
    copy_of,
    explain,
    log_of,
    make_private,
)
from inferwatch.record.repair.damage import is_damage
from inferwatch.record.repair.recovery import readable_copy
from inferwatch.record.tables.migrations import SCHEMA_VERSION, migrate, schema_version


def open_for_writing(path: Path) -> sqlite3.Connection:
    """A connection for the writer thread; creates or migrates the file as needed.

    Raises:
        StorageError: it cannot be opened; the message says what to do.
    """
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        make_private(path)
        connection = connect(path, "rwc")
        with closed_on_failure(connection):
            schema_version(connection, path)  # before the first write to the file
            # Before the first table, or deleting sessions could never shrink the file.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            # A commit survives kill -9; only a power cut can lose the latest ones.
            connection.execute("PRAGMA synchronous = NORMAL")
            migrate(connection, path)
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """A read-only connection to the file, or to a copy of it.

    A file of an older version is migrated first, in a copy if it is not ours. A damaged
    one is read from a salvaged copy; :func:`recovery.damage_of` says what is lost.

    Raises:
        StorageError: it cannot be opened; the message says what to do.
    """
    if not path.exists():
        raise StorageError(f"Nothing is recorded in {path} yet: try `inferwatch demo`")
    with _explained(path):
        version = _version(path)
        sound = readable_copy(path, certain=version is None)
        if sound is not None:
            return connect(sound[0], "ro")
        if version == SCHEMA_VERSION:
            return connect(path, "ro")
        if not _is_ours_to_change(path):
            return connect(_migrated(FileStamp.of(path)), "ro")
        close_after_writing(open_for_writing(path))
    return connect(path, "ro")


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection, closed at the end.

    Raises:
        StorageError: the file cannot be opened or read; the message says what to do.
    """
    with _explained(path), closing(open_for_reading(path)) as connection:
        yield connection


def _version(path: Path) -> int | None:
    """The schema version of a file; None if it is too damaged to tell.

    0 for a file that was not closed, which cannot be read without changing it.
    """
    try:
        with closing(connect(path, "ro")) as connection:
            return schema_version(connection, path)
    except UnicodeDecodeError:
        return None
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            return None
        if _needs_log(error) and log_of(path).exists():
            return 0
        raise


def _needs_log(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & PRIMARY_CODE
    return code in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}


def _is_ours_to_change(path: Path) -> bool:
    """Whether we may write and own the file; root could write, but should not."""
    status = path.stat()
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    ours = status.st_uid == os.geteuid() and status.st_mode & stat.S_IWUSR
    return writable and bool(ours)


@lru_cache(maxsize=64)
def _migrated(stamp: FileStamp) -> Path:
    copy = copy_of(stamp.path)
    copy.chmod(stat.S_IRUSR | stat.S_IWUSR)
    close_after_writing(open_for_writing(copy))
    return copy


def settle(path: Path, tidy: Callable[[sqlite3.Connection], None]) -> None:
    """Fold in the write-ahead log of a killed writer, so that the file can be copied.

    ``tidy`` is called first. Only for files of ours; while anybody has it open, the log
    stays.
    """
    with suppress(sqlite3.Error, OSError):
        if log_of(path).exists() and _is_ours_to_change(path):
            connection = connect(path, "rw")
            try:
                tidy(connection)
            finally:
                close_after_writing(connection)


def close_after_writing(connection: sqlite3.Connection) -> None:
    """Close the connection, leaving one plain file unless somebody has it open."""
    with suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA busy_timeout = 100")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()


@contextmanager
def closed_on_failure(connection: sqlite3.Connection) -> Iterator[None]:
    """Close the connection if the block fails."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StorageError(explain(error, path)) from error
