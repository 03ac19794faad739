"""Compares points with each other, after removing the machine's drift.

Trials of a tune are minutes apart, and a machine does not stay the same for an hour:
clocks, neighbours and heat make all points faster or slower. The present setting is
measured again and again between the others, and whatever affects it affects them, too.
So the logarithm of a score is modelled as the point's own level, plus a drift common to
all points (a random walk over the order of measurement), plus a random effect of each
engine start, plus noise: a mixed linear model, fitted by generalised least squares. The
sizes of drift and start effects relative to the noise are unknown: a grid of values is
weighted by restricted likelihood (Patterson and Thompson 1971) and averaged, so that
this uncertainty widens the intervals. A contrast with the present is then what pairing
each trial with its neighbouring measurements of the present would give, but it also
uses what the other points tell.

Some settings are noisier than others. A few trials hardly show how much, and most
points have one trial. So each point's variance is its own trials' mixed with the
typical variance of all repeated points, as if that added ALIKE degrees of freedom, and
fewer where it is hardly known itself (a moderated variance: Smyth 2004, Linear Models
and Empirical Bayes Methods). A point is told apart from the best by the studentized
range of all points, at Welch's degrees of freedom of the two (Games and Howell 1976,
Journal of Educational Statistics 1). Points far below the best are noisier in
logarithms (a goodput that nearly vanished): their error is assumed to be as large in
absolute terms as at half of the best.

Critical values of multiple comparisons with the best (Hsu 1984, Annals of Statistics
12) are smaller, but only protect the one true best: of many equals the luckiest is
taken for the best, and the least lucky would be told apart from it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from inferwatch.formatting import counted
from inferwatch.metrics.series.intervals import ALPHA, Z
from inferwatch.studies.compare.statistics.significance import (
    MOST_LOG,
    freedom_of,
    t_beyond,
)
from inferwatch.studies.tune.plan import Goal
from inferwatch.studies.tune.search.studentized_range import range_beyond
from inferwatch.studies.tune.space import Point, Space
from inferwatch.studies.tune.trial import Trial, TrialOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRules:
    """The rules of a search; the same rules and trials give the same next point."""

    goal: Goal
    repeats: int = 5
    """Most trials of a setting; the present one is measured more often, to show drift.
    """
    seed: int = 0
    """Seed of the order within a round."""
    matters: float = 0.02
    """A smaller relative difference does not matter."""
    trial_s: float = 60.0
    """Expected length of a trial. With ``start_s`` it decides how often an engine is
    started only to measure the present setting.
    """
    start_s: float = 60.0
    """Expected length of an engine start."""
    left_s: float | None = None
    """Time left; None if there is no limit."""
    can_restart: bool = True
    """False for somebody else's engine: points that live limits cannot reach are
    skipped.
    """


Floats = npt.NDArray[np.float64]
Interval = tuple[float, float]

LEAST_SPREAD = 0.003
"""Smallest assumed noise of a trial, as a share, even if counts repeat exactly."""
LEAST_KNOWN = 1e-9
"""Stands for no degrees of freedom, as for a point with one trial."""
FAR = math.log(2)
FARTHEST = math.log(20)
"""Log ratio at which a score far below the best is cut off."""
DRIFTS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Grid of drift variances over the whole tune, relative to a trial's noise variance."""
ALIKE = 5.0
"""How similar the noise of points is: the typical variance counts as this many degrees
of freedom. By ``benchmarks/tune_search.py``: where some points are ten times as noisy
as others, a larger value would tell equals apart too often.
"""
APART = 0.02
"""Chance of telling equals apart, if noise is as similar as ALIKE says. Where it is
less so, the range is too narrow: where half of the points are ten times as noisy as the
others, this gives 2 to 4% by ``benchmarks/tune_search.py``, and 0.05 would give 5 to
8%.
"""
LEAST_FREEDOM = 2.0
"""With fewer, points thirty standard errors apart would not be told apart."""
STEPS_OF_FREEDOM = 4
"""Degrees of freedom are rounded down to 1/4, so that cached values are reused."""
FARTHEST_FREEDOM = 30.0
"""Degrees of freedom of intervals that come from a single trial's many requests."""
STARTS = (0.0, 0.5, 2.0)
"""Grid of variances of start effects; used only with several engine starts."""
BAD_LUCK = 1.5
"""A score worse by more than this factor is not explained by bad luck."""
MOST_FAILURES = 2
"""With this many failures a point is out."""
FEWEST_BESIDE_BEST = 2
"""With fewer trials a neighbour of the best is not dropped: one trial may have had bad
luck, and next to the best it is likely to be good.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointStanding:
    """A point's standing after the given trials."""

    point: Point
    trials: int = 0
    """Trials with a score; if some have no doubts, only those."""
    score: float | None = None
    """In the goal's unit, at the tune's average machine speed."""
    span: Interval | None = None
    """The 95% interval; None before anything was measured twice, or if it hardly works.
    """
    ratio_to_present: float | None = None
    against_present: Interval | None = None
    """The 95% interval of that ratio; below 1 is better if lower is better. Also None
    if one of the two is worse than the best by FARTHEST.
    """
    beats_present: bool = False
    """Whether it is surely better, even if no ratio says by how much."""
    ratio_to_best: float | None = None
    against_best: Interval | None = None
    """The interval of that ratio, simultaneous for all points and so wider than 95% for
    one: a point is told apart from the best if and only if all of it is on the worse
    side of 1.
    """
    is_best: bool = False
    like_best: bool = False
    """Whether it is not the best but not told apart from it, also with a single trial.
    """
    close_to_best: bool = False
    """Whether it is surely within ``matters`` of the best."""
    alive: bool = True
    """Whether it may still be the best."""
    dropped: str | None = None
    """Why it is no longer in the race, in words."""
    fails: bool = False
    """Whether it did not start, or failed too often, even if it has a score."""
    doubts: tuple[str, ...] = ()
    """Doubts about the trials that its score is based on."""


