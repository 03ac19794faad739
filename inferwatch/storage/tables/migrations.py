"""Brings a file to the schema this inferwatch speaks, and knows one it does not."""

import sqlite3
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from sqlite_utils import Database, Migrations

from inferwatch import __version__
from inferwatch.errors import NewerSchemaError, StorageError
from inferwatch.storage.file.transaction import transaction

SCHEMA_VERSION = 5
APPLICATION_ID = 0x69776174
"""Marks our files ("iwat"), so that we never write into another program's."""

migrations = Migrations("inferwatch")


@migrations()
def version_1(database: Database) -> None:
    """The first tables."""
    _execute(database, "schema_1.sql")


@migrations()
def version_2(database: Database) -> None:
    """What the load generator knows of itself."""
    _execute(database, "schema_2.sql")


@migrations()
def version_3(database: Database) -> None:
    """Tags, the bin, bookmarks, where an imported session came from."""
    _execute(database, "schema_3.sql")


@migrations()
def version_4(database: Database) -> None:
    """What answers say of themselves: turns, first content, the server's own times."""
    _execute(database, "schema_4.sql")


@migrations()
def version_5(database: Database) -> None:
    """Bookmarks that no SQLite takes for damage; latencies as `load` reports them."""
    _execute(database, "schema_5.sql")


def schema_version(connection: sqlite3.Connection, path: Path) -> int:
    """The file's version, 0 for an empty file.

    Raises:
        NewerSchemaError: a newer inferwatch wrote it.
        StorageError: another program wrote it.
    """
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not tables:
        return 0
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise StorageError(
            f"{path} belongs to another program: choose another file with --db"
        )
    version, written_by = connection.execute(
        "SELECT max(version), inferwatch_version FROM schema_versions"
    ).fetchone()
    if version > SCHEMA_VERSION:
        raise NewerSchemaError(
            f"{path} was written by inferwatch {written_by} (schema {version}), this "
            f"is {__version__} (schema {SCHEMA_VERSION}): upgrade to inferwatch "
            f"{written_by} or newer, or choose another file with --db"
        )
    return int(version)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the file to our version; two programs may try at once."""
    if schema_version(connection, path) == SCHEMA_VERSION:
        return
    with transaction(connection):
        if schema_version(connection, path) == SCHEMA_VERSION:
            return  # the other one was faster
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        migrations.apply(Database(connection, execute_plugins=False))
        connection.execute(
            "INSERT INTO schema_versions VALUES (?, ?)", (SCHEMA_VERSION, __version__)
        )


def _execute(database: Database, script: str) -> None:
    text = files("inferwatch.storage.tables").joinpath(script).read_text("utf-8")
    for statement in _statements(text):
        database.execute(statement)


def _statements(text: str) -> Iterator[str]:
    """The statements of a script; ``executescript`` would commit before it begins."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""
