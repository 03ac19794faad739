"""A trace that somebody else took becomes a profile of the session of its time."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from collectors.contract.readings import (
    AnyReading,
    ClockAnchor,
    EngineInfo,
    Step,
    Tick,
)
from inferwatch.errors import StorageError, UsageError
from inferwatch.profiles import reading
from inferwatch.profiles.reading import read_traces
from inferwatch.profiles.trace_span import TraceSpan, span_of
from inferwatch.record.connections import open_for_writing
from inferwatch.record.file.trace_folder import traces_folder
from inferwatch.record.profiles.imported_trace import ImportedTrace, import_trace
from inferwatch.record.repair.recovery import recover_into
from inferwatch.record.replay.player import Player
from inferwatch.record.sessions.sessions import SessionRow, find
from tests.inferwatch.printed.recorded import execute, keep
from tests.inferwatch.profiles.nsys_database import NsysDatabase, global_tid

S = 1_000_000_000
BEGAN_NS = 1_700_000_000 * S


def write_trace(path: Path, at_s: float = 3.0, rank: int = 0) -> Path:
    """Two steps of 10 ms with an operator each, from a moment of the session on."""
    events: list[dict[str, Any]] = []
    for step in range(2):
        ts = (1_000 + at_s + step / 100) * 1e6
        shared = {"ph": "X", "pid": 1, "tid": 1}
        name = "execute_context_0(0)_generation_2(2)"
        annotation = {"cat": "user_annotation", "name": name, "ts": ts, "dur": 9_900}
        operator = {"cat": "cpu_op", "name": "aten::mm", "ts": ts + 50, "dur": 5_000}
        events += [{**shared, **annotation}, {**shared, **operator}]
    head = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": BEGAN_NS - 1_000 * S,
        "distributedInfo": {"rank": rank},
        "traceEvents": events,
    }
    path.write_text(json.dumps(head))
    return path


def readings(*engines: str) -> list[AnyReading]:
    told: list[AnyReading] = [
        ClockAnchor(t_ns=0, wall_ns=BEGAN_NS, boot_id="b", uncertainty_ns=0)
    ]
    for source in engines:
        told.append(
            EngineInfo(
                source=source, t_ns=0, pid=1, model="tiny", vllm_version="0.32.0"
            )
        )
        told += [
            Step(
                source=source,
                index=at,
                start_ns=3 * S + at * S // 100,
                end_ns=3 * S + at * S // 100 + 9_950_000,
                duration_ns=9_950_000,
                decode_requests=2,
                decode_tokens=2,
            )
            for at in range(2)
        ]
    return [*told, Tick(t_ns=5 * S)]


def session(path: Path, *engines: str) -> SessionRow:
    keep(path, "traced", readings(*engines))
    execute(path, "UPDATE sessions SET started_ns = 1700000000000000000, boot_id = 'b'")
    return find(path, "traced")


async def span_here(path: Path) -> TraceSpan:
    """Read in our own process."""
    return span_of(read_traces(path))


async def imported(
    path: Path, row: SessionRow, trace: Path, source: str | None = None
) -> ImportedTrace:
    return await import_trace(path, row, trace, source, span_here)


def write_export(path: Path, begun_ns: int | None = BEGAN_NS + 3 * S) -> Path:
    """The same two steps as Nsight Systems has them, on a GPU."""
    export = NsysDatabase(path, begun_ns=begun_ns)
    for at in (0, 10):
        name = "execute_context_0(0)_generation_2(2)"
        export.step(name, at, at + 9.9, global_tid(7, 7), is_id=False)
        export.kernel("nvjet_tst_64x8", at + 1, at + 5, at + 0.5, at + 1)
    return path


@pytest.mark.process
async def test_a_trace_is_tied_to_the_steps_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "sessions.db"
    row, trace = session(path, "engine-1"), write_trace(tmp_path / "a b.json")
    told = await import_trace(path, row, trace)

    assert (told.number, told.source, told.events) == (1, "engine-1", 4)
    assert (told.begin_ns, told.end_ns) == (3 * S, 3 * S + 19_900_000)
    assert told.place.read_text() == trace.read_text()
    assert told.place.parent == traces_folder(path, "s1")
    with closing(Player.open(path, "traced")) as player:
        desk = player.profile_desk
        assert [each.key for each in desk.profiles_known] == [told.key]
        assert desk.taken == []
        await player.playback.seek(4 * S)
        assert [each.key for each in desk.taken] == [told.key]
        report = await desk.report(told.key)
    (rank,) = report.ranks
    assert [each.index for each in rank.steps] == [0, 1]
    assert report.problems == []


@pytest.mark.process
async def test_an_export_of_nsight_systems_is_tied_to_the_steps_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "sessions.db"
    row, export = session(path, "engine-1"), write_export(tmp_path / "steps.sqlite")
    told = await import_trace(path, row, export)

    assert (told.begin_ns, told.end_ns) == (3 * S, 3 * S + 19_900_000)
    assert told.place.read_bytes() == export.read_bytes()
    assert told.place.parent == traces_folder(path, "s1")
    with closing(Player.open(path, "traced")) as player:
        report = await player.profile_desk.report(told.key)
    (rank,) = report.ranks
    assert [each.index for each in rank.steps] == [0, 1]
    assert report.problems == []


async def test_an_export_that_tells_no_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    row = session(path, "engine-1")
    export = write_export(tmp_path / "steps.sqlite", begun_ns=None)

    with pytest.raises(UsageError, match="of an unknown time"):
        await imported(path, row, export)


async def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "sessions.db", tmp_path / "other.sqlite"
    row = session(path, "engine-1")
    other.write_bytes(path.read_bytes())

    with pytest.raises(StorageError, match="is no export of Nsight Systems"):
        await imported(path, row, other)
    assert not traces_folder(path, "s1").exists()


@pytest.mark.process
async def test_files_of_others_are_read_by_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sessions.db"
    row, trace = session(path, "engine-1"), write_trace(tmp_path / "a.json")
    monkeypatch.setattr(reading, "read_trace", lambda *_: pytest.fail("read by us"))

    told = await import_trace(path, row, trace)

    assert told.events == 4


async def test_each_import_is_a_profile_and_workers_of_one_are_together(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sessions.db"
    row = session(path, "engine-1")
    first = await imported(path, row, write_trace(tmp_path / "a.json"))
    beside = await imported(path, row, write_trace(tmp_path / "b.json", rank=1))
    again = await imported(path, row, write_trace(tmp_path / "a.json"))

    assert (first.number, beside.number, again.number) == (1, 1, 2)
    assert len({first.place, beside.place, again.place}) == 3


@pytest.mark.parametrize(
    ("engines", "name", "at_s", "source", "why"),
    [
        (["one"], "a.json", 90.0, None, "was watched from"),
        (["one"], "a.json", -90.0, None, "was watched from"),
        (["one"], "a.txt", 3.0, None, "not called as a trace is"),
        (["one"], "a.nsys-rep", 3.0, None, "nsys export --type sqlite"),
        ([], "a.json", 3.0, None, "no engine's steps"),
        (
            ["one", "two"],
            "a.json",
            3.0,
            None,
            "--source is one of one, two",
        ),
        (["one"], "a.json", 3.0, "three", "no engine three: there is one"),
    ],
    ids=[
        "later",
        "before",
        "no trace",
        "of Nsight",
        "no probe",
        "which engine",
        "other engine",
    ],
)
async def test_what_cannot_be_tied_is_refused(
    tmp_path: Path,
    engines: list[str],
    name: str,
    at_s: float,
    source: str | None,
    why: str,
) -> None:
    path = tmp_path / "sessions.db"
    row, trace = session(path, *engines), write_trace(tmp_path / name, at_s)
    with pytest.raises(UsageError, match=why):
        await imported(path, row, trace, source)

    assert not traces_folder(path, "s1").exists()


async def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    row, other = session(path, "one"), tmp_path / "a.json"
    for text in ("", "{}", '{"traceEvents": []}', "[1, 2"):
        other.write_text(text)
        with pytest.raises(StorageError):
            await imported(path, row, other)


async def test_a_session_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    row = session(path, "one")
    with closing(open_for_writing(path)) as connection:
        connection.execute(
            "UPDATE sessions SET state = 'recording', boot_id = 'elsewhere', pid = 1"
        )
    with pytest.raises(StorageError):
        await imported(path, row, write_trace(tmp_path / "a.json"))


async def test_a_file_that_is_recovered_keeps_its_traces(tmp_path: Path) -> None:
    path, into = tmp_path / "sessions.db", tmp_path / "saved.db"
    row = session(path, "one")
    told = await imported(path, row, write_trace(tmp_path / "a.json"))
    recover_into(path, into)

    assert (traces_folder(into, "s1") / told.place.name).is_file()
