"""How long tunes take: what trials and starts cost, told by trials alone."""

from dataclasses import replace

from inferwatch.studies.tune.progress import TuneStage
from inferwatch.studies.tune.running.run import UNKNOWN_S, Costs, Stopwatch, costs_of
from inferwatch.studies.tune.space import Point
from inferwatch.studies.tune.trial import Trial, TrialOutcome, TrialRecord


def trial(number: int, life: int, took_s: float) -> Trial:
    return Trial(
        record=TrialRecord(
            number=number,
            point=Point(flags=(("max-num-seqs", "8"),)),
            repeat=0,
            outcome=TrialOutcome.MEASURED,
            life=life,
            took_s=took_s,
        )
    )


def test_the_first_trial_of_a_life_tells_what_a_start_takes() -> None:
    trials = [trial(1, 1, 50.0), trial(2, 1, 10.0), trial(3, 2, 40.0)]

    assert costs_of(trials, 8.0) == Costs(trial_s=10.0, start_s=35.0)


def test_before_others_a_trial_takes_what_its_load_does() -> None:
    assert costs_of([trial(1, 1, 50.0)], 8.0) == Costs(trial_s=8.0, start_s=42.0)


def test_without_a_trial_a_start_is_not_known() -> None:
    assert costs_of([], None) == Costs(trial_s=UNKNOWN_S, start_s=UNKNOWN_S)


def test_what_was_not_measured_tells_nothing() -> None:
    failed = trial(1, 1, 500.0)
    record = replace(failed.record, outcome=TrialOutcome.NOT_STARTED)

    assert costs_of([Trial(record=record)], 8.0).start_s == UNKNOWN_S


def test_a_tune_that_goes_on_counts_the_time_before() -> None:
    now_s = 100.0
    clock = Stopwatch(spent_s=60.0, now_s=lambda: now_s)
    clock.expect_load(8.0)
    clock.enter(TuneStage.LOADING)
    clock.expect(30.0)

    now_s = 104.0

    assert clock.elapsed_s == 64.0
    assert clock.left_s == 26.0
    assert clock.stage_now(warmup_s=2.0) == (TuneStage.LOADING, 4.0, 0.5)
    assert clock.stage_now(warmup_s=5.0) == (TuneStage.WARMING, 4.0, 0.8)

    now_s = 150.0

    assert clock.left_s == 0.0
    assert clock.stage_now(warmup_s=2.0)[2] == 1.0
