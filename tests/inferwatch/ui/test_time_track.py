"""A session in one width: every moment has a column, every column a moment."""

import doctest
from statistics import fmean
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferwatch.ui.frame import time_line
from inferwatch.ui.kit.renderables import time_track
from inferwatch.ui.kit.renderables.time_track import TimeTrack, bars, rail

S = 1_000_000_000


@pytest.mark.parametrize("module", [time_track, time_line])
def test_examples_in_docstrings_are_true(module: ModuleType) -> None:
    result = doctest.testmod(module)

    assert result.attempted > 0
    assert result.failed == 0


@given(columns=st.integers(1, 400), end_ns=st.integers(1, 10**15))
def test_both_ends_can_be_pointed_at(columns: int, end_ns: int) -> None:
    track = TimeTrack(0, end_ns, columns)

    assert track.moment(0) == track.moment(-3) == 0
    assert track.moment(columns + 2) in {0 if columns == 1 else end_ns, end_ns}
    assert track.column_at(-5) == 0
    assert track.column_at(end_ns * 2) == columns - 1


@given(
    columns=st.integers(2, 300),
    end_ns=st.integers(10**6, 10**15),
    share=st.floats(0, 1),
)
def test_a_moment_pointed_at_is_drawn_where_it_was_pointed_at(
    columns: int, end_ns: int, share: float
) -> None:
    track = TimeTrack(0, end_ns, columns)
    column = round(share * (columns - 1))

    assert abs(track.column_at(track.moment(column)) - column) <= 1


@pytest.mark.parametrize(
    ("columns", "folded"),
    [
        pytest.param(4, [1, 2, None, 4], id="a bin a column"),
        pytest.param(2, [1.5, 4], id="two bins a column"),
        pytest.param(8, [1, 1, 2, 2, None, None, 4, 4], id="two columns a bin"),
    ],
)
def test_bins_become_columns_and_gaps_stay_gaps(
    columns: int, folded: list[float | None]
) -> None:
    track = TimeTrack(0, 40 * S, columns)

    assert track.fold([1, 2, None, 4], 0, 10 * S, fmean) == folded


def test_bins_may_begin_later_and_end_earlier_than_the_session() -> None:
    track = TimeTrack(0, 40 * S, 4)

    assert track.fold([5, 7], 10 * S, 10 * S, max) == [None, 5, 7, None]


def test_a_session_of_no_length_is_drawn_too() -> None:
    track = TimeTrack(0, 0, 5)

    assert "".join(run.text for run in rail(track, 0, ())) == "●────"
    assert track.fold([], 0, 1, max) == [None] * 5
    assert bars([None, None], 2) == ["  ", "  "]


def test_the_last_of_marks_in_one_column_is_seen() -> None:
    marks = [(11, "P", ""), (12, "✖", "bad")]

    assert "".join(r.text for r in rail(TimeTrack(0, 100, 10), 99, marks))[1] == "✖"
