"""CPU and memory of the processes that matter, our own among them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import psutil

from collectors.clock import NS_PER_S, SessionClock
from collectors.readings import AnyReading, HostSample, ProcessUsage

Processes = Callable[[], Iterable[tuple[int, str]]]
"""Says which processes to sample now: (pid, role)."""

LIST_EVERY = 5
"""Samples between two lists of processes: to list costs more than to sample."""


class HostSampler:
    """A collector that samples processes once a second.

    Its own lateness is the lag of the event loop it runs in, which is inferwatch's.
    """

    def __init__(
        self, clock: SessionClock, processes: Processes, every_s: float = 1.0
    ) -> None:
        self._clock = clock
        self._processes = processes
        self._every_s = every_s
        self._known: dict[int, psutil.Process] = {}
        self._listed: list[tuple[int, str]] = []
        self._samples = 0
        self._closed = asyncio.Event()

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """One HostSample an interval, until closed."""
        while not self._closed.is_set():
            yield [await self._sample()]

    async def close(self) -> None:
        """Stop sampling."""
        self._closed.set()

    async def _sample(self) -> HostSample:
        due_ns = self._clock.now_ns() + int(self._every_s * NS_PER_S)
        await asyncio.sleep(self._every_s)
        now_ns = self._clock.now_ns()
        if self._samples % LIST_EVERY == 0:
            self._listed = list(self._processes())
        self._samples += 1
        usages = (self._usage(pid, role) for pid, role in self._listed)
        return HostSample(
            t_ns=now_ns,
            processes=[usage for usage in usages if usage is not None],
            loop_lag_s=max(now_ns - due_ns, 0) / NS_PER_S,
        )

    def _usage(self, pid: int, role: str) -> ProcessUsage | None:
        try:
            process = self._known.get(pid) or psutil.Process(pid)
            self._known[pid] = process
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
        except psutil.Error:  # it ended since the list was made
            self._known.pop(pid, None)
            return None
        return ProcessUsage(
            pid=pid, role=role, cpu_s=times.user + times.system, rss_bytes=memory.rss
        )
