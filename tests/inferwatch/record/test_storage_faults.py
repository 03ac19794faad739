"""Faults of disk and file: said, survived, counted."""

import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from collectors.contract.readings import AnyReading, Tick
from inferwatch.errors import NewerSchemaError, StorageError
from inferwatch.record.connections import open_for_reading
from inferwatch.record.file.sqlite import explain, transaction
from inferwatch.record.sessions.sessions import find, list_sessions
from inferwatch.record.tables import migrations
from inferwatch.record.writing.recorder import Recorder

Record = Callable[..., Recorder]
Eventually = Callable[[Callable[[], object]], None]
ReadBack = Callable[[Path], list[tuple[int, AnyReading]]]


def put_ticks(recorder: Recorder, first: int, last: int) -> None:
    for ordinal in range(first, last + 1):
        recorder.put(ordinal, Tick(t_ns=ordinal))


def ordinals(readings: list[tuple[int, AnyReading]]) -> list[int]:
    return [ordinal for ordinal, _ in readings]


def test_a_lock_is_said_and_nothing_is_lost_when_it_goes(
    record: Record, path: Path, eventually: Eventually, read_back: ReadBack
) -> None:
    recorder = record()
    put_ticks(recorder, 1, 10)
    eventually(lambda: recorder.health.written == 10)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")

    put_ticks(recorder, 11, 20)
    eventually(lambda: not recorder.health.ok)
    message = recorder.health.message
    put_ticks(recorder, 21, 30)
    other.execute("COMMIT")
    other.close()
    eventually(lambda: recorder.health.ok)
    recorder.close()

    assert message == f"{path}: another program has locked it: close that program"
    assert recorder.health.unrecorded == 0
    assert ordinals(read_back(path)) == list(range(1, 31))


def test_what_finds_no_room_while_locked_is_counted(
    record: Record, path: Path, eventually: Eventually, read_back: ReadBack
) -> None:
    recorder = record(capacity=5)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")

    put_ticks(recorder, 1, 1)
    eventually(lambda: not recorder.health.ok)
    put_ticks(recorder, 2, 20)
    other.execute("COMMIT")
    other.close()
    eventually(lambda: recorder.health.ok)
    recorder.close()

    assert recorder.health.unrecorded == 14
    assert ordinals(read_back(path)) == [1, 2, 3, 4, 5, 6]
    assert find(path, "last").unrecorded == 14


def test_a_session_begins_late_when_the_file_was_locked_at_first(
    record: Record, path: Path, eventually: Eventually, read_back: ReadBack
) -> None:
    record().close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")

    recorder = record()
    put_ticks(recorder, 1, 3)
    known_at_first = recorder.session_id
    other.execute("COMMIT")
    other.close()
    eventually(lambda: recorder.health.written == 3)
    recorder.close()

    assert known_at_first == ""
    assert recorder.session_id == "s2"
    assert ordinals(read_back(path)) == [1, 2, 3]


def test_leaving_while_the_file_is_locked_takes_seconds_not_forever(
    record: Record, path: Path
) -> None:
    recorder = record()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")

    put_ticks(recorder, 1, 7)
    recorder.close()
    other.close()

    assert recorder.health.unrecorded == 7


FILLS_ITS_DISK = """
    import os, sys, time
    from pathlib import Path
    from collectors.contract.readings import Note, NoteKind
    from inferwatch.record.writing.recorder import Recorder

    {limit}
    recorder = Recorder.open(Path(sys.argv[1]), floor_bytes=0)
    put = 0
    deadline = time.monotonic() + 30
    while recorder.health.ok and time.monotonic() < deadline:
        put += 1
        text = os.urandom(5_000).hex()
        recorder.put(put, Note(t_ns=put, kind=NoteKind.BOOKMARK, text=text))
        time.sleep(0.005)
    print(recorder.health.message)
    {relief}
    while not recorder.health.ok and time.monotonic() < deadline:
        time.sleep(0.05)
    recorder.close()
    print(put, recorder.health.written, recorder.health.unrecorded)
"""


def fill_the_disk(path: Path, limit: str, relief: str, *prefix: str) -> list[str]:
    """What a program said whose disk was full for a while."""
    code = dedent(FILLS_ITS_DISK).format(limit=limit, relief=relief)
    done = subprocess.run(
        [*prefix, sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.process
def test_a_file_that_may_not_grow_is_said_and_nothing_is_lost_when_it_may(
    path: Path,
) -> None:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    limit = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, {hard}))"
    )
    relief = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({hard}, {hard}))"

    message, counts = fill_the_disk(path, limit, relief)

    put, written, unrecorded = map(int, counts.split())
    assert (
        message == f"{path}: the disk reports an error: see dmesg, the quota and the "
        "file size limit"
    )
    assert (written, unrecorded) == (put, 0)
    assert find(path, "last").readings == put


@pytest.mark.process
def test_a_full_disk_is_said_and_nothing_is_lost_when_there_is_room(
    path: Path,
) -> None:
    """On a real file system of 2 MB, where this machine lets us mount one."""
    disk = path.parent / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=2m tmpfs {disk}"
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*unshare, mount], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a file system")
    limit = "ballast = Path(sys.argv[1]).with_name('ballast')"
    limit += "; ballast.write_bytes(bytes(1_000_000))"
    check = f'{mount} && exec "$@"'

    message, counts = fill_the_disk(
        disk / "r.db", limit, "ballast.unlink()", *unshare, check, "sh"
    )

    put, written, unrecorded = map(int, counts.split())
    assert message == f"{disk / 'r.db'}: the disk is full: free some space"
    assert (written, unrecorded) == (put, 0)


