"""Every metric of a server is found: by name, by help, by label."""

import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import MetricsPage
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import SessionPage
from inferwatch.ui.view import View
from tests.collectors.http_server import SCRAPES
from tests.inferwatch.ui import attached_sessions as sessions
from tests.inferwatch.ui.conftest import NOW_NS, S, ScriptedFeed
from tests.inferwatch.ui.pictures import SMALL, USUAL, Pictures, named
from tests.inferwatch.ui.test_pictures import showing

GROWS = re.compile(r"^(vllm:\S+_(?:total|sum|count)\{.*\}) (\S+)$", re.MULTILINE)


def page(t_ns: int, grown: float = 0.0) -> MetricsPage:
    """A real page of vLLM, whose counters have grown."""
    text = SCRAPES.joinpath("vllm_0.32.0.txt").read_text("utf-8")
    text = GROWS.sub(lambda found: f"{found[1]} {float(found[2]) + grown}", text)
    return MetricsPage(
        source=sessions.SOURCE, t_ns=t_ns, whole=True, lines=text.splitlines()
    )


def scraped_pages() -> ScriptedFeed:
    feed = sessions.scraped()
    feed.recall.pages = [
        page(NOW_NS - ago_s * S, 60.0 - ago_s) for ago_s in (53, 43, 33, 23, 13, 3)
    ]
    return feed


def watching(feed: ScriptedFeed, screen: str = "overview") -> InferwatchApp:
    return InferwatchApp(SessionPage(feed, View(screen=screen)))


async def test_a_metric_nobody_named_is_found_by_a_word_of_its_help(
    settle: Any, text_of: Any
) -> None:
    app = watching(scraped_pages())
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("A")
        await settle(pilot)
        assert "98 metrics" in " ".join(text_of(app, "FilterBar FilterLine"))

        await pilot.press("slash", *"virtual", "space", *"memory", "enter")
        await settle(pilot)

        _, *rows = text_of(app, "MetricTable")
        assert rows[0].split()[:2] == ["process_virtual_memory_bytes", "gauge"]
        assert not "".join(rows[1:]).strip()
        detail = " ".join(text_of(app, "MetricDetail"))
        assert "Virtual memory size in bytes" in detail


async def test_counters_have_rates_and_enter_unfolds_the_series(
    settle: Any, text_of: Any
) -> None:
    app = watching(scraped_pages(), "all_metrics")
    async with app.run_test(size=(150, 40)) as pilot:
        await settle(pilot)
        await pilot.press("slash", *"name:request_success_total", "enter")
        await settle(pilot)
        _, row, *_ = text_of(app, "MetricTable")
        series = int(row.split()[2])
        assert series > 1
        assert row.split()[4] == f"{series}"  # each of them 1/s

        await pilot.press("enter")
        await settle(pilot)
        _, _, *unfolded = text_of(app, "MetricTable")
        assert "finished_reason=stop" in unfolded[0]
        assert sum("finished_reason" in each for each in unfolded) == series


async def test_of_several_servers_one_is_to_be_opened_first(
    settle: Any, text_of: Any
) -> None:
    feed = scraped_pages()
    change = feed.change

    def two(made: Snapshot) -> Snapshot:
        shown = change(made)
        (one,) = shown.servers
        return replace(shown, servers=(one, replace(one, source="gpu-8:8000")))

    feed.change = two
    app = watching(feed, "all_metrics")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert "open one first" in " ".join(text_of(app, "MetricTable"))

        await pilot.press("right_parenthesis")
        await settle(pilot)
        assert "98 metrics" in " ".join(text_of(app, "FilterBar FilterLine"))


@pytest.mark.parametrize("value", ["+Inf", "-Inf", "1e308", "-5"])
async def test_no_value_of_a_server_ends_the_dashboard(
    value: str, settle: Any, text_of: Any
) -> None:
    feed = scraped_pages()
    odd = (
        f"a_gauge {value}",
        "# TYPE b histogram",
        f'b_bucket{{le="+Inf"}} {value}',
        f"b_sum {value}",
        f"b_count {value}",
        "# TYPE c counter",
        f'c_total{{x="1"}} {value}',
        f'c_total{{x="2"}} {value}',
    )
    first, *others = feed.recall.pages
    zero = [line.replace(value, "0") for line in odd]
    feed.recall.pages = [msgspec.structs.replace(first, lines=[*first.lines, *zero])]
    feed.recall.pages += [
        msgspec.structs.replace(each, lines=[*each.lines, *odd]) for each in others
    ]
    app = watching(feed)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("A")
        await settle(pilot)

        assert "a_gauge" in " ".join(text_of(app, "MetricTable"))


async def test_a_mistake_of_ours_is_told_instead_of_the_metrics(
    monkeypatch: pytest.MonkeyPatch, settle: Any, text_of: Any
) -> None:
    def fail(_: object) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr("inferwatch.ui.all_metrics.screen.every_metric", fail)
    app = watching(scraped_pages(), "all_metrics")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)

        told = " ".join(text_of(app, "MetricTable"))
        assert "cannot be shown: OverflowError('too large')" in told


async def test_a_server_without_pages_says_why(settle: Any, text_of: Any) -> None:
    app = watching(sessions.scraped(), "all_metrics")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert "no page of metrics" in " ".join(text_of(app, "MetricTable"))


async def test_escape_clears_the_search_and_then_leads_back(settle: Any) -> None:
    app = watching(scraped_pages(), "kv")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("A")
        await settle(pilot)
        await pilot.press("slash", *"python", "enter", "escape")
        await settle(pilot)
        assert app.session.view.screen == "all_metrics"
        await pilot.press("escape")
        await settle(pilot)
        assert app.session.view.screen == "kv"


def test_picture_of_all_metrics(pictures: Pictures) -> None:
    app = watching(scraped_pages(), "all_metrics")

    assert not pictures(app, named(SMALL, USUAL), showing())
