"""Which trial is next: the race, the present setting in between, lives, time."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np
import pytest

from benchmarks.tune_search import World, cliff, flat, peak, plateau, tune, twins
from inferwatch.studies.tune.plan import Goal
from inferwatch.studies.tune.search.race import (
    EngineLife,
    SearchRules,
    life_for,
    next_trial,
    trials_left,
)
from inferwatch.studies.tune.search.standings import standings
from inferwatch.studies.tune.space import Point, Space, Variable
from inferwatch.studies.tune.trial import Trial, TrialOutcome
from tests.inferwatch.studies.tune.scripted_trials import (
    SEQS,
    measured,
    not_measured,
    numbered,
    seqs,
    space_of_seqs,
)

RULES = SearchRules(goal=Goal.TOKENS, seed=1)
LINE = space_of_seqs(2, 4, 8, 16, 32, 64, 128, present=8)
Machine = Callable[[Point], Trial]


def value(point: Point) -> int:
    return int(point.value(SEQS) or 0)


def peaked(point: Point) -> Trial:
    """16 is best, and measures as exactly as machines do."""
    off = abs(np.log2(value(point)) - 4)
    wobble = 1 + 0.01 * np.sin(37 * off + len(point.text))
    return measured(point, float(100 * 0.8**off * wobble))


class Tuner:
    """Goes on until the search ends, as a tune would."""

    def __init__(
        self,
        space: Space,
        machine: Machine = peaked,
        rules: SearchRules = RULES,
        life: EngineLife | None = None,
    ) -> None:
        self.space, self.machine, self.rules, self.life = space, machine, rules, life
        self.trials: tuple[Trial, ...] = ()
        self.why: list[str] = []
        self.lives = 0 if life is None else 1
        self._random = np.random.default_rng(4)

    def go_on(self, most: int = 500) -> "Tuner":
        for _ in range(most):
            told = next_trial(self.space, self.rules, self.trials, self.life)
            if told is None:
                return self
            self.why.append(told.why)
            self._start(told.point)
            self._measure(told.point)
        if most == 500:
            pytest.fail("the search does not end")
        return self

    def _start(self, point: Point) -> None:
        if self.life is not None and self.life.reaches(point):
            return
        self.lives += 1
        start = life_for(self.space, self.rules, self.trials, point)
        self.life = EngineLife(start=start, number=self.lives)

    def _measure(self, point: Point) -> None:
        trial = self.machine(point)
        if trial.numbers is not None and trial.numbers.tokens_per_s is not None:
            by = float(np.exp(self._random.normal(0, 0.01)))
            tokens = trial.numbers.tokens_per_s * by
            trial = replace(trial, numbers=replace(trial.numbers, tokens_per_s=tokens))
        trial = replace(trial, record=replace(trial.record, life=self.lives))
        self.trials = numbered([*self.trials, trial])

    @property
    def order(self) -> list[int]:
        return [value(each.point) for each in self.trials]

    @property
    def counts(self) -> Counter[int]:
        return Counter(self.order)


def test_the_present_setting_is_first_and_last_and_in_between() -> None:
    tuner = Tuner(LINE).go_on()

    places = [n for n, each in enumerate(tuner.order) if each == 8]

    assert places[0] == 0
    assert places[-1] == len(tuner.order) - 1
    assert max(after - before for before, after in pairwise(places)) <= 4


def test_each_setting_is_measured_once_before_any_other_is_twice() -> None:
    order = Tuner(LINE).go_on().order

    others = [each for each in order if each != 8]

    assert len(set(others[:6])) == 6


def test_the_best_is_found_and_gets_the_repeats() -> None:
    tuner = Tuner(LINE).go_on()

    found = {value(e.point): e for e in standings(LINE, RULES, tuner.trials)}

    assert found[16].is_best
    assert tuner.counts[16] >= 3
    assert tuner.counts[8] >= 3
    assert tuner.counts[128] == tuner.counts[2] == 1
    assert sum(tuner.counts.values()) < 5 * 7 / 1.5


def test_the_same_trials_have_the_same_next_whoever_asks() -> None:
    tuner = Tuner(LINE).go_on()

    for n, trial in enumerate(tuner.trials):
        life = tuner.life if n else None
        told = next_trial(LINE, RULES, tuner.trials[:n], life)
        assert told is not None
        assert told.point == trial.point


def test_another_seed_has_another_order() -> None:
    orders = {
        tuple(Tuner(LINE, rules=replace(RULES, seed=n)).go_on(7).order)
        for n in range(9)
    }

    assert len(orders) > 5


def test_what_does_not_start_is_tried_once_and_what_fails_twice() -> None:
    def breaking(point: Point) -> Trial:
        if value(point) == 128:
            return not_measured(point, TrialOutcome.NOT_STARTED, "out of memory")
        if value(point) == 64:
            return not_measured(point, TrialOutcome.FAILED, "the engine died")
        return peaked(point)

    counts = Tuner(LINE, breaking).go_on().counts

    assert counts[128] == 1
    assert counts[64] == 2


def test_it_ends_where_nothing_runs() -> None:
    def broken(point: Point) -> Trial:
        return not_measured(point, TrialOutcome.FAILED, "the engine died")

    assert set(Tuner(LINE, broken).go_on().counts.values()) == {2}


def test_it_ends_where_nothing_has_a_score() -> None:
    counts = Tuner(LINE, lambda point: measured(point, None)).go_on().counts

    assert set(counts.values()) == {2}


def test_it_ends_where_all_are_in_doubt() -> None:
    def doubted(point: Point) -> Trial:
        return measured(point, 100.0, "the client was the bottleneck")

    assert max(Tuner(LINE, doubted).go_on().counts.values()) < 20


def test_a_score_of_nothing_next_to_a_noisy_best_is_no_trouble() -> None:
    """16 answers some in time, at most; 32 nobody, and nobody can tell them apart."""
    random = np.random.default_rng(2)

    def hardly(point: Point) -> Trial:
        by = float(random.uniform(0.01, 10)) if value(point) == 16 else 0.0
        return measured(point, by)

    assert max(Tuner(LINE, hardly).go_on().counts.values()) < 30


def test_what_is_equal_is_repeated_no_more_than_asked() -> None:
    tuner = Tuner(LINE, lambda point: measured(point, 100.0)).go_on()

    others = [n for at, n in tuner.counts.items() if at != 8]

    assert max(others) <= RULES.repeats


def test_live_limits_need_one_engine_that_starts_with_the_largest() -> None:
    tuner = Tuner(LINE).go_on()

    assert tuner.lives == 1
    assert tuner.life is not None
    assert value(tuner.life.start) == 128


def two_flags() -> Space:
    variables = (
        Variable(flag=SEQS, values=("8", "16", "32")),
        Variable(flag="dtype", values=("float16", "bfloat16", "float32")),
    )
    present = Point(flags=((SEQS, "16"), ("dtype", "bfloat16")))
    return Space(variables=variables, present=present)


def test_settings_of_one_start_are_measured_together() -> None:
    """All 9 once, in 3 lives: no engine is left while it reaches what is wanted."""
    tuner = Tuner(two_flags(), rules=replace(RULES, start_s=300)).go_on(9)

    lives = [number for number, _ in groupby(e.record.life for e in tuner.trials)]

    assert lives == [1, 2, 3]
    assert len({each.point for each in tuner.trials}) == 9


def test_each_life_that_reaches_the_present_setting_measures_it() -> None:
    tuner = Tuner(two_flags()).go_on()
    present = tuner.space.present

    for _, trials in groupby(tuner.trials, key=lambda each: each.record.life):
        points = [each.point for each in trials]
        if points[0].restart_flags == present.restart_flags:
            assert present in points


@pytest.mark.parametrize("start_s", [10.0, 600.0], ids=["fast", "slow"])
def test_the_present_setting_gets_engines_of_its_own_now_and_then(
    start_s: float,
) -> None:
    values = tuple(str(n) for n in range(12))
    variable = Variable(flag="seed", values=values)
    space = Space(variables=(variable,), present=Point(flags=(("seed", "0"),)))
    rules = replace(RULES, start_s=start_s)

    def flat(point: Point) -> Trial:
        return measured(point, 100.0)

    tuner = Tuner(space, flat, rules).go_on(14)
    places = [n for n, each in enumerate(tuner.trials) if each.point == space.present]

    assert 3 <= len(places) <= 4
    assert max(after - before for before, after in pairwise(places)) <= 5


def test_what_did_not_start_with_the_largest_starts_with_less() -> None:
    broken = not_measured(seqs(128), TrialOutcome.NOT_STARTED, "out of memory")

    start = life_for(LINE, RULES, (broken,), seqs(4))

    assert value(start) == 64


def test_a_life_starts_with_the_largest_of_each_limit() -> None:
    flags = (SEQS, "max-num-batched-tokens")
    variables = (
        Variable(flag=flags[0], values=("8", "16")),
        Variable(flag=flags[1], values=("512", "2048")),
    )
    present = Point(flags=((flags[0], "256"), (flags[1], "1024")))
    space = Space(variables=variables, present=present)

    start = life_for(space, RULES, (), space.points[1])
    failed = not_measured(start, TrialOutcome.NOT_STARTED, "out of memory")
    less = life_for(space, RULES, (failed,), space.points[1])

    assert dict(start.flags) == {flags[0]: "256", flags[1]: "2048"}
    assert dict(less.flags) == {flags[0]: "16", flags[1]: "2048"}


def test_of_somebody_elses_engine_only_what_it_reaches_is_measured() -> None:
    life = EngineLife(start=seqs(16), number=1)
    space = space_of_seqs(2, 4, 8, 16, 32, 64, present=16)
    rules = replace(RULES, can_restart=False)

    tuner = Tuner(space, rules=rules, life=life).go_on()

    assert set(tuner.counts) == {2, 4, 8, 16}
    assert tuner.lives == 1


def test_what_was_left_out_is_not_measured() -> None:
    out = not_measured(seqs(128), TrialOutcome.LEFT_OUT, "cannot win")
    tuner = Tuner(LINE)
    tuner.trials = (out,)

    assert tuner.go_on().counts[128] == 1


def test_what_was_left_out_is_measured_after_all_next_to_the_best() -> None:
    out = not_measured(seqs(32), TrialOutcome.LEFT_OUT, "cannot win")
    tuner = Tuner(LINE)
    tuner.trials = (out,)

    assert tuner.go_on().counts[32] >= 3


@pytest.mark.parametrize("left_s", [240.0, 600.0, 1200.0])
def test_it_ends_in_time_and_keeps_the_last_trials_for_the_leaders(
    left_s: float,
) -> None:
    tuner = Tuner(LINE, rules=replace(RULES, trial_s=60, start_s=60))
    spent_s = 0.0
    while True:
        tuner.rules = replace(tuner.rules, left_s=left_s - spent_s)
        before = tuner.lives, len(tuner.trials)
        tuner.go_on(1)
        if len(tuner.trials) == before[1]:
            break
        spent_s += 60 + 60 * (tuner.lives - before[0])

    assert spent_s <= left_s
    if left_s == 600:
        assert set(tuner.order[-3:]) == {8, 16, 32}


def test_what_is_left_is_about_what_comes() -> None:
    tuner = Tuner(LINE)
    told = [trials_left(LINE, RULES, (), None)]
    for _ in range(200):
        before = len(tuner.trials)
        tuner.go_on(1)
        if len(tuner.trials) == before:
            break
        told.append(trials_left(LINE, RULES, tuner.trials, tuner.life))

    assert told[0][1] == 1
    assert told[0][0] == pytest.approx(len(tuner.trials), rel=0.75)
    assert told[-1][0] <= 3
    assert all(starts == 0 for _, starts in told[1:])


@pytest.mark.parametrize(
    "world",
    [
        pytest.param(World(surface=peak, sizes=(8,)), marks=pytest.mark.soak),
        pytest.param(
            World(surface=plateau, sizes=(8,), noise=0.10), marks=pytest.mark.soak
        ),
        pytest.param(
            World(surface=twins, sizes=(5,), tails=True), marks=pytest.mark.soak
        ),
        World(surface=cliff, sizes=(4, 3)),
        World(surface=flat, sizes=(5,), drift=0.0, noise=0.02),
    ],
    ids=["peak", "plateau, noisy", "twins, heavy tails", "cliff", "flat"],
)
def test_it_is_right_and_never_sure_of_what_is_wrong(world: World) -> None:
    """Few of each; the benchmark has many."""
    found = [tune(world, seed) for seed in range(30)]

    assert sum(each.right for each in found) >= 29
    assert sum(each.wrong for each in found) <= 4
    assert sum(each.share for each in found) / 30 < 0.65


def test_a_limit_that_the_engine_chooses_is_had_by_a_start_alone() -> None:
    life = EngineLife(start=seqs(64), number=1)

    assert not life.reaches(Point(flags=((SEQS, "default"),)))
    assert EngineLife(start=Point(flags=((SEQS, "default"),))).reaches(
        Point(flags=((SEQS, "default"),))
    )
