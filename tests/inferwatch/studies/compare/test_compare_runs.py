"""Several runs a side: each is one observation; and what one run may look like."""

import math
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from inferwatch.studies.compare.comparison import ComparisonRules, MetricResult, compare
from inferwatch.studies.compare.metrics import KEYS
from inferwatch.studies.compare.reading.session_numbers import (
    ComparedSide,
    SessionNumbers,
)
from inferwatch.studies.compare.statistics.family import FamilyMember, adjusted
from inferwatch.studies.compare.statistics.repeated import RunDifference
from inferwatch.studies.compare.statistics.significance import Difference, Resampled
from inferwatch.studies.compare.verdicts import MetricVerdict, is_negligible

RULES = ComparisonRules(draws=500)


def runs(
    honesty: ModuleType, seed: int, count: int, *, drift: float, times: float = 1.0
) -> ComparedSide:
    random = np.random.default_rng([seed, count])
    made = [honesty.Simulated(random, 1_000, 3, drift=drift) for _ in range(count)]
    longer = dict.fromkeys(honesty.MEDIANS_S, times)
    return ComparedSide(
        runs=tuple(each.numbers(n + 1, times=longer) for n, each in enumerate(made)),
        label=f"side {seed}",
    )


def row(results: tuple[MetricResult, ...], key: str) -> MetricResult:
    return next(each for each in results if each.metric.key == key)


def test_a_difference_of_runs_is_welch_s_t_of_their_logarithms() -> None:
    a, b = [10.0, 10.5, 9.8], [12.0, 12.9, 11.7]

    found = RunDifference(a, b)

    parts = [np.log(each).var(ddof=1) / 3 for each in (a, b)]
    away = np.log(b).mean() - np.log(a).mean()
    freedom = sum(parts) ** 2 / sum(part**2 / 2 for part in parts)
    at = np.linspace(0, away / np.sqrt(sum(parts)), 100_001)
    density = (1 + at**2 / freedom) ** (-(freedom + 1) / 2)
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2)
    scale /= math.sqrt(math.pi * freedom)
    beyond = 1 - 2 * scale * float(np.trapezoid(density, at))
    assert beyond <= found.p_value <= 1.2 * beyond
    inside, outside = found.ratio_span(0.011), found.ratio_span(0.008)
    assert inside is not None
    assert outside is not None
    assert outside[0] < 1 < inside[0]
    assert found.ratio == pytest.approx(np.exp(np.log(b).mean() - np.log(a).mean()))
    low, high = found.span()
    assert low < found.difference < high


def test_a_difference_of_runs_is_as_far_from_zero_as_their_ratio_from_one() -> None:
    found = RunDifference([0.040, 0.045, 0.050], [0.09, 0.16, 0.20])

    least, most = found.ratio_span() or (0.0, 0.0)
    low, high = found.span()
    assert least > 1
    assert low == pytest.approx(found.a * (least - 1))
    assert high == pytest.approx(found.a * (most - 1))


def test_a_single_run_varies_as_the_others_of_the_other_side() -> None:
    several = [10.0, 10.4, 9.7]

    alone = RunDifference([12.0], several)

    spread = np.log(several).std(ddof=1) * np.sqrt(1 + 1 / 3)
    away = np.log(several).mean() - np.log(12.0)
    low, high = np.exp(away - 4.303 * spread), np.exp(away + 4.303 * spread)
    assert alone.ratio_span() == pytest.approx((low, high), rel=1e-3)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([0.0, 0.0], [0.0, 0.0]),
        ([1.0, 1.0], [1.0, 1.0]),
        ([0.0, 1.0], [1.0, 0.0]),
    ],
)
def test_runs_that_are_alike_do_not_differ(a: list[float], b: list[float]) -> None:
    found = RunDifference(a, b)

    assert found.p_value == pytest.approx(1.0)
    assert found.difference == 0.0
    low, high = found.span()
    assert low <= 0.0 <= high


