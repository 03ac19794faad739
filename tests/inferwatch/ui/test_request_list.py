"""The list of requests with every key: columns, groups, finding, the slowest."""

import re
from dataclasses import replace
from typing import Any

import pytest
from textual.message import Message
from textual.widgets._footer import FooterKey

from inferwatch.metrics.causes.cause import TTFT_CAUSES, Cause
from inferwatch.metrics.requests.request_row import RequestRow, RequestState
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.health import Health, Verdict
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.kit.column_chooser import ColumnChooser
from inferwatch.ui.kit.renderables.text import cells_of, end_of
from inferwatch.ui.kit.table import fit_chosen, share_width
from inferwatch.ui.messages import OpenRequest
from inferwatch.ui.requests.columns import (
    KEPT_LONGEST,
    RequestView,
    cause_run,
    request_columns,
)
from inferwatch.ui.requests.screen import ROUNDED_NS, step_ns
from inferwatch.ui.requests.table import GroupTable, RequestTable
from inferwatch.ui.widgets.slow_line import SlowLine, slow_words
from inferwatch.ui.widgets.status_lines import VerdictLine
from tests.inferwatch.ui.conftest import SLOWEST, ScriptedFeed, app_on

SIZE = (120, 40)
COLUMNS = tuple(request_columns(RequestView()))
RANKED = [each.key for each in COLUMNS if each.rank]


@pytest.fixture
def app(feed: ScriptedFeed) -> InferwatchApp:
    """It begins with the list of them."""
    return app_on("requests", feed)


def row(key: str, **facts: Any) -> RequestRow:
    return RequestRow(key=f"demo/{key}", request_id=f"cmpl-{key}", **facts)


def keys_of(table: RequestTable) -> list[str]:
    return [column.key for column, _ in table.sized_at(table.size.width)]


def line_of(lines: list[str]) -> str:
    return " ".join(lines[0].replace("\xa0", " ").split())


async def open_requests(pilot: Any, settle: Any) -> RequestTable:
    await settle(pilot)
    table = pilot.app.screen.query_one(RequestTable)
    assert isinstance(table, RequestTable)
    return table


# Columns.


def test_every_column_that_can_be_chosen_says_what_it_is_and_when_it_gives_way() -> (
    None
):
    assert sorted(RANKED) == sorted(KEPT_LONGEST)
    assert all(each.tells.endswith(".") for each in COLUMNS if each.rank)
    assert {each.key for each in COLUMNS if not each.rank} == {"state", "arrived"}


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 200, 400])
def test_chosen_columns_are_dropped_by_rank_and_never_cut(width: int) -> None:
    kept, without = fit_chosen(COLUMNS, RANKED, width, margin=1)
    table = RequestTable()
    table.choose(RANKED)
    sized = table.sized_at(width)

    assert {each.key for each in (*kept, *without)} == {each.key for each in COLUMNS}
    assert sum(size for _, size in sized) <= width - 1
    assert [column.key for column, _ in sized] == [each.key for each in kept]
    assert all(size >= (column.least or column.width) for column, size in sized)
    if without:
        most_kept = max(each.rank for each in kept)
        assert most_kept < min(each.rank for each in without)


