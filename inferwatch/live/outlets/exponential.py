"""Histograms of durations, in exponential buckets and in buckets with round bounds.

Both count the same values exactly: a percentile computed from them later is uncertain
by the width of a bucket. Exponential histograms of many servers can be added up.
"""

from bisect import bisect_left
from dataclasses import dataclass
from math import ceil, log2

from collectors.contract.clock import NS_PER_S

SCALE = 4
"""The OTLP scale: 16 buckets for each power of two, so that a bucket is 4.4% wide."""
PER_DOUBLING = 2**SCALE
LEAST_EXPONENT = -20
LEAST_S = 2.0**LEAST_EXPONENT
"""Shorter durations, of less than about a microsecond, go into the zero bucket."""
ROUND_S = tuple(
    round(digit * 10.0**power, 6)
    for power in range(-4, 3)
    for digit in (1, 1.5, 2, 3, 5, 7)
)
"""Round bounds from 0.1 ms to 700 s, for systems without exponential buckets."""


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """The contents of a histogram at one moment."""

    count: int
    sum_s: float
    zeros: int
    """How many were shorter than LEAST_S."""
    buckets: dict[int, int]
    """Counts by rising index: bucket i is above 2**((i-1)/16) and up to 2**(i/16)
    seconds."""
    least_s: float
    most_s: float
    at_most: tuple[int, ...]
    """How many were at most each bound of ROUND_S: Prometheus's ``le`` buckets."""

    @property
    def runs(self) -> list[tuple[int, list[int]]]:
        """Runs of adjacent buckets, as the index of the first and their counts."""
        runs: list[tuple[int, list[int]]] = []
        for index, count in self.buckets.items():
            if runs and index == runs[-1][0] + len(runs[-1][1]):
                runs[-1][1].append(count)
            else:
                runs.append((index, [count]))
        return runs


class DurationHistogram:
    """Counts durations; adding one takes about a microsecond."""

    def __init__(self) -> None:
        self._count = 0
        self._sum_ns = 0
        self._zeros = 0
        self._least_ns: int | None = None
        self._most_ns = 0
        self._buckets: dict[int, int] = {}
        self._round = [0] * (len(ROUND_S) + 1)

    def add(self, value_ns: int, weight: int = 1) -> None:
        """Add ``weight`` durations of the same length."""
        value_s = value_ns / NS_PER_S
        self._count += weight
        self._sum_ns += value_ns * weight
        if self._least_ns is None or value_ns < self._least_ns:
            self._least_ns = value_ns
        self._most_ns = max(self._most_ns, value_ns)
        self._round[bisect_left(ROUND_S, value_s)] += weight
        if value_s < LEAST_S:
            self._zeros += weight
        else:
            index = ceil(log2(value_s) * PER_DOUBLING)
            self._buckets[index] = self._buckets.get(index, 0) + weight

    def distribution(self) -> HistogramSnapshot:
        """Return the contents as of now."""
        below, at_most = 0, []
        for count in self._round[:-1]:
            below += count
            at_most.append(below)
        return HistogramSnapshot(
            count=self._count,
            sum_s=self._sum_ns / NS_PER_S,
            zeros=self._zeros,
            buckets=dict(sorted(self._buckets.items())),
            least_s=(self._least_ns or 0) / NS_PER_S,
            most_s=self._most_ns / NS_PER_S,
            at_most=tuple(at_most),
        )
