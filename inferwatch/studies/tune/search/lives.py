"""What a running engine can be turned to, and what the next one is started with."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inferwatch.studies.tune.search.standings import SearchRules, standings
from inferwatch.studies.tune.space import LIVE_FLAGS, Point, Space
from inferwatch.studies.tune.trial import Trial, TrialOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLife:
    """What a running engine was started with, and so what it can be turned to."""

    start: Point
    number: int | None = None
    """As :attr:`TrialRecord.life` has it; None: that of the latest trial."""

    def reaches(self, point: Point) -> bool:
        """It can be had without a restart."""
        return _covers(self.start, point)


def life_for(
    space: Space, rules: SearchRules, trials: Sequence[Trial], next_point: Point
) -> Point:
    """What to start the engine with that is to measure this point next.

    Live limits go downwards only, so it starts with the largest values of all points
    that may still be measured and need no other flags. Where an engine with as much
    did not come up, with less: with what reaches most of them.
    """
    failed = [
        each.point for each in trials if each.record.outcome is TrialOutcome.NOT_STARTED
    ]
    alive = [each.point for each in standings(space, rules, trials) if each.alive]
    group = [e for e in alive if e.restart_flags == next_point.restart_flags]
    wanted = [next_point, *(each for each in group if each != next_point)]
    choices = [_largest(wanted), *(e for e in wanted if _covers(e, next_point))]
    able = [e for e in choices if not any(_covers(e, bad) for bad in failed)]
    # What is as large as one that failed may start all the same; nothing else is left.
    return max(
        able or [next_point],
        key=lambda start: sum(_covers(start, each) for each in wanted),
    )


def _covers(start: Point, point: Point) -> bool:
    if point.restart_flags != start.restart_flags:
        return False
    live = [each for each in point.flags if each[0] in LIVE_FLAGS]
    return all(_is_within(value, start.value(flag)) for flag, value in live)


def _is_within(value: str, start: str | None) -> bool:
    """What is no number is what the engine chooses, and nobody knows before."""
    if value == start:
        return True
    return (
        value.isdecimal()
        and (start or "").isdecimal()
        and int(value) <= int(start or 0)
    )


def _largest(points: Iterable[Point]) -> Point:
    """The largest value of each live flag; the others are the same in all."""
    first, *others = points
    flags = []
    for flag, value in first.flags:
        values = [value, *(each.value(flag) or value for each in others)]
        turned = flag in LIVE_FLAGS and all(each.isdecimal() for each in values)
        flags.append((flag, max(values, key=int) if turned else value))
    return Point(flags=tuple(flags))
