"""What a tune came to: every setting with its interval, the best, and how sure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from inferwatch.studies.tune.answers import AnswerComparison, answers_by_point
from inferwatch.studies.tune.goal import Goal
from inferwatch.studies.tune.plan import TunePlan
from inferwatch.studies.tune.result.command import flags_line, inferwatch_command
from inferwatch.studies.tune.result.consequences import (
    QUANTITIES,
    TPOT,
    TTFT,
    Quantity,
    binds_of,
    costs_of,
    standings_by,
)
from inferwatch.studies.tune.result.verdict import verdict_of
from inferwatch.studies.tune.search.rules import SearchRules
from inferwatch.studies.tune.search.standings import Standing, standings
from inferwatch.studies.tune.space import Point, Space
from inferwatch.studies.tune.trial import Trial, TrialOutcome

UNSCORED = {
    Goal.GOODPUT: "no objectives were given, so nothing is good or bad (--slo)",
    Goal.TOKENS: "no request was answered",
    Goal.LATENCY: "no request was answered",
    Goal.COST: "no request was good, or there is no price (--gpu-hour)",
    Goal.KNEE: "no rate that was tried met the objectives",
}
"""Why a setting that was measured has no score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointResult:
    """One setting, over all its trials."""

    point: Point
    outcome: TrialOutcome
    cause: str | None = None
    trials: int = 0
    score: float | None = None
    """By the goal, in its unit."""
    span: tuple[float, float] | None = None
    """95%."""
    against_present: tuple[float, float] | None = None
    """95% of the ratio to the present setting, paired by order of measurement."""
    tokens_per_s: float | None = None
    tokens_per_s_span: tuple[float, float] | None = None
    ttft_p99_s: float | None = None
    ttft_p99_s_span: tuple[float, float] | None = None
    tpot_p99_s: float | None = None
    tpot_p99_s_span: tuple[float, float] | None = None
    good_share: float | None = None
    on_frontier: bool = False
    """No other has both more tokens/s and a lower TTFT p99."""
    on_tpot_frontier: bool = False
    """The same of TPOT p99."""
    scenario: str | None = None
    """What its latest run of a stress scenario means."""
    answers: str | None = None
    """How its answers compare with the present's, where that was asked."""
    like_best: bool = False
    """Not told apart from the best."""
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """All settings, the best first; those that did not run last."""

    points: tuple[PointResult, ...]
    best: PointResult | None
    """None before one was measured."""
    present: PointResult | None
    verdict: str
    """``better than the present by 18-26% (paired, 5 repeats); not told apart from
    max-num-seqs 48``."""
    binds: str | None = None
    """What binds at the best setting."""
    costs: tuple[str, ...] = ()
    """What the best setting costs elsewhere: memory, TTFT."""
    command: str | None = None
    """A command line to paste."""


def scenario_lines(result: TuneResult) -> list[str]:
    """What each setting's runs of a stress scenario mean."""
    return [
        f"{each.point.text}: {each.scenario}."
        for each in result.points
        if each.scenario is not None
    ]


def result_of(
    space: Space,
    rules: SearchRules,
    trials: Sequence[Trial],
    plan: TunePlan | None = None,
) -> TuneResult:
    """What can be said so far; the plan tells of the load and of the command."""
    found = standings(space, rules, trials)
    beside = _Beside.of(space, rules, trials, found)
    results = [_of_point(each, rules, trials, beside) for each in found]
    best = next((each.point for each in found if each.is_best), None)
    points = _in_order(_with_frontiers(results), best, rules.goal)
    by_point = {each.point: each for each in points}
    return TuneResult(
        points=points,
        best=by_point[best] if best is not None else None,
        present=by_point.get(space.present),
        verdict=verdict_of(space, rules, found, plan),
        binds=binds_of(space, trials, best) if best is not None else None,
        costs=(
            *_other_answers(best, beside.answers),
            *beside.costs(rules, best, space.present),
        ),
        command=_command(best, plan),
    )


def _other_answers(
    best: Point | None, answers: Mapping[Point, AnswerComparison]
) -> tuple[str, ...]:
    """What weighs more than any latency."""
    found = answers.get(best) if best is not None else None
    if found is None or not found.differs:
        return ()
    return (f"other answers ({found.sentence})",)


