"""The sessions screen: every key, every click, and what it looks like."""

import doctest
import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Label

from inferwatch.studies.compare.runs.selection import ComparisonRequest
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.compare.screen import CompareScreen
from inferwatch.ui.kit.dialogs import PromptScreen
from inferwatch.ui.messages import GoTo, OpenComparison, OpenSession
from inferwatch.ui.pages import (
    ComparePage,
    OpeningPage,
    SessionPage,
    StartPage,
    Tell,
)
from inferwatch.ui.sessions import preview
from inferwatch.ui.sessions.browser import GROWN_EVERY, SessionBrowser
from inferwatch.ui.sessions.table import SessionTable
from inferwatch.ui.view import View
from tests.inferwatch.ui.pictures import LARGE, SMALL, USUAL, Pictures, Size, named
from tests.inferwatch.ui.typed_keys import looked_up


async def looked(pilot: Pilot[Any]) -> None:
    """Everything the browser looks up has come, has its place and is drawn."""
    await looked_up(pilot)
    while not all(map(in_place, pilot.app.screen.query(SessionTable))):
        await pilot.pause(0.01)
    await pilot.pause()


def in_place(table: SessionTable) -> bool:
    """It has the height that its rows ask for, where they do."""
    asked = table.styles.height
    return asked is None or asked.cells in {None, table.size.height}


async def shown(pilot: Pilot[Any]) -> None:
    await pilot.press("8")
    await looked(pilot)


def ids(app: InferwatchApp) -> list[str]:
    table = app.screen.query_one(SessionTable)
    return [each.row.id for each in table.rows]


def told(app: Any) -> list[str]:
    return [note.message for note in app._notifications]


VIEWS: dict[str, tuple[tuple[str, ...], tuple[Size, ...]]] = {
    "sessions": ((), (SMALL, USUAL, LARGE)),
    "marked": (("m", "down", "m"), (SMALL, USUAL)),
    "bin": (("e",), (SMALL,)),
    "filter": (("slash", *"h200"), (SMALL, USUAL)),
    "rename": (("down", "R"), (SMALL,)),
    "help": (("question_mark",), (SMALL, USUAL)),
    "light": (("t",), (USUAL,)),
}


SOAKED = {"bin", "rename", "help", "light"}
"""What is in them is looked at elsewhere."""


@pytest.mark.parametrize(
    ("keys", "sizes"),
    [
        pytest.param(*view, id=name, marks=[pytest.mark.soak] * (name in SOAKED))
        for name, view in VIEWS.items()
    ],
)
def test_picture(
    pictures: Pictures,
    app: InferwatchApp,
    keys: tuple[str, ...],
    sizes: tuple[Size, ...],
) -> None:
    async def show(pilot: Pilot[Any]) -> None:
        await shown(pilot)
        app.look()
        for key in keys:
            await pilot.press(key)
        await looked(pilot)

    assert not pictures(app, named(*sizes), show)


async def test_words_and_columns_filter_while_the_preview_stays_where_it_is(
    app: InferwatchApp,
) -> None:
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot)
        table = app.screen.query_one(SessionTable)
        height = table.size.height
        everything = ids(app)
        assert height == len(table.rows) + 1

        await pilot.press("slash", *"qwen")
        assert ids(app) == ["s6", "s4"]
        await looked(pilot)
        app.screen.query_one(SessionBrowser).look()  # as every few seconds
        await looked(pilot)
        assert ids(app) == ["s6", "s4"]
        assert table.size.height == height

        await pilot.press("enter", "slash")
        app.screen.query_one(Input).value = "interr serv"
        await pilot.press("end", "e")
        assert ids(app) == []
        app.screen.query_one(Input).value = "interrX"
        await pilot.press("end", "backspace")
        assert ids(app) == ["s5"]
        await pilot.press("escape")
        assert ids(app) == everything
        assert isinstance(app.focused, SessionTable)

        def found(text: str) -> set[str]:
            reading = table.grammar.read(text)
            assert not reading.fault
            table.narrow(reading.filter)
            return set(ids(app))

        many = {each.row.id for each in table.rows if each.row.requests > 100}
        assert found("model:qwen") == {"s6", "s4"}
        assert found("state:interrupted") == found("interrupted") != set()
        assert found("state:interrupted requests>100") == found("interrupted") & many
        assert found("watched>99h") == set()


