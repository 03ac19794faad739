"""Each screen answers its question, and spends nothing while it is not looked at."""

import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from inferwatch.feed import FeedState
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.load.view import LoadRun
from inferwatch.metrics.number import number_of
from inferwatch.metrics.requests.latencies import TTFT
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.ui.app import TABS, InferwatchApp
from inferwatch.ui.frame.header import HeaderLine
from inferwatch.ui.frame.session_screen import SessionScreen
from inferwatch.ui.pages import SessionPage
from inferwatch.ui.widgets.help_drawer import HelpDrawer
from inferwatch.ui.widgets.time_chart import TimeChart
from tests.inferwatch.ui.conftest import ScriptedFeed, untouched

SIZE = (120, 40)
FRAME = {"c5c8c6", "ff5f57", "febc2e", "28c840"}
"""Colours of the window that is drawn around a picture."""


async def test_number_keys_and_tabs_lead_to_the_same_screens(
    app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        for key, mode, _ in TABS[1:]:  # of one server there is no fleet
            await pilot.press(key)
            await pilot.pause()
            assert app.current_mode == mode

        for _, mode, title in TABS[1:]:  # of one server there is no fleet
            at = text_of(app, "TabLine")[0].index(title)
            await pilot.click("TabLine", offset=(at + 1, 0))
            await settle(pilot)
            assert app.current_mode == mode


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(((120, 40), (40, 10)), id="usual and tiny"),
        pytest.param(
            ((80, 24), (200, 60)), id="small and large", marks=pytest.mark.soak
        ),
    ],
)
async def test_nothing_is_wider_than_the_terminal(
    app: InferwatchApp, settle: Any, sizes: tuple[tuple[int, int], ...]
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        for key in ("1", "2", "3", "4"):
            await pilot.press(key)
            for size in sizes:
                await pilot.resize_terminal(*size)
                await settle(pilot)

                for widget in app.screen.query("Panel, TimeChart"):
                    lines = [widget.render_line(y) for y in range(widget.size.height)]
                    widths = {line.cell_length for line in lines}
                    assert widths <= {widget.size.width}, (key, size, widget)


async def test_nothing_is_asked_for_or_drawn_that_is_hidden_or_did_not_change(
    feed: Any, app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        chart = app.screen.query_one("#chart-0", TimeChart)
        rows = chart._rows
        await settle(pilot)
        assert rows is not None
        assert chart._rows is rows
        assert not [each for each in feed.asked if "with requests" in each]

        hidden = app.screen.query_one("#chart-1", TimeChart)
        await pilot.press("2")
        await settle(pilot)
        drawn = hidden._columns
        feed.at_ns += 9_000_000_000
        await settle(pilot)
        assert hidden._columns is drawn
        assert [each for each in feed.asked if "with requests" in each]


@pytest.mark.parametrize("rests", [False, True])
async def test_an_engine_at_rest_is_looked_at_half_as_often(
    feed: ScriptedFeed, app: InferwatchApp, settle: Any, rests: bool
) -> None:
    if rests:
        untouched(feed)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        app._tick()
        before = len(feed.asked)
        for _ in range(10):
            app._tick()
        looks = len(feed.asked) - before

    assert looks == 5 if rests else looks > 8


async def test_help_explains_the_screen_and_its_keys(
    app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        for key in ("1", "2", "3", "4"):
            await pilot.press(key)
            await pilot.pause()
            await pilot.press("question_mark")
            await pilot.pause()
            said = str(app.screen.query_one("HelpDrawer Static").render())
            screen = app.screen
            assert isinstance(screen, SessionScreen)

            assert screen.QUESTION in said
            for number in screen.EXPLAINS:
                assert number.help in said
            assert "Move the time cursor" in said
            assert "second back or forward" not in said  # nothing to play
            assert said.index("this screen") < said.index("the numbers")

            await pilot.press("escape")
            await pilot.pause()
            assert not app.screen.query("HelpDrawer")

        assert app.session.view.cursor_ns is None
        await pilot.press("question_mark", "left")
        assert app.session.view.cursor_ns is not None  # it moves under the help too


async def test_help_names_the_keys_of_playing_and_stopping_where_they_do_something(
    watched_feed: Any, settle: Any
) -> None:
    app = InferwatchApp(SessionPage(watched_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)

        async def help_of(key: str) -> str:
            await pilot.press(key)
            await pilot.pause()
            await pilot.press("question_mark")
            await pilot.pause()
            said = str(app.screen.query_one("HelpDrawer Static").render())
            await pilot.press("escape")
            await pilot.pause()
            return said

        said = ""
        for key, plays in (("7", True), ("8", False), ("1", True)):
            said = await help_of(key)
            assert ("second back or forward" in said) is plays, key
            assert ("once paused" in said) is plays, key
            assert ("Move the time cursor" in said) is plays, key
            assert "7  Load: How does it perform under a load of my choice?" in said
        assert "stop a served engine" in said
        assert "start the engine again" in said

        watched_feed.state = FeedState.REPLAYING
        said = await help_of("1")
        assert "stop a served engine" not in said
        assert "start the engine again" not in said


async def test_l_opens_and_closes_the_log_and_t_turns_the_light_on(
    app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("l")
        await settle(pilot)
        assert "encountered a fatal error" in "\n".join(text_of(app, "LogDrawer"))
        await pilot.press("l")
        await pilot.pause()
        assert not app.screen.query("LogDrawer")

        dark = app.screen.query_one(HeaderLine).ink("")
        await pilot.press("t")
        await settle(pilot)
        light = app.screen.query_one(HeaderLine).ink("")
        assert dark.bgcolor != light.bgcolor


async def test_tab_shows_one_chart_after_the_other_and_goes_round(
    app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)

        async def seen(tabs: int) -> list[list[str | None]]:
            charts = []
            for _ in range(tabs):
                charts.append([c.id for c in app.screen.query(TimeChart) if c.display])
                await pilot.press("tab")
                await pilot.pause()
            return charts

        everything = [f"chart-{index}" for index in range(4)]
        one_by_one = [[each] for each in everything]
        assert await seen(5) == [everything, *one_by_one]

        await pilot.resize_terminal(80, 24)  # a small one has room for one
        await settle(pilot)
        first, *others = one_by_one
        assert await seen(5) == [*others, first, ["chart-1"]]


async def test_numbers_keep_their_place_when_they_change_and_weak_ones_are_marked(
    feed: Any, app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        ttft, itl = (text_of(app, "LatencyTable")[row] for row in (1, 5))
        assert "~426" in ttft
        assert " 45.2 " in itl
        assert "~" not in itl

        before = text_of(app, "FlowPanel")
        feed.change = _other_flow
        await settle(pilot)
        after = text_of(app, "FlowPanel")
        assert before != after
        for old, new in zip(before, after, strict=True):
            assert ends(old) == ends(new)


async def test_an_idle_engine_without_a_step_shows_dashes_not_zeros(
    feed: Any, app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    feed.change = lambda made: Snapshot(
        now_ns=made.now_ns,
        window=made.window,
        covered_ns=0,
        verdict=made.verdict,
    )
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        assert "req/s" in text_of(app, "FlowPanel")[1]
        assert "–" in text_of(app, "FlowPanel")[1]
        assert "0.00" not in text_of(app, "FlowPanel")[1]

        for key in ("2", "3", "4"):  # nor does it break another screen
            await pilot.press(key)
            await settle(pilot)


def ends(row: str) -> list[int]:
    """Where labels and numbers end; two spaces are between them."""
    return [match.end() for match in re.finditer(r"\S+(?: \S+)*", row)]


def _other_flow(made: Any) -> Any:
    flow = replace(
        made.flow, arrivals_per_s=112.5, output_tokens_per_s=3.14, prefix_hit_rate=1.0
    )
    return replace(made, flow=flow)


async def test_without_colour_every_cell_is_grey(
    feed: Any, settle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = InferwatchApp(SessionPage(feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        picture = app.export_screenshot(simplify=True)

    colours = set(re.findall(r"#([0-9a-f]{6})", picture)) - FRAME
    assert len(colours) > 10
    assert all(colour[:2] == colour[2:4] == colour[4:] for colour in colours)


def test_help_tells_what_a_number_covers() -> None:
    shown = (
        number_of(LoadRun.sent),
        number_of(LoadRun.users),
        number_of(ClientView.verdict),
        TTFT,
    )
    drawer = HelpDrawer("", {}, shown, "60 s")

    (static,) = drawer.compose()

    said = [each.strip() for each in str(static.render()).split("\n\n")]
    sent, users, verdict, ttft = (
        next(each for each in said if each.startswith(number.label + "  "))
        for number in shown
    )
    assert "the whole run" in sent
    assert "60 s" not in sent
    assert "seen by client · now" in users
    assert "last 10 s of the run" in verdict
    assert "window 60 s" in ttft


async def test_neither_a_long_queue_nor_a_far_limit_flattens_the_batch(
    app: InferwatchApp, feed: Any, settle: Any, text_of: Any
) -> None:
    def crowded(made: Snapshot) -> Snapshot:
        line = made.timeline
        return replace(
            made,
            timeline=replace(
                line,
                batch_decode=(32.0,) * len(line.steps),
                batch_prefill=(0.0,) * len(line.steps),
                waiting_max=(484,) * len(line.steps),
            ),
        )

    async with app.run_test(size=(120, 50)) as pilot:
        await settle(pilot)
        heights = [len(text_of(app, f"#chart-{index}")) for index in range(4)]
        assert heights[0] > max(heights[1:])  # TTFT has the tallest

        engine = msgspec.structs.replace(
            feed.snapshot(SnapshotQuery(Window.MINUTE)).engines[0], max_num_seqs=1024
        )
        feed.change = lambda made: replace(made, engines=(engine,))
        await settle(pilot)
        head, *rows = text_of(app, "#chart-1")
        assert "max_num_seqs 1024" in head
        assert not any("╌" in row and "1024" in row for row in rows)
        assert any(row.startswith("    50 ┤") for row in rows)

        feed.change = crowded
        await settle(pilot)
        head, *rows = (row.rstrip() for row in text_of(app, "#chart-1"))
        assert "╌ max_num_seqs 32" in head
        assert rows[0].startswith("   500 ┤⣿⣿⣿")
        assert any(row.startswith("    32 ┤╌╌╌") for row in rows)
        assert rows[-1].startswith("     0 ┤███")
        assert sum("███" in row for row in rows) >= 2
