"""Quantiles that were really observed.

The p-quantile of n values is the one at rank ceil(p·n) when they are sorted (nearest
rank): always an observation, never a number between two. Windows and the whole
session use the same definition.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from inferwatch.metrics.snapshot import Quantiles

Ints = npt.NDArray[np.int64]

PERCENTS = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}


def ranks(n: int) -> list[int]:
    """Where each of PERCENTS stands among n sorted values, counted from 1."""
    return [-(-n * percent // 100) for percent in PERCENTS.values()]


def weak_percentiles(n: int) -> tuple[str, ...]:
    """Those that stand on fewer than 10/(1-p) values."""
    return tuple(
        name for name, percent in PERCENTS.items() if n * (100 - percent) < 1000
    )


def of_values(values: Ints, unit: int) -> Quantiles:
    """Of values held one by one; ``unit`` of theirs make one of the result's."""
    n = len(values)
    if n == 0:
        return Quantiles()
    places = [rank - 1 for rank in ranks(n)]
    sorted_there = np.partition(values, sorted({*places, n - 1}))
    picked = [int(sorted_there[place]) for place in (*places, n - 1)]
    return describe(n, int(values.sum()), picked, unit)


def of_weighted(values: Ints, weights: Ints, unit: int) -> Quantiles:
    """Of values that each stand for ``weights`` equal ones."""
    n = int(weights.sum())
    if n == len(values):
        return of_values(values, unit)
    order = np.argsort(values)
    places = np.searchsorted(np.cumsum(weights[order]), [*ranks(n), n])
    picked = [int(value) for value in values[order[places]]]
    return describe(n, int((values * weights).sum()), picked, unit)


def describe(n: int, total: int, picked: Sequence[int], unit: int) -> Quantiles:
    """Put together what was found: the values at PERCENTS and the maximum."""
    p50, p90, p95, p99, maximum = (value / unit for value in picked)
    return Quantiles(
        n=n,
        mean=total / n / unit,
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=maximum,
        weak=weak_percentiles(n),
    )
