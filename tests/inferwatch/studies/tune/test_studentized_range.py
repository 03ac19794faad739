"""The studentized range, against what is published of it."""

import pytest

from inferwatch.studies.compare.statistics.significance import t_beyond
from inferwatch.studies.tune.search.studentized_range import range_beyond


@pytest.mark.parametrize(
    ("share", "groups", "freedom", "published"),
    [
        (0.05, 3, 2, 8.331),
        (0.05, 12, 3, 9.946),
        (0.05, 5, 10, 4.654),
        (0.05, 20, 20, 5.714),
        (0.01, 5, 10, 6.136),
        (0.01, 3, 120, 4.200),
    ],
)
def test_quantiles_are_those_of_the_published_tables(
    share: float, groups: int, freedom: float, published: float
) -> None:
    """Tables of Harter 1960, as reprinted in textbooks."""
    assert range_beyond(share, groups, freedom) == pytest.approx(published, abs=2e-2)


@pytest.mark.parametrize("freedom", [2.0, 5.0, 30.0])
def test_of_two_groups_it_is_students_t(freedom: float) -> None:
    t = t_beyond(0.02, freedom)

    assert range_beyond(0.02, 2, freedom) == pytest.approx(t * 2**0.5, rel=1e-3)


def test_of_two_hundred_settings_it_is_a_number() -> None:
    assert 7 < range_beyond(0.02, 200, 30.0) < range_beyond(0.02, 200, 2.0) < 60
