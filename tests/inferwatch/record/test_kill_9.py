"""kill -9 costs the last moment, never the file."""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from collectors.contract.readings import AnyReading
from inferwatch.record.sessions.sessions import find, list_sessions
from inferwatch.record.tables.session_state import SessionState
from inferwatch.record.writing.recorder import Recorder

pytestmark = pytest.mark.process

ReadBack = Callable[[Path], list[tuple[int, AnyReading]]]

RECORDS_UNTIL_KILLED = """
    import sys, time
    from pathlib import Path
    from collectors.contract.readings import Tick
    from inferwatch.record.writing.recorder import Recorder

    recorder = Recorder.open(Path(sys.argv[1]), floor_bytes=0)
    for ordinal in range(1, 100_000):
        now_ns = time.monotonic_ns()
        recorder.put(ordinal, Tick(t_ns=now_ns))
        print(ordinal, now_ns, flush=True)
        time.sleep(0.002)
"""
KILLS = 3


def killed_while_recording(path: Path) -> tuple[int, int]:
    """The ordinal and time of the last reading a recorder was given."""
    code = dedent(RECORDS_UNTIL_KILLED)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line.split()[0]) > 400:
                break
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().splitlines(keepends=True)
    whole = [each for each in [line, *rest] if each.endswith("\n")]
    ordinal, now_ns = whole[-1].split()
    return int(ordinal), int(now_ns)


def test_a_killed_recorder_leaves_a_valid_record_less_its_last_moment(
    path: Path, read_back: ReadBack
) -> None:
    lost_ms = []
    for _ in range(KILLS):
        last, last_ns = killed_while_recording(path)
        readings = read_back(path)

        assert [ordinal for ordinal, _ in readings] == list(range(1, len(readings) + 1))
        assert len(readings) <= last
        lost_ms.append((last_ns - readings[-1][1].t_ns) / 1e6)  # type: ignore[union-attr]  # ticks
    connection = sqlite3.connect(path)
    verdict = connection.execute("PRAGMA integrity_check").fetchone()
    connection.close()
    assert verdict == ("ok",)
    assert min(lost_ms) <= 250  # a busy machine may once be slower than the recorder
    assert max(lost_ms) <= 2_000


def test_a_killed_session_is_interrupted_and_marked_so_at_the_next_start(
    path: Path,
) -> None:
    killed_while_recording(path)
    seen_at_once = find(path, "s1")

    Recorder.open(path, floor_bytes=0).close()

    marked = find(path, "s1")
    assert seen_at_once.state is SessionState.INTERRUPTED
    assert seen_at_once.ended_ns == marked.ended_ns
    assert marked.state is SessionState.INTERRUPTED
    assert marked.ended_ns == marked.started_ns + marked.duration_ns
    assert marked.readings == seen_at_once.readings > 0
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_looking_at_what_was_killed_leaves_one_plain_file(path: Path) -> None:
    killed_while_recording(path)
    left = [each.name for each in path.parent.iterdir()]

    (row,) = list_sessions(path)

    assert left != [path.name]
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert find(path, "s1").readings == row.readings > 0
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_living_recorder_is_not_interrupted_by_the_next(path: Path) -> None:
    living = Recorder.open(path, floor_bytes=0)
    Recorder.open(path, floor_bytes=0).close()

    states = [row.state for row in list_sessions(path)]
    living.close()

    assert states == [SessionState.COMPLETE, SessionState.RECORDING]
