"""Tunes that are told to end: what they say, and what they leave."""

import signal

import pytest

from inferwatch.storage.sessions.sessions import list_sessions
from tests.program.conftest import Home, wait_for
from tests.program.tune_program import GOAL, LOAD, Tune, stored_in

pytestmark = pytest.mark.process

VARY = "--vary=block-size=16,32,64"
"""Each of them is a start: what stands in for vLLM cannot be turned."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_end_it_tells_what_was_measured(home: Home, number: int) -> None:
    home.stand_in()
    tune = Tune(home, "demo", VARY, *LOAD, *GOAL)
    wait_for(lambda: tune.trials() >= 1, "a trial")
    wait_for(home.engines, "an engine")

    tune.process.send_signal(number)
    status, result, said = tune.ended()

    assert status == 130, said
    stored = stored_in(home)
    assert stored is not None
    assert stored.outcome == "interrupted"
    measured = sum(each["trials"] for each in result["settings"])
    assert measured == len(stored.records) >= 1
    assert home.engines() == []
    listed = list_sessions(home.database)
    assert [row.tags for row in listed] == [f"tune-{stored.plan.tune_id}"] * measured


def test_told_to_end_while_an_engine_starts_nothing_is_left(home: Home) -> None:
    home.stand_in()
    tune = Tune(home, "demo", VARY, *LOAD, *GOAL)
    wait_for(home.engines, "an engine")

    tune.process.send_signal(signal.SIGINT)
    status, _, said = tune.ended()

    assert status in {1, 130}, said
    wait_for(lambda: not home.engines(), "no engine")


def test_a_killed_tune_goes_on_where_its_last_whole_trial_ended(home: Home) -> None:
    home.stand_in()
    tune = Tune(home, "demo", VARY, *LOAD, *GOAL)
    wait_for(lambda: tune.trials() >= 2, "two trials")
    tune.process.kill()
    tune.process.communicate()
    before = stored_in(home)
    assert before is not None
    wait_for(lambda: not home.engines(), "the engine ends with its tuner")

    status, result, said = Tune(home, "--resume", before.plan.tune_id).ended()
    _, again, _ = Tune(home, "--resume", before.plan.tune_id).ended()

    assert status == 0, said
    after = stored_in(home)
    assert after is not None
    assert after.records[: len(before.records)] == before.records
    assert len(after.records) > len(before.records)
    assert again == result
