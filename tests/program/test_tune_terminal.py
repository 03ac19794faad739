"""``inferwatch tune`` in a terminal: asked before it ends, its result told after."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psutil

TUNE = (
    "tune",
    "demo",
    "--vary",
    "block-size=16,32",
    "--trial",
    "1",
    "--warmup",
    "0.2",
    "--repeats",
    "1",
)
"""With a stand-in for vLLM: limits cannot be turned in it, so it is started again."""
GONE_S = 10.0


def gone(home: Any) -> None:
    """The engine's processes end in time."""
    _, alive = psutil.wait_procs(home.engines(), timeout=GONE_S)
    assert [" ".join(process.cmdline())[:60] for process in alive] == []


def test_it_is_ended_after_asking_and_its_result_is_printed(
    terminal: Callable[..., Any], home: Any
) -> None:
    home.stand_in()
    shown = terminal(*TUNE)
    shown.shows("loading")

    shown.press("q")
    shown.shows("End the tune?")
    shown.press("y")

    shown.shows("continue with `inferwatch tune --resume t")
    gone(home)


def test_its_result_stays_until_it_is_left(
    terminal: Callable[..., Any], home: Any
) -> None:
    home.stand_in()
    shown = terminal(*TUNE)

    shown.shows("q leave")
    shown.press("q")

    shown.shows("recorded as tune t")
    gone(home)


def test_a_terminal_that_hangs_up_takes_the_engine_along(
    terminal: Callable[..., Any], home: Any
) -> None:
    home.stand_in()
    shown = terminal(*TUNE)
    shown.shows("loading")
    assert home.engines()

    shown.hang_up()

    gone(home)


def test_ctrl_c_without_a_screen_tells_what_there_is(home: Any) -> None:
    home.stand_in()
    program = subprocess.Popen(
        [sys.executable, "-m", "inferwatch.cli", *TUNE, "--json"],
        env=home.environment,
        cwd=home.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stderr is not None
    for line in program.stderr:
        if "#1 " in line:
            break

    os.kill(program.pid, signal.SIGINT)
    out, err = program.communicate(timeout=60)

    assert program.returncode == 130
    found = json.loads(out)
    assert found["outcome"] == "interrupted"
    assert f"--resume {found['tune_id']}" in err
    gone(home)
