"""One request on a screen of its own: how one gets there and back, live and held."""

from dataclasses import replace
from time import monotonic, perf_counter
from typing import Any

import pytest

from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.requests.request_row import RequestState
from inferwatch.metrics.story.story import Companion, RequestStory
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.messages import OpenRequest
from inferwatch.ui.request.axis import Zoom
from inferwatch.ui.request.display import DisplayOptions, part_within
from inferwatch.ui.request.moments import StoryMoments
from inferwatch.ui.request.screen import RequestCanvas, RequestScreen, draw_request
from inferwatch.visible import visible
from tests.inferwatch.hostile import hostile
from tests.inferwatch.ui.conftest import NOW_NS, ScriptedFeed, app_on, requests
from tests.inferwatch.ui.stories import STORIES

SIZE = (120, 40)
WAITED = next(each for each in requests(NOW_NS) if each.key == "demo:12")


def told(key: str = "demo:12", **facts: Any) -> RequestStory:
    row = replace(WAITED, key=key, state=RequestState.FINISHED, ttft_s=2.0)
    parts = ((Cause.QUEUE_KV, 1.5), (Cause.PREFILL, 0.5))
    return RequestStory(
        row=replace(row, **facts), end_ns=NOW_NS - 10**10, ttft_parts=parts
    )


async def opened(app: InferwatchApp, pilot: Any, settle: Any, key: str) -> None:
    app.screen.post_message(OpenRequest(key))
    await pilot.pause()
    await settle(pilot)
    await app.workers.wait_for_complete()
    await settle(pilot)


