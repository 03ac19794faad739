"""``inferwatch demo`` in a terminal: it shows moving numbers and leaves nothing."""

import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.engine

GONE_S = 10.0
"""How long an engine may outlive the demo; it takes 1 to 3 s, a busy machine more."""


def gone(home: Any) -> None:
    """The engine's processes end in time."""
    _, alive = psutil.wait_procs(home.engines(), timeout=GONE_S)
    assert [" ".join(process.cmdline())[:60] for process in alive] == []


def recorded(home: Any, query: str) -> list[tuple[Any, ...]]:
    """Rows of the record."""
    with closing(sqlite3.connect(f"file:{home.database}?mode=ro", uri=True)) as record:
        return record.execute(query).fetchall()


def notes(home: Any, kind: str) -> list[str]:
    return [
        text for k, text in recorded(home, "select kind, text from notes") if k == kind
    ]


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 60)])
def test_it_shows_the_engine_and_q_leaves_nothing(
    terminal: Callable[..., Any], home: Any, columns: int, rows: int
) -> None:
    shown = terminal("demo", columns=columns, rows=rows)
    shown.shows("Overview")
    shown.shows("TTFT")
    for key, title in (("2", "Requests"), ("3", "Steps"), ("4", "KV"), ("1", "TTFT")):
        shown.press(key)
        shown.shows(title)

    shown.press("q")

    assert shown.ended(GONE_S) == 0
    assert shown.raw.rstrip().endswith(b"lists.")  # said after the screen was left
    assert b"\x1b[?1049l" in shown.raw  # the terminal is restored
    assert home.engines() == []
    assert recorded(home, "select state from sessions") == [("complete",)]
    assert recorded(home, "select * from requests where finished_ns is not null")


def test_a_killed_engine_is_named_at_once_and_r_starts_another(
    terminal: Callable[..., Any], home: Any
) -> None:
    shown = terminal("demo")
    shown.shows("tok/s")

    home.engine_core().kill()

    shown.shows("was killed by SIGKILL", seconds=GONE_S)
    shown.press("r")
    shown.shows("HEALTHY")
    shown.press("q")
    assert shown.ended(GONE_S) == 0
    assert len(notes(home, "lost")) == len(notes(home, "restarted")) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_however_the_demo_ends_its_engine_ends_too(
    terminal: Callable[..., Any], home: Any, number: signal.Signals
) -> None:
    shown = terminal("demo")
    shown.shows("tok/s")
    assert home.engines()

    os.kill(shown.child.pid, number)

    gone(home)


def test_a_terminal_that_hangs_up_takes_the_engine_along(
    terminal: Callable[..., Any], home: Any
) -> None:
    shown = terminal("demo")
    shown.shows("tok/s")

    shown.hang_up()

    gone(home)
