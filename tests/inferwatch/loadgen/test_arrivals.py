from itertools import chain, islice

import numpy as np
import pytest
from numpy.typing import NDArray

from inferwatch.loadgen.plan.plan import Arrivals
from inferwatch.loadgen.plan.rates import flat
from inferwatch.loadgen.schedule.arrivals import (
    arrival_times,
    burst_times,
    counted_times,
)

SECOND_NS = 1_000_000_000


def arrivals(
    count: int,
    kind: Arrivals = Arrivals.POISSON,
    *,
    rate_per_s: float = 50,
    seed: int = 7,
) -> NDArray[np.int64]:
    blocks = arrival_times(kind, flat(rate_per_s), seed=seed)
    return np.array(list(islice(chain.from_iterable(blocks), count)))


@pytest.mark.parametrize("seed", range(5))
def test_poisson_arrivals_come_at_the_asked_rate(seed: int) -> None:
    times = arrivals(20_000, seed=seed)

    assert 20_000 / (times[-1] / SECOND_NS) == pytest.approx(50, rel=0.03)


@pytest.mark.parametrize("seed", range(5))
def test_poisson_gaps_vary_as_much_as_their_mean(seed: int) -> None:
    gaps = np.diff(arrivals(20_000, seed=seed))

    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.05)


def test_poisson_counts_vary_as_much_as_their_mean() -> None:
    times = arrivals(20_000)
    per_second = np.bincount(times // SECOND_NS)[:-1]

    assert per_second.var() / per_second.mean() == pytest.approx(1, abs=0.2)


def test_poisson_gaps_do_not_depend_on_the_gap_before() -> None:
    gaps = np.diff(arrivals(20_000))

    assert np.corrcoef(gaps[:-1], gaps[1:])[0, 1] == pytest.approx(0, abs=0.03)


def test_a_seed_makes_the_same_arrivals_again() -> None:
    assert (arrivals(5_000) == arrivals(5_000)).all()


def test_another_seed_makes_other_arrivals() -> None:
    assert (arrivals(5_000) != arrivals(5_000, seed=8)).any()


def test_the_rate_stretches_the_pattern_of_a_seed() -> None:
    slow, fast = arrivals(3_000, rate_per_s=10), arrivals(3_000, rate_per_s=40)

    assert np.abs(slow - 4 * fast).max() <= 4


def test_constant_arrivals_are_evenly_spaced_over_every_block() -> None:
    times = arrivals(5_000, Arrivals.CONSTANT)

    assert (times == np.arange(1, 5_001) * SECOND_NS // 50).all()


def test_bursts_come_at_multiples_of_their_interval() -> None:
    assert list(islice(burst_times(2.5), 3)) == [
        2_500_000_000,
        5_000_000_000,
        7_500_000_000,
    ]


@pytest.mark.parametrize("seed", range(5))
def test_a_number_of_requests_takes_just_its_time(seed: int) -> None:
    times = counted_times(Arrivals.POISSON, flat(50), 2_000, seed=seed)

    gaps = np.diff(times, prepend=0)
    assert times[-1] == 40 * SECOND_NS
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.05)


def test_a_number_of_requests_has_the_pattern_of_its_seed() -> None:
    free, counted = (
        arrivals(3_000),
        counted_times(Arrivals.POISSON, flat(50), 3_000, seed=7),
    )

    assert np.ptp(counted[100:] / free[100:]) < 1e-6