async def test_what_was_deleted_comes_back_and_what_is_recorded_is_not_deleted(
    app: InferwatchApp, value_of: Any
) -> None:
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot)
        everything = ids(app)
        undoable_at_first = "u" in app.active_bindings
        await pilot.press("d")
        await looked(pilot)
        assert value_of("deleted_ns", 12) is None
        assert "s12 is still being recorded" in told(app)[0]

        await pilot.press("down", "d")
        await looked(pilot)
        after_one = ids(app)
        await pilot.press("down", "u")
        await looked(pilot)

        back = app.screen.query_one(SessionTable).pointed
        assert back is not None
        assert back.row.id == "s11"
        assert not undoable_at_first
        assert after_one == [each for each in everything if each != "s11"]
        assert ids(app) == everything
        assert value_of("deleted_ns", 11) is None


async def test_in_the_bin_nothing_is_opened_or_deleted_and_all_can_come_back(
    app: InferwatchApp,
) -> None:
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot)
        table = app.screen.query_one(SessionTable)
        await pilot.click("FilterLine", offset=(14, 0))
        await pilot.press("enter", "d")
        await looked(pilot)
        assert app.is_running
        assert ids(app) == ["s8"]
        assert told(app) == ["it is in the bin: u restores it first"]
        assert table.size.height == len(table.rows) + 1 == 2

        await pilot.press("e")
        await looked(pilot)
        await pilot.press("end", "m", "up", "m", "d")
        await looked(pilot)
        await pilot.press("e")
        in_bin = ids(app)
        await pilot.press("end", "u")  # one of them, from the bin
        await looked(pilot)
        left_in_bin = ids(app)
        await pilot.press("e")

        assert in_bin == ["s8", "s2", "s1"]
        assert left_in_bin == ["s8", "s2"]
        assert "s1" in ids(app)
        assert "d" in app.active_bindings


def test_every_picture_belongs_to_a_test() -> None:
    """Left-over pictures would be reviewed for nothing."""
    folder = Path(__file__).parent / "__snapshots__" / "test_sessions_screen"

    assert len(list(folder.glob("*.svg"))) == sum(len(s) for _, s in VIEWS.values())


async def test_the_newest_come_first_with_what_took_looking_up_and_every_key(
    app: InferwatchApp, text_of: Any
) -> None:
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot)
        rows = [" ".join(row.split()) for row in text_of(app, "SessionTable")]
        line = text_of(app, "FilterLine")[0]
        browser = app.screen.query_one(SessionBrowser)
        unexplained = [
            binding.key
            for _, binding in browser._bindings
            if binding.show and not binding.tooltip
        ]

    assert rows[1].startswith("● s12 serve")
    assert rows[1].endswith("● recording")
    assert "1,300 308 frontend 847" in rows[9]  # its p99 is 210 + 99 ms
    assert "320 ~333 client 64.0" in rows[6]
    assert rows[7].endswith("◌ interrupted")
    assert "kept 11" in line
    assert "bin 1" in line
    assert unexplained == []


STOPS = (
    ("down", "s11"),
    ("down", "s10"),
    ("up", "s11"),
    ("end", "s1"),
    ("home", "s12"),
    ("pagedown", "s1"),
    ("pageup", "s12"),
)


async def test_the_arrows_go_from_session_to_session_in_the_order_that_is_sorted(
    app: InferwatchApp, text_of: Any
) -> None:
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot)
        for step, (key, pointed) in enumerate(STOPS):
            await pilot.press(key)
            await pilot.pause()

            line = text_of(app, "SessionLine")[0]
            assert line.startswith(f" {pointed} "), (step, key)

        await pilot.press("S")
        oldest_first = ids(app)
        await pilot.press("s")
        by_name = ids(app)
        await pilot.click(SessionTable, offset=(65, 0))  # requests
        by_requests = ids(app)

        assert oldest_first[:3] == ["s1", "s2", "s3"]
        assert by_name[0] == "s11"
        assert by_requests[:3] == ["s1", "s3", "s4"]


async def test_enter_and_a_double_click_open_a_session_but_not_the_one_in_sight(
    app: InferwatchApp, record: Path, wishes: list[GoTo]
) -> None:
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot)
        await pilot.press("enter")
        await pilot.pause()
        assert app.is_running
        assert told(app) == ["s12 is what you are watching"]
        assert wishes == []

        await pilot.press("down", "down", "enter")
        await app.arrived()
        await pilot.pause()
        assert wishes == [OpenSession(database=record, session="s10")]

        await pilot.click(SessionTable, offset=(30, 2), times=2)
        await app.arrived()
        await pilot.pause()
        assert wishes[1:] == [OpenSession(database=record, session="s11")]


