"""All that an engine of ours exposes is kept beside what its probe tells."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from collectors.contract.readings import EngineSample, MetricsPage
from collectors.servers import page_scraper
from tests.collectors.http_server import VLLM, serving


async def test_the_pages_of_an_engine_are_recorded_and_found(
    watching: Callable[..., Any], until: Callable[..., Awaitable[None]]
) -> None:
    async with serving({"/metrics": VLLM}) as server, watching(server.url) as run:
        pages = run.watch._session.pipeline.recent.pages
        await until(lambda: pages.between(-1, 2**62, "engine-1"))
        found = await run.watch.recall.metrics_pages(-1, 2**62, "engine-1")

    assert [each.lines for each in found] == [VLLM.splitlines()]
    readings = await run.readings()
    (page,) = [each for each in readings if isinstance(each, MetricsPage)]
    assert page.source == "engine-1"
    assert not [each for each in readings if isinstance(each, EngineSample)]


async def test_an_engine_without_metrics_is_asked_again_and_nothing_is_said(
    watching: Callable[..., Any],
    until: Callable[..., Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page_scraper, "EVERY_NS", 10_000_000)
    async with serving({}) as server, watching(server.url) as run:
        await until(lambda: len(server.asked) > 2)
        notes = run.watch._session.pipeline.notes

    assert not [each.text for each in notes if "scraper" in each.text]
