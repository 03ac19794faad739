"""Publishes what a host's GPUs and processes do, for inferwatch elsewhere.

It has neither screen nor database. A viewer gets the readings that a session on this
host would take, and on connecting those of the last minutes.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import psutil

from collectors.contract.clock import SessionClock, monotonic_ns
from collectors.contract.collector import Collector, CollectorError, TappedCollector
from collectors.contract.liveness import birth
from collectors.contract.readings import (
    AnyReading,
    EngineInfo,
    GpuInfo,
    HostInfo,
    Note,
    NoteKind,
    Totals,
)
from collectors.hardware.dcgm import GpuSourceArbiter, dcgm_scrapers
from collectors.hardware.gpu_collector import GpuCollector
from collectors.hardware.gpu_source import GpuOptions
from collectors.hardware.host import HostSampler
from collectors.probe.hello import AGENT, Role
from collectors.servers.discover import listening
from embedded_engine.engine.engine_processes import EngineProcess, EngineProcesses
from embedded_engine.publishing.channel import Channel
from inferwatch.live.local_server import engine_of
from inferwatch.live.supervision import supervise

RING_BYTES = 16_000_000
"""Enough for about half an hour of readings of eight GPUs."""
LOOK_EVERY_S = 10.0
"""How often the processes of the engines on this host are looked up."""
LOOK_WIDE = 3
"""Engines themselves are searched for only every third lookup: it costs most."""
STANDING = (HostInfo, GpuInfo)
"""Readings that stay valid until replaced; a viewer who connects later gets them
too."""


class Agent:
    """Publishes the readings of its collectors at a Unix socket."""

    role = Role.AGENT
    engine: EngineInfo | None = None

    def __init__(
        self,
        name: str,
        path: Path,
        report: Callable[[str], None],
        gpus: GpuOptions | None = None,
    ) -> None:
        """``name`` is the host's name; ``report`` is called with what goes wrong."""
        self.name = name
        self.reading_count = 0
        """How many readings were published so far."""
        self.gpus: set[str] = set()
        self.no_gpu: str | None = None
        """Why this host has no GPU; None while it has one, or that is not known yet."""
        self.processes: list[tuple[int, str]] = []
        """The processes of the engines on this host, as (pid, role)."""
        self.met = asyncio.Event()
        """Set once it is known which GPUs there are."""
        self.broken = asyncio.Event()
        """Set when nothing more can be published."""
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._channel = Channel(path, name, self, RING_BYTES, AGENT)
        clock = SessionClock(0)  # the wire has raw times
        measured = GpuSourceArbiter(nvml=True)
        self._collectors: list[Collector] = [
            HostSampler(clock, self._every_process),
            TappedCollector(GpuCollector(clock, gpus), measured.hear),
            *dcgm_scrapers(clock, gpus or GpuOptions(), measured),
        ]

    @property
    def watched(self) -> bool:
        """Whether any viewer is connected."""
        return self._channel.watched

    def open(self) -> None:
        """Start to accept viewers.

        Raises:
            zmq.ZMQError: the socket cannot be bound.
        """
        self._channel.open()

    async def run(self) -> None:
        """Publish until cancelled, then close the socket."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._look_for_engines())
                for each in self._collectors:
                    tasks.create_task(self._pump(each))
        finally:
            await asyncio.gather(*(each.close() for each in self._collectors))
            await asyncio.to_thread(self._channel.close)

    async def _pump(self, collector: Collector) -> None:
        try:
            await supervise(collector, self._tell, self._say)
        except CollectorError as error:
            self._say(str(error))

    def _say(self, text: str) -> None:
        self._report(text)
        self._tell([Note(t_ns=monotonic_ns(), kind=NoteKind.HOST, text=text)])

    async def _look_for_engines(self) -> None:
        engines: list[EngineProcesses] = []
        for turn in count():
            with suppress(OSError, psutil.Error):  # the next lookup may succeed
                if turn % LOOK_WIDE == 0 or not all(e.root.alive for e in engines):
                    engines = await asyncio.to_thread(engines_here)
                self.processes = await asyncio.to_thread(processes_of, engines)
            await asyncio.sleep(LOOK_EVERY_S)

    def _every_process(self) -> Collection[tuple[int, str]]:
        return [(os.getpid(), "agent"), *self.processes]

    def _tell(self, batch: Sequence[AnyReading]) -> None:
        self.reading_count += len(batch)
        for each in batch:
            if isinstance(each, GpuInfo):
                self.met.set()
                self.no_gpu = each.absent_because
                self.gpus |= {each.source} - {""}
        self._channel.put(self._made, batch)

    # Called by the channel, on a thread of its own.

    def _made(self, batch: Sequence[AnyReading]) -> Iterable[AnyReading]:
        for each in batch:
            if isinstance(each, STANDING):
                self._channel.keep(f"{type(each).__name__} {each.source}", each)
        return batch

    def totals(self) -> Totals:
        """Return no counters, which only a probe has."""
        return Totals(t_ns=monotonic_ns())

    def beat(self) -> Iterable[AnyReading]:
        """Return nothing: each collector reports at its own pace."""
        return ()

    def report(self, text: str) -> None:
        """Report an error of the channel after which it goes on."""
        self._report(f"the agent: {text}")

    def failed(self, error: Exception) -> None:
        """Report an error after which the channel can publish nothing more."""
        self._report(f"the agent can publish no more: {error!r}")
        self._loop.call_soon_threadsafe(self.broken.set)


def engines_here() -> list[EngineProcesses]:
    doors = [each.pid for each in listening() if each.pid and each.is_engine]
    births = {pid: birth(pid) for pid in map(engine_of, doors) if pid is not None}
    return [
        EngineProcesses(EngineProcess(pid, born))
        for pid, born in sorted(births.items())
        if born is not None
    ]


def processes_of(engines: Iterable[EngineProcesses]) -> list[tuple[int, str]]:
    """Return the living processes of the engines as (pid, role), by pid."""
    roles = [each.roles() for each in engines]
    role_by_pid = {each.pid: role for one in roles for each, role in one.items()}
    return sorted(role_by_pid.items())
