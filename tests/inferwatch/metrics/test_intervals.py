"""Intervals hold what they claim: in 95 of 100 cases the truth is inside."""

import importlib.util
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest
from _pytest.mark import ParameterSet

from inferwatch.metrics.series.intervals import (
    Interval,
    at_least,
    binomial_ranks,
    certain_of,
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


def told(good: Numbers, series: Sequence[Numbers] = ()) -> tuple[float, float]:
    """The interval of a share, as goodput tells it."""
    certain = certain_of(good, series)
    return share_interval(float(good.mean()) * certain if certain else 0.0, certain)


@pytest.mark.parametrize(
    "n",
    [500, *(pytest.param(n, marks=pytest.mark.soak) for n in (60, 3000))],
)
def test_independent_values_are_covered(n: int) -> None:
    shares = coverage(lambda rng: rng.standard_exponential(n))

    assert min(shares.values()) > 0.90
    assert shares["mean"] < 0.995


def test_neighbours_that_resemble_each_other_are_covered_too() -> None:
    def streams(rng: np.random.Generator) -> Numbers:
        return np.repeat(rng.standard_exponential(200), 20)

    shares = coverage(streams)

    assert min(shares.values()) > 0.88


def cases(*lengths: int) -> Iterator[ParameterSet]:
    """Each length with each memory; one of each in the quick run."""
    memories = (0.0, 0.5, 0.8, 0.95)
    quick = set(zip(lengths, memories[-len(lengths) :], strict=True))
    for case in product(lengths, memories):
        yield pytest.param(*case, marks=() if case in quick else pytest.mark.soak)


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    """``benchmarks/interval_coverage.py``, whose promise this keeps."""
    name = "interval_coverage"
    path = Path(__file__).parents[3] / f"benchmarks/{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("n", "rho"), cases(30, 50, 100, 400))
def test_what_is_printed_of_a_first_order_memory_is_an_interval(
    benchmark: ModuleType, n: int, rho: float
) -> None:
    case = benchmark.Case(n=n, rho=rho, lognormal=True, trials=150)

    cells = benchmark.covered(case).cells

    enough = {name: cell for name, cell in cells.items() if cell.printed >= 30}
    assert "mean" in enough
    assert {name: cell.coverage >= 0.93 for name, cell in enough.items()} == (
        dict.fromkeys(enough, True)
    )


@pytest.mark.parametrize(("n", "rho"), cases(30, 100, 400))
def test_a_share_of_requests_that_share_a_queue_is_covered(
    benchmark: ModuleType, n: int, rho: float
) -> None:
    case = benchmark.Case(n=n, rho=rho, lognormal=False, trials=150)
    cell = benchmark.Cell()

    for values in case.draw():
        cell.count(told((values < 1.2816).astype(float), [values]), 0.9)

    assert cell.coverage >= 0.93


def test_a_share_of_too_few_is_anything() -> None:
    assert told(np.ones(29)) == (0.0, 1.0)
    assert told(np.empty(0)) == (0.0, 1.0)
    lower, upper = told(np.ones(100))
    assert 0.94 < lower < upper == 1.0


def test_a_drift_has_no_interval() -> None:
    drifting = np.linspace(1, 2, 500) + 0.01 * np.random.default_rng(4).random(500)

    assert intervals(drifting) == dict.fromkeys(
        ("mean", "p50", "p90", "p95", "p99"), (None, None)
    )


def test_equal_values_bound_themselves() -> None:
    found = intervals(np.full(200, 0.05))

    assert found["mean"] == pytest.approx((0.05, 0.05))
    assert found["p50"] == (0.05, 0.05)


def test_few_values_have_no_interval() -> None:
    values = np.random.default_rng(5).random(29)

    assert set(intervals(values).values()) == {(None, None)}


def test_long_series_are_told_like_short_ones() -> None:
    values = np.random.default_rng(6).standard_exponential(200_000)

    lower, upper = mean_interval(values)

    assert lower is not None
    assert upper is not None
    assert 0.8 < (upper - lower) / (2 * 1.96 / math.sqrt(200_000)) < 2


def test_a_hiccup_or_two_blame_nobody() -> None:
    values = np.full(100, 0.001)
    values[[40, 41]] = 0.5

    assert at_least(values, 0.99) == 0.001
    assert at_least(np.full(100, 0.5), 0.99) == 0.5
    assert at_least(np.empty(0), 0.99) is None


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
    values = np.random.default_rng(2).permutation(np.linspace(1, 50, 50))

    lower, upper = intervals(values)["p99"]

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
