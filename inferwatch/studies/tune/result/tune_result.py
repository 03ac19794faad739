"""The result of a tune: every setting with its interval, and the best one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from collectors.contract.readings import BoundBy
from inferwatch.formatting import bound_text, format_bytes, format_durations
from inferwatch.printing.command import command, quoted
from inferwatch.studies.answers.comparing import AnswerComparison, AnswerVerdict
from inferwatch.studies.compare.report import short_span
from inferwatch.studies.tune.answers import answers_by_point
from inferwatch.studies.tune.flags import plain_name
from inferwatch.studies.tune.plan import Goal, TunePlan
from inferwatch.studies.tune.result.verdict import none_good, verdict_of
from inferwatch.studies.tune.search.standings import (
    PointStanding,
    SearchRules,
    standings,
)
from inferwatch.studies.tune.space import Point, Space
from inferwatch.studies.tune.trial import Trial, TrialNumbers, TrialOutcome

DEMO = "demo"
"""Stands for the demo's model, which only ``inferwatch demo`` serves."""


def serve_words(point: Point, plan: TunePlan) -> list[str]:
    """The arguments after the model: the user's flags and those of the setting."""
    varied = {flag for flag, _ in point.flags}
    return [*without(plan.engine_flags, varied), *point.command_flags]


def vllm_command(point: Point, plan: TunePlan) -> str | None:
    """``vllm serve …``, quoted for a shell; None if others started the engine."""
    if plan.url is not None or plan.model == DEMO:
        return None
    return quoted("vllm", "serve", plan.model, *serve_words(point, plan))


def inferwatch_command(point: Point, plan: TunePlan) -> str | None:
    """``inferwatch serve … -- …`` or ``inferwatch demo -- …``, quoted for a shell.

    None if others started the engine.
    """
    if plan.url is not None:
        return None
    words = serve_words(point, plan)
    flags = ["--", *words] if words else []
    starts = ["demo"] if plan.model == DEMO else ["serve", plan.model]
    return command(*starts, *flags)


def flags_line(point: Point) -> str:
    """The flags only, for servers that are started in another way."""
    return quoted(*point.command_flags)


def without(words: Sequence[str], flags: set[str]) -> list[str]:
    """The arguments without the given flags and their values.

    >>> without(["--max-num-seqs", "8", "--seed=1", "--no-x"], {"max-num-seqs", "x"})
    ['--seed=1']
    """
    kept: list[str] = []
    skipping = False
    for word in words:
        if skipping and not word.startswith("--"):
            skipping = False
            continue
        skipping = False
        name, equals, _ = word.partition("=")
        plain = plain_name(name)
        ours = word.startswith("--") and (
            plain in flags or plain.removeprefix("no-") in flags
        )
        skipping = ours and not equals and plain in flags
        if not ours:
            kept.append(word)
    return kept


