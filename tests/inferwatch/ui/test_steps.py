"""The Steps screen: single steps and who was in them, batches, stalls; every key."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets._footer import FooterKey

from collectors.contract.readings import BoundBy, Step
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.servers.server_state import ServerState
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.counter import StepTotals
from inferwatch.metrics.steps.efficiency import BatchPoint
from inferwatch.metrics.steps.speculation import Speculation
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.messages import OpenRequest, OpenStep
from inferwatch.ui.steps.columns import (
    ZOOMS,
    columns_of,
    prefilling,
    since_ns,
)
from inferwatch.ui.steps.curve import CurvePanel, range_of, rows_of
from inferwatch.ui.steps.facts import step_facts, total_facts
from inferwatch.ui.steps.members import StepPanel, members_of
from inferwatch.ui.steps.screen import HeatStrip, StallList, StepsScreen
from inferwatch.ui.steps.single_steps import StepLine
from inferwatch.ui.widgets.time_chart import ChartStack, TimeChart
from tests.inferwatch.ui.conftest import (
    NOW_NS,
    NothingRecalled,
    S,
    ScriptedFeed,
    ScriptedPlayback,
    app_on,
)
from tests.inferwatch.ui.scripted_steps import (
    CURVE,
    SLOW,
    STALLS,
    feed_with_steps,
    steps,
    with_steps,
)
from tests.inferwatch.ui.test_speculation import AT_WORK

SERVER = ServerState(source="a", answers=True, last_ns=NOW_NS, running=3)
STEPS = steps(count=2_503)


# Arithmetic.


@pytest.mark.parametrize("a_column", ZOOMS)
def test_every_step_is_in_one_column(a_column: int) -> None:
    columns = columns_of(STEPS, a_column, 10_000)

    assert columns[0].first == 0
    assert sum(column.count for column in columns) == len(STEPS)
    for before, after in pairwise(columns):
        assert before.first + before.count == after.first
    for column in columns:
        held = STEPS[column.first : column.first + column.count]
        assert column.longest.duration_ns == max(step.duration_ns for step in held)
        assert column.prefill_tokens == sum(step.prefill_tokens for step in held)
        assert column.decode_tokens == sum(step.decode_tokens for step in held)
        assert column.requests_max == max(step.running for step in held)


def test_columns_do_not_change_what_they_hold_when_steps_come() -> None:
    before = columns_of(STEPS[:-7], 10, 20)
    after = columns_of(STEPS, 10, 20)

    assert before[2:-1] == [each for each in after if each in before[2:-1]]
    assert columns_of([], 10, 20) == []
    assert len(columns_of(STEPS, 1, 72)) == 72
    assert columns_of(STEPS, 1, 72)[-1].longest is STEPS[-1]


def test_enough_time_is_asked_for() -> None:
    line = Timeline(start_ns=0, bin_ns=S, steps=(5, 5, 0, 5, 5, 2))

    assert since_ns(line, 6 * S - 1, 5) == 4 * S
    assert since_ns(line, 6 * S - 1, 11) == 1 * S
    assert since_ns(line, 6 * S - 1, 99) == 0
    assert since_ns(line, 20 * S, 5) <= 4 * S
    assert since_ns(Timeline(), 5, 5) == 0


def test_who_prefills_are_those_with_the_most_tokens() -> None:
    step = next(each for each in STEPS if each.prefill_requests)

    assert prefilling(step) == {len(step.members) - 1}
    first = members_of(step, {})[0]
    assert (first.ordinal, first.prefills) == (step.members[-1], True)
    assert [each.ordinal for each in members_of(step, {})[1:]] == step.members[:-1]
    assert prefilling(next(s for s in STEPS if not s.prefill_requests)) == set()


def test_rows_that_share_points_are_exact() -> None:
    points = CURVE.points
    for most in range(1, 12):
        rows = rows_of(points, most)

        assert len(rows) == min(most, len(points))
        assert sum(row.steps for row in rows) == sum(each.steps for each in points)
        for row in rows:
            held = points[row.first : row.last + 1]
            assert row.steps == sum(each.steps for each in held)
            assert row.step_s == pytest.approx(_mean(held))


def _mean(points: Sequence[BatchPoint]) -> float:
    whole = sum(point.steps for point in points)
    return sum(point.steps * point.step_mean_s for point in points) / whole


def test_the_point_where_the_engine_works_keeps_its_row() -> None:
    for here in range(len(CURVE.points)):
        for most in (3, 5, 9):
            rows = rows_of(CURVE.points, most, here)

            assert [row for row in rows if row.first == here == row.last]


def test_a_row_says_which_batches_it_is_of() -> None:
    points = CURVE.points
    alone = rows_of(points, 99)

    assert [range_of(points, row) for row in alone[:5]] == ["1", "2", "3", "4–5", "6–7"]
    assert range_of(points, rows_of(points, 1)[0]) == "1–47"


# The screen.


async def settle(pilot: Pilot[None]) -> None:
    """Let it draw what was recalled."""
    app = pilot.app
    assert isinstance(app, InferwatchApp)
    for _ in range(3):
        app.look()
        await pilot.pause()
        await pilot.pause(0.01)


@asynccontextmanager
async def opened(
    feed: ScriptedFeed, *keys: str, size: tuple[int, int] = (120, 40), **more: Any
) -> AsyncIterator[tuple[InferwatchApp, Pilot[None]]]:
    app = app_on("steps", feed)
    async with app.run_test(size=size, **more) as pilot:
        await settle(pilot)
        for key in keys:
            await pilot.press(key)
            await settle(pilot)
        yield app, pilot


def text_of(app: InferwatchApp, kind: type[Widget]) -> list[str]:
    widget = app.screen.query_one(kind)
    return [widget.render_line(y).text for y in range(widget.size.height)]


def seen(app: InferwatchApp) -> list[str]:
    kinds: tuple[type[Widget], ...] = (StepLine, StepPanel, CurvePanel, StallList)
    return [
        kind.__name__
        for kind in kinds
        if app.screen.query_one(kind).region.size and app.screen.query_one(kind).size
    ]


async def test_v_goes_through_the_views_and_z_leads_to_the_single_steps() -> None:
    async with opened(feed_with_steps()) as (app, pilot):
        assert seen(app) == []
        assert "3 stalls   v  [over time]" in text_of_totals(app)
        await pilot.press("v")
        await settle(pilot)
        assert seen(app) == ["StepLine", "StepPanel"]
        assert "[single steps]" in text_of_totals(app)
        await pilot.press("v")
        await settle(pilot)
        assert seen(app) == ["CurvePanel", "StallList"]
        await pilot.press("V")
        await settle(pilot)
        assert seen(app) == ["StepLine", "StepPanel"]
        await pilot.press("v", "v")
        await settle(pilot)
        assert seen(app) == []
        await pilot.press("z")
        await settle(pilot)
        assert seen(app) == ["StepLine", "StepPanel"]
        assert "1 step a column" in text_of(app, StepLine)[0]


def text_of_totals(app: InferwatchApp) -> str:
    widget = app.screen.query_one("#totals")
    return " ".join(widget.render_line(y).text for y in range(widget.size.height))


async def test_totals_tell_of_graphs_and_padding_where_an_engine_does() -> None:
    async with opened(feed_with_steps()) as (app, _):
        told = text_of_totals(app)
        assert "FULL  91%" in told
        assert "no graph 9.0%" in told
        assert "padding 6.2%" in told
        assert "nothing waits" in told
    async with opened(ScriptedFeed()) as (app, _):
        assert "padding" not in text_of_totals(app)
        assert app.screen.query_one("#totals").size.height == 4


@pytest.mark.parametrize("graphs", [{}, {"FULL": 1.0}], ids=["no graphs", "graphs"])
@pytest.mark.parametrize("told", [None, AT_WORK], ids=["no drafts", "drafts"])
async def test_no_row_of_the_totals_is_cut_and_one_once_shown_stays(
    graphs: dict[str, float], told: Speculation | None
) -> None:
    feed = feed_with_steps()

    def change(made: Snapshot, deferrals: dict[str, float]) -> Snapshot:
        made = with_steps(made)
        totals = replace(
            made.steps,
            share_by_graph=graphs,
            padded_share=None,
            share_by_deferral=deferrals,
        )
        return replace(made, steps=totals, speculation=told)

    feed.change = lambda made: change(made, {})
    async with opened(feed) as (app, pilot):
        panel = app.screen.query_one("#totals")
        rows = 4 + bool(graphs) + bool(told)
        assert panel.size.height == rows
        feed.change = lambda made: change(made, {"grammar": 0.4})
        await settle(pilot)
        assert panel.size.height == rows + 1
        shown = text_of_totals(app)
        assert "grammar" in shown
        assert ("FULL" in shown) == bool(graphs)
        feed.change = lambda made: change(made, {})
        await settle(pilot)
        assert panel.size.height == rows + 1


async def test_a_server_that_only_counts_has_one_view() -> None:
    feed = feed_with_steps()
    feed.change = lambda made: replace(made, engines=(), servers=(SERVER,))
    async with opened(feed, "v", "z", "enter", "down") as (app, _):
        assert seen(app) == []
        assert app.screen.query_one("#totals").size.height == 3
        assert app.screen.query_one(ChartStack).display


async def test_the_newest_step_is_on_the_right_and_past_the_left_end_it_goes_on() -> (
    None
):
    feed = feed_with_steps()
    async with opened(feed, "v") as (app, pilot):
        line = app.screen.query_one(StepLine)
        assert "1 step a column" in text_of(app, StepLine)[0]
        columns = line._columns
        assert len(columns) == line.capacity
        assert columns[-1].longest is feed.recall.told[-1]
        assert [each.longest for each in columns] == list(
            feed.recall.told[-line.capacity :]
        )

        first = columns[0].longest
        await pilot.click(StepLine, offset=(8, 3))
        await settle(pilot)
        assert app.session.view.cursor_ns == first.end_ns
        await pilot.press("comma")
        await settle(pilot)
        assert line._columns[0].longest.end_ns < first.end_ns
        await pilot.press("comma")
        await settle(pilot)
        assert app.session.view.cursor_ns == feed.recall.told[-line.capacity - 1].end_ns


async def test_z_puts_more_steps_into_a_column() -> None:
    async with opened(feed_with_steps(), "v", "z") as (app, pilot):
        assert "2 steps a column" in text_of(app, StepLine)[0]
        assert app.screen.query_one(StepLine)._columns[-3].count == 2
        for _ in range(len(ZOOMS)):
            await pilot.press("z")
        await settle(pilot)
        assert "100 steps a column" in text_of(app, StepLine)[0]
        for _ in range(len(ZOOMS)):
            await pilot.press("Z")
        await settle(pilot)
        assert "1 step a column" in text_of(app, StepLine)[0]


async def test_comma_and_period_go_from_step_to_step_and_hold_the_line() -> None:
    feed = feed_with_steps()
    told = feed.recall.told
    async with opened(feed, "v", "comma") as (app, pilot):
        view = app.session.view
        at = [each.end_ns for each in told].index(view.cursor_ns or 0)
        assert f"step #{told[at].index:,}" in text_of(app, StepPanel)[0]
        line = list(app.screen.query_one(StepLine)._columns)
        feed.at_ns += S  # time goes on
        await pilot.press("comma", "comma")
        await settle(pilot)
        assert view.cursor_ns == told[at - 2].end_ns
        assert app.screen.query_one(StepLine)._columns == line
        await pilot.press("full_stop")
        await settle(pilot)
        assert view.cursor_ns == told[at - 1].end_ns
        assert "▲" in text_of(app, StepLine)[-1]
        assert "03:12:41.320" in text_of(app, StepLine)[-1]
        await pilot.press("escape")
        await settle(pilot)
        assert view.cursor_ns is None


async def test_the_requests_of_a_step_are_listed_and_enter_opens_one() -> None:
    feed, said = feed_with_steps(), list[Any]()
    async with opened(feed, "v", message_hook=said.append) as (app, pilot):
        step = next(s for s in reversed(feed.recall.told) if s.prefill_requests)
        place = app.screen.query_one(StepLine)._columns
        column = next(i for i, each in enumerate(place) if each.longest is step)
        await pilot.click(StepLine, offset=(8 + column, 2))
        await settle(pilot)
        lines = text_of(app, StepPanel)
        assert f"{step.scheduled[-1]:,}" in next(line for line in lines if "▶" in line)
        await pilot.press("down", "down", "up")
        await settle(pilot)
        chosen = app.screen.query_one(StepPanel).chosen
        assert chosen is not None
        assert chosen.ordinal == step.members[0]
        feed.change = lambda made: replace(with_steps(made), requests=())
        await settle(pilot)
        assert f"#{chosen.ordinal}" in " ".join(text_of(app, StepPanel))
        await pilot.press("enter")
        await pilot.pause()
        assert not [each for each in said if isinstance(each, OpenRequest)], "unknown"
        feed.change = with_steps
        await settle(pilot)
        await pilot.press("enter")
        await pilot.pause()
        wished = {each.key for each in said if isinstance(each, OpenRequest)}
        assert wished == {chosen.row.key if chosen.row else ""}


async def test_the_time_cursor_of_another_screen_leads_to_its_steps() -> None:
    feed = feed_with_steps()
    async with opened(feed, "v") as (app, pilot):
        slow = next(each for each in feed.recall.told if each.index == SLOW)
        app.session.view.cursor_ns = slow.end_ns
        feed.change = lambda made: _slowest(with_steps(made), slow)
        await settle(pilot)
        assert "slowest step of the 0.5 s under" in text_of(app, StepPanel)[0]
        assert "1.40 s" in text_of(app, StepPanel)[1]
        last = app.screen.query_one(StepLine)._columns[-1].longest
        assert 0 <= last.end_ns - slow.end_ns < S // 2


def _slowest(made: Snapshot, step: Step) -> Snapshot:
    line = made.timeline
    index = line.index_at(step.end_ns)
    bare = [step if i == index else each for i, each in enumerate(line.slowest_step)]
    return replace(made, timeline=replace(line, slowest_step=tuple(bare)))


async def test_a_held_view_shows_the_step_there() -> None:
    feed = feed_with_steps()
    at = feed.recall.told[-300]
    feed.playback = ScriptedPlayback(position_ns=at.end_ns)
    feed.change = lambda made: replace(with_steps(made), latest_step=at)
    async with opened(feed, "v") as (app, _):
        assert "the step here" in text_of(app, StepPanel)[0]
        assert app.screen.query_one(StepLine)._columns[-1].longest is at
        assert text_of(app, StepLine)[-1].rstrip().endswith("▲")


async def test_where_nothing_is_kept_it_says_so() -> None:
    feed = feed_with_steps()
    feed.recall = NothingRecalled()  # type: ignore[assignment]
    async with opened(feed, "v") as (app, pilot):
        assert "were not kept" in text_of(app, StepLine)[1]
        await pilot.press("comma", "z", "enter", "down")  # nothing breaks
        await settle(pilot)

        feed.change = lambda made: replace(
            with_steps(made), steps=replace(made.steps, count=0)
        )
        await pilot.press("escape")
        await settle(pilot)
        assert "no step ended in the last 60 s" in text_of(app, StepLine)[1]


class SlowRecall:
    """Answers when it is let."""

    def __init__(self, told: Sequence[Step]) -> None:
        self.told, self.may, self.asked = told, asyncio.Event(), 0

    async def steps(
        self, start_ns: int, end_ns: int, source: str | None = None
    ) -> Sequence[Step]:
        del source
        self.asked += 1
        await self.may.wait()
        return [each for each in self.told if start_ns < each.end_ns <= end_ns]

    async def request(self, key: str) -> None:
        del key


async def test_drawing_never_waits_for_steps_and_keeps_the_last_picture() -> None:
    feed = feed_with_steps()
    recall = SlowRecall(feed.recall.told)
    feed.recall = recall  # type: ignore[assignment]
    async with opened(feed, "v") as (app, pilot):
        assert "reading the steps" in text_of(app, StepLine)[1]
        assert recall.asked == 1  # one question at a time, however often it looks
        recall.may.set()
        await settle(pilot)
        before = text_of(app, StepLine)[1:-1]
        recall.may.clear()
        feed.at_ns -= S
        await settle(pilot)
        assert text_of(app, StepLine)[1:-1] == before
        recall.may.set()
        await settle(pilot)
        assert text_of(app, StepLine)[1:-1] != before


async def test_the_curve_marks_where_the_engine_works_and_without_one_it_says_so() -> (
    None
):
    feed = feed_with_steps()
    async with opened(feed, "v", "v") as (app, pilot):
        lines = text_of(app, CurvePanel)
        assert "now batch 13.4: 7.6" in lines[0]
        (here,) = [line for line in lines if line.startswith("▶")]
        assert "12–15" in here

        feed.change = lambda made: replace(
            with_steps(made), stalls=(), batch_curve=None
        )
        await settle(pilot)
        assert "nobody starved" in text_of(app, StallList)[1]
        assert "no step that only decodes" in text_of(app, CurvePanel)[1]
        await pilot.press("down", "enter")
        await settle(pilot)
        assert app.session.view.cursor_ns is None


@pytest.mark.parametrize(
    "size",
    [
        (80, 24),
        pytest.param((120, 40), marks=pytest.mark.soak),
        pytest.param((200, 60), marks=pytest.mark.soak),
    ],
)
async def test_a_stall_is_chosen_and_enter_goes_there(size: tuple[int, int]) -> None:
    async with opened(feed_with_steps(), "v", "v", size=size) as (app, pilot):
        told = " ".join(" ".join(text_of(app, StallList)).split())
        assert "3 stalls" in told
        assert "31 later ones were taken" in told
        await pilot.press("down", "down", "down", "up")
        await settle(pilot)
        told = " ".join(" ".join(text_of(app, StallList)).split())
        assert "while 2,962 prompt tokens were computed" in told
        await pilot.press("enter")
        await settle(pilot)
        assert app.session.view.cursor_ns == STALLS[1].end_ns
        assert seen(app) == ["StepLine", "StepPanel"]


async def test_a_click_on_the_strip_puts_the_cursor_there_and_one_on_a_stall_too() -> (
    None
):
    async with opened(feed_with_steps(), "v", "v") as (app, pilot):
        await pilot.click(HeatStrip, offset=(60, 3))
        await settle(pilot)
        cursor_ns = app.session.view.cursor_ns
        assert cursor_ns is not None
        assert 20 * S < NOW_NS - cursor_ns < 40 * S
        assert any("│" in line[60:61] for line in text_of(app, HeatStrip)[1:-1])

        await pilot.click(StallList, offset=(12, 3))
        await settle(pilot)
        assert app.session.view.cursor_ns == STALLS[2].end_ns


@pytest.mark.parametrize("view", [(), ("v",), ("v", "v")])
async def test_brackets_go_by_seconds_in_every_view(view: tuple[str, ...]) -> None:
    feed = feed_with_steps()
    feed.playback = ScriptedPlayback()
    async with opened(feed, *view, "left_square_bracket") as (app, _):
        assert feed.playback.position_ns == NOW_NS - S
        assert isinstance(app.screen, StepsScreen)


async def test_past_the_last_step_of_a_held_moment_the_moment_moves() -> None:
    feed = feed_with_steps()
    at = feed.recall.told[-300]
    feed.playback = ScriptedPlayback(position_ns=at.end_ns)
    feed.change = lambda made: replace(with_steps(made), latest_step=at)
    async with opened(feed, "v", "comma") as (app, pilot):
        view, told = app.session.view, feed.playback.told
        assert view.cursor_ns == feed.recall.told[-301].end_ns
        await pilot.press("full_stop")
        await settle(pilot)
        assert view.cursor_ns == at.end_ns
        assert told == []

        await pilot.press("full_stop")
        await settle(pilot)
        assert told == [f"seek {at.end_ns / S:g}", "step 1"]
        assert view.cursor_ns is None


async def test_where_the_steps_around_a_held_moment_are_not_read_the_moment_moves() -> (
    None
):
    feed = feed_with_steps()
    feed.playback = ScriptedPlayback()
    feed.change = lambda made: replace(with_steps(made), latest_step=steps(1)[0])
    async with opened(feed, "v", "comma", "full_stop"):
        assert feed.playback.told == ["step -1", "step 1"]


async def test_enter_opens_the_step_that_the_first_view_tells() -> None:
    feed = feed_with_steps()
    at = feed.recall.told[-300]
    feed.playback = ScriptedPlayback(position_ns=at.end_ns)
    feed.change = lambda made: replace(with_steps(made), latest_step=at)
    async with opened(feed) as (app, pilot):
        footer = {
            each.key_display: each.description for each in app.screen.query(FooterKey)
        }
        assert footer["enter"] == "open step"

        await pilot.press("enter")
        await settle(pilot)
        await settle(pilot)
        assert f"step #{at.index:,}" in text_of(app, StepPanel)[0]
        assert app.session.view.cursor_ns == at.end_ns


# A step that another screen leads to.


async def test_a_step_asked_for_is_opened_itself_and_the_view_held(
    settle: Any, text_of: Any
) -> None:
    feed = feed_with_steps(
        playback=ScriptedPlayback(goes_on=True, at_live=True, playing=True)
    )
    app = app_on("overview", feed)
    before, step = steps()[1_000:1_002]
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        app.session.view.window = Window.TEN_SECONDS
        assert step.end_ns < NOW_NS - 10 * S

        app.screen.post_message(OpenStep(before.end_ns + 1, "demo/cmpl-1"))
        await pilot.pause()
        await app.workers.wait_for_complete()
        await settle(pilot)
        await app.workers.wait_for_complete()
        await settle(pilot)

        assert app.current_mode == "steps"
        assert app.session.view.window is Window.MINUTE
        assert feed.playback is not None
        assert feed.playback.told == ["pause"]
        assert app.session.view.cursor_ns == step.end_ns
        assert f"step #{step.index:,}" in "\n".join(text_of(app, "StepPanel"))
        assert "▲" in text_of(app, "StepLine")[-1][:100], "others follow on the right"


async def test_what_bound_is_told_whole_in_80_columns(settle: Any) -> None:
    app = app_on("steps", feed_with_steps())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        screen = app.screen
        assert isinstance(screen, StepsScreen)
        plans = {each.title: each for each in screen.query(TimeChart)}
        chart = plans["bound by"]
        for _ in plans:
            if not chart.size:
                screen.action_chart(1)
            await settle(pilot)
        head = "".join(run.text for run in chart._heading)
        names = [f"{name} " in head for name in ("KV", "seqs", "tokens", "deferred")]
        assert all(names)
        assert "other " in head
        assert len(head) <= chart.size.width


async def test_a_step_is_looked_for_two_seconds_at_a_time(settle: Any) -> None:
    feed = feed_with_steps()
    app = app_on("overview", feed)
    first = steps()[0]
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        sought_ns = first.end_ns - 5 * S
        app.screen.post_message(OpenStep(sought_ns, "demo/cmpl-1"))
        await pilot.pause()
        await app.workers.wait_for_complete()
        await settle(pilot)
        await app.workers.wait_for_complete()
        await settle(pilot)

        assert app.session.view.cursor_ns == first.end_ns
        spans = [tuple(map(int, each.split()[1:3])) for each in feed.recall.asked]
        sought = [span for span in spans if sought_ns <= span[0] + 1 < first.end_ns]
        assert sought[0][0] == sought_ns - 1
        assert all(end - start <= 2 * S for start, end in sought)
        assert sought[2][1] < first.end_ns <= sought[3][1]


async def test_a_step_that_was_not_kept_is_said_to_be_missing(settle: Any) -> None:
    app = app_on("overview", feed_with_steps())
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        app.screen.post_message(OpenStep(20 * S, "other/cmpl-1"))
        await pilot.pause()
        await settle(pilot)
        await app.workers.wait_for_complete()
        await settle(pilot)

        assert [each.message for each in app._notifications] == [
            "the single steps of this time were not kept"
        ]


# While the engine is idle.


async def test_nothing_moves_when_the_engine_is_idle_and_busy_again() -> None:
    feed = feed_with_steps()
    busy = feed.change

    def idle(made: Snapshot) -> Snapshot:
        made = busy(made)
        count = len(made.timeline.steps)
        line = replace(made.timeline, steps=(0,) * count, slowest_step=(None,) * count)
        return replace(made, timeline=line, stalls=())

    async with opened(feed) as (app, pilot):
        seen = []
        for change in (idle, busy, idle):
            feed.change = change
            await settle(pilot)
            regions = [each.region for each in app.screen.query("#body *")]
            title = text_of_totals(app).partition("v  [over time]")
            seen.append((regions, len(title[0]), title[2]))

    assert seen[0] == seen[1] == seen[2]


def test_why_requests_are_deferred_stands_beside_what_binds() -> None:
    deferred = Step(
        index=1,
        start_ns=0,
        end_ns=S,
        duration_ns=S,
        waiting=5,
        bound_by=BoundBy.DEFERRED,
        deferred_by="grammar",
        deferred=4,
    )

    first, *_ = step_facts(deferred)
    *_, reasons = total_facts(
        StepTotals(share_by_deferral={"adapter": 0.1, "grammar": 0.4})
    )

    told = {label: text for label, text, _ in first}
    assert told["bound by"] == "deferred (grammar)"
    assert told["waiting"] == "5, 4 deferred"
    assert [label for label, _, _ in reasons] == ["deferred by", "grammar", "adapter"]
    assert len(total_facts(StepTotals())) == 3
