"""A moment of a session as people type it."""

from dataclasses import replace

import pytest

from inferwatch.errors import UsageError
from inferwatch.feed import Mark, MarkKind
from inferwatch.ui.widgets.moment_text import Scale, moment_of

S = 1_000_000_000
BEGAN_S = 12 * 3600 + 1 * 60 + 10
"""12:01:10 on the clock."""


def wall_text(t_ns: int) -> str:
    s = (BEGAN_S + t_ns // S) % 86400
    return f"{s // 3600:02}:{s // 60 % 60:02}:{s % 60:02}"


def scale(end_s: float = 300, here_s: float = 100) -> Scale:
    return Scale(
        start_ns=0,
        end_ns=round(end_s * S),
        here_ns=round(here_s * S),
        wall_text=wall_text,
    )


@pytest.mark.parametrize(
    ("typed", "meant_s"),
    [
        ("12:03:40", 150),
        ("12:03", 110),
        ("1:30", 90),
        ("1:30.5", 90.5),
        ("0:00:20", 20),
        ("90", 90),
        ("90s", 90),
        ("1.5m", 90),
        ("1m30s", 90),
        ("250ms", 0.25),
        ("+90s", 190),
        ("-1m", 40),
        ("+1h", 300),
        ("-1h", 0),
        ("50%", 150),
        (" End ", 300),
        ("start", 0),
    ],
)
def test_what_people_type_is_understood(typed: str, meant_s: float) -> None:
    assert moment_of(typed, scale()) == round(meant_s * S)


@pytest.mark.parametrize("typed", ["", "noon", "12:3:40", "1:2", "5 parsecs", "%"])
def test_what_is_no_time_says_what_is_understood(typed: str) -> None:
    with pytest.raises(UsageError, match=r"12:03:40, 1:30 or 90s .* 50%"):
        moment_of(typed, scale())


BOOKMARKS = tuple(
    Mark(t_ns=s * S, kind=MarkKind.BOOKMARK, text=text)
    for s, text in ((40, "warm"), (70, "Warm again"), (150, "the p99 broke here"))
)


@pytest.mark.parametrize(
    ("typed", "meant_s"),
    [("warm", 40), ("WARM A", 70), ("P99", 150), ("again", 70), ("1:30", 90)],
)
def test_a_bookmark_is_meant_by_its_text_or_a_part_of_it(
    typed: str, meant_s: float
) -> None:
    assert moment_of(typed, replace(scale(), bookmarks=BOOKMARKS)) == meant_s * S


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("AR", "'AR' is in 2 bookmarks: 'warm' at 12:01:50, 'Warm again' at 12:02:20"),
        ("noon", "or the text of a bookmark: 'warm' at 12:01:50, 'Warm again' at"),
        ("9:30", "12:06:10, or the text of a bookmark: 'warm' at 12:01:50"),
        ("", "or the text of a bookmark: 'warm' at"),
    ],
)
def test_where_no_bookmark_or_several_are_meant_they_are_listed(
    typed: str, said: str
) -> None:
    with pytest.raises(UsageError) as failure:
        moment_of(typed, replace(scale(), bookmarks=BOOKMARKS))

    assert said in str(failure.value)


def test_of_many_bookmarks_a_few_are_listed() -> None:
    with pytest.raises(UsageError, match=r"12:01:50, 4 more$"):
        moment_of("noon", replace(scale(), bookmarks=BOOKMARKS[:1] * 9))


@pytest.mark.parametrize("typed", ["12:30:00", "9:30", "301s", "101%"])
def test_a_time_outside_says_where_the_session_is(typed: str) -> None:
    with pytest.raises(UsageError, match="12:01:10 to 12:06:10"):
        moment_of(typed, scale())


def test_of_several_days_the_nearest_is_meant() -> None:
    three_days = scale(end_s=3 * 86400, here_s=2 * 86400)

    assert moment_of("12:01:00", three_days) == (2 * 86400 - 10) * S
    assert moment_of("12:01:20", three_days) == (2 * 86400 + 10) * S


def test_a_session_in_which_clocks_were_changed_still_finds_the_time() -> None:
    def summer(t_ns: int) -> str:
        return wall_text(t_ns + (3600 * S if t_ns >= 200 * S else 0))

    changed = Scale(start_ns=0, end_ns=900 * S, here_ns=0, wall_text=summer)

    assert moment_of("13:06:10", changed) == 300 * S
