"""The terminal stalls or goes away, with and without a word: nothing stays behind."""

import fcntl
import os
import select
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyte
import pytest

from collectors.contract.clock import NS_PER_S
from collectors.contract.runtime_dir import SOCKET_PATH_LIMIT
from embedded_engine.engine.launch import Engine
from inferwatch.sample import sample_file
from tests.program.conftest import Home, asking, wait_for

PROGRAM = [sys.executable, "-m", "inferwatch.cli"]
COLUMNS, ROWS = 120, 40
READY_S = 90.0
ENDS_S = 5.0
ENGINE_ENDS_S = 10.0
"""An idle machine needs 2 s of it, and none more than the watchdog's 8."""
PRESSED = 40
"""Pictures drawn while nobody reads; Textual alone lets 30 wait."""


class Window:
    """A terminal of our own: it can stop reading, and close with no signal sent."""

    def __init__(self, home: Any, arguments: tuple[str, ...], *, told: bool) -> None:
        self.master, self._slave = os.openpty()
        fcntl.ioctl(
            self._slave, termios.TIOCSWINSZ, struct.pack("4H", ROWS, COLUMNS, 0, 0)
        )
        take = ["setsid", "--ctty"] if told else ["setsid"]
        self.process = subprocess.Popen(
            [*take, *PROGRAM, *arguments],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env=home.environment,
            cwd=home.path,
        )
        self.program = psutil.Process(self.process.pid)
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)

    def shows(self, text: str, seconds: float = READY_S) -> None:
        """Read until the screen shows a text."""
        deadline_s = time.monotonic() + seconds
        while text not in (shown := "\n".join(self._screen.display)):
            assert time.monotonic() < deadline_s, f"{text!r} not shown:\n{shown}"
            if select.select([self.master], [], [], 0.1)[0]:
                self._stream.feed(os.read(self.master, 65536))

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self.master, keys.encode())

    def stall(self, key: str, pressed: int = 0) -> None:
        """Let it draw until the terminal takes no more, and so much more."""
        room = select.poll()
        room.register(self._slave, select.POLLOUT)
        deadline_s = time.monotonic() + READY_S
        while room.poll(0):
            assert time.monotonic() < deadline_s, "it draws nothing"
            self.press(key)
            time.sleep(0.1)  # for it to draw: keys that wait would delay the next
        for _ in range(pressed):
            self.press(key)

    def blank(self) -> None:
        """What was shown is wiped away."""
        self._screen.reset()

    def close(self) -> None:
        """Its owner dies."""
        os.close(self._slave)
        os.close(self.master)
        self.master = -1

    def end(self) -> None:
        """Leave nothing of the window; the program is for the home to find."""
        if self.master >= 0:
            self.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(ENGINE_ENDS_S)


@pytest.fixture
def window(home: Any) -> Iterator[Callable[..., Window]]:
    opened: list[Window] = []

    def start(*arguments: str, told: bool = False) -> Window:
        opened.append(Window(home, arguments, told=told))
        return opened[-1]

    yield start
    for each in opened:
        each.end()