def test_recording_pauses_before_the_disk_is_full(
    record: Record, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    monkeypatch.setenv("INFERWATCH_MIN_FREE_MB", str(10**9))

    recorder = record(floor_bytes=None)
    put_ticks(recorder, 1, 3)

    message = str(recorder.health.message)
    recorder.close()
    assert "1000000000 MB are kept free for other programs" in message
    assert "INFERWATCH_MIN_FREE_MB" in message
    assert recorder.health.unrecorded == 3


def test_a_removed_file_is_said(
    record: Record, path: Path, eventually: Eventually
) -> None:
    recorder = record()

    path.unlink()

    eventually(lambda: not recorder.health.ok)
    assert (
        recorder.health.message
        == f"{path} was removed: start inferwatch again to record"
    )


def test_a_file_that_another_has_replaced_is_said_and_what_is_lost_is_counted(
    record: Record, path: Path, eventually: Eventually, read_back: ReadBack
) -> None:
    recorder = record()
    put_ticks(recorder, 1, 5)
    eventually(lambda: recorder.health.written == 5)

    for end in ("", "-wal", "-shm"):
        path.with_name(path.name + end).unlink()
    other = record()
    put_ticks(other, 1, 3)
    put_ticks(recorder, 6, 9)
    said = f"{path} was replaced by another file: start inferwatch again to record"
    eventually(lambda: recorder.health.message == said)
    recorder.close()
    other.close()

    assert (recorder.health.written, recorder.health.unrecorded) == (5, 4)
    assert ordinals(read_back(path)) == [1, 2, 3]


def test_a_file_that_is_moved_and_comes_back_is_recorded_into(
    record: Record, path: Path, eventually: Eventually, read_back: ReadBack
) -> None:
    recorder = record()
    aside = path.with_name("aside.db")

    path.rename(aside)
    put_ticks(recorder, 1, 5)
    eventually(lambda: not recorder.health.ok)
    aside.rename(path)
    eventually(lambda: recorder.health.ok)
    recorder.close()

    assert ordinals(read_back(path)) == [1, 2, 3, 4, 5]
    assert recorder.health.unrecorded == 0


def make_newer(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO schema_versions VALUES (99, '7.8.9')")
    connection.commit()
    connection.close()


def test_a_newer_record_is_left_alone_and_its_writer_named(
    record: Record, path: Path
) -> None:
    record().close()
    make_newer(path)
    before = path.read_bytes()

    recorder = record()
    put_ticks(recorder, 1, 2)
    recorder.close()

    assert "written by inferwatch 7.8.9 (schema 99)" in str(recorder.health.message)
    assert "--db" in str(recorder.health.message)
    assert recorder.health.unrecorded == 2
    assert path.read_bytes() == before
    with pytest.raises(NewerSchemaError, match=r"7\.8\.9"):
        list_sessions(path)


def test_a_file_of_another_program_is_left_alone(record: Record, path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()

    recorder = record()
    recorder.close()

    assert "belongs to another program" in str(recorder.health.message)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_left_alone(record: Record, path: Path) -> None:
    path.write_text("dear diary, " * 200)

    recorder = record()
    recorder.close()

    assert recorder.health.message == (
        f"{path}: it is not an SQLite file: choose another with --db"
    )


def test_a_directory_that_cannot_be_made_is_said(record: Record, path: Path) -> None:
    path.parent.joinpath("file").touch()

    recorder = Recorder.open(path.parent / "file" / "r.db", floor_bytes=0)
    recorder.close()

    assert "file" in str(recorder.health.message)
    assert not recorder.health.ok


def test_an_empty_file_is_migrated_before_it_is_read(path: Path) -> None:
    path.touch()

    assert list_sessions(path) == []


def test_a_file_migrated_by_another_in_the_meantime_is_taken_as_it_is(
    record: Record, path: Path, monkeypatch: Any
) -> None:
    """Both saw an empty file; the second waited for the first one's lock."""
    record().close()
    real = migrations.schema_version
    answers = [0]
    monkeypatch.setattr(
        migrations,
        "schema_version",
        lambda *at: answers.pop() if answers else real(*at),
    )
    connection = sqlite3.connect(path, isolation_level=None)
    migrations.migrate(connection, path)
    rows = connection.execute("SELECT count(*) FROM schema_versions").fetchone()
    connection.close()

    assert rows == (1,)


def test_a_transaction_that_the_disk_ended_fails_with_its_own_error(
    record: Record, path: Path
) -> None:
    """A full disk makes SQLite roll back by itself; nothing is left to roll back."""
    record().close()
    connection = sqlite3.connect(path, isolation_level=None)

    def fail() -> None:
        with transaction(connection):
            connection.execute("ROLLBACK")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    connection.close()


def test_a_read_only_file_is_said(record: Record, path: Path) -> None:
    record().close()
    connection = open_for_reading(path)

    with pytest.raises(sqlite3.OperationalError) as fault:
        connection.execute("DELETE FROM sessions")
    connection.close()

    assert explain(fault.value, path) == f"{path}: it is read-only: make it writable"


def test_nothing_recorded_yet_says_how_to_begin(path: Path) -> None:
    with pytest.raises(StorageError, match="inferwatch demo"):
        open_for_reading(path)
