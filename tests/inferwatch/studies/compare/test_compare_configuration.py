"""How sessions were set up differently, and not what their notes leave out."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from collectors.contract.readings import (
    EngineInfo,
    EngineSettings,
    LoadEvent,
    LoadKind,
    LoadPlanned,
    Stage,
    StartupStage,
)
from inferwatch.loadgen.plan.lengths import fixed
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.record.connections import open_for_reading
from inferwatch.record.sessions.sessions import list_sessions
from inferwatch.record.writing.recorder import Recorder
from inferwatch.studies.compare.reading.configuration import (
    DifferingSetting,
    configuration,
    differing,
    startup_stages,
)

PLAN = LoadPlan(run_id="r", model="m", rate_per_s=2.0)
Differ = Callable[..., list[DifferingSetting]]


@pytest.fixture
def differ(record: Callable[..., Recorder], path: Path) -> Differ:
    """``differ(plan, plan, imported="s2")``: the settings of loads that differ."""

    def of(*plans: LoadPlan, imported: str = "") -> list[DifferingSetting]:
        for plan in plans:
            recorder = record()
            text = msgspec.json.encode(plan).decode()
            recorder.put(1, LoadPlanned(t_ns=1, plan=text))
            recorder.close()
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(
                "UPDATE sessions SET imported_from = 'a tool' WHERE id = ?", (imported,)
            )
        with closing(open_for_reading(path)) as connection:
            rows = reversed(list_sessions(path))
            return differing([configuration(connection, row) for row in rows])

    return of


def test_what_a_plan_leaves_out_is_as_ever_and_not_unknown(differ: Differ) -> None:
    constant = msgspec.structs.replace(PLAN, arrivals=Arrivals.CONSTANT)

    assert differ(PLAN, constant) == [
        DifferingSetting(name="load arrivals", values=("poisson", "constant"))
    ]


def test_a_measured_rate_is_as_if_it_had_been_given(
    record: Callable[..., Recorder], path: Path
) -> None:
    for plan in (PLAN, msgspec.structs.replace(PLAN, rate_per_s=None)):
        recorder, text = record(), msgspec.json.encode(plan).decode()
        event = LoadEvent(t_ns=1, kind=LoadKind.RATE, rate_per_s=2.0, source="r")
        recorder.put(1, LoadPlanned(t_ns=1, plan=text, source="r"))
        recorder.put(2, event)
        recorder.put(3, msgspec.structs.replace(event, t_ns=2, rate_per_s=9.0))
        recorder.close()

    with closing(open_for_reading(path)) as connection:
        known = [configuration(connection, row) for row in list_sessions(path)]

    assert known[0]["load rate_per_s"] == "2.0"
    assert differing(known) == []


def test_an_engine_has_as_many_ranks_as_were_heard(
    record: Callable[..., Recorder], path: Path
) -> None:
    recorder = record()
    for rank in range(2):
        info = EngineInfo(
            t_ns=1, pid=7, rank=rank, model="m", vllm_version="1", data_parallel=1
        )
        recorder.put(rank + 1, msgspec.structs.replace(info, source="engine-1"))
    recorder.close()

    with closing(open_for_reading(path)) as connection:
        known = configuration(connection, list_sessions(path)[0])

    assert known["engine data_parallel"] == "2"


def test_lengths_are_written_for_people(differ: Differ) -> None:
    same = msgspec.structs.replace(PLAN, output_tokens=fixed(16))

    assert differ(PLAN, same) == [
        DifferingSetting(name="load output_tokens", values=("32 to 128, evenly", "16"))
    ]


def test_what_another_tool_did_not_say_is_unknown_and_no_news(differ: Differ) -> None:
    theirs = msgspec.structs.replace(PLAN, max_in_flight=4)

    assert differ(PLAN, theirs, imported="s2") == [
        DifferingSetting(name="load max_in_flight", values=("512", "4"))
    ]


def test_flags_differ_where_both_are_known(
    record: Callable[..., Recorder], path: Path
) -> None:
    """A record that has none, and one that was set anew while it went on."""
    settings: list[list[dict[str, str | int | float | bool | None]]] = [
        [{"quantization": None, "enforce_eager": True, "max_num_seqs": 8}],
        [{"quantization": "int8"}, {"quantization": "fp8", "enforce_eager": True}],
        [],
    ]
    for each in settings:
        recorder = record()
        for place, told in enumerate(each, 1):
            recorder.put(place, EngineSettings(t_ns=place, settings=told))
        recorder.close()

    with closing(open_for_reading(path)) as connection:
        rows = list_sessions(path)[::-1]
        known = [configuration(connection, row) for row in rows]

    assert differing(known[:2]) == [
        DifferingSetting(name="flag quantization", values=("none", "fp8"))
    ]
    assert differing([known[0], known[2]]) == []


def test_a_start_is_told_by_its_slowest_worker_and_is_no_setting(
    record: Callable[..., Recorder], path: Path
) -> None:
    """The engine was started twice: the last start counts."""
    for seconds in (3, 5):
        recorder = record()
        for place, (source, worker, took) in enumerate(
            [("old", 0, 60), ("new", 0, seconds), ("new", 1, seconds + 1)], 1
        ):
            stage = StartupStage(
                source=source,
                t_ns=place,
                stage=Stage.COMPILE,
                worker=worker,
                duration_ns=took * 1_000_000_000,
            )
            recorder.put(place, stage)
        recorder.close()

    with closing(open_for_reading(path)) as connection:
        rows = list_sessions(path)[::-1]
        told = [startup_stages(connection, each.session) for each in rows]
        settings = differing([configuration(connection, each) for each in rows])

    assert told == [{"compile": 4.0}, {"compile": 6.0}]
    assert settings == []


def test_stages_of_an_earlier_start_of_the_same_engine_do_not_count(
    record: Callable[..., Recorder], path: Path
) -> None:
    """The first start compiled, the second found it compiled and loaded faster."""
    recorder, s = record(), 1_000_000_000
    for begin_s, stages in (
        (0, {Stage.LOAD_WEIGHTS: 20, Stage.COMPILE: 60}),
        (500, {Stage.LOAD_WEIGHTS: 3}),
    ):
        up_ns = (begin_s + 100) * s
        engine = EngineInfo(
            source="e", t_ns=up_ns, pid=1, model="m", vllm_version="0.32"
        )
        recorder.put(up_ns, engine)
        for stage, seconds in stages.items():
            at_ns = (begin_s + 1) * s
            told = StartupStage(
                source="e", t_ns=at_ns, stage=stage, duration_ns=seconds * s
            )
            recorder.put(up_ns, told)
    recorder.close()

    with closing(open_for_reading(path)) as connection:
        (row,) = list_sessions(path)
        assert startup_stages(connection, row.session) == {"load weights": 3.0}
