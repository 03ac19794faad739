"""Quantiles over windows and the session, against a plain sorted list."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import strategies as st

from inferwatch.metrics.series import quantiles as count_table
from inferwatch.metrics.series import samples as series
from inferwatch.metrics.series.quantiles import PERCENTS, weak_percentiles
from inferwatch.metrics.series.samples import Counters, Samples
from inferwatch.metrics.series.window import Quantiles, Window
from tests.inferwatch.metrics.drawn import drawn

S = 1_000_000_000
Sample = tuple[int, int, int]
"""Time, value and weight."""

values_ns = st.one_of(
    st.integers(0, 2_000), st.integers(0, 2 * S), st.integers(0, 300 * S)
)
samples_of_ten_minutes = st.lists(
    st.tuples(st.integers(0, 600 * S), values_ns, st.integers(1, 5)), max_size=60
)


def observed(samples: Sequence[Sample], unit: int = S) -> Quantiles:
    """The definition itself: sort everything, take the value at rank ceil(p n)."""
    flat = sorted(value for _, value, weight in samples for _ in range(weight))
    if not flat:
        return Quantiles()
    n = len(flat)
    return Quantiles(
        n=n,
        mean=sum(flat) / n / unit,
        max=flat[-1] / unit,
        weak=tuple(name for name, p in PERCENTS.items() if n < 1000 / (100 - p)),
        **{
            name: flat[math.ceil(n * percent / 100) - 1] / unit
            for name, percent in PERCENTS.items()
        },
    )


def filled(samples: Sequence[Sample]) -> Samples:
    held = Samples()
    for t_ns, value, weight in samples:
        held.add(t_ns, value, weight)
    return held


@drawn(25, 100, samples_of_ten_minutes, st.sampled_from([w for w in Window if w.value]))
def test_a_window_is_exact_whatever_the_order(
    samples: list[Sample], window: Window
) -> None:
    now_ns = max((t_ns for t_ns, _, _ in samples), default=0)
    inside = [each for each in samples if each[0] > now_ns - (window.value or 0)]

    assert filled(samples).quantiles(now_ns, window) == observed(inside)


@drawn(25, 100, samples_of_ten_minutes)
def test_the_session_is_exact_to_a_microsecond(samples: list[Sample]) -> None:
    counted = filled(samples).quantiles(0, Window.SESSION)
    true = observed(samples)

    assert (counted.n, counted.mean, counted.max) == (true.n, true.mean, true.max)
    assert counted.weak == true.weak
    for name in PERCENTS:
        of_all = getattr(true, name)
        if of_all is not None:
            assert of_all - 1e-6 <= getattr(counted, name) <= of_all


@drawn(5, 20, st.lists(values_ns, min_size=200, max_size=400), st.integers(3, 20))
def test_forgetting_old_rows_forgets_nothing_of_the_session(
    values: list[int], seconds_apart: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series, "BLOCK_ROWS", 16)
        samples = [(i * seconds_apart * S, value, 1) for i, value in enumerate(values)]
        held = filled(samples)
        now_ns = samples[-1][0]
        inside = [each for each in samples if each[0] > now_ns - 300 * S]

        assert held.quantiles(now_ns, Window.FIVE_MINUTES) == observed(inside)
        assert held.quantiles(now_ns, Window.SESSION).n == len(values)
        assert sum(b.columns.shape[1] for b in held.rows._blocks) <= len(inside) + 16


def test_many_at_once_are_as_good_as_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(series, "BLOCK_ROWS", 16)
    times = np.arange(0, 400 * S, S)
    held = Samples()

    for part in np.split(times, 10):
        held.add_many(part, part % 7_000)

    one_by_one = filled([(int(t), int(t) % 7_000, 1) for t in times])
    for window in Window:
        assert held.quantiles(399 * S, window) == one_by_one.quantiles(399 * S, window)
    assert len(held.rows._blocks) <= 9


def test_a_window_leaves_out_its_first_moment_and_holds_its_last() -> None:
    held = filled([(0, 1, 1), (1, 2, 1), (10 * S, 3, 1)])

    assert held.quantiles(10 * S, Window.TEN_SECONDS).n == 2


@drawn(
    15,
    50,
    st.lists(st.tuples(st.integers(0, 600), st.integers(-1, 9)), max_size=80),
    st.sampled_from(Window),
)
def test_counters_add_up_over_any_window(
    rows: list[tuple[int, int]], window: Window
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series, "BLOCK_ROWS", 8)
        tallies = Counters("one", "many")
        for second, count in rows:
            tallies.add(second * S, 1, count)
    now_ns = max((second for second, _ in rows), default=0) * S

    total = tallies.over(now_ns, window)

    span_ns = window.value or 10**15
    inside = [count for second, count in rows if second * S > now_ns - span_ns]
    assert total.rows == total.sums["one"] == len(inside)
    assert total.sums["many"] == sum(inside)
    assert total.maxima["many"] == max([0, *inside])


def test_a_window_may_begin_where_a_block_of_rows_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(series, "BLOCK_ROWS", 4)
    held = filled([(n * S, 1, 1) for n in range(24)])

    counts = [held.quantiles(n * S, Window.TEN_SECONDS).n for n in range(10, 34)]

    assert counts == [33 - n for n in range(10, 34)]


def test_no_samples_have_no_quantiles() -> None:
    assert filled([]).quantiles(0, Window.MINUTE) == Quantiles()
    assert filled([]).quantiles(0, Window.SESSION) == Quantiles()


@pytest.mark.parametrize(
    ("n", "weak"),
    [
        (1, ("p50", "p90", "p95", "p99")),
        (19, ("p50", "p90", "p95", "p99")),
        (20, ("p90", "p95", "p99")),
        (100, ("p95", "p99")),
        (999, ("p99",)),
        (1000, ()),
    ],
)
def test_a_percentile_needs_ten_samples_beyond_it(n: int, weak: tuple[str]) -> None:
    assert weak_percentiles(n) == weak


def test_many_large_values_stay_in_fixed_memory_and_nearly_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(count_table, "TAIL_LIMIT", 50)
    samples = [(0, 2 * S + i * 7_000, 1) for i in range(400)]

    held = filled(samples)
    p50 = held.quantiles(0, Window.SESSION).p50

    assert len(held._table._tail) <= 50
    assert p50 == pytest.approx(2 + 199 * 7e-6, abs=1e-4)


def test_values_before_their_beginning_count_as_nothing() -> None:
    held = filled([(0, -5_000, 1)])

    assert held.quantiles(0, Window.SESSION).p50 == 0
