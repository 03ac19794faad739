"""A p99 that is too seldom seen for an interval is told from one far below it."""

from types import ModuleType

import pytest

from inferwatch.studies.compare.comparison import MetricResult
from inferwatch.studies.compare.report import short_span, span_text
from inferwatch.studies.compare.verdicts import MetricVerdict

REQUESTS, MEMORY = 400, 9.0
"""Too few for a p99."""
SEEDS = range(5)


def ttft_p99(honesty: ModuleType, seed: int, times: float) -> MetricResult:
    pair = honesty.two(seed, REQUESTS, MEMORY, {"ttft_s": times}, draws=500)
    found: MetricResult
    (found,) = (each for each in pair.results if each.metric.key == "ttft_p99_s")
    return found


@pytest.mark.parametrize(
    ("times", "verdicts"),
    [
        (8.0, {MetricVerdict.WORSE, MetricVerdict.PROBABLY_WORSE}),
        pytest.param(
            1 / 8,
            {MetricVerdict.BETTER, MetricVerdict.PROBABLY_BETTER},
            marks=pytest.mark.soak,
        ),
    ],
)
def test_far_apart_is_told_and_by_how_much_at_least(
    honesty: ModuleType, times: float, verdicts: set[MetricVerdict]
) -> None:
    found = [ttft_p99(honesty, seed, times) for seed in SEEDS]

    assert {each.verdict for each in found} <= verdicts
    for each in found:
        assert each.ratio_span is not None
        low, high = each.ratio_span
        assert low < times < high
        assert low > 1 or high < 1


@pytest.mark.parametrize("times", [pytest.param(1.0, marks=pytest.mark.soak), 1.3])
def test_what_is_alike_or_near_stays_open(honesty: ModuleType, times: float) -> None:
    found = [ttft_p99(honesty, seed, times) for seed in SEEDS]

    assert {each.verdict for each in found} == {MetricVerdict.OPEN}
    assert all(each.ratio_span is None for each in found)


def test_the_far_end_is_not_made_up(honesty: ModuleType) -> None:
    worse, better = (ttft_p99(honesty, 1, times) for times in (8.0, 1 / 8))

    assert span_text(worse.ratio_span).startswith("at least +")
    assert short_span(better.ratio_span).startswith("at most -")