ROOM = 0.95
"""If requests waited for nothing during this share of step time, the load was too low.
"""
FLAGS = {BoundBy.SEQS: "max-num-seqs", BoundBy.TOKENS: "max-num-batched-tokens"}
WORDS = {
    BoundBy.DEFERRED: "what they had to wait for besides (grammar, KV transfer, LoRA)",
    BoundBy.OTHER: "what cannot be named",
}
NEXT = {
    BoundBy.KV: (
        "more memory for it (gpu-memory-utilization), fewer bits a value "
        "(kv-cache-dtype) or shorter requests would help next"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A quantity besides the goal that should be low."""

    name: str
    value: Callable[[TrialNumbers], float | None]
    texts: Callable[[Sequence[float | None]], Sequence[str]]
    goal: Goal | None = None
    """The goal that ranks by this quantity."""


def latency_p99(name: str) -> Callable[[TrialNumbers], float | None]:
    def value(numbers: TrialNumbers) -> float | None:
        latency = numbers.latencies.get(name)
        return latency.quantiles.p99 if latency is not None else None

    return value


TTFT = Quantity(
    name="TTFT p99",
    value=latency_p99("ttft_s"),
    texts=format_durations,
    goal=Goal.LATENCY,
)
TPOT = Quantity(name="TPOT p99", value=latency_p99("tpot_s"), texts=format_durations)
E2EL = Quantity(name="E2EL p99", value=latency_p99("e2el_s"), texts=format_durations)
MEMORY = Quantity(
    name="memory",
    value=lambda numbers: numbers.memory_bytes,
    texts=lambda values: [format_bytes(each) for each in values],
)
QUANTITIES = (TTFT, TPOT, E2EL, MEMORY)


def standings_by(
    quantity: Quantity, space: Space, rules: SearchRules, trials: Sequence[Trial]
) -> tuple[PointStanding, ...]:
    """Standings by a quantity instead of the goal, with the same statistics."""
    scored = [
        replace(each, numbers=replace(each.numbers, cost=quantity.value(each.numbers)))
        if each.numbers is not None
        else each
        for each in trials
    ]
    return standings(space, replace(rules, goal=Goal.COST), scored)


def costs_of(
    found: Mapping[Quantity, Mapping[Point, PointStanding]],
    rules: SearchRules,
    best: Point,
    present: Point,
) -> tuple[str, ...]:
    """The quantities in which the best setting is significantly worse."""
    if best == present:
        return ()
    texts = (
        _cost(quantity, each[best], each[present], rules.matters)
        for quantity, each in found.items()
        if quantity.goal is not rules.goal
    )
    return tuple(each for each in texts if each is not None)


def _cost(
    quantity: Quantity, one: PointStanding, present: PointStanding, matters: float
) -> str | None:
    """The cost as text: ``TTFT p99 +12 … +30% (412 ms instead of 350 ms)``."""
    if one.against_present is None or one.against_present[0] <= 1 + matters / 2:
        return None
    now, before = (text.strip() for text in quantity.texts([one.score, present.score]))
    return (
        f"{quantity.name} {short_span(one.against_present)} ({now} instead of {before})"
    )


def binds_of(space: Space, trials: Sequence[Trial], best: Point) -> str | None:
    """What kept requests waiting at the best setting, and what to try next."""
    shares = _shares(trials, best)
    if not shares:
        return None
    nothing = shares.pop(BoundBy.NOTHING, 0.0)
    if nothing >= ROOM or not shares:
        return (
            f"requests were kept waiting for {1 - nothing:.0%} of the time in steps: "
            "the engine has room at this load, and a higher one would tell more"
        )
    bound, share = max(shares.items(), key=lambda each: each[1])
    if bound in FLAGS:
        value = best.value(FLAGS[bound])
        what = " ".join(filter(None, [bound_text(bound), value]))
    else:
        what = WORDS.get(bound, bound_text(bound))
    text = f"{what} kept requests waiting for {share:.0%} of the time in steps"
    return "; ".join([text, *_next(space, best, bound)])


def _shares(trials: Sequence[Trial], best: Point) -> dict[BoundBy, float]:
    """Mean share of step time by limit, over the setting's trials that know it."""
    every = [e.numbers.bound_share for e in trials if e.point == best and e.numbers]
    known = [each for each in every if each]
    names = {name for each in known for name in each}
    return {BoundBy(n): fmean(each.get(n, 0.0) for each in known) for n in names}


def _next(space: Space, best: Point, bound: BoundBy) -> Iterator[str]:
    if bound in NEXT:
        yield NEXT[bound]
    if bound not in FLAGS:
        return
    flag = FLAGS[bound]
    varied = next((each for each in space.variables if each.flag == flag), None)
    value = best.value(flag)
    if varied is None:
        yield f"vary {flag} next"
    elif value is not None and value.isdecimal():
        higher = [v for v in varied.values if v.isdecimal() and int(v) > int(value)]
        if higher:
            yield "more of it was tried, and was not shown to be better"
        else:
            yield f"it is the most that was tried: try more than {value} next"


UNSCORED = {
    Goal.GOODPUT: "no objectives were given, so nothing is good or bad (--slo)",
    Goal.TOKENS: "no request was answered",
    Goal.LATENCY: "no request was answered",
    Goal.COST: "no request was good, or there is no price (--gpu-hour)",
    Goal.KNEE: "no rate that was tried met the objectives",
}
"""Why a measured setting has no score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointResult:
    """One setting, over all of its trials."""

    point: Point
    outcome: TrialOutcome
    cause: str | None = None
    trials: int = 0
    score: float | None = None
    """The goal's value, in its unit."""
    span: tuple[float, float] | None = None
    """The 95% interval of the score."""
    against_present: tuple[float, float] | None = None
    """The 95% interval of the ratio to the present setting, paired by time of
    measurement.
    """
    tokens_per_s: float | None = None
    tokens_per_s_span: tuple[float, float] | None = None
    ttft_p99_s: float | None = None
    ttft_p99_s_span: tuple[float, float] | None = None
    tpot_p99_s: float | None = None
    tpot_p99_s_span: tuple[float, float] | None = None
    good_share: float | None = None
    on_frontier: bool = False
    """Whether no other setting has both more tokens/s and a lower TTFT p99."""
    on_tpot_frontier: bool = False
    """Whether no other setting has both more tokens/s and a lower TPOT p99."""
    scenario: str | None = None
    """The finding of its latest stress scenario run."""
    answers: str | None = None
    """How its answers compare with the present's, if prompts were sent."""
    compared_answers: AnswerComparison | None = None
    """The same as numbers."""
    like_best: bool = False
    """Whether it cannot be distinguished from the best."""
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """All settings, best first; those that did not run come last."""

    points: tuple[PointResult, ...]
    best: PointResult | None
    """None before a setting was measured, and where hardly a request was good."""
    present: PointResult | None
    verdict: str
    """For example ``Take max-num-seqs 32: better than the present (8) by 18-26%
    (paired, 5 repeats) in goodput at 20 requests/s``.
    """
    binds: str | None = None
    """What limits requests at the best setting."""
    costs: tuple[str, ...] = ()
    """What the best setting costs elsewhere, for example in memory or TTFT."""
    command: str | None = None
    """A command line to paste."""

    @property
    def is_measured(self) -> bool:
        """Whether a setting has a number, be it that none is good."""
        return any(each.score is not None for each in self.points)


def scenario_lines(result: TuneResult) -> list[str]:
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
    """The result so far; ``plan`` provides the load and the command."""
    ranking = standings(space, rules, trials)
    others = _Beside.of(space, rules, trials, ranking)
    results = [_of_point(each, rules, trials, others) for each in ranking]
    best = next((each.point for each in ranking if each.is_best), None)
    if none_good(rules, ranking):
        best = None
    points = _in_order(_with_frontiers(results), best, rules.goal)
    by_point = {each.point: each for each in points}
    costs = (
        *_other_answers(best, others.answers),
        *others.costs(rules, best, space.present),
    )
    names = [each.partition(" (")[0].partition(" +")[0] for each in costs]
    return TuneResult(
        points=points,
        best=by_point[best] if best is not None else None,
        present=by_point.get(space.present),
        verdict=verdict_of(space, rules, ranking, plan, names),
        binds=binds_of(space, trials, best) if best is not None else None,
        costs=costs,
        command=_command(best, plan),
    )


def _other_answers(
    best: Point | None, answers: Mapping[Point, AnswerComparison]
) -> tuple[str, ...]:
    comparison = answers.get(best) if best is not None else None
    if comparison is None or not comparison.differs:
        return ()
    what = "log-probs" if comparison.verdict is AnswerVerdict.DRIFT else "answers"
    return (f"other {what} ({comparison.sentence})",)


def _command(best: Point | None, plan: TunePlan | None) -> str | None:
    if best is None or plan is None:
        return None
    return inferwatch_command(best, plan) or flags_line(best)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    """Standings in the quantities that are shown besides the goal."""

    tokens: Mapping[Point, PointStanding]
    quantities: Mapping[Quantity, Mapping[Point, PointStanding]]
    answers: Mapping[Point, AnswerComparison]

    @classmethod
    def of(
        cls,
        space: Space,
        rules: SearchRules,
        trials: Sequence[Trial],
        found: Sequence[PointStanding],
    ) -> "_Beside":
        """Compute standings by every quantity; ``found`` are those by the goal."""

        def by(goal: Goal) -> Sequence[PointStanding]:
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
        """What the best setting costs; empty if there is none yet."""
        if best is None:
            return ()
        return costs_of(self.quantities, rules, best, present)


def _of_point(
    standing: PointStanding,
    rules: SearchRules,
    trials: Sequence[Trial],
    others: _Beside,
) -> PointResult:
    point = standing.point
    own = [each for each in trials if each.point == point]
    odd = [e for e in own if e.record.outcome is not TrialOutcome.MEASURED]
    shares = [e.numbers.good_share for e in own if e.numbers is not None]
    known = [each for each in shares if each is not None]
    tokens, ttft, tpot = (
        each[point]
        for each in (others.tokens, others.quantities[TTFT], others.quantities[TPOT])
    )
    answers = others.answers.get(point)
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
        compared_answers=answers,
        like_best=standing.like_best,
        doubts=(*standing.doubts, *(_failure(e) for e in odd if standing.trials)),
    )


def _scenario(trials: Sequence[Trial]) -> str | None:
    findings = [each.numbers.scenario for each in trials if each.numbers is not None]
    return next((each for each in reversed(findings) if each is not None), None)


def _failure(trial: Trial) -> str:
    """Text on a failed trial of a setting that other trials measured."""
    why = f": {trial.record.cause}" if trial.record.cause else ""
    return f"trial {trial.record.number} {trial.record.outcome}{why}"


def _with_frontiers(results: Sequence[PointResult]) -> list[PointResult]:
    """Mark the frontiers, by point estimates rather than intervals."""
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
    """The best setting, then other settings with a score by rank, then all others."""
    sign = 1 if goal.lower_is_better else -1
    scored = [each for each in results if each.score is not None]
    scored.sort(key=lambda each: (each.point != best, sign * (each.score or 0.0)))
    return (*scored, *(each for each in results if each.score is None))
