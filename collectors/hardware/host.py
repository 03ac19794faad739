"""CPU and memory use of the watched processes and their host.

In a container, the host is what its control group may use: of memory, the engine's.
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

import msgspec
import platformdirs
import psutil

from collectors.contract.clock import NS_PER_S, SessionClock, monotonic_ns
from collectors.contract.readings import (
    AnyReading,
    HostInfo,
    HostSample,
    MeasuredPeak,
    NamedProcesses,
    OtherProcesses,
    ProcessUsage,
)

Processes = Callable[[], Iterable[tuple[int, str]]]
"""Lists the processes to sample: (pid, role)."""

LIST_EVERY = 5
"""Samples between two listings of processes, which cost more than a sample."""

BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
"""Fields of psutil's CPU times that count as busy; guest time is part of user."""
CONTROL_GROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")
STATE, USER, SYSTEM, THREADS, BIRTH, PAGES = 0, 11, 12, 17, 19, 21
"""Indices in /proc/PID/stat after the command's closing bracket (proc(5): 3 and on)."""
PAGE_BYTES, TICKS_PER_S = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
NAMES_OF_CPU = ("model name", "Model", "Hardware", "cpu model")
"""Keys of the CPU model in /proc/cpuinfo on various architectures."""
MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES
MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of a control group, v2 and v1: limit, usage, and the usage's reclaimable
part."""
KIB, US_PER_S = 1_024, 1_000_000
READ_BYTES = 1 << 16
FULL, OTHERS = 0.9, 0.25
"""Shares of the cores in use, and in use by others, from which these are looked at.

Below those of the finding ``host_busy``, so that it can name them at once.
"""
LOOK_EVERY_NS = 5 * NS_PER_S
FORGET_NS = 2 * LOOK_EVERY_NS
"""Age of a look from which, in a pause, none is compared with it."""
ENGINE = ("api", "core", "worker")
"""Roles of an engine's processes."""
MOST_NAMED = 3
LEAST_CORES = 0.05
"""Cores that a process must use to be counted."""
LOOK_UP_EVERY = 60
"""Samples between two reads of control groups, which rarely change."""


def usable_cores() -> float:
    """Cores this process may use: its CPU affinity, capped by the container's quota."""
    quotas = _quotas(PROC / "self/cgroup").values()
    return min([float(len(os.sched_getaffinity(0))), *quotas])


def busy_cores() -> tuple[int, float] | None:
    """Cores in our affinity, and their busy seconds since boot.

    None where the host does not expose them, as in some containers.
    """
    with suppress(OSError):
        all_times, ours = psutil.cpu_times(percpu=True), os.sched_getaffinity(0)
        cores = [times for number, times in enumerate(all_times) if number in ours]
        busy_s = sum(getattr(each, kind, 0.0) for each in cores for kind in BUSY)
        return (len(cores), busy_s) if busy_s else None
    return None


def short_of_cores(busy_threads: int, cores: float) -> str | None:
    """Why latencies measured beside an engine are unreliable; None with enough cores.

    A client needs a core of its own while the engine's threads are busy.
    """
    if cores >= busy_threads + 1:
        return None
    has = f"{cores:g} core" + ("s" if cores != 1 else "")
    busy = f"{busy_threads} thread" + ("s" if busy_threads != 1 else "")
    return (
        f"this host has {has} and the engine keeps {busy} busy: a client on this host "
        "waits for a core, and its latencies include that wait"
    )


def cpu_name(cpuinfo: Path = PROC / "cpuinfo") -> str | None:
    with suppress(OSError):
        fields = _cpu_fields(cpuinfo)
        model = next((fields[name] for name in NAMES_OF_CPU if fields.get(name)), None)
        return model or platform.processor() or None
    return None


def cpu_features(cpuinfo: Path = PROC / "cpuinfo") -> frozenset[str]:
    """Return the instruction sets of a CPU as the kernel names them; empty: unknown."""
    fields: dict[str, str] = {}
    with suppress(OSError):
        fields = _cpu_fields(cpuinfo)
    return frozenset((fields.get("flags") or fields.get("Features") or "").split())


