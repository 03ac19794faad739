"""Conditions for CI: what they say, and what is not a condition."""

import numpy as np
import pytest

from inferwatch.errors import UsageError
from inferwatch.studies.compare.fail_if import ConditionOutcome, parse_condition
from inferwatch.studies.compare.statistics.resampling import Draws
from inferwatch.studies.compare.statistics.significance import Difference, Resampled

RANDOM = np.random.default_rng(0)
LONGER = Difference(
    Resampled(0.100, 0.100 + 0.001 * RANDOM.standard_normal(2000), 20),
    Resampled(0.110, 0.110 + 0.001 * RANDOM.standard_normal(2000), 20),
)
"""10 ms, 10% more, each give or take 3."""


@pytest.mark.parametrize(
    ("condition", "outcome"),
    [
        ("ttft_p99_s > +5%", ConditionOutcome.FAILED),
        ("ttft_p99_s > +10%", ConditionOutcome.OPEN),
        ("ttft_p99_s > +20%", ConditionOutcome.HELD),
        ("ttft_p99_s>+5ms", ConditionOutcome.FAILED),
        ("ttft_p99_s > +0.02", ConditionOutcome.HELD),
        ("ttft_p99_s < -5%", ConditionOutcome.HELD),
        ("ttft_p99_s < +20%", ConditionOutcome.FAILED),
        ("ttft_p99_s > -1 %", ConditionOutcome.FAILED),
    ],
)
def test_a_condition_holds_when_the_whole_interval_is_beyond(
    condition: str, outcome: ConditionOutcome
) -> None:
    assert parse_condition(condition).outcome(LONGER, 0.05) is outcome


def test_more_conditions_make_each_harder_to_meet() -> None:
    condition = parse_condition("ttft_p99_s > +6%")

    assert condition.outcome(LONGER, 0.05) is ConditionOutcome.FAILED
    assert condition.outcome(LONGER, 0.05 / 50) is ConditionOutcome.OPEN


def drawn(seed: int, blocks: int) -> Resampled:
    """The mean of a session of so many blocks, all sessions being alike."""
    values = np.exp(0.3 * np.random.default_rng(seed).standard_normal(blocks))
    draws = Draws.make(blocks, (seed,), 1000)
    ratios = draws.ratios(values, np.ones(blocks))
    return Resampled(float(values.mean()), ratios, blocks)


PAIRS = [Difference(drawn(2 * n, 6), drawn(2 * n + 1, 6)) for n in range(600)]
"""Of sessions that differ by chance alone."""


@pytest.mark.parametrize("change", ["+0%", "+0ms"])
def test_fifty_conditions_do_not_fail_more_often_than_one(change: str) -> None:
    conditions = [
        parse_condition(f"ttft_mean_s {sign} {change}".replace("< +", "< -"))
        for sign in (">", "<")
    ]

    outcomes = [
        condition.outcome(found, 0.05 / 50)
        for condition in conditions
        for found in PAIRS
    ]

    assert outcomes.count(ConditionOutcome.FAILED) <= 2
    assert outcomes.count(ConditionOutcome.OPEN) > 1100


@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.001])
def test_an_interval_leaves_out_what_its_p_value_does(alpha: float) -> None:
    for found in PAIRS[:200]:
        span = found.ratio_span(alpha)
        assert span is not None
        clear = abs(found.p_value - alpha) > 0.1 * alpha
        assert not clear or (found.p_value < alpha) == (not span[0] <= 1 <= span[1])


def test_a_difference_that_is_large_is_still_found_by_few_blocks() -> None:
    a, b = drawn(1, 6), drawn(2, 6)
    slower = Difference(a, Resampled(10 * b.value, 10 * b.draws, 6))
    condition = parse_condition("ttft_mean_s > +5%")

    assert condition.outcome(slower, 0.05 / 50) is ConditionOutcome.FAILED


def test_what_is_not_known_fails_nothing() -> None:
    assert (
        parse_condition("ttft_p99_s > +5%").outcome(None, 0.05) is ConditionOutcome.OPEN
    )


@pytest.mark.parametrize(
    "text",
    [
        "ttft_p98_s > +5%",
        "ttft_p99_s > 5%",
        "ttft_p99_s = +5%",
        "ttft_p99_s > +5 percent",
        "output_tokens_per_s < -5ms",
        "ttft_p99_s",
        "",
    ],
)
def test_a_typo_is_a_usage_error_that_names_the_metrics(text: str) -> None:
    with pytest.raises(UsageError, match=r"client\.goodput_per_s") as raised:
        parse_condition(text)

    assert repr(text) in str(raised.value)
