"""The verdict of a tune in one sentence, no stronger than its intervals allow."""

from collections.abc import Iterable, Iterator, Sequence

from inferwatch.formatting import (
    counted,
    format_change,
    format_duration,
    format_figure,
    format_rate,
)
from inferwatch.loadgen.plan.parts import Arrivals
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.metrics.requests.slo import DEFAULT_SHARE
from inferwatch.studies.tune.plan import Goal, TunePlan
from inferwatch.studies.tune.search.standings import PointStanding, SearchRules
from inferwatch.studies.tune.space import Point, Space
from inferwatch.studies.tune.trial import Trial

HEADS = {
    Goal.GOODPUT: "good/s",
    Goal.TOKENS: "tok/s",
    Goal.LATENCY: "TTFT p99",
    Goal.COST: "cost/M",
    Goal.KNEE: "rate/s",
}
"""Heads of table columns."""


def score_text(goal: Goal, score: float | None) -> str:
    """The score in seven columns; the table head gives its unit.

    >>> score_text(Goal.TOKENS, 1180.4), score_text(Goal.LATENCY, 0.212)
    ('  1,180', ' 212 ms')
    >>> score_text(Goal.COST, 0.0421), score_text(Goal.KNEE, None)
    (' 0.0421', '      –')
    """
    if goal is Goal.LATENCY:
        return format_duration(score)
    return format_figure(score) if goal is Goal.COST else format_rate(score)


def score_sentence(goal: Goal, score: float | None) -> str:
    """The score with its unit, without padding.

    >>> score_sentence(Goal.GOODPUT, 8.31), score_sentence(Goal.LATENCY, 0.212)
    ('8.31 good requests/s', 'TTFT p99 212 ms')
    """
    text = score_text(goal, score).strip()
    return {
        Goal.GOODPUT: f"{text} good requests/s",
        Goal.TOKENS: f"{text} tokens/s",
        Goal.LATENCY: f"TTFT p99 {text}",
        Goal.COST: f"{text} a million good tokens",
        Goal.KNEE: f"{text} requests/s held",
    }[goal]


def trial_text(trial: Trial, goal: Goal) -> str:
    """A trial's result in one line: score and TTFT, or why there is none."""
    record, numbers = trial.record, trial.numbers
    if numbers is None:
        return f"{record.outcome}: {record.cause or 'nobody knows why'}"
    facts = [score_sentence(goal, trial.score(goal))]
    if "ttft_s" in numbers.latencies and goal is not Goal.LATENCY:
        p99_s = numbers.latencies["ttft_s"].quantiles.p99
        facts.append(f"TTFT p99 {format_duration(p99_s).strip()}")
    if goal is not Goal.TOKENS:
        facts.append(f"{format_rate(numbers.tokens_per_s).strip()} tokens/s")
    return "; ".join([", ".join(facts), *numbers.doubts[:1]])


MOST_NAMES = 3
MANY_TIMES = 3.0
"""From this ratio to the present on, "times as good" replaces percentages."""
GOAL_NAMES = {
    Goal.GOODPUT: "goodput",
    Goal.TOKENS: "output tokens/s",
    Goal.LATENCY: "TTFT p99",
    Goal.COST: "cost of a million good output tokens",
    Goal.KNEE: "highest rate that meets the objectives",
}
NONE = format_rate(0.0)
NOTHING_YET = "nothing has been measured yet"


def verdict_of(
    space: Space,
    rules: SearchRules,
    ranking: Sequence[PointStanding],
    plan: TunePlan | None = None,
    costs: Sequence[str] = (),
) -> str:
    """The verdict in one sentence without a period: what to do first, then why.

    For example ``Take max-num-seqs 32: better than the present (8) by 18-26% (paired, 5
    repeats) in goodput at 20 requests/s; not told apart from max-num-seqs 48``.
    ``costs`` are the names of what the best setting makes worse.
    """
    best = next((each for each in ranking if each.is_best), None)
    if best is None:
        dropped = [each.dropped for each in ranking if each.dropped]
        return "no setting could be measured" if dropped else NOTHING_YET
    present = next((each for each in ranking if each.point == space.present), None)
    if best == present and sum(each.score is not None for each in ranking) == 1:
        return f"only the present setting ({values_text(best.point)}) has a number"
    goal = goal_text(rules.goal, plan)
    if none_good(rules, ranking):
        what = goal.removeprefix(f"{GOAL_NAMES[rules.goal]} ")
        return f"No setting will do: hardly a request was good {what}; send less"
    text = _against_present(best, present, rules, goal)
    of = [f"at the cost of {' and '.join(costs)}"] if costs else []
    return "; ".join([text, *of, *_unsure(best, present, ranking, rules)])


def none_good(rules: SearchRules, ranking: Sequence[PointStanding]) -> bool:
    """Whether hardly a request was good at the best setting, so that none will do."""
    best = next((each for each in ranking if each.is_best), None)
    if best is None or rules.goal is not Goal.GOODPUT:
        return False
    return score_text(rules.goal, best.score) == NONE


