"""The request table: order, filter, cursor, detail."""

from dataclasses import replace
from typing import Any

import pytest
from textual.message import Message
from textual.widgets import Input

from inferwatch.metrics.requests.request_row import RequestRow, RequestState
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.kit.filter_bar import FilterBar
from inferwatch.ui.messages import OpenRequest
from inferwatch.ui.requests.table import RequestScope, RequestTable
from tests.inferwatch.ui.conftest import ScriptedFeed, app_on

SIZE = (160, 48)


def row(key: str, **facts: Any) -> RequestRow:
    return RequestRow(key=key, request_id=f"cmpl-{key}", **facts)


def listed(table: RequestTable, *rows: RequestRow) -> list[str]:
    table.show(rows, now_ns=0)
    return [each.key for each in table.rows]


def test_unknown_values_go_last_whichever_way_the_column_is_sorted() -> None:
    failed = row("b", state=RequestState.FAILED)
    rows = [row("a", ttft_s=0.2), failed, row("c", ttft_s=0.4)]
    table = RequestTable()

    table.sort_by("ttft")
    assert listed(table, *rows) == ["c", "a", "b"]
    table.sort_by("ttft")
    assert listed(table, *rows) == ["a", "c", "b"]


def test_what_still_waits_counts_with_the_time_it_has_waited_so_far() -> None:
    table = RequestTable()
    waits = row(
        "waits", state=RequestState.QUEUED, arrived_ns=10**9, added_ns=2 * 10**9
    )
    served = row("served", state=RequestState.FINISHED, queue_s=3.0, ttft_s=3.0)
    table.show([served, waits], now_ns=9 * 10**9)

    table.sort_by("ttft")
    assert [each.key for each in table.rows] == ["waits", "served"]
    columns = {column.key: column for column in table.columns}
    keys = ("queue", "ttft", "e2el")
    written = [str(columns[key].write(waits, 9)[0]).strip() for key in keys]
    assert written == ["7,000+", "8,000+", "8,000+"]
    for asked in ("queue>6s", "ttft>6s", "e2el>6s"):
        table.narrow(table.grammar.read(asked).filter)
        assert [each.key for each in table.rows] == ["waits"]
    table.narrow(table.grammar.read("ttft<10s").filter)
    assert [each.key for each in table.rows] == ["served"]


def test_equal_values_stand_newest_first() -> None:
    rows = [row("a", arrived_ns=1), row("b", arrived_ns=3), row("c", arrived_ns=2)]
    table = RequestTable()
    table.sort_by("preemptions")

    assert listed(table, *rows) == ["b", "c", "a"]


def test_an_arrow_tells_what_is_sorted_by() -> None:
    table = RequestTable()

    def title(key: str) -> str:
        column = next(each for each in table.columns if each.key == key)
        return table.title_of(column, column.width + 1).text

    assert title("arrived") == "id, newest↓    "
    assert title("ttft") == "  TTFT ms "
    assert title("queue") == "  queue ms "
    table.sort_by("ttft")
    assert title("ttft") == "  TTFT ms↓"
    table.sort_by("state")
    table.reverse()
    assert title("state") == " state↑       "
    assert title("reason") == "  reason   "
    table.sort_by("reason")
    assert title("reason") == "  reason↓  "


def test_the_key_cycles_through_every_column() -> None:
    table, seen = RequestTable(), []
    for _ in table.sort_keys:
        table.sort_by_next()
        seen.append(table.sorted_by)

    assert seen[:3] == ["state", "clock", "prompt"]
    assert seen[-1] == "arrived"
    assert set(seen) == {each.key for each in table.columns} - {"phases"}


@pytest.mark.parametrize(
    ("scope", "kept"),
    [
        (RequestScope.ALL, ["a", "b"]),
        (RequestScope.LIVE, ["a"]),
        (RequestScope.ENDED, ["b"]),
    ],
)
def test_a_scope_lists_live_or_ended_requests(
    scope: RequestScope, kept: list[str]
) -> None:
    rows = [
        row("a", state=RequestState.DECODE, arrived_ns=2),
        row("b", state=RequestState.FINISHED, arrived_ns=1),
    ]
    table = RequestTable()
    table.within(scope)

    assert listed(table, *rows) == kept


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        pytest.param("decode", ["a"], id="state"),
        pytest.param("CMPL-B", ["b"], id="id"),
        pytest.param("length", ["b"], id="reason"),
        pytest.param("finished length", ["b"], id="all words"),
        pytest.param("finished stop", [], id="not one of them only"),
        pytest.param("ttft>50ms out<10", ["b"], id="fields"),
        pytest.param("id:mpl-a", ["a"], id="id as a field"),
        pytest.param("itl_max>1ms", [], id="an unknown value"),
    ],
)
def test_a_filter_matches_fields_and_else_state_id_and_reason(
    words: str, kept: list[str]
) -> None:
    rows = [
        row("a", state=RequestState.DECODE),
        row(
            "b",
            state=RequestState.FINISHED,
            reason="length",
            ttft_s=0.06,
            output_tokens=4,
        ),
    ]
    table = RequestTable()
    table.narrow(table.grammar.read(words).filter)

    assert listed(table, *rows) == kept


