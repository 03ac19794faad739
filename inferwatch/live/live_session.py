"""A live session: its clock, its pipeline, and the collectors that feed it."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from collectors.contract.clock import NS_PER_S, SessionClock, WallClockAnchors
from collectors.contract.collector import Collector, CollectorError, TappedCollector
from collectors.contract.readings import AnyReading, Note, NoteKind
from collectors.hardware.dcgm import GpuSourceArbiter, dcgm_scrapers
from collectors.hardware.gpu_collector import GpuCollector
from collectors.hardware.host import (
    HostSampler,
    Processes,
    known_peaks,
    short_of_cores,
    usable_cores,
)
from inferwatch.formatting import format_nines
from inferwatch.live.pipeline import Pipeline
from inferwatch.live.supervision import supervise
from inferwatch.metrics.objectives.view import SloState
from inferwatch.metrics.requests.latencies import LATENCIES
from inferwatch.metrics.requests.slo import UNANSWERED
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery

StateOf = Callable[[], SloState | None]


class SloNotes:
    """Turns changes of the SLO state into notes; cheap while nothing changes."""

    def __init__(self) -> None:
        self._since_ns: int | None = None

    def news(self, since_ns: int | None, now_ns: int, state: StateOf) -> str | None:
        """Return the text to note if the state changed; None otherwise."""
        before_ns, self._since_ns = self._since_ns, since_ns
        if (before_ns is None) == (since_ns is None):
            return None
        if since_ns is None:
            lasted_s = (now_ns - (before_ns or 0)) / NS_PER_S
            return f"SLO met again after {lasted_s:.0f} s"
        return _began(state())


def _began(state: SloState | None) -> str:
    if state is None or state.share is None:
        return "SLO missed"
    missed = sorted((state.missed or {}).items(), key=lambda each: -each[1])
    by = [f"{n:,} {m if m in UNANSWERED else LATENCIES[m].label}" for m, n in missed]
    text = f"SLO missed: {format_nines(state.share)} of {state.judged:,} requests good"
    return f"{text}, missed by {', '.join(by)}: {state.slo}"


TICK_S = 1


def no_processes() -> list[tuple[int, str]]:
    """Return no processes: only our own is sampled."""
    return []


class LiveSession:
    """Takes the readings of its collectors into its pipeline, from start to end."""

    def __init__(
        self,
        clock: SessionClock,
        pipeline: Pipeline,
        processes: Processes = no_processes,
    ) -> None:
        self.clock = clock
        self.pipeline = pipeline
        self.anchors = WallClockAnchors()
        self._processes = processes
        """Returns the processes to sample besides our own."""
        self.gpus = GpuCollector(clock)
        """Those of this host."""
        self.measured = GpuSourceArbiter(nvml=True)
        """Which GPUs NVML measures, here or by agents; the rest is DCGM's."""
        self.collectors: list[Collector] = [
            HostSampler(clock, self._every_process),
            TappedCollector(self.gpus, self.measured.hear),
        ]
        """What is collected from start to end. Probes and load generators come and go
        with what they report on."""
        self._slo_notes = SloNotes()
        self.first: list[AnyReading] = []
        """Readings to record at the start: objectives, prices."""
        self.faults: list[str] = []
        """Faults of inferwatch itself, fit to show; each is recorded as a note, too."""
        self.ended_ns: int | None = None
        """When the session ended; None while it goes on."""

    def now_ns(self) -> int:
        return self.clock.now_ns()

    def take(self, *readings: AnyReading, source: str = "") -> None:
        """Take readings whose times are raw monotonic times."""
        self.pipeline.take([self.clock.rebase(each, source) for each in readings])

    def note(self, kind: NoteKind, text: str, source: str = "") -> None:
        """Record a note at the current time."""
        now_ns = self.now_ns() + self.clock.start_ns
        self.take(Note(t_ns=now_ns, kind=kind, text=text), source=source)

    def look_at_cores(self, busy_threads: int, source: str = "") -> None:
        """Note it if an engine on this host leaves no CPU core to its clients."""
        if short := short_of_cores(busy_threads, usable_cores()):
            self.note(NoteKind.HOST, short, source)

    def snapshot(
        self, window: Window = Window.TEN_SECONDS, source: str | None = None
    ) -> Snapshot:
        """Return a snapshot as of now, without the requests."""
        return self.pipeline.snapshot(
            self.now_ns(), SnapshotQuery(window, requests=False, source=source)
        )

    @asynccontextmanager
    async def recorded(self) -> AsyncIterator[None]:
        """Begin the session; end it and close its record when the context ends."""
        self.take(self.anchors.first, *known_peaks(), *self.first)
        try:
            yield
        finally:
            ended_ns = self.now_ns()
            try:
                self.look_at_clocks()
                self.pipeline.tick(ended_ns)
                self._look_at_slo(ended_ns)
            finally:
                await asyncio.to_thread(self.pipeline.close)
            self.ended_ns = self.pipeline.ended_ns or ended_ns

    async def collect(self, *work: Coroutine[Any, Any, None]) -> None:
        """Run all collectors, the ticks and other work, until cancelled."""
        self.collectors += dcgm_scrapers(self.clock, self.gpus.options, self.measured)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            for collector in self.collectors:
                tasks.create_task(self._pump(collector))
            for each in work:
                tasks.create_task(each)

    async def close_collectors(self) -> None:
        await asyncio.gather(*(each.close() for each in self.collectors))

    def look_at_clocks(self) -> None:
        """Take a new clock anchor if wall and monotonic clock have drifted apart."""
        if fresh := self.anchors.parted():
            self.take(fresh)

    async def _tick(self) -> None:
        while True:
            self.look_at_clocks()
            self.pipeline.tick(self.now_ns())
            self._look_at_slo(self.now_ns())
            await asyncio.sleep(TICK_S)

    def _look_at_slo(self, now_ns: int) -> None:
        news = self._slo_notes.news(
            self.pipeline.slo_missed_since_ns,
            now_ns,
            lambda: self.pipeline.slo(now_ns, Window.MINUTE),
        )
        if news is not None:
            self.note(NoteKind.SLO, news)

    async def _pump(self, collector: Collector) -> None:
        """Take what a collector reports; the session goes on if that fails."""
        try:
            await supervise(collector, self.pipeline.take, self._failed)
        except CollectorError as error:
            self.note(NoteKind.PROBE, str(error))

    def _failed(self, text: str) -> None:
        self.faults.append(text)
        self.note(NoteKind.PROBE, text)

    def _every_process(self) -> list[tuple[int, str]]:
        return [(os.getpid(), "inferwatch"), *self._processes()]
