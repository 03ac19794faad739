"""``P`` opens the profile: classes, their kernels, where these ran, and the steps."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from msgspec import structs
from textual.geometry import Offset
from textual.pilot import Pilot

from inferwatch.errors import SourceError
from inferwatch.feed import ProfileProgress, ProfileStage
from inferwatch.profiles.report import ExecutedOn, ProfileReport
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.profile.dialog import ProfileDialog
from inferwatch.ui.profile.drawer import ProfileDrawer
from tests.inferwatch.ui.conftest import ScriptedFeed, app_on, until
from tests.inferwatch.ui.knob_sessions import ScriptedDesk
from tests.inferwatch.ui.pictures import ALL, Pictures, named
from tests.inferwatch.ui.profile_sessions import (
    GEMM,
    PROMPT,
    ScriptedProfiles,
    report,
    step,
    taken,
    with_profile,
)

Settle = Callable[[Pilot[None]], Awaitable[None]]
Text = Callable[..., list[str]]
USUAL = (120, 40)


def drawn(app: InferwatchApp) -> str:
    """What stands in the drawer, blanks between words as one."""
    drawer = app.screen.query_one(ProfileDrawer)
    rows = [drawer.render_line(y).text for y in range(drawer.size.height)]
    return "\n".join(" ".join(row.split()) for row in rows)


async def opened(app: InferwatchApp, pilot: Pilot[None], settle: Settle) -> None:
    """The drawer is open, and shows what was read."""
    await settle(pilot)
    await pilot.press("P")
    await settle(pilot)
    drawer = app.screen.query_one(ProfileDrawer)
    await until(lambda: drawer.report is not None)
    await settle(pilot)


@pytest.fixture
def profiles() -> ScriptedProfiles:
    return with_profile()


@pytest.fixture
def feed(profiles: ScriptedProfiles) -> ScriptedFeed:
    return ScriptedFeed(profile_desk=profiles)


async def test_it_says_who_measured_what_is_farthest_and_marks_floors_as_estimates(
    feed: ScriptedFeed, settle: Settle
) -> None:
    app = app_on("limits", feed)
    async with app.run_test(size=USUAL) as pilot:
        await opened(app, pilot, settle)
        text = drawn(app)

        assert "by vLLM's profiler" in text
        assert "03:12:11 · 20 steps of demo" in text
        assert "writing held up the engine for 310 ms" in text
        assert "attention is farthest from its floor" in text.replace("\n", " ")
        assert "▓ attention 3.37 ms 21% ~0.420 ms ×8.01 85.0 ◂ farthest" in text
        assert "░ host 2.40 ms 15%" in text
        assert "= copy 1.68 ms 11% – – 42.5" in text, "no floor is known of copies"


async def test_a_class_leads_to_its_kernels_these_to_where_they_ran_and_back(
    feed: ScriptedFeed, settle: Settle
) -> None:
    app = app_on("overview", feed)
    async with app.run_test(size=USUAL) as pilot:
        await opened(app, pilot, settle)
        await pilot.press("enter")
        await settle(pilot)
        text = drawn(app)
        assert "GEMM 2 kernels in 20 steps" in text
        assert "…" in text, "a long name is cut in its middle"
        assert "Params) 1,280 90.9 ms 64 µs 220 µs 86%" in text
        assert "ampere_bf16_s16816gemm_64x64 640" in text
        assert "flash" not in text
        assert "37 smaller kernels of all classes not listed" in text

        await pilot.press("enter")
        await settle(pilot)
        text = drawn(app)
        assert GEMM in text.replace("\n", "")
        assert "the longest 3 of 1,280" in text
        assert "▸ #30,402 03:12:11.356 202 µs" in text

        await pilot.press("escape")
        await settle(pilot)
        assert "GEMM 2 kernels" in drawn(app)
        await pilot.press("escape", "escape")
        await settle(pilot)
        assert not app.screen.query(ProfileDrawer)


async def test_the_host_leads_to_its_longest_gaps(
    feed: ScriptedFeed, settle: Settle
) -> None:
    app = app_on("overview", feed)
    async with app.run_test(size=USUAL) as pilot:
        await opened(app, pilot, settle)
        await pilot.press(*["down"] * 8, "enter")
        await settle(pilot)
        text = drawn(app)
        assert "#30,407 03:12:11.446 1.90 ms cudaStreamSynchronize" in text
        assert "between 03:12:11.320 0.600 ms not recorded" in text


async def test_an_occurrence_leads_to_its_step(
    feed: ScriptedFeed, settle: Settle
) -> None:
    app = app_on("overview", feed)
    async with app.run_test(size=USUAL) as pilot:
        await opened(app, pilot, settle)
        await pilot.press("enter", "enter", "down", "enter")
        await settle(pilot)
        its_step = step(PROMPT)
        assert app.session.view.screen == "steps"
        assert app.session.view.cursor_ns == its_step.begin_ns + its_step.duration_ns


async def test_a_step_that_is_opened_is_not_hidden_by_the_drawer(
    feed: ScriptedFeed, settle: Settle
) -> None:
    app = app_on("steps", feed)
    async with app.run_test(size=USUAL) as pilot:
        await opened(app, pilot, settle)
        await pilot.press("right", "right", "o")
        await settle(pilot)
        second = step(1)
        assert app.session.view.cursor_ns == second.begin_ns + second.duration_ns
        assert app.screen.has_class("-single")
        assert not app.screen.query(ProfileDrawer)


async def test_going_along_the_steps_takes_the_time_cursor_of_all_screens_with_it(
    feed: ScriptedFeed, settle: Settle
) -> None:
    app = app_on("steps", feed)
    async with app.run_test(size=(200, 60)) as pilot:
        await opened(app, pilot, settle)
        assert app.session.view.cursor_ns is None
        await pilot.press("right", "right")
        await settle(pilot)
        second = step(1)
        assert app.session.view.cursor_ns == second.begin_ns + second.duration_ns
        text = drawn(app)
        assert "▲ #30,401 decode" in text
        assert "█ GEMM 6.01 ms" in text
        assert "░ host 2.40 ms" in text
        await pilot.press(*["left"] * 3)
        await settle(pilot)
        assert "#30,400" in drawn(app), "it stays at the first"


async def test_all_classes_of_a_step_are_told_in_a_small_terminal(
    feed: ScriptedFeed, settle: Settle
) -> None:
    app = app_on("steps", feed)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot, settle)
        await pilot.press("left")
        await settle(pilot)
        text = drawn(app)
        assert "#30,419 decode 16.3 ms at 03:12:11.692 ▲" in text
        assert "█ 6.39 ▓ 3.50" in text
        assert "░ 2.40" in text
        assert "· 0.093 ms" in text


async def test_all_of_it_works_with_the_mouse(
    feed: ScriptedFeed, settle: Settle
) -> None:
    app = app_on("overview", feed)
    async with app.run_test(size=USUAL) as pilot:
        await opened(app, pilot, settle)
        drawer = app.screen.query_one(ProfileDrawer)

        def row_of(text: str) -> int:
            rows = [drawer.render_line(y).text for y in range(drawer.size.height)]
            return next(y for y, row in enumerate(rows) if text in row)

        await pilot.click(drawer, Offset(8 + 2 * 4, 3))
        await settle(pilot)
        assert "▲ #30,402" in drawn(app)
        await pilot.click(drawer, Offset(8, row_of("▓ attention")))
        await settle(pilot)
        assert "▸ ▓ attention" in drawn(app)
        await pilot.click(drawer, Offset(8, row_of("▓ attention")))
        await settle(pilot)
        assert "attention 1 kernel" in drawn(app)
        heading = drawer.render_line(0).text
        await pilot.click(drawer, Offset(heading.index("esc back"), 0))
        await settle(pilot)
        assert "▸ ▓ attention" in drawn(app)


async def test_ranks_follow_one_another_and_stand_side_by_side(
    profiles: ScriptedProfiles, feed: ScriptedFeed, settle: Settle
) -> None:
    profiles.reports["one-1"] = report(2)
    app = app_on("overview", feed)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot, settle)
        assert "profile 1, rank 1 by" in drawn(app), "the slowest comes first"
        assert "▓ attention 3.77 ms" in drawn(app)
        await pilot.press("v")
        await settle(pilot)
        text = drawn(app)
        assert "decode step rank 0 rank 1" in text
        assert "▓ attention 3.37 ms 3.77 ms" in text
        await pilot.press("pagedown", "pagedown")
        await settle(pilot)
        assert "Rank 1 is late" in drawn(app)
        await pilot.press("v")
        await settle(pilot)
        assert "profile 1, rank 0 by" in drawn(app)


async def test_earlier_profiles_are_one_key_away_and_read_only_then(
    profiles: ScriptedProfiles, feed: ScriptedFeed, settle: Settle
) -> None:
    on_cpu = [structs.replace(report().ranks[0], device=ExecutedOn.CPU)]
    profiles.taken = (taken(2, why="it was stopped"), taken(5))
    profiles.reports = {"one-2": ProfileReport(ranks=on_cpu), "one-5": report()}
    app = app_on("overview", feed)
    async with app.run_test(size=USUAL) as pilot:
        await opened(app, pilot, settle)
        assert "profile 5 of 5" in drawn(app), "as --number has it: others failed"
        assert profiles.read == ["one-5"]
        await pilot.press("left_curly_bracket")
        await settle(pilot)
        text = drawn(app)
        assert "profile 2 of 5" in text
        assert "ended early: it was stopped" in text
        assert "on the CPU" in text
        assert "enter operators" in text


def slower() -> ProfileReport:
    return ProfileReport(ranks=report(2).ranks[1:])


async def test_a_profile_is_compared_with_the_one_before(
    profiles: ScriptedProfiles, feed: ScriptedFeed, settle: Settle
) -> None:
    others = taken(2, source="other")
    profiles.taken = (taken(1), others, taken(3))
    profiles.reports = {"one-1": report(), "one-3": slower()}
    app = app_on("overview", feed)
    async with app.run_test(size=USUAL) as pilot:
        await opened(app, pilot, settle)
        assert "c compare" in drawn(app)
        await pilot.press("c")
        await until(lambda: "changed most" in drawn(app))
        text = drawn(app).replace("\n", " ")
        assert profiles.read == ["one-3", "one-1", "one-3"]
        assert "In a decode step GEMM changed most: 6.1 ms before, 6.9 ms after" in text
        assert "before: demo, from 03:12:11" in text
        await pilot.press("escape")
        await settle(pilot)
        assert "changed most" not in drawn(app)
        assert "c compare" in drawn(app)


async def test_only_profiles_of_one_engine_are_compared(
    profiles: ScriptedProfiles, feed: ScriptedFeed, settle: Settle
) -> None:
    profiles.taken = (taken(1, source="other"), taken(2))
    profiles.reports = {"one-2": report()}
    app = app_on("overview", feed)
    async with app.run_test(size=USUAL) as pilot:
        await opened(app, pilot, settle)
        await pilot.press("c")
        await settle(pilot)
        assert "compare" not in drawn(app)
        assert profiles.read == ["one-2"]


async def test_one_before_whose_traces_are_gone_is_said(
    profiles: ScriptedProfiles, feed: ScriptedFeed, settle: Settle
) -> None:
    profiles.taken = (taken(1), taken(2))
    profiles.reports = {"one-2": report()}
    app = app_on("overview", feed)
    async with app.run_test(size=USUAL) as pilot:
        await opened(app, pilot, settle)
        await pilot.press("c")
        await until(lambda: len(app._notifications) > 0)
        assert "traces of one-1 are gone" in next(iter(app._notifications)).message
        assert "farthest from its floor" in drawn(app)


async def test_traces_that_are_gone_are_said_to_be_gone(
    profiles: ScriptedProfiles, feed: ScriptedFeed, settle: Settle
) -> None:
    profiles.reports.clear()
    app = app_on("overview", feed)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("P")
        await settle(pilot)
        assert "✖ the traces of one-1 are gone" in drawn(app)
        await pilot.press("enter", "right", "down", "x", "v")
        await settle(pilot)
        assert app.screen.query(ProfileDrawer), "nothing of this opens anything"


async def test_traces_without_a_step_say_so_and_what_could_not_be_read(
    profiles: ScriptedProfiles, feed: ScriptedFeed, settle: Settle
) -> None:
    empty = ProfileReport(ranks=[], problems=["rank 0 ends in the middle of an event"])
    profiles.reports["one-1"] = empty
    app = app_on("overview", feed)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot, settle)
        text = drawn(app)
        assert "No step was found in the traces." in text
        assert "▲ rank 0 ends in the middle of an event" in text
        await pilot.press("enter", "right", "v", "down")
        await settle(pilot)
        assert app.screen.query(ProfileDrawer)


async def test_closed_it_reads_nothing(
    profiles: ScriptedProfiles, feed: ScriptedFeed, settle: Settle
) -> None:
    app = app_on("steps", feed)
    async with app.run_test(size=USUAL) as pilot:
        await settle(pilot)
        await settle(pilot)
        assert not profiles.read


async def test_without_a_profile_it_asks_and_says_what_it_costs(
    settle: Settle,
) -> None:
    profiles = ScriptedProfiles()
    app = app_on("steps", ScriptedFeed(profile_desk=profiles))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("P")
        await settle(pilot)
        dialog = app.screen
        assert isinstance(dialog, ProfileDialog)
        costs = str(dialog.query_one("#costs").render())
        assert "stalls every request" in costs
        assert not profiles.begun

        await pilot.press("0", "enter")  # replaces what is proposed
        await settle(pilot)
        assert "From 1 to 2,000" in str(dialog.query_one("#told").render())
        assert not profiles.begun
        await pilot.press("backspace", "3", "2", "enter")
        await settle(pilot)
        assert profiles.begun == [32]
        assert "profiling: 0 of 32 steps" in drawn(app)


async def test_an_engine_without_a_profiler_says_which_flag_it_lacks(
    settle: Settle,
) -> None:
    profiles = ScriptedProfiles(unavailable="restart it with `serve --profiler`")
    app = app_on("steps", ScriptedFeed(profile_desk=profiles))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("P")
        await settle(pilot)
        why = str(app.screen.query_one("#why").render())
        assert "serve --profiler" in why
        await pilot.press("enter", "escape")
        await settle(pilot)
        assert not profiles.begun
        assert not isinstance(app.screen, ProfileDialog)


async def test_who_shares_the_engine_is_asked_for_the_name_of_its_host(
    settle: Settle,
) -> None:
    profiles = ScriptedProfiles()
    feed = ScriptedFeed(profile_desk=profiles)
    feed.limit_desk = ScriptedDesk(must_name_host="gpu-7")
    app = app_on("steps", feed)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("P")
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot)
        await pilot.press("escape")
        await settle(pilot)
        assert not profiles.begun
        await pilot.press("enter")
        await settle(pilot)
        await pilot.press(*"gpu-7", "enter")
        await settle(pilot)
        assert profiles.begun == [20]


async def test_a_refusal_is_told_where_it_was_asked(settle: Settle) -> None:
    profiles = ScriptedProfiles(fails=SourceError("the engine is gone"))
    app = app_on("steps", ScriptedFeed(profile_desk=profiles))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("P")
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot)
        told = str(app.screen.query_one("#told").render())
        assert "the engine is gone" in told


async def test_it_tells_how_far_it_is_and_shows_the_profile_once_it_is_read(
    settle: Settle,
) -> None:
    profiles = ScriptedProfiles(
        progress=ProfileProgress(stage=ProfileStage.PROFILING, steps=7, steps_asked=20)
    )
    app = app_on("steps", ScriptedFeed(profile_desk=profiles))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("P")
        await settle(pilot)
        assert "profiling: 7 of 20 steps" in drawn(app)
        await pilot.press("x")
        assert profiles.stopped == 1

        await pilot.press("escape")
        await settle(pilot)
        assert not app.screen.query(ProfileDrawer)
        assert profiles.stopped == 1, "closed, it goes on"
        await pilot.press("P")
        await settle(pilot)

        reading = replace(profiles.progress, stage=ProfileStage.WRITING)
        profiles.progress = reading
        await until(lambda: "the engine writes its traces" in drawn(app))
        assert "every request stalls" in drawn(app)
        profiles.progress = replace(reading, stage=ProfileStage.READING, read_share=0.4)
        await until(lambda: "reading the traces 40%" in drawn(app))
        assert "every request stalls" not in drawn(app), "they are written"
        profiles.taken, profiles.reports = (taken(),), {"one-1": report()}
        profiles.progress = replace(reading, stage=ProfileStage.DONE, key="one-1")
        await until(lambda: "attention is farthest" in drawn(app))


async def test_a_failure_is_told_and_another_can_be_asked_for(settle: Settle) -> None:
    profiles = ScriptedProfiles(
        progress=ProfileProgress(stage=ProfileStage.FAILED, text="the disk is full")
    )
    app = app_on("steps", ScriptedFeed(profile_desk=profiles))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("P")
        await settle(pilot)
        assert "✖ it failed: the disk is full" in drawn(app)
        await pilot.press("a")
        await settle(pilot)
        assert isinstance(app.screen, ProfileDialog)
        await pilot.press("enter")
        await settle(pilot)
        assert profiles.begun == [20]
        assert len(app.screen.query(ProfileDrawer)) == 1


def showing(*keys: str) -> Callable[[Pilot[None]], Awaitable[None]]:
    async def act(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, InferwatchApp)
        app.look()
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
            app.look()
            await pilot.pause()

    return act


KEYS = {
    "classes": ("P", "right", "right", "down"),
    "kernels": ("P", "enter"),
    "occurrences": ("P", "enter", "enter"),
}


@pytest.mark.parametrize("view", KEYS)
def test_picture(feed: ScriptedFeed, pictures: Pictures, view: str) -> None:
    app = app_on("limits", feed)
    sizes = named(*ALL) if view == "classes" else named((80, 24))
    assert not pictures(app, sizes, showing(*KEYS[view]))


def test_picture_of_ranks(
    profiles: ScriptedProfiles, feed: ScriptedFeed, pictures: Pictures
) -> None:
    profiles.reports["one-1"] = report(4)
    act = showing("P", "v", "v", "v")
    assert not pictures(app_on("steps", feed), named((80, 24)), act)


def test_picture_of_what_has_changed(
    profiles: ScriptedProfiles, feed: ScriptedFeed, pictures: Pictures
) -> None:
    profiles.taken = (taken(1), taken(2))
    profiles.reports = {"one-1": report(), "one-2": slower()}
    assert not pictures(app_on("steps", feed), named((80, 24)), showing("P", "c"))


def test_picture_without_colour(
    feed: ScriptedFeed, pictures: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    act = showing("P", "right", "down")
    assert not pictures(app_on("steps", feed), named(USUAL), act)


def test_picture_of_the_question(pictures: Pictures) -> None:
    feed = ScriptedFeed(profile_desk=ScriptedProfiles())
    sizes = named((80, 24), USUAL)
    assert not pictures(app_on("steps", feed), sizes, showing("P"))


def test_picture_of_the_way(pictures: Pictures) -> None:
    progress = ProfileProgress(stage=ProfileStage.PROFILING, steps=7, steps_asked=20)
    feed = ScriptedFeed(profile_desk=ScriptedProfiles(progress=progress))
    sizes = named((80, 24), USUAL)
    assert not pictures(app_on("steps", feed), sizes, showing("P"))
