"""The program as people start it: real processes, a real terminal, a real engine."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import httpx
import pexpect
import psutil
import pyte
import pytest

from collectors.contract.clock import SessionClock
from embedded_engine.engine.launch import Engine
from inferwatch.live.engine.engine_session import EngineSession
from inferwatch.live.engine_source import FoundEngine
from inferwatch.live.load.load_desk import MakeLoad
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model

PROGRAM = [sys.executable, "-m", "inferwatch.cli"]
STAND_IN = Path(__file__).parent / "stand_in"
DEADLINE_S = 90.0
"""For anything an engine must do on a busy machine; an idle one needs 20 s."""
LONGEST_READ_S = 0.5
GRACE_S = 5.0
"""What is about to end by itself is given so long."""


def wait_for(what: Callable[[], object], why: str, seconds: float = DEADLINE_S) -> None:
    """Poll until it holds, or fail saying why."""
    deadline_s = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline_s, f"not within {seconds} s: {why}"
        time.sleep(0.05)


async def until(
    holds: Callable[[], object], why: str, seconds: float = DEADLINE_S
) -> None:
    """As :func:`wait_for`, while others of the same loop go on."""
    deadline_s = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {seconds} s: {why}"
        await asyncio.sleep(0.05)


class Home:
    """A place of its own for one test's program: record, sockets, logs, processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = path / "sessions.db"
        self.runtime_dir = path / "run"
        self._seen: set[psutil.Process] = set()
        self.environment = {
            **os.environ,
            "INFERWATCH_DB": str(self.database),
            "INFERWATCH_RUNTIME_DIR": str(self.runtime_dir),
            "XDG_STATE_HOME": str(path / "state"),
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "LANG": "C.UTF-8",
        }

    def stand_in(self) -> None:
        """Engines are not vLLM from now on, but up within a second."""
        self.environment["PYTHONPATH"] = str(STAND_IN)

    def processes(self) -> list[psutil.Process]:
        """Living processes that were started with this home, ours or vLLM's.

        A process that renames itself, as EngineCore does, overwrites its environment:
        it is known as a child of one that did not, and remembered.
        """
        found = [each for each in psutil.process_iter() if self._owns(each)]
        for each in found:
            with suppress(psutil.Error):
                self._seen.update(each.children(recursive=True))
        self._seen.update(found)
        return [each for each in self._seen if alive(each)]

    def engines(self) -> list[psutil.Process]:
        """Those of them that are the engine's; the program is a child of ours."""
        return [each for each in self.processes() if not is_program(each)]

    def engine_core(self) -> psutil.Process:
        """The process with the scheduler."""
        (core,) = [p for p in self.engines() if "VLLM::EngineCore" in p.cmdline()]
        return core

    def _owns(self, process: psutil.Process) -> bool:
        try:
            runtime_dir = process.environ().get("INFERWATCH_RUNTIME_DIR")
        except psutil.Error:
            return False
        return runtime_dir == str(self.runtime_dir)


def servers_of(home: Home) -> list[psutil.Process]:
    """Processes of an engine, be it vLLM or what stands in for it."""
    return [p for p in home.engines() if "embedded_engine.worker" in p.cmdline()]


def is_program(process: psutil.Process) -> bool:
    """It is ours, or ending just now: only who started a process may wait for it."""
    try:
        ours = process.ppid() == os.getpid()
        return ours or "inferwatch.cli" in process.cmdline()
    except psutil.Error:
        return True


def alive(process: psutil.Process) -> bool:
    """Running, and not merely unburied."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Terminal:
    """The program in a terminal of a given size, and what that terminal shows."""

    def __init__(
        self, home: Home, arguments: list[str], columns: int, rows: int
    ) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.child = pexpect.spawn(
            PROGRAM[0],
            [*PROGRAM[1:], *arguments],
            env=home.environment,
            dimensions=(rows, columns),
            timeout=1,
        )
        self.raw = b""

    def read(self) -> str:
        """Take what was drawn since; the whole screen as text.

        One that never stops drawing is looked at all the same.
        """
        until_s = time.monotonic() + LONGEST_READ_S
        try:
            while time.monotonic() < until_s:
                drawn = self.child.read_nonblocking(65536, timeout=0.05)
                self.raw += drawn
                self._stream.feed(drawn)
        except (pexpect.TIMEOUT, pexpect.EOF):
            pass
        return "\n".join(self.screen.display)

    def shows(self, text: str, seconds: float = DEADLINE_S) -> None:
        """Wait until the screen shows a text."""
        deadline_s = time.monotonic() + seconds
        while text not in self.read():
            late = time.monotonic() > deadline_s
            assert not late, f"{text!r} not shown:\n" + "\n".join(self.screen.display)

    def press(self, keys: str) -> None:
        """Type keys."""
        self.child.send(keys)

    def resize(self, columns: int, rows: int) -> None:
        """Make the window larger or smaller; what was in it must be drawn anew."""
        if (self.screen.columns, self.screen.lines) == (columns, rows):
            return
        self.screen.resize(rows, columns)
        self.screen.reset()
        self.child.setwinsize(rows, columns)

    def hang_up(self) -> None:
        """Close the window without a word."""
        self.child.ptyproc.fileobj.close()

    def ended(self, seconds: float) -> int:
        """Wait for the program's end; its exit status."""
        wait_for(lambda: (self.read(), not self.child.isalive())[1], "exit", seconds)
        self.child.close()
        return int(self.child.exitstatus if self.child.exitstatus is not None else -1)


