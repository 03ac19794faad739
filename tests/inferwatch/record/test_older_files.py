"""Files of older versions open, and nothing in them is lost.

``files`` holds what the inferwatch of each schema version recorded of real vLLM.
"""

import gzip
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlite_utils import Database

from collectors.contract.readings import (
    LoadEvent,
    LoadKind,
    Phase,
    RequestRecord,
    Step,
    TokenTimes,
)
from inferwatch import __version__
from inferwatch.errors import NewerSchemaError
from inferwatch.record.connections import (
    close_after_writing,
    open_for_reading,
    open_for_writing,
)
from inferwatch.record.repair.recovery import damage_of, recover_into
from inferwatch.record.replay.marks import bookmarks, keep_bookmark
from inferwatch.record.sessions import housekeeping
from inferwatch.record.sessions.sessions import find, list_sessions
from inferwatch.record.sessions.sizes import sizes_in, summarise
from inferwatch.record.tables.codec import recorded
from inferwatch.record.tables.migrations import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    migrate,
    migrations,
    schema_version,
)
from inferwatch.record.tables.table import insert_sql

FILES = Path(__file__).parent / "files"
RECORDED = sorted(FILES.glob("schema_*.db.gz"))


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
    connection.execute(
        "INSERT INTO load_events VALUES (1, 3, 0, 8, 'rate', NULL, "
        "'closed loop, 12 users, was 4')"
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
        LoadEvent(
            source="load",
            t_ns=8,
            kind=LoadKind.RATE,
            users=12,
            changed=True,
            text="closed loop, 12 users, was 4",
        ),
    ]


def named(file: Path) -> str:
    return file.name.split(".")[0]


@pytest.fixture(params=RECORDED, ids=named)
def older(request: pytest.FixtureRequest, path: Path) -> Path:
    """A file as it was recorded then."""
    with gzip.open(request.param) as packed, path.open("wb") as file:
        shutil.copyfileobj(packed, file)
    return path


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return schema_version(connection, path)


def test_a_file_of_each_released_version_is_kept_here() -> None:
    assert len(RECORDED) >= SCHEMA_VERSION - 1


def test_a_recorded_file_is_listed_and_replays_whole(
    older: Path, read_back: Callable[..., list[Any]]
) -> None:
    [row] = list_sessions(older)
    readings = read_back(older)
    steps = [reading for _, reading in readings if isinstance(reading, Step)]

    assert row.model == "tiny-llama"
    assert len(readings) == row.readings > 800
    assert len(steps) == row.steps
    assert all(len(step.members) == len(step.produced) for step in steps)
    assert sizes_in(older).of[1] > 100_000
    assert (summarise(older, 1).ttft_p99_s or 0) > 0.01
    assert version_of(older) == SCHEMA_VERSION  # it was ours to migrate


@pytest.mark.parametrize(
    ("older", "whose"),
    [
        pytest.param(
            *(file, whose),
            id=f"{named(file)}-{whose}",
            marks=() if (number + other) % 2 == 0 else pytest.mark.soak,
        )
        for number, file in enumerate(RECORDED)
        for other, whose in enumerate(("read-only", "somebody else's"))
    ],
    indirect=["older"],
)
def test_a_file_that_is_not_ours_is_read_and_left_as_it_is(
    older: Path, read_back: Callable[..., list[Any]], monkeypatch: Any, whose: str
) -> None:
    version, before = version_of(older), older.read_bytes()
    if whose == "read-only":
        older.chmod(stat.S_IRUSR)
    else:
        monkeypatch.setattr("os.geteuid", lambda: older.stat().st_uid + 1)

    readings = read_back(older)

    assert len(readings) == find(older, "last").readings
    assert version_of(older) == version
    assert older.read_bytes() == before
    assert [each.name for each in older.parent.iterdir()] == [older.name]


@pytest.fixture
def marked(path: Path) -> Path:
    """A file of version 4 with a bookmark, which SQLite 3.40 takes for damaged."""
    with gzip.open(FILES / "schema_4.db.gz") as packed, path.open("wb") as file:
        shutil.copyfileobj(packed, file)
    return path


def marks_of(path: Path) -> list[tuple[int, str]]:
    with closing(open_for_reading(path)) as connection:
        return [(mark.t_ns, mark.text) for mark in bookmarks(connection, 1)]


@pytest.mark.parametrize("mode", [0o600, 0o400], ids=["ours", "read-only"])
def test_a_bookmark_damages_nothing(
    marked: Path, read_back: Callable[..., list[Any]], mode: int
) -> None:
    marked.chmod(mode)

    assert damage_of(marked) is None
    assert len(read_back(marked)) == find(marked, "last").readings > 1_000
    assert marks_of(marked) == [(20_000_000_000, "hello")]


def test_what_has_a_bookmark_can_be_renamed_deleted_and_saved(marked: Path) -> None:
    into = marked.with_name("saved.db")

    damage = recover_into(marked, into)
    housekeeping.rename(marked, 1, "renamed")
    housekeeping.put_away(marked, [1])

    assert not damage.is_loss
    assert damage_of(into) is None
    assert marks_of(into) == marks_of(marked) == [(20_000_000_000, "hello")]
    [row] = list_sessions(marked, bin_too=True)
    assert row.name == "renamed"
    assert row.deleted_ns is not None


def test_a_bookmark_made_today_damages_nothing(older: Path) -> None:
    keep_bookmark(older, find(older, "last"), 7, "today")

    assert damage_of(older) is None
    assert (7, "today") in marks_of(older)
    with closing(sqlite3.connect(older)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_keys_come_first_in_tables_without_rowid() -> None:
    """SQLite 3.40 finds damage in others that is none."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, Path(":memory:"))
        tables = connection.execute(
            "SELECT name FROM pragma_table_list WHERE wr AND type = 'table'"
        ).fetchall()
        keys = {
            name: [
                pk
                for (pk,) in connection.execute(
                    "SELECT pk FROM pragma_table_info(?) ORDER BY cid", (name,)
                )
            ]
            for (name,) in tables
        }

    assert len(keys) > 10
    for name, places in keys.items():
        led = [pk for pk in places if pk]
        assert places[: len(led)] == led == sorted(led), name


def test_no_sqlite_finds_fault_with_a_row_of_any_table(path: Path) -> None:
    """What may be unknown is."""
    close_after_writing(open_for_writing(path))
    values = {"INTEGER": 1, "REAL": 1.5, "TEXT": "x", "BLOB": b"x"}
    with closing(sqlite3.connect(path)) as connection, connection:
        names = connection.execute(
            "SELECT name FROM pragma_table_list WHERE type = 'table' AND strict"
        ).fetchall()
        for (name,) in names:
            columns = connection.execute(
                'SELECT name, type, "notnull" OR pk FROM pragma_table_info(?)', (name,)
            ).fetchall()
            row = [values[kind] if needed else None for _, kind, needed in columns]
            insert = insert_sql(name, [column for column, _, _ in columns])
            connection.execute(insert, row)

    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_newer_file_is_refused_with_the_version_that_can_read_it(
    path: Path,
) -> None:
    close_after_writing(open_for_writing(path))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO schema_versions VALUES (99, '7.8.9')")
    before = path.read_bytes()

    with pytest.raises(
        NewerSchemaError, match=r"upgrade to inferwatch 7\.8\.9 or newer"
    ):
        open_for_reading(path)
    assert path.read_bytes() == before
