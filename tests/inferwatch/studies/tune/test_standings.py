"""Where points stand, and what is said of why they are out."""

from dataclasses import replace

import numpy as np
import pytest

from inferwatch.studies.tune.plan import Goal
from inferwatch.studies.tune.search.standings import (
    PointStanding,
    SearchRules,
    machine_drift,
    neighbours,
    standings,
)
from inferwatch.studies.tune.trial import Trial, TrialOutcome
from tests.inferwatch.studies.tune.scripted_trials import (
    measured,
    not_measured,
    numbered,
    of_scores,
    seqs,
    space_of_seqs,
)

SPACE = space_of_seqs(2, 4, 8, 16, 32, present=8)
RULES = SearchRules(goal=Goal.TOKENS)


def stand(*trials: Trial) -> dict[int, PointStanding]:
    found = standings(SPACE, RULES, trials)
    return {int(each.point.flags[0][1]): each for each in found}


def test_nothing_measured_is_nothing_known() -> None:
    found = standings(SPACE, RULES, ())

    assert [each.point for each in found] == list(SPACE.points)
    assert all(each.alive and each.score is None for each in found)
    assert machine_drift(SPACE, RULES, ()) is None


def test_without_a_repeat_there_is_a_score_and_no_interval() -> None:
    found = stand(*of_scores((8, 100.0), (4, 50.0)))

    assert found[8].score == pytest.approx(100.0)
    assert found[8].span is None
    assert found[4].against_present is None
    assert found[4].alive


def test_repeats_of_one_point_tell_how_sure_all_are() -> None:
    found = stand(*of_scores((8, 100.0), (2, 40.0), (8, 102.0), (16, 101.0), (8, 99.0)))

    assert found[2].trials == 1
    assert found[2].span is not None
    low, high = found[2].span
    assert low < 40 < high
    assert not found[2].alive
    assert "below the best" in (found[2].dropped or "")
    assert found[16].like_best or found[16].is_best


def test_a_machine_that_slows_down_is_seen_through() -> None:
    """16 is better by 20%, and was measured when all were slower by 30%."""
    slower = [(0.96**n) for n in range(13)]
    order = [8, 2, 8, 4, 8, 32, 8, 16, 8, 16, 8, 16, 8]
    truth = {2: 40.0, 4: 70.0, 8: 100.0, 16: 120.0, 32: 90.0}
    noise = np.random.default_rng(1).normal(0, 0.005, 13)
    trials = of_scores(
        *(
            (n, truth[n] * by * float(np.exp(off)))
            for n, by, off in zip(order, slower, noise, strict=True)
        )
    )

    found = stand(*trials)

    raw = np.mean([t.numbers.tokens_per_s for t in trials[7:12:2] if t.numbers])
    assert raw < 100
    assert found[16].is_best
    assert found[16].ratio_to_present == pytest.approx(1.2, abs=0.03)
    assert found[16].against_present is not None
    assert found[16].against_present[0] > 1.09
    assert machine_drift(SPACE, RULES, trials) == pytest.approx(0.6, abs=0.15)


def test_where_lower_is_better_the_lowest_is_best() -> None:
    rules = SearchRules(goal=Goal.COST)
    trials = [
        replace(
            each,
            numbers=replace(each.numbers, cost=each.numbers.tokens_per_s),
        )
        for each in of_scores((8, 2.0), (4, 1.0), (8, 2.01), (32, 4.0), (8, 1.99))
        if each.numbers is not None
    ]

    found = {each.point: each for each in standings(SPACE, rules, trials)}

    assert found[seqs(4)].is_best
    assert found[seqs(32)].ratio_to_present == pytest.approx(2.0, rel=0.05)
    assert "above the best" in (found[seqs(32)].dropped or "")


def test_what_did_not_start_is_out_at_once() -> None:
    broken = not_measured(seqs(32), TrialOutcome.NOT_STARTED, "out of memory")
    found = stand(*numbered([*of_scores((8, 100.0)), broken]))

    assert not found[32].alive
    assert found[32].dropped == "did not start: out of memory"


def test_one_failure_is_forgiven_and_two_are_not() -> None:
    died = not_measured(seqs(32), TrialOutcome.FAILED, "the engine died")

    once = stand(*numbered([*of_scores((8, 100.0)), died]))
    twice = stand(*numbered([*of_scores((8, 100.0)), died, died]))

    assert once[32].alive
    assert twice[32].dropped == "failed 2 times: the engine died"


def test_a_point_that_failed_often_is_not_best() -> None:
    died = not_measured(seqs(32), TrialOutcome.FAILED, "the engine died")
    scored = of_scores((8, 100.0), (32, 300.0), (8, 101.0), (4, 50.0))

    found = stand(*numbered([*scored, died, died]))

    assert found[8].is_best
    assert not found[32].alive


def test_what_was_left_out_says_why() -> None:
    cause = "predicted 41 tokens/s, the best measured 97"
    out = not_measured(seqs(2), TrialOutcome.LEFT_OUT, cause)

    found = stand(*numbered([*of_scores((8, 100.0)), out]))

    assert found[2].dropped == cause


