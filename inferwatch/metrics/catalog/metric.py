"""What a metric is: a row of facts that tables, help and exports read."""

from dataclasses import dataclass, replace
from enum import StrEnum

from collectors.contract.readings import Vantage

NOW = "now"
"""The span of what holds at the moment shown, whatever the window."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowFact:
    """How Overview's flow shows a number; the first of a column is drawn strong."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyLine:
    """How the latency table shows a latency."""

    ink: str
    """Of its trend: that of the phase it belongs to in the flow."""
    part: bool = False
    """It stands indented, as a part of the one above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number a screen may show."""

    key: str
    """``ttft_s`` for a row of the latency table, ``flow.waiting`` for a field."""
    abbr: str
    """The label that screens give it."""
    title: str
    unit: Unit
    better: Better = Better.NEITHER
    definition: str
    """One sentence."""
    formula: str
    """The readings it is made of."""
    vantage: Vantage | None = None
    """Who measured; None for what inferwatch counts itself."""
    span: str | None = None
    """What it covers, where that is not the window."""
    flow: FlowFact | None = None
    """Its place on Overview; those of a column stand in the order of the catalog."""
    line: LatencyLine | None = None
    """Its place in the latency table, which is in the order of the catalog."""


def metrics(
    part: str, vantage: Vantage | None, *rows: Metric, span: str | None = None
) -> tuple[Metric, ...]:
    """The numbers of one part of a snapshot, all of one vantage and one span.

    The rows need not say these; a row that tells a span of its own keeps it.
    """
    return tuple(
        replace(row, key=part + row.key, vantage=vantage, span=row.span or span)
        for row in rows
    )
