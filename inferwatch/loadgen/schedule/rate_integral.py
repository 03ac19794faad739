"""The arrivals that rates produce.

The n-th arrival comes when the integral of the rate reaches the n-th arrival of the
same process at a rate of one. So the process (constant, Poisson, gamma) and the rate
(steps, ramps, on and off) are independent of each other.
"""

import numpy as np
from numpy.typing import NDArray

from inferwatch.loadgen.plan.rates import RateSeries

Floats = NDArray[np.float64]


def arrivals_by(rates: RateSeries, at_s: float) -> float:
    """Arrivals due by a time: the integral of the rate."""
    segments = _segments(rates)
    if rates.period_s is None:
        return segments.passed(at_s)
    periods, into_s = divmod(at_s, rates.period_s)
    return periods * segments.total + segments.passed(into_s)


def moments_of(rates: RateSeries, arrivals: Floats) -> Floats:
    """Times of ascending arrivals in seconds; those never due are cut off.

    An arrival number is the integral of the rate and may be fractional.
    """
    segments = _segments(rates)
    if rates.period_s is None:
        return segments.times(arrivals)
    whole = np.maximum(np.ceil(arrivals / segments.total) - 1, 0)
    rest = np.minimum(arrivals - whole * segments.total, segments.total)
    return np.asarray(whole * rates.period_s + segments.times(rest))


def _segments(series: RateSeries) -> "_Segments":
    times, rates = np.array(series.points).T
    end_s = np.inf if series.period_s is None else series.period_s
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

    def times(self, arrivals: Floats) -> Floats:
        """Times of ascending arrivals; those beyond the last are cut off."""
        arrivals = arrivals[arrivals <= self.total]
        at = np.searchsorted(self.reached, arrivals)
        into = arrivals - self.before[at]
        rate, slope = self.rates[at], self.slopes[at]
        root = np.sqrt(np.maximum(rate**2 + 2 * slope * into, 0))
        pace = rate + root
        passed_s = np.divide(2 * into, pace, out=np.zeros_like(into), where=pace > 0)
        return np.asarray(self.starts_s[at] + passed_s, np.float64)
