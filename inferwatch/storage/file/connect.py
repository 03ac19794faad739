"""Opens an SQLite file as every part of the record does."""

import sqlite3
from pathlib import Path

from inferwatch.errors import StorageError

BUSY_TIMEOUT_S = 1.0
OLDEST_SQLITE = (3, 38, 2)
"""STRICT tables came with 3.37, which takes no whole REAL beside computed columns."""


def check_sqlite() -> None:
    """See that the SQLite this Python brings can read and write the record.

    Raises:
        StorageError: it is too old; the message says what to do.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise StorageError(
            f"The record needs SQLite {oldest} or newer, this Python has "
            f"{sqlite3.sqlite_version}: use a Python that brings a newer one (those of "
            "uv and conda-forge do), or update the system's libsqlite3"
        )


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Transactions are ours to begin; threads take turns by their own locks."""
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    # A flipped bit in a name must not keep the rest of the file from being read.
    connection.text_factory = _text
    return connection


def _text(held: bytes) -> str:
    return held.decode("utf-8", "replace")


def file_id(path: Path) -> tuple[int, int]:
    """Device and inode: another file under the same name has others.

    Raises:
        OSError: there is none.
    """
    found = path.stat()
    return found.st_dev, found.st_ino
