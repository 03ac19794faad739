"""Replicas by the hour, and what starts too late."""

from pathlib import Path

import pytest

from inferwatch.errors import UsageError
from inferwatch.studies.capacity.demand import demand_plan, read_demand

DAY = (3_600.0, 3_600.0, 18_000.0, 10_800.0)
"""1, 1, 5 and 3 requests a second."""


@pytest.mark.parametrize(
    "text",
    [
        "hour,requests_per_hour\n0,5\n1,7\n",
        '{"hour": 0, "requests_per_hour": 5}\n{"hour": 1, "requests_per_hour": 7}\n',
        "5\n\n7\n",
        "requests_per_hour\n5\n7\n",
    ],
)
def test_a_demand_is_read_in_each_form(tmp_path: Path, text: str) -> None:
    file = tmp_path / "day"
    file.write_text(text, "utf-8")

    assert read_demand(file) == (5.0, 7.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no demand"),
        ("0\n0\n", "no demand"),
        ("hour,requests_per_hour\n0,5\n2,7\n", "hour 2 after 0"),
        ("5\n-1\n", "line 2: -1 requests"),
        ("5\nnan\n", "line 2: nan requests"),
        ("5\nmany\n", "line 2: cannot read 'many'"),
        ("hour,requests_per_hour\n0\n", "line 2: cannot read '0'"),
        ('{"requests_per_hour": [1]}\n', "line 1: cannot read"),
    ],
)
def test_what_is_no_demand_is_refused_with_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "day"
    file.write_text(text, "utf-8")

    with pytest.raises(UsageError, match=said):
        read_demand(file)


def test_replicas_follow_the_demand() -> None:
    plan = demand_plan(DAY, per_replica_s=1.0, start_s=0)

    assert plan.replicas == (1, 1, 5, 3)
    assert plan.replica_hours == 10
    assert plan.peak_hours == 20
    assert plan.late_requests == 0


@pytest.mark.parametrize(
    ("start_s", "late"),
    [
        (900, 0.25 * 4 * 3_600),  # four replicas come a quarter of an hour late
        (3_600, 4 * 3_600),
        (5_400, 4 * 3_600 + 0.5 * 2 * 3_600),  # and of the next hour two, half of it
    ],
)
def test_what_starts_when_demand_has_risen_comes_late(
    start_s: float, late: float
) -> None:
    plan = demand_plan(DAY, per_replica_s=1.0, start_s=start_s)

    assert plan.late_requests == pytest.approx(late)
    assert plan.replica_hours == pytest.approx(10 + 4 * start_s / 3_600)
