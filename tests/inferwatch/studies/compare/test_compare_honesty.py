"""What a comparison promises, over fixed seeds; the benchmark asks 1,000 times.

The numbers of seeds are small, so the bounds leave room for their chance.
"""

from collections.abc import Iterable
from types import ModuleType

import numpy as np
import pytest

from inferwatch.metrics.breakdown.view import BreakdownPhase
from inferwatch.studies.compare.comparison import SessionPair
from inferwatch.studies.compare.metrics import PHASE_KEYS
from inferwatch.studies.compare.verdicts import MetricVerdict

SEEDS = 12
PROBABLY = (
    MetricVerdict.PROBABLY_BETTER,
    MetricVerdict.PROBABLY_WORSE,
    MetricVerdict.PROBABLY_DIFFERS,
)

ALIKE = {
    PHASE_KEYS[each]
    for each in (BreakdownPhase.MEDIA, BreakdownPhase.SEND, BreakdownPhase.UNKNOWN)
}
"""Of simulated sessions these do not vary."""


def share(pairs: Iterable[SessionPair], *verdicts: MetricVerdict) -> float:
    """Of all rows of all pairs, those of which one of these is said."""
    return float(np.mean([e.verdict in verdicts for p in pairs for e in p.results]))


@pytest.mark.parametrize(
    ("kind", "requests", "memory", "seeds"),
    [
        ("two", 1_000, 9, 8),
        ("paired", 1_000, 9, 8),
        pytest.param("two", 1_000, 9, 4 * SEEDS, marks=pytest.mark.soak),
        pytest.param("two", 2_000, 1, 4 * SEEDS, marks=pytest.mark.soak),
        pytest.param("two", 4_000, 39, 4 * SEEDS, marks=pytest.mark.soak),
        pytest.param("paired", 2_000, 9, 4 * SEEDS, marks=pytest.mark.soak),
    ],
)
def test_intervals_cover_the_truth_and_alarms_are_rare(
    honesty: ModuleType, kind: str, requests: int, memory: int, seeds: int
) -> None:
    make = getattr(honesty, kind)

    pairs = [make(seed, requests, memory, draws=500) for seed in range(seeds)]

    # Rows of a pair hang together: 25 of them say about as much as five.
    covered = [hit for pair in pairs for hit in honesty.covers(pair).values()]
    assert 0.91 <= np.mean(covered) <= 0.99
    assert sum(honesty.alarms(pair) > 0 for pair in pairs) <= seeds / 6
    assert share(pairs, *PROBABLY) <= 0.08


def test_blocks_of_a_single_request_would_not_cover(honesty: ModuleType) -> None:
    """The simulation is hard enough: a naive interval misses far too often."""
    missed = 0
    for seed in range(SEEDS):
        random = np.random.default_rng([7, seed])
        a, b = (
            np.log(honesty.Simulated(random, 2_000, 39).values_s["ttft_s"])
            for _ in range(2)
        )
        error = np.sqrt(a.var() / len(a) + b.var() / len(b))
        missed += abs(a.mean() - b.mean()) > 1.96 * error

    assert missed > SEEDS / 2


def test_halves_of_a_stationary_session_show_no_difference(
    honesty: ModuleType,
) -> None:
    pairs = [honesty.halves(seed, 80_000, 9, draws=1_000) for seed in range(2)]

    assert sum(honesty.alarms(pair) > 0 for pair in pairs) <= 1
    assert share(pairs, MetricVerdict.SAME) >= 0.85


@pytest.mark.parametrize("seeds", [1, pytest.param(6, marks=pytest.mark.soak)])
def test_a_shift_of_ten_percent_is_found(honesty: ModuleType, seeds: int) -> None:
    shifted = {"ttft_s": 1.10}

    pairs = [
        honesty.two(seed, 100_000, 9, shifted, draws=1_000) for seed in range(seeds)
    ]

    assert all(
        honesty.all_have(pair, MetricVerdict.WORSE, honesty.TTFT) for pair in pairs
    )


def test_few_requests_cannot_tell_and_say_how_many_would(honesty: ModuleType) -> None:
    pairs = [honesty.two(seed, 60, 3, draws=1_000) for seed in range(SEEDS)]

    assert sum(honesty.alarms(pair) > 0 for pair in pairs) <= 1
    vary = [
        each for pair in pairs for each in pair.results if each.metric.key not in ALIKE
    ]
    still_open = [each for each in vary if each.verdict is MetricVerdict.OPEN]
    assert len(still_open) >= 0.9 * len(vary)
    without = [each for each in still_open if not each.more_requests]
    # What is rare, or varies most, may take a hundred times as many: none is said.
    uneven = {
        "preemptions_per_request",
        *(PHASE_KEYS[e] for e in (BreakdownPhase.PREEMPTED, BreakdownPhase.PROMPTS)),
    }
    assert {each.metric.key for each in without} <= uneven


@pytest.mark.parametrize(
    "seeds", [SEEDS, pytest.param(4 * SEEDS, marks=pytest.mark.soak)]
)
def test_a_p99_is_judged_from_500_values_on(honesty: ModuleType, seeds: int) -> None:
    pairs = [honesty.two(seed, 500, 3, draws=500) for seed in range(seeds)]

    hits = [
        hit
        for pair in pairs
        for key, hit in honesty.covers(pair).items()
        if key.endswith("p99_s")
    ]
    assert len(hits) > 50
    assert 0.9 <= np.mean(hits) < 1.0
    (fewer,) = [
        each
        for each in honesty.two(1, 499, 3, draws=500).results
        if each.metric.key == "ttft_p99_s"
    ]
    assert fewer.verdict is MetricVerdict.OPEN
    assert "needs 500 values" in (fewer.why or "")


def test_runs_that_drift_are_not_told_apart(honesty: ModuleType) -> None:
    """What one run a side cannot know: a drift looks like a change."""
    drifting = honesty.World(drift=0.05)

    runs = [
        honesty.repeated(seed, 500, 3, draws=200, world=drifting)
        for seed in range(SEEDS)
    ]
    single = [
        honesty.paired(seed, 500, 3, draws=200, world=drifting) for seed in range(SEEDS)
    ]

    assert sum(honesty.alarms(pair) > 0 for pair in runs) <= 2
    assert sum(honesty.alarms(pair) > 0 for pair in single) >= SEEDS / 4


def test_the_number_of_requests_it_asks_for_is_about_enough(
    honesty: ModuleType,
) -> None:
    few = honesty.two(1, 3_000, 3, draws=1_000)
    (mean,) = [each for each in few.results if each.metric.key == "ttft_mean_s"]

    enough = honesty.two(1, 60_000, 3, draws=1_000)

    (then,) = [each for each in enough.results if each.metric.key == "ttft_mean_s"]
    assert mean.verdict in {MetricVerdict.OPEN, MetricVerdict.SAME}
    assert then.verdict is MetricVerdict.SAME


def test_the_same_seed_gives_the_same_comparison(honesty: ModuleType) -> None:
    one, again = (honesty.two(5, 1_000, 3, draws=500) for _ in range(2))

    assert [each.ratio_span for each in one.results] == [
        each.ratio_span for each in again.results
    ]