def standings(
    space: Space, rules: SearchRules, trials: Sequence[Trial]
) -> tuple[PointStanding, ...]:
    counts = {point: _Counted.of(point, rules.goal, trials) for point in space.points}
    scored = [each for each in counts.values() if each.values]
    fit = _Fit.of(scored, rules.goal) if scored else None
    if fit is None:
        return tuple(_unscored(each) for each in counts.values())
    settled = all(e.values or e.out or e.left_out for e in counts.values())
    nearby = neighbours(space, fit.points[fit.best]) if settled else frozenset()
    return tuple(
        _standing(space, rules, each, fit)
        if each.values
        else _unscored(each, beside=each.point in nearby)
        for each in counts.values()
    )


def machine_drift(
    space: Space, rules: SearchRules, trials: Sequence[Trial]
) -> float | None:
    """Relative difference between the machine at its fastest and at its slowest.

    From the scores of all points together; None before anything was measured twice.
    """
    counts = [_Counted.of(point, rules.goal, trials) for point in space.points]
    scored = [each for each in counts if each.values]
    fit = _Fit.of(scored, rules.goal) if scored else None
    return fit.drift if fit is not None and fit.freedom else None


def neighbours(space: Space, point: Point) -> frozenset[Point]:
    """Points that are one value up or down in one of the variables."""
    points = set()
    for variable in space.variables:
        flag, value = variable.flag, point.value(variable.flag)
        values = list(dict.fromkeys([*variable.values, *filter(None, [value])]))
        if all(each.isdecimal() for each in values):
            values.sort(key=int)
        at = values.index(value) if value is not None else 0
        for near in values[max(at - 1, 0) : at + 2]:
            flags = ((name, near if name == flag else old) for name, old in point.flags)
            points.add(Point(flags=tuple(flags)))
    return frozenset(points & set(space.points)) - {point}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """The trials of one point, and why it is out of the race."""

    point: Point
    values: tuple[tuple[int, int, float, float | None], ...] = ()
    """Trial number, engine life, score, and the score's own relative error if known."""
    failures: int = 0
    cause: str | None = None
    did_not_start: bool = False
    left_out: str | None = None
    doubts: tuple[str, ...] = ()

    @classmethod
    def of(cls, point: Point, goal: Goal, trials: Sequence[Trial]) -> "_Counted":
        own = [each for each in trials if each.point == point]
        scored = [
            (e, s) for e in own if (s := _usable(e.score(goal), goal)) is not None
        ]
        sure = [e for e in scored if e[0].numbers and not e[0].numbers.doubts]
        doubted = [] if sure else scored
        bad = [each for each in own if each.record.outcome is not TrialOutcome.MEASURED]
        out = [e for e in bad if e.record.outcome is TrialOutcome.LEFT_OUT]
        named = [d for e, _ in doubted if e.numbers for d in e.numbers.doubts]
        return cls(
            point=point,
            values=tuple(
                (each.record.number, each.record.life, score, _own_spread(each, goal))
                for each, score in sure or doubted
            ),
            failures=len(own) - len(scored) - len(out),
            cause=next((e.record.cause for e in bad[::-1] if e.record.cause), None),
            did_not_start=any(
                each.record.outcome is TrialOutcome.NOT_STARTED for each in bad
            ),
            left_out=out[-1].record.cause or "left out" if out else None,
            doubts=tuple(dict.fromkeys(named)),
        )

    @property
    def out(self) -> str | None:
        """Why the point is out of the race, whatever its scores; None if it is not."""
        if self.did_not_start:
            return f"did not start: {self.cause}" if self.cause else "did not start"
        if self.failures >= MOST_FAILURES:
            why = self.cause or "no score came of it"
            return f"failed {counted(self.failures, 'time')}: {why}"
        return None


