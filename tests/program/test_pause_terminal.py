"""A live demo is paused, gone back through and returned to, in a terminal."""

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

pytestmark = pytest.mark.engine


def behind_s(shown: Any) -> int:
    """How far, as the header says; 0 when it is live."""
    found = re.search(r"‖ (\d+) s behind", shown.read())
    return int(found[1]) if found else 0


def test_a_live_demo_is_held_scrubbed_and_followed_again(
    terminal: Callable[..., Any], home: Any
) -> None:
    shown = terminal("demo")
    shown.shows("tok/s")

    shown.press(" ")
    shown.shows("‖ paused")
    shown.shows("2 s behind")
    shown.press("[")
    shown.shows("n N next")
    shown.press("b")
    shown.shows("Bookmark at")
    shown.press("held\r")
    shown.shows("◆ held")
    assert behind_s(shown) > 2
    shown.press("\x1b[F")  # end
    shown.shows("space pause")

    assert behind_s(shown) == 0
    shown.press("q")
    assert shown.ended(30) == 0
    with closing(sqlite3.connect(home.database)) as file:
        assert file.execute("SELECT text FROM bookmarks").fetchall() == [("held",)]
        (state,) = file.execute("SELECT state FROM sessions").fetchone()
    assert state == "complete"
