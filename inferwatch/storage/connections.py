"""Opens the file: to write (one plain file before and after) or only to read."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from inferwatch.errors import StorageError
from inferwatch.storage.faults import explain
from inferwatch.storage.migrations import SCHEMA_VERSION, migrate, schema_version

BUSY_TIMEOUT_S = 1.0


def open_for_writing(path: Path) -> sqlite3.Connection:
    """A connection for the writer thread, the file made or migrated where needed.

    Raises:
        StorageError: it cannot be opened; the message says what to do.
    """
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = _connect(path, "rwc")
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
    """A connection that cannot write; a file of an older version is migrated first.

    Raises:
        StorageError: it cannot be opened; the message says what to do.
    """
    if not path.exists():
        raise StorageError(f"Nothing is recorded in {path} yet: try `inferwatch demo`")
    with _explained(path):
        connection = _connect(path, "ro")
        with closed_on_failure(connection):
            if schema_version(connection, path) == SCHEMA_VERSION:
                return connection
    connection.close()
    close_after_writing(open_for_writing(path))
    return open_for_reading(path)


def close_after_writing(connection: sqlite3.Connection) -> None:
    """Leave one plain file, if nobody else has it open; else the last one will."""
    with suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA busy_timeout = 100")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """Transactions are ours to begin; threads take turns by their own locks."""
    return sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )


@contextmanager
def closed_on_failure(connection: sqlite3.Connection) -> Iterator[None]:
    """For as long as nobody else would close it."""
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
