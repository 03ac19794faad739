"""Measures what watching many servers costs, as a share of one core.

Runs the real program in a real terminal, attached to local servers that answer with a
real scrape of 60 kB whose counters grow: scraping, folding, recording and the Fleet
screen. Counts CPU seconds of that process alone, without the servers.

    python benchmarks/fleet.py            64 servers at 1 Hz, 256 every 5 s
    python benchmarks/fleet.py --servers 8 --every 1
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pexpect
import psutil

SCRAPE = Path("tests/collectors/servers/families/scrapes/vllm_0.32.0.txt")
COUNTED = re.compile(r"_(?:total|bucket|count|sum)(?:\{[^}]*\})? [0-9.e+]+$")
GROWS_S = 60.0
"""Seconds in which counters double."""
MODELS = {"object": "list", "data": [{"id": "llama", "owned_by": "vllm"}]}
QUESTION, ANSWER = b"\x1b[?2026$p", b"\x1b[?2026;2$y"
LIMITS = {(64, 1.0): 0.15}
"""Largest share of one core, by number of servers and scrape interval."""


class MovingBody:
    """A scrape whose counters grow with time; rebuilt four times a second."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._counted = [bool(COUNTED.search(line)) for line in self._lines]
        self._made: tuple[int, bytes] = (-1, b"")

    def now(self) -> bytes:
        quarter = int(time.monotonic() * 4)
        if quarter != self._made[0]:
            grown = 1 + time.monotonic() % 86_400 / GROWS_S
            lines = (
                _grown(line, grown) if counted else line
                for line, counted in zip(self._lines, self._counted, strict=True)
            )
            self._made = quarter, "\n".join([*lines, ""]).encode()
        return self._made[1]


def _grown(line: str, by: float) -> str:
    name, _, value = line.rpartition(" ")
    number = float(value)
    return f"{name} {number * by if '_sum' in name else int(number * by)}"


async def meet(
    bodies: MovingBody, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the requests of one client."""
    try:
        while head := (await reader.readuntil(b"\r\n\r\n")).decode():
            path = head.split()[1]
            kind, body = "text/plain; version=0.0.4", bodies.now()
            if path != "/metrics":
                kind, body = "application/json", json.dumps(MODELS).encode()
            head_lines = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n"
            head_lines += f"content-length: {len(body)}\r\n\r\n"
            writer.write(head_lines.encode() + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def serve(count: int, bodies: MovingBody) -> None:
    """Listen on ``count`` ports until the process is killed."""
    servers = [
        await asyncio.start_server(partial(meet, bodies), "127.0.0.1", 0)
        for _ in range(count)
    ]
    print(*(each.sockets[0].getsockname()[1] for each in servers), flush=True)
    await asyncio.Event().wait()


@contextmanager
def servers(count: int) -> Iterator[list[str]]:
    """Run ``count`` servers in another process; yields their URLs."""
    command = [sys.executable, __file__, "--serve", str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            ports = process.stdout.readline().split() if process.stdout else []
            yield [f"http://127.0.0.1:{port}" for port in ports]
        finally:
            process.kill()


class Share(NamedTuple):
    """Shares of one core, in user and system time, and bytes drawn per second."""

    own: float
    system: float
    drawn: float
    """Bytes per second."""

    def __str__(self) -> str:
        return (
            f"{self.own + self.system:6.1%} (system {self.system:5.1%})"
            f" {self.drawn / 1e3:4.1f} kB/s"
        )


class Program:
    """``inferwatch attach`` in a terminal that answers as terminals do."""

    def __init__(self, urls: list[str], every_s: float, home: Path) -> None:
        environment = {
            **os.environ,
            "INFERWATCH_DB": str(home / "sessions.db"),
            "INFERWATCH_RUNTIME_DIR": str(home / "run"),
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
        }
        command = ["-m", "inferwatch", "attach", *urls, "--every", str(every_s)]
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

    def share(self, seconds: float) -> Share:
        """Measure the share of one core over some seconds."""
        before, began = self.process.cpu_times(), time.monotonic()
        drawn = len(self.take(seconds))
        passed, after = time.monotonic() - began, self.process.cpu_times()
        return Share(
            own=(after.user - before.user) / passed,
            system=(after.system - before.system) / passed,
            drawn=drawn / passed,
        )

    def leave(self) -> None:
        """Quit with the key that users press."""
        self.child.send("q")
        self.child.expect(pexpect.EOF, timeout=20)
        self.child.close()


def measure(count: int, every_s: float, seconds: float) -> None:
    """Print a row of the table."""
    with tempfile.TemporaryDirectory() as folder, servers(count) as urls:
        program = Program(urls, every_s, Path(folder))
        try:
            while b"all" not in program.take(1):
                pass
            program.take(max(3 * every_s, 8))
            shares = {}
            for key, screen in (("0", "Fleet"), ("1", "Overview"), ("8", "Sessions")):
                program.child.send(key)
                program.take(2)
                shares[screen] = program.share(seconds)
            rss = program.process.memory_info().rss / 1e6
        finally:
            program.leave()
        size = sum(each.stat().st_size for each in Path(folder).rglob("*.db*"))
    limit = LIMITS.get((count, every_s))
    text = "  ".join(f"{screen} {share}" for screen, share in shares.items())
    aim = f"  (aim {limit:.0%})" if limit else ""
    print(f"{count:4} servers every {every_s:g} s: {text}{aim}", flush=True)
    print(f"     {rss:.0f} MB of memory, {size / 1e6:.1f} MB recorded")


def main() -> None:
    """Measure the two standard fleets, or the one given by options."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--servers", type=int)
    parser.add_argument("--every", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve, MovingBody(SCRAPE.read_text("utf-8"))))
    elif options.servers:
        measure(options.servers, options.every, options.seconds)
    else:
        measure(64, 1.0, options.seconds)
        measure(256, 5.0, options.seconds)


if __name__ == "__main__":
    main()
