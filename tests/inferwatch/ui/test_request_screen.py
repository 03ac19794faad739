"""One request on a screen of its own: how one gets there and back, live and held."""

from dataclasses import replace
from time import monotonic, perf_counter
from typing import Any

import pytest

from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.causes.story import Companion, RequestStory
from inferwatch.metrics.snapshot import RequestState
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import SessionPage
from inferwatch.ui.request.axis import Zoom
from inferwatch.ui.request.canvas import RequestCanvas
from inferwatch.ui.request.layout import draw_request
from inferwatch.ui.request.looking import Looking, part_within
from inferwatch.ui.request.moments import Moments
from inferwatch.ui.request.screen import RequestScreen
from inferwatch.ui.shared.messages import OpenRequest
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


async def test_what_is_told_shortly_after_its_end_is_seen(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any
) -> None:
    feed.recall.stories["demo:12"] = replace(told(), end_ns=NOW_NS - 10**9)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await opened(app, pilot, settle, "demo:12")
        feed.recall.asked.clear()
        feed.at_ns += 10**9
        app.screen._asked_s = monotonic() - 1  # type: ignore[attr-defined]
        await settle(pilot)

        assert feed.recall.asked == ["request demo:12"]


async def test_a_living_request_is_told_again_twice_a_second_at_most(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any
) -> None:
    feed.recall.stories["demo:12"] = told(state=RequestState.DECODE)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await opened(app, pilot, settle, "demo:12")
        feed.recall.asked.clear()
        feed.at_ns += 10**8
        app.screen._asked_s = monotonic() + 60  # type: ignore[attr-defined]
        await settle(pilot)
        assert not feed.recall.asked

        app.screen._asked_s = monotonic() - 1  # type: ignore[attr-defined]
        await settle(pilot)
        assert feed.recall.asked == ["request demo:12"]


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


async def test_s_goes_from_one_late_token_to_the_next_and_back(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any, text_of: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await shown(feed, app, pilot, settle, "spiky")
        await pilot.press("s")
        assert "chatcmpl-771-0 had 2,048 of 2,071 tokens" in said(text_of, app)
        await pilot.press("s")
        assert "no step for 88 ms" in said(text_of, app)
        await pilot.press("S")
        assert "chatcmpl-771-0 had 2,048" in said(text_of, app)
        before_ns = app.session.view.cursor_ns
        await pilot.press("S")
        assert app.session.view.cursor_ns == before_ns


async def test_z_goes_through_the_zooms_that_there_are(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any, text_of: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await shown(feed, app, pilot, settle, "spiky")
        assert "its time  whole life" in said(text_of, app)
        await pilot.press("z")
        assert "its time  up to the first token" in said(text_of, app)
        await pilot.press("z")
        assert "its time  whole life" in said(text_of, app)  # there is no cursor
        await pilot.press("s", "z", "z")
        assert "its time  around the cursor" in said(text_of, app)


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        pytest.param(
            (120, 40), ["all", "time", "tokens", "steps", "facts"], id="120x40"
        ),
        pytest.param((80, 24), ["time", "tokens", "steps", "facts"], id="80x24"),
    ],
)
async def test_tab_shows_one_part_after_the_other(
    feed: ScriptedFeed,
    app: InferwatchApp,
    settle: Any,
    size: tuple[int, int],
    parts: list[str],
) -> None:
    async with app.run_test(size=size) as pilot:
        screen = await shown(feed, app, pilot, settle, "spiky")
        height = screen.query_one(RequestCanvas).size.height
        seen = []
        for _ in range(len(parts) + 1):
            seen.append(part_within(screen._looking.part, height).value)
            await pilot.press("tab")

        assert seen == [*parts, parts[0]]
        await pilot.press("shift+tab", "shift+tab")
        assert part_within(screen._looking.part, height).value == parts[-1]