def _usable(score: float | None, goal: Goal) -> float | None:
    """The score if it can be used; 0 can be used only if higher is better."""
    if score is None or math.isnan(score) or (goal.lower_is_better and score <= 0):
        return None
    return score


def _own_spread(trial: Trial, goal: Goal) -> float | None:
    """Standard error of a score as a share, if the trial itself gives one."""
    if goal is not Goal.LATENCY or trial.numbers is None:
        return None
    low, high = trial.numbers.latencies["ttft_s"].ci95.get("p99", (None, None))
    return math.log(high / low) / (2 * Z) if low and high else None


def _unscored(count: _Counted, *, beside: bool = False) -> PointStanding:
    """The standing of a point that has no score.

    With ``beside``, predictions that would drop it are ignored.
    """
    dropped = count.out or (None if beside else count.left_out)
    return PointStanding(
        point=count.point,
        alive=dropped is None,
        dropped=dropped,
        fails=count.out is not None,
    )


def _standing(
    space: Space, rules: SearchRules, count: _Counted, fit: "_Fit"
) -> PointStanding:
    place, best = fit.places[count.point], fit.best
    present = fit.places.get(space.present)
    against_best = fit.ratio_span(place, best, for_all=True)
    is_worse = place != best and against_best is not None and fit.is_worse(against_best)
    dropped = count.out
    few = len(count.values) < FEWEST_BESIDE_BEST and count.point in neighbours(
        space, fit.points[best]
    )
    far = is_worse and fit.is_worse(against_best or (1.0, 1.0), BAD_LUCK)
    if dropped is None and is_worse and (far or not few):
        low, high = sorted(1 - end for end in against_best or ())
        dropped = _below(fit, low, high)
    return PointStanding(
        point=count.point,
        trials=len(count.values),
        score=fit.score(place),
        span=fit.span(place),
        ratio_to_present=None if present is None else fit.ratio(place, present),
        against_present=None
        if present is None
        else fit.visible_ratio_span(place, present),
        beats_present=present is not None and fit.is_surely_worse(present, place),
        ratio_to_best=fit.ratio(place, best),
        against_best=against_best,
        is_best=place == best,
        like_best=place != best and not is_worse,
        close_to_best=place != best and fit.is_within(place, best, rules.matters),
        alive=dropped is None,
        dropped=dropped,
        fails=count.out is not None,
        doubts=count.doubts,
    )


