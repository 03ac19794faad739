"""One time cursor and one window for all screens."""

from dataclasses import replace
from typing import Any

from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.kit.renderables.plot import MARGIN
from inferwatch.ui.pages import SessionPage
from inferwatch.ui.view import View
from inferwatch.ui.widgets.time_chart import TimeChart
from tests.inferwatch.ui.conftest import app_on, timeline

SIZE = (120, 40)
S = 1_000_000_000


def readout(text_of: Any, app: InferwatchApp) -> str:
    return " ".join(text_of(app, "ReadoutLine")[0].split())


MOVES = (
    (["left"], "−1.1 s"),
    (["left", "left", "right"], "−1.1 s"),
    (["shift+left"], "−5.6 s"),
    (["shift+left", "shift+right"], "now"),
    (["left", "end"], "now"),
)
"""By one bin or ten; what would be past now is now."""


async def test_the_cursor_moves_by_bins(
    app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        for keys, ago in MOVES:
            await pilot.press(*keys)
            await settle(pilot)

            assert ago in readout(text_of, app)[:25], keys
            await pilot.press("end")


async def test_a_moment_chosen_here_is_the_moment_there_with_its_slowest_step(
    feed: Any, app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("shift+left", "shift+left")
        await settle(pilot)
        here = readout(text_of, app)[:17]
        await pilot.press("3")
        await settle(pilot)
        assert readout(text_of, app).startswith(here)
        assert "under the time cursor" in text_of(app, "#slowest")[0]

        line = feed.snapshot(SnapshotQuery(Window.MINUTE)).timeline
        index = line.index_at(app.session.view.cursor_ns or 0)
        assert index is not None
        step = line.slowest_step[index]
        assert f"step #{step.index:,}" in text_of(app, "#slowest")[1]


async def test_clicking_a_chart_puts_the_cursor_there(
    app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        chart = app.screen.query_one("#chart-1", TimeChart)
        await pilot.click(chart, offset=(MARGIN + 30, 2))
        await settle(pilot)

        assert chart.render_line(2).text[MARGIN + 30] == "│"
        column = app.screen.query_one("#chart-2", TimeChart).render_line(2).text
        assert column[MARGIN + 30] == "│"


async def test_w_goes_through_all_windows_and_each_can_be_clicked(
    app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        seen = []
        for _ in range(4):
            await pilot.press("w")
            seen.append(app.session.view.window)
        assert seen == [
            Window.FIVE_MINUTES,
            Window.SESSION,
            Window.TEN_SECONDS,
            Window.MINUTE,
        ]

        await settle(pilot)
        at = text_of(app, "TabLine")[0].index("session")
        await pilot.click("TabLine", offset=(at + 2, 0))
        assert app.session.view.window is Window.SESSION


async def test_what_is_of_a_longer_bin_is_not_called_now_alone(
    app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    said = {}
    async with app.run_test(size=SIZE) as pilot:
        for window in (Window.MINUTE, Window.FIVE_MINUTES):
            app.session.view.window = window
            await settle(pilot)
            said[window] = readout(text_of, app).partition(" ITL")[0]

    assert said == {
        Window.MINUTE: "now 03:12:41",
        Window.FIVE_MINUTES: "now 03:12:41, last 2.5 s",
    }


async def test_now_is_the_last_moment_at_every_window_and_told_in_one_place(
    feed: Any, app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    """Not the mean of the last column, which at long windows is of minutes."""

    def long(made: Snapshot) -> Snapshot:
        latest = timeline(Window.MINUTE, made.now_ns)
        waiting = (*latest.waiting_max[:-2], 77, None)
        return replace(made, latest=replace(latest, waiting_max=waiting))

    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        feed.change = long
        for window in (Window.FIVE_MINUTES, Window.SESSION):
            app.session.view.window = window
            await settle(pilot)
            chart, row = text_of(app, "#chart-1")[0], readout(text_of, app)
            assert "waiting   77" in chart, window
            assert row.startswith("now 03:12:41 ITL"), window
            assert "step max" in row, window
            for told in ("TTFT", "batch", "waiting", "KV used", "out"):
                assert told not in row, window

            await pilot.press("left")
            await settle(pilot)
            assert "waiting   77" not in text_of(app, "#chart-1")[0], window
            await pilot.press("escape")

        await pilot.resize_terminal(80, 24)  # a small one has room for one chart
        await settle(pilot)
        assert "TTFT" in readout(text_of, app)
        assert "batch" not in readout(text_of, app)


async def test_the_cursor_stays_at_its_moment_while_time_moves_on(
    feed: Any, app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("shift+left")
        chosen_ns = app.session.view.cursor_ns
        feed.at_ns += 20 * S
        await settle(pilot)
        assert app.session.view.cursor_ns == chosen_ns
        assert "▲ 03:12:35 −25.6 s" in readout(text_of, app)

        feed.at_ns += 60 * S
        await settle(pilot)
        assert "outside this window" in readout(text_of, app)

        await pilot.press("w")  # a longer one brings it back into sight
        await settle(pilot)
        assert app.session.view.window is Window.FIVE_MINUTES
        assert "ITL 10.3 ms" in readout(text_of, app)

        feed.at_ns -= 100 * S
        await settle(pilot)
        told = readout(text_of, app)
        assert " s after now" in told
        assert "−" not in told.partition("after")[0]


async def test_escape_lets_go_of_the_cursor(
    app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        for key in ("1", "2"):
            await pilot.press(key, "left")
            assert app.session.view.cursor_ns is not None
            await pilot.press("escape")
            await settle(pilot)

            assert app.session.view.cursor_ns is None
            assert readout(text_of, app).startswith("now")


async def test_going_by_a_step_shows_milliseconds_and_the_step_it_stands_at(
    watched_feed: Any, settle: Any, text_of: Any
) -> None:
    app = InferwatchApp(SessionPage(watched_feed, View(screen="steps")))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        assert "step #" not in readout(text_of, app)
        assert "slowest step of the last 0.5 s, of " in text_of(app, "#slowest")[0]

        await pilot.press("space", "comma")
        await settle(pilot)
        assert "03:12:41.311 step #" in readout(text_of, app)
        held = text_of(app, "#slowest")
        assert "the step here" in held[0]
        assert "#30,783" in held[1]

        await pilot.press("comma")
        await settle(pilot)
        assert "03:12:41.302 step #" in readout(text_of, app)


async def test_charts_stop_at_a_loss_and_say_when_that_was(
    lost_feed: Any, settle: Any, text_of: Any
) -> None:
    change = lost_feed.change

    def later(made: Snapshot) -> Snapshot:
        line = replace(made.timeline, lost_ns=made.now_ns)
        gone: Snapshot = change(made)
        return replace(gone, timeline=line, now_ns=made.now_ns + 35 * S)

    lost_feed.change = later
    app = InferwatchApp(SessionPage(lost_feed))
    async with app.run_test(size=(80, 40)) as pilot:
        await settle(pilot)

        assert "lost 03:12:41, 35 s ago" in text_of(app, "TimeAxisLine")[0]
        assert readout(text_of, app).startswith("lost 03:12:41")


async def test_no_field_moves_when_an_engine_comes_to_rest(
    feed: Any, text_of: Any, settle: Any
) -> None:
    def at_rest(made: Snapshot) -> Snapshot:
        line = made.timeline
        gaps = (None,) * len(line.steps)
        line = replace(line, batch_decode=gaps, batch_prefill=gaps, output_tokens=gaps)
        kv = replace(made.kv, prefix_hits=0, prefix_queries=1, recomputed_tokens=0)
        return replace(made, timeline=line, kv=kv)

    app = app_on("kv", feed)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        places = []
        for change in (lambda made: made, at_rest):
            feed.change = change
            await settle(pilot)
            row = text_of(app, "ReadoutLine")[0]
            facts = "\n".join(text_of(app, "TotalsPanel"))
            words = ("out", "step max")
            places.append(
                [row.index(word) for word in words]
                + [facts.index(word) for word in ("queried", "hits", "recomputed")]
            )
        assert places[0] == places[1]