def test_runs_that_are_equal_by_rounding_are_not_sure_of_anything() -> None:
    found = RunDifference([1.0, 1.0], [1.0005, 1.0005])

    assert found.p_value > 0.05


def test_a_sure_change_that_nobody_would_notice_is_none() -> None:
    tokens = RunDifference([100.00, 100.01, 99.99], [99.79, 99.80, 99.81])

    assert tokens.p_value < 0.01
    assert is_negligible(KEYS["output_tokens_per_s"], tokens)
    assert not is_negligible(
        KEYS["output_tokens_per_s"],
        RunDifference([100.00, 100.01, 99.99], [98.9, 98.91, 98.92]),
    )


def test_runs_with_zeros_have_a_difference_and_no_ratio() -> None:
    found = RunDifference([0.0, 0.2, 0.1], [5.0, 5.3, 4.9])

    assert found.ratio_span() is None
    assert found.p_value < 0.001


def test_it_says_how_many_runs_more_would_tell() -> None:
    found = RunDifference([10.0, 12.0], [11.0, 13.0])

    # A fourth of the interval wants fewer than 16 times the runs: t is smaller, too.
    assert found.more_runs(1.0) == 1
    assert 4 <= (found.more_runs(4.0) or 0) <= 6
    assert found.more_runs(1e6) is None


def test_a_drift_between_runs_widens_the_interval_of_runs(honesty: ModuleType) -> None:
    def width(drift: float) -> float:
        sides = [runs(honesty, seed, 3, drift=drift) for seed in (1, 2)]
        (pair,) = compare(sides, RULES).pairs
        low, high = row(pair.results, "tpot_mean_s").ratio_span or (0.0, 0.0)
        return high - low

    assert width(0.1) > 2 * width(0.0)


def test_a_slower_side_is_worse_over_its_runs(honesty: ModuleType) -> None:
    a = runs(honesty, 1, 5, drift=0.02)
    b = runs(honesty, 2, 5, drift=0.02, times=1.5)

    (pair,) = compare([a, b], RULES).pairs

    found = row(pair.results, "tpot_mean_s")
    assert found.verdict is MetricVerdict.WORSE
    assert found.n_a > 4_000
    assert pair.pairing is None
    assert "5 runs against 5" in pair.about_runs


def test_few_runs_say_how_many_more_would_tell(honesty: ModuleType) -> None:
    sides = [runs(honesty, seed, 2, drift=0.1) for seed in (1, 2)]

    (pair,) = compare(sides, RULES).pairs

    open_rows = pair.of(MetricVerdict.OPEN)
    assert open_rows
    assert all(each.more_requests is None for each in open_rows)
    assert any(each.more_runs for each in open_rows)


def test_one_run_a_side_says_what_its_intervals_lack(honesty: ModuleType) -> None:
    one, two = (runs(honesty, seed, 1, drift=0.0) for seed in (1, 2))

    (pair,) = compare([one, two], RULES).pairs
    (mixed,) = compare([one, runs(honesty, 2, 3, drift=0.0)], RULES).pairs

    assert pair.about_runs.startswith("one run a side: what differs between runs")
    assert mixed.about_runs.startswith("1 runs against 3: how much side 1 varies")


def test_three_sides_share_one_family(honesty: ModuleType) -> None:
    sides = [
        runs(honesty, 1, 3, drift=0.0),
        *(runs(honesty, n, n, drift=0.0) for n in (1, 2)),
    ]

    found = compare(sides, RULES)

    assert len(found.pairs) == 2
    assert all(each.adjusted_p is not None for each in found.pairs[1].results)


def test_a_run_without_a_metric_is_named(honesty: ModuleType) -> None:
    a, b = (runs(honesty, seed, 2, drift=0.0) for seed in (1, 2))
    first, last = b.runs
    counted = {name: each for name, each in last.counted.items() if name != "queue_s"}
    b = ComparedSide(runs=(first, replace(last, counted=counted)))

    (pair,) = compare([a, b], RULES).pairs

    assert row(pair.results, "queue_p50_s").why == f"{last.name} has no values"
    assert row(pair.results, "ttft_p50_s").p_value is not None


