"""Chooses what to measure next, given all that was measured before.

It works as a race. First each point is measured once in random order, with the present
setting in between again and again to show the machine's drift, which
:mod:`inferwatch.studies.tune.search.standings` removes. Then points clearly below the
best are dropped and the rest is measured again in rounds: of the others only the top
third goes on to the next round, as repeats tell most there; those left behind are *not
told apart*, never called worse. The race ends when the best is told apart from all who
go on, or when the difference would not matter, or is so small that all repeats would
hardly show it, or when repeats are used up.

Restarts cost as much as a few trials, so all points that an engine can reach are
measured before the next one starts. The present setting is measured at the beginning of
each engine life that reaches it, and whenever the trials since have cost EVERY times as
much as measuring it would; that is less often where it needs a restart of its own.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil, log, sqrt

from inferwatch.studies.tune.search.standings import (
    PointStanding,
    SearchRules,
    standings,
)
from inferwatch.studies.tune.space import LIVE_FLAGS, Point, Space
from inferwatch.studies.tune.trial import Trial, TrialOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLife:
    """What a running engine was started with, which limits what it can reach."""

    start: Point
    number: int | None = None
    """As in :attr:`TrialRecord.life`; None means that of the latest trial."""

    def reaches(self, point: Point) -> bool:
        """Whether the engine can be given this setting without a restart."""
        return _covers(self.start, point)


def life_for(
    space: Space, rules: SearchRules, trials: Sequence[Trial], next_point: Point
) -> Point:
    """The setting to start the engine with so that it can measure this point next.

    Live limits can only be lowered, so it has the largest values of all points that may
    still be measured and need no other flags. If an engine that large failed to start,
    it is a smaller one that still reaches most of them.
    """
    failed = [
        each.point for each in trials if each.record.outcome is TrialOutcome.NOT_STARTED
    ]
    alive = [each.point for each in standings(space, rules, trials) if each.alive]
    group = [e for e in alive if e.restart_flags == next_point.restart_flags]
    points = [next_point, *(each for each in group if each != next_point)]
    choices = [_largest(points), *(e for e in points if _covers(e, next_point))]
    able = [e for e in choices if not any(_covers(e, bad) for bad in failed)]
    # If all are as large as one that failed, try anyway: this one may start.
    return max(
        able or [next_point],
        key=lambda start: sum(_covers(start, each) for each in points),
    )


def _covers(start: Point, point: Point) -> bool:
    if point.restart_flags != start.restart_flags:
        return False
    live = [each for each in point.flags if each[0] in LIVE_FLAGS]
    return all(_is_within(value, start.value(flag)) for flag, value in live)


def _is_within(value: str, start: str | None) -> bool:
    """Whether the value is at most the start's; text values must be equal."""
    if value == start:
        return True
    return (
        value.isdecimal()
        and (start or "").isdecimal()
        and int(value) <= int(start or 0)
    )


def _largest(points: Iterable[Point]) -> Point:
    """The largest value of each live flag; other flags are equal in all points."""
    first, *others = points
    flags = []
    for flag, value in first.flags:
        values = [value, *(each.value(flag) or value for each in others)]
        turned = flag in LIVE_FLAGS and all(each.isdecimal() for each in values)
        flags.append((flag, max(values, key=int) if turned else value))
    return Point(flags=tuple(flags))


__all__ = [
    "EngineLife",
    "NextTrial",
    "SearchRules",
    "life_for",
    "next_trial",
    "trials_left",
]

