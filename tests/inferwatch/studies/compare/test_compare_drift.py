"""A drift is found, and what only wanders or bursts is called none."""

import re
from dataclasses import replace
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest

from inferwatch.studies.compare.checks.drift import check_drift
from inferwatch.studies.compare.quality import Quality
from inferwatch.studies.compare.reading.session_numbers import (
    ComparedSide,
    SessionNumbers,
)
from inferwatch.studies.compare.statistics.resampling import BINS, CountedValues, Floats
from inferwatch.studies.compare.statistics.trend import trend_of

ONES = np.ones(BINS)
SIMULATIONS = 300


def autoregression(random: np.random.Generator, keep: float) -> Floats:
    values = np.zeros(BINS)
    step = random.standard_normal(BINS)
    values[0] = step[0] / np.sqrt(1 - keep**2)
    for place in range(1, BINS):
        values[place] = keep * values[place - 1] + step[place]
    return np.asarray(values * np.sqrt(1 - keep**2), np.float64)


def line(times: float) -> Floats:
    """Rises so much from its first third to its last, all the way."""
    return np.asarray(np.exp(np.linspace(0, 1.5 * np.log(times), BINS)), np.float64)


def test_a_line_is_measured_from_third_to_third() -> None:
    noise = np.exp(0.02 * autoregression(np.random.default_rng(1), 0.0))

    rose = trend_of(noise * line(1.14), ONES)
    fell = trend_of(noise / line(1.14), ONES)

    assert rose is not None
    assert fell is not None
    assert rose.ratio == pytest.approx(1.14, abs=0.01)
    assert fell.ratio == pytest.approx(1 / 1.14, abs=0.01)
    assert max(rose.p_value, fell.p_value) < 1e-6


def test_a_line_without_any_noise_is_certain() -> None:
    flat = trend_of(ONES.copy(), ONES)

    assert flat is not None
    assert flat.ratio == 1
    assert flat.p_value == 1


@pytest.mark.parametrize("memory", [1, 3, 9])
def test_what_wanders_is_rarely_called_a_trend(memory: int) -> None:
    """5% within what so many simulations can show: three standard errors."""
    random = np.random.default_rng(memory)
    keep = (memory - 1) / (memory + 1)
    found = [
        trend_of(np.exp(0.3 * autoregression(random, keep)), ONES)
        for _ in range(SIMULATIONS)
    ]

    told = [each.p_value <= 0.05 for each in found if each is not None]

    assert len(told) > SIMULATIONS / 2
    assert np.mean(told) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / len(told))


def test_bursts_are_no_trend() -> None:
    """Stretches of a tenth of the session at three times the latency, anywhere."""
    random = np.random.default_rng(4)
    told = []
    for _ in range(SIMULATIONS):
        values = np.exp(0.1 * random.standard_normal(BINS))
        for at in random.integers(0, BINS - 24, 3):
            values[at : at + 24] *= 3
        trend = trend_of(values, ONES)
        told.append(trend is not None and trend.p_value <= 0.01)

    assert np.mean(told) <= 0.03


def test_what_wanders_slower_than_the_session_is_long_cannot_be_told() -> None:
    values = np.sin(np.linspace(0, 4 * np.pi, BINS)) + 2

    assert trend_of(values, ONES) is None


def test_a_step_in_the_middle_is_found_as_well_as_a_line() -> None:
    """A clock that falls, another program that starts: then all is as before."""
    noise = np.exp(0.05 * autoregression(np.random.default_rng(3), 0.3))
    step = np.where(np.arange(BINS) < BINS / 2, 1.0, 1.2)

    trend = trend_of(noise * step, ONES)

    assert trend is not None
    assert trend.ratio == pytest.approx(1.2, abs=0.02)
    assert trend.p_value < 0.005


def test_nothing_known_is_nothing_told() -> None:
    assert trend_of(np.zeros(BINS), np.zeros(BINS)) is None


# The check of two sides.


@pytest.fixture
def steady(honesty: ModuleType) -> tuple[SessionNumbers, SessionNumbers]:
    """Two sessions in which nothing drifts."""
    random = np.random.default_rng(7)
    before, after = (honesty.Simulated(random, 2000, 3).numbers(n) for n in (1, 2))
    return _named(before, "before"), _named(after, "after")


