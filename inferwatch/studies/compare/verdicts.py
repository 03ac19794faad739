"""The verdict on a metric of two sessions.

Many metrics are judged at once, and one in twenty would differ by chance. Definite
verdicts hold over all of them (:mod:`inferwatch.studies.compare.statistics.family`);
"probably" means that they hold only for the metric by itself.
"""

import math
from enum import StrEnum

from inferwatch.metrics.number import Better
from inferwatch.metrics.series.intervals import ALPHA
from inferwatch.studies.compare.metrics import JudgedMetric
from inferwatch.studies.compare.statistics.significance import AnyDifference

SHARED = 2.0
"""How much wider, roughly, an interval is when all metrics share the 5%."""
MATTERS = 0.10
"""The relative difference that a comparison should be able to detect."""

NEGLIGIBLE_SHARE = 0.005
"""A smaller relative change counts as none."""


class MetricVerdict(StrEnum):
    """The verdict on a metric of session B compared with A."""

    BETTER = "better"
    WORSE = "worse"
    DIFFERS = "differs"
    """Significant, but neither good nor bad by itself."""
    PROBABLY_BETTER = "probably better"
    """Its own interval excludes zero, as happens by chance once in twenty metrics."""
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
    """Better or worse, by the metric's ``better`` direction."""
    verdict = MetricVerdict.DIFFERS
    if metric.better is not Better.NEITHER:
        higher = difference > 0
        good = higher == (metric.better is Better.HIGHER)
        verdict = MetricVerdict.BETTER if good else MetricVerdict.WORSE
    return verdict if sure else PROBABLY[verdict]


def is_negligible(metric: JudgedMetric, delta: AnyDifference) -> bool:
    """Whether the difference is too small to matter, even if it is significant."""
    least = max(metric.negligible, NEGLIGIBLE_SHARE * abs(delta.a))
    return abs(delta.difference) <= least


def is_clear(metric: JudgedMetric, delta: AnyDifference) -> bool:
    """Whether the metric's own p-value and interval both exclude chance."""
    low, high = delta.ratio_span() or (math.inf, math.inf)
    clear = low > 1 or high < 1
    return clear and delta.p_value <= ALPHA and not is_negligible(metric, delta)


def coarseness(metric: JudgedMetric, delta: AnyDifference, matters: float) -> float:
    """Half the interval's width relative to ``matters``; above 1 is too wide."""
    low, high = delta.span()
    if max(abs(low), abs(high)) <= metric.negligible:
        return 0.0
    half = (high - low) / 2
    least = max(matters * abs(delta.a), metric.negligible)
    spans = [half / least] if least else [0.0 if half == 0 else float("inf")]
    ratio_span = delta.ratio_span()
    if ratio_span is not None:
        spans.append((ratio_span[1] - ratio_span[0]) / 2 / matters)
    return min(spans)


def uncertainty(delta: AnyDifference) -> float:
    """Relative uncertainty: the interval's reach toward zero / the difference."""
    low, high = delta.span()
    toward = delta.difference - low if delta.difference > 0 else high - delta.difference
    away = abs(delta.difference)
    return SHARED * toward / away if away else float("inf")
