"""Whether SQLite finds a file as it should be, its own mistakes left out."""

import re
import sqlite3

ALL_FAULTS = 2**31 - 1
CLAIM = re.compile(
    r"(?:NULL|non-(?P<kind>\w+)) value in (?P<table>\w+)\.(?P<column>\w+)"
)
"""What SQLite says of a value that a column does not take."""
STORED = {"INT": "integer"}
"""How SQLite calls a value of a column's type, where it is not the type's own name."""


def first_fault(connection: sqlite3.Connection) -> str | None:
    """What is wrong with the file, in SQLite's words; None when nothing is.

    SQLite 3.40 looks into the wrong column of tables WITHOUT ROWID whose key does not
    come first, and finds NULL there: what it says of values is looked at again.

    Raises:
        sqlite3.DatabaseError, UnicodeDecodeError: the file is too damaged to tell.
    """
    (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if said == "ok":
        return None
    refuted: set[str] = set()
    # Faults of the structure come first, then those of values, row by row.
    for (said,) in connection.execute(f"PRAGMA quick_check({ALL_FAULTS})"):
        if said not in refuted and not _is_refuted(connection, said):
            return str(said)
        refuted.add(said)
    return None


def _is_refuted(connection: sqlite3.Connection, said: str) -> bool:
    """It speaks of a value, and no row holds one such."""
    claim = CLAIM.fullmatch(said)
    if claim is None:
        return False
    kind = claim["kind"]
    taken = [] if kind is None else [STORED.get(kind, kind.lower()), "null"]
    wrong = f"NOT IN ({', '.join('?' * len(taken))})" if taken else "= 'null'"
    found = connection.execute(
        f"SELECT 1 FROM {claim['table']} "  # noqa: S608  our own names
        f"WHERE typeof({claim['column']}) {wrong} LIMIT 1",
        taken,
    )
    return found.fetchone() is None
