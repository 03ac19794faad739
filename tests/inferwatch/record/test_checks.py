"""What SQLite says of a file is believed where a second look bears it out."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from inferwatch.errors import StorageError
from inferwatch.record.file.sqlite import check_sqlite
from inferwatch.record.repair.checks import first_sqlite_fault

KEY_LAST = (
    "CREATE TABLE marks (text TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (n)) "
    "STRICT, WITHOUT ROWID"
)
"""SQLite 3.40 finds NULL in such a table wherever there is a row."""


def test_a_mistake_of_sqlite_is_no_fault() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(KEY_LAST)
        for n in range(300):
            connection.execute("INSERT INTO marks VALUES ('x', ?)", (n,))

        assert first_sqlite_fault(connection) is None


def write_schema(connection: sqlite3.Connection, table: str, sql: str) -> None:
    """Change what a table may hold, whatever it does hold."""
    connection.execute("PRAGMA writable_schema = ON")
    change = "UPDATE sqlite_master SET sql = ? WHERE name = ?"
    connection.execute(change, (sql, table))
    connection.commit()


@pytest.mark.parametrize(
    ("held", "column", "said"),
    [
        pytest.param(None, "x TEXT NOT NULL", "NULL value in held.x", id="NULL"),
        pytest.param("a", "x INTEGER", "non-INTEGER value in held.x", id="type"),
    ],
)
def test_a_value_that_is_wrong_is_a_fault_beside_the_mistakes(
    tmp_path: Path, held: object, column: str, said: str
) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(KEY_LAST)
        connection.execute("CREATE TABLE held (x ANY) STRICT")
        for n in range(300):
            connection.execute("INSERT INTO marks VALUES ('x', ?)", (n,))
        connection.execute("INSERT INTO held VALUES (?)", (held,))
        write_schema(connection, "held", f"CREATE TABLE held ({column}) STRICT")

    with closing(sqlite3.connect(path)) as connection:
        assert first_sqlite_fault(connection) == said


def test_a_sqlite_that_is_too_old_is_refused_with_what_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_sqlite()
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))

    with pytest.raises(StorageError, match=r"needs SQLite 3\.38\.2 or newer"):
        check_sqlite()