EVERY = 4
"""The present setting is measured again after trials that cost this many times as much.
"""
EVERY_OF_FEW = 3
FEW = 12
"""With so few points, repeats of the present setting must show how much trials vary."""
GO_ON = 3
"""One in this many points goes on to the next round."""
FINALISTS = 3
"""At least this many go on, if they are not told apart."""
CONFIRMED = 3
"""Fewest trials of the best and of the present, however clear the result: a point that
leads after one trial was also lucky.
"""
SEEN = 2
"""Fewest trials of a rival before it is given up as too close to tell apart."""
HOPE = 2.0
"""A rival is hopeless if even this many times its difference would stay within the
interval.
"""
IN_ONE_LIFE = 2
"""Trials of a point before its engine ends, where a start costs more."""
SHRINKS = 0.6
"""Expected share of the candidates that go on each round, for the time estimate."""
SEVERAL = 2
KEPT = 4
"""Trials reserved for the leaders when time is short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTrial:
    """The point to measure next, and why."""

    point: Point
    repeat: int
    why: str
    """For example ``the present setting again: has the machine drifted?``."""


def next_trial(
    space: Space,
    rules: SearchRules,
    trials: Sequence[Trial],
    life: EngineLife | None,
) -> NextTrial | None:
    """The next trial; None if more trials would show nothing new.

    Depends only on earlier trials, so a tune that was killed continues where it was.
    ``life`` is the running engine, which helps to avoid restarts.
    """
    return _Race(space, rules, trials, life).next()


def trials_left(
    space: Space,
    rules: SearchRules,
    trials: Sequence[Trial],
    life: EngineLife | None,
) -> tuple[int, int]:
    """Estimated number of trials and engine starts still to come."""
    return _Race(space, rules, trials, life).left()


class _Race:
    """The state of the race, from which the next trial follows."""

    def __init__(
        self,
        space: Space,
        rules: SearchRules,
        trials: Sequence[Trial],
        life: EngineLife | None,
    ) -> None:
        self._rules, self._life = rules, life
        self._trials = [
            each for each in trials if each.record.outcome is not TrialOutcome.LEFT_OUT
        ]
        self._attempts = Counter(each.point for each in self._trials)
        self._standings = {
            each.point: each
            for each in standings(space, rules, trials)
            if rules.can_restart or life is None or life.reaches(each.point)
        }
        few = len(self._standings) <= FEW
        self._every = EVERY_OF_FEW if few else EVERY
        self._best = next((e for e in self._standings.values() if e.is_best), None)
        self._present = space.present

    def next(self) -> NextTrial | None:
        """The next trial; None if the race is over."""
        wanted = self._leaders() if self._time_is_short() else self._wanted()
        here = [point for point in wanted if self._reaches(point)]
        if (why := self._why_present(wanted, here)) is not None:
            return self._next_trial(self._present, f"the present setting {why}")
        if not wanted:
            return None
        point = min(here or self._repeats_here() or wanted, key=self._order)
        return self._next_trial(point, self._why(point)) if self._pays(point) else None

    def left(self) -> tuple[int, int]:
        """Estimated trials and starts left, if rivals drop out as they usually do."""
        new = self._new()
        racing = self._alive() if new else self._contenders()
        rounds = [len(new)] if new else []
        first = 2 if new else 1 + min((self._attempts[p] for p in racing), default=0)
        size = float(len(racing))
        for _ in range(first, self._rules.repeats + 1):
            size = max(size / GO_ON, min(size, FINALISTS)) if new else size * SHRINKS
            rounds.append(ceil(size * SHRINKS))
        trials = sum(rounds)
        trials += trials // self._every + 1
        return self._within_time(trials, self._starts_of(racing, rounds))

    def _starts_of(self, racing: Sequence[Point], rounds: Sequence[int]) -> int:
        """Estimated engine starts, one for each set of restart flags in each round."""
        groups = {point.restart_flags for point in racing}
        runs = self._life is not None and self._life.start.restart_flags in groups
        if len(groups) < SEVERAL:
            return len(groups) - runs
        shares = (SHRINKS**place for place in range(len(rounds)))
        visits = (
            min(ceil(len(groups) * share), size)
            for share, size in zip(shares, rounds, strict=True)
        )
        return max(sum(visits) - runs, 0)

    def _within_time(self, trials: int, starts: int) -> tuple[int, int]:
        left_s = self._rules.left_s
        if left_s is None:
            return trials, starts
        takes_s = trials * self._rules.trial_s + starts * self._rules.start_s
        share = min(left_s / takes_s, 1.0) if takes_s > 0 else 1.0
        return int(trials * share), ceil(starts * share)

    # What to measure: new points first, then the leading ones, in rounds.

    def _wanted(self) -> list[Point]:
        return self._new() or self._contenders()

    def _alive(self) -> list[Point]:
        return [point for point, each in self._standings.items() if each.alive]

    def _new(self) -> list[Point]:
        return [p for p in self._alive() if not self._standings[p].trials]

    def _contenders(self, ahead: int = 1) -> list[Point]:
        """The points still in the race that have the fewest trials.

        Points with up to ``ahead`` - 1 more trials are included.
        """
        if self._best is None:
            return []
        ranked = self._ranked()
        going = [p for place, p in enumerate(ranked) if self._is_rival(p, place)]
        if going or self._best.trials < CONFIRMED:
            going.append(self._best.point)
        if self._trials_of(self._present) in range(1, CONFIRMED):
            going.append(self._present)
        able = {p for p in going if self._attempts[p] < self._rules.repeats}
        fewest = min((self._attempts[point] for point in able), default=0)
        return [p for p in ranked if p in able and self._attempts[p] < fewest + ahead]

    def _ranked(self) -> list[Point]:
        sign = 1 if self._rules.goal.lower_is_better else -1
        every = self._standings.values()
        scored = [e for e in every if e.score is not None and not e.fails]
        scored.sort(key=lambda each: sign * (each.score or 0.0))
        return [each.point for each in scored]

    def _is_rival(self, point: Point, place: int) -> bool:
        each = self._standings[point]
        if each.is_best or not each.alive or each.close_to_best:
            return False
        if self._is_hopeless(each):
            return False
        if not each.like_best:  # Told apart but alive: perhaps it had bad luck.
            return True
        places = ceil(len(self._standings) / float(GO_ON) ** self._attempts[point])
        return place < max(FINALISTS, places)

    def _is_hopeless(self, each: PointStanding) -> bool:
        """Whether even all repeats would hardly distinguish the point from the best.

        The interval shrinks with the square root of the trials, and even HOPE times the
        measured difference would still be inside it.
        """
        attempts = self._attempts[each.point]
        if attempts < SEEN or each.against_best is None or not each.ratio_to_best:
            return False
        low, high = each.against_best
        reach = log(high / low) / 2 * sqrt(attempts / self._rules.repeats)
        return abs(log(each.ratio_to_best)) * HOPE < reach

    def _leaders(self) -> list[Point]:
        """The two leading points and the present one, to measure when time is short."""
        first = [*self._ranked()[:2], self._present]
        able = {
            point
            for point in first
            if self._attempts[point] < self._rules.repeats and self._pays(point)
        }
        fewest = min((self._attempts[point] for point in able), default=0)
        return [point for point in able if self._attempts[point] == fewest]

    # The present setting, between the others.

    def _why_present(
        self, wanted: Sequence[Point], here: Sequence[Point]
    ) -> str | None:
        """Why the present setting is measured next; None if it is not."""
        each = self._standings.get(self._present)
        if each is None or each.fails or not self._pays(self._present):
            return None
        if not each.trials:
            return "first: all is judged against it"
        if self._reaches(self._present):
            return self._why_in_between(wanted)
        # No engine is stopped for it; it comes between two engine starts.
        if here or not wanted or not self._present_is_due():
            return None
        return "again, in an engine of its own: has the machine drifted?"

    def _why_in_between(self, wanted: Sequence[Point]) -> str | None:
        """Why the present setting is measured next in the running engine, or None."""
        if self._present not in {each.point for each in self._in_life()} and wanted:
            return "in this engine, too: what else is measured in it is judged by it"
        since = self._since_present()
        round_is_over = since and not self._new() and not self._repeated()
        if len(since) >= self._every or (since and not wanted) or round_is_over:
            return "again: has the machine drifted?"
        return None

    def _present_is_due(self) -> bool:
        """Whether it is time to measure the present setting again.

        It is once the trials since its last one took ``EVERY`` times as long as another
        trial of it, with an engine start, would take.
        """
        since = self._since_present()
        starts = len({each.record.life for each in since})
        spent_s = len(since) * self._rules.trial_s + starts * self._rules.start_s
        return spent_s >= EVERY * (self._rules.trial_s + self._rules.start_s)

    def _since_present(self) -> list[Trial]:
        trials: list[Trial] = []
        for each in self._trials[::-1]:
            if each.point == self._present:
                break
            trials.append(each)
        return trials

    def _repeated(self) -> bool:
        """Whether a point other than the present has been measured twice."""
        return any(n > 1 for p, n in self._attempts.items() if p != self._present)

    # The running engine, the points it can reach, and the time left.

    def _reaches(self, point: Point) -> bool:
        return self._life is not None and self._life.reaches(point)

    def _in_life(self) -> list[Trial]:
        """The trials with the running engine."""
        if self._life is None or not self._trials:
            return []
        number = self._life.number
        number = self._trials[-1].record.life if number is None else number
        return [each for each in self._trials if each.record.life == number]

    def _repeats_here(self) -> list[Point]:
        """Points to repeat before the engine ends, if a new start costs more."""
        if self._new():
            return []
        here = Counter(each.point for each in self._in_life())
        again = [
            point
            for point in self._contenders(ahead=IN_ONE_LIFE)
            if self._reaches(point) and here[point] < IN_ONE_LIFE
        ]
        cheap = self._rules.start_s > len(again) * self._rules.trial_s
        return again if cheap else []

    def _pays(self, point: Point) -> bool:
        left_s = self._rules.left_s
        return left_s is None or self._costs_s(point) <= left_s

    def _costs_s(self, point: Point) -> float:
        start_s = 0.0 if self._reaches(point) else self._rules.start_s
        return self._rules.trial_s + start_s

    def _time_is_short(self) -> bool:
        """Whether another trial would use time reserved for the leading points."""
        if self._rules.left_s is None or self._best is None:
            return False
        best_s = self._costs_s(self._best.point)
        kept_s = (KEPT - 1) * self._rules.trial_s + best_s
        return self._rules.left_s < kept_s + self._rules.trial_s

    def _trials_of(self, point: Point) -> int:
        each = self._standings.get(point)
        return each.trials if each is not None else 0

    # Order and reasons.

    def _order(self, point: Point) -> tuple[int, bytes]:
        """Sort key: fewest attempts, then a random order given by the seed."""
        attempts = self._attempts[point]
        text = f"{self._rules.seed} {attempts} {point.text}"
        return attempts, blake2b(text.encode(), digest_size=8).digest()

    def _next_trial(self, point: Point, why: str) -> NextTrial:
        return NextTrial(point=point, repeat=self._attempts[point], why=why)

    def _why(self, point: Point) -> str:
        each = self._standings[point]
        if not each.trials:
            if self._attempts[point]:
                return "once more: the first time it failed"
            done = sum(bool(e.trials) or not e.alive for e in self._standings.values())
            return f"each setting once: {done + 1} of {len(self._standings)}"
        if each.is_best and each.doubts:
            return f"the best so far again, as it is in doubt: {each.doubts[0]}"
        if each.is_best:
            return "the best so far again: how sure is it?"
        if each.like_best:
            return "again: not told apart from the best so far"
        return "again, as it is next to the best: one trial may have had bad luck"
