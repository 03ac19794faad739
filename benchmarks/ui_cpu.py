"""Measures what drawing costs during the demo: bytes a second, and a share of one core.

Runs the real program in a real terminal that answers as terminals do, and counts CPU
seconds of its process, with recording and folding but without engine and load
generator. Compares with the same program with Textual's own output, on the same demo,
in turns.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pexpect
import psutil
from rich.console import RenderableType
from textual.app import App
from textual.screen import Screen

from inferwatch.cli.main import main as run
from inferwatch.ui.terminal.picture import Picture
from inferwatch.ui.terminal.terminal import TerminalApp, TerminalDriver

UP = b"traffic"
"""Text on Overview that is on no earlier screen."""
QUESTION, ANSWER = b"\x1b[?2026$p", b"\x1b[?2026;2$y"
SCREENS = {
    "Overview": "1",
    "Requests": "2",
    "Steps": "3",
    "KV": "4",
    "Load": "7",
    "Sessions": "8",
}
PLACES = (
    *(((120, 40), screen) for screen in SCREENS),
    ((80, 24), "Overview"),
    ((200, 60), "Overview"),
)


class Cost(NamedTuple):
    """Bytes written and CPU seconds, per second."""

    written: float
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.written / 1000:6.1f} kB/s {self.cpu_s:6.1%}"


class Terminal:
    """Runs the demo, receives what is drawn, and answers queries as terminals do."""

    def __init__(self, home: Path) -> None:
        environment = {
            **os.environ,
            "INFERWATCH_DB": str(home / "sessions.db"),
            "INFERWATCH_RUNTIME_DIR": str(home / "run"),
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
        }
        command = [__file__, "--child"]
        self.child = pexpect.spawn(
            sys.executable, command, env=environment, dimensions=(40, 120)
        )
        self.process = psutil.Process(self.child.pid)

    def take(self, seconds: float) -> bytes:
        """Act as the terminal for some seconds; returns what was drawn."""
        drawn, until = b"", time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                chunk = self.child.read_nonblocking(65536, timeout=0.2)
            except pexpect.TIMEOUT:
                continue
            queries = (drawn[-len(QUESTION) + 1 :] + chunk).count(QUESTION)
            os.write(self.child.child_fd, ANSWER * queries)
            drawn += chunk
        return drawn

    def cost(self, seconds: float) -> Cost:
        """Measure the cost of drawing over some seconds."""
        before, began = self._cpu_s(), time.monotonic()
        drawn = len(self.take(seconds))
        passed = time.monotonic() - began
        return Cost(drawn / passed, (self._cpu_s() - before) / passed)

    def _cpu_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def demo() -> Iterator[Terminal]:
    """Run the demo; yields once it is running."""
    with tempfile.TemporaryDirectory() as folder:
        terminal = Terminal(Path(folder))
        while UP not in terminal.take(1):
            pass
        terminal.take(10)
        try:
            yield terminal
        finally:
            terminal.child.send("q")
            terminal.child.expect(pexpect.EOF, timeout=15)
            terminal.child.close()


def show(terminal: Terminal, size: tuple[int, int], screen: str, seconds: float) -> str:
    """Measure a screen, and return a row of the table."""
    columns, rows = size
    terminal.child.setwinsize(rows, columns)
    costs = []
    for _ in range(2):
        terminal.child.send(SCREENS[screen])
        terminal.take(1.5)
        costs.append(terminal.cost(seconds))
        terminal.child.kill(signal.SIGUSR1)
        terminal.child.send("8" if screen == "KV" else "4")
        terminal.take(0.5)
    ours, textuals = costs
    ratio = textuals.written / max(ours.written, 1)
    return f"{columns}x{rows}  {screen:9s} {ours}   {textuals}   {ratio:5.1f}x fewer"


def child() -> None:
    """Run the demo; a signal switches between our output and Textual's own."""
    writers = deque([TerminalApp._display, App._display])

    def display(
        app: TerminalApp[None], screen: Screen[Any], drawn: RenderableType | None
    ) -> None:
        driver = app._driver
        if writers[0] is App._display and isinstance(driver, TerminalDriver):
            driver._picture = Picture()  # unknown after other output
        writers[0](app, screen, drawn)

    TerminalApp._display = display  # type: ignore[assignment, method-assign]
    signal.signal(signal.SIGUSR1, lambda *_: writers.rotate())
    sys.argv = ["inferwatch", "demo"]
    run()


def main() -> None:
    """Measure each screen, then each size, in one demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child()
        return
    print(f"{'':17s} {'ours':>19s}   {'all that Textual writes':>24s}")
    with demo() as terminal:
        for size, screen in PLACES:
            print(show(terminal, size, screen, options.seconds), flush=True)


if __name__ == "__main__":
    main()
