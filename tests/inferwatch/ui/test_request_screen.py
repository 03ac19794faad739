"""One request on a screen of its own: how one gets there and back, live and held."""

from dataclasses import replace
from typing import Any

import pytest

from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.causes.story import RequestStory
from inferwatch.metrics.snapshot import RequestState
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import SessionPage
from inferwatch.ui.shared.messages import OpenRequest
from tests.inferwatch.ui.conftest import NOW_NS, ScriptedFeed, requests

SIZE = (120, 40)
WAITED = next(each for each in requests(NOW_NS) if each.key == "demo:12")


def told(key: str = "demo:12", **facts: Any) -> RequestStory:
    row = replace(WAITED, key=key, state=RequestState.FINISHED, ttft_s=2.0)
    parts = ((Cause.QUEUE_KV, 1.5), (Cause.PREFILL, 0.5))
    return RequestStory(
        row=replace(row, **facts), end_ns=NOW_NS - 10**9, ttft_parts=parts
    )


async def opened(app: InferwatchApp, pilot: Any, settle: Any, key: str) -> None:
    app.screen.post_message(OpenRequest(key))
    await pilot.pause()
    await settle(pilot)
    await app.workers.wait_for_complete()
    await settle(pilot)


async def test_it_says_what_the_request_waited_for(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any, text_of: Any
) -> None:
    feed.recall.stories["demo:12"] = told()
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await opened(app, pilot, settle, "demo:12")
        rows = text_of(app, "RequestCanvas")

    assert WAITED.external_id is not None
    assert WAITED.external_id in rows[0]
    assert "TTFT 2.00 s: 75% queueing for KV blocks" in rows[1]


async def test_nothing_known_is_said_and_asked_again_as_time_goes_on(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any, text_of: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await opened(app, pilot, settle, "demo:12")
        assert "nothing single is known" in text_of(app, "RequestCanvas")[2]

        feed.recall.stories["demo:12"] = told()
        feed.at_ns += 10**9
        screen = app.screen
        screen._asked_s -= 1  # type: ignore[attr-defined]
        await settle(pilot)
        await app.workers.wait_for_complete()
        await settle(pilot)
        assert "TTFT 2.00 s" in text_of(app, "RequestCanvas")[1]


async def test_escape_leads_back_by_the_requests_that_were_opened_from_each_other(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any
) -> None:
    feed.recall.stories |= {"a": told("a"), "b": told("b")}
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("3")
        await settle(pilot)
        await opened(app, pilot, settle, "a")
        await opened(app, pilot, settle, "b")
        assert app.session.view.opened == ["a", "b"]

        await pilot.press("escape")
        await settle(pilot)
        assert app.current_mode == "request"
        assert app.session.view.opened == ["a"]

        await pilot.press("escape")
        await settle(pilot)
        assert app.current_mode == "steps"


async def test_an_ended_request_is_told_once_while_time_goes_on(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any
) -> None:
    feed.recall.stories["demo:12"] = told()
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await opened(app, pilot, settle, "demo:12")
        feed.at_ns += 10**9
        app.screen._asked_s -= 1  # type: ignore[attr-defined]
        await settle(pilot)

        assert feed.recall.asked == ["request demo:12"]


async def test_a_living_request_is_told_again_twice_a_second_at_most(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any
) -> None:
    feed.recall.stories["demo:12"] = told(state=RequestState.DECODE)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await opened(app, pilot, settle, "demo:12")
        feed.at_ns += 10**8
        await settle(pilot)
        assert feed.recall.asked == ["request demo:12"]

        app.screen._asked_s -= 1  # type: ignore[attr-defined]
        await settle(pilot)
        assert feed.recall.asked == ["request demo:12"] * 2


async def test_a_held_moment_that_moves_is_told_at_once(
    replayed_feed: ScriptedFeed, settle: Any
) -> None:
    replayed_feed.recall.stories["demo:12"] = told(state=RequestState.DECODE)
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await opened(app, pilot, settle, "demo:12")
        await settle(pilot)
        assert replayed_feed.recall.asked == ["request demo:12"]

        await pilot.press("full_stop")
        await settle(pilot)
        await settle(pilot)
        assert replayed_feed.recall.asked == ["request demo:12"] * 2


@pytest.mark.parametrize("key", ["1", "2", "4"])
async def test_the_number_keys_lead_away_as_everywhere(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any, key: str
) -> None:
    feed.recall.stories["demo:12"] = told()
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await opened(app, pilot, settle, "demo:12")
        await pilot.press(key)
        await settle(pilot)

        assert app.current_mode != "request"
