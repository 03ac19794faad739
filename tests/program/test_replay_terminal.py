"""``inferwatch replay`` in a terminal: keys, going elsewhere and back, the mouse."""

import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from inferwatch.record.writing.recorder import Recorder
from inferwatch.sample import sample_file

SOON_S = 20.0


@pytest.fixture
def recorded(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample is the only session of this home."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(home.path / "cache"))
    shutil.copy(sample_file(), home.database)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.05)


def clock_of(shown: Any) -> str:
    """The moment shown, as the time line says."""
    found = re.search(r"(?:paused|playing) +(\d\d:\d\d:\d\d)", shown.read())
    return found[1] if found else ""


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        (80, 24),
        pytest.param(120, 40, marks=pytest.mark.soak),
        pytest.param(200, 60, marks=pytest.mark.soak),
    ],
)
def test_a_session_is_played_scrubbed_and_marked(
    terminal: Callable[..., Any], home: Any, columns: int, rows: int
) -> None:
    shown = terminal("replay", columns=columns, rows=rows)
    shown.shows("‖ paused", SOON_S)
    shown.shows("tok/s", SOON_S)
    shown.shows("replay s1", SOON_S)
    wait_until(lambda: re.search(r" (\d:\d\d) of \1 ", shown.read()) is not None)
    end = clock_of(shown)

    shown.press("[")
    shown.press("g")
    shown.shows("Go to a time", SOON_S)
    shown.press("50%\r")
    wait_until(lambda: "" < clock_of(shown) < end)

    shown.press("b")
    shown.shows("Bookmark at", SOON_S)
    shown.press("half time\r")
    shown.shows("◆ half time", SOON_S)
    shown.press(" ")
    shown.shows("▶ playing", SOON_S)
    shown.press(" ")
    shown.shows("‖ paused", SOON_S)
    shown.press("q")

    assert shown.ended(SOON_S) == 0
    with closing(sqlite3.connect(home.database)) as file:
        assert file.execute("SELECT text FROM bookmarks").fetchall() == [("half time",)]


@pytest.mark.usefixtures("recorded")
def test_a_session_opened_from_the_list_leads_back(
    terminal: Callable[..., Any], home: Any
) -> None:
    Recorder.open(home.database, name="empty").close()
    shown = terminal("replay", "s1")
    shown.shows("q quit", SOON_S)
    shown.press("8")
    shown.shows("kept 2", SOON_S)
    shown.press("\r")  # the newest
    shown.shows("q back", SOON_S)
    shown.shows("replay s2", SOON_S)

    shown.press("q")
    shown.shows("kept 2", SOON_S)  # where we came from
    shown.shows("q quit", SOON_S)
    shown.press("q")

    assert shown.ended(SOON_S) == 0


def test_a_session_that_is_not_there_is_said_and_nothing_is_shown(
    terminal: Callable[..., Any], recorded: None
) -> None:
    shown = terminal("replay", "s9")

    assert shown.ended(SOON_S) == 2
    assert b"`inferwatch sessions` lists them" in shown.raw


def test_the_sample_plays_from_where_its_load_began(
    terminal: Callable[..., Any],
) -> None:
    shown = terminal("demo", "--sample")

    shown.shows("▶ playing", SOON_S)
    shown.shows("HEALTHY", SOON_S)
    shown.press("q")

    assert shown.ended(SOON_S) == 0
