"""What a tune came to: sentences and points of simulated trials."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from collectors.contract.readings import AnswerHashes, BoundBy
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.metrics.series.intervals import Estimate
from inferwatch.metrics.series.window import Quantiles
from inferwatch.studies.tune.plan import Goal, TunePlan
from inferwatch.studies.tune.result.printed import ANSWERS, tune_text
from inferwatch.studies.tune.result.tune_result import TuneResult, result_of
from inferwatch.studies.tune.search.standings import SearchRules
from inferwatch.studies.tune.space import Point, Space, Variable, space_of
from inferwatch.studies.tune.trial import Trial, TrialOutcome
from tests.inferwatch.studies.tune.scripted_trials import (
    measured,
    not_measured,
    numbered,
    of_scores,
    seqs,
    space_of_seqs,
)

TOKENS = SearchRules(goal=Goal.TOKENS)
SPACE = space_of_seqs(8, 16, 32, 48, present=8)
CLEAR = {8: 1000.0, 16: 1100.0, 32: 1230.0, 48: 1222.0}


def plan_of(goal: Goal = Goal.TOKENS, **asked: object) -> TunePlan:
    load = LoadPlan(
        run_id="r", url="http://x", model="m", rate_per_s=20.0, slo="ttft_s<0.5"
    )
    known: dict[str, object] = {
        "tune_id": "t1",
        "model": "Qwen/Qwen3-8B",
        "vary": (("max-num-seqs", ("8", "16", "32", "48")),),
        "goal": goal,
        "load": load,
    }
    return TunePlan(**(known | asked))  # type: ignore[arg-type]


def rounds(
    true: Mapping[int, float], repeats: int, spread: float = 0.01
) -> list[Trial]:
    """Each setting once a round, with a little noise."""
    chance = random.Random(1)
    scores = [
        (value, tokens * chance.gauss(1, spread))
        for _ in range(repeats)
        for value, tokens in true.items()
    ]
    return list(of_scores(*scores))


def told(trial: Trial, **numbers: object) -> Trial:
    """The same trial, with more numbers."""
    assert trial.numbers is not None
    return replace(trial, numbers=replace(trial.numbers, **numbers))  # type: ignore[arg-type]


def latency(p99_s: float) -> Estimate:
    return Estimate(quantiles=Quantiles(n=500, p99=p99_s))


def verdict(space: Space, trials: Sequence[Trial], goal: Goal = Goal.TOKENS) -> str:
    rules = SearchRules(goal=goal)
    return result_of(space, rules, trials, plan_of(goal)).verdict


# The sentence.


def test_a_better_setting_is_better_by_its_interval() -> None:
    assert verdict(SPACE, rounds(CLEAR, 5)) == (
        "Take max-num-seqs 32: better than the present (8) by 21–24% (paired, 5 "
        "repeats) in "
        "output tokens/s at 20 requests/s; not told apart from max-num-seqs 48"
    )


def test_the_present_may_be_the_best() -> None:
    space = space_of_seqs(8, 16, 32, present=32)
    true = {8: 1000.0, 16: 1100.0, 32: 1200.0}

    assert verdict(space, rounds(true, 4)) == (
        "Keep max-num-seqs 32: the present setting is the best in output tokens/s at "
        "20 requests/s"
    )


def test_of_the_present_one_repeat_says_no_more() -> None:
    space = space_of_seqs(8, 16, present=16)

    assert verdict(space, rounds({8: 1000.0, 16: 1200.0}, 1)) == (
        "Keep max-num-seqs 16: the present setting is the best in output tokens/s at "
        "20 requests/s, but with only 1 repeat nobody can tell how sure that is"
    )
    assert verdict(space, rounds({16: 1200.0}, 3)) == (
        "only the present setting (16) has a number"
    )


def test_one_repeat_says_nothing_of_how_sure_it_is() -> None:
    assert verdict(SPACE, rounds(CLEAR, 1)) == (
        "Measure again max-num-seqs 32: 22% better than the present (8) in output "
        "tokens/s at "
        "20 requests/s, but with only 1 repeat nobody can tell how sure that is"
    )


def test_a_present_setting_that_does_nothing_is_told_by_both_scores() -> None:
    space = space_of_seqs(8, 16, present=8)

    assert verdict(space, rounds({8: 0.0, 16: 1200.0}, 3)) == (
        "Take max-num-seqs 16: 1,204 tokens/s, where the present (8) has 0.00 tokens/s "
        "(paired, 3 repeats) in output tokens/s at 20 requests/s"
    )
    assert verdict(space, rounds({8: 0.0, 16: 1200.0}, 1)).endswith(
        "has 0.00 tokens/s in output tokens/s at 20 requests/s, but with only 1 repeat "
        "nobody can tell how sure that is"
    )


def test_where_noise_is_more_than_the_difference_nothing_was_told() -> None:
    said = verdict(SPACE, rounds(dict.fromkeys(CLEAR, 1000.0), 3, spread=0.1))

    assert "measured best, but is not told apart from the present (8): between " in said
    assert said.endswith("; none of the 4 settings measured can be told apart")


def test_what_differs_less_than_matters_is_the_same() -> None:
    said = verdict(SPACE, rounds(dict.fromkeys(CLEAR, 1000.0), 8, spread=0.002))

    assert said.endswith("; all 4 settings are within 2% of each other")


def test_of_what_is_to_be_low_lower_is_better() -> None:
    trials = [
        told(each, latencies={"ttft_s": latency(500 / (each.score(Goal.TOKENS) or 1))})
        for each in rounds(CLEAR, 5)
        if each.numbers
    ]

    assert verdict(SPACE, trials, Goal.LATENCY).startswith(
        "Take max-num-seqs 32: better than the present (8) by 17–19% (paired, 5 "
        "repeats) in "
        "TTFT p99 at 20 requests/s"
    )


def test_many_times_as_much_is_no_percentage() -> None:
    true = {8: 100.0, 16: 1000.0, 32: 1020.0}

    said = verdict(space_of_seqs(8, 16, 32, present=8), rounds(true, 5))

    assert "9.9 to 10.4 times as good as the present (8) (paired" in said


def test_a_present_that_did_not_start_has_no_number() -> None:
    trials = numbered(
        [
            not_measured(seqs(8), TrialOutcome.NOT_STARTED, "out of memory"),
            measured(seqs(16), 1000.0),
            measured(seqs(32), 1200.0),
        ]
    )

    assert verdict(SPACE, trials) == (
        "Take max-num-seqs 32: the best in output tokens/s at 20 requests/s; the "
        "present "
        "setting has no number (did not start: out of memory)"
    )


def test_a_doubt_about_the_best_is_in_the_sentence() -> None:
    trials = [
        told(each, doubts=("the client was too slow",))
        if each.point == seqs(32)
        else each
        for each in rounds({8: 1000.0, 16: 1050.0, 32: 1220.0}, 3)
    ]

    said = verdict(space_of_seqs(8, 16, 32, present=8), trials)

    assert said.endswith("; but doubtful: the client was too slow")


def test_where_no_request_is_good_no_setting_is_the_best() -> None:
    trials = [told(e, goodput_per_s=0.001) for e in rounds(CLEAR, 3) if e.numbers]

    assert verdict(SPACE, trials, Goal.GOODPUT) == (
        "No setting will do: hardly a request was good (ttft_s<0.5) at 20 requests/s; "
        "send less"
    )
    plan = plan_of(Goal.GOODPUT, url=None)
    found = result_of(SPACE, SearchRules(goal=Goal.GOODPUT), trials, plan)
    assert found.is_measured
    assert (found.best, found.command, found.binds, found.costs) == (None,) * 3 + ((),)
    text = tune_text(found, plan)
    assert "★" not in text
    assert "--max-num-seqs" not in text


def test_a_tune_of_the_demo_goes_on_in_the_demo() -> None:
    plan = plan_of(model="demo", engine_flags=("--seed", "1"))
    found = result_of(SPACE, TOKENS, rounds(CLEAR, 3), plan)

    assert found.command == "inferwatch demo -- --seed 1 --max-num-seqs=32"
    assert tune_text(found, plan).endswith(
        "To go on with the setting that measured best:\n"
        "  inferwatch demo -- --seed 1 --max-num-seqs=32"
    )


def test_what_it_costs_is_in_the_sentence() -> None:
    trials = [
        told(e, latencies={"tpot_s": latency((e.score(Goal.TOKENS) or 0) / 1e4)})
        for e in rounds(CLEAR, 5)
        if e.numbers
    ]

    assert "; at the cost of TPOT p99; " in verdict(SPACE, trials)


def test_nothing_measured_is_said() -> None:
    failed = not_measured(seqs(8), TrialOutcome.NOT_STARTED, "no such model")

    assert verdict(SPACE, []) == "nothing has been measured yet"
    assert verdict(SPACE, [failed]) == "no setting could be measured"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"goal": Goal.GOODPUT}, "goodput (ttft_s<0.5) at 20 requests/s"),
        (
            {"goal": Goal.KNEE},
            "the highest rate that meets ttft_s<0.5 for 95% of requests",
        ),
        ({"like": "production"}, "output tokens/s at the requests of production"),
    ],
)
def test_the_goal_is_named_with_its_load(asked: dict[str, object], said: str) -> None:
    plan = plan_of(**asked)  # type: ignore[arg-type]
    trials = [
        told(e, goodput_per_s=e.numbers.tokens_per_s, knee_per_s=e.numbers.tokens_per_s)
        for e in rounds(CLEAR, 3)
        if e.numbers
    ]

    found = result_of(SPACE, SearchRules(goal=plan.goal), trials, plan)

    assert f" in {said}; not told" in found.verdict


# The points.


def test_the_best_comes_first_and_what_did_not_run_last() -> None:
    space = space_of_seqs(8, 16, 32, 64, 128, present=8)
    cause = "the what-if model says that it cannot win"
    trials = numbered(
        [
            *rounds({8: 1000.0, 16: 1100.0, 32: 1200.0}, 2),
            not_measured(seqs(64), TrialOutcome.NOT_STARTED, "out of memory"),
            not_measured(seqs(128), TrialOutcome.LEFT_OUT, cause),
        ]
    )

    found = result_of(space, TOKENS, trials)

    assert [each.point.text for each in found.points] == [
        f"max-num-seqs {value}" for value in (32, 16, 8, 64, 128)
    ]
    assert found.best == found.points[0]
    assert found.present == found.points[2]
    assert [(each.outcome, each.cause) for each in found.points[3:]] == [
        (TrialOutcome.NOT_STARTED, "out of memory"),
        (TrialOutcome.LEFT_OUT, cause),
    ]


def test_a_setting_that_keeps_failing_is_not_the_best_however_fast() -> None:
    died = [not_measured(seqs(48), TrialOutcome.FAILED, "the engine died")] * 2
    trials = numbered([*rounds(CLEAR | {48: 2000.0}, 2), *died])

    found = result_of(SPACE, TOKENS, trials)

    assert found.points[0] == found.best
    assert [each.point for each in found.points] == [*map(seqs, (32, 48, 16, 8))]
    assert found.points[1].doubts == (
        "trial 9 failed: the engine died",
        "trial 10 failed: the engine died",
    )


def test_the_frontier_is_what_no_other_beats_in_both() -> None:
    ttfts = {8: 0.3, 16: 0.2, 32: 0.4, 48: 0.5}
    trials = [
        told(each, latencies={"ttft_s": latency(ttfts[int(each.point.flags[0][1])])})
        for each in rounds({8: 1000.0, 16: 1100.0, 32: 1300.0, 48: 1200.0}, 3)
    ]

    found = {each.point: each for each in result_of(SPACE, TOKENS, trials).points}

    leading = [p for p, each in found.items() if each.on_frontier]
    assert leading == [seqs(32), seqs(16)]
    assert found[seqs(8)].ttft_p99_s == pytest.approx(0.3, rel=1e-3)
    assert found[seqs(8)].ttft_p99_s_span is not None


def test_a_trial_that_failed_beside_others_is_a_doubt() -> None:
    trials = numbered(
        [
            *rounds(CLEAR, 2),
            not_measured(seqs(16), TrialOutcome.FAILED, "the engine died"),
        ]
    )

    found = {each.point: each for each in result_of(SPACE, TOKENS, trials).points}

    assert found[seqs(16)].doubts == ("trial 9 failed: the engine died",)
    assert found[seqs(16)].outcome is TrialOutcome.MEASURED


def test_without_a_score_the_reason_is_told() -> None:
    found = result_of(SPACE, SearchRules(goal=Goal.KNEE), rounds(CLEAR, 1))

    assert {each.cause for each in found.points} == {
        "no rate that was tried met the objectives"
    }


# What follows from it.


def test_what_binds_at_the_best_names_the_next_knob() -> None:
    def bound(**shares: float) -> TuneResult:
        trials = [told(each, bound_share=shares) for each in rounds(CLEAR, 2)]
        return result_of(SPACE, TOKENS, trials)

    assert bound(seqs=0.4, nothing=0.6).binds == (
        "max_num_seqs 32 kept requests waiting for 40% of the time in steps; more of "
        "it was tried, and was not shown to be better"
    )
    assert bound(tokens=0.4, nothing=0.6).binds == (
        "max_num_batched_tokens kept requests waiting for 40% of the time in steps; "
        "vary max-num-batched-tokens next"
    )
    assert (bound(kv=0.4, nothing=0.6).binds or "").startswith(
        "KV blocks kept requests waiting for 40% of the time in steps; more mem"
    )
    assert (bound(kv=0.01, nothing=0.99).binds or "").startswith(
        "requests were kept waiting for 1% of the time in steps: the engine has room"
    )
    assert bound().binds is None


def test_what_binds_at_the_most_that_was_tried() -> None:
    trials = [
        told(each, bound_share={BoundBy.SEQS: 0.5, BoundBy.NOTHING: 0.5})
        for each in rounds({8: 1000.0, 16: 1200.0, 32: 1300.0}, 3)
    ]

    found = result_of(space_of_seqs(8, 16, 32, present=8), TOKENS, trials)

    assert found.binds == (
        "max_num_seqs 32 kept requests waiting for 50% of the time in steps; it is the "
        "most that was tried: try more than 32 next"
    )


def test_only_shown_costs_are_told() -> None:
    chance = random.Random(2)

    def costly(trial: Trial) -> Trial:
        best = trial.point == seqs(32)
        return told(
            trial,
            latencies={
                "ttft_s": latency(0.4 if best else 0.3),
                "tpot_s": latency(chance.uniform(0.02, 0.03)),
            },
            memory_bytes=3_000_000_000 if best else 2_000_000_000,
        )

    trials = [costly(e) for e in rounds({8: 1000.0, 16: 1100.0, 32: 1300.0}, 4)]

    found = result_of(space_of_seqs(8, 16, 32, present=8), TOKENS, trials)

    assert found.costs == (
        "TTFT p99 +33 … +34% (400 ms instead of 300 ms)",
        "memory +49 … +51% (3.00 GB instead of 2.00 GB)",
    )


def test_other_answers_than_the_present_s_are_a_cost() -> None:
    def answered(trial: Trial) -> Trial:
        first = [1, 2, 9, 9] if trial.point == seqs(32) else [1, 2, 3, 4]
        each = [first, [5, 6, 7, 8]]
        told_of = AnswerHashes(
            t_ns=1, model="m", asked=7, by_tokens=True, alone=each, together=each
        )
        return told(trial, answers=told_of)

    trials = [answered(e) for e in rounds({8: 1000.0, 16: 1100.0, 32: 1300.0}, 2)]

    found = result_of(space_of_seqs(8, 16, 32, present=8), TOKENS, trials, plan_of())

    said = "75.0% of 8 tokens equal; 1 of 2 prompts differs, first at token 3; "
    assert found.costs[0].startswith(f"other answers ({said}")
    by_point = {each.point: each.answers for each in found.points}
    assert (by_point[seqs(32)] or "").startswith(said)
    assert (by_point[seqs(16)] or "").startswith("100% of 8 tokens equal; ")
    assert by_point[seqs(8)] is None
    text = tune_text(found, plan_of())
    assert f"{ANSWERS}\n  32: {said[:30]}" in text


def test_the_present_costs_nothing_more_than_itself() -> None:
    trials = [told(each, memory_bytes=1) for each in rounds({8: 1300.0, 16: 9.0}, 3)]

    assert result_of(space_of_seqs(8, 16, present=8), TOKENS, trials).costs == ()


def test_the_command_keeps_what_people_gave_and_doubles_nothing() -> None:
    flags = ("--max-num-seqs", "4", "--served-model-name", "my model", "--no-x")
    plan = plan_of(engine_flags=flags)

    found = result_of(SPACE, TOKENS, rounds(CLEAR, 2), plan)

    assert found.command == (
        "inferwatch serve Qwen/Qwen3-8B -- --served-model-name 'my model' --no-x "
        "--max-num-seqs=32"
    )


def test_of_a_server_of_others_only_the_flags_are_known() -> None:
    plan = plan_of(url="http://127.0.0.1:8000")

    found = result_of(SPACE, TOKENS, rounds(CLEAR, 2), plan)

    assert found.command == "--max-num-seqs=32"


def test_settings_of_two_flags_are_named_whole() -> None:
    variables = [
        Variable(flag="max-num-seqs", values=("8", "32")),
        Variable(flag="enable-prefix-caching", values=("on", "off")),
    ]
    flags = [("max-num-seqs", "8"), ("enable-prefix-caching", "on")]
    present = Point(flags=tuple(flags))
    space = space_of(variables, present)
    trials = numbered(
        measured(point, 1000.0 * (1.3 if point.value("max-num-seqs") == "32" else 1.0))
        for _ in range(3)
        for point in space.points
    )

    found = result_of(space, TOKENS, trials, plan_of())

    assert found.verdict.startswith(
        "Take max-num-seqs 32 · enable-prefix-caching on: better than the present (8 "
        "· on) "
    )
    words = "-- --max-num-seqs=32 --enable-prefix-caching"
    assert (found.command or "").endswith(words)