@pytest.fixture
def recorded(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample is the only session of this home; beside it lies its copy."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(home.path / "cache"))
    shutil.copy(sample_file(), home.database)
    shutil.copy(home.database, home.path / "other.db")


def nothing_left(home: Any, seconds: float) -> None:
    deadline_s = time.monotonic() + seconds
    while left := home.processes():
        assert time.monotonic() < deadline_s, f"still there: {left}"
        time.sleep(0.05)


def session_state(home: Any) -> str:
    with closing(sqlite3.connect(home.database)) as file:
        (state,) = file.execute("SELECT state FROM sessions").fetchone()
    return str(state)


STATES = {
    "start screen": ((), "kept 1", (), "t"),
    "replay": (("replay",), "tok/s", (), "t"),
    "dialog": (("replay",), "tok/s", ("g", "Go to a time"), "x\x7f"),
    "comparison": (("compare", "s1", "other.db"), "TTFT", (), "t"),
}
"""Arguments, what shows that it is up, how to get there, what makes it draw."""


HOW = {
    "looked at": (False, False, False),
    "q pressed": (False, False, True),
    "stalled": (False, True, False),
    "stalled, q pressed": (False, True, True),
    "stalled, told by SIGHUP": (True, True, False),
}
"""Told by a signal, the terminal stalls, it is about to be left."""
PAIRS = {
    ("dialog", "looked at"),
    ("start screen", "q pressed"),
    ("comparison", "stalled"),
    ("replay", "stalled, q pressed"),
    ("start screen", "stalled, told by SIGHUP"),
}
"""Each state and each way at least once; all pairs are for a soak."""


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(
    ("state", "how"),
    [
        pytest.param(
            *(state, how), marks=() if (state, how) in PAIRS else pytest.mark.soak
        )
        for state in STATES
        for how in HOW
    ],
)
def test_a_closed_terminal_ends_it_whatever_is_shown(
    window: Callable[..., Window],
    home: Any,
    state: str,
    how: str,
) -> None:
    arguments, up, way, draws = STATES[state]
    told, stalled, leaving = HOW[how]
    shown = window(*arguments, told=told)
    shown.shows(up)
    if way:
        key, there = way
        shown.press(key)
        shown.shows(there)
    if stalled:
        shown.stall(draws, 0 if leaving else PRESSED)
    if leaving:
        shown.press("\x1bq" if way else "q")

    shown.close()

    nothing_left(home, ENDS_S)


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((), marks=pytest.mark.soak),
        ("replay",),
        pytest.param(("compare", "s1", "other.db"), marks=pytest.mark.soak),
    ],
)
def test_a_terminal_that_is_gone_at_once_ends_it(
    window: Callable[..., Window], home: Any, arguments: tuple[str, ...]
) -> None:
    shown = window(*arguments)
    assert os.read(shown.master, 1)  # it has begun to draw

    shown.close()

    nothing_left(home, ENDS_S)


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("how", ["q", "SIGTERM"])
def test_it_is_left_although_the_terminal_takes_nothing_more(
    window: Callable[..., Window], home: Any, how: str
) -> None:
    shown = window("replay")
    shown.shows("tok/s")
    shown.stall("t")

    if how == "q":
        shown.press("q")
    else:
        shown.program.send_signal(signal.SIGTERM)

    nothing_left(home, ENDS_S)


@pytest.mark.usefixtures("recorded")
def test_a_terminal_that_takes_pictures_again_gets_a_whole_one(
    window: Callable[..., Window],
) -> None:
    shown = window("replay")
    shown.shows("tok/s")
    shown.stall("t", PRESSED)
    shown.blank()

    shown.shows("tok/s", ENDS_S)
    shown.shows("replay s1", ENDS_S)


@pytest.mark.engine
@pytest.mark.parametrize(
    "stalled",
    [
        pytest.param(True, id="stalled"),
        pytest.param(False, id="read", marks=pytest.mark.soak),
    ],
)
def test_a_terminal_that_is_closed_while_vllm_starts_takes_it_along(
    window: Callable[..., Window], home: Any, *, stalled: bool
) -> None:
    shown = window("demo")
    shown.shows("process up")
    if stalled:
        shown.stall("t", PRESSED)
    assert home.engines()

    shown.close()

    nothing_left(home, ENGINE_ENDS_S)
    assert session_state(home) == "complete"