@pytest.fixture
def app(feed: ScriptedFeed) -> InferwatchApp:
    """It begins with the list of them."""
    return app_on("requests", feed)


async def open_requests(app: InferwatchApp, pilot: Any, settle: Any) -> RequestTable:
    await settle(pilot)
    return app.screen.query_one(RequestTable)


def chosen(table: RequestTable) -> str:
    return table.rows[table.cursor].key


async def test_the_cursor_stays_on_its_request_while_rows_come_and_enter_opens_it(
    feed: Any, app: InferwatchApp, settle: Any
) -> None:
    said: list[Message] = []
    async with app.run_test(size=SIZE, message_hook=said.append) as pilot:
        table = await open_requests(app, pilot, settle)
        await pilot.press("down", "down", "down")
        before, place = chosen(table), table.cursor
        assert before == table.rows[3].key
        feed.change = _newcomers
        await settle(pilot)

        assert chosen(table) == before
        assert table.cursor == place + 5

        await pilot.press("enter")
        await settle(pilot)
        opened = [each for each in said if isinstance(each, OpenRequest)]

        assert {each.key for each in opened} == {before}
        assert app.current_mode == "request"


def _newcomers(made: Snapshot) -> Snapshot:
    if not made.requests:
        return made
    newest = made.requests[0].arrived_ns
    fresh = tuple(row(f"new {i}", arrived_ns=newest + 5 - i) for i in range(5))
    return replace(made, requests=(*fresh, *made.requests))


async def test_the_cursor_scrolls_the_table_and_the_wheel_moves_it(
    app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=(120, 24)) as pilot:
        table = await open_requests(app, pilot, settle)
        await pilot.press("pagedown", "pagedown", "pagedown")
        await settle(pilot)
        shown = table.size.height - 1

        assert table._top > 0
        assert table._top <= table.cursor < table._top + shown

        await pilot.press("ctrl+home")
        assert (table.cursor, table._top) == (0, 0)

        table.on_mouse_scroll_down()
        table.on_mouse_scroll_down()
        table.on_mouse_scroll_up()
        assert table.cursor == 3