async def test_a_column_is_chosen_by_key_and_stays_so_for_the_session(
    app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        table = await open_requests(pilot, settle)
        assert "cached" not in keys_of(table)
        await pilot.press("c")
        await settle(pilot)
        assert app.screen.query_one(ColumnChooser).has_focus
        at = RANKED.index("cached")
        await pilot.press(*["down"] * at, "space")
        await settle(pilot)

        assert "cached" in keys_of(table)
        assert "cached" in text_of(app, "RequestTable")[0]
        assert "found in the prefix cache" in text_of(app, "ColumnChooser")[-1]
        await pilot.press("escape")
        await settle(pilot)
        assert not app.screen.query(ColumnChooser)
        assert table.has_focus

        await pilot.press("3")
        await settle(pilot)
        await pilot.press("2")
        await settle(pilot)
        assert "cached" in keys_of(table)
        assert app.session.view.request_columns is not None


async def test_keys_and_clicks_move_among_columns_tick_them_and_give_the_usual_ones(
    app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        table = await open_requests(pilot, settle)
        usual = keys_of(table)
        await pilot.press("c")
        await settle(pilot)
        drawer = app.screen.query_one(ColumnChooser)
        rows = drawer.size.height - 2
        places = []
        for key in ("left", "up", "right", "down", "left", "end", "right", "home"):
            await pilot.press(key)
            places.append(drawer._at)

        last = len(RANKED) - 1
        assert places == [0, 0, rows, rows + 1, 1, last, last, 0]
        assert app.session.view.cursor_ns is None

        lines = text_of(app, "ColumnChooser")
        y = next(y for y, line in enumerate(lines) if "prefill" in line)
        await pilot.click(ColumnChooser, offset=(lines[y].index("prefill"), y))
        await settle(pilot)
        assert "prefill" in keys_of(table)

        await pilot.press("home", *["down"] * RANKED.index("ttft"), "enter")
        await settle(pilot)
        assert "ttft" not in keys_of(table)
        assert not app.session.view.opened

        await pilot.press("d")
        await settle(pilot)
        assert keys_of(table) == usual
        await pilot.press("c")
        await settle(pilot)
        assert not app.screen.query(ColumnChooser)


async def test_what_has_no_room_is_named_and_the_sort_key_goes_by_what_is_in_sight(
    app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        table = await open_requests(pilot, settle)
        seen = set()
        for _ in range(len(table.sort_keys)):
            await pilot.press("s")
            seen.add(table.sorted_by)
        assert seen == set(keys_of(table)) - {"phases"}

        await pilot.press("c", *["down"] * RANKED.index("cached"), "space")
        await settle(pilot)

        assert [each.key for each in table.without_room] == ["phases"]
        assert "no room for phases" in line_of(text_of(app, "FilterLine"))
        assert "/ no filter" in line_of(text_of(app, "FilterLine"))
        assert "▲ phases" in "".join(text_of(app, "ColumnChooser"))
        await pilot.resize_terminal(120, 24)
        await settle(pilot)
        assert not table.without_room
        assert "no room" not in line_of(text_of(app, "FilterLine"))


# Finding.


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ("slower than 1s", "b"),
        ("slower than 1 s", "b"),
        ("SLOWER than 1s", "b"),
        ("faster than 1s", "a"),
        ("e2el slower than 2s", "b"),
        ("queue slower than 400ms", "b"),
        ("longer than 1k", "b"),
        ("shorter than 1k", "a"),
        ("slower than 10ms longer than 1k", "b"),
        ("cause:kv", "b"),
        ("cause:queue", "b"),
        ("cause:prefill", "a"),
        ("late:long", "b"),
        ("late_by:long_prefill", "b"),
        ("lora:sql", "b"),
        ("model:tiny", "a"),
        ("priority:-1", "b"),
        ("priority>=0", "a"),
        ("class:rag", "b"),
        ("header:team", "b"),
        ("team-a", "b"),
        ("x-request-7", "b"),
        ("temperature:0.5", "b"),
        ("temp<0.4", "a"),
        ("max_tokens>100", "b"),
        ("max<100", "a"),
        ("cached>0", "b"),
        ("preemptions>0", "b"),
        ("tokens>50", "b"),
        ("itl>50ms", "b"),
        ("prefill>200ms", "b"),
    ],
)
def test_requests_are_found_by_what_is_known_of_them(asked: str, kept: str) -> None:
    table = RequestTable()
    table.know({"demo": "tiny"}, {}, str)
    done = RequestState.FINISHED
    rows = (
        row(
            "a",
            state=done,
            prompt_tokens=100,
            cached_tokens=0,
            output_tokens=5,
            max_tokens=64,
            temperature=0.1,
            ttft_s=0.2,
            queue_s=0.1,
            prefill_s=0.1,
            itl_last_s=0.01,
            e2el_s=0.5,
            cause=Cause.PREFILL,
            priority=0,
        ),
        row(
            "b",
            state=done,
            external_id="x-request-77",
            prompt_tokens=5_000,
            cached_tokens=16,
            output_tokens=99,
            max_tokens=128,
            temperature=0.5,
            ttft_s=1.2,
            queue_s=0.5,
            prefill_s=0.7,
            itl_last_s=0.1,
            e2el_s=2.5,
            preemptions=1,
            cause=Cause.QUEUE_KV,
            itl_cause=Cause.LONG_PREFILL,
            lora="sql",
            priority=-1,
            class_name="rag",
            header="team-a",
        ),
    )
    reading = table.grammar.read(asked)
    table.narrow(reading.filter)
    table.show(rows, now_ns=0)

    assert not reading.fault
    assert "".join(each.request_id[-1] for each in table.rows) == kept


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        ("slower than", "ttft> needs a time such as 50ms, 1s or 250us"),
        ("slower than 2", "2 has no unit: ttft> needs a time"),
        ("slower than fast", "fast is not a number: ttft> needs a time"),
        ("longer than 2s", "s is not a unit: prompt> needs a number"),
        (
            "cause:disk",
            "no cause is called disk: api, media, preprocessing, running",
        ),
        ("priority>high", "high is not a number: priority> needs a number"),
        ("temp>warm", "warm is not a number: temp> needs a number such as 0.7"),
    ],
)
def test_what_cannot_be_found_so_is_told_with_what_can(asked: str, fault: str) -> None:
    assert RequestTable().grammar.read(asked).fault.startswith(fault)


