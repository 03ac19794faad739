"""Tunes that are told to end: what they say, and what they leave."""

import signal

import pytest

from inferwatch.record.sessions.sessions import list_sessions
from inferwatch.studies.tune.trial import TrialOutcome
from tests.program.conftest import Home, wait_for
from tests.program.tune_program import Tune, stored_in

pytestmark = pytest.mark.process

VARY = "--vary=block-size=16,32"
"""Each of them is a start: what stands in for vLLM cannot be turned."""
SHORT = (
    *("--rate=8", "--trial=1", "--warmup=0.2", "--output-tokens=4-8", "--seed=3"),
    *("--slo", "ttft_s<5", "--repeats=1"),
)


@pytest.mark.parametrize(
    "number",
    [
        # In test_tune_terminal, ctrl+c does the same.
        pytest.param(signal.SIGINT, marks=pytest.mark.soak),
        signal.SIGTERM,
    ],
)
def test_told_to_end_it_tells_what_was_measured(home: Home, number: int) -> None:
    home.stand_in()
    tune = Tune(home, "demo", VARY, *SHORT)
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
    tune = Tune(home, "demo", VARY, *SHORT)
    wait_for(home.engines, "an engine")

    tune.process.send_signal(signal.SIGINT)
    status, _, said = tune.ended()

    assert status in {1, 130}, said
    wait_for(lambda: not home.engines(), "no engine")


def test_a_killed_tune_goes_on_where_its_last_whole_trial_ended(home: Home) -> None:
    home.stand_in()
    tune = Tune(home, "demo", VARY, *SHORT)
    wait_for(lambda: tune.trials() >= 1, "a trial")
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


def test_settings_that_do_not_start_are_told_with_their_cause(home: Home) -> None:
    home.stand_in()
    vary = ("--vary=block-size=32,33", "--", "--block-size=32")

    status, result, said = Tune(home, "demo", *SHORT, *vary).ended()

    assert status == 0, said
    settings = {each["flags"]["block-size"]: each for each in result["settings"]}
    bad = settings["33"]
    assert bad["outcome"] == TrialOutcome.NOT_STARTED
    assert "33 is not a block size" in bad["cause"]
    assert result["best"] == {"block-size": "32"}