def _command(best: Point | None, plan: TunePlan | None) -> str | None:
    if best is None or plan is None:
        return None
    return inferwatch_command(best, plan) or flags_line(best)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    """How settings stand in what is shown of them besides the goal."""

    tokens: Mapping[Point, Standing]
    quantities: Mapping[Quantity, Mapping[Point, Standing]]
    answers: Mapping[Point, AnswerComparison]

    @classmethod
    def of(
        cls,
        space: Space,
        rules: SearchRules,
        trials: Sequence[Trial],
        found: Sequence[Standing],
    ) -> "_Beside":
        """What the goal itself ranks by was ``found`` already."""

        def by(goal: Goal) -> Sequence[Standing]:
            same = goal is rules.goal
            return (
                found if same else standings(space, replace(rules, goal=goal), trials)
            )

        each = {
            quantity: by(quantity.goal)
            if quantity.goal is not None
            else standings_by(quantity, space, rules, trials)
            for quantity in QUANTITIES
        }
        return cls(
            tokens={standing.point: standing for standing in by(Goal.TOKENS)},
            quantities={
                quantity: {standing.point: standing for standing in every}
                for quantity, every in each.items()
            },
            answers=answers_by_point(space, trials),
        )

    def costs(
        self, rules: SearchRules, best: Point | None, present: Point
    ) -> tuple[str, ...]:
        """What the best costs; nothing while there is none."""
        if best is None:
            return ()
        return costs_of(self.quantities, rules, best, present)


def _of_point(
    standing: Standing, rules: SearchRules, trials: Sequence[Trial], beside: _Beside
) -> PointResult:
    point = standing.point
    own = [each for each in trials if each.point == point]
    odd = [e for e in own if e.record.outcome is not TrialOutcome.MEASURED]
    shares = [e.numbers.good_share for e in own if e.numbers is not None]
    known = [each for each in shares if each is not None]
    tokens, ttft, tpot = (
        each[point]
        for each in (beside.tokens, beside.quantities[TTFT], beside.quantities[TPOT])
    )
    answers = beside.answers.get(point)
    outcome, cause = TrialOutcome.MEASURED, None
    if standing.score is None and odd:
        outcome, cause = odd[-1].record.outcome, odd[-1].record.cause
    elif standing.score is None and own:
        cause = UNSCORED[rules.goal]
    return PointResult(
        point=point,
        outcome=outcome,
        cause=cause,
        trials=standing.trials,
        score=standing.score,
        span=standing.span,
        against_present=standing.against_present,
        tokens_per_s=tokens.score,
        tokens_per_s_span=tokens.span,
        ttft_p99_s=ttft.score,
        ttft_p99_s_span=ttft.span,
        tpot_p99_s=tpot.score,
        tpot_p99_s_span=tpot.span,
        good_share=fmean(known) if known else None,
        scenario=_scenario(own),
        answers=answers.sentence if answers is not None else None,
        like_best=standing.like_best,
        doubts=(*standing.doubts, *(_failure(e) for e in odd if standing.trials)),
    )


def _scenario(trials: Sequence[Trial]) -> str | None:
    told = [each.numbers.scenario for each in trials if each.numbers is not None]
    return next((each for each in reversed(told) if each is not None), None)


def _failure(trial: Trial) -> str:
    """Of a setting that was measured at other times."""
    why = f": {trial.record.cause}" if trial.record.cause else ""
    return f"trial {trial.record.number} {trial.record.outcome}{why}"


def _with_frontiers(results: Sequence[PointResult]) -> list[PointResult]:
    """By what was measured, not by its intervals: those are drawn."""
    return [
        replace(
            each,
            on_frontier=_leads(each, results, lambda e: e.ttft_p99_s),
            on_tpot_frontier=_leads(each, results, lambda e: e.tpot_p99_s),
        )
        for each in results
    ]


def _leads(
    one: PointResult,
    results: Sequence[PointResult],
    latency: Callable[[PointResult], float | None],
) -> bool:
    here, tokens = latency(one), one.tokens_per_s
    if here is None or tokens is None:
        return False
    return not any(
        there <= here and more >= tokens and (there, more) != (here, tokens)
        for each in results
        if (there := latency(each)) is not None
        and (more := each.tokens_per_s) is not None
    )


def _in_order(
    results: Sequence[PointResult], best: Point | None, goal: Goal
) -> tuple[PointResult, ...]:
    """The best, what else has a score, and the others in the order given."""
    sign = 1 if goal.lower_is_better else -1
    scored = [each for each in results if each.score is not None]
    scored.sort(key=lambda each: (each.point != best, sign * (each.score or 0.0)))
    return (*scored, *(each for each in results if each.score is None))
