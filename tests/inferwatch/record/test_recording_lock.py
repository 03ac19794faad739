"""Who shares a record on a volume knows which of its sessions are being recorded."""

import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from collectors.contract.readings import Tick
from inferwatch.errors import StorageError
from inferwatch.record.file import recording_lock, sqlite
from inferwatch.record.file.recording_lock import lock_path
from inferwatch.record.sessions.erasing import erase
from inferwatch.record.sessions.housekeeping import put_away
from inferwatch.record.sessions.retention import RetentionLimits, to_go
from inferwatch.record.sessions.sessions import find, list_sessions
from inferwatch.record.tables.session_state import SessionState
from inferwatch.record.writing.recorder import Recorder

Record = Callable[..., Recorder]
Eventually = Callable[[Callable[[], object]], None]
DAY_NS = 86_400 * 10**9
NO_PID = 4_194_304
"""One more than Linux gives to any process."""


def change(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)


@pytest.fixture
def elsewhere(record: Record, path: Path) -> Recorder:
    """Records in another container: its pid says nothing here."""
    recorder = record()
    change(path, "UPDATE sessions SET pid = ?", NO_PID)
    return recorder


@pytest.fixture
def lockless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system cannot lock."""

    def cannot(*_: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", cannot)


@pytest.mark.usefixtures("elsewhere")
def test_a_session_of_another_container_is_being_recorded(path: Path) -> None:
    assert find(path, "s1").state is SessionState.RECORDING


@pytest.mark.usefixtures("elsewhere")
def test_the_start_of_another_recorder_leaves_it_so(path: Path, record: Record) -> None:
    record()

    assert {row.state for row in list_sessions(path)} == {SessionState.RECORDING}


@pytest.mark.usefixtures("elsewhere")
def test_it_is_neither_put_away_nor_erased_nor_pruned(path: Path) -> None:
    change(path, "UPDATE sessions SET started_ns = 1")

    with pytest.raises(StorageError, match="s1 is still being recorded"):
        put_away(path, [1])
    with pytest.raises(StorageError, match="s1 is still being recorded"):
        erase(path, [1])
    assert to_go(path, RetentionLimits(older_than_s=1, max_bytes=0)) == []


def test_once_it_ended_its_lock_is_gone(elsewhere: Recorder, path: Path) -> None:
    held = lock_path(path, 1).exists()

    elsewhere.close()

    assert held
    assert not lock_path(path, 1).exists()
    assert find(path, "s1").state is SessionState.COMPLETE


def test_a_lock_that_nobody_holds_proves_that_the_recorder_died(
    elsewhere: Recorder, path: Path, tmp_path: Path
) -> None:
    left = tmp_path / "left"
    shutil.copy(lock_path(path, 1), left)
    elsewhere.close()
    shutil.copy(left, lock_path(path, 1))
    change(path, "UPDATE sessions SET state = 'recording'")

    state = find(path, "s1").state
    Recorder.open(path, floor_bytes=0).close()  # marks it

    assert state is SessionState.INTERRUPTED
    assert not lock_path(path, 1).exists()
    assert find(path, "s1").state is SessionState.INTERRUPTED


def test_a_session_that_could_not_be_ended_is_recorded_no_more(
    record: Record, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.0)
    recorder = record()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        recorder.close()
        other.execute("ROLLBACK")

    assert find(path, "s1").state is SessionState.INTERRUPTED


@pytest.mark.usefixtures("elsewhere")
def test_a_lock_is_for_those_who_may_read_the_record(path: Path) -> None:
    assert lock_path(path, 1).stat().st_mode & 0o777 == 0o600


def test_a_lock_is_found_under_each_name_of_the_record(
    elsewhere: Recorder, path: Path, tmp_path: Path
) -> None:
    link = tmp_path / "shared" / "other name.db"
    link.parent.mkdir()
    link.symlink_to(path)

    assert find(link, elsewhere.session_id).state is SessionState.RECORDING


def by_an_older_inferwatch(recorder: Recorder, path: Path) -> None:
    """As one leaves it that knows of no locks, while it records."""
    recorder.close()
    change(path, "UPDATE sessions SET state = 'recording', ended_ns = NULL")


@pytest.mark.parametrize(
    "owner",
    [
        pytest.param(
            "UPDATE sessions SET pid = 4194304", id="a pid that is nobody's here"
        ),
        pytest.param(
            "UPDATE sessions SET birth = 1", id="a pid that is another's here"
        ),
        pytest.param(
            "UPDATE sessions SET boot_id = 'another'", id="another boot or host"
        ),
    ],
)
def test_without_a_lock_nothing_is_taken_that_may_still_run(
    owner: str, elsewhere: Recorder, path: Path
) -> None:
    by_an_older_inferwatch(elsewhere, path)
    change(path, owner)

    row = find(path, "s1")

    assert (row.state, row.ended_ns) == (SessionState.UNKNOWN, None)
    with pytest.raises(StorageError, match="unknown whether s1 is still being"):
        put_away(path, [1])
    with pytest.raises(StorageError, match="unknown whether s1 is still being"):
        erase(path, [1])
    assert to_go(path, RetentionLimits(max_bytes=0)) == []


def test_the_start_of_another_recorder_does_not_call_that_interrupted(
    elsewhere: Recorder, path: Path, record: Record
) -> None:
    by_an_older_inferwatch(elsewhere, path)

    record()

    assert find(path, "s1").state is SessionState.UNKNOWN


def test_what_was_silent_for_a_day_was_interrupted(
    elsewhere: Recorder, path: Path
) -> None:
    by_an_older_inferwatch(elsewhere, path)
    change(path, "UPDATE sessions SET started_ns = started_ns - ?", DAY_NS)
    change(path, "DELETE FROM clock_anchors")

    row = find(path, "s1")

    assert row.state is SessionState.INTERRUPTED
    assert row.ended_ns == row.started_ns + row.duration_ns


def test_without_a_lock_a_process_that_is_seen_to_live_records(
    record: Record, path: Path
) -> None:
    record()
    lock_path(path, 1).unlink()

    assert find(path, "s1").state is SessionState.RECORDING


@pytest.mark.usefixtures("lockless")
@pytest.mark.parametrize(
    ("pid", "namespace", "state"),
    [
        pytest.param(os.getpid(), None, SessionState.RECORDING, id="lives here"),
        pytest.param(NO_PID, None, SessionState.INTERRUPTED, id="dead here"),
        pytest.param(NO_PID, "pid:[1]", SessionState.UNKNOWN, id="not seen from here"),
    ],
)
def test_where_nothing_can_be_locked_a_pid_counts_in_its_own_namespace(
    pid: int,
    namespace: str | None,
    state: SessionState,
    record: Record,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record()
    change(path, "UPDATE sessions SET pid = ?", pid)
    if namespace is not None:
        monkeypatch.setattr(recording_lock, "pid_namespace", lambda: namespace)

    assert find(path, "s1").state is state


@pytest.mark.parametrize(
    "deletion",
    [
        pytest.param("DELETE FROM sessions", id="deleted"),
        pytest.param("UPDATE sessions SET state = 'going'", id="being deleted"),
    ],
)
def test_what_another_program_deletes_under_a_recorder_is_told_as_lost(
    deletion: str, record: Record, path: Path, eventually: Eventually
) -> None:
    recorder = record()
    put_ticks(recorder, 1, 10)
    eventually(lambda: recorder.health.written == 10)
    change(path, deletion)

    put_ticks(recorder, 11, 12)
    eventually(lambda: not recorder.health.ok)
    at_once = recorder.health
    recorder.close()

    assert at_once.message == (
        "session s1 was deleted by another program: start inferwatch again to record"
    )
    assert (at_once.written, at_once.unrecorded) == (0, 10)
    assert recorder.health.unrecorded == 12
    assert rows_left(path) == 10  # for whoever deletes to take, and none came since


def test_so_is_what_was_deleted_before_a_session_ends(
    record: Record, path: Path, eventually: Eventually
) -> None:
    recorder = record()
    put_ticks(recorder, 1, 10)
    eventually(lambda: recorder.health.written == 10)
    change(path, "DELETE FROM sessions")

    recorder.close()

    assert not recorder.health.ok
    assert (recorder.health.written, recorder.health.unrecorded) == (0, 10)


def test_a_session_that_was_called_interrupted_meanwhile_goes_on(
    record: Record, path: Path, eventually: Eventually
) -> None:
    recorder = record()
    change(path, "UPDATE sessions SET state = 'interrupted', ended_ns = 1")

    put_ticks(recorder, 1, 1)
    eventually(lambda: recorder.health.written == 1)

    row = find(path, "s1")
    assert (row.state, row.ended_ns) == (SessionState.RECORDING, None)


def put_ticks(recorder: Recorder, first: int, last: int) -> None:
    for ordinal in range(first, last + 1):
        recorder.put(ordinal, Tick(t_ns=ordinal))


def rows_left(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM ticks").fetchone()
    return int(count)


IN_A_CONTAINER = """
    import os, sys
    from pathlib import Path
    from inferwatch.record.writing.recorder import Recorder

    recorder = Recorder.open(Path(sys.argv[1]), floor_bytes=0)
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    recorder.close()
"""
UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]


@pytest.mark.process
def test_a_recorder_in_a_pid_namespace_of_its_own_is_seen_to_record(path: Path) -> None:
    if (
        not shutil.which("unshare")
        or subprocess.run(
            [*UNSHARE, "true"], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("no pid namespace can be made here")
    command = [*UNSHARE, sys.executable, "-c", dedent(IN_A_CONTAINER), str(path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}

    with subprocess.Popen(command, text=True, **pipes) as child:
        assert child.stdout is not None
        pid = child.stdout.readline()
        meanwhile = find(path, "s1").state
        with pytest.raises(StorageError, match="still being recorded"):
            put_away(path, [1])
        child.communicate("end\n")

    assert pid == "1\n"
    assert meanwhile is SessionState.RECORDING
    assert find(path, "s1").state is SessionState.COMPLETE
