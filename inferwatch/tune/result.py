"""What a tune came to: every setting with its interval, the best, and how sure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from inferwatch.tune.search import SearchRules
from inferwatch.tune.space import Point, Space
from inferwatch.tune.trial import Trial, TrialOutcome


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


def result_of(space: Space, rules: SearchRules, trials: Sequence[Trial]) -> TuneResult:
    """What can be said so far."""
    results = [_of_point(point, rules, trials) for point in space.points]
    scored = [each for each in results if each.score is not None]
    sign = 1 if rules.goal.lower_is_better else -1
    scored.sort(key=lambda each: sign * (each.score or 0.0))
    others = [each for each in results if each.score is None]
    return TuneResult(
        points=(*scored, *others),
        best=scored[0] if scored else None,
        present=next((e for e in results if e.point == space.present), None),
        verdict="",
    )


def _of_point(point: Point, rules: SearchRules, trials: Sequence[Trial]) -> PointResult:
    own = [each for each in trials if each.point == point]
    scores = [each.score(rules.goal) for each in own]
    known = [each for each in scores if each is not None]
    failed = next((e for e in own if e.numbers is None), None)
    outcome = TrialOutcome.MEASURED
    if failed is not None and not known:
        outcome = failed.record.outcome
    return PointResult(
        point=point,
        outcome=outcome,
        cause=failed.record.cause if failed else None,
        trials=len(known),
        score=fmean(known) if known else None,
    )
