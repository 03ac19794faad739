"""Going through the time of a session by keys and mouse, recorded or live."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from textual.widgets import Input
from textual.widgets._footer import FooterKey
from textual.widgets._toast import Toast

from collectors.contract.readings import Note, NoteKind
from inferwatch.errors import StorageError
from inferwatch.feed import FeedState, Mark, MarkKind
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.health import Health, Verdict
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.frame.mark_list import MarkScreen, MarkTable
from inferwatch.ui.frame.time_line import MARGIN
from inferwatch.ui.kit.dialogs import PromptScreen
from inferwatch.ui.kit.keys import KeyFooter
from inferwatch.ui.messages import OpenSample
from inferwatch.ui.pages import SessionPage
from tests.inferwatch.ui.conftest import MARKS, ScriptedPlayback, until

SIZE = (120, 40)
S = 1_000_000_000
HERE = 130 * S
"""Where the replayed session stands; it ends at 195.32 s."""


def with_two_bookmarks(playback: ScriptedPlayback) -> ScriptedPlayback:
    early = Mark(t_ns=40 * S, kind=MarkKind.BOOKMARK, text="warm from here")
    playback.marks = (MARKS[0], early, *MARKS[1:])
    return playback


def squeezed(rows: list[str]) -> str:
    return " ".join(" ".join(rows).split())


def footer(app: InferwatchApp) -> dict[str, str]:
    return {each.key_display: each.description for each in app.screen.query(FooterKey)}


def visible_footer(app: InferwatchApp) -> dict[str, str]:
    keys = [each for each in app.screen.query(FooterKey) if each.display]
    return {each.key_display: each.description for each in keys}


def hint(app: InferwatchApp) -> str:
    return str(app.screen.query_one("#hint").render())


async def typed(pilot: Any, settle: Any, key: str, text: str) -> None:
    """Opens a prompt with a key, types a text and enters it."""
    await pilot.press(key)
    await pilot.pause()
    pilot.app.screen.query_one(Input).value = text
    await pilot.press("enter")
    await settle(pilot)


# The time line.


async def test_without_playback_there_are_no_keys_for_it(
    app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        keys = {"space", "comma", "n", "N", "g", "b", "home", "minus", "plus"}

        assert not keys & app.active_bindings.keys()
        assert not app.screen.query_one("TimeLine").display


async def test_every_screen_of_a_replay_tells_where_it_is_and_what_its_keys_do(
    replayed_feed: Any, text_of: Any, settle: Any
) -> None:
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        for key in ("1", "2", "3", "4"):
            await pilot.press(key)
            await settle(pilot)
            status, *shape, rail = text_of(app, "TimeLine")
            told = squeezed([status])

            assert told.startswith("‖ paused 03:11:36 2:10 of 3:15 − 1× +"), key
            assert "i probe: 2 readings lost, 9 s before" in status, key
            named = [row[: MARGIN - 1].strip() for row in shape]
            assert named == ["tok/s", "TTFT"], key
            assert rail.startswith("03:09:26 "), key
            assert rail.rstrip().endswith(" 03:12:41"), key
            marks = [glyph for glyph in rail if glyph in "LP▲■i●◆"]
            assert marks == list("LP▲■i●◆"), key
            assert "replay s17" in text_of(app, "HeaderLine")[0], key
            for shown in app.screen.query(FooterKey):
                assert shown.tooltip, (key, shown.description)


async def test_the_shape_is_there_when_it_is_known_or_why_it_cannot_be(
    replayed_feed: Any, text_of: Any, settle: Any
) -> None:
    shape, replayed_feed.playback.shape = replayed_feed.playback.shape, None
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        assert "scanning the session" in text_of(app, "TimeLine")[1]

        lost = "damaged: 1,200 of 41,022 readings lost"
        sound = replayed_feed.record
        replayed_feed.record = replace(sound, message=lost)
        await settle(pilot)
        status, course, *_ = text_of(app, "TimeLine")
        assert f"! {lost}" in status
        assert "its course over time is not known" in course
        assert [each.message for each in app._notifications] == [lost]

        replayed_feed.record = sound
        replayed_feed.playback.shape = shape
        await settle(pilot)
        assert "looking" not in squeezed(text_of(app, "TimeLine"))
        assert "█" in text_of(app, "TimeLine")[1]


async def test_speed_goes_by_round_numbers_and_moves_nothing_in_the_time_line(
    replayed_feed: Any, text_of: Any, settle: Any
) -> None:
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        starts = set()
        for here_ns, speed in ((5 * S, 100.0), (65 * S, 0.1), (190 * S, 1.0)):
            replayed_feed.playback.position_ns = here_ns
            replayed_feed.playback.speed = speed
            await settle(pilot)
            row = text_of(app, "TimeLine")[0]
            starts.add((row.index("of 3:15"), row.index(" + ")))
        assert len(starts) == 1

        for keys, faster in SPEEDS:
            replayed_feed.playback.speed = 1.0
            await settle(pilot)
            await pilot.press(*keys)
            await settle(pilot)

            assert replayed_feed.playback.speed == faster, keys
            assert f" {faster:g}× " in text_of(app, "TimeLine")[0], keys


# Keys.


async def test_space_and_clicks_on_words_play_and_pause(
    replayed_feed: Any, text_of: Any, settle: Any
) -> None:
    playback = replayed_feed.playback
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        assert footer(app)["space"] == "play"
        await pilot.press("space")
        await settle(pilot)
        assert playback.playing
        assert footer(app)["space"] == "pause"
        await pilot.press("space")
        await settle(pilot)
        assert not playback.playing

        playback.told.clear()
        row = text_of(app, "TimeLine")[0]
        await pilot.click("TimeLine", offset=(row.index("+"), 0))
        await settle(pilot)
        await pilot.click("TimeLine", offset=(row.index("paused"), 0))
        await settle(pilot)
        assert (playback.speed, playback.told) == (2.0, ["play"])
        await pilot.click("TimeLine", offset=(row.index("paused"), 0))
        await settle(pilot)
        assert playback.told == ["play", "pause"]

        playback.told.clear()
        playback.position_ns = playback.latest_ns
        await settle(pilot)
        await pilot.press("space")  # at the end it plays from the start
        await settle(pilot)
        assert playback.told == ["seek 0", "play"]


LEADS = (
    (["left_square_bracket"], ["seek 129"]),
    (["right_square_bracket"], ["seek 131"]),
    (["home"], ["seek 0"]),
    (["end"], ["live"]),
    (["full_stop"], ["step 1"]),
    (["comma"], ["step -1"]),
    (["n"], ["seek 150"]),
    (["N"], ["seek 121"]),
    (["N", "N"], ["seek 121", "seek 120"]),
    (["j"], ["seek 150"]),
    (["J"], ["seek 40"]),
)


async def test_a_key_goes_where_it_says_and_names_the_mark_there(
    replayed_feed: Any, text_of: Any, settle: Any
) -> None:
    playback = with_two_bookmarks(replayed_feed.playback)
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        for keys, told in LEADS:
            playback.position_ns = HERE
            playback.told.clear()
            await settle(pilot)
            for key in keys:
                await pilot.press(key)
                await settle(pilot)

            assert playback.told == told, keys

        playback.position_ns = HERE
        playback.told.clear()
        await settle(pilot)
        await pilot.press("n")
        await settle(pilot)
        assert squeezed([text_of(app, "TimeLine")[0]]).endswith("◆ the p99 broke here")
        assert not app._notifications

        await pilot.press("n")
        await settle(pilot)
        assert playback.told == ["seek 150"]
        assert [each.message for each in app._notifications] == [
            "no mark after this time; N goes back"
        ]


SPEEDS = ((["plus"], 2), (["equals_sign"], 2), (["minus"], 0.5), (["plus"] * 9, 100))


async def test_while_it_seeks_it_says_so_and_only_the_newest_wish_waits(
    replayed_feed: Any, text_of: Any, settle: Any
) -> None:
    playback = replayed_feed.playback
    playback.gate = asyncio.Event()
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("home")
        await pilot.press("right_square_bracket", "right_square_bracket")
        await settle(pilot)
        assert "seeking" in text_of(app, "TimeLine")[0]
        assert playback.told == ["seek 0"]

        playback.gate.set()
        await settle(pilot)
        assert playback.told == ["seek 0", "seek 2"]
        assert "seeking" not in text_of(app, "TimeLine")[0]


async def test_empty_charts_of_a_recording_say_that_it_is_loading(
    replayed_feed: Any, text_of: Any, settle: Any
) -> None:
    full = replayed_feed.change
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        for seeking, change in ((True, _empty), (False, _empty), (True, full)):
            replayed_feed.playback.seeking = seeking
            replayed_feed.change = change
            await settle(pilot)
            said = "loading" in "\n".join(text_of(app, "#chart-1"))
            assert said is (seeking and change is _empty)


async def test_a_recording_shows_nothing_but_that_it_loads_until_its_moment_is_there(
    replayed_feed: Any, settle: Any, text_of: Any
) -> None:
    playback = with_two_bookmarks(replayed_feed.playback)
    playback.position_ns, playback.opening = 0, True
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        assert text_of(app, "HeaderLine")[0].strip() == "loading s17 …"
        assert not "".join(text_of(app, "VerdictLine")).strip()
        await pilot.press("j")
        await settle(pilot)
        assert playback.told == []

        playback.position_ns, playback.opening = HERE, False
        await settle(pilot)
        await until(lambda: playback.told)
        assert "loading" not in text_of(app, "HeaderLine")[0]
        assert playback.told == ["seek 150"]


def _empty(made: Snapshot) -> Snapshot:
    return replace(made, timeline=Timeline(bin_ns=S // 2, steps=(0,) * 120))


# Going to a time.


TIMES = (
    ("the p99", "seek 150"),
    ("WARM", "seek 40"),
    ("03:10:26", "seek 60"),
    ("1:30", "seek 90"),
    ("+20s", "seek 150"),
    ("50%", "seek 97.66"),
)


async def test_g_goes_to_a_time_or_says_which_times_it_understands(
    replayed_feed: Any, settle: Any
) -> None:
    playback = with_two_bookmarks(replayed_feed.playback)
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        for text, told in TIMES:
            playback.position_ns = HERE
            playback.told.clear()
            await settle(pilot)
            await typed(pilot, settle, "g", text)

            assert playback.told == [told], text
            assert not isinstance(app.screen, PromptScreen), text

        playback.told.clear()
        await typed(pilot, settle, "g", "half past three")
        assert "not a time: 12:03:40, 1:30 or 90s" in hint(app)

        app.screen.query_one(Input).value = "23:00:00"
        await pilot.press("enter")
        await settle(pilot)
        assert "not in the session, which is 03:09:26 to 03:12:41" in hint(app)

        await pilot.press("escape")
        await settle(pilot)
        assert not isinstance(app.screen, PromptScreen)
        assert playback.told == []


async def test_g_knows_a_bookmark_that_is_not_among_the_marks_yet(
    replayed_feed: Any, settle: Any
) -> None:
    playback = replayed_feed.playback
    kept = Mark(t_ns=40 * S, kind=MarkKind.BOOKMARK, text="warm from here")
    playback.marks, playback.bookmarks = (), lambda: [kept]
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        await typed(pilot, settle, "g", "WARM")

        assert playback.told == ["seek 40"]


async def test_enter_alone_and_engine_steps_go_from_the_time_cursor(
    replayed_feed: Any, settle: Any
) -> None:
    told = replayed_feed.playback.told
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("left")
        cursor_ns = app.session.view.cursor_ns or 0
        await typed(pilot, settle, "g", "")
        assert told == [f"seek {cursor_ns / S:g}"]

        told.clear()
        await pilot.press("left", "left")
        cursor_ns = app.session.view.cursor_ns or 0
        await pilot.press("comma")
        await settle(pilot)
        assert told == [f"seek {cursor_ns / S:g}", "step -1"]
        assert app.session.view.cursor_ns is None


# Bookmarks.


async def test_b_keeps_a_text_at_the_moment_it_was_pressed_or_says_why_not(
    replayed_feed: Any, text_of: Any, settle: Any
) -> None:
    async def refuse(text: str, t_ns: int | None = None) -> None:
        raise StorageError("s.db is read-only: copy it elsewhere")

    playback = replayed_feed.playback
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("b")
        await pilot.pause()
        playback.position_ns += 7 * S  # it plays on while people type
        app.screen.query_one(Input).value = " queue [explodes] "
        await pilot.press("enter")
        await settle(pilot)
        (mark,) = (each for each in playback.marks if "explodes" in each.text)
        assert (mark.t_ns, mark.text) == (HERE, "queue [explodes]")
        assert "◆ queue [explodes], 7 s before" in text_of(app, "TimeLine")[0]

        app.clear_notifications()
        playback.bookmark = refuse
        await typed(pilot, settle, "b", "here")
        assert [each.message for each in app._notifications] == [
            "s.db is read-only: copy it elsewhere"
        ]

        before = playback.marks
        await typed(pilot, settle, "b", "  ")
        assert "needs a note" in hint(app)
        await pilot.press("ctrl+c")
        await settle(pilot)
        assert playback.marks == before


# The list of marks.


async def test_m_lists_marks_bookmarks_first_and_typing_finds_one(
    replayed_feed: Any, text_of: Any, settle: Any
) -> None:
    playback = with_two_bookmarks(replayed_feed.playback)
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("M")
        await pilot.pause()
        head, first, second, third, *_ = text_of(app, "MarkTable")
        assert head.startswith("─ marks ──")
        assert head.rstrip(" ─").endswith("7")
        assert first.startswith("▶ ◆ 03:10:06     0:40  warm from here")
        assert "the p99 broke here" in second
        assert third.startswith("  L 03:09:48")

        await pilot.press(*"no step", "enter")
        await settle(pilot)
        assert not isinstance(app.screen, MarkScreen)
        assert playback.told == ["seek 120"]

        playback.told.clear()
        await pilot.press("M", *"nobody", "enter")
        await pilot.pause()
        assert "no mark has all of these words" in text_of(app, "MarkTable")[1]
        await pilot.press("escape")
        await settle(pilot)
        assert not isinstance(app.screen, MarkScreen)
        assert playback.told == []


async def test_the_list_of_marks_is_drawn_again_only_if_something_changed(
    replayed_feed: Any, monkeypatch: pytest.MonkeyPatch, settle: Any
) -> None:
    playback = with_two_bookmarks(replayed_feed.playback)
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("M")
        await pilot.pause()
        drawn: list[int] = []
        monkeypatch.setattr(MarkTable, "show", lambda *given: drawn.append(given[2]))
        await pilot.pause(0.7)
        assert drawn == []

        await playback.bookmark("one more", 100 * S)
        await pilot.pause(0.7)
        assert drawn == [8]


async def test_marks_are_reached_from_the_present_which_goes_on_if_none_is_wanted(
    watched_feed: Any, settle: Any
) -> None:
    playback = watched_feed.playback
    app = InferwatchApp(SessionPage(watched_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        for keys, told in (
            (["M", "escape"], ["pause", "live"]),
            (["n"], ["pause", "live"]),
            (["g", "escape"], ["pause", "live"]),
            (["J"], ["pause", "seek 150"]),
        ):
            playback.told.clear()
            for key in keys:
                await pilot.press(key)
                await pilot.pause()
            await settle(pilot)
            assert playback.told == told, keys


async def test_the_list_of_marks_says_that_it_holds_a_live_view(
    watched_feed: Any, settle: Any, text_of: Any
) -> None:
    app = InferwatchApp(SessionPage(watched_feed))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("M")
        await pilot.pause()

        head = text_of(app, "MarkTable")[0]
        assert "marks live view held while this is open" in head


async def test_what_says_that_a_bookmark_is_kept_covers_neither_footer_nor_much_else(
    watched_feed: Any, settle: Any
) -> None:
    app = InferwatchApp(SessionPage(watched_feed))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await settle(pilot)
        await pilot.press("b")
        await settle(pilot)
        await pilot.press(*"here", "enter")
        await settle(pilot)

        (toast,) = app.screen.query(Toast)
        footer = app.screen.query_one(KeyFooter)
        assert toast.region.bottom <= footer.region.y
        assert toast.region.height == 1
        (said,) = app._notifications
        assert (said.message, said.timeout) == ("◆ bookmarked: here", 3)


async def test_the_footer_of_a_held_view_has_the_key_for_bookmarks(
    watched_feed: Any, settle: Any
) -> None:
    app = InferwatchApp(SessionPage(watched_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        assert "j J" not in visible_footer(app)
        assert "b" in visible_footer(app)

        await pilot.press("space")
        await settle(pilot)
        assert visible_footer(app)["j J"] == "bookmarks"


# The mouse.


async def test_a_click_and_a_drag_on_the_time_line_go_there(
    replayed_feed: Any, settle: Any
) -> None:
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        columns = SIZE[0] - 2 * MARGIN
        await pilot.mouse_down("TimeLine", offset=(MARGIN, 2))
        await settle(pilot)
        await pilot.hover("TimeLine", offset=(MARGIN + columns // 2, 2))
        await settle(pilot)
        await pilot.mouse_up("TimeLine", offset=(MARGIN + columns - 1, 3))
        await settle(pilot)
        await pilot.hover("TimeLine", offset=(MARGIN + 3, 2))
        await settle(pilot)

        told = replayed_feed.playback.told
        assert [told[0], told[-1]] == ["seek 0", "seek 195.32"]
        assert float(told[1].removeprefix("seek ")) == pytest.approx(98, abs=2)
        assert len(told) == 3


# A session that goes on.


async def test_a_paused_live_view_stands_still_and_says_how_far_behind_it_is(
    watched_feed: Any, text_of: Any, settle: Any
) -> None:
    app = InferwatchApp(SessionPage(watched_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        assert not app.screen.query_one("TimeLine").display

        await pilot.press("space")
        await settle(pilot)
        assert app.screen.query_one("TimeLine").display
        held = text_of(app, "#chart-1")
        watched_feed.at_ns += 12 * S
        watched_feed.playback.latest_ns += 12 * S
        await settle(pilot)

        assert text_of(app, "#chart-1") == held
        header = text_of(app, "HeaderLine")[0]
        assert "‖ 12 s behind" in header
        assert "03:12:53" in header  # of the present, as its other numbers
        assert squeezed([text_of(app, "TimeLine")[0]]).startswith("‖ paused 03:12:41")
        assert text_of(app, "TimeLine")[-1].rstrip().endswith(" now")
        assert footer(app)["end"] == "live"

        await pilot.press("end")
        await settle(pilot)
        assert watched_feed.playback.at_live
        assert text_of(app, "#chart-1") != held
        assert "behind" not in text_of(app, "HeaderLine")[0]


async def test_a_held_view_has_a_cursor_and_windows_until_end_returns_to_live(
    watched_feed: Any, settle: Any
) -> None:
    app = InferwatchApp(SessionPage(watched_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("space", "w", "left")
        await settle(pilot)
        assert app.session.view.window is Window.FIVE_MINUTES
        assert app.session.view.cursor_ns is not None

        await pilot.press("end")
        await settle(pilot)
        assert watched_feed.playback.at_live
        assert app.session.view.cursor_ns is None


async def test_a_loss_is_told_at_once_however_far_behind_the_view_is(
    watched_feed: Any, text_of: Any, settle: Any
) -> None:
    app = InferwatchApp(SessionPage(watched_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("space")
        await settle(pilot)
        watched_feed.state = FeedState.LOST
        watched_feed.at_ns += 5 * S
        told = Verdict(health=Health.LOST, sentence="killed by SIGKILL", since_ns=0)
        watched_feed.change = lambda made: replace(
            made,
            verdict=told if made.now_ns == watched_feed.at_ns else made.verdict,
            notes=_lost(made.now_ns) if made.now_ns == watched_feed.at_ns else (),
        )
        await settle(pilot)

        assert "killed by SIGKILL" in text_of(app, "LostBanner")[0]
        assert [each.message for each in app._notifications] == ["probe went silent"]


def _lost(now_ns: int) -> tuple[Note, ...]:
    return (
        Note(t_ns=now_ns - S, kind=NoteKind.PROBE, text="probe went silent"),
        Note(t_ns=now_ns, kind=NoteKind.LOST, text="killed by SIGKILL"),
    )


async def test_what_a_recorded_session_tells_is_no_news(
    replayed_feed: Any, settle: Any
) -> None:
    replayed_feed.change = lambda made: replace(made, notes=_lost(made.now_ns))
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)

        assert not app._notifications


async def test_without_a_record_the_view_can_be_held_and_no_more(
    watched_feed: Any, text_of: Any, settle: Any
) -> None:
    watched_feed.playback.cannot_seek = "nothing is recorded"
    app = InferwatchApp(SessionPage(watched_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("space")
        await settle(pilot)
        assert "nothing is recorded" in text_of(app, "TimeLine")[0]

        for key in ("left_square_bracket", "home", "comma", "g"):
            await pilot.press(key)
            await settle(pilot)
        assert watched_feed.playback.told == ["pause"]
        assert "nothing is recorded" in {each.message for each in app._notifications}


async def test_a_new_start_of_the_engine_is_shown_as_it_happens(
    watched_feed: Any, settle: Any
) -> None:
    app = InferwatchApp(SessionPage(watched_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("space")
        watched_feed.state = FeedState.STARTING
        await pilot.pause(0.6)

        assert app.current_mode == "starting"
        assert watched_feed.playback.at_live


# Leaving.


async def test_who_came_from_elsewhere_goes_back(
    feed: Any, replayed_feed: Any, settle: Any
) -> None:
    watched, replayed = SessionPage(feed), SessionPage(replayed_feed)
    app = InferwatchApp(watched, lambda *_: nullcontext(replayed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        for key in ("q", "ctrl+c"):
            app.post_message(OpenSample())
            while app.current_mode == "leaving" or app.page is not replayed:
                await pilot.pause()
            await settle(pilot)
            assert footer(app)["q"] == "back", key

            await pilot.press(key)
            while app.current_mode == "leaving" or app.page is not watched:
                await pilot.pause()
            await settle(pilot)
            assert footer(app)["q"] == "quit", key


async def test_the_time_line_is_no_wider_than_the_terminal(
    replayed_feed: Any, settle: Any
) -> None:
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        for size in ((80, 24), (200, 60), (40, 10), (20, 5)):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            line = app.screen.query_one("TimeLine")

            rows = [line.render_line(y) for y in range(line.size.height)]
            assert {row.cell_length for row in rows} <= {line.size.width}, size

        for key in ("g", "escape", "2"):  # nor does a prompt break so small a one
            await pilot.press(key)
            await settle(pilot)
        line = app.screen.query_one("TimeLine")
        rows = [line.render_line(y) for y in range(line.size.height)]
        assert {row.cell_length for row in rows} <= {line.size.width}
