"""``inferwatch demo`` in a terminal, from its start to its end: one demo for all tests.

They go on from one another, in this order; each can also be the first or the only one.
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.program.conftest import Home, Terminal, home_at, wait_for

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("demo in a terminal")]

GONE_S = 10.0
"""How long an engine may outlive the demo; it takes 1 to 3 s, a busy machine more."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """The demo's."""
    with home_at(tmp_path_factory.mktemp("demo")) as home:
        yield home


@pytest.fixture(scope="module")
def demo(home: Home) -> Iterator[Terminal]:
    """A demo that is up."""
    for name in ("COLUMNS", "LINES"):  # of a runner: its size would be kept
        home.environment.pop(name, None)
    demo = Terminal(home, ["demo"], 80, 24)
    demo.shows("Overview")
    demo.shows("tok/s")
    yield demo
    demo.child.close(force=True)


def recorded(home: Home, query: str) -> list[tuple[Any, ...]]:
    """Rows of the record."""
    with closing(sqlite3.connect(f"file:{home.database}?mode=ro", uri=True)) as record:
        return record.execute(query).fetchall()


def notes(home: Home, kind: str) -> list[str]:
    return [
        text for k, text in recorded(home, "select kind, text from notes") if k == kind
    ]


def behind_s(demo: Terminal) -> int:
    """How far, as the header says; 0 when it is live."""
    found = re.search(r"‖ (\d+) s behind", demo.read())
    return int(found[1]) if found else 0


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 60), (120, 40)])
def test_each_screen_is_shown_at_every_size(
    demo: Terminal, columns: int, rows: int
) -> None:
    demo.resize(columns, rows)

    for key, title in (
        ("2", "newest"),
        ("3", "steps of the last"),
        ("4", "block map"),
        ("5", "memory traffic"),
        ("1", "traffic ─"),
    ):  # no screen but that one shows it
        demo.press(key)
        demo.shows(title)
    assert "quit" in demo.screen.display[rows - 1][:columns]


def test_a_live_demo_is_held_scrubbed_and_followed_again(
    demo: Terminal, home: Home
) -> None:
    demo.resize(120, 40)
    demo.press(" ")
    demo.shows("‖ paused")
    demo.shows("2 s behind")
    demo.press("[")
    demo.shows("end live")
    demo.press("b")
    demo.shows("Bookmark at")
    demo.press("held\r")
    demo.shows("bookmarked: held")
    assert behind_s(demo) > 2
    demo.press("\x1b[F")  # end
    demo.shows("space pause")

    assert behind_s(demo) == 0
    assert recorded(home, "select text from bookmarks") == [("held",)]


def test_a_killed_engine_is_named_at_once(demo: Terminal, home: Home) -> None:
    home.engine_core().kill()

    demo.shows("was killed by SIGKILL", seconds=GONE_S)
    wait_for(lambda: notes(home, "lost"), "it is recorded", GONE_S)
    assert len(notes(home, "lost")) == 1


def test_q_leaves_nothing_but_the_record(demo: Terminal, home: Home) -> None:
    left_by_q(demo, home, status=3)  # its engine was lost
    assert recorded(home, "select * from requests where finished_ns is not null")


def left_by_q(demo: Terminal, home: Home, status: int = 0) -> None:
    """It is left as it was found, and no process stays."""
    demo.press("q")

    assert demo.ended(GONE_S) == status
    assert b"\x1b[?1049l" in demo.raw  # the terminal is restored
    said = demo.raw.rpartition(b"\x1b[?1049l")[2].rstrip()
    assert b"opens it again." in said
    if not status:  # else it ends with the engine's log
        assert said.endswith(b"opens it again.")
    assert home.engines() == []
    assert recorded(home, "select state from sessions") == [("complete",)]
