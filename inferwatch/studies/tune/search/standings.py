"""How points stand against each other, freed of the machine's drift.

Trials of a tune are minutes apart, and a machine is not the same for an hour: clocks,
neighbours and heat make all points faster or slower by turns. The present setting is
measured again and again between the others; what moves it, moved them. So the logarithm
of a score is taken as the point's own, plus what all points had in common at that
moment (a random walk over the order of measurement), plus what an engine's start
brought by chance, plus noise: a mixed linear model, fitted by generalised least
squares. How large drift and starts are against noise is not known: a grid of answers
is weighted by restricted likelihood (Patterson and Thompson 1971) and averaged, so that
not knowing it widens intervals. A contrast with the present is then what pairing each
trial with its neighbouring measurements of the present would give, without losing what
the others tell.

Some settings are noisier than others. How much so a few trials hardly tell, and most
points have one. So each point's variance is its own trials' mixed with what is typical
of all that were repeated, as if that were ALIKE more degrees of freedom of its own, and
fewer where it is hardly known itself (a moderated variance: Smyth 2004, Linear Models
and Empirical Bayes Methods). A point is told apart from the best by the studentized
range of all points, at Welch's degrees of freedom of the two (Games and Howell 1976,
Journal of Educational Statistics 1). Points far below the best are noisier in
logarithms (a goodput that nearly vanished): there the error is held to be as large in
absolute terms as at half of the best.

Critical values of multiple comparisons with the best (Hsu 1984, Annals of Statistics
12) are smaller, but keep the one true best alone: of many equals the luckiest is taken
for the best, and the least lucky would be told apart from it.
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
    """How a search goes; the same rules and trials give the same next point."""

    goal: Goal
    repeats: int = 5
    """Of any setting, at most; the present one is measured more often, to see drift."""
    seed: int = 0
    """Of the order within a round."""
    matters: float = 0.02
    """A smaller relative difference is none."""
    trial_s: float = 60.0
    """What a trial takes, as far as is known: with ``start_s`` it decides how often an
    engine is started anew for the present setting's sake."""
    start_s: float = 60.0
    """What a start of the engine takes."""
    left_s: float | None = None
    """Time there is still; None: as much as it takes."""
    can_restart: bool = True
    """False where the engine is somebody else's: what live limits cannot reach is not
    measured."""


Floats = npt.NDArray[np.float64]
Interval = tuple[float, float]

LEAST_SPREAD = 0.003
"""Between trials, as a share: counts that repeat exactly are no proof."""
LEAST_KNOWN = 1e-9
"""Degrees of freedom of a point with one trial: none, but for what drift leaves."""
FAR = math.log(2)
FARTHEST = math.log(20)
"""How much worse than the best a score is, at most: beyond, it is as bad as that."""
DRIFTS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Variance of the drift over the whole tune, by that of a trial's noise."""
ALIKE = 5.0
"""How alike the noise of points is: what is typical says as much of that of one as so
many degrees of freedom of its own. By ``benchmarks/tune_search.py``: where some are ten
times as noisy as others, more would tell equals apart too often."""
APART = 0.02
"""How often equals would be told apart by chance, were noise as alike as ALIKE says.
Where it is less so, the range errs to the narrow side: where half of the points are ten
times as noisy as the others, this makes 2 to 4% by ``benchmarks/tune_search.py``, and
0.05 would make 5 to 8%."""
LEAST_FREEDOM = 2.0
"""With fewer what is thirty standard errors apart would count as alike."""
STEPS_OF_FREEDOM = 4
"""Of one degree of freedom: what was looked up once is remembered."""
FARTHEST_FREEDOM = 30.0
"""Of intervals that a single trial's many requests tell."""
STARTS = (0.0, 0.5, 2.0)
"""The same of what a start brings by chance; told only where there were several."""
BAD_LUCK = 1.5
"""Times as bad: what lies beyond is no bad luck."""
MOST_FAILURES = 2
"""Of one point: it is out."""
FEWEST_BESIDE_BEST = 2
"""Trials without which a neighbour of the best is not dropped: one may have had bad
luck, and where its neighbour is best, it is likely to be good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointStanding:
    """One point, as it stands after these trials."""

    point: Point
    trials: int = 0
    """With a score; where there are some without doubts, only those."""
    score: float | None = None
    """In the goal's unit, as on the average of the tune."""
    span: Interval | None = None
    """95%; None before anything was measured twice, and where it hardly works."""
    ratio_to_present: float | None = None
    against_present: Interval | None = None
    """95% of that ratio: below 1 is better where lower is better. None, too, where one
    of them is worse than the best by FARTHEST."""
    beats_present: bool = False
    """Surely better, also where no ratio tells by how much."""
    ratio_to_best: float | None = None
    against_best: Interval | None = None
    """Of that ratio, for all points together, and so wider than 95% of one: a point is
    told apart from the best if, and only if, all of it is on the bad side of 1."""
    is_best: bool = False
    like_best: bool = False
    """Not told apart from the best, which it is not; also where it has one trial."""
    close_to_best: bool = False
    """Within what matters, surely: telling them apart would be of no use."""
    alive: bool = True
    """It may yet be the best."""
    dropped: str | None = None
    """Why it is not, fit to show."""
    fails: bool = False
    """It did not start, or failed too often: also where it has a score."""
    doubts: tuple[str, ...] = ()
    """Of all that it rests on: where there are any, it may not win silently."""