def _below(fit: "_Fit", low: float, high: float) -> str:
    """How much a score is below (or above) the best, in words."""
    if fit.sign < 0:
        low, high = -high, -low
    word = "below" if fit.sign > 0 else "above"
    return f"{low:.0%} to {high:.0%} {word} the best"


class _Fit:
    """The points' log scores, signed so that more is better, with their covariance."""

    def __init__(self, counts: Sequence[_Counted], sign: int) -> None:
        self.sign = sign
        self.points = [each.point for each in counts]
        self.places = {point: place for place, point in enumerate(self.points)}
        rows = sorted(
            (number, life, place, sign * _log(score))
            for place, each in enumerate(counts)
            for number, life, score, _ in each.values
        )
        self._whose = np.array([row[2] for row in rows])
        lives = np.array([row[1] for row in rows])
        values = np.array([row[3] for row in rows])
        top = max(
            median(values[self._whose == place].tolist())
            for place in range(len(counts))
        )
        values = np.maximum(values, top - FARTHEST)
        self._far = {
            place
            for place in range(len(counts))
            if self._has_far_worse(values, place, top)
        }
        self._raw = [median(score for _, _, score, _ in e.values) for e in counts]
        self.freedom = len(rows) - len(counts)
        self._own = [_own_error(each) for each in counts]
        noise = self._noise(values, top)
        self._solve(values, noise, lives)
        able = [
            place for place, each in enumerate(counts) if each.out is None
        ] or range(len(counts))
        self.best = max(able, key=lambda place: float(self.means[place]))

    @classmethod
    def of(cls, counts: Sequence[_Counted], goal: Goal) -> "_Fit":
        return cls(counts, -1 if goal.lower_is_better else 1)

    def _noise(self, values: Floats, top: float) -> Floats:
        """The noise of each trial relative to that of the best point."""
        middles = np.array(
            [
                median(values[self._whose == place].tolist())
                for place in range(len(self.points))
            ]
        )
        times: Floats = np.exp(np.maximum(top - middles - FAR, 0.0))
        return np.asarray(times[self._whose], np.float64)

    def _solve(self, values: Floats, noise: Floats, lives: Floats) -> None:
        design = np.eye(len(self.points))[self._whose]
        drift, starts = _drift(len(values)), _shared_starts(lives)
        solutions = []
        for of_drift in DRIFTS if self.freedom else DRIFTS[:1]:
            for of_starts in STARTS if starts is not None and self.freedom else (0.0,):
                common = of_drift * drift
                if starts is not None:
                    common = common + of_starts * starts
                solved = _least_squares(noise, common, design, values)
                moved = of_drift * drift @ solved.pulls
                solutions.append((solved, float(np.ptp(moved))))
        logs = np.array([each.likelihood for each, _ in solutions])
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        self.means = sum(
            w * each.means for w, (each, _) in zip(weights, solutions, strict=True)
        ) + np.zeros(len(self.points))
        self._spread = np.zeros((len(self.points), len(self.points)))
        for weight, (each, _) in zip(weights, solutions, strict=True):
            off = each.means - self.means
            self._spread += weight * (each.spread + np.outer(off, off))
        self._freedoms = sum(
            w * each.freedoms for w, (each, _) in zip(weights, solutions, strict=True)
        ) + np.zeros(len(self.points))
        moves = sum(w * move for w, (_, move) in zip(weights, solutions, strict=True))
        self.drift = math.expm1(float(moves))

    def _has_far_worse(self, values: Floats, place: int, top: float) -> bool:
        """Whether a trial of the point is worse than the best by at least FARTHEST."""
        return bool((values[self._whose == place] <= top - FARTHEST).any())

    def score(self, place: int) -> float:
        """The score in the goal's unit."""
        if place in self._far:
            return self._raw[place]
        return math.exp(self.sign * float(self.means[place]))

    def span(self, place: int) -> Interval | None:
        """The 95% interval of the score."""
        if place in self._far:
            return None
        own = self._own[place]
        error = math.sqrt(float(self._spread[place, place])) if self.freedom else None
        if own is not None:
            error = max(error or 0.0, own)
        reach = t_beyond(ALPHA, self._freedom_of(place))
        return self._interval_around(float(self.means[place]), error, reach)

    def ratio(self, place: int, other: int) -> float | None:
        if self._far & {place, other}:
            own, others = self.score(place), self.score(other)
            return own / others if others else None
        return math.exp(self.sign * float(self.means[place] - self.means[other]))

    def ratio_span(
        self, place: int, other: int, *, for_all: bool = False
    ) -> Interval | None:
        """The 95% interval of the ratio; None if the noise is unknown.

        With ``for_all`` it is simultaneous for all pairs of points, at level APART.
        """
        if place == other:
            return 1.0, 1.0
        away = np.zeros(len(self.points))
        away[place], away[other] = 1.0, -1.0
        error = math.sqrt(max(float(away @ self._spread @ away), 0.0))
        spread_error = error if self.freedom else self._own_of_both(place, other)
        freedom = self._freedom_of(place, other)
        reach = (
            range_beyond(APART, len(self.points), freedom) / math.sqrt(2)
            if for_all
            else t_beyond(ALPHA, freedom)
        )
        return self._interval_around(float(away @ self.means), spread_error, reach)

    def visible_ratio_span(self, place: int, other: int) -> Interval | None:
        """The interval to show; None if a point's score is far below the best."""
        far = place != other and self._far & {place, other}
        return None if far else self.ratio_span(place, other)

    def is_worse(self, span: Interval, times: float = 1.0) -> bool:
        """Whether a ratio's interval is entirely worse than 1, by the given factor."""
        return span[1] < 1 / times if self.sign > 0 else span[0] > times

    def is_surely_worse(self, place: int, other: int) -> bool:
        """Whether a point is surely worse than the other."""
        span = self.ratio_span(place, other)
        return span is not None and self.is_worse(span)

    def is_within(self, place: int, other: int, share: float) -> bool:
        """Whether two points' scores are surely within ``share`` of each other."""
        span = self.ratio_span(place, other)
        return span is not None and all(abs(math.log(end)) < share for end in span)

    def _own_of_both(self, place: int, other: int) -> float | None:
        """Standard error of a difference of two points, by their trials' own errors.

        None if a trial gives no error. It is used where nothing was measured twice.
        """
        own = self._own[place], self._own[other]
        return None if None in own else math.hypot(*(each or 0.0 for each in own))

    def _freedom_of(self, place: int, other: int | None = None) -> float:
        """Degrees of freedom of a point's mean, or of a difference of two (Welch)."""
        if not self.freedom:
            return FARTHEST_FREEDOM
        freedom = own = float(self._freedoms[place])
        if other is not None:
            both = own + 1, float(self._freedoms[other]) + 1
            at, by = (
                float(self._spread[place, place]),
                float(self._spread[other, other]),
            )
            freedom = freedom_of((at, by), both)
        steps = STEPS_OF_FREEDOM
        return max(math.floor(freedom * steps) / steps, LEAST_FREEDOM)

    def _interval_around(
        self, at: float, error: float | None, reach: float
    ) -> Interval | None:
        """The interval ``reach`` standard errors around ``at``; None without these."""
        if error is None:
            return None
        away = reach * error
        ends = sorted((self.sign * (at - away), self.sign * (at + away)))
        low, high = (math.exp(max(min(end, MOST_LOG), -MOST_LOG)) for end in ends)
        return low, high


