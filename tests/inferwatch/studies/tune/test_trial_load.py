"""The load of a trial: a session that says what it was, or why it is none."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collectors.contract.readings import LoadPlanned
from inferwatch.loadgen.plan.lengths import fixed
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan, TraceRow
from inferwatch.loadgen.target_server import TargetServer
from inferwatch.record.lookup.recorded_readings import RecordedReadings
from inferwatch.record.sessions.sessions import find
from inferwatch.studies.tune.plan import Goal, TunePlan
from inferwatch.studies.tune.reading.numbers import numbers_of
from inferwatch.studies.tune.running.engines import Reached
from inferwatch.studies.tune.running.trial_load import (
    STARTS_S,
    TrialFailedError,
    TrialTask,
    expected_s,
    measured,
)
from tests.inferwatch.studies.tune.test_engines import StartedEngine


def plan_of(goal: Goal = Goal.GOODPUT, **load: Any) -> TunePlan:
    common: dict[str, Any] = {"run_id": "", "model": "", "warmup_s": 0.0}
    common |= {"slo": "ttft_s<1", "output_tokens": fixed(4)}
    return TunePlan(
        tune_id="t1",
        model="demo",
        vary=(("max-num-seqs", ("8",)),),
        goal=goal,
        load=LoadPlan(**{**common, **load}),
    )


def task_at(url: str, plan: TunePlan, engine: Any = None) -> TrialTask:
    target = TargetServer(url=url)
    at = Reached(
        target=target, model="ttft=0.02,itl=0.01", live=True, life=1, engine=engine
    )
    return TrialTask(name="t1 #7 max-num-seqs 8", salt="t1-7", plan=plan, at=at)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


async def test_a_trial_is_recorded_with_its_numbers(
    truth_url: str, tmp_path: Path
) -> None:
    plan = plan_of(rate_per_s=20.0, requests=10)

    session = await measured(
        task_at(truth_url, plan), tmp_path / "a.db", asyncio.Event()
    )

    row = find(tmp_path / "a.db", session)
    assert row.name == "t1 #7 max-num-seqs 8"
    assert row.command == "tune"
    numbers = await asyncio.to_thread(numbers_of, tmp_path / "a.db", session, plan)
    assert numbers.requests == 10
    assert numbers.good_share == 1.0
    sent = [
        each.plan
        async for batch in RecordedReadings(tmp_path / "a.db", session).batches()
        for each in batch
        if isinstance(each, LoadPlanned)
    ]
    assert '"cache_salt":"t1-7"' in sent[0]


async def test_the_knee_is_looked_for_in_one_session(
    truth_url: str, tmp_path: Path
) -> None:
    plan = plan_of(Goal.KNEE, rate_per_s=4_000.0, requests=40, slo="ttft_s<0.001")
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(4.0, stop.set)

    told: list[float] = []
    task = replace(task_at(truth_url, plan), tell_rate=told.append)
    session = await measured(task, tmp_path / "a.db", stop)

    assert told[:2] == [4_000.0, 2_000.0]
    runs = [
        each.plan
        async for batch in RecordedReadings(tmp_path / "a.db", session).batches()
        for each in batch
        if isinstance(each, LoadPlanned)
    ]
    assert '"rate_per_s":4000.0' in runs[0]
    assert '"rate_per_s":2000.0' in runs[1]


@pytest.mark.process
async def test_an_engine_that_answers_nobody_fails_a_trial(tmp_path: Path) -> None:
    plan = plan_of(rate_per_s=20.0, requests=3)

    with pytest.raises(TrialFailedError, match="no request was answered") as failed:
        await measured(
            task_at("http://127.0.0.1:9", plan), tmp_path / "a.db", asyncio.Event()
        )

    assert failed.value.session == "s1"


async def test_an_engine_too_slow_for_a_trial_scores_nothing(
    truth_url: str, tmp_path: Path
) -> None:
    slow: dict[str, Any] = {
        "output_tokens": fixed(500),
        "duration_s": 1.0,
        "drain_s": 0.0,
    }
    plan = plan_of(rate_per_s=20.0, slo="e2el_s<1", **slow)

    session = await measured(
        task_at(truth_url, plan), tmp_path / "a.db", asyncio.Event()
    )

    numbers = await asyncio.to_thread(numbers_of, tmp_path / "a.db", session, plan)
    assert numbers.goodput_per_s == 0.0


async def test_an_engine_that_dies_ends_its_trial(
    truth_url: str, tmp_path: Path
) -> None:
    class Dying(StartedEngine):
        async def wait(self) -> str:
            await asyncio.sleep(0.5)
            return "EngineCore was killed by SIGKILL\nTraceback"

    plan = plan_of(rate_per_s=20.0, duration_s=60.0)
    trial: Awaitable[str] = measured(
        task_at(truth_url, plan, Dying("eng")), tmp_path / "a.db", asyncio.Event()
    )

    with pytest.raises(TrialFailedError, match=r"^EngineCore was killed by SIGKILL$"):
        await asyncio.wait_for(trial, 20.0)


@pytest.mark.parametrize(
    ("load", "seconds"),
    [
        ({"rate_per_s": 2.0, "duration_s": 30.0}, 30.0),
        ({"rate_per_s": 2.0, "requests": 20}, 10.0),
        ({"rate_per_s": 2.0, "requests": 20, "duration_s": 5.0}, 5.0),
        ({"rate_per_s": 2.0, "duration_s": 30.0, "warmup_s": 5.0}, 35.0),
        (
            {
                "arrivals": Arrivals.TRACE,
                "trace": (TraceRow(offset_s=40.0, prompt_tokens=1, output_tokens=1),),
                "speed": 2.0,
            },
            20.0,
        ),
    ],
    ids=["a duration", "requests", "the sooner", "with warm-up", "a trace"],
)
def test_a_load_says_how_long_it_takes(load: dict[str, Any], seconds: float) -> None:
    assert expected_s(plan_of(**load)) == seconds + STARTS_S


def test_how_long_a_search_takes_is_not_known() -> None:
    assert expected_s(plan_of(Goal.KNEE, rate_per_s=1.0, duration_s=5.0)) is None
