"""CPU and memory of the processes that matter, and of the host they share.

In a container the host is what the container may use of it, as far as its control
group says so.
"""

import asyncio
import os
import platform
import socket
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from collectors.contract.clock import NS_PER_S, SessionClock
from collectors.contract.readings import AnyReading, HostInfo, HostSample, ProcessUsage

Processes = Callable[[], Iterable[tuple[int, str]]]
"""Says which processes to sample now: (pid, role)."""

LIST_EVERY = 5
"""Samples between two lists of processes: to list costs more than to sample."""

BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
"""What a core does when it cannot do anything else; guests are among the user's."""
CONTROL_GROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")
STATE, USER, SYSTEM, THREADS, BIRTH, PAGES = 0, 11, 12, 17, 19, 21
"""Places in /proc/PID/stat after the command's closing bracket (proc(5): 3 and on)."""
PAGE_BYTES, TICKS_PER_S = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
NAMES_OF_CPU = ("model name", "Model", "Hardware", "cpu model")
"""As /proc/cpuinfo calls it on one architecture or another."""
MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES
MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of a control group of either version: the limit, what is used, what of it is not."""
KIB, US_PER_S = 1_024, 1_000_000
READ_BYTES = 1 << 16
LOOK_UP_EVERY = 60
"""Samples between two looks at what limits us and the processes: it rarely changes."""


def usable_cores() -> float:
    """The cores that we may use: our affinity's, cut down by a container's quota."""
    quotas = _quotas(PROC / "self/cgroup").values()
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


def host_info(t_ns: int, source: str = "") -> HostInfo:
    """What this host is."""
    limit = next(iter(_limits(PROC / "self/cgroup")), None)
    return HostInfo(
        source=source,
        t_ns=t_ns,
        name=socket.gethostname(),
        cpu=cpu_name(),
        cores=os.cpu_count(),
        memory_bytes=limit.most if limit else MEMORY_BYTES,
    )


def cpu_name(cpuinfo: Path = PROC / "cpuinfo") -> str | None:
    """The model of the processors."""
    with suppress(OSError):
        pairs = (line.partition(":") for line in cpuinfo.read_text("utf-8").split("\n"))
        told = {key.strip(): value.strip() for key, _, value in pairs}
        found = next((told[name] for name in NAMES_OF_CPU if told.get(name)), None)
        return found or platform.processor() or None
    return None


def run_queue(loadavg: Path = PROC / "loadavg") -> int | None:
    """Threads of the host that run or wait for a core, but for the one that looks."""
    with suppress(OSError, ValueError, IndexError):
        runnable = _read(loadavg).split()[3].partition("/")[0]
        return max(int(runnable) - 1, 0)
    return None


def _groups(controller: str, membership: Path, root: Path) -> Iterator[Path]:
    """A process's control groups that have a say in a resource, its own first."""
    with suppress(OSError, ValueError):
        for line in membership.read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            group = root / controllers / path.lstrip("/")
            for place in (group, *group.parents):
                if place.is_relative_to(root):
                    yield place


def _quotas(membership: Path, root: Path = CONTROL_GROUPS) -> dict[Path, float]:
    """The control groups above a process that grant it no more than some cores."""
    groups = dict.fromkeys(_groups("cpu", membership, root))
    return {group: cores for group in groups for cores in _quota(group)}


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


def throttled_s(group: Path) -> float | None:
    """How long a quota held a control group back so far, added up over its cores."""
    told = _numbers(group / "cpu.stat")
    if "throttled_usec" in told:
        return told["throttled_usec"] / US_PER_S
    if "throttled_time" in told:  # of the first version
        return told["throttled_time"] / NS_PER_S
    return None


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A control group that may use less memory than there is."""

    group: Path
    most: int
    used: str
    """Name of the file that says how much it uses."""
    droppable: str
    """Name of the part of that which is cached files, nobody's for a while."""

    def used_bytes(self) -> int | None:
        """What cannot be dropped of it."""
        with suppress(OSError, ValueError):
            used = int(_read(self.group / self.used))
            told = _numbers(self.group / "memory.stat")
            return max(used - told.get(self.droppable, 0), 0)
        return None


def _limits(membership: Path, root: Path = CONTROL_GROUPS) -> list[MemoryLimit]:
    """The control groups that limit a process's memory, the strictest first."""
    found = []
    for group in dict.fromkeys(_groups("memory", membership, root)):
        for limit, *names in MEMORY_FILES:
            with suppress(OSError, ValueError):
                most = int((group / limit).read_text("ascii"))
                if most < MEMORY_BYTES:
                    found.append(MemoryLimit(group, most, *names))
    return sorted(found, key=lambda each: each.most)


