"""The part of the requests in which a metric changed most."""

from dataclasses import dataclass
from enum import StrEnum

from inferwatch.studies.compare.metrics import JudgedMetric
from inferwatch.studies.compare.statistics.significance import Interval


class Cut(StrEnum):
    """The property by which requests are grouped."""

    TIME = "schedule time"
    PROMPT = "prompt tokens"
    CLASS = "class"
    TURN = "turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedPart:
    """A part of both sides' requests in which a metric changed most."""

    metric: JudgedMetric
    cut: Cut
    part: str
    """The part in words: ``from 00:40``, ``over 1k``, or the name of a class."""
    a: float
    b: float
    n_a: int
    n_b: int
    ratio: float
    ratio_span: Interval | None = None
    rest_ratio: float | None = None
    """The ratio for all other requests; None if they are too few."""
    statistic: str | None = None
    """The statistic of a and b, where the part is too small for the metric's own."""
    is_all: bool = False
    """Whether the rest shows no change; otherwise most of the change is here."""
    also: "ChangedPart | None" = None
    """When the change happened, if this part says which requests it affected."""
    sentence: str = ""
    """To be shown after the name of the metric."""
