"""Chooses what to measure next, given all that was measured before."""

from collections.abc import Sequence
from dataclasses import dataclass

from inferwatch.tune.rules import SearchRules
from inferwatch.tune.space import Point, Space
from inferwatch.tune.trial import Trial

__all__ = ["EngineLife", "NextTrial", "SearchRules", "next_trial"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTrial:
    """What to measure now, and why."""

    point: Point
    repeat: int
    why: str
    """Fit to show: ``the present setting again: has the machine drifted?``"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLife:
    """What a running engine was started with, and so what it can be turned to."""

    start: Point

    def reaches(self, point: Point) -> bool:
        """It can be had without a restart."""
        if point.restart_flags != self.start.restart_flags:
            return False
        live = [each for each in point.flags if each not in point.restart_flags]
        return all(int(value) <= int(self.start.value(f) or 0) for f, value in live)


def next_trial(
    space: Space,
    rules: SearchRules,
    trials: Sequence[Trial],
    life: EngineLife | None,
) -> NextTrial | None:
    """The next trial; None when more would tell nothing more.

    A function of what was measured alone, so a tune that was killed goes on where it
    was. ``life`` is the engine that runs now, so that restarts are few.
    """
    del life, rules
    tried = {each.point for each in trials}
    for point in space.points:
        if point not in tried:
            return NextTrial(point=point, repeat=0, why="each setting once")
    return None