@contextmanager
def home_at(path: Path) -> Iterator[Home]:
    """A home; what is left running in it at the end is killed, and the test fails."""
    home = Home(path)
    yield home
    _, left = psutil.wait_procs(home.processes(), timeout=GRACE_S)
    names = [" ".join(process.cmdline())[:80] for process in left]
    for process in left:
        process.kill()
    assert names == []


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home for one test."""
    with home_at(tmp_path) as home:
        yield home


@pytest.fixture
def terminal(home: Home) -> Iterator[Callable[..., Terminal]]:
    """Starts the program in a terminal: ``terminal("demo", columns=80, rows=24)``."""
    started: list[Terminal] = []

    def start(*arguments: str, columns: int = 120, rows: int = 40) -> Terminal:
        started.append(Terminal(home, list(arguments), columns, rows))
        return started[-1]

    yield start
    for each in started:
        each.child.close(force=True)


@pytest.fixture
def beside(engine: Engine, shared_home: Path, tmp_path: Path) -> Iterator[Home]:
    """A home with a record of its own, in which our program finds the shared engine."""
    home = Home(tmp_path)
    home.runtime_dir = shared_home / "run"
    home.environment["INFERWATCH_RUNTIME_DIR"] = str(home.runtime_dir)
    before = set(home.processes())
    yield home
    started = set(home.processes()) - before
    _, left = psutil.wait_procs(started, timeout=GRACE_S)
    names = [" ".join(process.cmdline())[:80] for process in left]
    for process in left:
        process.kill()
    assert names == []


@asynccontextmanager
async def adopted(
    engine: Engine,
    load: MakeLoad | None = None,
    *,
    clock: SessionClock | None = None,
    pipeline: Pipeline | None = None,
) -> AsyncIterator[EngineSession]:
    """A watch of the shared engine, as ``inferwatch`` finds one that is served."""
    clock = clock or SessionClock()
    source = FoundEngine.of(engine.engine_id)
    watch = EngineSession(clock, pipeline or Pipeline(Model()), source, load)
    watching = asyncio.create_task(watch.run())
    try:
        await asyncio.wait_for(watch.live.wait(), DEADLINE_S)
        yield watch
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


@contextmanager
def asking(engine: Engine, clients: int, tokens: int) -> Iterator[None]:
    """So many clients that ask again as soon as they are answered."""
    enough = Event()
    body = {
        "model": engine.endpoint.model,
        "prompt": [300] * 20,
        "max_tokens": tokens,
        "ignore_eos": True,
    }

    def client() -> None:
        with httpx.Client(
            base_url=str(engine.url), timeout=DEADLINE_S, trust_env=False
        ) as http:
            while not enough.is_set():
                http.post("/v1/completions", json=body).raise_for_status()

    with ThreadPoolExecutor(clients) as pool:
        asked = [pool.submit(client) for _ in range(clients)]
        try:
            yield
        finally:
            enough.set()
            for each in asked:
                each.result()


SLO = "ttft_s<0.025 e2el_s<0.8"
"""The demo's load is too much for this."""


@dataclass(frozen=True)
class HeadlessDemo:
    """What is left of one that has ended."""

    home: Path
    done: subprocess.CompletedProcess[str]
    engines: list[psutil.Process]
    """Which should have ended, too."""


@pytest.fixture(scope="session")
def headless_demo(tmp_path_factory: pytest.TempPathFactory) -> HeadlessDemo:
    """``inferwatch demo --json`` on real vLLM, once for all: group "headless demo"."""
    home = Home(tmp_path_factory.mktemp("demo"))
    done = subprocess.run(
        [
            *(*PROGRAM, "demo", "--json", "--duration", "12"),
            *("--slo", SLO, "--gpu-hour", "0.5"),
        ],
        env=home.environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    return HeadlessDemo(home.path, done, home.processes())
