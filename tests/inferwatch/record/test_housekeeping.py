"""Sessions are named, tagged, put away and deleted; nothing else is touched."""

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.contract.readings import AnyReading
from inferwatch.errors import NoSuchSessionError, StorageError, UsageError
from inferwatch.record.repair.recovery import recover_into
from inferwatch.record.sessions import housekeeping
from inferwatch.record.sessions.erasing import cut_short, erase, vacuum
from inferwatch.record.sessions.sessions import find, list_sessions
from inferwatch.record.sessions.sizes import sizes_in
from inferwatch.record.tables.migrations import session_tables
from inferwatch.record.writing.recorder import Recorder

Record = Callable[..., Recorder]
ReadBack = Callable[[Path, str], list[tuple[int, AnyReading]]]


@pytest.fixture
def sessions(record: Record, traffic_of: Any, path: Path) -> Path:
    """s1, s2 and s3, a second of traffic each."""
    for seed in (1, 2, 3):
        record_traffic(record, traffic_of(seed))
    return path


def record_traffic(record: Record, traffic: Any, seconds: float = 1.0) -> None:
    recorder = record()
    for ordinal, reading in enumerate([*traffic.start(), *traffic.run(seconds)], 1):
        recorder.put(ordinal, reading)
    recorder.close()


def rows_of(path: Path, number: int) -> dict[str, list[Any]]:
    """Every row of a session, in every table."""
    with closing(sqlite3.connect(path)) as connection:
        return {
            table: connection.execute(
                f"SELECT * FROM {table} WHERE session = ?",  # noqa: S608
                (number,),
            ).fetchall()
            for table in (*session_tables(connection), "sessions")
        }


def ids(path: Path, **options: Any) -> list[str]:
    return [row.id for row in list_sessions(path, **options)]


def test_a_session_is_found_by_the_name_it_is_given(sessions: Path) -> None:
    housekeeping.rename(sessions, 2, "  the   fix ")

    assert find(sessions, "the fix").id == "s2"

    housekeeping.rename(sessions, 2, "")

    assert find(sessions, "s2").name is None


@pytest.mark.parametrize("name", ["last", "s1", "s999", "x" * 81, "a\x1bb"], ids=ascii)
def test_a_name_that_would_mislead_is_refused(sessions: Path, name: str) -> None:
    with pytest.raises(UsageError):
        housekeeping.rename(sessions, 1, name)

    assert find(sessions, "s1").name is None


def test_tags_are_words_each_once(sessions: Path) -> None:
    housekeeping.retag(sessions, 1, lambda old: [*old, "b", "a", "b"])
    tags = housekeeping.retag(sessions, 1, lambda old: [*old, "keep"])

    assert tags == ["b", "a", "keep"]
    assert find(sessions, "s1").tags == "b a keep"
    with pytest.raises(UsageError, match="is not a tag"):
        housekeeping.retag(sessions, 1, lambda _: ["two words"])


def test_what_is_in_the_bin_is_not_found_and_can_be_restored(sessions: Path) -> None:
    housekeeping.put_away(sessions, [3])

    assert ids(sessions) == ["s2", "s1"]
    assert find(sessions, "last").id == "s2"
    with pytest.raises(NoSuchSessionError):
        find(sessions, "s3")
    assert ids(sessions, bin_too=True) == ["s3", "s2", "s1"]

    housekeeping.restore(sessions, [3])

    assert find(sessions, "last").id == "s3"


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    away=st.lists(st.sets(st.sampled_from([1, 2, 3])), max_size=4),
    back=st.permutations([1, 2, 3]),
)
def test_deleting_and_restoring_loses_nothing(
    sessions: Path, away: list[set[int]], back: Iterable[int]
) -> None:
    before = {number: rows_of(sessions, number) for number in (1, 2, 3)}

    for numbers in away:
        housekeeping.put_away(sessions, numbers)
    vacuum(sessions)
    for number in back:
        housekeeping.restore(sessions, [number])

    assert {number: rows_of(sessions, number) for number in (1, 2, 3)} == before


def test_what_is_erased_is_gone_from_every_table_and_the_rest_is_as_it_was(
    sessions: Path, read_back: ReadBack
) -> None:
    others = {number: rows_of(sessions, number) for number in (1, 3)}
    size_bytes = sessions.stat().st_size

    erase(sessions, [2])
    freed_bytes = vacuum(sessions)

    assert [rows for rows in rows_of(sessions, 2).values() if rows] == []
    assert {number: rows_of(sessions, number) for number in (1, 3)} == others
    assert len(read_back(sessions, "s3")) == find(sessions, "s3").readings
    assert freed_bytes > 0
    assert sessions.stat().st_size == size_bytes - freed_bytes
    assert not sessions.with_name(sessions.name + "-wal").exists()


def test_tables_that_are_born_later_are_emptied_too(sessions: Path) -> None:
    with closing(sqlite3.connect(sessions)) as connection:
        connection.executescript(
            "CREATE TABLE later (session INTEGER, x); INSERT INTO later VALUES (2, 1),"
            "(2, 1), (1, 1)"
        )

    erase(sessions, [2])

    with closing(sqlite3.connect(sessions)) as connection:
        assert connection.execute("SELECT * FROM later").fetchall() == [(1, 1)]


