"""Every flag of the program reads durations, sizes and rates alike."""

import doctest
from typing import Any

import click
import pytest

from inferwatch import quantities
from inferwatch.cli.baseline import baseline
from inferwatch.cli.options import ALARM_OPTIONS, SOME_SECONDS, CountRange, RateRange
from inferwatch.cli.plan import MANY
from inferwatch.cli.running.compare import comparison_request
from inferwatch.cli.running.plan.requests import seconds_of
from inferwatch.cli.tune import DurationParam
from inferwatch.live.alarms.rules import LatencyRule, rules_of
from inferwatch.loadgen.plan.text import read_groups, read_lengths, read_rates
from inferwatch.metrics.requests.slo import parse_slo
from inferwatch.quantities import count_of, duration_s, rate_per_s, size_bytes
from inferwatch.record.sessions.retention import age_s
from inferwatch.studies.compare.fail_if import parse_condition
from inferwatch.studies.tune.flags import read_variables
from inferwatch.ui.what_if.dialog import read_fields

WRITTEN = {"0.5": 0.5, "90s": 90, "500ms": 0.5, "250us": 25e-5, "10m": 600, "2h": 7200}
EVERY = pytest.mark.parametrize(("text", "seconds"), WRITTEN.items())


def of_an_alarm(text: str) -> float:
    command = click.Command("x", params=[])
    for each in ALARM_OPTIONS:
        each(command)
    (keep,) = (each for each in command.params if each.name == "keep")
    found: float = keep.process_value(click.Context(command), text)
    return found


def of_a_warmup(text: str) -> float | None:
    results: Any = None
    wanted = comparison_request(
        ("a", "b"),
        results=results,
        database=None,
        warmup=text,
        a_from=None,
        a_to=None,
        b_from=None,
        b_to=None,
        slo=None,
        conditions=(),
        matters=10.0,
        seed=0,
        inconclusive_fails=False,
    )
    return wanted.choices[0].warmup_s


def of_a_baseline(text: str) -> int:
    lengths = next(each for each in baseline.params if each.name == "prompt_tokens")
    (found,) = lengths.process_value(click.Context(baseline), text)
    return int(found)


def of_a_rule(text: str) -> float:
    (rule,) = rules_of(f"p99(ttft_s)>{text}")
    assert isinstance(rule, LatencyRule)
    return rule.limit


@EVERY
def test_every_duration_is_read_everywhere(text: str, seconds: float) -> None:
    for read in (
        duration_s,
        lambda each: SOME_SECONDS.convert(each, None, None),
        lambda each: DurationParam().convert(each, None, None),
        lambda each: seconds_of(each, "--measured-tpot"),
        lambda each: parse_slo(f"ttft_s<{each}").limits[0].below_s,
        lambda each: parse_condition(f"ttft_p99_s > +{each}").change,
        lambda each: read_rates(f"0:5 {each}:20").points[-1][0],
        of_an_alarm,
        of_a_warmup,
        of_a_rule,
    ):
        assert read(text) == seconds


def test_a_size_is_decimal_and_has_a_unit() -> None:
    assert size_bytes("256mb") == 256_000_000
    assert size_bytes("256M") is None


def test_a_rate_may_be_by_the_minute() -> None:
    assert rate_per_s("30/min") == 0.5
    assert read_rates("0:30/min").points == ((0.0, 0.5),)


def test_the_rate_of_a_load_is_read_as_any_rate_and_as_no_duration() -> None:
    assert RateRange(0).convert("30/min", None, None) == 0.5
    for text in ("5m", "20/5s", "20/", "1/.5s"):
        with pytest.raises(click.BadParameter):
            RateRange(0).convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "count"), [("512", 512), ("32k", 32_000), ("32K", 32_768), ("1.5k", 1500)]
)
def test_a_count_of_tokens_is_read_everywhere_as_vllm_does(
    text: str, count: int
) -> None:
    for read in (
        count_of,
        lambda each: MANY.convert(each, None, None),
        lambda each: CountRange(1).convert(each, None, None),
        lambda each: read_lengths(each)["low"],
        lambda each: read_lengths(f"1-{each}")["high"],
        lambda each: read_lengths(f"lognormal:{each},0.5")["median"],
        lambda each: read_groups(f"4x{each}")["tokens"],
        lambda each: int(read_variables((f"max-num-seqs=8,{each}",))[0].values[1]),
        lambda each: read_fields({"kv_blocks": each}).changes[0].kv_blocks,
        of_a_baseline,
    ):
        assert read(text) == count


def test_what_is_no_whole_number_is_refused() -> None:
    for text in ("1.5", "32 apples", "k", ""):
        assert count_of(text) is None
        with pytest.raises(click.BadParameter):
            CountRange(1).convert(text, None, None)


def test_numbers_in_a_series_of_rates_may_have_an_exponent() -> None:
    assert read_rates("0:1e2").points == ((0.0, 100.0),)


def test_no_number_is_too_long_to_be_refused() -> None:
    text = "9" * 305
    assert size_bytes(f"{text}GB") is duration_s(f"{text}d") is None


@pytest.mark.parametrize("text", ["500M", "30", "90s", "10min"])
def test_what_is_deleted_by_age_is_named_in_hours_or_more(text: str) -> None:
    assert age_s(text) is None


def test_the_examples_are_so() -> None:
    outcome = doctest.testmod(quantities)

    assert outcome.attempted >= 5
    assert outcome.failed == 0
