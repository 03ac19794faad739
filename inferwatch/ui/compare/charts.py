"""What the charts of a comparison show: latencies as CDFs, throughput over time."""

import math
from collections.abc import Sequence

import numpy as np

from inferwatch.compare.metrics import JudgedMetric
from inferwatch.compare.resampling import CountedValues
from inferwatch.compare.session_numbers import SessionNumbers, Throughput
from inferwatch.metrics.catalog import CATALOG
from inferwatch.ui.compare.chart import Overlay
from inferwatch.ui.shared.renderables.dashes import Curve
from inferwatch.ui.shared.renderables.scale import nice_ceiling, tick_text

POINTS = 240
TAILS = 0.001
"""A CDF is drawn from here to as much below 1."""
SHARES = ((0.0, "0"), (0.5, "50%"), (0.9, "90%"), (1.0, "100%"))
FALLBACKS = ("ttft_s", "client.ttft_s")
SMOOTH = 3
"""Bins of the throughput that are drawn as one."""


def cdf(sessions: Sequence[SessionNumbers], metric: JudgedMetric) -> Overlay | None:
    """Of the metric's distribution; of a rate: of TTFT."""
    names = (metric.of, *FALLBACKS)
    known = (name for name in names if any(_has(each, name) for each in sessions))
    name = next(known, None)
    if name is None:
        return None
    curves = tuple(
        _cdf(each.counted[name]) if _has(each, name) else () for each in sessions
    )
    ends = [x for curve in curves for x, _ in curve]
    lowest = min(ends)
    x_span = (lowest, max(*ends, lowest + 0.1))
    shown = CATALOG[name]
    vantage = f"{shown.vantage}, " if shown.vantage else ""
    return Overlay(
        title=f"{shown.abbr} CDF",
        note=f"{vantage}log s",
        names=tuple(each.name for each in sessions),
        curves=curves,
        x_span=x_span,
        y_top=1.0,
        x_ticks=_decades(x_span),
        y_ticks=SHARES,
    )


def throughput(sessions: Sequence[SessionNumbers]) -> Overlay | None:
    """Over the seconds since each one's load began."""
    lines = [each.throughput or Throughput(bin_s=1.0, per_s=()) for each in sessions]
    longest_s = max(line.bin_s * len(line.per_s) for line in lines)
    if not longest_s:
        return None
    curves = tuple(_over_time(line) for line in lines)
    top = nice_ceiling(max(y for curve in curves for _, y in curve))
    return Overlay(
        title="throughput",
        note="tokens/s, s since load began",
        names=tuple(each.name for each in sessions),
        curves=curves,
        x_span=(0.0, longest_s),
        y_top=top,
        x_ticks=_seconds(longest_s),
        y_ticks=tuple((share * top, tick_text(share * top)) for share in (0, 0.5, 1)),
    )


def _has(numbers: SessionNumbers, name: str) -> bool:
    return name in numbers.counted and numbers.counted[name].n > 0


def _cdf(values: CountedValues) -> Curve:
    """At most POINTS of it."""
    upto = np.cumsum(values.counts.sum(axis=0)) / values.n
    shares = np.linspace(TAILS, 1 - TAILS, POINTS)
    places = np.minimum(np.searchsorted(upto, shares), len(upto) - 1)
    logs = np.log10(np.maximum(values.values_s[places], 1e-9))
    return tuple(zip(logs.tolist(), shares.tolist(), strict=True))


def _over_time(line: Throughput) -> Curve:
    return tuple(
        ((low + SMOOTH / 2) * line.bin_s, sum(part) / len(part))
        for low in range(0, len(line.per_s), SMOOTH)
        if (part := line.per_s[low : low + SMOOTH])
    )


def _decades(x_span: tuple[float, float]) -> tuple[tuple[float, str], ...]:
    """Round values on a log axis: whole decades, and 2 and 5 where there are few."""
    low, high = math.floor(x_span[0]), math.ceil(x_span[1])
    steps = (1, 2, 5) if x_span[1] - x_span[0] < 2.5 else (1,)
    places = [math.log10(step) + power for power in range(low, high) for step in steps]
    inside = [place for place in places if x_span[0] <= place <= x_span[1]]
    return tuple((place, tick_text(10**place, "s")) for place in inside)


def _seconds(longest_s: float) -> tuple[tuple[float, str], ...]:
    step = nice_ceiling(longest_s / 5)
    count = int(longest_s / step)
    return tuple((n * step, f"{n * step:g} s") for n in range(count + 1))