def _unsure(
    best: PointStanding,
    present: PointStanding | None,
    ranking: Sequence[PointStanding],
    rules: SearchRules,
) -> Iterator[str]:
    """The settings that cannot be told apart from the best, and doubts about it."""
    others = [each for each in ranking if each.score is not None and each != best]
    like = [each for each in others if each.like_best]
    if (
        best.span is not None
        and len(others) > 1
        and all(e.close_to_best for e in others)
    ):
        yield (
            f"all {len(ranking)} settings are within {rules.matters:.0%} of each other"
        )
    elif best.span is not None and len(others) > 1 and len(like) == len(others):
        yield f"none of the {len(others) + 1} settings measured can be told apart"
    elif best.span is not None:
        points = [each.point for each in like if each != present]
        if points:
            yield f"not told apart from {_names(points)}"
    doubted = [each for each in (best, present) if each is not None and each.doubts]
    if doubted:
        kind, _, _ = doubted[0].doubts[0].partition(":")  # the rest is shown below
        yield f"but doubtful: {kind}"


def _against_present(
    best: PointStanding, present: PointStanding | None, rules: SearchRules, goal: str
) -> str:
    name = best.point.text
    if best == present:
        text = f"Keep {name}: the present setting is the best in {goal}"
        few = "" if best.span is not None else _too_few(best.trials)
        return f"{text}{few}"
    if present is None or present.score is None:
        why = present.dropped if present is not None else None
        return (
            f"Take {name}: the best in {goal}; the present setting has no number "
            f"({why or 'it was not measured'})"
        )
    of = f"the present ({values_text(present.point)})"
    ends = sorted(_gain(each, rules.goal) for each in best.against_present or ())
    fewest = min(best.trials, present.trials)
    paired = f"(paired, {counted(fewest, 'repeat')}) in {goal}"
    if not ends:
        basis = paired if best.beats_present else f"in {goal}{_too_few(fewest)}"
        do = "Take" if best.beats_present else "Measure again"
        return f"{do} {name}: {_how_much(best, present, of, rules.goal)} {basis}"
    low, high = ends
    if low > 0:
        few = ", which is less than matters" if high < rules.matters else ""
        if high >= MANY_TIMES - 1:
            times = f"{1 + low:.1f} to {1 + high:.1f} times as good as {of}"
            return f"Take {name}: {times} {paired}"
        return f"Take {name}: better than {of} by {_range(low, high)} {paired}{few}"
    return (
        f"Keep {present.point.text} as yet: {values_text(best.point)} measured best, "
        f"but is not told apart from {of}: between {_change(low)} and {_change(high)} "
        f"{paired}"
    )


def _how_much(best: PointStanding, present: PointStanding, of: str, goal: Goal) -> str:
    """How much better the best setting is, without an interval.

    Both scores if their ratio does not exist.
    """
    if best.ratio_to_present is not None:
        return f"{_change(_gain(best.ratio_to_present, goal))} than {of}"
    own, others = (score_sentence(goal, each.score) for each in (best, present))
    return f"{own}, where {of} has {others}"


def _too_few(repeats: int) -> str:
    only = counted(repeats, "repeat")
    return f", but with only {only} nobody can tell how sure that is"


def _gain(ratio: float | None, goal: Goal) -> float:
    """The relative change of the score; positive if it is better."""
    if ratio is None:
        return 0.0
    return 1 - ratio if goal.lower_is_better else ratio - 1


def _range(low: float, high: float) -> str:
    """A range of positive gains: ``18-26%``."""
    first, last = f"{low:.0%}", f"{high:.0%}"
    if first == last or high < 0.02:
        first, last = f"{low:.1%}", f"{high:.1%}"
    return last if first == last else f"{first.removesuffix('%')}–{last}"


def _change(gain: float) -> str:
    """A gain in words, such as ``3% worse``."""
    if gain >= MANY_TIMES - 1:
        return f"{format_change(1 + gain)} better"
    return f"{abs(gain):.{1 if abs(gain) < 0.02 else 0}%} {_word(gain)}"


def _word(gain: float) -> str:
    return "better" if gain >= 0 else "worse"


def _names(points: Iterable[Point]) -> str:
    """Settings by name; with a single varied flag, its name comes once."""
    every = list(points)
    texts = [every[0].text]
    is_single = len(every[0].flags) == 1
    texts += [values_text(each) if is_single else each.text for each in every[1:]]
    more = len(texts) - MOST_NAMES
    if more > 0:
        return f"{', '.join(texts[:MOST_NAMES])} and {counted(more, 'other')}"
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def values_text(point: Point) -> str:
    """Values without the names of the flags: ``16 · 512``."""
    return " · ".join(value for _, value in point.flags)


def goal_text(goal: Goal, plan: TunePlan | None) -> str:
    if plan is None:
        return GOAL_NAMES[goal]
    if goal is Goal.KNEE:
        share = f"for {DEFAULT_SHARE:.0%} of requests"
        return f"the highest rate that meets {plan.load.slo or 'nothing'} {share}"
    of = f" ({plan.load.slo})" if goal is Goal.GOODPUT and plan.load.slo else ""
    return f"{GOAL_NAMES[goal]}{of} at {load_text(plan.load, plan.like)}"


def load_text(load: LoadPlan, like: str | None = None) -> str:
    if like is not None:
        return f"the requests of {like}"
    if load.arrivals is Arrivals.TRACE:
        return f"the requests of {load.trace_of or 'a trace'}"
    if load.arrivals is Arrivals.CLOSED:
        return counted(load.concurrency, "user")
    if load.rates is not None:
        return "a rate that changes"
    if load.rate_per_s is None:
        return "a rate of its own"
    return f"{load.rate_per_s:g} requests/s"
