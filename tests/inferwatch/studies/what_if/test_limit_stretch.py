"""Where limits were changed on the way, a prediction is of a stretch under the same."""

import pytest

from collectors.contract.readings import AnyReading, EngineSettings, LiveLimits
from inferwatch.studies.what_if.heard import CannotTellError, RunReadings
from inferwatch.studies.what_if.outcome import measured_outcome
from inferwatch.studies.what_if.prediction import predict
from inferwatch.studies.what_if.recorded import RecordedRun, recorded_run, run_of
from inferwatch.studies.what_if.setting import SettingChange
from tests.inferwatch.studies.what_if.scripted_engine import MS, ScriptedEngine, jobs

S = 1_000 * MS
AT_NS = 20 * S
SETTINGS = EngineSettings(source="e", t_ns=0, settings={"max_num_seqs": 32})


def served(turned: dict[int, int]) -> list[AnyReading]:
    return [SETTINGS, *ScriptedEngine(turned=turned).serve(jobs())]


def latest_of(readings: list[AnyReading]) -> RecordedRun:
    heard = RunReadings()
    for reading in readings:
        heard.take(reading)
    return run_of(heard, latest=True)


def test_of_a_recorded_session_it_is_the_one_with_most_requests() -> None:
    run = recorded_run(served({AT_NS: 4}))

    assert run.setting.max_num_seqs == 32
    assert int(run.steps.start_ns[-1]) < AT_NS
    assert all(each.added_ns < AT_NS for each in run.requests)
    assert any(not each.counts for each in run.requests)  # they ended out of sight
    assert "limits were changed on the way" in run.notes[0]
    assert "under max_num_seqs 32 and" in run.notes[0]
    assert "one of 2 stretches" in run.notes[0]


def test_of_the_present_it_is_the_latest() -> None:
    run = latest_of(served({AT_NS: 4}))

    assert run.setting.max_num_seqs == 4
    assert int(run.steps.start_ns[0]) >= AT_NS
    assert all(each.added_ns >= AT_NS for each in run.requests)
    assert run.notes[0].endswith("what was there when it began is left out")


def test_what_it_was_like_is_predicted_from_it() -> None:
    run = recorded_run(served({AT_NS: 4}))

    told = predict(run, [SettingChange()])

    predicted, true = told.predictions[0].outcome, measured_outcome(run)
    assert predicted is not None
    assert predicted.requests == true.requests
    assert predicted.latencies["ttft_s"].p50 == pytest.approx(
        true.latencies["ttft_s"].p50, rel=0.05
    )


def test_a_change_at_the_start_is_the_setting_of_all_of_it() -> None:
    """A cap that was turned live is predicted as one that was started with."""
    live = served({0: 4})
    restarted = ScriptedEngine(max_num_seqs=4).serve(jobs())

    assert any(isinstance(each, LiveLimits) for each in live)
    assert recorded_run(live).setting == recorded_run(restarted).setting
    assert recorded_run(live).notes == recorded_run(restarted).notes == ()


def test_just_after_a_change_nothing_can_be_told() -> None:
    whole = ScriptedEngine().serve(jobs())
    last_ns = max(getattr(each, "end_ns", 0) for each in whole)

    with pytest.raises(CannotTellError, match="limits were changed on the way, and"):
        latest_of(served({last_ns - S // 10: 4}))