# What a single run may look like.


def alone(honesty: ModuleType, requests: int = 1_000) -> SessionNumbers:
    made: SessionNumbers = honesty.Simulated(
        np.random.default_rng(4), requests, 3
    ).numbers()
    return made


@pytest.mark.parametrize("pairing", [False, True])
def test_a_session_does_not_differ_from_its_copy(
    honesty: ModuleType, *, pairing: bool
) -> None:
    same = honesty.Pairing(requests=1_000, of=1_000) if pairing else None
    one = replace(alone(honesty), pairing=same)

    (pair,) = compare(
        [ComparedSide.of(one), ComparedSide.of(replace(one))], RULES
    ).pairs

    for each in pair.results:
        assert each.difference in {0.0, None}
        assert each.verdict in {MetricVerdict.SAME, MetricVerdict.OPEN}
        numbers = [each.p_value, each.adjusted_p, *(each.ratio_span or ())]
        assert np.isfinite([n for n in numbers if n is not None]).all()
        if each.p_value is not None:
            assert each.p_value > (0.99 if pairing else 0.6)


def test_a_change_to_nothing_is_no_lie() -> None:
    one = Resampled(1.0, np.linspace(0.9, 1.1, 500), 6)

    found = Difference(one, Resampled(0.0, np.zeros(500), 6))

    assert found.ratio_span() == (0.0, 0.0)
    assert found.p_value < 0.01
    assert found.span()[1] < 0


@pytest.mark.parametrize("within_s", [0.001, 1.0, 3.0, 9.0])
@pytest.mark.parametrize("memory", [3, 60])
def test_a_load_that_sends_all_at_once_is_no_sample(
    honesty: ModuleType, memory: int, within_s: float
) -> None:
    """All would be in one block, which every draw has: an interval of no width."""
    one, two = (
        honesty.Simulated(np.random.default_rng(n), 200, memory) for n in (1, 2)
    )
    for each in (one, two):
        each.at_s = np.sort(each.at_s % within_s)
        each.at_s[-1] = 60.0

    sides = [ComparedSide.of(each.numbers()) for each in (one, two)]
    (pair,) = compare(sides, RULES).pairs

    assert not honesty.alarms(pair)
    found = row(pair.results, "ttft_mean_s")
    assert found.verdict is MetricVerdict.OPEN
    assert "one burst or one long trend" in (found.why or "")


def test_values_that_do_not_vary_do_not_differ(honesty: ModuleType) -> None:
    one, two = (honesty.Simulated(np.random.default_rng(n), 500, 3) for n in (1, 2))
    for each in (one, two):
        each.values_s["queue_s"][:] = 0.0
        each.values_s["tpot_s"][:] = 0.02

    sides = [ComparedSide.of(each.numbers()) for each in (one, two)]
    (pair,) = compare(sides, RULES).pairs

    for key in ("queue_mean_s", "queue_p50_s", "tpot_mean_s", "tpot_p50_s"):
        found = row(pair.results, key)
        assert found.verdict is MetricVerdict.SAME
        assert found.p_value == 1.0
        assert not np.isnan(found.ratio_span or (1.0, 1.0)).any()


def test_two_hundred_rows_and_one_are_a_family() -> None:
    random = np.random.default_rng(3)
    many = [
        FamilyMember(p_value=p, weight=1.0, parts=random.standard_normal(40))
        for p in np.linspace(1e-6, 1, 200)
    ]

    found = adjusted(many, seed=0)

    assert adjusted(many[:1], seed=0) == pytest.approx([1e-6])
    assert found == sorted(found)
    assert found[0] == pytest.approx(2e-4, rel=0.05)
    assert found[-1] <= 1.0