def standings(
    space: Space, rules: SearchRules, trials: Sequence[Trial]
) -> tuple[PointStanding, ...]:
    counts = {point: _Counted.of(point, rules.goal, trials) for point in space.points}
    scored = [each for each in counts.values() if each.values]
    fit = _Fit.of(scored, rules.goal) if scored else None
    if fit is None:
        return tuple(_unscored(each) for each in counts.values())
    settled = all(e.values or e.out or e.left_out for e in counts.values())
    beside = neighbours(space, fit.points[fit.best]) if settled else frozenset()
    return tuple(
        _standing(space, rules, each, fit)
        if each.values
        else _unscored(each, beside=each.point in beside)
        for each in counts.values()
    )


def machine_drift(
    space: Space, rules: SearchRules, trials: Sequence[Trial]
) -> float | None:
    """By what share the machine's fastest and slowest moments of the tune differ.

    As the scores of all points tell together; None before anything was measured twice.
    """
    counts = [_Counted.of(point, rules.goal, trials) for point in space.points]
    scored = [each for each in counts if each.values]
    fit = _Fit.of(scored, rules.goal) if scored else None
    return fit.drift if fit is not None and fit.freedom else None


def neighbours(space: Space, point: Point) -> frozenset[Point]:
    """One value further, up or down, in one of the variables."""
    found = set()
    for variable in space.variables:
        flag, value = variable.flag, point.value(variable.flag)
        values = list(dict.fromkeys([*variable.values, *filter(None, [value])]))
        if all(each.isdecimal() for each in values):
            values.sort(key=int)
        at = values.index(value) if value is not None else 0
        for near in values[max(at - 1, 0) : at + 2]:
            flags = ((name, near if name == flag else old) for name, old in point.flags)
            found.add(Point(flags=tuple(flags)))
    return frozenset(found & set(space.points)) - {point}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """What was measured of one point."""

    point: Point
    values: tuple[tuple[int, int, float, float | None], ...] = ()
    """Number, life, score, and half its own interval as a share where it tells one."""
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
        """Why it is out, whatever its scores are."""
        if self.did_not_start:
            return f"did not start: {self.cause}" if self.cause else "did not start"
        if self.failures >= MOST_FAILURES:
            why = self.cause or "no score came of it"
            return f"failed {counted(self.failures, 'time')}: {why}"
        return None


def _usable(score: float | None, goal: Goal) -> float | None:
    """A score of nothing is the worst where more is better, and else no score."""
    if score is None or math.isnan(score) or (goal.lower_is_better and score <= 0):
        return None
    return score


def _own_spread(trial: Trial, goal: Goal) -> float | None:
    """Standard error of its score as a share, where the trial itself tells it."""
    if goal is not Goal.LATENCY or trial.numbers is None:
        return None
    low, high = trial.numbers.latencies["ttft_s"].ci95.get("p99", (None, None))
    return math.log(high / low) / (2 * Z) if low and high else None


def _unscored(count: _Counted, *, beside: bool = False) -> PointStanding:
    """Next to the best of all, no prediction of before keeps a point out."""
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
    apart = place != best and against_best is not None and fit.is_worse(against_best)
    dropped = count.out
    few = len(count.values) < FEWEST_BESIDE_BEST and count.point in neighbours(
        space, fit.points[best]
    )
    far = apart and fit.is_worse(against_best or (1.0, 1.0), BAD_LUCK)
    if dropped is None and apart and (far or not few):
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
        else fit.told_ratio_span(place, present),
        beats_present=present is not None and fit.is_surely_worse(present, place),
        ratio_to_best=fit.ratio(place, best),
        against_best=against_best,
        is_best=place == best,
        like_best=place != best and not apart,
        close_to_best=place != best and fit.is_within(place, best, rules.matters),
        alive=dropped is None,
        dropped=dropped,
        fails=count.out is not None,
        doubts=count.doubts,
    )


