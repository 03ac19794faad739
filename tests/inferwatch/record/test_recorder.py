"""The recorder writes one plain file, ends its session and never blocks."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.contract.clock import NS_PER_S, SessionClock, monotonic_ns
from collectors.contract.readings import (
    Endpoint,
    EngineInfo,
    Note,
    NoteKind,
    Reading,
    Tick,
)
from inferwatch.metrics.model.model import Model
from inferwatch.record.checkpoints.checkpoints import Checkpoint
from inferwatch.record.sessions.sessions import find, list_sessions
from inferwatch.record.tables.session_state import SessionState
from inferwatch.record.writing.recorder import ReadingQueue, Recorder

Record = Callable[..., Recorder]
Eventually = Callable[[Callable[[], object]], None]


def ask(path: Path, query: str) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_a_record_is_for_its_user_alone(record: Record, path: Path) -> None:
    before = os.umask(0o022)
    try:
        recorder = record()
        recorder.put(1, Tick(t_ns=1))
        modes = {each.stat().st_mode & 0o777 for each in path.parent.glob("*.db*")}
        recorder.close()
    finally:
        os.umask(before)

    assert modes == {0o600}


def test_a_record_that_is_shared_stays_so(record: Record, path: Path) -> None:
    record().close()
    path.chmod(0o640)

    record().close()

    assert path.stat().st_mode & 0o777 == 0o640


def test_a_closed_record_is_one_plain_file(record: Record, path: Path) -> None:
    recorder = record()
    recorder.put(1, Tick(t_ns=1))
    recorder.close()

    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert ask(path, "PRAGMA journal_mode") == [("delete",)]
    assert ask(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_reading_is_in_the_file_while_the_session_lasts(
    record: Record, path: Path, eventually: Eventually
) -> None:
    recorder = record()

    recorder.put(1, Tick(t_ns=5))

    eventually(lambda: ask(path, "SELECT t_ns FROM ticks") == [(5,)])
    eventually(lambda: recorder.health.written == 1)
    assert recorder.health.file_bytes > 0


def test_what_a_session_adds_to_the_file_is_told_and_never_falls(
    record: Record, path: Path, eventually: Eventually
) -> None:
    first = record()
    first.put(1, Tick(t_ns=1))
    first.close()
    others = path.stat().st_size
    recorder = record()

    grown = []
    for number in range(1, 400):
        recorder.put(number, Note(t_ns=number, kind=NoteKind.STAGE, text="x" * 900))
    eventually(lambda: recorder.health.written == 399)
    grown.append(recorder.health.grown_bytes)
    recorder.close()  # what is in the write-ahead log goes into the file
    grown.append(recorder.health.grown_bytes)

    assert 300_000 < grown[0] < recorder.health.file_bytes
    assert grown[1] >= grown[0]
    assert recorder.health.file_bytes > others


class Strange(Reading, frozen=True):
    """A reading for which no table was made."""

    t_ns: int
    text: str = ""


def test_a_reading_without_a_table_is_kept_whole(
    record: Record, path: Path, read_back: Callable[[Path], list[tuple[int, object]]]
) -> None:
    recorder = record()
    recorder.put(1, Tick(t_ns=1))
    recorder.put(2, Strange(t_ns=2))  # type: ignore[arg-type]  # that is the point
    recorder.put(3, Tick(t_ns=3))
    recorder.close()

    assert (recorder.health.message, recorder.health.unrecorded) == (None, 0)
    assert read_back(path) == [(1, Tick(t_ns=1)), (3, Tick(t_ns=3))]
    [(kind, held)] = ask(path, "SELECT kind, reading FROM other_readings")
    assert kind == "Strange"
    assert msgspec.msgpack.decode(held) == {"type": "Strange", "t_ns": 2}


def test_a_reading_that_no_row_can_hold_is_counted_and_stops_nothing(
    record: Record, path: Path, read_back: Callable[[Path], list[tuple[int, object]]]
) -> None:
    recorder = record()
    recorder.put(1, Strange(t_ns=1, text="\ud800"))  # type: ignore[arg-type]  # likewise
    recorder.put(2, Strange(t_ns=1 << 70))  # type: ignore[arg-type]  # likewise
    recorder.put(3, Tick(t_ns=3))
    recorder.close()

    assert recorder.health.message is None
    assert (recorder.health.written, recorder.health.unrecorded) == (1, 2)
    assert read_back(path) == [(3, Tick(t_ns=3))]
    assert find(path, "last").unrecorded == 2


def test_closing_twice_is_harmless(record: Record, path: Path) -> None:
    recorder = record()

    recorder.close("the end")
    recorder.close("again")

    assert find(path, "last").reason == "the end"


def test_what_comes_after_the_end_is_counted(record: Record) -> None:
    recorder = record()
    recorder.close()

    recorder.put(1, Tick(t_ns=1))

    assert recorder.health.unrecorded == 1


def test_a_full_inbox_refuses_and_counts() -> None:
    queue = ReadingQueue(capacity=2)

    for ordinal in range(5):
        queue.put((ordinal, Tick(t_ns=ordinal)))

    assert [ordinal for ordinal, _ in queue.take(9)] == [0, 1]
    assert queue.refused == 3


def test_checkpoints_that_wait_are_no_readings() -> None:
    queue = ReadingQueue()
    queue.put((1, Tick(t_ns=1)))
    queue.put_if_room((1, Checkpoint(1, 1, Model().saved())))

    queue.shut()

    assert queue.refused == 1


def test_the_session_knows_what_was_recorded(
    record: Record, path: Path, traffic: Any
) -> None:
    readings = [*traffic.start(), *traffic.run(10)]
    clock = SessionClock(monotonic_ns() - 60 * NS_PER_S)
    recorder = record(clock=clock, name="evening", command="demo")
    for numbered in enumerate(readings, 1):
        recorder.put(*numbered)
    recorder.close("asked to stop")

    row = find(path, "evening")

    kinds = [type(reading).__name__ for reading in readings]
    assert (row.id, row.command, row.model) == ("s1", "demo", "tiny")
    assert (row.state, row.reason) == (SessionState.COMPLETE, "asked to stop")
    assert (row.readings, row.steps) == (len(readings), kinds.count("Step"))
    assert row.requests == len(
        {r.request_id for r in readings if hasattr(r, "request_id")}
    )
    assert row.unrecorded == 0
    assert 60 < row.duration_s < 120
    assert row.ended_ns == row.started_ns + row.duration_ns


@pytest.mark.parametrize(
    "reading",
    [
        EngineInfo(t_ns=1, pid=1, model="m", vllm_version="0"),
        Endpoint(t_ns=1, pid=1, model="m"),
    ],
    ids=["engine", "endpoint"],
)
def test_the_model_is_known_from_whoever_names_it(
    record: Record, path: Path, reading: EngineInfo | Endpoint
) -> None:
    recorder = record()
    recorder.put(1, reading)
    recorder.close()

    assert find(path, "last").model == "m"


def test_two_recorders_share_a_file(record: Record, path: Path) -> None:
    first, second = record(), record()

    for ordinal in range(1, 500):
        first.put(ordinal, Tick(t_ns=ordinal))
        second.put(ordinal, Tick(t_ns=ordinal))
    first.close()
    second.close()

    assert {first.session_id, second.session_id} == {"s1", "s2"}
    assert [row.readings for row in list_sessions(path)] == [499, 499]
    assert ask(path, "PRAGMA journal_mode") == [("delete",)]


def test_a_reading_that_no_file_can_hold_costs_only_itself(
    record: Record, path: Path, eventually: Eventually
) -> None:
    recorder = record()

    recorder.put(1, Tick(t_ns=1))
    recorder.put(2, Note(t_ns=2, kind=NoteKind.LOST, text="half a character \ud800"))
    recorder.put(3, Tick(t_ns=2**63))
    recorder.put(4, Tick(t_ns=4))
    eventually(lambda: recorder.health.unrecorded == 2)
    recorder.close()

    assert ask(path, "SELECT ordinal FROM ticks") == [(1,), (4,)]
    row = find(path, "last")
    assert (row.readings, row.unrecorded) == (2, 2)


def test_a_mistake_of_ours_is_said_and_counted(
    record: Record, eventually: Eventually
) -> None:
    recorder = record()

    recorder.put(1, "not a reading")  # type: ignore[arg-type]  # that is the mistake

    eventually(lambda: not recorder.health.ok)
    recorder.put(2, Tick(t_ns=2))
    eventually(lambda: recorder.health.unrecorded >= 1)
    assert "please report" in str(recorder.health.message)