@dataclass(frozen=True, slots=True)
class _Solved:
    """The fit for one combination of drift and start variances."""

    means: Floats
    spread: Floats
    freedoms: Floats
    """Degrees of freedom of each point's variance."""
    likelihood: float
    pulls: Floats
    """Residuals multiplied by the inverse covariance, from which the drift follows."""


def _least_squares(
    noise: Floats, common: Floats, design: Floats, values: Floats
) -> _Solved:
    """Fit the means and their covariance.

    Weights assume that all points are equally noisy, which their few trials cannot
    disprove; the covariance allows for unequal noise.
    """
    freedom = len(values) - design.shape[1]
    lower = np.linalg.cholesky(np.diag(noise**2) + common)
    undone = np.linalg.inv(lower)
    white, level = undone @ design, undone @ values
    inner = white.T @ white
    weights = np.linalg.solve(inner, white.T)
    means = weights @ level
    left = level - white @ means
    squares = max(float(left @ left), freedom * LEAST_SPREAD**2)
    logs = float(np.log(np.diag(lower)).sum())
    inside = float(np.linalg.slogdet(inner)[1])
    likelihood = -logs - inside / 2
    if freedom:
        likelihood -= freedom / 2 * math.log(squares)
    pulls = undone.T @ left
    residual = undone - white @ (weights @ undone)
    by_trial = noise**2 * (residual**2).sum(axis=0)
    of_point, freedoms = _noises((noise * pulls) ** 2 @ design, by_trial @ design)
    shares = weights @ undone
    moved = common * (squares / freedom if freedom else 0.0)
    whole = np.diag(noise**2 * (design @ of_point)) + moved
    return _Solved(
        means=means,
        spread=shares @ whole @ shares.T,
        freedoms=freedoms,
        likelihood=likelihood,
        pulls=pulls,
    )


