"""Files of older versions open, and nothing in them is lost."""

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlite_utils import Database

from collectors.readings import Phase, RequestRecord, TokenTimes
from inferwatch import __version__
from inferwatch.storage.ledger import recorded
from inferwatch.storage.migrations import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    migrate,
    migrations,
    schema_version,
)


def version_1(connection: sqlite3.Connection) -> None:
    """As the first release left it, with a request of a load run."""
    migrations.apply(
        Database(connection, execute_plugins=False), stop_before="version_2"
    )
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("INSERT INTO schema_versions VALUES (1, '0.1.0')")
    connection.execute("INSERT INTO sources VALUES (1, 0, 'load')")
    connection.execute(
        "INSERT INTO client_requests (session, ordinal, source, number, external_id, "
        "phase, intended_ns) VALUES (1, 1, 0, 7, 'load-7', 'steady', 5)"
    )
    connection.execute(
        "INSERT INTO token_times VALUES (1, 2, 0, 'load-7', 6, 0, x'789c8b8e05000115"
        "00b9')"
    )


def test_a_file_of_version_1_gets_what_is_new_and_keeps_what_it_has() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        version_1(connection)

        migrate(connection, Path(":memory:"))

        assert schema_version(connection, Path(":memory:")) == SCHEMA_VERSION
        written_by = connection.execute(
            "SELECT inferwatch_version FROM schema_versions ORDER BY version"
        ).fetchall()
        assert written_by == [("0.1.0",), (__version__,)]
        back = [reading for _, reading in recorded(connection, 1)]
    assert back == [
        RequestRecord(
            source="load",
            index=7,
            external_id="load-7",
            phase=Phase.STEADY,
            intended_ns=5,
        ),
        TokenTimes(source="load", external_id="load-7", first_ns=6, gaps_ns=[]),
    ]
