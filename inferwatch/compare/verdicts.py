"""What may be said of a metric of two sessions, so that a false alarm stays rare.

Many metrics are judged at once, and one in twenty would differ by chance. Holm's
step-down holds the chance of even one false alarm to 5%, however the metrics hang
together (Holm 1979, A simple sequentially rejective multiple test procedure).
"""

from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from inferwatch.compare.metrics import JudgedMetric
from inferwatch.compare.significance import Difference
from inferwatch.metrics.catalog import Better

SHARED = 2.0
"""About so much farther out is the 5% that many metrics share."""
MATTERS = 0.10
"""A relative difference that should have been found, had it been there."""


class MetricVerdict(StrEnum):
    """What is said of a metric of session B against that of A."""

    BETTER = "better"
    WORSE = "worse"
    DIFFERS = "differs"
    """Shown, and neither good nor bad by itself."""
    SAME = "no difference shown"
    OPEN = "cannot tell"


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted, in the order given: at most alpha means shown."""
    order = np.argsort(p_values, kind="stable")
    left = len(p_values) - np.arange(len(p_values))
    steps = np.minimum(np.asarray(p_values, float)[order] * left, 1.0)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.maximum.accumulate(steps) if len(steps) else steps
    return [float(each) for each in adjusted]


def direction(metric: JudgedMetric, difference: float) -> MetricVerdict:
    """Which way is good, the catalog says."""
    if metric.better is Better.NEITHER:
        return MetricVerdict.DIFFERS
    higher = difference > 0
    return (
        MetricVerdict.BETTER
        if higher == (metric.better is Better.HIGHER)
        else MetricVerdict.WORSE
    )


def coarseness(metric: JudgedMetric, found: Difference, matters: float) -> float:
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


def uncertainty(found: Difference) -> float:
    """The interval toward zero, widened to be shown among others, by the distance."""
    low, high = found.span()
    toward = found.difference - low if found.difference > 0 else high - found.difference
    away = abs(found.difference)
    return SHARED * toward / away if away else float("inf")
