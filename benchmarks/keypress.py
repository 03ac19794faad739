"""Measures how long a key takes to show on Requests, while hundreds of rows change.

Runs the real program on a real terminal that answers as terminals do, and measures from
when a key is typed until the terminal has received the whole picture drawn after the
key's action. The engine is simulated: a Model folds its readings in the same process,
as in a session. The limit is 60 ms for 95 of 100 keys.
"""

import argparse
import asyncio
import os
import re
import select
import sys
import time
from collections import deque
from collections.abc import Sequence
from random import Random
from statistics import quantiles
from typing import Any

import pexpect
from textual.app import App

from collectors.contract.readings import (
    EngineInfo,
    EventKind,
    RequestEvent,
    Step,
    Vantage,
)
from inferwatch.feed import FeedState
from inferwatch.formatting import wall_clock
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import SessionPage
from inferwatch.ui.terminal.terminal import TerminalDriver
from tests.inferwatch.ui.conftest import NothingRecalled

S = 1_000_000_000
ENGINE = "engine-1"
TICKS_PER_S = 50
LIMIT_S = 0.060
QUESTION, ANSWER = b"\x1b[?2026$p", b"\x1b[?2026;2$y"
MARK = re.compile(rb"\x1b\]777;(\d+)\x07")
"""Follows each picture: the number of keys handled when it was drawn."""
KEYS = {
    "row down": "\x1b[B",
    "page down": "\x1b[6~",
    "sort": "s",
    "live or ended": "e",
    "group": "G",
}


