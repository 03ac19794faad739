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

CELL_SHIFT = 42
"""Leaves ten bits of a double's fraction: cells a thousandth of their value wide."""


def ranks(n: int) -> list[int]:
    """Where each of PERCENTS stands among n sorted values, counted from 1."""
    return [-(-n * percent // 100) for percent in PERCENTS.values()]


def weak_percentiles(n: int) -> tuple[str, ...]:
    """Those that stand on fewer than 10/(1-p) values."""
    return tuple(
        name for name, percent in PERCENTS.items() if n * (100 - percent) < 1000
    )


def of_weighted(values: Ints, weights: Ints, unit: int) -> Quantiles:
    """Of values that each stand for ``weights`` equal ones.

    ``unit`` of theirs make one of the result's.
    """
    n = int(weights.sum())
    if n == 0:
        return Quantiles()
    picked = [*_at(values, weights, ranks(n)), int(values.max())]
    return describe(n, int(values @ weights), picked, unit)


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


def _at(values: Ints, weights: Ints, wanted: Sequence[int]) -> list[int]:
    """The values at these ranks, without sorting them all.

    A double's bits grow with its value, so their upper part tells narrow cells apart,
    finer where values are small. Only the cells that hold a wanted rank are sorted.
    """
    cells = np.maximum(values, 0).astype(np.float64).view(np.int64) >> CELL_SHIFT
    cells -= cells.min()
    upto = np.cumsum(np.bincount(cells, weights))
    sorted_cells: dict[int, tuple[Ints, Ints]] = {}
    found = []
    for rank in wanted:
        cell = int(np.searchsorted(upto, rank))
        if cell not in sorted_cells:
            inside = cells == cell
            sorted_cells[cell] = _sorted(values[inside], weights[inside])
        ordered, upto_each = sorted_cells[cell]
        before = int(upto[cell - 1]) if cell else 0
        found.append(int(ordered[np.searchsorted(upto_each, rank - before)]))
    return found


def _sorted(values: Ints, weights: Ints) -> tuple[Ints, Ints]:
    """In order, and how many there are up to each."""
    order = np.argsort(values)
    return values[order], np.cumsum(weights[order])
