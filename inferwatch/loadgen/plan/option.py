"""How a field of a load plan is offered: its bounds, its flag, its row of the form.

A field's ``PlanOption`` is part of its type, so that all that is said of it is said
once: the plan is judged by it, and ``inferwatch load``, ``--help`` and the Load screen
are made from it.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from inferwatch.loadgen.plan.parts import Arrivals

MOST_S = 1e8
"""Three years."""
MOST_PER_S = 1e6
MOST_CONNECTIONS = 65_535
"""There are no more ports to one server."""
MOST_REQUESTS = 10_000_000
"""Their times are drawn beforehand; for more, a plan has a duration."""
ANY_ARRIVALS = frozenset(Arrivals)


class Bounds(NamedTuple):
    """How far a number may go: beyond, it is a slip or ends in grief.

    What is no number at all (``nan``, ``inf``) is within no bounds.
    """

    low: float
    high: float
    above: bool = False
    """More than ``low``."""

    def hold(self, value: float | None) -> bool:
        """Whether a value is within the bounds; a value that is not given is."""
        if value is None:
            return True
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def __str__(self) -> str:
        """The bounds as error messages say them."""
        if self.above:
            return f"above {self.low:g}, at most {self.high:,.0f}"
        return f"from {self.low:g} to {self.high:,.0f}"


ABOVE_0_S = Bounds(0, MOST_S, above=True)
FROM_0_S = Bounds(0, MOST_S)
USERS = Bounds(1, MOST_CONNECTIONS)
RATE = Bounds(0, MOST_PER_S, above=True)


class Heading(StrEnum):
    """A heading under which ``inferwatch load --help`` lists flags."""

    WHEN = "When to send"
    WHAT = "What to ask"
    HOW = "How to reach the server"
    HOLDS = "What must hold"


class ShownBounds(StrEnum):
    """Which of a number's bounds its flag tells; the plan judges them all."""

    NEITHER = "neither"
    LOW = "low"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of ``inferwatch load`` that sets a field of the plan."""

    name: str
    """``--flag``, or ``--flag/--opposite``."""
    heading: Heading
    place: int
    """Among the plan's flags under that heading."""
    help: str
    _: KW_ONLY
    metavar: str | None = None
    key: str = ""
    """What it sets, where that is not the field itself but a key that leads to it."""
    words: tuple[str, ...] = ()
    """The choice, where there is one."""
    is_file: bool = False
    repeats: bool = False
    sets: bool | None = None
    """Of a switch: what giving it means."""
    shown: ShownBounds = ShownBounds.LOW


@dataclass(frozen=True, slots=True)
class FormRow:
    """A row of the Load screen's form."""

    key: str
    place: int
    label: str
    hint: str
    """What it is in, or what leaving it empty means."""
    _: KW_ONLY
    read: Callable[[str], dict[str, Any]] | None = None
    """The plan's fields that a text gives, where it is not this field as typed."""
    write: Callable[[Any], str] | None = None
    """The text of a plan's fields, likewise."""


class PlanOption:
    """What is known of one field of a plan beside its type and its default."""

    def __init__(
        self,
        *flags: Flag,
        bounds: Bounds | None = None,
        of: frozenset[Arrivals] = ANY_ARRIVALS,
        elsewhere: str = "",
        read: Callable[[str], Any] | None = None,
        row: FormRow | None = None,
    ) -> None:
        self.flags = flags
        self.bounds = bounds
        self.of = of
        """The arrivals with which it means something."""
        self.elsewhere = elsewhere
        """What to say where it means nothing."""
        self.read = read
        """Its value, as a line of text gives it. Raises ValueError, fit to show."""
        self.row = row