async def test_nothing_known_is_said_and_asked_again_until_its_end_is_told(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any, text_of: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await opened(app, pilot, settle, "demo:12")
        assert "nothing single is known" in text_of(app, "RequestCanvas")[2]

        async def asked_later() -> list[str]:
            feed.recall.asked.clear()
            feed.at_ns += 10**9
            app.screen._requested_s = monotonic() - 1  # type: ignore[attr-defined]
            await settle(pilot)
            await app.workers.wait_for_complete()
            await settle(pilot)
            return feed.recall.asked

        feed.recall.stories["demo:12"] = told()
        assert await asked_later() == ["request demo:12"]
        rows = text_of(app, "RequestCanvas")
        assert WAITED.external_id is not None
        assert WAITED.external_id in rows[0]
        assert "TTFT 2.00 s: 75% queueing for KV blocks" in rows[1]

        assert await asked_later() == []


async def test_escape_leads_back_by_the_requests_opened_and_number_keys_lead_away(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any
) -> None:
    feed.recall.stories |= {"a": told("a"), "b": told("b")}
    async with app.run_test(size=SIZE) as pilot:
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
        assert app.current_mode == "requests"

        for key, mode in (("4", "kv"), ("1", "overview"), ("2", "requests")):
            await opened(app, pilot, settle, "a")
            assert app.current_mode == "request", key
            await pilot.press(key)
            await settle(pilot)
            assert app.current_mode == mode

            await opened(app, pilot, settle, "a")
            await pilot.press("escape")
            await settle(pilot)
            assert app.current_mode == mode


async def test_a_living_request_is_told_again_twice_a_second_at_most_and_at_its_end(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any
) -> None:
    feed.recall.stories["demo:12"] = told(state=RequestState.DECODE)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await opened(app, pilot, settle, "demo:12")
        feed.recall.asked.clear()
        feed.at_ns += 10**8
        app.screen._requested_s = monotonic() + 60  # type: ignore[attr-defined]
        await settle(pilot)
        assert not feed.recall.asked

        for state in RequestState.DECODE, RequestState.FINISHED:
            ended = replace(told(state=state), end_ns=feed.at_ns - 10**9)
            feed.recall.stories["demo:12"] = ended
            feed.at_ns += 10**8
            app.screen._requested_s = monotonic() - 1  # type: ignore[attr-defined]
            await settle(pilot)
            await app.workers.wait_for_complete()
            await settle(pilot)
            assert feed.recall.asked == ["request demo:12"], state
            feed.recall.asked.clear()

        feed.at_ns += 10**9  # what is told shortly after its end is seen, too
        app.screen._requested_s = monotonic() - 1  # type: ignore[attr-defined]
        await settle(pilot)
        assert feed.recall.asked == ["request demo:12"]


async def test_a_held_moment_that_moves_by_the_playback_keys_is_told_at_once(
    replayed_feed: ScriptedFeed, settle: Any
) -> None:
    playback = replayed_feed.playback
    assert playback is not None
    replayed_feed.recall.stories["demo:12"] = told(state=RequestState.DECODE)
    app = app_on("requests", replayed_feed)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await opened(app, pilot, settle, "demo:12")
        await settle(pilot)
        assert replayed_feed.recall.asked == ["request demo:12"]

        await pilot.press("full_stop")
        await settle(pilot)
        await settle(pilot)
        assert replayed_feed.recall.asked == ["request demo:12"] * 2

        await pilot.press("left_square_bracket")
        await settle(pilot)
        assert playback.told[-1].startswith("seek")
        await pilot.press("space")
        await settle(pilot)
        assert playback.told[-1] == "play"
        await pilot.press("l")
        await settle(pilot)
        assert app.screen.query("LogDrawer")


@pytest.fixture
def app(feed: ScriptedFeed) -> InferwatchApp:
    """It begins with the list of them."""
    return app_on("requests", feed)


async def shown(
    feed: ScriptedFeed, app: InferwatchApp, pilot: Any, settle: Any, name: str
) -> RequestScreen:
    """A story on the screen, opened from Requests."""
    feed.recall.stories[name] = STORIES[name]()
    await settle(pilot)
    await opened(app, pilot, settle, name)
    screen = app.screen
    assert isinstance(screen, RequestScreen)
    return screen


def said(text_of: Any, app: InferwatchApp) -> str:
    return "\n".join(text_of(app, "RequestCanvas")).replace("\xa0", " ")


async def test_arrows_go_by_phase_and_token_and_the_time_cursor_is_everybodys(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any, text_of: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await shown(feed, app, pilot, settle, "spiky")
        await pilot.press("left")
        assert app.session.view.cursor_ns is not None
        last_ns = app.session.view.cursor_ns
        await pilot.press("left", "left", "right")
        assert app.session.view.cursor_ns < last_ns
        await pilot.press(*["shift+left"] * 20)
        assert "tokenise" in said(text_of, app).splitlines()[-1]

        await pilot.press("end")
        assert app.session.view.cursor_ns is None


async def test_s_goes_by_late_tokens_and_z_through_the_zooms_that_there_are(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any, text_of: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await shown(feed, app, pilot, settle, "spiky")
        assert "its time  whole life" in said(text_of, app)
        await pilot.press("z")
        assert "its time  up to the first token" in said(text_of, app)
        await pilot.press("z")
        assert "its time  whole life" in said(text_of, app)  # there is no cursor

        await pilot.press("s")
        assert "chatcmpl-771-0 had 2,048 of 2,071 tokens" in said(text_of, app)
        await pilot.press("s")
        assert "no step for 88 ms" in said(text_of, app)
        await pilot.press("S")
        assert "chatcmpl-771-0 had 2,048" in said(text_of, app)
        before_ns = app.session.view.cursor_ns
        await pilot.press("S")
        assert app.session.view.cursor_ns == before_ns

        await pilot.press("z", "z")
        assert "its time  around the cursor" in said(text_of, app)


PARTS = {
    (120, 40): ["all", "time", "tokens", "steps", "facts"],
    (80, 24): ["time", "tokens", "steps", "facts"],
}


async def test_tab_shows_one_part_after_the_other(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(feed, app, pilot, settle, "spiky")
        for size, parts in PARTS.items():
            await pilot.resize_terminal(*size)
            await settle(pilot)
            height = screen.query_one(RequestCanvas).size.height
            seen = []
            for _ in range(len(parts) + 1):
                seen.append(part_within(screen._options.part, height).value)
                await pilot.press("tab")

            assert seen == [*parts, parts[0]], size
            await pilot.press("shift+tab", "shift+tab")
            assert part_within(screen._options.part, height).value == parts[-1], size
            await pilot.press("tab")


async def test_who_was_prefilled_beside_it_is_chosen_and_opened(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any, text_of: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(feed, app, pilot, settle, "queued")
        feed.recall.stories["demo:1"] = told("demo:1")
        assert not screen.check_action("open_chosen", ())
        await pilot.press("up")
        assert screen._options.companion == 8
        assert screen.check_action("open_chosen", ())

        await pilot.press(*["up"] * 7, "enter")
        await pilot.pause()
        await settle(pilot)
        await app.workers.wait_for_complete()
        await settle(pilot)

        assert app.session.view.opened == ["queued", "demo:1"]
        assert "TTFT 2.00 s" in said(text_of, app)

        await pilot.press("escape")
        await settle(pilot)
        await app.workers.wait_for_complete()
        await settle(pilot)
        assert "chatcmpl-queued-0" in said(text_of, app)


async def test_3_leads_to_the_steps_of_the_cursor_or_of_the_longest_wait(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(feed, app, pilot, settle, "queued")
        await pilot.press("3")
        await settle(pilot)

        assert app.current_mode == "steps"
        cursor_ns = app.session.view.cursor_ns
        assert cursor_ns is not None
        assert app.session.view.sought_step is None
        waits = screen._story.spans[5]  # type: ignore[union-attr]
        assert waits.start_ns < cursor_ns < waits.end_ns

        await pilot.press("escape")
        await settle(pilot)
        await shown(feed, app, pilot, settle, "queued")
        await pilot.press("left")
        before_ns = app.session.view.cursor_ns
        assert before_ns is not None
        assert not waits.start_ns < before_ns < waits.end_ns
        await pilot.press("3")
        await settle(pilot)

        assert app.current_mode == "steps"
        assert app.session.view.cursor_ns == before_ns


async def test_a_click_puts_the_cursor_there_and_words_act(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any, text_of: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await shown(feed, app, pilot, settle, "spiky")
        rows = said(text_of, app).splitlines()
        marks = next(i for i, row in enumerate(rows) if row.strip().startswith("late"))
        await pilot.click(RequestCanvas, offset=(rows[marks].index("P"), marks))
        assert "chatcmpl-771-0 had 2,048" in said(text_of, app)

        await pilot.click(RequestCanvas, offset=(rows[0].index("facts"), 0))
        assert "what is known" in said(text_of, app)
        await pilot.click(RequestCanvas, offset=(rows[0].index("esc") + 1, 0))
        await settle(pilot)
        assert app.current_mode == "requests"


async def test_without_colour_glyphs_tell_causes_apart_and_help_explains_every_key(
    feed: ScriptedFeed,
    settle: Any,
    text_of: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = app_on("requests", feed)
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(feed, app, pilot, settle, "queued")
        queue = next(
            row
            for row in said(text_of, app).splitlines()
            if row[:12].strip() == "queue"
        )
        assert {"░", "▒", "▓"} <= set(queue)

        await pilot.press("question_mark")
        await pilot.pause()
        told_ = str(screen.query_one("HelpDrawer Static").render())

        assert "Why was this one slow?" in told_
        for words in (
            "Back to where you came from",
            "whole life, up to the first token",
            "One part alone",
            "prefilled in the same steps",
            "The very step under the cursor",
            "By phase and by token",
            "The parts of the time to first token add up to it",
            "H host stall",
        ):
            assert words in " ".join(told_.split())

        await pilot.press("escape")
        await pilot.pause()
        assert not screen.query("HelpDrawer")
        assert app.current_mode == "request"


async def test_a_request_of_a_hundred_thousand_tokens_answers_keys_at_once(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=(200, 60)) as pilot:
        screen = await shown(feed, app, pilot, settle, "long")
        canvas = screen.query_one(RequestCanvas)
        moments = canvas.moments
        await pilot.press("left", "shift+left", "s", "z", "tab")

        assert canvas.moments is moments  # arrays are made once a story


def dirty(story: RequestStory) -> RequestStory:
    """The same, told by somebody who wants the terminal to obey."""
    bad = hostile("id")
    late = tuple(replace(each, evidence=hostile("why")) for each in story.spikes)
    return replace(
        story,
        row=replace(
            story.row,
            external_id=bad,
            request_id=bad,
            lora=bad,
            header=bad,
            class_name=bad,
            reason=bad,
        ),
        spikes=late,
        companions=(Companion(key="x", name=bad, prefill_tokens=3, steps=1),),
        missing=(hostile("missing"),),
    )


async def test_names_of_others_are_shown_and_never_obeyed(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(feed, app, pilot, settle, "spiky")
        screen._story = dirty(STORIES["spiky"]())
        screen._draw()
        await pilot.press("s")
        canvas = screen.query_one(RequestCanvas)
        for size in ((120, 40), (80, 24)):
            await pilot.resize_terminal(*size)
            for _ in range(5):
                await pilot.press("tab")
                rows = [canvas.render_line(y) for y in range(canvas.size.height)]
                assert {row.cell_length for row in rows} == {size[0]}, size
                assert all(row.text == visible(row.text) for row in rows), size


@pytest.mark.timing
async def test_a_hundred_thousand_tokens_are_drawn_while_a_key_is_held() -> None:
    told_ = STORIES["long"]()
    began_s = perf_counter()
    moments = StoryMoments(told_)
    drawn = 0
    for cursor_ns in moments.gap_ends[::5_000].tolist():
        for zoom in Zoom:
            looking = DisplayOptions(cursor_ns=cursor_ns, zoom=zoom, budget=2_048)
            draw_request(moments, looking, 200, 56)
            drawn += 1

    assert (perf_counter() - began_s) / drawn < 0.03
