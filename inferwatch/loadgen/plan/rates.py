"""Rates that vary over time."""

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

import msgspec

MOST = 1e9
"""Bound on seconds and on requests per second: more is a mistake."""


class RateSeries(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests per second over time, linear between points.

    Two points at the same time make a step. After the last point its rate continues, or
    with ``period_s`` the series repeats.
    """

    points: tuple[tuple[float, float], ...]
    """(seconds from the start, requests per second), in order; the first at 0."""
    period_s: float | None = None

    def __post_init__(self) -> None:
        """Reject points that are not a function of time."""
        for broken, why in self._faults():
            if broken:
                raise ValueError(f"rates: {why}")

    def _faults(self) -> list[tuple[bool, str]]:
        times = [at_s for at_s, _ in self.points]
        rates = [rate for _, rate in self.points]
        end_s = times[-1] if times else 0.0
        return [
            (not times or times[0] != 0, "the first point must be at 0 s"),
            (times != sorted(times), "the points must be in order of time"),
            (min(rates, default=0) < 0, "a rate cannot be below 0"),
            (
                not all(0 <= each < MOST for each in (*times, *rates)),
                f"times and rates must be from 0 to below {MOST:,.0f}",
            ),
            (max(rates, default=0) <= 0, "some rate must be above 0"),
            (
                self.period_s is not None
                and not max(end_s, 1e-3) <= self.period_s < MOST,
                "the period must reach to the last point",
            ),
        ]

    def rate_at(self, at_s: float) -> float:
        if self.period_s is not None:
            at_s %= self.period_s
        after = bisect_right(self.points, at_s, key=itemgetter(0))
        before_s, before = self.points[after - 1]
        if after == len(self.points):
            return before
        after_s, rate = self.points[after]
        return before + (rate - before) * (at_s - before_s) / (after_s - before_s)


def flat(rate_per_s: float) -> RateSeries:
    return RateSeries(points=((0.0, rate_per_s),))


def ramp(begin_per_s: float, end_per_s: float, over_s: float) -> RateSeries:
    """A rate that changes linearly to another, and then stays."""
    return RateSeries(points=((0.0, begin_per_s), (over_s, end_per_s)))


def steps(rates_per_s: Sequence[float], each_s: float) -> RateSeries:
    """One rate after the other; the last continues."""
    points = []
    for number, rate in enumerate(rates_per_s):
        points += [(number * each_s, rate), ((number + 1) * each_s, rate)]
    return RateSeries(points=tuple(points))


def on_off(
    on_per_s: float, on_s: float, off_s: float, off_per_s: float = 0.0
) -> RateSeries:
    """A rate for a while, then another (or none) for a while, repeated."""
    points = ((0.0, on_per_s), (on_s, on_per_s), (on_s, off_per_s))
    return RateSeries(points=points, period_s=on_s + off_s)