async def test_what_is_marked_and_pointed_at_says_what_is_compared_with_what(
    app: InferwatchApp, record: Path, wishes: list[GoTo]
) -> None:
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot)

        async def compared(*keys: str) -> tuple[str, ...]:
            wishes.clear()
            await pilot.press(*keys, "c")
            await app.arrived()
            await pilot.pause()
            (wish,) = wishes
            assert isinstance(wish, OpenComparison)
            assert wish.database == record
            return wish.sessions

        # With none marked, with the one before of its model: s10 has none, s8 is
        # in the bin.
        assert await compared("down") == ("s9", "s11")
        # The first that was marked is what the others are held against.
        assert await compared("end", "m", "up", "up", "m") == ("s1", "s3")
        await pilot.press("escape", "home")
        # One that is marked, with the one pointed at; the left edge marks.
        await pilot.click(SessionTable, offset=(1, 2))
        assert await compared() == ("s11", "s10")


async def test_comparing_says_what_it_needs_and_escape_unmarks(
    app: InferwatchApp, text_of: Any, wishes: list[GoTo]
) -> None:
    needs = ["mark two sessions with m, then c compares them"]
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot)
        await pilot.press("c")  # what is being recorded
        await pilot.pause()
        assert told(app) == needs

        app.clear_notifications()
        # The one pointed at is the first of its model.
        await pilot.press("end", "m", "m", "escape", "c")
        await pilot.pause()
        assert app.is_running
        assert told(app) == needs
        assert "◆" not in "".join(text_of(app, "SessionTable"))
    assert wishes == []


async def test_sides_of_several_runs_are_asked_for(
    app: InferwatchApp, record: Path, wishes: list[GoTo]
) -> None:
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot)
        await pilot.press("end", "m", "up", "up", "m", "C")
        await pilot.pause()
        field = app.screen.query_one(Input)
        assert field.value == "s1 s3"
        field.value = "s1 -- s3 's9"
        await pilot.press("enter")
        assert isinstance(app.screen, PromptScreen)  # the quote does not end
        field.value = "tag:nothing s9"
        await pilot.press("enter")
        assert "has the tag 'nothing'" in str(
            app.screen.query_one("#hint", Label).content
        )
        field.value = "tag:nightly -- s1 s3"
        await pilot.press("enter")
        await pilot.pause()

    sides = ("tag:nightly", "--", "s1", "s3")
    assert wishes == [OpenComparison(database=record, sessions=sides)]


@pytest.mark.parametrize(
    "begin", ["start", pytest.param("session", marks=pytest.mark.soak)]
)
async def test_marks_are_there_when_people_come_back_from_a_comparison(
    feed: Any, record: Path, text_of: Any, begin: str
) -> None:
    def compare(wish: GoTo, tell: Tell) -> OpeningPage:
        del tell
        assert isinstance(wish, OpenComparison)
        request = ComparisonRequest(database=record, sessions=wish.sessions)
        return nullcontext(ComparePage(request))

    started = StartPage(record)
    page = started if begin == "start" else SessionPage(feed, View(database=record))
    app = InferwatchApp(page, compare)
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot)
        await pilot.press("end", "space", "up", "up", "space", "up", "up")
        before = text_of(app, "SessionTable"), text_of(app, "SessionLine")
        assert "s1, s3 marked" in before[1][1]
        await pilot.press("c")
        await app.arrived()
        await pilot.pause()
        assert isinstance(app.screen, CompareScreen)
        await pilot.press("q")
        await app.arrived()
        await looked(pilot)

        assert (text_of(app, "SessionTable"), text_of(app, "SessionLine")) == before


async def test_a_session_is_renamed_and_tagged_unless_escape_is_pressed(
    app: InferwatchApp, value_of: Any
) -> None:
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot)
        await pilot.press("end", "T", "x", "escape", "R", "x", "escape")
        await looked(pilot)
        assert value_of("tags || name", 1) == "keep h200baseline"

        await pilot.press("T")
        await pilot.pause()
        assert app.screen.query_one(Input).value == "keep h200"
        await pilot.press(*" new", "enter")
        await looked(pilot)
        assert value_of("tags", 1) == "keep h200 new"

        await pilot.press("home", "down", "R")
        await pilot.pause()
        app.screen.query_one(Input).value = "s3"
        await pilot.press("enter")
        assert isinstance(app.screen, PromptScreen)  # it would be taken for an id
        app.screen.query_one(Input).value = "  after   the fix "
        await pilot.press("enter")
        await looked(pilot)
        assert value_of("name", 11) == "after the fix"
        assert ids(app)[1] == "s11"


