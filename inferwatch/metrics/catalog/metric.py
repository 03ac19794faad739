"""What a metric is: a row of facts that tables, help and exports read."""

from dataclasses import dataclass
from enum import StrEnum

from collectors.readings import Vantage


class Better(StrEnum):
    """Which way is good."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


class Unit(StrEnum):
    """As screens write it; NONE for text and plain moments."""

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
    NONE = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number a screen may show."""

    key: str
    """``ttft_s`` for a row of the latency table, ``flow.waiting`` for a field."""
    abbr: str
    title: str
    unit: Unit
    better: Better
    vantage: Vantage | None
    """Who measured; None for what inferwatch counts itself."""
    definition: str
    """One sentence."""
    formula: str
    """The readings it is made of."""
    span: str | None = None
    """What it covers, where that is not the window."""


Row = tuple[str, str, str, Unit, Better, str, str]
"""Key, abbreviation, title, unit, better, definition, formula."""


def metrics(
    prefix: str, vantage: Vantage | None, *rows: Row, span: str | None = None
) -> tuple[Metric, ...]:
    """Metrics of one vantage whose keys begin alike, all of one span."""
    return tuple(
        Metric(
            key=prefix + key,
            abbr=abbr,
            title=title,
            unit=unit,
            better=better,
            vantage=vantage,
            definition=definition,
            formula=formula,
            span=span,
        )
        for key, abbr, title, unit, better, definition, formula in rows
    )
