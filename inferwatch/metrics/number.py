"""Descriptions of numbers, next to where they are stored: label, unit, help, place.

A field of a piece of the Snapshot has its ``Number`` in its type. Screens, help and
files name the field itself, as in ``label_of(Flow.waiting)``, so type checking finds a
missing field. What is not a field, such as a latency, is listed by its key next to what
computes it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar, dataclass_transform

from collectors.contract.readings import Vantage

Piece = TypeVar("Piece")
NOW = "now"
"""Span of values at the moment shown, whatever the window."""
LATEST_READING = "latest reading"
"""Span of the latest values of GPU and host sensors."""


class Better(StrEnum):
    """The direction in which a number should go."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


class Unit(StrEnum):
    """The unit of a number as screens write it; NONE for text and plain moments."""

    SECONDS = "s"
    PER_SECOND = "1/s"
    TOKENS = "tokens"
    TOKENS_PER_SECOND = "tokens/s"
    REQUESTS = "requests"
    STEPS = "steps"
    BLOCKS = "blocks"
    SHARE = "0-1"
    READINGS = "readings"
    MICROSECONDS = "µs"
    NANOSECONDS = "ns"
    BYTES = "bytes"
    GIGABYTES_PER_SECOND = "GB/s"
    """For values in bytes per second; 10^9 bytes."""
    WATTS = "W"
    JOULES = "J"
    JOULES_PER_TOKEN = "J/token"
    TOKENS_PER_SECOND_PER_WATT = "tokens/s/W"
    MEGAHERTZ = "MHz"
    CELSIUS = "°C"
    NONE = ""


class FlowColumn(StrEnum):
    """A column of the flow on Overview, by its title; from left to right."""

    TRAFFIC = "traffic"
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    OUT = "out"


@dataclass(frozen=True, slots=True)
class FlowFact:
    """How the flow on Overview shows a number; the first number of a column is bold.

    A column's numbers are in the order of their fields.
    """

    column: FlowColumn
    text: str | None = None
    """A format, where that of its unit does not fit."""
    percentiles: tuple[str, ...] = ()
    """The quantiles to show, one per line; the first without its name."""
    limit: str | None = None
    """The engine's setting that bounds it, shown behind it."""
    alarm: str = ""
    """Style while it is above zero, such as ``warn``."""
    inside: bool = False
    """Known only from requests and steps.

    Left out where these are not reported, as is a zero, which may mean that nobody
    counted.
    """
    beside: bool = False
    """Whether it stands on the line of the number before it, while above zero."""


@dataclass(frozen=True, slots=True)
class LatencyLine:
    """How the latency table shows a latency."""

    ink: str
    """Style of its trend: that of its phase in the flow."""
    part: bool = False
    """Whether it is indented, as a part of the row above."""


@dataclass(frozen=True, slots=True)
class Number:
    """The description of one number for screens, help and files."""

    label: str
    """The label on screens and in help."""
    title: str
    help: str
    """One sentence."""
    unit: Unit = Unit.NONE
    better: Better = Better.NEITHER
    vantage: Vantage | None = None
    """Who measured it, unless its piece says so; None: counted by inferwatch itself."""
    here: bool = False
    """Whether inferwatch counts it itself, unlike the other numbers of its piece."""
    span: str | None = None
    """The span it covers, if neither the window nor that of its piece."""
    place: FlowFact | LatencyLine | None = None
    """Where Overview shows it."""
    key: str = ""
    """Piece and field, such as ``flow.waiting``; set by ``piece``."""

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]


_OF_FIELDS: dict[object, Number] = {}
_OF_PIECES: dict[type, tuple[Number, ...]] = {}


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(field,)
)
def piece(
    name: str, vantage: Vantage | None = None, span: str | None = None
) -> Callable[[type[Piece]], type[Piece]]:
    """Make a class a frozen dataclass, and its numbers known as ``name.field``.

    ``vantage`` and ``span`` apply to all its numbers that do not set their own. With a
    plain ``dataclass(slots=True)``, type checking would not allow ``Flow.waiting``.
    """

    def declared(written: type[Piece]) -> type[Piece]:
        owner = dataclass(frozen=True, slots=True, kw_only=True)(written)
        numbers = {
            attribute: replace(
                number,
                key=f"{name}.{attribute}",
                vantage=None if number.here else number.vantage or vantage,
                span=number.span or span,
            )
            for attribute, number in _numbers_of(owner)
        }
        for attribute, number in numbers.items():
            _OF_FIELDS[getattr(owner, attribute)] = number
        _OF_PIECES[owner] = tuple(numbers.values())
        return owner

    return declared


def _numbers_of(owner: type) -> Iterator[tuple[str, Number]]:
    """Yield the numbers of an owner's fields, then those of its properties."""
    properties = {
        name: value.fget.__annotations__["return"]
        for name, value in vars(owner).items()
        if isinstance(value, property)
    }
    for name, hint in {**owner.__annotations__, **properties}.items():
        for number in getattr(hint, "__metadata__", ()):
            if isinstance(number, Number):
                yield name, number


def number_of(field: object) -> Number:
    """Return the description of a field, given as ``Flow.waiting``."""
    return _OF_FIELDS[field]


def numbers(*fields: object) -> tuple[Number, ...]:
    return tuple(number_of(each) for each in fields)


def numbers_in(owner: type) -> tuple[Number, ...]:
    """Return a piece's numbers in the order of its fields; properties come last."""
    return _OF_PIECES[owner]


def label_of(field: object) -> str:
    return number_of(field).label
