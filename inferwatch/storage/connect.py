"""Opens an SQLite file as every part of the record does."""

import sqlite3
from pathlib import Path

BUSY_TIMEOUT_S = 1.0


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Transactions are ours to begin; threads take turns by their own locks."""
    return sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
