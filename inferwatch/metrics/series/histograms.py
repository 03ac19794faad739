"""What the buckets of histograms say about a window: means, and bounds of percentiles.

A bucket counts the values up to its bound. So a percentile lies between two bounds, and
for a threshold there is a lower and an upper limit on how many values are below it.
That also holds for several histograms together, whatever their bounds, as each has such
limits. Only the mean is exact: sums and counts add up.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from inferwatch.metrics.series.quantiles import PERCENTS, ranks, weak_percentiles
from inferwatch.metrics.series.window import Bracket, Brackets, Quantiles

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """The values of one histogram in a window, or of several with equal bounds."""

    bounds: tuple[float, ...]
    """Rising, without the infinite one."""
    upto: Floats
    """Cumulative counts at each bound, followed by the total count."""
    sum: float

    @property
    def n(self) -> int:
        return int(self.upto[-1])


class Pool:
    """The values of several histograms together."""

    def __init__(self, histograms: Iterable[Buckets]) -> None:
        alike: dict[tuple[float, ...], list[Buckets]] = {}
        for each in histograms:
            if each.n > 0:
                alike.setdefault(each.bounds, []).append(each)
        self._parts = [_added(parts) for parts in alike.values()]
        self.n = sum(part.n for part in self._parts)
        self.sum = sum(part.sum for part in self._parts)
        self._bounds, self._least, self._most = _known(self._parts)

    @property
    def quantiles(self) -> Quantiles:
        """The total count and exact mean, without percentiles."""
        if not self.n:
            return Quantiles()
        return Quantiles(
            n=self.n, mean=self.sum / self.n, weak=weak_percentiles(self.n)
        )

    def brackets(self, *, interpolated: bool = False) -> Brackets:
        """Return the bounds of each percentile, by nearest rank like exact ones."""
        if not self.n:
            return Brackets()
        ranks_wanted = [*ranks(self.n), self.n]
        highs = self._least.searchsorted(ranks_wanted).tolist()
        same = self._most is self._least
        lows = highs if same else self._most.searchsorted(ranks_wanted).tolist()
        p50, p90, p95, p99, most = map(self._bracket, lows, highs)
        panel = self._interpolated() if interpolated else {}
        return Brackets(
            p50=p50, p90=p90, p95=p95, p99=p99, max=most, interpolated=panel
        )

    def share_within(self, limit: float) -> tuple[float, float] | None:
        """Return the least and greatest share of values up to ``limit``, if any."""
        if not self.n:
            return None
        place = int(np.searchsorted(self._bounds, limit, "right"))
        least = self._least[place - 1] if place else 0
        exact = place and self._bounds[place - 1] == limit
        above = place - 1 if exact else place
        most = self._most[above] if above < len(self._most) else self.n
        return float(least / self.n), float(most / self.n)

    def _bracket(self, low: int, high: int) -> Bracket:
        """Return the bracket from the bound before ``low`` to the bound at ``high``."""
        bounds = self._bounds
        first = min(float(bounds[0]), 0.0) if len(bounds) else 0.0
        return Bracket(
            low=float(bounds[low - 1]) if low else first,
            high=float(bounds[high]) if high < len(bounds) else None,
        )

    def _interpolated(self) -> dict[str, float]:
        """Return percentiles as Grafana shows them.

        Empty where several histograms with different bounds are pooled.
        """
        if len(self._parts) != 1:
            return {}
        (part,) = self._parts
        values = {
            name: histogram_quantile(percent / 100, part)
            for name, percent in PERCENTS.items()
        }
        return {name: value for name, value in values.items() if value is not None}


def histogram_quantile(share: float, buckets: Buckets) -> float | None:
    """Return what Prometheus's function of that name returns; None without values.

    It takes values to be spread evenly within a bucket, and those beyond the last bound
    to be equal to it.
    """
    bounds, upto = buckets.bounds, buckets.upto
    if not bounds or buckets.n <= 0:
        return None
    rank = share * float(upto[-1])
    place = int(np.searchsorted(upto[:-1], rank, "left"))
    if place == len(bounds):
        return bounds[-1]
    if place == 0 and bounds[0] <= 0:
        return bounds[0]
    start = bounds[place - 1] if place else 0.0
    before = float(upto[place - 1]) if place else 0.0
    inside = float(upto[place]) - before
    return start + (bounds[place] - start) * ((rank - before) / inside)


def _added(parts: Sequence[Buckets]) -> Buckets:
    if len(parts) == 1:
        return parts[0]
    total = np.sum([part.upto for part in parts], axis=0)
    return Buckets(parts[0].bounds, total, sum(part.sum for part in parts))


def _known(parts: Sequence[Buckets]) -> tuple[Floats, Floats, Floats]:
    """Return all bounds, with the least and greatest count of values up to each."""
    if len(parts) == 1:
        (part,) = parts
        upto = part.upto[:-1]
        return np.array(part.bounds), upto, upto
    bounds = np.unique([bound for part in parts for bound in part.bounds])
    least, most = np.zeros(len(bounds)), np.zeros(len(bounds))
    for part in parts:
        below = np.searchsorted(part.bounds, bounds, "right")
        least += np.concatenate(([0.0], part.upto[:-1]))[below]
        most += part.upto[np.searchsorted(part.bounds, bounds, "left")]
    return bounds, least, most


def is_sound(bounds: Sequence[float], counts: Sequence[float]) -> bool:
    """Return whether bounds rise, counts do not fall, and counts are one more."""
    return (
        len(counts) == len(bounds) + 1
        and all(low < high for low, high in pairwise(bounds))
        and all(low <= high for low, high in pairwise((0, *counts)))
    )
