"""Search for the highest rate that holds: double until one fails, then bisect.

A rate holds when the Wilson interval of its share of good requests lies above the
wanted share, and fails when it lies below. If the interval contains the share, the rate
is run again and requests are pooled, a few times, before the share itself decides. That
treats requests as independent: it is a stopping rule, not an interval to report.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from inferwatch.loadgen.plan.option import RATE
from inferwatch.metrics.series.intervals import share_interval

CLOSE_ENOUGH = 1.1
"""The search ends when the failing rate is within 10% of the one that holds."""
MOST_RUNS = 3
"""Runs of one rate."""
FARTHEST = 1 << 12
"""Largest factor from the first rate, up or down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """Pooled result of the runs at one rate."""

    rate_per_s: float
    n: int
    good: int
    certain: float
    """Effective number of independent requests; 0: nothing is certain."""
    runs: int = 1
    client_bound: bool = False

    @property
    def share(self) -> float | None:
        """The share of good requests; None if none was judged."""
        return self.good / self.n if self.n else None

    @property
    def ci95(self) -> tuple[float, float]:
        """The share's 95% interval, wider if neighbouring requests are correlated."""
        return share_interval((self.share or 0.0) * self.certain, self.certain)


class RateSearch:
    """Chooses the next rate to try from the results so far."""

    def __init__(self, first_per_s: float, share: float) -> None:
        self._first_per_s = first_per_s
        self._share = share
        self._points: dict[float, RatePoint] = {}

    @property
    def points(self) -> Sequence[RatePoint]:
        """All rates tried, in order of rate."""
        return sorted(self._points.values(), key=lambda point: point.rate_per_s)

    def add(self, point: RatePoint) -> None:
        """Add a run, pooled with others of the same rate."""
        previous = self._points.get(point.rate_per_s)
        if previous is not None:
            point = RatePoint(
                rate_per_s=point.rate_per_s,
                n=previous.n + point.n,
                good=previous.good + point.good,
                certain=previous.certain + point.certain,
                runs=previous.runs + point.runs,
                client_bound=previous.client_bound or point.client_bound,
            )
        self._points[point.rate_per_s] = point

    def holds(self, point: RatePoint) -> bool | None:
        """Whether enough requests are good at a rate; None while undecided."""
        lower, upper = share_interval(point.good, point.n)
        if lower >= self._share:
            return True
        if upper < self._share or point.share is None:
            return False
        return point.share >= self._share if point.runs >= MOST_RUNS else None

    @property
    def highest_held(self) -> float | None:
        """The highest rate that held and is below all that failed; None if none."""
        fails = self.lowest_failed
        rates = [p.rate_per_s for p in self.points if self.holds(p)]
        return max((r for r in rates if fails is None or r < fails), default=None)

    @property
    def lowest_failed(self) -> float | None:
        """The lowest rate that failed; None without any."""
        failed = (p.rate_per_s for p in self.points if self.holds(p) is False)
        return min(failed, default=None)

    @property
    def sentence(self) -> str:
        """The result as text: which rate meets the objectives."""
        best, failed = self.highest_held, self.lowest_failed
        if best is None and failed is None and self.next_rate() is not None:
            return "interrupted before any rate could be judged"
        share = f"{self._share:.0%} of requests"
        if best is None:
            return f"no rate met the objectives for {share}"
        upto = f"; {failed:.4g}/s does not" if failed is not None else ""
        bound = self._points[best].client_bound
        doubt = "; but there the client was too slow to be sure of it" if bound else ""
        return f"{best:.4g}/s meets the objectives for {share}{upto}{doubt}"

    def next_rate(self) -> float | None:
        """The rate to try next; None when the search has ended."""
        for point in self.points:
            if self.holds(point) is None:
                return point.rate_per_s
        low, high = self.highest_held, self.lowest_failed
        if low is None and high is None:
            return self._first_per_s
        if low is None or high is None:
            return self._farther((low or 0) * 2 or (high or 0) / 2)
        if high / low <= CLOSE_ENOUGH:
            return None
        return (low + high) / 2

    def _farther(self, rate_per_s: float) -> float | None:
        ratio = rate_per_s / self._first_per_s
        near = 1 / FARTHEST <= ratio <= FARTHEST
        return rate_per_s if near and RATE.hold(rate_per_s) else None
