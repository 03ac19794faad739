"""``u`` on Requests opens the tenants: who made whom wait."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from textual.pilot import Pilot

from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.servers.server_state import Via
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.metrics.tenants.view import Tenants
from tests.inferwatch.metrics.findings.planted import SHARED
from tests.inferwatch.metrics.findings.simulated_engine import S
from tests.inferwatch.ui import attached_sessions
from tests.inferwatch.ui.conftest import ScriptedFeed, app_on
from tests.inferwatch.ui.pictures import LARGE, SMALL, USUAL, Pictures, named

Settle = Callable[[Pilot[None]], Awaitable[None]]
Text = Callable[..., list[str]]
SECONDS = 190


@cache
def shared() -> Tenants:
    model = Model()
    for reading in replace(SHARED).run(SECONDS):
        model.fold(reading)
    query = SnapshotQuery(Window.SESSION, tenants=True)
    found = model.snapshot(SECONDS * S, query).tenants
    assert found is not None
    return found


@pytest.fixture
def feed() -> ScriptedFeed:
    return ScriptedFeed(change=lambda made: replace(made, tenants=shared()))


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
async def test_the_drawer_says_who_makes_others_wait(
    feed: ScriptedFeed, settle: Settle, text_of: Text, size: tuple[int, int]
) -> None:
    app = app_on("requests", feed)
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        await pilot.press("u")
        await settle(pilot)
        text = [line.rstrip() for line in text_of(app, "TenantsDrawer")]

        assert text[1].startswith(" bulk sent 1")
        assert "of the queue time of all others" in " ".join(text[1:3])
        assert any(line.startswith(" bulk ") and "%" in line for line in text[2:])
        assert any(line.startswith(" chat ") for line in text)
        assert any("Fairness (Jain's index)" in line for line in text)

        await pilot.press("escape")
        await settle(pilot)
        assert not app.screen.query("TenantsDrawer")


async def test_closed_it_asks_for_nothing(feed: ScriptedFeed, settle: Settle) -> None:
    asked: list[bool] = []
    made = feed.snapshot

    def snapshot(query: SnapshotQuery) -> Any:
        asked.append(query.tenants)
        return made(query)

    feed.snapshot = snapshot  # type: ignore[method-assign]
    app = app_on("requests", feed)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert asked
        assert not any(asked)

        await pilot.press("u")
        await settle(pilot)
        assert any(asked)


async def test_where_no_request_ended_in_the_window_it_says_so(
    settle: Settle, text_of: Text
) -> None:
    app = app_on("requests", ScriptedFeed())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("u")
        await settle(pilot)

        assert "no request ended in this window" in "".join(
            text_of(app, "TenantsDrawer")
        )


async def test_until_the_next_look_it_does_not_say_that_no_request_ended(
    settle: Settle, text_of: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, query = ScriptedFeed(), SnapshotQuery(Window.MINUTE)
    unasked = replace(feed.snapshot(query), asked=query)
    # Every look is one that was not asked for it, however soon the next one comes.
    monkeypatch.setattr(feed, "snapshot", lambda _: unasked)
    app = app_on("requests", feed)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("u")
        await settle(pilot)

        shown = "".join(text_of(app, "TenantsDrawer"))
        assert "comes with the next look" in shown
        assert "no request ended" not in shown


async def test_without_a_probe_it_is_said_what_it_takes(
    settle: Settle, text_of: Text
) -> None:
    feed = attached_sessions.scraped()
    counted = feed.change
    feed.change = lambda made: replace(counted(made), via=Via.TRACES)
    app = app_on("requests", feed)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("u")
        await settle(pilot)
        assert "takes a probe" in "".join(text_of(app, "TenantsDrawer"))

        feed.change = counted
        await settle(pilot)
        await pilot.press("u")
        await settle(pilot)
        assert not app.screen.query("TenantsDrawer"), "requests are only counted"


async def test_it_is_one_look_that_tells_of_tenants_and_requests(
    feed: ScriptedFeed, settle: Settle
) -> None:
    asked: list[SnapshotQuery] = []
    made = feed.snapshot

    def snapshot(query: SnapshotQuery) -> Any:
        asked.append(query)
        return made(query)

    feed.snapshot = snapshot  # type: ignore[method-assign]
    app = app_on("requests", feed)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("u")
        await settle(pilot)

        of_tenants = [each for each in asked if each.tenants]
        assert of_tenants
        assert all(each.requests for each in of_tenants)


def test_picture(pictures: Pictures, feed: ScriptedFeed) -> None:
    async def act(pilot: Pilot[None]) -> None:
        await pilot.press("u")
        await pilot.pause()

    for sizes in named(SMALL), named(LARGE, USUAL):
        assert not pictures(app_on("requests", feed), sizes, act)
