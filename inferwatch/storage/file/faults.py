"""Says what is wrong with the file and what helps, in one line fit to show."""

import shutil
import sqlite3
from pathlib import Path

RECOVER = "`inferwatch sessions recover NEW.db` saves what can be read"
_ADVICE = {
    sqlite3.SQLITE_FULL: "the disk is full: free some space",
    sqlite3.SQLITE_BUSY: "another program has locked it: close that program",
    sqlite3.SQLITE_LOCKED: "another program has locked it: close that program",
    sqlite3.SQLITE_READONLY: "it is read-only: make it writable",
    sqlite3.SQLITE_PERM: "access is denied: make it writable",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: is the directory writable?",
    sqlite3.SQLITE_IOERR: "the disk refuses: see dmesg, quota and file size limits",
    sqlite3.SQLITE_CORRUPT: f"it is damaged: choose another file with --db; {RECOVER}",
    sqlite3.SQLITE_NOTADB: "it is not an SQLite file: choose another with --db",
}
PRIMARY_CODE = 0xFF
"""SQLite's extended codes carry the primary one in the lowest byte."""


def explain(error: Exception, path: Path) -> str:
    """The fault, the file, the remedy."""
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_ERROR:  # a name in the schema has changed
        return f"{path}: {error}; {RECOVER}"
    advice = None if code is None else _ADVICE.get(code & PRIMARY_CODE)
    return f"{path}: {advice or error}"


def too_little_room(path: Path, floor_bytes: int) -> str | None:
    """Why the disk is too full to record, None when it is not."""
    free_bytes = shutil.disk_usage(path.parent).free
    if free_bytes >= floor_bytes:
        return None
    return (
        f"{path}: only {free_bytes // 1_000_000} MB of disk are free, "
        f"{floor_bytes // 1_000_000} MB are left to others: free some space, "
        "or lower INFERWATCH_MIN_FREE_MB"
    )
