"""Rates that vary over time, and the arrivals they produce.

The n-th arrival comes when the integral of the rate reaches the n-th arrival of the
same process at a rate of one. So the process (constant, Poisson, gamma) and the rate
(steps, ramps, on and off) are independent of each other.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
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
        """Reject points that are no function of time."""
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
        times, rates = np.array(self.points).T
        after = int(np.searchsorted(times, at_s, side="right"))
        if after == len(times):
            return float(rates[-1])
        return float(np.interp(at_s, times[after - 1 :], rates[after - 1 :]))

    def passed(self, at_s: float) -> float:
        """Arrivals due by a time: the integral of the rate."""
        segments = self._segments()
        if self.period_s is None:
            return segments.passed(at_s)
        periods, into_s = divmod(at_s, self.period_s)
        return periods * segments.total + segments.passed(into_s)

    def moments(self, arrivals: Floats) -> Floats:
        """Times in seconds of ascending arrival numbers; those never due are cut off.

        An arrival number is the integral of the rate and may be fractional.
        """
        segments = self._segments()
        if self.period_s is None:
            return _moments(segments, arrivals)
        whole = np.maximum(np.ceil(arrivals / segments.total) - 1, 0)
        rest = np.minimum(arrivals - whole * segments.total, segments.total)
        return np.asarray(whole * self.period_s + _moments(segments, rest))

    def _segments(self) -> "_Segments":
        times, rates = np.array(self.points).T
        end_s = np.inf if self.period_s is None else self.period_s
        lengths = np.diff(np.append(times, end_s))
        slopes = np.diff(np.append(rates, rates[-1])) / np.where(lengths, lengths, 1)
        with np.errstate(invalid="ignore"):  # a rate of 0 for ever
            areas = np.nan_to_num(
                (rates + np.append(rates[1:], rates[-1])) / 2 * lengths, posinf=np.inf
            )
        return _Segments(times, rates, slopes, areas)


class _Segments:
    """The linear segments of a series, and the arrivals in each."""

    def __init__(
        self, starts_s: Floats, rates: Floats, slopes: Floats, areas: Floats
    ) -> None:
        self.starts_s = starts_s
        self.rates = rates
        self.slopes = slopes
        self.reached = np.cumsum(areas)
        self.before = np.append(0, self.reached[:-1])
        self.total = float(self.reached[-1])

    def passed(self, at_s: float) -> float:
        """Arrivals up to a time."""
        at = int(np.searchsorted(self.starts_s, at_s, side="right")) - 1
        into_s = at_s - self.starts_s[at]
        area = self.rates[at] * into_s + self.slopes[at] * into_s**2 / 2
        return min(float(self.before[at] + area), self.total)


def _moments(segments: _Segments, arrivals: Floats) -> Floats:
    arrivals = arrivals[arrivals <= segments.total]
    at = np.searchsorted(segments.reached, arrivals)
    into = arrivals - segments.before[at]
    rate, slope = segments.rates[at], segments.slopes[at]
    root = np.sqrt(np.maximum(rate**2 + 2 * slope * into, 0))
    pace = rate + root
    passed_s = np.divide(2 * into, pace, out=np.zeros_like(into), where=pace > 0)
    return np.asarray(segments.starts_s[at] + passed_s, np.float64)


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