def _memory_used(meminfo: Path = PROC / "meminfo") -> int | None:
    """Of all the memory of the host."""
    available = _numbers(meminfo).get("MemAvailable:")
    return None if available is None else MEMORY_BYTES - available * KIB


def _numbers(path: Path) -> dict[str, int]:
    """The lines of a file that have a name and a number; empty if it cannot be read."""
    with suppress(OSError, ValueError):
        rows = (line.split(None, 2) for line in _read(path).splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) > 1}
    return {}


def _read(path: Path) -> str:
    """As ``read_text``, in half the time: these are read every second."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        while piece := os.read(descriptor, READ_BYTES):
            pieces.append(piece)
    finally:
        os.close(descriptor)
    return b"".join(pieces).decode("utf-8", "replace")


class WatchedProcess:
    """One process, from one sample to the next."""

    def __init__(self, pid: int, role: str) -> None:
        self._pid, self._role = pid, role
        self._stat = PROC / str(pid) / "stat"
        self._birth: str | None = None
        self.quotas: list[Path] = []
        """Control groups that may hold it back."""
        self.look_up()

    def look_up(self) -> None:
        """See what limits it."""
        self.quotas = list(_quotas(self._stat.with_name("cgroup")))

    def usage(self, throttled: Mapping[Path, float | None]) -> ProcessUsage | None:
        """What it has used so far; None once it has ended, even if its pid lives."""
        try:
            text = _read(self._stat)
        except OSError:
            return None
        fields = text.rpartition(")")[2].split()
        self._birth = self._birth or fields[BIRTH]
        if fields[STATE] in "ZX" or fields[BIRTH] != self._birth:
            return None
        held_back = (throttled.get(group) for group in self.quotas)
        return ProcessUsage(
            pid=self._pid,
            role=self._role,
            cpu_s=(int(fields[USER]) + int(fields[SYSTEM])) / TICKS_PER_S,
            rss_bytes=int(fields[PAGES]) * PAGE_BYTES,
            threads=int(fields[THREADS]),
            throttled_s=max((s for s in held_back if s is not None), default=None),
        )


class HostSampler:
    """A collector that samples processes once a second, after saying what the host is.

    Its own lateness is the lag of the event loop it runs in, which is inferwatch's.
    """

    def __init__(
        self,
        clock: SessionClock,
        processes: Processes,
        every_s: float = 1.0,
        source: str = "",
    ) -> None:
        """``source`` names this host where it is not the one people watch from."""
        self._source = source
        self._clock = clock
        self._processes = processes
        self._every_s = every_s
        self._watched: dict[tuple[int, str], WatchedProcess] = {}
        self._limit: MemoryLimit | None = None
        self._samples = 0
        self._closed = asyncio.Event()

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """What the host is, then a HostSample an interval, until closed."""
        yield [host_info(self._clock.now_ns(), self._source)]
        while not self._closed.is_set():
            yield [await self._sample()]

    async def close(self) -> None:
        """Stop sampling."""
        self._closed.set()

    async def _sample(self) -> HostSample:
        due_ns = self._clock.now_ns() + int(self._every_s * NS_PER_S)
        await asyncio.sleep(self._every_s)
        now_ns = self._clock.now_ns()
        waiting = run_queue()  # before our own work adds to it
        if self._samples % LOOK_UP_EVERY == 0:
            self._look_up()
        if self._samples % LIST_EVERY == 0:
            self._list()
        self._samples += 1
        cores, busy_s = busy_cores() or (None, None)
        return HostSample(
            source=self._source,
            t_ns=now_ns,
            processes=self._usages(),
            loop_lag_s=max(now_ns - due_ns, 0) / NS_PER_S,
            cores=cores,
            busy_s=busy_s,
            run_queue=waiting,
            memory_used_bytes=self._limit.used_bytes()
            if self._limit
            else _memory_used(),
        )

    def _look_up(self) -> None:
        self._limit = next(iter(_limits(PROC / "self/cgroup")), None)
        for process in self._watched.values():
            process.look_up()

    def _list(self) -> None:
        before, listed = self._watched, dict.fromkeys(self._processes())
        self._watched = {
            each: before.get(each) or WatchedProcess(*each) for each in listed
        }

    def _usages(self) -> list[ProcessUsage]:
        processes = self._watched.values()
        groups = {group for process in processes for group in process.quotas}
        throttled = {group: throttled_s(group) for group in groups}
        usages = (process.usage(throttled) for process in processes)
        return [usage for usage in usages if usage is not None]
