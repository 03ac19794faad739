"""Numbers as text: the examples hold, and nothing ever changes its width."""

import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferwatch import formatting
from inferwatch.formatting import (
    about,
    format_bytes,
    format_clock,
    format_count,
    format_duration,
    format_durations,
    format_in,
    format_rate,
    format_share,
    shared_unit,
)


def test_the_examples_in_the_module_hold() -> None:
    outcome = doctest.testmod(formatting)

    assert outcome.attempted > 20
    assert outcome.failed == 0


@given(st.none() | st.floats(min_value=0, max_value=3.5e6))
def test_durations_are_seven_columns_wide(duration_s: float | None) -> None:
    assert len(format_duration(duration_s)) == 7


@given(st.lists(st.none() | st.floats(min_value=0, max_value=99_999)))
def test_durations_that_share_a_unit_are_of_one_width(
    durations_s: list[float | None],
) -> None:
    unit = shared_unit(durations_s)

    assert {len(format_in(unit, each)) for each in durations_s} <= {6}
    assert {len(text) for text in format_durations(durations_s)} <= {9}


def test_a_row_keeps_one_unit() -> None:
    row = [each.strip() for each in format_durations([0.155, 0.36, 1.59])]

    assert row == ["155 ms", "360 ms", "1,590 ms"]


def test_the_mark_of_too_few_samples_moves_no_number() -> None:
    assert about(format_in(shared_unit([0.23]), 0.23)) == "  ~230"


@given(st.none() | st.floats(min_value=0, max_value=999e12))
def test_counts_rates_and_bytes_are_seven_columns_wide(value: float | None) -> None:
    assert len(format_count(value)) == 7
    assert len(format_rate(value)) == 7
    assert len(format_bytes(value)) == 7


@given(st.none() | st.floats(min_value=0, max_value=9.99))
def test_shares_are_four_columns_wide(share: float | None) -> None:
    assert len(format_share(share)) == 4


@given(st.none() | st.integers(-(10**14), 3 * 10**14))
def test_clocks_are_nine_columns_wide(t_ns: int | None) -> None:
    assert len(format_clock(t_ns)) == 9


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0.0, "   0 µs"),
        (0.0009996, " 1.0 ms"),
        (0.00995, "10.0 ms"),
        (0.0999, "99.9 ms"),
        (0.09996, " 100 ms"),
        (0.25, " 250 ms"),
        (0.9996, " 1.00 s"),
        (9.996, " 10.0 s"),
        (99.96, "  100 s"),
        (999.6, " 17 min"),
        (59_999.0, "   17 h"),
        (86_400.0, "   24 h"),
    ],
)
def test_rounding_up_does_not_add_a_digit_too_many(
    duration_s: float, text: str
) -> None:
    assert format_duration(duration_s) == text


@pytest.mark.parametrize("duration_s", [math.inf, -math.inf, math.nan])
def test_a_duration_that_is_no_number_is_unknown(duration_s: float) -> None:
    assert format_duration(duration_s) == format_duration(None)


def test_a_number_too_large_for_any_unit_stays_in_the_largest() -> None:
    assert format_bytes(2.5e15).strip() == "2,500 TB"