async def test_clicks_sort_narrow_point_and_open(
    app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        table = await open_requests(app, pilot, settle)
        at = text_of(app, "RequestTable")[0].index("TTFT")
        await pilot.click(RequestTable, offset=(at + 1, 0))
        await settle(pilot)
        worst_first = [each.ttft_s for each in table.rows if each.ttft_s is not None]
        assert worst_first == sorted(worst_first, reverse=True)
        assert "TTFT ms↓" in text_of(app, "RequestTable")[0]

        await pilot.click(RequestTable, offset=(at + 1, 0))
        await settle(pilot)
        best_first = [each.ttft_s for each in table.rows if each.ttft_s is not None]
        assert best_first == sorted(best_first)

        at = text_of(app, "FilterLine")[0].index("ended")
        await pilot.click("FilterLine", offset=(at + 1, 0))
        await settle(pilot)
        assert {each.state.live for each in table.rows} == {False}

        await pilot.click(RequestTable, offset=(30, 5))
        assert table.cursor == 4
        await pilot.click(RequestTable, offset=(30, 5), times=2)
        await settle(pilot)
        assert app.session.view.opened == [table.rows[4].key]


async def test_keys_sort_reverse_and_narrow(
    app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        table = await open_requests(app, pilot, settle)
        queued = text_of(app, "RequestTable")[1]
        assert "◔ queued" in queued
        assert "290+" in queued, "what it has taken so far"

        await pilot.press("s")
        assert table.sorted_by == "state"

        await pilot.press("S")
        assert not table.descending

        await pilot.press("e")
        assert {each.state.live for each in table.rows} == {True}

        await pilot.press("e")
        assert {each.state.live for each in table.rows} == {False}


async def test_words_are_typed_kept_and_cleared(
    feed: Any, app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    feed.change = lambda made: replace(made, requests_evicted=1_440)
    async with app.run_test(size=SIZE) as pilot:
        table = await open_requests(app, pilot, settle)
        everything = len(table.rows)
        assert everything == 60
        await pilot.press("slash", *"abort", "enter")
        await settle(pilot)

        assert [each.state for each in table.rows] == [RequestState.ABORTED]
        told = " ".join(text_of(app, "FilterLine")[0].replace("\xa0", " ").split())
        assert "/ abort" in told
        assert "1 of the latest 60 of 1" in told
        assert app.focused is table

        await pilot.press("slash", "escape")
        await settle(pilot)

        assert len(table.rows) == everything
        assert not app.screen.query_one(Input).display

        await pilot.press("slash", *"abort", "enter")
        await settle(pilot)
        assert len(table.rows) == 1
        await pilot.press("escape")
        await settle(pilot)

        assert not table.filter.text
        assert len(table.rows) == everything


async def test_a_wrong_filter_says_what_would_be_right_and_keys_do_nothing_else(
    app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        table = await open_requests(app, pilot, settle)
        await pilot.press("slash", *"1 wq")
        await settle(pilot)

        assert app.current_mode == "requests"
        assert app.session.view.window is Window.MINUTE
        assert app.screen.query_one(Input).value == "1 wq"

        await pilot.press("ctrl+u", *"abort tft>1s", "enter")
        await settle(pilot)

        assert "unknown field tft: ttft" in text_of(app, "FilterRemark")[0]
        assert table.filter.text == "abort"
        assert app.screen.query_one(FilterBar).asking
        assert app.screen.query_one(Input).has_class("-wrong")

        await pilot.press("escape")
        assert not table.filter.text


async def test_what_is_offered_is_taken_with_tab(
    app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        table = await open_requests(app, pilot, settle)
        await pilot.press("slash", *"tt")
        await pilot.pause()
        await pilot.press("tab", *"100")
        await pilot.pause()
        await pilot.press("tab", "enter")
        await settle(pilot)

        assert table.filter.text == "ttft>100ms"
        assert table.rows
        waiting = (RequestState.QUEUED, RequestState.PREFILL)
        served = [each for each in table.rows if each.state not in waiting]
        assert all((each.ttft_s or 0) > 0.1 for each in served)
        assert app.focused is table


async def test_an_empty_table_says_so(
    feed: Any, app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    feed.change = lambda made: replace(made, requests=())
    async with app.run_test(size=SIZE) as pilot:
        await open_requests(app, pilot, settle)
        for keys, said in (
            ([], "no request yet"),
            (["e"], "no live request: e lists others"),
            (["/", *"zz", "enter"], "no request matches: esc clears the filter"),
        ):
            await pilot.press(*keys)
            await settle(pilot)

            assert said in text_of(app, "RequestTable")[2], keys


async def test_from_the_overview_enter_leads_to_the_slowest_and_on_to_it_alone(
    feed: Any, settle: Any
) -> None:
    feed.change = lambda made: replace(made, slowest=None)
    app = app_on("overview", feed)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot)
        table = app.screen.query_one(RequestTable)
        waits = table.rows[table.cursor]
        waiting = (RequestState.QUEUED, RequestState.PREFILL)
        assert waits.arrived_ns == min(
            each.arrived_ns for each in table.rows if each.state in waiting
        )

        await pilot.press("enter")
        await settle(pilot)

        assert app.current_mode == "request"
        assert app.session.view.opened == [waits.key]


async def test_phases_differ_without_colour_and_say_which_is_which(
    app: InferwatchApp, settle: Any, text_of: Any
) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await open_requests(app, pilot, settle)
        for width in (80, 120, 200):
            await pilot.resize_terminal(width, 40)
            await settle(pilot)

            titles, *rows = text_of(app, "RequestTable")
            assert {"░", "⣿", "█"} <= set(titles), width
            assert {"░", "█"} <= set("".join(rows)), width


async def test_a_tall_terminal_shows_the_request_pointed_at_and_charts(
    app: InferwatchApp, settle: Any, text_of: Any
) -> None:
    async with app.run_test(size=(200, 60)) as pilot:
        table = await open_requests(app, pilot, settle)
        await pilot.press("down", "down")
        await settle(pilot)

        assert chosen(table).removeprefix("demo:") == "2"
        assert table.rows[2].external_id in text_of(app, "RequestDetail")[0]
        assert "TTFT" in text_of(app, "#chart-0")[0]
