"""CPU and memory of the processes that matter, and the cores there are for them."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from collectors.clock import NS_PER_S, SessionClock
from collectors.readings import AnyReading, HostSample, ProcessUsage

Processes = Callable[[], Iterable[tuple[int, str]]]
"""Says which processes to sample now: (pid, role)."""

LIST_EVERY = 5
"""Samples between two lists of processes: to list costs more than to sample."""

BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
"""What a core does when it cannot do anything else; guests are among the user's."""
CONTROL_GROUPS = Path("/sys/fs/cgroup")


def usable_cores() -> float:
    """The cores that we may use: our affinity's, cut down by a container's quota."""
    quotas = _quotas(Path("/proc/self/cgroup"), CONTROL_GROUPS)
    return min([float(len(os.sched_getaffinity(0))), *quotas])


def busy_cores() -> tuple[int, float] | None:
    """The cores that we may use, and the seconds they were busy since the host started.

    None where the host does not tell, as in some containers.
    """
    with suppress(OSError):
        all_times, ours = psutil.cpu_times(percpu=True), os.sched_getaffinity(0)
        told = [times for number, times in enumerate(all_times) if number in ours]
        busy_s = sum(getattr(each, kind, 0.0) for each in told for kind in BUSY)
        return (len(told), busy_s) if busy_s else None
    return None


def short_of_cores(busy_threads: int, cores: float) -> str | None:
    """Why to mistrust latencies measured beside an engine; None where cores suffice.

    A client needs a core while the engine's threads are busy, else it waits for one.
    """
    if cores >= busy_threads + 1:
        return None
    has = f"{cores:g} core" + ("s" if cores != 1 else "")
    busy = f"{busy_threads} thread" + ("s" if busy_threads != 1 else "")
    return (
        f"this host has {has} and the engine keeps {busy} busy: a client on this host "
        "waits for a core, and its latencies include that wait"
    )


def _quotas(membership: Path, root: Path) -> Iterator[float]:
    """The cores that each control group above us grants, where it has a limit."""
    with suppress(OSError):
        for line in membership.read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            group = root / controllers / path.lstrip("/")
            for place in (group, *group.parents):
                if place.is_relative_to(root):
                    yield from _quota(place)


def _quota(group: Path) -> Iterator[float]:
    """One control group's own, of either version."""
    with suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text("utf-8").split()
        if quota != "max":
            yield int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota_us = int((group / "cpu.cfs_quota_us").read_text("utf-8"))
        if quota_us > 0:
            yield quota_us / int((group / "cpu.cfs_period_us").read_text("utf-8"))


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
        cores, busy_s = busy_cores() or (None, None)
        return HostSample(
            t_ns=now_ns,
            processes=[usage for usage in usages if usage is not None],
            loop_lag_s=max(now_ns - due_ns, 0) / NS_PER_S,
            cores=cores,
            busy_s=busy_s,
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