def _noises(squares: Floats, freedoms: Floats) -> tuple[Floats, Floats]:
    """The variance of each point's trials, and its degrees of freedom.

    Takes each point's sum of squared residuals and its degrees of freedom. A variance
    with f degrees of freedom has a relative variance of about 2 / f, and variances
    differ between points by 2 / ALIKE.
    """
    freedoms = np.maximum(freedoms, LEAST_KNOWN)
    weights = 1 / (1 / ALIKE + 1 / freedoms)
    all_told = float(weights.sum())
    typical = float(weights @ (squares / freedoms)) / all_told
    alike = 1 / (1 / ALIKE + 1 / all_told)
    told_by = alike + freedoms
    mixed = (alike * typical + squares) / told_by
    return np.maximum(mixed, LEAST_SPREAD**2), told_by


def _drift(count: int) -> Floats:
    """Covariance of a centred random walk, with a mean variance of 1."""
    steps = np.arange(1.0, count + 1)
    walk = np.minimum(steps[:, None], steps)
    walk = walk - walk.mean(axis=0) - walk.mean(axis=1)[:, None] + walk.mean()
    return np.asarray(walk / max(float(np.trace(walk)) / count, 1e-9), np.float64)


def _shared_starts(lives: Floats) -> Floats | None:
    """A matrix of which trials share an engine start; None if all do, or no two."""
    same = lives[:, None] == lives
    if same.all() or same.sum() == len(lives):
        return None
    return np.asarray(same, np.float64)


def _log(score: float) -> float:
    """The logarithm; very low for a score of 0, to be cut off later."""
    return min(math.log(score), MOST_LOG) if score > 0 else -MOST_LOG


def _own_error(count: _Counted) -> float | None:
    known = [own for *_, own in count.values if own is not None]
    if not known or len(known) < len(count.values):
        return None
    return math.sqrt(sum(own * own for own in known)) / len(known)