TRIALS = [("t1", 1, "s2"), ("t1", 2, "s3"), ("t1", 3, None)]


def keep_a_tune(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO tunes VALUES ('t1', 5, '{}', NULL, NULL)")
        connection.executemany(
            "INSERT INTO tune_trials VALUES (?, ?, '[]', 0, 'measured', ?, NULL, 1, 0, "
            "2.5, 7)",
            TRIALS,
        )


def trials_of(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(
            "SELECT t.tune_id, number, session FROM tunes t JOIN tune_trials USING "
            "(tune_id) ORDER BY number"
        ).fetchall()


def test_a_tune_outlives_the_sessions_of_its_trials(sessions: Path) -> None:
    keep_a_tune(sessions)

    erase(sessions, [2])
    vacuum(sessions)

    assert trials_of(sessions) == TRIALS
    assert ids(sessions, bin_too=True) == ["s3", "s1"]
    assert sizes_in(sessions).of.keys() == {1, 3}
    with closing(sqlite3.connect(sessions)) as connection:
        assert "tune_trials" not in session_tables(connection)


def test_tunes_are_saved_of_a_damaged_file(sessions: Path) -> None:
    keep_a_tune(sessions)
    with closing(sqlite3.connect(sessions)) as connection, connection:
        connection.execute("UPDATE sessions SET state = 'nonsense' WHERE session = 1")
    into = sessions.with_name("saved.db")

    recover_into(sessions, into)

    assert trials_of(into) == TRIALS


def test_a_deletion_cut_short_hides_the_session_and_is_ended_by_the_next(
    sessions: Path,
) -> None:
    class CutError(Exception):
        pass

    def cut(share: float) -> None:
        if share > 0.2:
            raise CutError

    with pytest.raises(CutError):
        erase(sessions, [2], cut)

    assert ids(sessions, bin_too=True) == ["s3", "s1"]
    assert cut_short(sessions) == [2]

    erase(sessions, [])

    assert cut_short(sessions) == []
    assert [rows for rows in rows_of(sessions, 2).values() if rows] == []


def test_progress_is_told_from_nothing_to_all(sessions: Path) -> None:
    told: list[float] = []

    erase(sessions, [1, 2], told.append)

    assert told == sorted(told)
    assert told[-1] == 1.0


def test_what_is_being_recorded_stays(record: Record, path: Path) -> None:
    recorder = record()

    for refuse in (housekeeping.put_away, erase):
        with pytest.raises(StorageError, match="s1 is still being recorded"):
            refuse(path, [1])

    recorder.close()
    housekeeping.put_away(path, [1])
    assert ids(path) == []


def test_who_records_meanwhile_loses_nothing(
    record: Record,
    traffic_of: Any,
    path: Path,
    read_back: ReadBack,
    eventually: Callable[[Callable[[], object]], None],
) -> None:
    for seed in (1, 2):
        record_traffic(record, traffic_of(seed), seconds=3)
    recorder = record(name="live")
    traffic = traffic_of(3)
    readings = list(enumerate([*traffic.start(), *traffic.run(4)], 1))

    def put_some(_: float) -> None:
        for numbered in readings[:60]:
            recorder.put(*numbered)
        del readings[:60]

    count = len(readings)
    housekeeping.rename(path, 1, "renamed meanwhile")
    erase(path, [1, 2], put_some)
    vacuum(path, put_some)
    for numbered in readings:
        recorder.put(*numbered)
    eventually(lambda: recorder.health.written == count)
    recorder.close()

    assert recorder.health.unrecorded == 0
    assert ids(path) == ["s3"]
    assert len(read_back(path, "live")) == count


def test_a_lock_that_lasts_is_said(
    sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "PATIENCE_MS", 50)
    with closing(sqlite3.connect(sessions, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")

        with pytest.raises(StorageError, match="another program has locked it"):
            housekeeping.rename(sessions, 1, "x")


def test_nothing_recorded_is_said(path: Path) -> None:
    with pytest.raises(StorageError, match="inferwatch demo"):
        housekeeping.rename(path, 1, "x")
    assert not path.exists()


def test_sizes_add_up_to_about_the_file(
    record: Record, traffic_of: Any, sessions: Path
) -> None:
    record_traffic(record, traffic_of(9), seconds=8)

    sizes = sizes_in(sessions)

    assert sizes.by == "tables"
    assert sizes.of[4] > 3 * sizes.of[1]
    assert 0.5 < sum(sizes.of.values()) / sizes.used_bytes <= 1
    assert sizes.file_bytes == sessions.stat().st_size


def test_without_dbstat_sizes_go_by_readings(
    sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_such_table(_: object) -> None:
        raise sqlite3.OperationalError("no such table: dbstat")

    monkeypatch.setattr("inferwatch.record.sessions.sizes._table_bytes", no_such_table)

    sizes = sizes_in(sessions)

    assert sizes.by == "readings"
    assert all(size > 0 for size in sizes.of.values())
