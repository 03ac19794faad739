"""Takes the stacks of an engine's processes, once in each stall."""

import asyncio
import os
from asyncio import Semaphore
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

from msgspec.structs import replace

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import NoteKind, Stacks, StackSource
from collectors.stacks.py_spy import end_running
from collectors.stacks.take import take_stacks
from collectors.stacks.watchdog_dump import watchdog_threads
from embedded_engine.probe_settings import STACKS
from inferwatch.live.live_session import LiveSession
from inferwatch.metrics.steps.stacks import stalled_stacks

LOOK_S = 0.5
PAUSE_NS = 60 * NS_PER_S
"""Shortest time from one stall of an engine that is looked into to the next."""
LOG_EVERY_NS = 10 * NS_PER_S
"""How often the log is searched while processes could not be read."""
LOG_LINES = 2_000
MOST_PROCESSES = 32
AT_ONCE = 4
NAMES = {"core": "EngineCore", "worker": "worker", "api": "API server"}
"""Names of the processes that are read, by role."""
Processes = Callable[[str], Sequence[tuple[int, str]]]
"""Returns the processes of an engine on this host, as (pid, role), by its source."""
LogTail = Callable[[str, int], Sequence[str]]
"""Returns the last lines of an engine's log, by its source."""
Made = TypeVar("Made")


class StallStacks:
    """Looks twice a second whether an engine is stalled, which is nearly free."""

    def __init__(
        self, session: LiveSession, processes: Processes, log_tail: LogTail
    ) -> None:
        self.is_on = os.environ.get(STACKS) != "0"
        self._session = session
        self._processes = processes
        self._log_tail = log_tail
        self._seen: dict[str, tuple[int, int]] = {}
        """Of each source, its latest stall and when the stacks of one were taken."""
        self._unread: dict[str, list[Stacks]] = {}
        """Of each stall that goes on, the processes whose stacks are not known."""
        self._searched_ns: dict[str, int] = {}
        """When the log of each source was last searched."""
        self._at_once = Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Look until cancelled, beside the event loop's other work."""
        if not self.is_on:
            return
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                await self._look()
        finally:
            end_running()

    async def _look(self) -> None:
        now_ns = self._session.now_ns()
        stalls = self._session.pipeline.stalls(now_ns)
        for source in [each for each in self._unread if each not in stalls]:
            del self._unread[source]
        for source, stalled_ns in stalls.items():
            before_ns, taken_ns = self._seen.get(source, (-1, -PAUSE_NS))
            if stalled_ns != before_ns:
                if now_ns - taken_ns >= PAUSE_NS:
                    self._seen[source] = stalled_ns, now_ns
                    await self._take(source, stalled_ns)
            elif (
                source in self._unread
                and now_ns - self._searched_ns.get(source, 0) > LOG_EVERY_NS
            ):
                self._searched_ns[source] = now_ns
                await self._search_log(source)

    async def _take(self, source: str, stalled_ns: int) -> None:
        """Take the stacks of all processes at once, and note what holds them."""
        began_ns = stalled_ns + self._session.clock.start_ns
        processes = await self._run(self._processes, source)
        taken = await asyncio.gather(
            *(
                self._run(take_stacks, pid, name, began_ns)
                for pid, name in named_processes(processes)
            )
        )
        if taken:
            self._await(source, [each for each in taken if not each.threads])
            self._report(source, taken)

    async def _search_log(self, source: str) -> None:
        """Take what vLLM's own watchdog wrote down meanwhile, where we could not."""
        lines = await self._run(self._log_tail, source, LOG_LINES)
        found, unread = [], []
        for each in self._unread[source]:
            if dump := await self._run(watchdog_threads, lines, each.pid):
                by = StackSource.WATCHDOG
                found.append(replace(each, taken_by=by, threads=dump))
            else:
                unread.append(each)
        self._await(source, unread)
        if found:
            self._report(source, found)

    def _await(self, source: str, unread: list[Stacks]) -> None:
        """Search the log for these from now on; not at all without any."""
        if unread:
            self._unread[source] = unread
        else:
            self._unread.pop(source, None)

    async def _run(self, act: Callable[..., Made], *arguments: object) -> Made:
        """Return what a thread makes that nobody waits for when the program ends."""
        made = Future[Made]()
        made.set_running_or_notify_cancel()  # who leaves cannot cancel it

        def work() -> None:
            try:
                made.set_result(act(*arguments))
            except Exception as error:  # noqa: BLE001 - raised where it is awaited
                made.set_exception(error)

        async with self._at_once:
            Thread(target=work, name="stacks", daemon=True).start()
            return await asyncio.wrap_future(made)

    def _report(self, source: str, taken: Sequence[Stacks]) -> None:
        self._session.take(*taken, source=source)
        if any(each.threads for each in taken):
            self._session.note(
                NoteKind.STACKS, f"stalled: {stalled_stacks(taken).sentence}", source
            )


def named_processes(processes: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the PID and name of each process that can hold an engine.

    >>> list(named_processes([(7, "api"), (9, "worker"), (8, "core"), (6, "load")]))
    [(8, 'EngineCore'), (9, 'worker 0'), (7, 'API server')]
    """
    roles = Counter(role for _, role in processes)
    ranked = [
        (pid, role, number)
        for role in NAMES
        for number, pid in enumerate(sorted(p for p, r in processes if r == role))
    ]
    for pid, role, number in ranked[:MOST_PROCESSES]:
        is_one_of = roles[role] > 1 or role == "worker"
        yield pid, f"{NAMES[role]} {number}" if is_one_of else NAMES[role]
