"""What is not measured, by the recorded session of a real vLLM."""

import lzma
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from inferwatch import sample
from inferwatch.metrics.requests.slo import parse_slo
from inferwatch.metrics.series.intervals import Estimate
from inferwatch.record.sessions.sessions import list_sessions
from inferwatch.studies.tune.plan import Goal
from inferwatch.studies.tune.search.pruning import LeftOut, cannot_win, run_of_trial
from inferwatch.studies.tune.search.standings import SearchRules
from inferwatch.studies.tune.space import Point, Space, Variable
from inferwatch.studies.tune.trial import Trial, TrialNumbers
from inferwatch.studies.what_if.outcome import measured_outcome
from inferwatch.studies.what_if.recorded import RecordedRun
from tests.inferwatch.studies.tune.scripted_trials import measured, numbered

SEQS, TOKENS = "max-num-seqs", "max-num-batched-tokens"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample: real vLLM on a CPU, 32 sequences and 512 tokens at most."""
    path = tmp_path_factory.mktemp("sample") / "sample.db"
    path.write_bytes(lzma.decompress((files(sample) / sample.PACKED).read_bytes()))
    return path


@pytest.fixture(scope="module")
def base(database: Path) -> Trial:
    """The trial whose session that is."""
    (row,) = list_sessions(database)
    trial = numbered([measured(point(32), 0.0)])[0]
    trial = replace(trial, record=replace(trial.record, session=row.id))
    run = run_of_trial(database, trial)
    assert run is not None
    was = measured_outcome(run)
    ttft = Estimate(quantiles=was.latencies["ttft_s"])
    numbers = TrialNumbers(
        requests=was.requests,
        tokens_per_s=was.output_tokens_per_s,
        requests_per_s=was.requests_per_s,
        goodput_per_s=was.requests_per_s,
        latencies={"ttft_s": ttft},
    )
    return replace(trial, numbers=numbers)


@pytest.fixture(scope="module")
def run(database: Path, base: Trial) -> RecordedRun:
    found = run_of_trial(database, base)
    assert found is not None
    return found


def point(seqs: int, dtype: str | None = None) -> Point:
    more = () if dtype is None else (("dtype", dtype),)
    return Point(flags=((SEQS, str(seqs)), *more))


def space(*values: int) -> Space:
    variable = Variable(flag=SEQS, values=tuple(str(each) for each in values))
    return Space(variables=(variable,), present=point(32))


def left_out(
    base: Trial,
    run: RecordedRun,
    goal: Goal = Goal.TOKENS,
    others: Sequence[Trial] = (),
    slo: str | None = None,
) -> dict[int, str]:
    found: tuple[LeftOut, ...] = cannot_win(
        space(2, 4, 8, 32, 64),
        SearchRules(goal=goal),
        numbered([base, *others]),
        base,
        run,
        parse_slo(slo) if slo else None,
    )
    return {int(each.point.value(SEQS) or 0): each.cause for each in found}


def test_what_cannot_win_is_left_out_with_its_sentence(
    base: Trial, run: RecordedRun
) -> None:
    found = left_out(base, run)

    assert set(found) == {2, 4}
    assert found[2] == "predicted 377 tokens/s ± 56.5, the best measured 1,151"


def test_what_is_near_is_not_left_out(base: Trial, run: RecordedRun) -> None:
    """8 sequences would make 1,102 tokens/s, and 1,151 were measured."""
    assert 8 not in left_out(base, run)


def test_neighbours_of_the_best_are_never_left_out(
    base: Trial, run: RecordedRun
) -> None:
    best = measured(point(4), 5_000.0)

    found = left_out(base, run, others=[best])

    assert set(found) == {64}


@pytest.mark.soak
def test_the_error_is_counted_threefold(base: Trial, run: RecordedRun) -> None:
    """8 sequences would make 1,102 tokens/s: with 5% 1,157, with 15% 1,268."""
    above_once = left_out(base, run, others=[measured(point(64), 1_210.0)])
    above_thrice = left_out(base, run, others=[measured(point(64), 1_300.0)])

    assert 8 not in above_once
    assert 8 in above_thrice


def test_latencies_are_left_out_by_their_p99(base: Trial, run: RecordedRun) -> None:
    found = left_out(base, run, Goal.LATENCY)

    assert 2 in found
    assert found[2].startswith("predicted TTFT p99 ")
    assert not {32, 64} & set(found)


@pytest.mark.soak
def test_a_goodput_has_a_bound_where_the_median_breaks_an_objective(
    base: Trial, run: RecordedRun
) -> None:
    found = left_out(base, run, Goal.GOODPUT, slo="ttft_s<2")

    assert 2 in found
    assert "at most" in found[2]
    assert not {8, 32, 64} & set(found)
    assert not left_out(base, run, Goal.GOODPUT, slo="ttft_s<1000")


def test_of_a_knee_or_a_cost_the_model_tells_nothing(
    base: Trial, run: RecordedRun
) -> None:
    assert base.numbers is not None
    numbers = replace(base.numbers, knee_per_s=5.0, cost=1.0)

    for goal in (Goal.KNEE, Goal.COST):
        assert not left_out(replace(base, numbers=numbers), run, goal)


def test_other_flags_are_not_the_models_to_judge(base: Trial, run: RecordedRun) -> None:
    variables = (
        Variable(flag=SEQS, values=("2", "8", "32")),
        Variable(flag="dtype", values=("float16", "float32")),
    )
    asked = Space(variables=variables, present=point(32, "float16"))
    own = replace(base, record=replace(base.record, point=point(32, "float16")))

    found = cannot_win(asked, SearchRules(goal=Goal.TOKENS), (own,), own, run)

    assert {e.point for e in found} == {point(2, "float16")}


def test_a_session_of_other_limits_tells_nothing(base: Trial, run: RecordedRun) -> None:
    """As where they were turned, and the session says what they were at start."""
    turned = replace(base, record=replace(base.record, point=point(16)))

    assert not left_out(turned, run)


def test_a_doubted_trial_tells_nothing(base: Trial, run: RecordedRun) -> None:
    assert base.numbers is not None
    numbers = replace(base.numbers, doubts=("the client was the bottleneck",))

    assert not left_out(replace(base, numbers=numbers), run)


def test_a_trial_without_a_session_tells_nothing(database: Path) -> None:
    assert run_of_trial(database, measured(point(32), 1.0)) is None