async def test_who_was_prefilled_beside_it_is_chosen_and_opened(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any, text_of: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await shown(feed, app, pilot, settle, "queued")
        feed.recall.stories["demo:1"] = told("demo:1")
        await pilot.press("down", "down", "enter")
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


async def test_enter_does_nothing_while_nobody_is_chosen(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(feed, app, pilot, settle, "queued")
        assert not screen.check_action("open_chosen", ())
        await pilot.press("up")
        assert screen._looking.companion == 8
        assert screen.check_action("open_chosen", ())


@pytest.mark.parametrize("with_cursor", [True, False])
async def test_3_leads_to_the_steps_of_the_cursor_or_of_the_longest_wait(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any, with_cursor: bool
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(feed, app, pilot, settle, "queued")
        if with_cursor:
            await pilot.press("left")
        before_ns = app.session.view.cursor_ns
        await pilot.press("3")
        await settle(pilot)
        cursor_ns = app.session.view.cursor_ns

        assert app.current_mode == "steps"
        assert cursor_ns is not None
        if with_cursor:
            assert cursor_ns == before_ns
        else:
            waits = screen._story.spans[5]  # type: ignore[union-attr]
            assert waits.start_ns < cursor_ns < waits.end_ns


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


async def test_help_explains_every_key_of_the_screen(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(feed, app, pilot, settle, "queued")
        await pilot.press("question_mark")
        await pilot.pause()
        told_ = str(screen.query_one("HelpDrawer Static").render())

        assert "Why was this one slow?" in told_
        for words in (
            "Back to where you came from",
            "whole life, up to the first token",
            "One part alone",
            "prefilled in the same steps",
            "The steps at the time under the cursor",
            "By phase and by token",
            "The parts of the time to first token add up to it",
            "H host stall",
        ):
            assert words in " ".join(told_.split())

        await pilot.press("escape")
        await pilot.pause()
        assert not screen.query("HelpDrawer")
        assert app.current_mode == "request"


async def test_the_log_and_the_playback_keys_work_as_everywhere(
    replayed_feed: ScriptedFeed, settle: Any, text_of: Any
) -> None:
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        await shown(replayed_feed, app, pilot, settle, "spiky")
        await pilot.press("left_square_bracket")
        await settle(pilot)
        playback = replayed_feed.playback
        assert playback is not None
        assert playback.told[-1].startswith("seek")
        await pilot.press("space")
        await settle(pilot)
        assert playback.told[-1] == "play"
        await pilot.press("l")
        await settle(pilot)
        assert app.screen.query("LogDrawer")


async def test_a_request_of_a_hundred_thousand_tokens_answers_keys_at_once(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=(200, 60)) as pilot:
        screen = await shown(feed, app, pilot, settle, "long")
        canvas = screen.query_one(RequestCanvas)
        moments = canvas.moments
        await pilot.press("left", "shift+left", "s", "z", "tab")

        assert canvas.moments is moments  # arrays are made once a story


async def test_no_color_leaves_glyphs_that_tell_causes_apart(
    feed: ScriptedFeed,
    settle: Any,
    text_of: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = InferwatchApp(SessionPage(feed))
    async with app.run_test(size=SIZE) as pilot:
        await shown(feed, app, pilot, settle, "queued")
        queue = next(
            row
            for row in said(text_of, app).splitlines()
            if row[:12].strip() == "queue"
        )

    assert {"░", "▒", "▓"} <= set(queue)


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


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
async def test_names_of_others_are_shown_and_never_obeyed(
    feed: ScriptedFeed, settle: Any, text_of: Any, size: tuple[int, int]
) -> None:
    app = InferwatchApp(SessionPage(feed))
    async with app.run_test(size=size) as pilot:
        screen = await shown(feed, app, pilot, settle, "spiky")
        screen._story = dirty(STORIES["spiky"]())
        screen._draw()
        await pilot.press("s")
        for _ in range(5):
            await pilot.press("tab")
            canvas = screen.query_one(RequestCanvas)
            rows = [canvas.render_line(y) for y in range(canvas.size.height)]
            assert {row.cell_length for row in rows} == {size[0]}
            assert all(row.text == visible(row.text) for row in rows)


@pytest.mark.timing
async def test_a_hundred_thousand_tokens_are_drawn_while_a_key_is_held() -> None:
    told_ = STORIES["long"]()
    began_s = perf_counter()
    moments = Moments(told_)
    drawn = 0
    for cursor_ns in moments.gap_ends[::5_000].tolist():
        for zoom in Zoom:
            looking = Looking(cursor_ns=cursor_ns, zoom=zoom, budget=2_048)
            draw_request(moments, looking, 200, 56)
            drawn += 1

    assert (perf_counter() - began_s) / drawn < 0.03
