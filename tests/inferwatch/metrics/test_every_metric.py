"""What all metrics of a server tell over a span of its pages."""

import pytest

from collectors.contract.readings import MetricsPage
from inferwatch.metrics.series.window import Bracket
from inferwatch.metrics.servers.every_metric import (
    MOST_READ,
    EveryMetric,
    EveryMetrics,
    every_metric,
)

S = 1_000_000_000
TYPES = "# TYPE c counter\n# TYPE g gauge\n# TYPE h histogram\n"


def pages(*texts: str) -> list[MetricsPage]:
    """One every ten seconds."""
    return [
        MetricsPage(
            t_ns=(1 + at) * 10 * S, whole=True, lines=(TYPES + text).splitlines()
        )
        for at, text in enumerate(texts)
    ]


def told(*texts: str) -> EveryMetrics:
    found = every_metric(pages(*texts))
    assert found is not None
    return found


def metric(name: str, *texts: str) -> EveryMetric:
    return next(each for each in told(*texts).metrics if each.name == name)


def histogram(fast: int, slow: int, total: float) -> str:
    return (
        f'h_bucket{{le="0.1"}} {fast}\nh_bucket{{le="1.0"}} {fast + slow}\n'
        f'h_bucket{{le="+Inf"}} {fast + slow}\nh_sum {total}\nh_count {fast + slow}\n'
    )


def test_a_counter_is_a_rate_over_the_span_and_its_total() -> None:
    now = metric("c", "c_total 100", "c_total 130", "c_total 140").now

    assert (now.value, now.per_s) == (140, 2.0)
    assert now.trend == (3.0, 1.0)


def test_across_a_restart_nothing_is_counted_and_no_time_passes() -> None:
    now = metric("c", "c_total 100", "c_total 130", "c_total 5", "c_total 15").now

    assert (now.value, now.per_s) == (15, 2.0)
    assert now.trend == (3.0, None, 1.0)


def test_a_gauge_is_its_value_which_may_be_negative() -> None:
    now = metric("g", "g 1", "g -2.5").now

    assert (now.value, now.per_s, now.trend) == (-2.5, None, (1, -2.5))


def test_percentiles_of_a_histogram_are_buckets_of_the_span_alone() -> None:
    before, after = histogram(1_000, 0, 50.0), histogram(1_000, 20, 60.0)

    now = metric("h", before, after).now

    assert (now.value, now.per_s, now.mean) == (1_020, 2.0, 0.5)
    assert now.p50 == now.p99 == Bracket(low=0.1, high=1.0)


def test_a_histogram_that_took_nothing_has_no_percentile() -> None:
    now = metric("h", histogram(10, 0, 1.0), histogram(10, 0, 1.0)).now

    assert (now.per_s, now.mean, now.p50) == (0, None, None)


def test_series_of_a_counter_are_added_and_those_of_a_gauge_are_not() -> None:
    then = 'c_total{x="1"} 0\nc_total{x="2"} 10\ng{x="1"} 1\ng{x="2"} 2'
    now = 'c_total{x="1"} 10\nc_total{x="2"} 30\ng{x="1"} 3\ng{x="2"} 4'

    counter, gauge = metric("c", then, now), metric("g", then, now)

    assert [each.labels for each in counter.series] == ["x=1", "x=2"]
    assert (counter.now.value, counter.now.per_s) == (40, 3.0)
    assert [each.now.value for each in gauge.series] == [3, 4]
    assert gauge.now.value is None


def test_a_series_that_came_late_counts_from_its_first_page() -> None:
    now = metric("c", "g 1", "c_total 100", "c_total 120").now

    assert (now.per_s, now.trend) == (2.0, (None, 2.0))


@pytest.mark.parametrize("texts", [("c_total 1",), ("c_total NaN", "c_total NaN")])
def test_what_one_page_cannot_tell_is_unknown(texts: tuple[str, ...]) -> None:
    assert metric("c", *texts).now.per_s is None


def test_of_many_pages_a_few_are_parsed_and_the_span_stays() -> None:
    found = told(*(f"c_total {20 * at}" for at in range(60)))

    assert found.pages == MOST_READ
    assert (found.since_ns, found.t_ns) == (10 * S, 600 * S)
    (counter,) = (each.now for each in found.metrics if each.name == "c")
    assert (counter.value, counter.per_s) == (1_180, 2.0)
    assert counter.trend == (2.0,) * (MOST_READ - 1)


def test_without_a_page_there_is_nothing() -> None:
    assert every_metric([]) is None
