"""However ``inferwatch demo`` ends in its terminal, its engine ends, too."""

import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest

GONE_S = 10.0
"""How long an engine may outlive the demo; it takes 1 to 3 s, a busy machine more."""


def gone(home: Any) -> None:
    """The engine's processes end in time."""
    _, alive = psutil.wait_procs(home.engines(), timeout=GONE_S)
    assert [" ".join(process.cmdline())[:60] for process in alive] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_that_ends_the_demo_ends_its_engine(
    terminal: Callable[..., Any], home: Any, number: signal.Signals
) -> None:
    home.stand_in()
    shown = terminal("demo")
    shown.shows("tok/s")
    assert home.engines()

    os.kill(shown.child.pid, number)

    gone(home)


@pytest.mark.engine
def test_vllm_itself_ends_after_a_demo_that_was_killed(
    terminal: Callable[..., Any], home: Any
) -> None:
    shown = terminal("demo")
    shown.shows("tok/s")
    assert home.engine_core()

    os.kill(shown.child.pid, signal.SIGKILL)

    gone(home)


def test_a_terminal_that_hangs_up_takes_the_engine_along(
    terminal: Callable[..., Any], home: Any
) -> None:
    home.stand_in()
    shown = terminal("demo")
    shown.shows("tok/s")

    shown.hang_up()

    gone(home)
