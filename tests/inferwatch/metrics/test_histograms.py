"""What buckets tell is true of the values in them, and never more than that."""

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from inferwatch.metrics.series.histograms import (
    Buckets,
    Pool,
    histogram_quantile,
    is_sound,
)
from inferwatch.metrics.series.quantiles import PERCENTS
from inferwatch.metrics.series.window import Bracket
from tests.inferwatch.metrics.drawn import drawn

VALUES = st.lists(st.floats(0, 20), min_size=1, max_size=60)
BOUNDS = st.lists(
    st.sampled_from([0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]),
    min_size=1,
    max_size=6,
    unique=True,
).map(lambda each: tuple(sorted(each)))
HELD = st.lists(st.tuples(BOUNDS, VALUES), min_size=1, max_size=4)


def buckets(bounds: tuple[float, ...], values: list[float]) -> Buckets:
    upto = [sum(value <= bound for value in values) for bound in (*bounds, math.inf)]
    return Buckets(bounds, np.array(upto, float), math.fsum(values))


def pooled(
    held: list[tuple[tuple[float, ...], list[float]]],
) -> tuple[Pool, list[float]]:
    everything = sorted(value for _, values in held for value in values)
    return Pool(buckets(*each) for each in held), everything


def holds(bracket: Bracket | None, value: float) -> bool:
    assert bracket is not None
    above = bracket.low < value or value == bracket.low == 0
    return above and (bracket.high is None or value <= bracket.high)


@drawn(25, 100, held=HELD)
def test_every_percentile_lies_in_its_bracket_whatever_the_bounds(
    held: list[tuple[tuple[float, ...], list[float]]],
) -> None:
    pool, values = pooled(held)
    brackets = pool.brackets()

    for name, percent in PERCENTS.items():
        true = values[math.ceil(percent * len(values) / 100) - 1]
        assert holds(getattr(brackets, name), true)
    assert holds(brackets.max, values[-1])


@drawn(25, 100, held=HELD)
def test_count_and_mean_are_exact(
    held: list[tuple[tuple[float, ...], list[float]]],
) -> None:
    pool, values = pooled(held)

    assert pool.quantiles.n == len(values)
    assert pool.quantiles.mean == pytest.approx(sum(values) / len(values))
    assert pool.quantiles.p50 is pool.quantiles.p99 is None


@drawn(
    25,
    100,
    held=HELD,
    limit=st.sampled_from([0.01, 0.07, 0.25, 0.3, 1.0, 7.0, 10.0, 11.0]),
)
def test_the_share_within_a_limit_lies_in_its_range(
    held: list[tuple[tuple[float, ...], list[float]]], limit: float
) -> None:
    pool, values = pooled(held)
    shares = pool.share_within(limit)

    assert shares is not None
    least, most = shares
    assert least <= sum(value <= limit for value in values) / len(values) <= most
    if all(limit in bounds for bounds, _ in held):
        assert least == most


@drawn(25, 100, bounds=BOUNDS, one=VALUES, other=VALUES)
def test_histograms_with_equal_bounds_tell_as_much_as_one(
    bounds: tuple[float, ...], one: list[float], other: list[float]
) -> None:
    apart = Pool([buckets(bounds, one), buckets(bounds, other)])
    together = Pool([buckets(bounds, one + other)])

    assert apart.brackets(interpolated=True) == together.brackets(interpolated=True)


def test_of_nothing_nothing_is_known() -> None:
    pool = Pool([buckets((0.1, 1.0), [])])

    assert (pool.quantiles.n, pool.quantiles.mean) == (0, None)
    assert pool.brackets().p50 is None
    assert pool.share_within(0.5) is None


def test_unequal_bounds_are_not_interpolated() -> None:
    pool = Pool([buckets((0.1,), [0.05]), buckets((0.2,), [0.05])])

    assert pool.brackets(interpolated=True).interpolated == {}
    assert pool.brackets().p50 == Bracket(low=0.0, high=0.1)
    assert pool.brackets().max == Bracket(low=0.0, high=0.2)


@pytest.mark.parametrize(
    ("share", "bounds", "upto", "expected"),
    [
        (0.5, (0.1, 0.2, 0.5), (4, 8, 10, 10), 0.125),
        (0.2, (0.1, 0.2, 0.5), (4, 8, 10, 10), 0.05),
        (0.99, (0.1, 0.2, 0.5), (4, 8, 10, 10), 0.485),
        (0.99, (0.1, 0.2), (4, 8, 10), 0.2),
        (0.5, (-0.1, 0.2), (8, 8, 10), -0.1),
        (0.5, (0.1, 0.2), (0, 0, 0), None),
        (0.4, (0.1, 0.2, 0.5), (4, 8, 10, 10), 0.1),
    ],
    ids=["within", "first", "last", "beyond", "negative", "empty", "on a bound"],
)
def test_a_panel_is_foretold_exactly(
    share: float,
    bounds: tuple[float, ...],
    upto: tuple[int, ...],
    expected: float | None,
) -> None:
    found = histogram_quantile(share, Buckets(bounds, np.array(upto, float), 0.0))

    assert found == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("bounds", "counts"),
    [([0.1], [1]), ([0.1, 0.1], [1, 1, 1]), ([0.2, 0.1], [1, 1, 1]), ([0.1], [2, 1])],
    ids=["too few", "twice", "falling bounds", "falling counts"],
)
def test_nonsense_is_known_as_such(bounds: list[float], counts: list[int]) -> None:
    assert not is_sound(bounds, counts)
