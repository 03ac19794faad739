"""When, and for whom, a metric changed most."""

from dataclasses import dataclass
from enum import StrEnum

from inferwatch.studies.compare.metrics import JudgedMetric
from inferwatch.studies.compare.statistics.significance import Interval


class Cut(StrEnum):
    """By what requests are told apart."""

    TIME = "schedule time"
    PROMPT = "prompt tokens"
    CLASS = "class"
    TURN = "turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedPart:
    """A part of the requests of two sides in which a metric changed the most."""

    metric: JudgedMetric
    cut: Cut
    part: str
    """Which: ``from 00:40``, ``over 1k``, the name of a class."""
    a: float
    b: float
    n_a: int
    n_b: int
    ratio: float
    ratio_span: Interval | None = None
    rest_ratio: float | None = None
    """Of all other requests; None where there are too few."""
    statistic: str | None = None
    """What a and b are, where the part is too small for the metric's own."""
    is_all: bool = False
    """Elsewhere no change is shown; else most of it is here."""
    also: "ChangedPart | None" = None
    """The same change in time, where this one says for whom."""
    sentence: str = ""
    """Fit to stand behind the name of the metric."""
