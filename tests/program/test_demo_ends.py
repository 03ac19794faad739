"""However ``inferwatch demo`` ends in its terminal, its engine ends, too."""

import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from tests.program.conftest import servers_of, wait_for
from tests.program.test_demo_terminal import left_by_q, notes

GONE_S = 10.0
"""How long an engine may outlive the demo; it takes 1 to 3 s, a busy machine more."""


def gone(home: Any) -> None:
    """The engine's processes end in time."""
    _, alive = psutil.wait_procs(home.engines(), timeout=GONE_S)
    assert [" ".join(process.cmdline())[:60] for process in alive] == []


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.soak),
        # A terminal that hangs up sends it.
        pytest.param(signal.SIGHUP, marks=pytest.mark.soak),
        signal.SIGKILL,
    ],
)
def test_a_signal_that_ends_the_demo_ends_its_engine(
    terminal: Callable[..., Any], home: Any, number: signal.Signals
) -> None:
    home.stand_in()
    shown = terminal("demo")
    shown.shows("tok/s")
    wait_for(lambda: servers_of(home), "an engine")

    os.kill(shown.child.pid, number)

    gone(home)


@pytest.mark.soak
@pytest.mark.engine
def test_vllm_itself_ends_after_a_demo_that_was_killed(
    terminal: Callable[..., Any], home: Any
) -> None:
    """As it does after any parent of its in test_engine_boot."""
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


@pytest.mark.parametrize(
    "real",
    [False, pytest.param(True, marks=pytest.mark.soak)],
    ids=["stand-in", "vllm"],
)
def test_r_starts_another_engine_and_q_ends_that(
    terminal: Callable[..., Any], home: Any, real: bool
) -> None:
    if not real:
        home.stand_in()
    demo = terminal("demo")
    demo.shows("tok/s")
    (killed,) = [home.engine_core()] if real else servers_of(home)
    killed.kill()
    demo.shows("was killed by SIGKILL", seconds=GONE_S)

    demo.press("r")

    wait_for(lambda: (demo.read(), servers_of(home))[1], "another one")
    wait_for(lambda: notes(home, "started")[1:], "another one answers")
    assert killed not in servers_of(home)
    demo.shows("HEALTHY" if real else "tok/s")
    assert len(notes(home, "lost")) == len(notes(home, "restarted")) == 1
    left_by_q(demo, home)