def _below(fit: "_Fit", low: float, high: float) -> str:
    """Of shares by which a score is less than the best's."""
    if fit.sign < 0:
        low, high = -high, -low
    word = "below" if fit.sign > 0 else "above"
    return f"{low:.0%} to {high:.0%} {word} the best"


class _Fit:
    """Points' levels in logarithms (more is better), with how sure they are."""

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
            place for place in range(len(counts)) if self._worst(values, place, top)
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
        """How many times as noisy each trial is as one of the best."""
        middles = np.array(
            [
                median(values[self._whose == place].tolist())
                for place in range(len(self.points))
            ]
        )
        times: Floats = np.exp(np.maximum(top - middles - FAR, 0.0))
        return np.asarray(times[self._whose], np.float64)

    def _solve(self, values: Floats, noise: Floats, lives: Floats) -> None:
        shown = np.eye(len(self.points))[self._whose]
        drift, starts = _drift(len(values)), _starts(lives)
        found = []
        for of_drift in DRIFTS if self.freedom else DRIFTS[:1]:
            for of_starts in STARTS if starts is not None and self.freedom else (0.0,):
                common = of_drift * drift
                if starts is not None:
                    common = common + of_starts * starts
                solved = _least_squares(noise, common, shown, values)
                moved = of_drift * drift @ solved.pulls
                found.append((solved, float(np.ptp(moved))))
        logs = np.array([each.likelihood for each, _ in found])
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        self.means = sum(
            w * each.means for w, (each, _) in zip(weights, found, strict=True)
        ) + np.zeros(len(self.points))
        self._spread = np.zeros((len(self.points), len(self.points)))
        for weight, (each, _) in zip(weights, found, strict=True):
            off = each.means - self.means
            self._spread += weight * (each.spread + np.outer(off, off))
        self._freedoms = sum(
            w * each.freedoms for w, (each, _) in zip(weights, found, strict=True)
        ) + np.zeros(len(self.points))
        moves = sum(w * move for w, (_, move) in zip(weights, found, strict=True))
        self.drift = math.expm1(float(moves))

    def _worst(self, values: Floats, place: int, top: float) -> bool:
        """It hardly works: how much worse than the best it is was not asked."""
        return bool((values[self._whose == place] <= top - FARTHEST).any())

    def score(self, place: int) -> float:
        """In the goal's unit."""
        if place in self._far:
            return self._raw[place]
        return math.exp(self.sign * float(self.means[place]))

    def span(self, place: int) -> Interval | None:
        """95% of the score."""
        if place in self._far:
            return None
        own = self._own[place]
        error = math.sqrt(float(self._spread[place, place])) if self.freedom else None
        if own is not None:
            error = max(error or 0.0, own)
        reach = t_beyond(ALPHA, self._told_by(place))
        return self._around(float(self.means[place]), error, reach)

    def ratio(self, place: int, other: int) -> float | None:
        if self._far & {place, other}:
            own, others = self.score(place), self.score(other)
            return own / others if others else None
        return math.exp(self.sign * float(self.means[place] - self.means[other]))

    def ratio_span(
        self, place: int, other: int, *, for_all: bool = False
    ) -> Interval | None:
        """95% of that ratio; None where nothing tells how much trials differ.

        ``for_all`` holds, but for APART of tunes, for any two of the points at once.
        """
        if place == other:
            return 1.0, 1.0
        away = np.zeros(len(self.points))
        away[place], away[other] = 1.0, -1.0
        error = math.sqrt(max(float(away @ self._spread @ away), 0.0))
        found = error if self.freedom else self._own_of_both(place, other)
        freedom = self._told_by(place, other)
        reach = (
            range_beyond(APART, len(self.points), freedom) / math.sqrt(2)
            if for_all
            else t_beyond(ALPHA, freedom)
        )
        return self._around(float(away @ self.means), found, reach)

    def told_ratio_span(self, place: int, other: int) -> Interval | None:
        """The same to be shown; None where one of them hardly works."""
        far = place != other and self._far & {place, other}
        return None if far else self.ratio_span(place, other)

    def is_worse(self, span: Interval, times: float = 1.0) -> bool:
        """A ratio to another score that is surely on the bad side, so many times."""
        return span[1] < 1 / times if self.sign > 0 else span[0] > times

    def is_surely_worse(self, place: int, other: int) -> bool:
        """Than another: its ratio to it is on the bad side."""
        span = self.ratio_span(place, other)
        return span is not None and self.is_worse(span)

    def is_within(self, place: int, other: int, share: float) -> bool:
        """Surely no further apart than that."""
        span = self.ratio_span(place, other)
        return span is not None and all(abs(math.log(end)) < share for end in span)

    def _own_of_both(self, place: int, other: int) -> float | None:
        """Where nothing was measured twice, only the trials themselves tell."""
        own = self._own[place], self._own[other]
        return None if None in own else math.hypot(*(each or 0.0 for each in own))

    def _told_by(self, place: int, other: int | None = None) -> float:
        """Degrees of freedom of a level, or of a difference: Welch's."""
        if not self.freedom:
            return FARTHEST_FREEDOM
        found = own = float(self._freedoms[place])
        if other is not None:
            both = own + 1, float(self._freedoms[other]) + 1
            at, by = (
                float(self._spread[place, place]),
                float(self._spread[other, other]),
            )
            found = freedom_of((at, by), both)
        steps = STEPS_OF_FREEDOM
        return max(math.floor(found * steps) / steps, LEAST_FREEDOM)

    def _around(self, at: float, error: float | None, reach: float) -> Interval | None:
        """The interval that reaches so many standard errors either way."""
        if error is None:
            return None
        away = reach * error
        ends = sorted((self.sign * (at - away), self.sign * (at + away)))
        low, high = (math.exp(max(min(end, MOST_LOG), -MOST_LOG)) for end in ends)
        return low, high


