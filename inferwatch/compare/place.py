"""When, and for whom, a metric changed most."""

from dataclasses import dataclass
from enum import StrEnum

from inferwatch.compare.metrics import JudgedMetric
from inferwatch.compare.significance import Interval


class Cut(StrEnum):
    """By what requests are told apart."""

    TIME = "schedule time"
    PROMPT = "prompt tokens"
    CLASS = "class"
    TURN = "turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
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
    sentence: str = ""
    """Fit to stand behind the name of the metric."""
