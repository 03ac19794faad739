"""Conditions for CI: what they say, and what is no condition."""

import numpy as np
import pytest

from inferwatch.compare.difference import Difference, Drawn
from inferwatch.compare.fail_if import Outcome, parse_condition
from inferwatch.errors import UsageError

RANDOM = np.random.default_rng(0)
LONGER = Difference(
    Drawn(0.100, 0.100 + 0.001 * RANDOM.standard_normal(2000), 20),
    Drawn(0.110, 0.110 + 0.001 * RANDOM.standard_normal(2000), 20),
)
"""10 ms, 10% more, each give or take 3."""


@pytest.mark.parametrize(
    ("condition", "outcome"),
    [
        ("ttft_p99_s > +5%", Outcome.FAILED),
        ("ttft_p99_s > +10%", Outcome.OPEN),
        ("ttft_p99_s > +20%", Outcome.HELD),
        ("ttft_p99_s>+5ms", Outcome.FAILED),
        ("ttft_p99_s > +0.02", Outcome.HELD),
        ("ttft_p99_s < -5%", Outcome.HELD),
        ("ttft_p99_s < +20%", Outcome.FAILED),
        ("ttft_p99_s > -1 %", Outcome.FAILED),
    ],
)
def test_a_condition_holds_when_the_whole_interval_is_beyond(
    condition: str, outcome: Outcome
) -> None:
    assert parse_condition(condition).outcome(LONGER, 0.05) is outcome


def test_more_conditions_make_each_harder_to_meet() -> None:
    condition = parse_condition("ttft_p99_s > +6%")

    assert condition.outcome(LONGER, 0.05) is Outcome.FAILED
    assert condition.outcome(LONGER, 0.05 / 50) is Outcome.OPEN


def test_what_is_not_known_fails_nothing() -> None:
    assert parse_condition("ttft_p99_s > +5%").outcome(None, 0.05) is Outcome.OPEN


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