class MadeUpEngine:
    """Simulates requests that arrive, run and end, at a constant number of changes."""

    def __init__(self, rows: int, changes_per_s: int, *, long_ids: bool) -> None:
        self.model = Model()
        self._random = Random(7)
        self._long_ids = long_ids
        self._per_tick = max(changes_per_s // TICKS_PER_S // 2, 1)
        self._live: deque[int] = deque()
        self._next, self._step = 0, 0
        info = EngineInfo(
            source=ENGINE,
            t_ns=0,
            pid=1,
            model="made-up",
            vllm_version="0",
            num_kv_blocks=4096,
        )
        self.model.fold(info)
        for _ in range(rows):
            self.begin(1_000)
        while len(self._live) > rows // 4:
            self.end(2_000)

    def begin(self, t_ns: int) -> None:
        """Add a request that is scheduled at once."""
        number, random = self._next, self._random
        self._next += 1
        self._live.append(number)
        prompt = round(random.lognormvariate(6, 1.5)) + 1
        self._add_event(
            t_ns,
            EventKind.ARRIVED,
            number,
            prompt_tokens=prompt,
            max_tokens=128,
            temperature=0.7,
        )
        self._add_event(t_ns + 1, EventKind.ADDED, number, prompt_tokens=prompt)
        self._add_event(
            t_ns + 2, EventKind.SCHEDULED, number, cached_tokens=prompt // 3
        )

    def end(self, t_ns: int) -> None:
        """End the oldest request."""
        number = self._live.popleft()
        self._add_event(t_ns, EventKind.FIRST_TOKEN, number)
        for vantage in (Vantage.ENGINE, Vantage.FRONTEND):
            self._add_event(
                t_ns,
                EventKind.FINISHED,
                number,
                vantage,
                reason="stop",
                output_tokens=60,
            )

    def tick(self, t_ns: int) -> None:
        """Simulate a fiftieth of a second: ends, arrivals and two steps."""
        for _ in range(self._per_tick):
            self.end(t_ns)
            self.begin(t_ns)
        for at_ns in (t_ns - S // 100, t_ns):
            self.step(at_ns)

    def step(self, end_ns: int) -> None:
        """Add a step that gives each running request a token."""
        members = list(self._live)[:256]
        self._step += 1
        made = Step(
            source=ENGINE,
            index=self._step,
            start_ns=end_ns - 9_000_000,
            end_ns=end_ns,
            duration_ns=9_000_000,
            decode_requests=len(members),
            decode_tokens=len(members),
            running=len(members),
            kv_used_blocks=2_000,
            kv_cached_blocks=1_000,
            kv_free_blocks=1_096,
            members=members,
            scheduled=[1] * len(members),
            produced=[1] * len(members),
        )
        self.model.fold(made)

    def _add_event(
        self,
        t_ns: int,
        kind: EventKind,
        number: int,
        vantage: Vantage | None = None,
        **facts: object,
    ) -> None:
        front = kind in {EventKind.ARRIVED, EventKind.FIRST_TOKEN}
        vantage = vantage or (Vantage.FRONTEND if front else Vantage.ENGINE)
        name = f"cmpl-{number:08x}"
        event = RequestEvent(
            source=ENGINE,
            t_ns=t_ns,
            kind=kind,
            vantage=vantage,
            request_id=f"{name}-0",
            ordinal=number if vantage is Vantage.ENGINE else None,
            external_id="请求🙂" * 64 + name if self._long_ids else name,
            **facts,  # type: ignore[arg-type] # as it names them
        )
        self.model.fold(event)


class MadeUpFeed:
    """A session of the simulated engine, as screens see one."""

    state = FeedState.LIVE
    served = can_stop = can_restart = False
    record = playback = canary = load_desk = None
    no_log = "nothing is logged"

    def __init__(self, engine: MadeUpEngine) -> None:
        self.recall = NothingRecalled()
        self._engine = engine
        self._began_s = time.monotonic() - 60

    def now_ns(self) -> int:
        """Return session time; the session began a minute before this object."""
        return round((time.monotonic() - self._began_s) * S)

    def wall_text(self, t_ns: int, *, ms: bool = False) -> str:
        """Return a time of day, as if the session had begun at the epoch."""
        return wall_clock(t_ns, ms=ms)

    def snapshot(self, query: SnapshotQuery) -> Snapshot:
        return self._engine.model.snapshot(
            self.now_ns(), SnapshotQuery(query.window, requests=query.requests)
        )

    def present(self, source: str | None = None) -> Snapshot:
        del source
        return self.snapshot(SnapshotQuery(Window.MINUTE, requests=False))

    def look_closely(self, on: bool) -> None:  # noqa: FBT001 - as the protocol has it
        """Do nothing, as there is no GPU."""

    def log_tail(self, lines: int) -> list[str]:
        """Return no lines, as there is no log."""
        del lines
        return []

    async def run(self) -> None:
        """Simulate ticks in real time; late ones are caught up."""
        ticks = 0
        began_s = time.monotonic()
        while True:
            while ticks < (time.monotonic() - began_s) * TICKS_PER_S:
                self._engine.tick(self.now_ns())
                ticks += 1
            await asyncio.sleep(1 / TICKS_PER_S)


def child(options: argparse.Namespace) -> None:
    """Run the program; each picture says how many keys have been handled."""
    acted = 0
    run_action, drawn = App.run_action, TerminalDriver.drawn

    async def counted(app: App[Any], action: Any, *others: Any) -> bool:  # noqa: ANN401 - as Textual calls it
        nonlocal acted
        result = await run_action(app, action, *others)
        acted += 1
        return result

    def marked(driver: TerminalDriver) -> str:
        return f"{drawn(driver)}\x1b]777;{acted}\x07"

    App.run_action = counted  # type: ignore[assignment, method-assign]
    TerminalDriver.drawn = marked  # type: ignore[assignment, method-assign]
    engine = MadeUpEngine(options.rows, options.changes, long_ids=options.long_ids)
    feed = MadeUpFeed(engine)

    async def show() -> None:
        app = InferwatchApp(SessionPage(feed))  # type: ignore[arg-type] # no more is asked of it
        running = asyncio.create_task(feed.run())
        await app.run_async()
        running.cancel()

    asyncio.run(show())


class Terminal:
    """Types keys and receives pictures."""

    def __init__(self, options: argparse.Namespace) -> None:
        command = [__file__, "--child", *sys.argv[1:]]
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.child = pexpect.spawn(
            sys.executable, command, env=environment, dimensions=(options.lines, 120)
        )
        self.acted = 0
        self._tail = b""

    def take(self, seconds: float, until: int | None = None) -> float | None:
        """Receive output for some seconds, or until ``until`` keys are handled.

        Returns the time of that; None if it did not happen.
        """
        end_s = time.monotonic() + seconds
        fd = self.child.child_fd
        while (left_s := end_s - time.monotonic()) > 0:
            if not select.select([fd], [], [], left_s)[0]:
                continue
            chunk = os.read(fd, 65536)
            now_s = time.monotonic()
            queries = (self._tail[-len(QUESTION) + 1 :] + chunk).count(QUESTION)
            if queries:
                os.write(fd, ANSWER * queries)
            for match in MARK.finditer(self._tail + chunk):
                self.acted = int(match[1])
            self._tail = chunk[-32:]
            if until is not None and self.acted >= until:
                return now_s
        return None

    def press(self, key: str) -> float | None:
        """Return the seconds until a key shows; None if it takes more than five."""
        before, began_s = self.acted, time.monotonic()
        os.write(self.child.child_fd, key.encode())
        seen_s = self.take(5, before + 1)
        return None if seen_s is None else seen_s - began_s


def measure(terminal: Terminal, key: str, times: int, random: Random) -> list[float]:
    """Return the seconds of each key press; keys are typed at random moments."""
    took = []
    for _ in range(times):
        terminal.take(random.uniform(0.05, 0.25))
        seconds = terminal.press(key)
        took.append(5.0 if seconds is None else seconds)
    return took


def row_text(name: str, took: Sequence[float]) -> str:
    cuts = quantiles(took, n=100, method="inclusive")
    p50, p95, worst = (f"{each * 1e3:7.1f}" for each in (cuts[49], cuts[94], max(took)))
    over = "" if cuts[94] <= LIMIT_S else f"  over {LIMIT_S * 1e3:.0f} ms"
    return f"{name:15s} {len(took):4d} {p50} {p95} {worst}{over}"


def main() -> None:
    """Measure each key, and print a row for it and one for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--changes", type=int, default=500, help="a second")
    parser.add_argument("--times", type=int, default=60, help="each key is typed")
    parser.add_argument("--lines", type=int, default=40, help="of the terminal")
    parser.add_argument("--long-ids", action="store_true", help="200 wide characters")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    terminal, random = Terminal(options), Random(11)
    terminal.take(4)
    terminal.press("2")
    terminal.take(2)
    print(
        f"{options.rows:,} rows, {options.changes} changes a second; "
        "ms from key to paint"
    )
    print(f"{'':15s} {'n':>4s} {'p50':>7s} {'p95':>7s} {'max':>7s}")
    every: list[float] = []
    for name, key in KEYS.items():
        took = measure(terminal, key, options.times, random)
        every += took
        print(row_text(name, took), flush=True)
    print(row_text("all", every))
    terminal.child.sendcontrol("c")
    terminal.child.expect(pexpect.EOF, timeout=15)
    terminal.child.close()


if __name__ == "__main__":
    main()
