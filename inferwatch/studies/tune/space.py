"""The search space: flags of ``vllm serve``, their values, and all combinations."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from inferwatch.errors import UsageError

LIVE_FLAGS = ("max-num-seqs", "max-num-batched-tokens")
"""Flags that can be lowered while an engine started with control is running."""
UNSET = "default"
"""The value of a flag that is not given, so that the engine chooses."""
MOST_POINTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A flag and the values to try, in their order."""

    flag: str
    """Without dashes, for example ``max-num-seqs``."""
    values: tuple[str, ...]
    """As typed; a switch has ``on`` and ``off``."""

    @property
    def is_live(self) -> bool:
        """Whether the flag's value can be changed while the engine runs."""
        return self.flag in LIVE_FLAGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One setting: a value for each variable, in their order."""

    flags: tuple[tuple[str, str], ...]

    def value(self, flag: str) -> str | None:
        """The flag's value; None if the point does not set it."""
        return dict(self.flags).get(flag)

    @property
    def command_flags(self) -> tuple[str, ...]:
        given = (each for each in self.flags if each[1] != UNSET)
        return tuple(_written(flag, value) for flag, value in given)

    @property
    def text(self) -> str:
        """The setting as text: ``max-num-seqs 16 · max-num-batched-tokens 512``."""
        return " · ".join(f"{flag} {value}" for flag, value in self.flags)

    @property
    def restart_flags(self) -> tuple[tuple[str, str], ...]:
        """The flags that cannot be changed without a restart."""
        return tuple(each for each in self.flags if each[0] not in LIVE_FLAGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All points, one of which is the present setting."""

    variables: tuple[Variable, ...]
    present: Point
    """One of the points, even if its values are not among those to try."""

    @property
    def points(self) -> tuple[Point, ...]:
        """Each combination of values once, the present setting first."""
        names = [each.flag for each in self.variables]
        combined = product(*(each.values for each in self.variables))
        points = (
            Point(flags=tuple(zip(names, values, strict=True))) for values in combined
        )
        others = [each for each in points if each != self.present]
        return self.present, *others


def space_of(variables: Sequence[Variable], present: Point) -> Space:
    """The space of these variables around the present setting.

    Raises:
        UsageError: there are too many points.
    """
    space = Space(variables=tuple(variables), present=present)
    if len(space.points) > MOST_POINTS:
        raise UsageError(
            f"that makes {len(space.points)} settings: vary fewer flags or values "
            f"({MOST_POINTS} at most)"
        )
    return space


def _written(flag: str, value: str) -> str:
    switches = {"on": f"--{flag}", "off": f"--no-{flag}"}
    return switches.get(value, f"--{flag}={value}")
