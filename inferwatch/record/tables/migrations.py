"""The schema: its migrations, and the version of a file.

A migration is a script beside this module; the highest number is the version of this
inferwatch.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

from sqlite_utils import Database, Migrations

from inferwatch import __version__
from inferwatch.errors import NewerSchemaError, StorageError
from inferwatch.record.file.sqlite import transaction

SCRIPTS = files("inferwatch.record.tables")
"""Location of migrations: ``schema_N.sql`` brings a file to version N."""
SCHEMA_VERSION = max(
    int(found[1])
    for each in SCRIPTS.iterdir()
    if (found := re.fullmatch(r"schema_(\d+)\.sql", each.name))
)
APPLICATION_ID = 0x69776174
"""Marks our files ("iwat"), so that we never write into another program's."""


def schema_version(connection: sqlite3.Connection, path: Path) -> int:
    """The file's version; 0 for an empty file.

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
    """Migrate the file to our version; safe when two programs try at once."""
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


def _statements(text: str) -> Iterator[str]:
    """The statements of a script; ``executescript`` would commit first."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""


def _migration(version: int) -> Callable[[Database], None]:
    def migrate_to(database: Database) -> None:
        text = SCRIPTS.joinpath(f"schema_{version}.sql").read_text("utf-8")
        for statement in _statements(text):
            database.execute(statement)

    return migrate_to


migrations = Migrations("inferwatch")
for _version in range(1, SCHEMA_VERSION + 1):
    migrations(name=f"version_{_version}")(_migration(_version))


def session_tables(connection: sqlite3.Connection) -> list[str]:
    """Tables with rows of sessions, of any schema version."""
    query = (
        "SELECT DISTINCT t.name FROM sqlite_master t, pragma_table_info(t.name) c "
        "WHERE t.type = 'table' AND c.name = 'session' AND c.type = 'INTEGER' "
        "AND t.name <> 'sessions'"
    )
    return [name for (name,) in connection.execute(query)]
