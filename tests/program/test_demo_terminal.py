"""``inferwatch demo`` in a terminal: it shows moving numbers and leaves nothing."""

import os
import signal
import sqlite3
from collections.abc import Callable
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


def finished_requests(home: Any) -> int:
    database = sqlite3.connect(f"file:{home.database}?mode=ro", uri=True)
    try:
        (count,) = database.execute("select count(*) from requests").fetchone()
    finally:
        database.close()
    return int(count)


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
    assert finished_requests(home) > 0


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

    os.close(shown.child.child_fd)
    shown.child.closed = True

    gone(home)