@dataclass(frozen=True, slots=True)
class _Solved:
    """One answer to how large drift and starts are."""

    means: Floats
    spread: Floats
    freedoms: Floats
    """Of each point's part in the spread."""
    likelihood: float
    pulls: Floats
    """What each trial is off, by the inverse of the spread: what drift is told by."""


def _least_squares(
    noise: Floats, common: Floats, shown: Floats, values: Floats
) -> _Solved:
    """Means, and how sure they are, by what each trial has a part in.

    Weights are as if all points were equally noisy, which their few trials cannot
    disprove; the spread is that of such means where they are not.
    """
    freedom = len(values) - shown.shape[1]
    lower = np.linalg.cholesky(np.diag(noise**2) + common)
    undone = np.linalg.inv(lower)
    white, level = undone @ shown, undone @ values
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
    told = undone - white @ (weights @ undone)
    by_trial = noise**2 * (told**2).sum(axis=0)
    of_point, freedoms = _noises((noise * pulls) ** 2 @ shown, by_trial @ shown)
    shares = weights @ undone
    moved = common * (squares / freedom if freedom else 0.0)
    whole = np.diag(noise**2 * (shown @ of_point)) + moved
    return _Solved(
        means=means,
        spread=shares @ whole @ shares.T,
        freedoms=freedoms,
        likelihood=likelihood,
        pulls=pulls,
    )


def _noises(squares: Floats, freedoms: Floats) -> tuple[Floats, Floats]:
    """Variance of each point's trials, and how many degrees of freedom tell it.

    Given are what its trials are off, squared and added up, and of how many degrees of
    freedom that is. A variance of f of them is off by about 2 / f of itself, and one
    point's from another's by 2 / ALIKE.
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
    """Covariance of a random walk around its mean, of variance 1 on the average."""
    steps = np.arange(1.0, count + 1)
    walk = np.minimum(steps[:, None], steps)
    walk = walk - walk.mean(axis=0) - walk.mean(axis=1)[:, None] + walk.mean()
    return np.asarray(walk / max(float(np.trace(walk)) / count, 1e-9), np.float64)


def _starts(lives: Floats) -> Floats | None:
    """Who shares an engine's start; None where all do, or nobody does."""
    same = lives[:, None] == lives
    if same.all() or same.sum() == len(lives):
        return None
    return np.asarray(same, np.float64)


def _log(score: float) -> float:
    """Of nothing it is less than of anything; how much less is bounded later."""
    return min(math.log(score), MOST_LOG) if score > 0 else -MOST_LOG


def _own_error(count: _Counted) -> float | None:
    known = [own for *_, own in count.values if own is not None]
    if not known or len(known) < len(count.values):
        return None
    return math.sqrt(sum(own * own for own in known)) / len(known)