def test_doubted_trials_count_only_where_there_are_no_others() -> None:
    doubted = measured(seqs(16), 300.0, "the client was the bottleneck")
    scores = of_scores((8, 100.0), (8, 101.0))

    alone = stand(*numbered([*scores, doubted]))
    beside = stand(*numbered([*scores, doubted, measured(seqs(16), 110.0)]))

    assert alone[16].is_best
    assert alone[16].doubts == ("the client was the bottleneck",)
    assert beside[16].score == pytest.approx(110.0, rel=0.02)
    assert beside[16].doubts == ()


def test_a_goodput_of_nothing_is_bad_and_no_accident() -> None:
    found = stand(*of_scores((8, 100.0), (2, 0.0), (8, 103.0), (2, 0.1), (8, 98.0)))

    assert found[8].is_best
    assert not found[2].alive


def test_noise_of_a_point_that_hardly_works_does_not_hide_the_best() -> None:
    """The present setting answers almost nobody in time, now more, now fewer."""
    present = [0.2, 0.9, 0.1, 0.5, 0.3]
    others = [(4, 5.0), (16, 10.0), (4, 5.1), (16, 10.1), (16, 9.9)]
    mixed = [each for p, o in zip(present, others, strict=True) for each in ((8, p), o)]

    found = stand(*of_scores(*mixed))

    assert found[16].is_best
    assert not found[8].alive
    assert not found[4].alive


def test_a_neighbour_of_the_best_is_not_dropped_by_one_trial() -> None:
    scores = [(8, 100.0), (4, 80.0), (8, 101.0), (2, 80.0), (8, 100.5), (8, 99.5)]

    once = stand(*of_scores(*scores))
    twice = stand(*of_scores(*scores, (4, 80.5)))
    far = stand(*of_scores(*scores, (16, 50.0)))

    assert once[4].alive
    assert not once[2].alive
    assert not twice[4].alive
    assert not far[16].alive


def test_neighbours_differ_by_one_step() -> None:
    assert neighbours(SPACE, seqs(8)) == {seqs(4), seqs(16)}
    assert neighbours(SPACE, seqs(32)) == {seqs(16)}


def test_neighbours_go_by_numbers_whatever_order_they_were_given_in() -> None:
    space = space_of_seqs(64, 2, 16, present=8)

    assert neighbours(space, seqs(16)) == {seqs(2), seqs(64)}
    assert neighbours(space, seqs(8)) == {seqs(2), seqs(16)}


@pytest.mark.parametrize("slope", [0.0, 0.1], ids=["steady", "drifting"])
def test_intervals_cover_the_truth(slope: float) -> None:
    """Of the ratio to the present, in a hundred tunes of 16 trials at 3% noise."""
    random = np.random.default_rng(7)
    truth = {2: 60.0, 4: 90.0, 8: 100.0, 16: 105.0, 32: 80.0}
    order = [8, 2, 4, 16, 8, 32, 4, 16, 8, 16, 4, 16, 8, 16, 4, 8]
    covered = total = 0
    for _ in range(100):
        noise = np.exp(random.normal(0, 0.03, len(order)))
        line = np.linspace(1, 1 + slope, len(order))
        scores = zip(order, noise * line, strict=True)
        found = stand(*of_scores(*((n, truth[n] * float(by)) for n, by in scores)))
        for n in (2, 4, 16, 32):
            span = found[n].against_present
            assert span is not None
            covered += span[0] <= truth[n] / 100 <= span[1]
            total += 1

    assert covered / total >= 0.92


@pytest.mark.parametrize(
    "noises",
    [
        {2: 0.03, 4: 0.03, 8: 0.03, 16: 0.03, 32: 0.03},
        {2: 0.10, 4: 0.10, 8: 0.01, 16: 0.10, 32: 0.10},
    ],
    ids=["alike", "only the present is calm"],
)
def test_equals_are_rarely_told_apart_however_uneven_their_noise(
    noises: dict[int, float],
) -> None:
    """In at most 5% of two hundred tunes of 16 trials, chance allowed for."""
    random = np.random.default_rng(7)
    order = [8, 2, 4, 16, 8, 32, 4, 16, 8, 16, 4, 16, 8, 16, 4, 8]
    wrong = 0
    for _ in range(200):
        scores = [(n, 100 * float(np.exp(random.normal(0, noises[n])))) for n in order]
        found = stand(*of_scores(*scores))
        wrong += any(not e.is_best and not e.like_best for e in found.values())

    assert wrong <= 12


def test_of_many_settings_most_that_are_a_quarter_worse_are_told_apart() -> None:
    """Of twelve at 5% noise, five measured once and six twice, in thirty tunes."""
    random = np.random.default_rng(7)
    space = space_of_seqs(*(2**n for n in range(12)), present=1)
    worse = [2**n for n in range(1, 12)]
    order = [1, *worse[:3], 1, *worse[3:6], 1, *worse[6:9], 1, *worse[9:], 1]
    order += [*worse[:3], 1, *worse[3:6], 1]
    found: list[PointStanding] = []
    for _ in range(30):
        noises = np.exp(random.normal(0, 0.05, len(order)))
        trials = of_scores(
            *(
                (n, (100.0 if n == 1 else 75.0) * float(by))
                for n, by in zip(order, noises, strict=True)
            )
        )
        found += [e for e in standings(space, RULES, trials) if not e.is_best]

    apart = [each for each in found if not each.like_best]
    assert all(each.against_best and each.against_best[1] < 1 for each in apart)
    assert len(apart) / len(found) > 0.5
