"""Which settings a running engine can reach, and what to start the next one with."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inferwatch.studies.tune.search.standings import SearchRules, standings
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
