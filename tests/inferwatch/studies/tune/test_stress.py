"""A tune's trial of a stress scenario, and its fixed prompts, read from its record."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import (
    AnswerHashes,
    AnyReading,
    EventKind,
    RequestEvent,
    RequestRecord,
    Vantage,
)
from inferwatch.loadgen.plan.file import make_plan
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.scenarios.scenario import with_scenario
from inferwatch.record.writing.recorder import Recorder
from inferwatch.studies.tune.plan import Goal, TunePlan
from inferwatch.studies.tune.reading.numbers import numbers_of
from inferwatch.studies.tune.result.printed import tune_text
from inferwatch.studies.tune.result.tune_result import result_of
from inferwatch.studies.tune.search.standings import SearchRules
from tests.inferwatch.studies.tune.scripted_trials import of_scores, seqs, space_of_seqs
from tests.inferwatch.studies.tune.test_numbers import MS, run_of, tune_plan

HASHES = AnswerHashes(
    t_ns=5, model="m", asked=7, by_tokens=True, alone=[[1, 2]], together=[[1, 3]]
)


def abandoned_plan() -> LoadPlan:
    return make_plan(
        with_scenario(
            {
                "run_id": "load-1",
                "model": "m",
                "url": "http://x",
                "scenario": "abandon",
                "rate_per_s": 10.0,
            }
        )
    )


@pytest.fixture
def record(tmp_path: Path) -> Any:
    def record(*readings: AnyReading) -> Path:
        path = tmp_path / "sessions.db"
        recorder = Recorder.open(path, name="trial", command="tune", floor_bytes=0)
        for ordinal, reading in enumerate(readings):
            recorder.put(ordinal, reading)
        recorder.close()
        return path

    return record


def with_hang_ups(readings: list[AnyReading]) -> list[AnyReading]:
    """Every fourth request is abandoned, and the engine ends it 20 ms later."""
    found: list[AnyReading] = []
    for each in readings:
        if not isinstance(each, RequestRecord) or not each.index or each.index % 4:
            found.append(each)
            continue
        found.append(
            msgspec.structs.replace(each, failure="hung_up", output_tokens=None)
        )
        for kind, at_ns in (
            (EventKind.ADDED, each.intended_ns + MS),
            (EventKind.FINISHED, (each.end_ns or 0) + 20 * MS),
        ):
            found.append(
                RequestEvent(
                    source="engine-1",
                    t_ns=at_ns,
                    kind=kind,
                    vantage=Vantage.ENGINE,
                    request_id=f"r{each.index}",
                    external_id=f"cmpl-{each.external_id}-0",
                    ordinal=each.index,
                    reason="abort" if kind is EventKind.FINISHED else None,
                )
            )
    return found


def test_the_sentence_of_a_scenario_is_told_again_from_the_record(record: Any) -> None:
    plan = abandoned_plan()
    load = msgspec.structs.replace(tune_plan(), load=plan)

    found = numbers_of(
        record(*with_hang_ups(list(run_of(plan, [100] * 40)))), "trial", load
    )

    assert found.scenario is not None
    assert found.scenario.startswith(
        "capacity is freed: the engine ended 10 of 10 abandoned requests, on average "
        "20.0 ms "
    )


def test_a_load_that_is_no_scenario_has_no_sentence(record: Any) -> None:
    plan = tune_plan()

    found = numbers_of(record(*run_of(plan.load, [100] * 40)), "trial", plan)

    assert (found.scenario, found.answers) == (None, None)


def test_hashes_of_answers_come_back_from_the_record(record: Any) -> None:
    plan = tune_plan()

    found = numbers_of(record(*run_of(plan.load, [100] * 40), HASHES), "trial", plan)

    assert found.answers == HASHES


def test_each_setting_has_the_sentence_of_its_latest_run() -> None:
    trials = list(of_scores((8, 1000.0), (16, 1100.0), (8, 1001.0)))
    said = ["it froze", None, "it was fine"]
    trials = [
        replace(each, numbers=replace(each.numbers, scenario=sentence))
        for each, sentence in zip(trials, said, strict=True)
        if each.numbers is not None
    ]
    plan = TunePlan(
        tune_id="t1",
        model="m",
        vary=(("max-num-seqs", ("8", "16")),),
        load=abandoned_plan(),
        goal=Goal.TOKENS,
    )

    space = space_of_seqs(8, 16, present=8)
    found = result_of(space, SearchRules(goal=Goal.TOKENS), trials, plan)

    by_point = {each.point: each.scenario for each in found.points}
    assert by_point == {seqs(8): "it was fine", seqs(16): None}
    assert "max-num-seqs 8: it was fine." in tune_text(found, plan)