@pytest.mark.parametrize(
    "typed", ["sl", "slower", "slower ", "slower th", "slower than", "slower than 2"]
)
def test_a_phrase_that_is_being_typed_hides_nothing_yet(typed: str) -> None:
    reading = RequestTable().grammar.read(typed, typing=True)

    assert not reading.fault
    assert not reading.filter.text


@pytest.mark.parametrize(
    ("typed", "whole"),
    [
        ("slow", "slower than"),
        ("f3 lon", "f3 longer than"),
        ("slower t", "slower than"),
        ("cause:k", "cause:kv_blocks"),
        ("cause:queue_max_num_s", "cause:queue_max_num_seqs"),
        ("ca", "cached>"),
        ("late:m", "late:merged"),
    ],
)
def test_phrases_and_causes_are_completed(typed: str, whole: str) -> None:
    assert RequestTable().grammar.complete(typed) == whole


async def test_the_hint_teaches_and_what_was_typed_in_words_stands_as_what_it_means(
    app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        table = await open_requests(pilot, settle)
        await pilot.press("slash")
        await settle(pilot)
        assert "slower than 2s · prompt>1k" in line_of(text_of(app, "FilterRemark"))

        await pilot.press(*"late:")
        await settle(pilot)
        assert "late_by: needs long_prefill" in line_of(text_of(app, "FilterRemark"))

        await pilot.resize_terminal(*SIZE)
        await pilot.press("ctrl+u", *"slower than 200ms", "enter")
        await settle(pilot)

        assert "/ ttft>200ms" in line_of(text_of(app, "FilterLine"))
        assert 0 < len(table.rows) < 60


# Groups.


ORDER = (
    *("prompt length", "output length", "model/LoRA", "class", "header", "priority"),
    *("cause", "sampling", "time"),
)
"""What requests ask for, whose they are, what came of them, and when."""


async def test_groups_are_gone_through_and_the_list_comes_back(
    feed: Any, app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        table = await open_requests(pilot, settle)
        said = []
        for way in ORDER:
            await pilot.press("G")
            await settle(pilot)
            said.append(line_of(text_of(app, "FilterLine")))
            assert f"by {way}" in said[-1]
            assert app.screen.query_one(GroupTable).display
            assert not table.display
            if len(said) == 1:
                first, second = text_of(app, "GroupTable")[1:3]
                assert first.split()[3].startswith("~")  # a weak percentile
                assert not second.split()[3].startswith("~")
                assert second.split()[5].startswith("~")

        assert "2 groups of the 60 listed" in said[0]
        await pilot.press("G")
        await settle(pilot)
        assert table.display
        assert app.focused is table
        assert not app.screen.query_one(GroupTable).display

        feed.change = lambda made: replace(
            made,
            requests=tuple(
                replace(
                    each,
                    class_name=None,
                    header=None,
                    priority=None,
                    max_tokens=None,
                    temperature=None,
                )
                for each in made.requests
            ),
        )
        await settle(pilot)
        said = []
        for _ in range(6):
            await pilot.press("G")
            await settle(pilot)
            said.append(line_of(text_of(app, "FilterLine")))

        ways = ("prompt length", "output length", "model/LoRA", "cause", "time")
        for way, line in zip(ways, said, strict=False):
            assert f"by {way}" in line
        assert " G " not in said[5], "what no request tells is no way to group"


async def test_enter_lists_a_group_and_escape_goes_back_step_by_step(
    app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        table = await open_requests(pilot, settle)
        await pilot.press("G", "down", "enter")
        await settle(pilot)

        assert table.display
        assert len(table.rows) == 49
        assert {(each.prompt_tokens or 0) >= 128 for each in table.rows} == {True}
        assert "prompt length 128–511" in line_of(text_of(app, "FilterLine"))

        await pilot.press("slash", *"stop", "enter")
        await settle(pilot)
        assert 0 < len(table.rows) < 49
        await pilot.press("escape")
        await settle(pilot)
        groups = app.screen.query_one(GroupTable)
        assert groups.display
        assert app.focused is groups
        assert groups.cursor == 1
        assert table.filter.text == "stop"

        await pilot.press("escape")
        await settle(pilot)
        assert not table.filter.text
        assert groups.display
        await pilot.press("escape")
        await settle(pilot)
        assert table.display
        assert len(table.rows) == 60


async def test_scope_and_filter_hold_for_groups_but_no_columns_are_chosen_of_them(
    app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await open_requests(pilot, settle)
        before = {each.key: each.tooltip for each in app.screen.query(FooterKey)}
        await pilot.press("G", "c")
        await settle(pilot)

        assert not app.screen.query(ColumnChooser)
        assert "esc goes back" in str(list(app._notifications)[-1].message)
        after = {each.key: each.tooltip for each in app.screen.query(FooterKey)}
        assert before["enter"] == "Why it was slow, on a screen of its own"
        assert after == before | {"enter": "The requests of this group"}

        await pilot.press("e")
        await settle(pilot)
        groups = app.screen.query_one(GroupTable)
        assert sum(each.requests for each in groups.rows) == 18
        assert sum(each.live for each in groups.rows) == 18
        assert "of the 18 listed" in line_of(text_of(app, "FilterLine"))

        await pilot.press("e", "slash", *"cause:kv", "enter")
        await settle(pilot)
        assert {each.cause for each in groups.rows} == {Cause.QUEUE_KV}
        assert app.focused is groups


async def test_groups_are_sorted_by_key_and_click(
    app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await open_requests(pilot, settle)
        await pilot.press(*"GGG")
        await settle(pilot)
        groups = app.screen.query_one(GroupTable)
        at = text_of(app, "GroupTable")[0].index("TTFT p50")
        await pilot.click(GroupTable, offset=(at + 1, 0))
        await settle(pilot)
        worst_first = [each.ttft_s.p50 or 0 for each in groups.rows]
        assert groups.sorted_by == "p50"
        assert worst_first == sorted(worst_first, reverse=True)

        await pilot.press("S")
        assert not groups.descending
        await pilot.press("s")
        assert groups.sorted_by == "p95"


# The slowest.


@pytest.mark.parametrize(
    ("screen", "key", "size"),
    [
        ("1", "enter", (80, 24)),
        ("2", "W", (120, 40)),
        *(
            pytest.param(*each, marks=pytest.mark.soak)
            for each in (
                ("1", "enter", (120, 40)),
                ("1", "enter", (200, 60)),
                ("2", "W", (80, 24)),
                ("2", "W", (200, 60)),
            )
        ),
    ],
)
async def test_what_made_requests_slow_is_told_and_leads_to_the_worst(
    app: InferwatchApp,
    text_of: Any,
    settle: Any,
    size: tuple[int, int],
    screen: str,
    key: str,
) -> None:
    said: list[Message] = []
    async with app.run_test(size=size, message_hook=said.append) as pilot:
        await settle(pilot)
        await pilot.press(screen)
        await settle(pilot)
        where = "VerdictLine" if size[1] < 32 else "SlowLine"
        assert "KV blocks" in text_of(app, where)[0]

        await pilot.press(key)
        await settle(pilot)
        asked = [each.key for each in said if isinstance(each, OpenRequest)]
        assert set(asked) == {SLOWEST.worst_key}
        assert app.current_mode == "request"


async def test_nothing_moves_when_a_cause_becomes_known(
    feed: Any, text_of: Any, settle: Any
) -> None:
    app = app_on("overview", feed)
    async with app.run_test(size=SIZE) as pilot:
        feed.change = lambda made: replace(made, slowest=None)
        await settle(pilot)
        before = app.screen.query_one("FlowPanel").region
        assert not text_of(app, "SlowLine")[0].strip()
        feed.change = lambda made: made
        await settle(pilot)

        assert app.screen.query_one("FlowPanel").region == before
        assert text_of(app, "SlowLine")[0].strip()


async def test_where_no_cause_is_known_there_is_no_key_for_it(
    feed: Any, app: InferwatchApp, settle: Any
) -> None:
    feed.change = lambda made: replace(made, slowest=None)
    async with app.run_test(size=SIZE) as pilot:
        await open_requests(pilot, settle)
        await pilot.press("W")
        await settle(pilot)

        assert app.current_mode == "requests"


def verdict_text(verdict: Verdict, width: int, **facts: Any) -> str:
    line = VerdictLine()
    line.show(verdict, now_ns=10**10, **facts)
    return "".join(run.text for run in line.draw(width, 1)[0])


@pytest.mark.parametrize("width", range(60, 140))
def test_a_verdict_is_whole_whatever_stands_behind_it(width: int) -> None:
    verdict = Verdict(
        health=Health.QUEUEING,
        sentence="35% of the last 60 s, mostly KV blocks, then max_num_seqs; "
        "worst TTFT 3.31 s",
        since_ns=0,
    )
    alone = verdict_text(verdict, width)
    text = verdict_text(verdict, width, slow=SLOWEST, opener="enter")

    assert "35% of the last 60 s, mostly KV blocks" in text
    assert cells_of(text) <= width
    if "61%" not in text:
        assert text == alone
    if width >= 89:
        assert verdict.sentence in text
    if width >= 125:
        assert "61% of p99 TTFT" in text


@pytest.mark.parametrize("width", [72, 76, 79, 80, 84, 90])
def test_a_worst_latency_is_not_read_as_how_long_it_lasts(width: int) -> None:
    sentence = "35% of the last 60 s, mostly KV blocks; worst TTFT 3.94 s"
    verdict = Verdict(health=Health.QUEUEING, sentence=sentence, since_ns=0)

    text = verdict_text(verdict, width)

    assert re.search(r"3\.94 s( · | {8,})for 10 s", text) or "for" not in text
    assert ("for 10 s" in text) is (width >= 80)


def test_tokens_a_second_give_way_to_what_made_requests_slow() -> None:
    sentence = "6 running, none waiting, 1,672 tok/s"
    verdict = Verdict(health=Health.HEALTHY, sentence=sentence, since_ns=0)

    assert sentence in verdict_text(verdict, 80)
    said = " ".join(verdict_text(verdict, 80, slow=SLOWEST, opener="W").split())
    assert said == (
        "● HEALTHY 6 running, none waiting 61% of p99 TTFT is queueing for KV blocks"
    )


@pytest.mark.parametrize(
    ("room", "said"),
    [
        (60, "61% of p99 TTFT is queueing for KV blocks  enter why"),
        (45, "61% of p99 TTFT is queueing for KV blocks"),
        (40, "61% of p99 TTFT: queueing for KV blocks"),
        (33, "61% of p99 TTFT: queue: KV blocks"),
        (32, ""),
    ],
)
def test_the_slowest_are_told_as_fully_as_there_is_room(room: int, said: str) -> None:
    line = slow_words(SLOWEST, room, "enter")

    assert "".join(run.text for run in line) == said


def test_the_line_names_no_cause_that_would_be_none_of_it() -> None:
    few = replace(SLOWEST, is_p99=False, n=3, of=28)
    line = SlowLine("W")
    line.show(
        replace(few, groups=(*few.groups[:3], replace(few.groups[3], share=0.001)))
    )
    text = "".join(run.text for run in line.draw(200, 1)[0])

    assert text.startswith(" slowest 3 of 28 requests by cause: 61% queueing")
    assert "unknown" not in text
    assert text.rstrip().endswith("W why 1.23 s")


# What people and clients may do to it.


@pytest.mark.parametrize("room", [1, 2, 8, 13, 40, 300])
@pytest.mark.parametrize(
    "name",
    ["请求🙂" * 70 + "end", "x" * 200, "é\u0301" * 90, "\u202e\x1b[31m" * 50, "a"],
)
def test_an_id_shows_its_end_in_just_the_room_it_has(name: str, room: int) -> None:
    shown = end_of(name, room)

    assert cells_of(shown) <= room
    if room > 4:
        assert shown[-1] == end_of(name, 1_000)[-1]


async def test_long_and_wide_names_leave_every_column_where_it_is(
    feed: Any, app: InferwatchApp, text_of: Any, settle: Any
) -> None:
    def hostile(made: Any) -> Any:
        name = "请求🙂" * 66
        return replace(
            made,
            requests=tuple(
                replace(each, external_id=name, header=name, lora=name, class_name=name)
                if n % 2
                else each
                for n, each in enumerate(made.requests)
            ),
        )

    feed.change = hostile
    async with app.run_test(size=(200, 60)) as pilot:
        table = await open_requests(pilot, settle)
        app.session.view.request_columns = tuple(RANKED)
        await settle(pilot)
        for size in ((200, 60), (80, 24)):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            rows = text_of(app, "RequestTable")
            assert {cells_of(each) for each in rows} == {table.size.width}
        await pilot.press(*"GG")
        await settle(pilot)
        assert {cells_of(each) for each in text_of(app, "GroupTable")} == {80}


async def test_ten_thousand_requests_are_listed_grouped_and_found(
    feed: Any, app: InferwatchApp, settle: Any
) -> None:
    many = tuple(
        row(
            f"{n:05}",
            state=RequestState.FINISHED,
            arrived_ns=n,
            prompt_tokens=n * 10 + 1,
            ttft_s=n / 10_000,
            cause=Cause.PREFILL,
        )
        for n in range(10_000)
    )
    feed.change = lambda made: replace(made, requests=many)
    async with app.run_test(size=SIZE) as pilot:
        table = await open_requests(pilot, settle)
        assert len(table.rows) == 10_000
        await pilot.press("G")
        await settle(pilot)
        groups = app.screen.query_one(GroupTable)
        assert sum(each.requests for each in groups.rows) == 10_000
        assert groups.rows[-1].ttft_s.p99 is not None
        await pilot.press("G", "G", "escape", "slash", *"cmpl-09999", "enter")
        await settle(pilot)

        assert [each.request_id for each in table.rows] == ["cmpl-09999"]


async def test_answers_to_one_request_have_numbers_and_are_one_request(
    text_of: Any, settle: Any
) -> None:
    """Sent with ``n=4``, beside one that was sent alone."""

    def fanned_out(made: Snapshot) -> Snapshot:
        first, *others = made.requests
        rows = [
            replace(
                first,
                key=f"demo/{number}_cmpl-a-0-9b1c",
                request_id=f"{number}_cmpl-a-0-9b1c",
                external_id="cmpl-a-0",
                sequence=number,
            )
            for number in range(4)
        ]
        return replace(made, requests=(*rows, others[0]), requests_evicted=0)

    app = app_on("requests", ScriptedFeed(change=fanned_out))
    async with app.run_test(size=SIZE) as pilot:
        table = await open_requests(pilot, settle)
        listed = [table.render_line(y).text for y in range(table.size.height)]
        said = line_of(text_of(app, "FilterLine"))

    assert "5 of 5 requests, 2 as sent" in said
    for number in range(4):
        assert sum(f"a-0[{number}]" in line for line in listed) == 1


# Causes.


def test_a_cause_without_room_is_told_by_the_flag_alone() -> None:
    whole = " queue: max_num_batched_tokens"
    assert cause_run(Cause.QUEUE_TOKENS, len(whole)).text == whole
    assert cause_run(Cause.QUEUE_TOKENS, 23).text == " max_num_batched_tokens"
    assert cause_run(Cause.QUEUE_TOKENS, 22).text == " tokens"
    assert cause_run(Cause.QUEUE_SEQS, 20).text == " queue: max_num_seqs"


def test_the_column_of_causes_has_room_for_the_longest_flag_beside_the_bar() -> None:
    widths = share_width(COLUMNS, SIZE[0], RequestTable.MARGIN)
    sized = {each.key: width for each, width in widths}

    for cause in TTFT_CAUSES:
        flag = cause.value.removeprefix("queue: ")
        assert cause_run(cause, sized["cause"]).text.endswith(flag)
    assert sized["phases"] >= 8


# The step of a request.


@pytest.mark.parametrize(
    ("facts", "t_ns"),
    [
        ({"added_ns": 5, "queue_s": 2e-3, "prefill_s": 3e-3}, 5_000_005 - ROUNDED_NS),
        ({"added_ns": 5, "queue_s": 2e-3}, 2_000_005),
        ({"added_ns": 5}, None),
        ({"queue_s": 2e-3}, None),
    ],
    ids=["first token", "prefill", "queued", "from scrapes"],
)
def test_the_step_that_tells_most_of_a_request(
    facts: dict[str, Any], t_ns: int | None
) -> None:
    assert step_ns(row("a", **facts)) == t_ns


async def test_3_opens_the_step_of_a_chosen_request_and_else_the_tab(
    app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await open_requests(pilot, settle)
        await pilot.press("3")
        await settle(pilot)
        assert app.current_mode == "steps"
        assert app.session.view.cursor_ns is None

        await pilot.press("2")
        table = await open_requests(pilot, settle)
        while table.chosen_row is None or step_ns(table.chosen_row) is None:
            await pilot.press("down")
        await pilot.press("3")
        await settle(pilot)
        assert app.current_mode == "steps"
        assert app.session.view.cursor_ns == step_ns(table.chosen_row)
