"""The parts of the statistics, each against a textbook or a plain calculation."""

from types import ModuleType

import numpy as np
import pytest

from inferwatch.metrics.series.intervals import ALPHA
from inferwatch.studies.compare.metrics import KEYS
from inferwatch.studies.compare.reading.span import mser5
from inferwatch.studies.compare.statistics.family import FamilyMember, adjusted
from inferwatch.studies.compare.statistics.resampling import (
    BINS,
    CHANCES,
    PIECES,
    Draws,
    ValueCounter,
    as_many_blocks,
    blocks_for,
    counted,
    memories,
    merged,
)
from inferwatch.studies.compare.statistics.significance import (
    Difference,
    Resampled,
    beyond_t,
    t_beyond,
)
from inferwatch.studies.compare.verdicts import is_clear

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("freedom", "t"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (10, 2.228), (19, 2.093), (38, 2.024)],
)
def test_student_t_is_that_of_the_tables(freedom: int, t: float) -> None:
    assert t_beyond(0.05, freedom) == pytest.approx(t, abs=6e-4)
    assert beyond_t(t, freedom) == pytest.approx(0.05, abs=1e-4)


def family(*p_values: float, parts: np.ndarray | None = None) -> list[float]:
    members = [FamilyMember(p_value=p, weight=1.0, parts=parts) for p in p_values]
    return adjusted(members, seed=0)


def test_rows_that_have_nothing_in_common_pay_as_with_sidak() -> None:
    found = family(0.01, 0.04, 0.03, 0.005)

    left = [3, 1, 2, 4]
    exact = [
        1 - (1 - p) ** n for p, n in zip((0.01, 0.04, 0.03, 0.005), left, strict=True)
    ]
    steps = [exact[0], max(exact), max(exact), exact[3]]
    assert found == pytest.approx(steps, abs=0.005)
    assert family() == []


def test_nothing_is_clear_that_its_own_interval_doubts() -> None:
    random = np.random.default_rng(11)  # six skewed blocks: p and interval disagree
    sides = []
    for middle, spread in ((0, 1.0), (1.2, 1.5)):
        sides.append(random.lognormal(middle, spread, 6))
    drawn = [each[random.integers(0, 6, (1000, 6))].mean(axis=1) for each in sides]
    found = Difference(
        *(Resampled(e.mean(), d, 6) for e, d in zip(sides, drawn, strict=True))
    )
    low, _ = found.ratio_span() or (0.0, 0.0)

    assert found.p_value < ALPHA
    assert low < 1
    assert not is_clear(KEYS["e2el_mean_s"], found)


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_a_difference_and_its_ratio_never_contradict_each_other(alpha: float) -> None:
    for seed in range(40):  # six blocks: both go on beyond what the draws support
        random = np.random.default_rng(seed)
        sides = [random.lognormal(0.0, 0.5, 6), random.lognormal(1.2, 1.0, 6)]
        drawn = [each[random.integers(0, 6, (1000, 6))].mean(axis=1) for each in sides]
        one, other = (
            Resampled(float(e.mean()), d, 6) for e, d in zip(sides, drawn, strict=True)
        )
        for found in (Difference(one, other), Difference(other, one)):
            low, high = found.span(alpha)
            least, most = found.ratio_span(alpha) or (0.0, 0.0)

            assert low <= found.difference <= high
            assert (low > 0, high < 0) == (least > 1, most < 1), seed


def test_rows_that_are_one_fact_pay_once() -> None:
    found = family(0.03, 0.03, 0.03, parts=RANDOM.standard_normal(40))

    assert found == pytest.approx([0.03] * 3, abs=0.005)


def test_a_quantile_is_an_observation_at_the_nearest_rank() -> None:
    values_ns = np.arange(1, 1001) * 1_000_000
    place = np.arange(1000) * BINS // 1000

    found = counted(place, values_ns)

    assert found.quantile_s(0.99) == pytest.approx(0.990)
    assert found.quantile_s(0.5) == pytest.approx(0.500)
    assert found.n == 1000


