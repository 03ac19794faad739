"""Intervals hold what they claim: in 95 of 100 cases the truth is inside."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from inferwatch.metrics.intervals import (
    Interval,
    binomial_ranks,
    intervals,
    mean_interval,
    share_interval,
    student_t,
)

Numbers = npt.NDArray[np.float64]
TRIALS = 400
QUANTILES = {"p50": math.log(2), "p90": math.log(10), "p95": math.log(20)}
"""Of the exponential distribution with a mean of one."""


def covers(interval: Interval, truth: float) -> bool:
    lower, upper = interval
    return (lower is None or lower <= truth) and (upper is None or truth <= upper)


def coverage(draw: Callable[[np.random.Generator], Numbers]) -> dict[str, float]:
    rng = np.random.default_rng(7)
    truths = {"mean": 1.0, **QUANTILES}
    counts = dict.fromkeys(truths, 0)
    for _ in range(TRIALS):
        found = intervals(draw(rng))
        for name, truth in truths.items():
            counts[name] += covers(found[name], truth)
    return {name: count / TRIALS for name, count in counts.items()}


@pytest.mark.parametrize("n", [60, 500, 3000])
def test_independent_values_are_covered(n: int) -> None:
    shares = coverage(lambda rng: rng.standard_exponential(n))

    assert min(shares.values()) > 0.90
    assert shares["mean"] < 0.99


def test_neighbours_that_resemble_each_other_are_covered_too() -> None:
    def streams(rng: np.random.Generator) -> Numbers:
        return np.repeat(rng.standard_exponential(200), 20)

    shares = coverage(streams)

    assert min(shares.values()) > 0.88


def test_resemblance_widens_the_interval() -> None:
    rng = np.random.default_rng(1)
    alone = rng.standard_exponential(4000)
    alike = np.repeat(alone[:200], 20)

    def width(values: Numbers, name: str) -> float:
        lower, upper = intervals(values)[name]
        assert lower is not None
        assert upper is not None
        return upper - lower

    assert width(alike, "mean") > 2 * width(alone, "mean")
    assert width(alike, "p50") > 2 * width(alone, "p50")


def test_the_ranks_are_those_of_the_tables() -> None:
    assert binomial_ranks(10, 0.5) == (2, 9)
    assert binomial_ranks(20, 0.5) == (6, 15)
    assert binomial_ranks(100, 0.5) == (40, 61)


def test_too_few_values_leave_a_side_open() -> None:
    lower, upper = intervals(np.linspace(1, 50, 50))["p99"]

    assert lower is not None
    assert upper is None


def test_one_value_bounds_no_mean() -> None:
    assert mean_interval(np.array([3.0])) == (None, None)
    assert intervals(np.empty(0)) == {}


@pytest.mark.parametrize(
    ("freedom", "value"), [(1, 12.706), (5, 2.571), (19, 2.093), (99, 1.984)]
)
def test_student_is_right(freedom: int, value: float) -> None:
    assert student_t(freedom) == pytest.approx(value, abs=5e-3)


def test_a_share_stays_a_share() -> None:
    assert share_interval(0, 0) == (0.0, 1.0)
    assert share_interval(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert share_interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
