"""The search ends at the knee, and is not fooled by few requests."""

from dataclasses import replace

import pytest

from inferwatch.loadgen.plan.option import MOST_PER_S
from inferwatch.loadgen.rate_search import MOST_RUNS, RatePoint, RateSearch
from inferwatch.metrics.series.intervals import share_interval


def point(rate: float, good: int = 100, n: int = 100) -> RatePoint:
    return RatePoint(rate_per_s=rate, n=n, good=good, certain=n / 4)


def search(knee: float, first: float = 1.0) -> tuple[RateSearch, list[float]]:
    """All requests are good up to the knee, half of them above."""
    found, tried = RateSearch(first, 0.95), []
    while (rate := found.next_rate()) is not None:
        tried.append(rate)
        found.add(point(rate, 100 if rate <= knee else 50))
    return found, tried


@pytest.mark.parametrize("knee", [0.3, 1.0, 6.7, 57.0])
@pytest.mark.parametrize("first", [1.0, 10.0])
def test_it_ends_within_ten_percent_of_the_knee(knee: float, first: float) -> None:
    found, tried = search(knee, first)

    assert found.highest_held is not None
    assert found.lowest_failed is not None
    assert found.highest_held <= knee < found.lowest_failed
    assert found.lowest_failed / found.highest_held <= 1.1
    assert len(tried) < 14


def test_it_doubles_then_halves_the_gap() -> None:
    assert search(5.2)[1] == [1, 2, 4, 8, 6, 5, 5.5]


def test_few_requests_decide_nothing_and_are_run_again() -> None:
    found = RateSearch(4.0, 0.95)
    found.add(point(4.0, 10, 10))
    assert found.holds(found.points[0]) is None
    assert found.next_rate() == 4.0

    found.add(point(4.0, 100, 100))
    assert found.holds(found.points[0]) is True
    assert (found.points[0].n, found.points[0].runs) == (110, 2)


def test_in_the_end_the_share_itself_decides() -> None:
    found = RateSearch(4.0, 0.95)
    for _ in range(MOST_RUNS):
        found.add(point(4.0, 19, 20))

    assert found.holds(found.points[0]) is True


def test_a_server_that_holds_nothing_ends_the_search() -> None:
    found, _ = search(0.0)

    assert found.highest_held is None


def test_a_server_without_a_knee_ends_the_search() -> None:
    found, _ = search(1e9)

    assert found.lowest_failed is None
    assert found.highest_held == 4096


def test_no_rate_is_tried_that_no_plan_can_have() -> None:
    _, tried = search(1e9, first=MOST_PER_S / 3)

    assert tried == [MOST_PER_S / 3, MOST_PER_S / 1.5]


def test_the_interval_told_is_as_wide_as_what_all_runs_are_worth() -> None:
    found = RateSearch(4.0, 0.95)
    for good in (90, 94):
        found.add(point(4.0, good, 100))

    (pooled,) = found.points
    assert pooled.ci95 == share_interval(0.92 * 50, 50)
    assert pooled.ci95[1] - pooled.ci95[0] > 0.1


def test_the_result_is_a_sentence() -> None:
    assert search(5.2)[0].sentence == (
        "5/s meets the objectives for 95% of requests; 5.5/s does not"
    )
    assert search(0.0)[0].sentence == "no rate met the objectives for 95% of requests"


def test_what_was_not_tried_is_not_said() -> None:
    found = RateSearch(4.0, 0.95)
    assert found.sentence == "interrupted before any rate could be judged"

    found.add(replace(point(4.0), client_bound=True))
    assert found.sentence == (
        "4/s meets the objectives for 95% of requests; but there the client was too "
        "slow to be sure of it"
    )

    found = RateSearch(4.0, 0.95)
    found.add(point(4.0, 50))
    assert found.sentence == "no rate met the objectives for 95% of requests"
