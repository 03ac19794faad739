"""Tunes of real vLLM: what is left of one that is killed, and how it goes on."""

import asyncio

import pytest

from collectors.contract.readings import LimitChange, LiveLimits
from collectors.probe.limit_control import LimitControl
from embedded_engine.engine.config import demo_config
from embedded_engine.engine.launch import Engine
from inferwatch.record.sessions.sessions import list_sessions
from inferwatch.studies.tune.running.journal import StoredTune
from inferwatch.studies.tune.trial import TrialOutcome
from tests.program.conftest import Home, wait_for
from tests.program.tune_program import GOAL, LOAD, TOOK_S, Tune, stored_in

pytestmark = [pytest.mark.engine, pytest.mark.process]

VARY = "--vary=max-num-seqs=1,64"
"""The first may be turned to live, the second is above what the engine started with."""


def seqs_measured(stored: StoredTune) -> set[tuple[str, bool]]:
    """Values of max-num-seqs, and whether each was turned to."""
    return {
        (each.point.flags[0][1], each.live)
        for each in stored.records
        if each.outcome is TrialOutcome.MEASURED
    }


@pytest.mark.soak
def test_a_killed_tune_ends_its_engine_and_goes_on(home: Home) -> None:
    tune = Tune(home, "demo", "--vary=max-num-seqs=2,8", *LOAD, *GOAL)
    wait_for(lambda: tune.trials() >= 2, "two trials", TOOK_S)

    tune.process.kill()
    tune.process.communicate()

    wait_for(lambda: not home.engines(), "the engine ends with its tuner", 20.0)
    before = stored_in(home)
    assert before is not None
    assert before.ended_wall_ns is None

    status, result, said = Tune(home, "--resume", before.plan.tune_id).ended()

    assert status == 0, said
    after = stored_in(home)
    assert after is not None
    assert after.records[: len(before.records)] == before.records
    assert after.outcome == "done"
    lives = {each.life for each in after.records}
    assert lives == {1, 2}
    assert {e.point.value("max-num-seqs") for e in after.records} == {"2", "8", "32"}
    tagged = [row for row in list_sessions(home.database) if row.tags]
    assert {row.id for row in tagged} == {each.session for each in after.records}

    again = Tune(home, "--resume", before.plan.tune_id).ended()

    assert again[1] == result
    assert stored_in(home).records == after.records  # type: ignore[union-attr]


@pytest.mark.soak
def test_settings_that_do_not_start_are_told_with_their_cause(home: Home) -> None:
    """As a stand-in for vLLM tells it in test_tune_ends."""
    vary = ("--vary=block-size=32,33", "--", "--block-size=32")

    status, result, said = Tune(home, "demo", *LOAD, *GOAL, *vary).ended()

    assert status == 0, said
    settings = {each["flags"]["block-size"]: each for each in result["settings"]}
    bad = settings["33"]
    assert bad["outcome"] == TrialOutcome.NOT_STARTED
    assert "block" in bad["cause"].lower()
    assert result["best"] == {"block-size": "32"}


async def limits_of(engine: Engine) -> LiveLimits:
    control = await LimitControl.open(engine.engine_id, by="the test")
    try:
        return (await control.limits())[0]
    finally:
        await control.close()


async def until_in_force(engine: Engine, *, holds: bool) -> None:
    """Wait until its limits are turned, or back."""
    async with asyncio.timeout(60.0):
        while (await limits_of(engine)).in_force is not holds:  # noqa: ASYNC110 - an engine tells nobody
            await asyncio.sleep(0.2)


@pytest.mark.xdist_group("shared engine")
@pytest.mark.soak
async def test_a_killed_tune_leaves_an_engine_of_others_as_it_was_and_goes_on(
    engine: Engine, beside: Home
) -> None:
    killed = Tune(beside, str(engine.url), VARY, *LOAD, *GOAL)
    await until_in_force(engine, holds=True)
    killed.process.kill()
    killed.process.communicate()

    await until_in_force(engine, holds=False)
    assert (await limits_of(engine)).change is LimitChange.WATCHER_GONE
    before = stored_in(beside)
    assert before is not None
    assert before.records

    resumed = Tune(beside, "--resume", before.plan.tune_id)
    status, result, said = await asyncio.to_thread(resumed.ended)

    assert status == 0, said
    limits = await limits_of(engine)
    assert not limits.in_force
    assert limits.change is LimitChange.RESET
    stored = stored_in(beside)
    assert stored is not None
    assert stored.outcome == "done"
    assert stored.records[: len(before.records)] == before.records
    assert {each.life for each in stored.records} == {1}
    assert seqs_measured(stored) == {("1", True), ("32", False)}
    tagged = [row for row in list_sessions(beside.database) if row.tags]
    assert {row.id for row in tagged} == {each.session for each in stored.records}
    assert result["best"] == {"max-num-seqs": "32"}  # one at a time is far too slow


@pytest.mark.soak
async def test_without_control_nothing_is_turned(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a server that others started, test_attach_truth_engine tells the same."""
    for name in ("INFERWATCH_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, home.environment[name])
    engine = await Engine.start(demo_config(), lambda _: None)
    try:
        tune = Tune(home, str(engine.url), "--vary=max-num-seqs=2,4", *LOAD)
        status, _, said = await asyncio.to_thread(tune.ended)
    finally:
        await engine.stop()

    assert status == 2
    assert "was not started with control" in said
