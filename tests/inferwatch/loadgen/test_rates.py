from itertools import chain, islice

import numpy as np
import pytest
from numpy.typing import NDArray

from inferwatch.loadgen.plan.plan import Arrivals
from inferwatch.loadgen.plan.rates import RateSeries, flat, on_off, ramp, steps
from inferwatch.loadgen.schedule.arrivals import arrival_times

SECOND_NS = 1_000_000_000


def times_s(
    rates: RateSeries,
    count: int = 20_000,
    kind: Arrivals = Arrivals.CONSTANT,
    burstiness: float = 1.0,
) -> NDArray[np.float64]:
    blocks = arrival_times(kind, rates, seed=3, burstiness=burstiness)
    return np.array(list(islice(chain.from_iterable(blocks), count))) / SECOND_NS


def per_second(times: NDArray[np.float64], seconds: int) -> list[int]:
    """Arrivals in each second; one that is due at its end counts there."""
    counts = np.histogram(times - 1e-6, bins=np.arange(seconds + 1))[0]
    return [int(count) for count in counts]


def test_a_ramp_goes_in_a_straight_line_and_then_on() -> None:
    counts = per_second(times_s(ramp(100, 500, over_s=4)), 6)

    assert counts == pytest.approx([150, 250, 350, 450, 500, 500], abs=1)


def test_a_ramp_down_to_nothing_ends_the_arrivals() -> None:
    times = times_s(ramp(100, 0, over_s=10))

    assert len(times) == pytest.approx(500, abs=1)
    assert times[-1] <= 10


def test_steps_follow_each_other_by_time() -> None:
    assert per_second(times_s(steps([10, 40, 20], each_s=2)), 7) == [
        *(10, 10, 40, 40, 20, 20),
        20,
    ]


def test_on_and_off_repeat() -> None:
    counts = per_second(times_s(on_off(50, on_s=1, off_s=2, off_per_s=5)), 9)

    assert counts == pytest.approx([50, 5, 5] * 3, abs=1)


def test_while_off_nothing_comes() -> None:
    counts = per_second(times_s(on_off(50, on_s=1, off_s=2)), 9)

    assert counts == [50, 0, 0] * 3


def test_poisson_arrivals_follow_a_rate_by_time() -> None:
    times = times_s(ramp(0, 2000, over_s=10), 10_000, Arrivals.POISSON)

    expected = np.sqrt(np.arange(1, 10_001) / 10_000) * 10
    assert np.abs(times - expected)[1000:].max() < 0.2


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_vary_as_their_shape_says(burstiness: float) -> None:
    gaps = np.diff(times_s(flat(50), 40_000, Arrivals.GAMMA, burstiness))

    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert (gaps.std() / gaps.mean()) ** 2 == pytest.approx(1 / burstiness, rel=0.08)


@pytest.mark.parametrize(
    ("rates", "at_s", "rate"),
    [
        (flat(7), 100, 7),
        (ramp(0, 10, over_s=10), 5, 5),
        (ramp(0, 10, over_s=10), 50, 10),
        (steps([1, 5], each_s=2), 1.9, 1),
        (steps([1, 5], each_s=2), 2, 5),
        (on_off(9, on_s=1, off_s=1), 0.5, 9),
        (on_off(9, on_s=1, off_s=1), 1.5, 0),
        (on_off(9, on_s=1, off_s=1), 6.5, 9),
    ],
)
def test_the_rate_at_a_moment(rates: RateSeries, at_s: float, rate: float) -> None:
    assert rates.rate_at(at_s) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("points", "period_s", "why"),
    [
        ((), None, "first point"),
        (((1.0, 5.0),), None, "first point"),
        (((0.0, 5.0), (3.0, 1.0), (2.0, 1.0)), None, "in order"),
        (((0.0, -5.0),), None, "below 0"),
        (((0.0, 0.0),), None, "above 0"),
        (((0.0, 1.0), (9.0, 1.0)), 5.0, "period"),
        (((0.0, 1.0),), float("nan"), "period"),
        (((0.0, 1.0), (float("nan"), 1.0)), None, "times and rates"),
        (((0.0, 1.0), (9.0, float("inf"))), None, "times and rates"),
    ],
)
def test_what_is_no_rate_says_why(
    points: tuple[tuple[float, float], ...], period_s: float | None, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        RateSeries(points=points, period_s=period_s)
