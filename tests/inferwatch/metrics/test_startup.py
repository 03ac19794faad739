"""How a start is put together from the stages of its workers, and what is amiss."""

from dataclasses import replace
from typing import Any

import pytest

from collectors.contract.readings import (
    AnyReading,
    EngineInfo,
    Note,
    NoteKind,
    Stage,
    StartupStage,
)
from inferwatch.metrics.findings.facts import Facts
from inferwatch.metrics.findings.startup import CompileCacheMissed, SlowStorage
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.metrics.steps.startup import Startup, startup_of

S = 1_000_000_000
GB = 1_000_000_000


def stage(kind: Stage, begin_s: float, seconds: float, **more: Any) -> StartupStage:
    return StartupStage(
        source="e",
        t_ns=round(begin_s * S),
        duration_ns=round(seconds * S),
        stage=kind,
        **more,
    )


STAGES = [
    stage(Stage.IMPORTS, -60, 20),
    *(
        stage(
            Stage.LOAD_WEIGHTS,
            -40,
            seconds,
            worker=worker,
            n_bytes=10 * GB,
            storage_bytes=9 * GB,
            waited_ns=round(0.9 * seconds * S),
        )
        for worker, seconds in enumerate((20, 25))
    ),
    stage(Stage.COMPILE, -15, 12, worker=0, cached=False),
    stage(Stage.COMPILE, -15, 2, worker=1, cached=True),
    stage(Stage.WARM_UP, -3, 1, worker=0),
]


def shown() -> Startup:
    startup = startup_of(STAGES)
    assert startup is not None
    return startup


def test_the_slowest_worker_counts_and_bytes_are_those_of_all() -> None:
    startup = shown()

    assert startup.duration_s == 58
    assert [(each.stage, each.duration_s, each.worker) for each in startup.stages] == [
        (Stage.IMPORTS, 20, None),
        (Stage.LOAD_WEIGHTS, 25, 1),
        (Stage.COMPILE, 12, 0),
        (Stage.WARM_UP, 1, None),
    ]
    loaded = startup.stage(Stage.LOAD_WEIGHTS)
    assert loaded is not None
    assert (loaded.n_bytes, loaded.bytes_per_s) == (20 * GB, 0.4 * GB)
    assert startup.storage_bytes == 18 * GB
    assert startup.waited_share == pytest.approx(0.9)


def test_without_stages_nothing_is_known() -> None:
    assert startup_of([]) is None


def test_what_no_worker_tells_is_not_nothing() -> None:
    startup = startup_of([stage(Stage.COMPILE, 0, 3, worker=0)])

    assert startup is not None
    assert (startup.storage_bytes, startup.waited_share) == (None, None)
    assert startup.stages[0].cached is None
    assert startup.stages[0].bytes_per_s is None


def test_another_start_replaces_the_stages_of_the_one_before() -> None:
    model = Model()
    readings: list[AnyReading] = [engine("e"), *STAGES, lost("e"), engine("other")]
    for reading in readings:
        model.fold(reading)

    assert model.snapshot(S, SnapshotQuery(Window.SESSION)).startup is None


def engine(source: str) -> EngineInfo:
    return EngineInfo(source=source, t_ns=0, pid=1, model="m", vllm_version="0.32")


def lost(source: str) -> Note:
    return Note(source=source, t_ns=1, kind=NoteKind.LOST, text="gone")


FACTS = Facts(now_ns=5 * S, up_s=5, startup=shown())


def test_storage_that_the_loader_waited_for_is_named_with_its_rate() -> None:
    diagnosis = SlowStorage()

    assert diagnosis.holds(FACTS) is not None
    assert "0.40 GB/s" in diagnosis.sentence(FACTS)
    assert diagnosis.evidence(FACTS)
    assert diagnosis.knobs(FACTS)


@pytest.mark.parametrize(
    "change",
    [
        {"storage_bytes": None},
        {"storage_bytes": 2 * GB},
        {"waited_share": None},
        {"waited_share": 0.3},
    ],
    ids=["not told", "from memory", "waiting not told", "busy"],
)
def test_without_evidence_storage_is_not_accused(change: dict[str, Any]) -> None:
    startup = replace(shown(), **change)

    assert SlowStorage().holds(replace(FACTS, startup=startup)) is None


def test_a_missed_compile_cache_is_named_and_costs_the_verdict_nothing() -> None:
    diagnosis = CompileCacheMissed()
    cost = diagnosis.holds(FACTS)

    assert cost is not None
    assert cost.share == 0
    assert "12" in diagnosis.sentence(FACTS)
    assert "VLLM_CACHE_ROOT" in diagnosis.knobs(FACTS)[0].text


def test_a_start_of_long_ago_is_no_finding() -> None:
    assert CompileCacheMissed().holds(replace(FACTS, up_s=500)) is None


def test_what_was_cached_or_is_not_known_is_no_finding() -> None:
    for cached in (True, None):
        one = stage(Stage.COMPILE, 0, 60, worker=0, cached=cached)
        facts = replace(FACTS, startup=startup_of([one]))
        assert CompileCacheMissed().holds(facts) is None
