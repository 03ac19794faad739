"""What may be said of a metric of two sessions, so that a false alarm stays rare.

Many metrics are judged at once, and one in twenty would differ by chance: what is said
outright holds over all of them (:mod:`inferwatch.studies.compare.statistics.family`),
what is probable holds of a metric by itself.
"""

import math
from enum import StrEnum

from inferwatch.metrics.number import Better
from inferwatch.metrics.series.intervals import ALPHA
from inferwatch.studies.compare.metrics import JudgedMetric
from inferwatch.studies.compare.statistics.significance import AnyDifference

SHARED = 2.0
"""About so much farther out is the 5% that many metrics share."""
MATTERS = 0.10
"""A relative difference that should have been found, had it been there."""

NEGLIGIBLE_SHARE = 0.005
"""So small a change is none: as many tokens come out as were asked for."""


class MetricVerdict(StrEnum):
    """What is said of a metric of session B against that of A."""

    BETTER = "better"
    WORSE = "worse"
    DIFFERS = "differs"
    """Shown, and neither good nor bad by itself."""
    PROBABLY_BETTER = "probably better"
    """Its own interval leaves zero out, as that of one in twenty does by chance."""
    PROBABLY_WORSE = "probably worse"
    PROBABLY_DIFFERS = "probably differs"
    SAME = "no difference shown"
    OPEN = "cannot tell"


PROBABLY = {
    MetricVerdict.BETTER: MetricVerdict.PROBABLY_BETTER,
    MetricVerdict.WORSE: MetricVerdict.PROBABLY_WORSE,
    MetricVerdict.DIFFERS: MetricVerdict.PROBABLY_DIFFERS,
}


def direction(
    metric: JudgedMetric, difference: float, *, sure: bool = True
) -> MetricVerdict:
    """Which way is good, its ``Number`` says."""
    said = MetricVerdict.DIFFERS
    if metric.better is not Better.NEITHER:
        higher = difference > 0
        good = higher == (metric.better is Better.HIGHER)
        said = MetricVerdict.BETTER if good else MetricVerdict.WORSE
    return said if sure else PROBABLY[said]


def is_negligible(metric: JudgedMetric, found: AnyDifference) -> bool:
    """Sure or not, nobody would care: several runs may agree to a thousandth."""
    least = max(metric.negligible, NEGLIGIBLE_SHARE * abs(found.a))
    return abs(found.difference) <= least


def is_clear(metric: JudgedMetric, found: AnyDifference) -> bool:
    """By itself it is no chance, nor does the interval beside it say that it may be."""
    low, high = found.ratio_span() or (math.inf, math.inf)
    shown = low > 1 or high < 1
    return shown and found.p_value <= ALPHA and not is_negligible(metric, found)


def coarseness(metric: JudgedMetric, found: AnyDifference, matters: float) -> float:
    """Half the interval's width, measured in what matters: above 1 is too coarse."""
    low, high = found.span()
    if max(abs(low), abs(high)) <= metric.negligible:
        return 0.0
    half = (high - low) / 2
    least = max(matters * abs(found.a), metric.negligible)
    spans = [half / least] if least else [0.0 if half == 0 else float("inf")]
    ratio_span = found.ratio_span()
    if ratio_span is not None:
        spans.append((ratio_span[1] - ratio_span[0]) / 2 / matters)
    return min(spans)


def uncertainty(found: AnyDifference) -> float:
    """The interval toward zero, widened to be shown among others, by the distance."""
    low, high = found.span()
    toward = found.difference - low if found.difference > 0 else high - found.difference
    away = abs(found.difference)
    return SHARED * toward / away if away else float("inf")