def _cpu_fields(cpuinfo: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in cpuinfo.read_text("utf-8").split("\n"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def run_queue(loadavg: Path = PROC / "loadavg") -> int | None:
    """Threads running or waiting for a core, without the one that reads this."""
    with suppress(OSError, ValueError, IndexError):
        runnable = _read(loadavg).split()[3].partition("/")[0]
        return max(int(runnable) - 1, 0)
    return None


def _groups(controller: str, membership: Path, root: Path) -> Iterator[Path]:
    """Control groups of a process with a controller, its own first, then ancestors."""
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
    """CPU quotas in cores, by control group of the process."""
    groups = dict.fromkeys(_groups("cpu", membership, root))
    return {group: cores for group in groups for cores in _quota(group)}


def _quota(group: Path) -> Iterator[float]:
    """A control group's own CPU quota in cores, v2 or v1."""
    with suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text("utf-8").split()
        if quota != "max":
            yield int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota_us = int((group / "cpu.cfs_quota_us").read_text("utf-8"))
        if quota_us > 0:
            yield quota_us / int((group / "cpu.cfs_period_us").read_text("utf-8"))


def throttled_s(group: Path) -> float | None:
    """Seconds a CPU quota throttled a control group so far, summed over its cores."""
    stat = _numbers(group / "cpu.stat")
    if "throttled_usec" in stat:
        return stat["throttled_usec"] / US_PER_S
    if "throttled_time" in stat:  # v1
        return stat["throttled_time"] / NS_PER_S
    return None


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A control group with a memory limit below the host's memory."""

    group: Path
    most: int
    used: str
    """Name of the file with its usage."""
    droppable: str
    """Key of the reclaimable file cache within the usage."""

    def used_bytes(self) -> int | None:
        """Memory the group uses, less reclaimable file cache; None if unreadable."""
        with suppress(OSError, ValueError):
            used = int(_read(self.group / self.used))
            stat = _numbers(self.group / "memory.stat")
            return max(used - stat.get(self.droppable, 0), 0)
        return None


def _limits(membership: Path, root: Path = CONTROL_GROUPS) -> list[MemoryLimit]:
    """Memory limits of a process's control groups, the strictest first."""
    limits = []
    for group in dict.fromkeys(_groups("memory", membership, root)):
        for limit, *names in MEMORY_FILES:
            with suppress(OSError, ValueError):
                most = int((group / limit).read_text("ascii"))
                if most < MEMORY_BYTES:
                    limits.append(MemoryLimit(group, most, *names))
    return sorted(limits, key=lambda each: each.most)


def _memory_used() -> int | None:
    """Used memory of the whole host, in bytes."""
    available = _numbers(PROC / "meminfo").get("MemAvailable:")
    return None if available is None else MEMORY_BYTES - available * KIB


def _numbers(path: Path) -> dict[str, int]:
    """Names and integers of a file's lines; empty if it cannot be read."""
    with suppress(OSError, ValueError):
        rows = (line.split(None, 2) for line in _read(path).splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) > 1}
    return {}


def _read(path: Path) -> str:
    """``Path.read_text`` in half the time, for files read every second."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        while piece := os.read(descriptor, READ_BYTES):
            pieces.append(piece)
    finally:
        os.close(descriptor)
    return b"".join(pieces).decode("utf-8", "replace")


class WatchedProcess:
    """A process that is sampled repeatedly."""

    def __init__(self, pid: int, role: str) -> None:
        self._pid, self._role = pid, role
        self._stat = PROC / str(pid) / "stat"
        self._birth: str | None = None
        self.quotas: list[Path] = []
        """Control groups whose CPU quota may throttle it."""
        self.look_up()

    def look_up(self) -> None:
        """Find the control groups whose CPU quotas limit the process."""
        self.quotas = list(_quotas(self._stat.with_name("cgroup")))

    def usage(self, throttled: Mapping[Path, float | None]) -> ProcessUsage | None:
        """The process's usage so far; None once it ended, even if its PID is reused."""
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


class OtherProcessFinder:
    """Finds which processes besides the watched ones keep a host busy.

    Only while they do, and some seconds apart, because it reads of every process.
    """

    def __init__(self) -> None:
        self._before: HostSample | None = None
        self._used: dict[tuple[int, str], tuple[str, float]] = {}
        """Names and CPU seconds, by PID and birth; of the last look."""
        self._looked_ns = 0

    def is_due(self, sample: HostSample) -> bool:
        """Whether others keep the host busy, and the last look is some seconds ago."""
        before, self._before = self._before, sample
        if before is None or not _is_busy_with_others(before, sample):
            if sample.t_ns - self._looked_ns >= FORGET_NS:
                self._used = {}
            return False
        return not self._used or sample.t_ns - self._looked_ns >= LOOK_EVERY_NS

    def look(self, sample: HostSample) -> OtherProcesses | None:
        """The largest since the last look; None at the first one."""
        before, since_ns = self._used, self._looked_ns
        watched = {each.pid for each in sample.processes}
        self._used, self._looked_ns = dict(_used_by_all()), sample.t_ns
        elapsed_s = (sample.t_ns - since_ns) / NS_PER_S
        if not before or elapsed_s <= 0:
            return None
        by_name: dict[str, list[tuple[float, int]]] = {}
        for (pid, birth), (name, cpu_s) in self._used.items():
            if pid in watched:
                continue
            used_s = cpu_s - before.get((pid, birth), (name, 0.0))[1]
            by_name.setdefault(name, []).append((used_s / elapsed_s, pid))
        found = [
            NamedProcesses(
                name=name,
                cores=sum(cores for cores, _ in each),
                count=sum(cores >= LEAST_CORES for cores, _ in each),
                pid=max(each)[1],
            )
            for name, each in by_name.items()
        ]
        largest = sorted(found, key=lambda each: -each.cores)[:MOST_NAMED]
        named = [each for each in largest if each.count]
        return OtherProcesses(source=sample.source, t_ns=sample.t_ns, largest=named)


def _is_busy_with_others(before: HostSample, sample: HostSample) -> bool:
    elapsed_s = (sample.t_ns - before.t_ns) / NS_PER_S
    if before.busy_s is None or sample.busy_s is None or not sample.cores:
        return False
    busy_s = sample.busy_s - before.busy_s
    used_s = {each.pid: each.cpu_s for each in before.processes}
    watched_s = sum(
        each.cpu_s - used_s[each.pid] for each in sample.processes if each.pid in used_s
    )
    whole_s = sample.cores * elapsed_s
    return busy_s >= FULL * whole_s and busy_s - watched_s >= OTHERS * whole_s


def _used_by_all() -> Iterator[tuple[tuple[int, str], tuple[str, float]]]:
    """Names and CPU seconds so far of all processes, by PID and birth."""
    for entry in os.scandir(PROC):
        if not entry.name.isdecimal():
            continue
        with suppress(OSError, ValueError, IndexError):
            before, _, after = _read(PROC / entry.name / "stat").rpartition(")")
            fields = after.split()
            cpu_s = (int(fields[USER]) + int(fields[SYSTEM])) / TICKS_PER_S
            name = before.partition("(")[2]
            yield (int(entry.name), fields[BIRTH]), (name, cpu_s)


class HostSampler:
    """A collector of a HostInfo, again when it changes, and a HostSample per interval.

    While others keep the host busy, it says which.

    The lateness of its own timer is the lag of inferwatch's event loop.
    """

    def __init__(
        self,
        clock: SessionClock,
        processes: Processes,
        every_s: float = 1.0,
        source: str = "",
    ) -> None:
        """``source`` names the host where it is not the local one."""
        self._source = source
        self._clock = clock
        self._processes = processes
        self._every_s = every_s
        self._watched: dict[tuple[int, str], WatchedProcess] = {}
        self._limit: MemoryLimit | None = None
        self._others = OtherProcessFinder()
        self._samples = 0
        self._closed = asyncio.Event()

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """The HostInfo, then HostSamples until closed."""
        self._list()
        yield [self._info()]
        while not self._closed.is_set():
            limit, sample = self._limit, await self._sample()
            yield [sample] if self._limit == limit else [self._info(), sample]
            if self._others.is_due(sample):
                found = await asyncio.to_thread(self._others.look, sample)
                if found is not None:
                    yield [found]

    async def close(self) -> None:
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

    def _info(self) -> HostInfo:
        return HostInfo(
            source=self._source,
            t_ns=self._clock.now_ns(),
            name=socket.gethostname(),
            cpu=cpu_name(),
            cores=os.cpu_count(),
            memory_bytes=self._limit.most if self._limit else MEMORY_BYTES,
        )

    def _look_up(self) -> None:
        for process in self._watched.values():
            process.look_up()
        self._limit = self._memory_limit()

    def _list(self) -> None:
        before, listed = self._watched, dict.fromkeys(self._processes())
        self._watched = {
            each: before.get(each) or WatchedProcess(*each) for each in listed
        }
        if self._watched.keys() != before.keys() or not before:
            self._limit = self._memory_limit()

    def _memory_limit(self) -> MemoryLimit | None:
        """The limit under which all engines run; without engines, our own."""
        engines = [PROC / str(pid) for pid, role in self._watched if role in ENGINE]
        alive = [each for each in engines if each.exists()] or [PROC / "self"]
        limits = {next(iter(_limits(each / "cgroup")), None) for each in alive}
        return limits.pop() if len(limits) == 1 else None

    def _usages(self) -> list[ProcessUsage]:
        processes = self._watched.values()
        groups = {group for process in processes for group in process.quotas}
        throttled = {group: throttled_s(group) for group in groups}
        usages = (process.usage(throttled) for process in processes)
        return [usage for usage in usages if usage is not None]


# Remembers this host's measured peaks from one session to the next.
#
# They are filed by CPU model and usable cores, so the file stays correct after a reboot
# or when copied to another host.

FILE = "measured-peaks.json"
FILES = msgspec.json.Decoder(dict[str, MeasuredPeak])


def peaks_file() -> Path:
    return platformdirs.user_cache_path("inferwatch", appauthor=False) / FILE


def known_peaks() -> list[MeasuredPeak]:
    """The measured peak of this host, stamped with the current time; empty if none."""
    peak = _stored_peaks(peaks_file()).get(_which())
    return [] if peak is None else [msgspec.structs.replace(peak, t_ns=monotonic_ns())]


def keep_peak(peak: MeasuredPeak) -> Path:
    """Store a peak in place of an earlier one.

    Raises:
        OSError: the file cannot be written.
    """
    path = peaks_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    peaks = _stored_peaks(path) | {_which(): peak}
    unfinished = path.with_name(f"{FILE}.{os.getpid()}")
    unfinished.write_bytes(msgspec.json.encode(peaks))
    unfinished.replace(path)
    return path


def _stored_peaks(path: Path) -> dict[str, MeasuredPeak]:
    with suppress(OSError, msgspec.MsgspecError):
        return FILES.decode(path.read_bytes())
    return {}


def _which() -> str:
    return f"{cpu_name() or '?'}, {usable_cores():g} cores"
