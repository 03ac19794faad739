"""An agent: publishes what its host's GPUs and processes do, for screens elsewhere.

It has neither screen nor database. Whoever listens gets the same readings as a session
on this host would take, and of the last minutes those he missed.
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
from collectors.hardware.dcgm import Measured, dcgm_scrapers
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
"""Half an hour of eight GPUs."""
LOOK_EVERY_S = 10.0
"""How often their processes are looked for."""
LOOK_WIDE = 3
"""Looks until engines are looked for anew, which costs most of all."""
STANDING = (HostInfo, GpuInfo)
"""What holds until it is told anew: who comes later is told it, too."""


class Agent:
    """Publishes what its collectors report at a Unix socket."""

    role = Role.AGENT
    engine: EngineInfo | None = None

    def __init__(
        self,
        name: str,
        path: Path,
        report: Callable[[str], None],
        gpus: GpuOptions | None = None,
    ) -> None:
        """``name`` is its host's; ``report`` is told what goes wrong."""
        self.name = name
        self.told = 0
        """Readings so far."""
        self.gpus: set[str] = set()
        self.no_gpu: str | None = None
        """Why there is none."""
        self.processes: list[tuple[int, str]] = []
        """Of the engines on this host, each with its role."""
        self.met = asyncio.Event()
        """Set once it is known which GPUs there are."""
        self.broken = asyncio.Event()
        """Set when nothing more can be published."""
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._channel = Channel(path, name, self, RING_BYTES, AGENT)
        clock = SessionClock(0)  # the wire has raw times
        measured = Measured(nvml=True)
        self._collectors: list[Collector] = [
            HostSampler(clock, self._every_process),
            TappedCollector(GpuCollector(clock, gpus), measured.hear),
            *dcgm_scrapers(clock, gpus or GpuOptions(), measured),
        ]

    @property
    def watched(self) -> bool:
        """Somebody listens."""
        return self._channel.watched

    def open(self) -> None:
        """Let viewers come.

        Raises:
            zmq.ZMQError: they cannot.
        """
        self._channel.open()

    async def run(self) -> None:
        """Publish until cancelled, and let viewers come no more."""
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
            with suppress(OSError, psutil.Error):  # the next look may do
                if turn % LOOK_WIDE == 0 or not all(e.root.alive for e in engines):
                    engines = await asyncio.to_thread(engines_here)
                self.processes = await asyncio.to_thread(processes_of, engines)
            await asyncio.sleep(LOOK_EVERY_S)

    def _every_process(self) -> Collection[tuple[int, str]]:
        return [(os.getpid(), "agent"), *self.processes]

    def _tell(self, batch: Sequence[AnyReading]) -> None:
        self.told += len(batch)
        for each in batch:
            if isinstance(each, GpuInfo):
                self.met.set()
                self.no_gpu = each.absent_because
                self.gpus |= {each.source} - {""}
        self._channel.put(self._made, batch)

    # What its channel asks, on a thread of its own.

    def _made(self, batch: Sequence[AnyReading]) -> Iterable[AnyReading]:
        for each in batch:
            if isinstance(each, STANDING):
                self._channel.keep(f"{type(each).__name__} {each.source}", each)
        return batch

    def totals(self) -> Totals:
        """Nothing that a probe would have counted."""
        return Totals(t_ns=monotonic_ns())

    def beat(self) -> Iterable[AnyReading]:
        """Nothing: each collector has a pace of its own."""
        return ()

    def report(self, text: str) -> None:
        """What went wrong for a moment."""
        self._report(f"the agent: {text}")

    def failed(self, error: Exception) -> None:
        """What was to be told could not be."""
        self._report(f"the agent can publish no more: {error!r}")
        self._loop.call_soon_threadsafe(self.broken.set)


def engines_here() -> list[EngineProcesses]:
    """All engines that listen on this host."""
    doors = [each.pid for each in listening() if each.pid and each.is_engine]
    births = {pid: birth(pid) for pid in map(engine_of, doors) if pid is not None}
    return [
        EngineProcesses(EngineProcess(pid, born))
        for pid, born in sorted(births.items())
        if born is not None
    ]


def processes_of(engines: Iterable[EngineProcesses]) -> list[tuple[int, str]]:
    """Those that live, each with its role."""
    roles = [each.roles() for each in engines]
    found = {each.pid: role for one in roles for each, role in one.items()}
    return sorted(found.items())
