"""Counts of durations in buckets that grow by a constant factor, and in round ones.

Both are exact counts of the same values: what is uncertain of a percentile taken from
them later is the width of a bucket. Exponential ones of many servers add up.
"""

from bisect import bisect_left
from dataclasses import dataclass
from math import ceil, log2

from collectors.contract.clock import NS_PER_S

SCALE = 4
"""16 buckets for each doubling: a bucket is 4.4% wide."""
PER_DOUBLING = 2**SCALE
LEAST_EXPONENT = -20
LEAST_S = 2.0**LEAST_EXPONENT
"""What is shorter, about a microsecond, counts as nothing."""
ROUND_S = tuple(
    round(digit * 10.0**power, 6)
    for power in range(-4, 3)
    for digit in (1, 1.5, 2, 3, 5, 7)
)
"""0.1 ms to 700 s, for who knows no exponential buckets."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """What was counted up to a moment."""

    count: int
    sum_s: float
    zeros: int
    """Shorter than LEAST_S."""
    buckets: dict[int, int]
    """By index, rising: bucket i holds what is above 2**((i-1)/16), up to 2**(i/16)."""
    least_s: float
    most_s: float
    at_most: tuple[int, ...]
    """How many were at most each of ROUND_S."""

    @property
    def runs(self) -> list[tuple[int, list[int]]]:
        """Buckets that follow each other: the first one's index and their counts."""
        runs: list[tuple[int, list[int]]] = []
        for index, count in self.buckets.items():
            if runs and index == runs[-1][0] + len(runs[-1][1]):
                runs[-1][1].append(count)
            else:
                runs.append((index, [count]))
        return runs


class DurationHistogram:
    """Counts durations as they come; an addition is a microsecond."""

    def __init__(self) -> None:
        self._count = 0
        self._sum_ns = 0
        self._zeros = 0
        self._least_ns: int | None = None
        self._most_ns = 0
        self._buckets: dict[int, int] = {}
        self._round = [0] * (len(ROUND_S) + 1)

    def add(self, value_ns: int, weight: int = 1) -> None:
        """So many durations of the same length."""
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

    def distribution(self) -> Distribution:
        """As of now."""
        below, at_most = 0, []
        for count in self._round[:-1]:
            below += count
            at_most.append(below)
        return Distribution(
            count=self._count,
            sum_s=self._sum_ns / NS_PER_S,
            zeros=self._zeros,
            buckets=dict(sorted(self._buckets.items())),
            least_s=(self._least_ns or 0) / NS_PER_S,
            most_s=self._most_ns / NS_PER_S,
            at_most=tuple(at_most),
        )