async def test_a_file_that_cannot_be_read_is_said_once(
    app: InferwatchApp, record: Path
) -> None:
    record.write_text("this is not a database, and long enough to be looked at" * 100)

    async with app.run_test() as pilot:
        await shown(pilot)
        app.screen.query_one(SessionBrowser).look()
        await looked(pilot)

        assert len([said for said in told(app) if str(record) in said]) == 1


async def test_the_session_under_the_cursor_is_shown_in_full_with_what_next(
    app: InferwatchApp, text_of: Any, record: Path
) -> None:
    with closing(sqlite3.connect(record)) as connection, connection:
        for session, seqs in ((10, 32), (11, 64)):
            connection.execute(
                "INSERT INTO engines (session, ordinal, source, t_ns, pid, rank, "
                "model, vllm_version, max_num_seqs) "
                "VALUES (?, 1, 0, 1, 7, 0, 'm', '0.32', ?)",
                (session, seqs),
            )

    def previewed() -> list[str]:
        return [" ".join(row.split()) for row in text_of(app, "PreviewPanel")]

    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot)
        await pilot.press(*["down"] * 6)
        for size in (USUAL, LARGE):
            await pilot.resize_terminal(*size)
            await looked(pilot)
            rows = previewed()

            assert rows[0].startswith("─ s5 demo ─"), size
            assert "12 requests · 48 steps" in rows[3], size
            assert "TTFT p99 ~144 ms · seen by frontend, n 12" in rows[4], size
            next_step = "m mark it, to compare: mark two or more, then press c"
            assert next_step in rows, size

        await pilot.press("home", "down", "m")
        await looked(pilot)
        assert "engine max_num_seqs 64 → 32" in previewed()


def test_long_numbers_of_settings_are_rounded() -> None:
    result = doctest.testmod(preview)

    assert result.attempted > 0
    assert result.failed == 0


async def test_what_our_load_sent_grows_with_the_session_that_is_recorded(
    app: InferwatchApp, text_of: Any, record: Path
) -> None:
    def send(number: int) -> None:
        with closing(sqlite3.connect(record)) as connection, connection:
            connection.execute(
                "INSERT INTO client_requests (session, ordinal, source, number, "
                "external_id, phase, intended_ns) "
                "VALUES (12, ?1, 0, ?1, ?1, 'steady', 1)",
                (1_000 + number,),
            )

    async with app.run_test(size=LARGE) as pilot:
        send(1)
        await shown(pilot)
        before = " ".join(text_of(app, "PreviewPanel"))
        send(2)
        for _ in range(GROWN_EVERY):
            app.screen.query_one(SessionBrowser).look()
            await looked(pilot)
        after = " ".join(text_of(app, "PreviewPanel"))

    assert " 1 sent by our load" in before
    assert " 2 sent by our load" in after


async def test_it_is_said_how_to_compare_before_and_after_a_mark(
    app: InferwatchApp, text_of: Any
) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await shown(pilot)
        before = text_of(app, "SessionLine")[1]
        await pilot.press("m")
        await pilot.pause()
        one = text_of(app, "SessionLine")[1]
        await pilot.press("m")
        await pilot.pause()
        two = text_of(app, "SessionLine")[1]

    assert before.startswith(" m marks, c compares")
    assert one.startswith(" ◆ s12 marked: mark another, then c compares the two")
    assert two.startswith(" ◆ s12, s11 marked: c compares them, each with s12")


async def test_counts_of_a_session_being_recorded_are_of_one_read(
    app: InferwatchApp, record: Path, text_of: Any
) -> None:
    """Not "2,020 sent" that stands still beside requests that grow."""
    async with app.run_test(size=(180, 40)) as pilot:
        await shown(pilot)
        before = "\n".join(text_of(app, "PreviewPanel"))
        assert "220 requests" in before

        with closing(sqlite3.connect(record)) as connection:
            connection.execute("UPDATE sessions SET requests = 999 WHERE session = 12")
            connection.commit()
        app.screen.query_one(SessionBrowser).look()
        await looked(pilot)

        assert "999" in "\n".join(text_of(app, "SessionTable"))
        assert "220 requests" in "\n".join(text_of(app, "PreviewPanel"))


async def test_a_small_screen_has_room_for_the_session_under_the_cursor(
    app: InferwatchApp, text_of: Any
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot)
        told_there = "\n".join(text_of(app, "PreviewPanel"))
        assert "s12" in told_there
        assert "220 requests" in told_there
        assert len(text_of(app, "SessionTable")) >= 5
