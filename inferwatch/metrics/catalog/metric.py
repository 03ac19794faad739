"""What a metric is: a row of facts that tables, help and exports read."""

from dataclasses import dataclass, replace

from collectors.contract.readings import Vantage
from inferwatch.metrics.number import (
    NOW,
    Better,
    FlowColumn,
    FlowFact,
    LatencyLine,
    Number,
    Unit,
)

__all__ = [
    "NOW",
    "Better",
    "FlowColumn",
    "FlowFact",
    "LatencyLine",
    "Metric",
    "Unit",
    "metrics",
    "said_of",
]


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


def said_of(row: Metric) -> Number:
    """The same, as a field would say it."""
    return Number(
        row.abbr,
        row.title,
        row.definition,
        unit=row.unit,
        better=row.better,
        vantage=row.vantage,
        span=row.span,
        place=row.flow or row.line,
        key=row.key,
    )
