"""What is said of a number, beside where it is kept: label, unit, help, place.

A field of a piece of the Snapshot carries its ``Number`` in its type. Screens, help and
files name the field itself, as in ``label_of(Flow.waiting)``: type checking finds a
field that is not there. What is no field, such as a latency, is listed by its key
beside what makes it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar, dataclass_transform

from collectors.contract.readings import Vantage

Piece = TypeVar("Piece")
NOW = "now"
"""The span of what holds at the moment shown, whatever the window."""
LATEST_READING = "latest reading"
"""The span of what a sensor of a GPU or host told last."""


class Better(StrEnum):
    """Which way a number should go."""

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
    """Of a number in bytes per second; 10^9 bytes."""
    WATTS = "W"
    JOULES = "J"
    JOULES_PER_TOKEN = "J/token"
    TOKENS_PER_SECOND_PER_WATT = "tokens/s/W"
    MEGAHERTZ = "MHz"
    CELSIUS = "°C"
    NONE = ""


class FlowColumn(StrEnum):
    """A column of Overview's flow, by its title; from left to right."""

    TRAFFIC = "traffic"
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    OUT = "out"


@dataclass(frozen=True, slots=True)
class FlowFact:
    """How Overview's flow shows a number; the first of a column is drawn strong.

    Those of a column stand in the order of their fields.
    """

    column: FlowColumn
    text: str | None = None
    """A format, where that of its unit does not fit."""
    percentiles: tuple[str, ...] = ()
    """Which of its quantiles are shown, a line each; the first without its name."""
    limit: str | None = None
    """The engine's setting that bounds it, shown behind it."""
    alarm: str = ""
    """Its ink while it is above zero, such as ``warn``."""
    inside: bool = False
    """Only who sees requests and steps knows it: left out where nobody does, as is a
    zero, for it may only be that nobody counted."""


@dataclass(frozen=True, slots=True)
class LatencyLine:
    """How the latency table shows a latency."""

    ink: str
    """Of its trend: that of the phase it belongs to in the flow."""
    part: bool = False
    """It stands indented, as a part of the one above."""


@dataclass(frozen=True, slots=True)
class Number:
    """What screens, help and files say of one number."""

    label: str
    """What screens call it: the help explains it by the same word."""
    title: str
    help: str
    """One sentence."""
    unit: Unit = Unit.NONE
    better: Better = Better.NEITHER
    vantage: Vantage | None = None
    """Who measured, where its piece does not say; None: inferwatch counts it itself."""
    here: bool = False
    """It does so though others measure the rest of its piece."""
    span: str | None = None
    """What it covers, where that is neither the window nor what its piece says."""
    place: FlowFact | LatencyLine | None = None
    """Where Overview shows it."""
    key: str = ""
    """``flow.waiting``: of a field by piece and name, and not to be given there."""

    @property
    def name(self) -> str:
        """The name of its field."""
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

    Vantage and span that its numbers have in common need not be said at each. With a
    plain ``dataclass(slots=True)``, type checking would not allow ``Flow.waiting``.
    """

    def declared(written: type[Piece]) -> type[Piece]:
        owner = dataclass(frozen=True, slots=True, kw_only=True)(written)
        said = {
            attribute: replace(
                number,
                key=f"{name}.{attribute}",
                vantage=None if number.here else number.vantage or vantage,
                span=number.span or span,
            )
            for attribute, number in _numbers_of(owner)
        }
        for attribute, number in said.items():
            _OF_FIELDS[getattr(owner, attribute)] = number
        _OF_PIECES[owner] = tuple(said.values())
        return owner

    return declared


def _numbers_of(owner: type) -> Iterator[tuple[str, Number]]:
    """What the types of its fields say, then those of its properties."""
    properties = {
        name: value.fget.__annotations__["return"]
        for name, value in vars(owner).items()
        if isinstance(value, property)
    }
    for name, hint in {**owner.__annotations__, **properties}.items():
        for said in getattr(hint, "__metadata__", ()):
            if isinstance(said, Number):
                yield name, said


def number_of(field: object) -> Number:
    """What is said of a field, which is named as ``Flow.waiting``."""
    return _OF_FIELDS[field]


def numbers(*fields: object) -> tuple[Number, ...]:
    return tuple(number_of(each) for each in fields)


def numbers_in(owner: type) -> tuple[Number, ...]:
    """All of a piece, in the order of its fields; properties come last."""
    return _OF_PIECES[owner]


def label_of(field: object) -> str:
    return number_of(field).label