def _named(run: SessionNumbers, name: str) -> SessionNumbers:
    return replace(run, row=replace(run.row, name=name))


def _drifting(run: SessionNumbers, name: str, by: Floats) -> SessionNumbers:
    values = run.counted[name]
    longer = replace(values, sums_s=values.sums_s * by)
    return replace(run, counted={**run.counted, name: longer})


def test_steady_sessions_are_good(
    steady: tuple[SessionNumbers, SessionNumbers],
) -> None:
    check = check_drift(*map(ComparedSide.of, steady))

    assert check.quality is Quality.GOOD
    assert check.sentence == (
        "No drift shown within a session, of TPOT or TTFT or step time."
    )


def test_a_drift_is_said_with_its_session_its_size_and_what_to_do(
    steady: tuple[SessionNumbers, SessionNumbers],
) -> None:
    before = _drifting(steady[0], "tpot_s", line(1.5))

    check = check_drift(ComparedSide.of(before), ComparedSide.of(steady[1]))

    assert check.quality is Quality.DOUBTFUL
    said = re.fullmatch(
        r"TPOT of before rose by (\d+)% from its first to its last third: compare a "
        r"steady part \(--a-from, --a-to, --b-from, --b-to\), or take turns "
        r"\(A B A B\)\.",
        check.sentence,
    )
    assert said is not None
    assert 35 <= int(said[1]) <= 75


def test_a_drift_that_is_too_small_to_matter_is_none(
    steady: tuple[SessionNumbers, SessionNumbers],
) -> None:
    exact = CountedValues(
        counts=np.zeros((60, 1), np.int64),
        values_s=np.ones(1),
        sums_s=line(1.03),
        bins=ONES,
    )
    runs = [replace(run, counted={"tpot_s": exact}) for run in steady]

    assert check_drift(*map(ComparedSide.of, runs)).quality is Quality.GOOD


def test_a_load_that_rose_is_named_as_the_reason(
    steady: tuple[SessionNumbers, SessionNumbers],
) -> None:
    random = np.random.default_rng(5)
    counts = random.poisson(100 * line(2)).astype(np.float64)
    noise = np.exp(0.02 * random.standard_normal(BINS))
    rising = CountedValues(
        counts=np.zeros((60, 1), np.int64),
        values_s=np.ones(1),
        sums_s=counts * line(1.5) * noise,
        bins=counts,
    )
    after = replace(steady[1], counted={"ttft_s": rising})

    check = check_drift(ComparedSide.of(steady[0]), ComparedSide.of(after))

    assert check.sentence.startswith(
        "TTFT of after rose by 50% from its first to its last third, as its load "
        "rose by 102%: "
    )


def test_what_changes_too_slowly_is_unknown(
    steady: tuple[SessionNumbers, SessionNumbers],
) -> None:
    slow = CountedValues(
        counts=np.zeros((60, 1), np.int64),
        values_s=np.ones(1),
        sums_s=np.sin(np.linspace(0, 4 * np.pi, BINS)) + 2,
        bins=ONES,
    )
    after = replace(steady[1], counted={"tpot_s": slow})

    check = check_drift(ComparedSide.of(steady[0]), ComparedSide.of(after))

    assert check.quality is Quality.UNKNOWN
    assert check.sentence.startswith("Whether after drifts cannot be told: ")


def test_false_alarms_stay_below_one_in_twenty(honesty: ModuleType) -> None:
    """Of all latencies of both sessions together, which remember 9 requests."""
    found: npt.NDArray[np.bool_] = np.array(
        [
            check_drift(
                *(ComparedSide.of(each) for each in _pair(honesty, seed))
            ).quality
            is Quality.DOUBTFUL
            for seed in range(150)
        ]
    )

    assert found.mean() <= 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / len(found))


def _pair(honesty: ModuleType, seed: int) -> list[SessionNumbers]:
    random = np.random.default_rng((9, seed))
    return [honesty.Simulated(random, 1000, 9).numbers(n) for n in (1, 2)]