@pytest.mark.parametrize(
    ("state", "stalled"),
    [
        pytest.param("dashboard", True, id="dashboard-stalled"),
        pytest.param("dialog", False, id="dialog-read", marks=pytest.mark.soak),
        pytest.param("leaving", True, id="leaving-stalled", marks=pytest.mark.soak),
        # test_demo_ends has it, too.
        pytest.param("dashboard", False, id="dashboard-read", marks=pytest.mark.soak),
        pytest.param("dialog", True, id="dialog-stalled", marks=pytest.mark.soak),
        pytest.param("leaving", False, id="leaving-read", marks=pytest.mark.soak),
    ],
)
def test_a_closed_terminal_takes_the_demo_and_its_engine_along(
    window: Callable[..., Window], home: Any, *, state: str, stalled: bool
) -> None:
    home.stand_in()
    shown = window("demo")
    shown.shows("tok/s")
    draws = "t"
    if state == "dialog":
        shown.press("b")
        shown.shows("Bookmark")
        draws = "x\x7f"
    if stalled:
        shown.stall(draws, 0 if state == "leaving" else PRESSED)
    if state == "leaving":
        shown.press("q")
    assert home.engines()

    shown.close()

    nothing_left(home, ENGINE_ENDS_S)
    assert session_state(home) == "complete"


def goes_on(database: Path, seconds: float) -> None:
    """So much more is recorded."""

    def steps_ns() -> int:
        with closing(sqlite3.connect(database)) as file:
            (end_ns,) = file.execute("SELECT max(end_ns) FROM steps").fetchone()
        return int(end_ns or 0)

    until_ns = steps_ns() + seconds * NS_PER_S
    wait_for(lambda: steps_ns() >= until_ns, "the recording goes on", READY_S)


@pytest.mark.engine
@pytest.mark.xdist_group("shared engine")
def test_a_stalled_terminal_holds_up_no_recording_and_no_engine(
    engine: Engine, beside: Home
) -> None:
    shown = Window(beside, (), told=False)
    try:
        shown.shows("IDLE")
        with asking(engine, clients=2, tokens=100):
            shown.shows("HEALTHY")
            shown.stall("t", PRESSED)
            goes_on(beside.database, 2)

            shown.close()

            psutil.wait_procs([shown.program], timeout=ENDS_S)
        assert not shown.program.is_running()
        assert session_state(beside) == "complete"
        assert httpx.get(f"{engine.url}/health", trust_env=False).is_success
    finally:
        shown.end()


@pytest.mark.soak
@pytest.mark.engine
def test_a_stalled_terminal_holds_up_no_recording_and_takes_vllm_along(
    window: Callable[..., Window], home: Any
) -> None:
    shown = window("demo")
    shown.shows("tok/s")
    shown.stall("t", PRESSED)
    goes_on(home.database, 3)
    assert home.engine_core()

    shown.close()

    nothing_left(home, ENGINE_ENDS_S)
    assert session_state(home) == "complete"


@pytest.mark.parametrize(
    "stalled",
    [
        pytest.param(True, id="stalled"),
        pytest.param(False, id="read", marks=pytest.mark.soak),
    ],
)
def test_a_served_engine_outlives_a_closed_terminal_until_it_is_stopped(
    window: Callable[..., Window], home: Any, tmp_path: Path, *, stalled: bool
) -> None:
    """That vLLM itself does stands in test_load_terminal."""
    home.stand_in()
    uds = str(tmp_path / "engine.sock")
    assert len(uds) < SOCKET_PATH_LIMIT
    (tmp_path / "config.json").write_text("{}")
    shown = window("serve", str(tmp_path), "--uds", uds)
    shown.shows("1 Overview")  # it is up: before that it would end with us
    if stalled:
        shown.stall("t")

    shown.close()

    psutil.wait_procs([shown.program], timeout=ENDS_S)
    assert not shown.program.is_running()
    transport = httpx.HTTPTransport(uds=uds)
    with httpx.Client(transport=transport, base_url="http://localhost") as client:
        assert client.get("/health").status_code == httpx.codes.OK
    assert session_state(home) == "complete"

    found = window()
    found.shows("1 Overview")
    found.press("Q")
    found.shows("Stop the engine?")
    found.press("y")
    nothing_left(home, ENGINE_ENDS_S)
    assert found.process.wait() == 0
