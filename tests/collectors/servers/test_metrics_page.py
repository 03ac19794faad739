"""A page is kept whole, then by what changed, and read only when it is looked at."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from collectors.contract.readings import MetricsPage
from collectors.servers.metrics_page import (
    MOST_CHARACTERS,
    PageKeeper,
    filled,
    number_of,
    numbers_of,
    read_layout,
)
from tests.collectors.http_server import SCRAPES

S = 1_000_000_000
PAGE = '# TYPE a counter\na_total 1\n# TYPE b gauge\nb{x="1"} 2\n'


def kept(*pages: tuple[int, str]) -> list[MetricsPage | None]:
    """What is kept of pages, each with its time in seconds."""
    keeper = PageKeeper("server")
    return [keeper.take(text, t_s * S) for t_s, text in pages]


def test_a_page_is_kept_every_ten_seconds_and_then_by_what_changed() -> None:
    grown = PAGE.replace("a_total 1", "a_total 7")

    whole, soon, later = kept((0, PAGE), (9, grown), (10, grown))

    assert whole is not None
    assert whole.lines == PAGE.splitlines()
    assert soon is None
    assert later is not None
    assert (later.places, later.values, later.lines) == ([1], ["7"], [])
    assert (whole.whole_ns, later.whole_ns) == (None, 0)
    assert filled(whole, later).lines == grown.splitlines()


@pytest.mark.parametrize(
    "other",
    [
        PAGE + "c 3\n",
        PAGE.replace('x="1"', 'x="2"'),
        PAGE.replace("a_total 1", "a_total 1 1700000000"),
        PAGE.replace("b gauge", "b counter"),
    ],
    ids=["a series more", "another label", "a timestamp", "another type"],
)
def test_a_page_with_other_lines_is_kept_whole(other: str) -> None:
    _, page = kept((0, PAGE), (10, other))

    assert page is not None
    assert page.whole
    assert page.lines == other.splitlines()


def test_every_ten_minutes_a_page_is_whole_so_that_little_depends_on_it() -> None:
    pages = kept(*((t_s, PAGE) for t_s in range(0, 1_300, 10)))

    assert [at for at, each in enumerate(pages) if each and each.whole] == [0, 60, 120]


def test_of_a_page_without_end_the_first_lines_are_kept() -> None:
    text = "a 1\n" * (MOST_CHARACTERS // 4 + 100)

    (page,) = kept((0, text))

    assert page is not None
    assert len(page.lines) == MOST_CHARACTERS // 4
    assert page.left_out == 100


@pytest.mark.parametrize("name", [each.stem for each in sorted(SCRAPES.glob("*.txt"))])
def test_no_series_of_a_recorded_scrape_is_left_out(name: str) -> None:
    """By what prometheus_client makes of it: the same values under the same names."""
    text = SCRAPES.joinpath(f"{name}.txt").read_text("utf-8")
    lines = text.splitlines()

    layout, numbers = read_layout(lines), numbers_of(lines)

    expected = {
        (each.name, *sorted(each.labels.items())): each.value
        for metric in text_string_to_metric_families(text)
        for each in metric.samples
    }
    found = set()
    for metric in layout.metrics.values():
        for series in metric.series.values():
            places = (series.value, series.total, series.count)
            found |= {each for each in places if each is not None}
            found |= {*series.buckets.values()}
    assert sorted(numbers[at] or 0 for at in found) == sorted(expected.values())
    assert len(found) == sum(bool(line) and line[0] != "#" for line in lines)
    assert not layout.unreadable


def test_a_histogram_is_one_series_and_says_what_it_is() -> None:
    text = (
        "# HELP t Time \\\\ spent.\\nTwo lines.\n# TYPE t histogram\n"
        't_bucket{m="x",le="0.1"} 1\nt_bucket{m="x",le="+Inf"} 3\n'
        't_sum{m="x"} 5\nt_count{m="x"} 3\nt_created{m="x"} 1e9\n'
    )

    layout = read_layout(text.splitlines())

    metric = layout.metrics["t"]
    assert (metric.kind, metric.help) == ("histogram", "Time \\ spent. Two lines.")
    (series,) = metric.series.values()
    assert (series.labels, series.total, series.count) == ((("m", "x"),), 4, 5)
    assert series.buckets == {0.1: 2, float("inf"): 3}
    assert set(layout.metrics) == {"t", "t_created"}


@pytest.mark.parametrize("line", ["{", "x{", '{x="1"} 2', "x{a=} 1", "\x1b[31m 1"])
def test_no_nonsense_in_a_page_hurts(line: str) -> None:
    layout = read_layout(["a 1", line])

    assert "a" in layout.metrics
    numbers_of(["a 1", line])


def test_a_value_that_is_no_number_is_unknown() -> None:
    assert [number_of(each) for each in ("NaN", "x", "-1", "1e3")] == [
        None,
        None,
        -1,
        1000,
    ]


def test_an_infinite_value_is_unknown_and_a_bucket_without_end_is_not() -> None:
    lines = ["# TYPE t histogram", 't_bucket{le="+Inf"} 1', "t_sum -Inf", "g +Inf"]

    assert numbers_of(lines) == [None, 1, None, None]
    (series,) = read_layout(lines).metrics["t"].series.values()
    assert series.buckets == {float("inf"): 1}