def test_many_values_are_counted_to_a_thousandth() -> None:
    values_ns = np.rint(RANDOM.lognormal(16, 1, 50_000)).astype(np.int64)
    place = RANDOM.integers(-1, BINS + 1, 50_000)
    counter = ValueCounter()

    counter.add(place, values_ns)

    found, inside = counter.counted(), values_ns[(place >= 0) & (place < BINS)]
    assert found.n == len(inside)
    assert found.sums_s.sum() == pytest.approx(inside.sum() / 1e9)
    for share in (0.5, 0.9, 0.99):
        exact = np.quantile(inside, share, method="inverted_cdf") / 1e9
        assert found.quantile_s(share) == pytest.approx(exact, rel=1e-3)


def test_quantiles_of_draws_are_those_of_the_blocks_that_were_drawn() -> None:
    place = np.repeat(np.arange(BINS), 20)
    values_ns = np.rint(RANDOM.lognormal(16, 1, len(place))).astype(np.int64)
    draws = Draws.make(6, (1,), 50)

    found = draws.quantiles(counted(place, values_ns), 0.9)

    blocks = np.split(values_ns, 6)
    for weights, quantile in zip(draws.weights.astype(int), found, strict=True):
        pairs = zip(blocks, weights, strict=True)
        drawn = np.concatenate([np.repeat(block, times) for block, times in pairs])
        exact = np.quantile(drawn, 0.9, method="inverted_cdf") / 1e9
        assert quantile == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("key", ["ttft_p50_s", "ttft_p90_s", "ttft_mean_s"])
def test_what_a_block_adds_is_what_is_missing_without_it(
    honesty: ModuleType, key: str
) -> None:
    numbers = honesty.Simulated(np.random.default_rng(5), 2_000, 9).numbers()
    draws = Draws.each_left_out(CHANCES)
    without = numbers.drawn(KEYS[key], draws, 100.0).draws

    parts = numbers.parts(KEYS[key])

    assert np.corrcoef(parts, without)[0, 1] < -0.9
    assert parts.sum() == pytest.approx(0.0, abs=1e-3)


def test_blocks_that_hold_little_count_little() -> None:
    assert as_many_blocks(np.ones(20)) == pytest.approx(20.0)
    assert as_many_blocks(np.eye(20)[3]) == pytest.approx(1.0)
    assert as_many_blocks(np.repeat([1.0, 0.0], 10)) == pytest.approx(10.0)
    assert as_many_blocks(np.zeros(20)) == 0.0


def test_pieces_go_together_as_blocks_in_order() -> None:
    blocks = merged(np.arange(PIECES, dtype=float), 6)

    assert blocks.tolist() == [sum(range(n, n + 10)) for n in range(0, 60, 10)]


def test_a_series_remembers_as_long_as_it_was_made_to() -> None:
    independent = RANDOM.standard_normal(BINS)
    slow = np.cumsum(RANDOM.standard_normal(BINS))

    assert memories(independent) > 100
    assert memories(slow) < 20
    assert blocks_for(memories(independent)) > blocks_for(memories(slow)) == 6


def test_a_transient_is_cut_and_steady_values_are_not() -> None:
    steady = RANDOM.standard_normal(1000)
    transient = steady + 4 * np.exp(np.linspace(0, -12.5, 1000))

    assert (mser5(steady) or 0) <= 10
    assert 10 <= (mser5(transient) or 0) <= 60
    assert mser5(np.linspace(0, 1, 1000)) is None


def test_few_blocks_make_a_wider_interval_than_many() -> None:
    def width(blocks: int) -> float:
        drawn = 1 + 0.01 * RANDOM.standard_normal(4000)
        one = Resampled(1.0, drawn, blocks)
        low, high = Difference(one, Resampled(1.0, drawn[::-1], blocks)).span()
        return high - low

    assert width(6) > 1.1 * width(20)


def test_a_session_with_nothing_on_either_side_does_not_differ() -> None:
    nothing = Resampled(0.0, np.zeros(100), 20)

    found = Difference(nothing, nothing)

    assert found.ratio is None
    assert found.ratio_span() is None
    assert found.span() == (0.0, 0.0)
    assert found.p_value == 1.0
