"""How a field of a load plan is presented: its bounds, flags and form row.

A field's ``PlanOption`` is part of its type, so everything about it is declared once:
the plan is validated by it, and ``inferwatch load``, ``--help`` and the Load screen are
built from it.
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
"""The number of ports to one server."""
MOST_REQUESTS = 10_000_000
"""Arrival times are computed in advance; longer plans need a duration."""
ANY_ARRIVALS = frozenset(Arrivals)


class Bounds(NamedTuple):
    """Bounds of a number, to catch mistakes and unmanageable loads.

    ``nan`` and ``inf`` are within no bounds.
    """

    low: float
    high: float
    above: bool = False
    """Excludes ``low`` itself."""

    def hold(self, value: float | None) -> bool:
        """Whether a value is within the bounds; None counts as within."""
        if value is None:
            return True
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def __str__(self) -> str:
        """The bounds in the words of error messages."""
        if self.above:
            return f"above {self.low:g}, at most {self.high:,.0f}"
        return f"from {self.low:g} to {self.high:,.0f}"


ABOVE_0_S = Bounds(0, MOST_S, above=True)
FROM_0_S = Bounds(0, MOST_S)
USERS = Bounds(1, MOST_CONNECTIONS)
RATE = Bounds(0, MOST_PER_S, above=True)
PRIORITY = Bounds(-(1 << 63), (1 << 63) - 1)
"""What vLLM takes."""


class Heading(StrEnum):
    """A heading that ``inferwatch load --help`` groups flags under."""

    WHEN = "When to send"
    WHAT = "What to ask"
    HOW = "How to reach the server"
    HOLDS = "What must hold"


class ShownBounds(StrEnum):
    """Which bounds a flag's help shows; the plan checks both."""

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
    """Position among the flags under its heading."""
    help: str
    _: KW_ONLY
    metavar: str | None = None
    key: str = ""
    """The key it sets, where that differs from the field's name."""
    words: tuple[str, ...] = ()
    """Allowed values, if limited."""
    is_file: bool = False
    repeats: bool = False
    sets: bool | None = None
    """For a switch: the value it sets."""
    shown: ShownBounds = ShownBounds.LOW


@dataclass(frozen=True, slots=True)
class FormRow:
    """A row of the Load screen's form."""

    key: str
    place: int
    label: str
    hint: str
    """Its unit, or the meaning of leaving it empty."""
    _: KW_ONLY
    read: Callable[[str], dict[str, Any]] | None = None
    """Parses text into fields of the plan; None: the field itself."""
    write: Callable[[Any], str] | None = None
    """Formats a plan's fields as text; None: the field itself."""


class PlanOption:
    """What is declared about a plan field besides its type and default."""

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
        """Arrival processes the field applies to."""
        self.elsewhere = elsewhere
        """Error message for other arrival processes."""
        self.read = read
        """Parses a line of text. Raises ValueError with a message for users."""
        self.row = row
