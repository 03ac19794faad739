"""Carrying a tune out: what is kept of it, whatever ends it on the way."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferwatch.errors import UsageError
from inferwatch.record.sessions.sessions import SessionRow, list_sessions
from inferwatch.studies.tune.progress import TuneStage
from inferwatch.studies.tune.result.tune_result import TuneResult
from inferwatch.studies.tune.running.journal import stored_tune
from inferwatch.studies.tune.running.run import TuneRun
from inferwatch.studies.tune.trial import Trial, TrialOutcome
from tests.inferwatch.studies.tune.scripted_tune import (
    Bench,
    KilledError,
    plan_of,
    seqs,
)

SCORES = {"32": 10.0, "4": 4.0, "8": 12.0, "16": 20.0}

MakeBench = Callable[..., Bench]


@pytest.fixture
def bench(tmp_path: Path) -> MakeBench:
    """A bench with a record of its own."""

    def make(**about: Any) -> Bench:
        return Bench(tmp_path / "sessions.db", SCORES, **about)

    return make


async def ended(run: TuneRun) -> TuneResult:
    return await run.run(asyncio.Event())


def at(trials: tuple[Trial, ...], value: int) -> list[Trial]:
    return [each for each in trials if each.point == seqs(value)]


def tuned(bench: Bench, *, bin_too: bool = False) -> list[SessionRow]:
    return list_sessions(bench.database, bin_too=bin_too)[::-1]


async def test_the_best_of_the_settings_is_found(bench: MakeBench) -> None:
    run = bench().run(plan_of(4, 8, 16))

    result = await ended(run)

    assert result.best is not None
    assert result.best.point == seqs(16)
    assert result.present is not None
    assert result.present.point == seqs(32)
    assert run.outcome == "done"
    assert run.progress.stage is TuneStage.DONE


async def test_each_trial_is_a_tagged_session_of_its_own(bench: MakeBench) -> None:
    made = bench()
    run = made.run(plan_of(4, 8))
    await ended(run)

    rows = tuned(made)

    assert [row.tags for row in rows] == ["tune-t1"] * len(run.progress.trials)
    assert rows[0].name == f"t1 #1 {made.reached[0].text}"
    records = stored_tune(made.database, "t1").records
    assert [each.session for each in records] == [row.id for row in rows]


async def test_every_point_gets_the_same_load_and_a_cache_of_its_own(
    bench: MakeBench,
) -> None:
    made = bench()
    await ended(made.run(plan_of(4, 8)))

    loads = [task.load for task in made.loads]

    assert {each.seed for each in loads} == {0}
    assert {each.rate_per_s for each in loads} == {10.0}
    salts = [each.extra_body["cache_salt"] for each in loads]
    assert len(set(salts)) == len(salts) == len(made.loads)


async def test_a_tune_that_was_killed_ends_with_the_same_table(
    bench: MakeBench, tmp_path: Path
) -> None:
    whole = Bench(tmp_path / "whole.db", SCORES)
    expected = await ended(whole.run(plan_of(4, 8, 16)))

    def kill(before: int, _: asyncio.Event) -> None:
        if before == 3:
            raise KilledError

    made = bench(on_load=kill)
    with pytest.raises(KilledError):
        await ended(made.run(plan_of(4, 8, 16)))
    made.on_load = lambda *_: None
    again = await ended(made.resumed())

    assert again == expected
    trials = stored_tune(made.database, "t1").records
    assert [each.number for each in trials] == list(range(1, len(trials) + 1))
    assert len(trials) == len(stored_tune(whole.database, "t1").records)


async def test_what_is_left_out_is_a_result_and_is_kept(
    bench: MakeBench,
) -> None:
    cause = "predicted 4 good requests/s, the best measured 20"
    made = bench(ruled_out={"4": cause})
    run = made.run(plan_of(4, 8, 16))

    result = await ended(run)

    (left,) = at(run.progress.trials, 4)
    assert left.record.outcome is TrialOutcome.LEFT_OUT
    assert left.record.number == 2
    assert seqs(4) not in made.reached
    assert [e.cause for e in result.points if e.point == seqs(4)] == [cause]
    kept = [e for e in stored_tune(made.database, "t1").records if e.cause == cause]
    assert [each.point for each in kept] == [seqs(4)]
    assert any(cause in said for said in run.progress.said)


async def test_half_a_trial_goes_to_the_bin_and_is_measured_anew(
    bench: MakeBench,
) -> None:
    def kill(before: int, _: asyncio.Event) -> None:
        if before == 2:
            raise KilledError

    made = bench(on_load=kill)
    with pytest.raises(KilledError):
        await ended(made.run(plan_of(4, 8)))
    half = made.loads[-1].name
    made.on_load = lambda *_: None

    await ended(made.resumed())

    named = [row for row in tuned(made, bin_too=True) if row.name == half]
    assert [row.deleted_ns is None for row in named] == [False, True]
    assert [row.tags for row in named] == ["", "tune-t1"]


async def test_a_trial_whose_session_was_deleted_is_measured_anew(
    bench: MakeBench,
) -> None:
    made = bench()
    await ended(made.run(plan_of(4, 8)))
    before = len(made.loads)
    gone = next(id_ for id_, value in made.told.items() if value == "4")

    def read(database: Path, session: str, plan: Any) -> Any:
        if session == gone:
            raise UsageError("there is no such session")
        return parts.numbers(database, session, plan)

    parts = made.parts
    run = TuneRun.resumed(
        made.database,
        "t1",
        parts=type(parts)(engines=parts.engines, measure=parts.measure, numbers=read),
    )
    await ended(run)

    assert len(made.loads) > before
    assert len(at(run.progress.trials, 4)) >= 1


async def test_a_setting_that_does_not_start_is_a_result(bench: MakeBench) -> None:
    made = bench(refused={"64": "CUDA out of memory"})
    run = made.run(plan_of(8, 64, present=(("max-num-seqs", "8"),)))

    result = await ended(run)

    (never,) = at(run.progress.trials, 64)
    assert never.record.outcome is TrialOutcome.NOT_STARTED
    assert never.record.cause == "CUDA out of memory"
    assert never.record.session is None
    assert result.best is not None
    assert result.best.point == seqs(8)


async def test_a_larger_start_that_fails_is_a_result_and_others_go_on(
    bench: MakeBench,
) -> None:
    made = bench(refused={"64": "no room"})
    run = made.run(plan_of(8, 16, 64))

    result = await ended(run)

    (never,) = at(run.progress.trials, 64)
    assert never.record.outcome is TrialOutcome.NOT_STARTED
    assert never.record.number == 1
    assert result.best is not None
    assert result.best.point == seqs(16)


async def test_a_trial_that_failed_is_tried_once_more(bench: MakeBench) -> None:
    made = bench(failures={"8": ["the core died"]})
    run = made.run(plan_of(8))

    await ended(run)

    outcomes = {each.record.outcome for each in at(run.progress.trials, 8)}
    assert outcomes == {TrialOutcome.MEASURED}
    assert made.renewed == 1
    assert any("the core died" in text for text in run.progress.said)


async def test_a_trial_that_failed_twice_is_a_result(bench: MakeBench) -> None:
    made = bench(failures={"8": ["the core died", "the core died again"]})
    run = made.run(plan_of(8))

    await ended(run)

    first = at(run.progress.trials, 8)[0].record
    assert first.outcome is TrialOutcome.FAILED
    assert first.cause == "the core died again"
    assert first.session is not None
    assert run.outcome == "done"


async def test_told_to_stop_it_tells_what_it_has(bench: MakeBench) -> None:
    def stop_third(before: int, stop: asyncio.Event) -> None:
        if before == 3:
            stop.set()

    made = bench(on_load=stop_third)
    run = made.run(plan_of(4, 8, 16))

    result = await run.run(asyncio.Event())

    assert len(run.progress.trials) == 2
    assert sum(each.trials for each in result.points) == 2
    assert made.closed == 1
    assert stored_tune(made.database, "t1").outcome == "interrupted"
    assert len(tuned(made)) == 2


async def test_time_that_is_up_ends_it_with_a_result(bench: MakeBench) -> None:
    run = bench().run(plan_of(4, 8, budget_s=0.0))

    result = await ended(run)

    assert run.outcome == "out of time"
    assert result.best is None


async def test_the_present_that_an_engine_told_is_kept(bench: MakeBench) -> None:
    made = bench()
    await ended(made.run(plan_of(4)))

    assert stored_tune(made.database, "t1").plan.present == (("max-num-seqs", "32"),)


async def test_another_tune_is_not_gone_on_with(bench: MakeBench) -> None:
    made = bench()
    await ended(made.run(plan_of(4)))

    with pytest.raises(UsageError, match="begun with vary"):
        made.resumed(asked=plan_of(4, 8))
    with pytest.raises(UsageError, match="begun with max-num-seqs 32 at present"):
        made.resumed(asked=plan_of(4, present=(("max-num-seqs", "16"),)))
    with pytest.raises(UsageError, match="there is no tune t9; there is t1"):
        made.resumed("t9")


async def test_more_time_may_be_given_to_go_on(bench: MakeBench) -> None:
    made = bench()
    await ended(made.run(plan_of(4, 8, budget_s=0.0)))

    run = made.resumed(asked=plan_of(4, 8, budget_s=600.0))
    await ended(run)

    assert run.outcome == "done"


async def test_no_key_is_kept(bench: MakeBench) -> None:
    made = bench()
    plan = plan_of(4)
    secret = {**plan.load.headers, "Authorization": "Bearer hush"}
    load = msgspec.structs.replace(plan.load, headers=secret)
    await ended(made.run(msgspec.structs.replace(plan, load=load)))

    assert b"hush" not in made.database.read_bytes()


async def test_an_engine_that_cannot_be_had_ends_it_cleanly(bench: MakeBench) -> None:
    made = bench()

    async def present(_: Any) -> Any:
        raise UsageError("it is serving other traffic")

    made.present = present  # type: ignore[method-assign, assignment]
    run = made.run(plan_of(4))

    with pytest.raises(UsageError, match="other traffic"):
        await ended(run)

    assert made.closed == 1
    assert stored_tune(made.database, "t1").outcome == "failed"
