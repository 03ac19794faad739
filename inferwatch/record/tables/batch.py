"""The rows of one transaction."""

import sqlite3
from collections import defaultdict

from inferwatch.record.checkpoints.checkpoints import Checkpoint

Key = tuple[int, int, int]
"""Session, ordinal, source: how the rows of most tables begin."""
Row = tuple[object, ...]

UNSTORABLE = (
    OverflowError,
    UnicodeEncodeError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)
"""The row itself is to blame; trying again later cannot help."""


class Batch:
    """The rows of one transaction by the statement that inserts them, and counts."""

    def __init__(self) -> None:
        self.readings = 0
        """How many readings became rows."""
        self.lost = 0
        """How many could not."""
        self.steps = 0
        self.requests = 0
        self.model: str | None = None
        self.checkpoints: list[tuple[Checkpoint, tuple[int, ...]]] = []
        """With the requests that were open then; see :class:`Cursor`."""
        self._rows: defaultdict[str, list[Row]] = defaultdict(list)

    def add(self, statement: str, row: Row) -> None:
        """Add a row."""
        self._rows[statement].append(row)

    def insert(self, connection: sqlite3.Connection) -> None:
        """Insert all rows; runs inside the caller's transaction."""
        for statement, rows in self._rows.items():
            connection.executemany(statement, rows)

    def insert_what_can_be(self, connection: sqlite3.Connection) -> int:
        """Insert the rows one by one; how many could not be stored."""
        return sum(
            not _inserted(connection, statement, row)
            for statement, rows in self._rows.items()
            for row in rows
        )


def _inserted(connection: sqlite3.Connection, statement: str, row: Row) -> bool:
    try:
        connection.execute(statement, row)
    except UNSTORABLE:
        return False
    return True
