"""SQLite connections, transactions and error messages."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from inferwatch.errors import StorageError


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Identifies the content of a file at a time: it changes whenever the file does."""

    path: Path
    facts: tuple[tuple[int, int, int] | None, ...]

    @classmethod
    def of(cls, path: Path) -> "FileStamp":
        """The stamp of a file and its write-ahead log, as they are now."""
        return cls(path.resolve(), tuple(map(_facts, (path, log_of(path)))))


def log_of(path: Path) -> Path:
    """The write-ahead log of a file that is open, or whose writer died."""
    return path.with_name(path.name + "-wal")


def copy_of(path: Path) -> Path:
    """A private copy of a file and its log.

    Raises:
        OSError: there is no space, or the file cannot be read.
    """
    folder = Path(mkdtemp(dir=_folder().name))
    copy = folder / path.name
    shutil.copyfile(path, copy)
    if log_of(path).exists():
        shutil.copyfile(log_of(path), log_of(copy))
    return copy


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="inferwatch-", ignore_cleanup_errors=True)


def _facts(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a session was read, in readings and in rows of requests.

    A request's events share one row, which is created with the first of them: rows with
    events on both sides of the cursor are read again.
    """

    ordinal: int = -1
    """Ordinal of the last reading before it; ordinals start at 0 or 1."""
    open_requests: tuple[int, ...] = ()
    """Ordinals of request rows with events before and after."""


START = Cursor()


BUSY_TIMEOUT_S = 1.0
OLDEST_SQLITE = (3, 38, 2)
"""STRICT tables came with 3.37, whose REAL columns reject integers beside generated
ones."""
RECOVER = "`inferwatch sessions recover NEW.db` saves what can be read"
_ADVICE = {
    sqlite3.SQLITE_FULL: "the disk is full: free some space",
    sqlite3.SQLITE_BUSY: "another program has locked it: close that program",
    sqlite3.SQLITE_LOCKED: "another program has locked it: close that program",
    sqlite3.SQLITE_READONLY: "it is read-only: make it writable",
    sqlite3.SQLITE_PERM: "access is denied: make it writable",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: is the directory writable?",
    sqlite3.SQLITE_IOERR: (
        "the disk reports an error: see dmesg, the quota and the file size limit"
    ),
    sqlite3.SQLITE_CORRUPT: f"it is damaged: choose another file with --db; {RECOVER}",
    sqlite3.SQLITE_NOTADB: "it is not an SQLite file: choose another with --db",
}
PRIMARY_CODE = 0xFF
"""The primary code is the lowest byte of an extended code."""


def check_sqlite() -> None:
    """Check that this Python's SQLite can read and write recordings.

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


def make_private(path: Path) -> None:
    """Create an empty file readable by this user only, unless it exists.

    A recording holds ids and settings. The mode of an existing file is left alone,
    since it may be shared on purpose.
    """
    with suppress(OSError):  # it exists, or SQLite will report the error
        path.touch(0o600, exist_ok=False)


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open a connection without implicit transactions; callers lock between threads."""
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


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def file_id(path: Path) -> tuple[int, int]:
    """Device and inode, which differ for another file of the same name.

    Raises:
        OSError: there is no such file.
    """
    status = path.stat()
    return status.st_dev, status.st_ino


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction that is committed or rolled back as a whole.

    It takes the write lock first, so that a busy file is noticed before any work.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have ended it already
            connection.execute("ROLLBACK")
        raise


def explain(error: Exception, path: Path) -> str:
    """The file, what is wrong with it and what helps, in one line for users."""
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_ERROR:  # a name in the schema was damaged
        return f"{path}: {error}; {RECOVER}"
    advice = None if code is None else _ADVICE.get(code & PRIMARY_CODE)
    return f"{path}: {advice or error}"
