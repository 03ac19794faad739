"""One watch from start to stop: an engine's lives, its load, the record of both."""

import asyncio
import os
from collections.abc import Callable
from datetime import datetime

from collectors.clock import NS_PER_S, SessionClock, anchor
from collectors.collector import CollectorError, SourceLostError
from collectors.gpu.nvml import describe_gpus
from collectors.host import HostSampler
from collectors.probe_stream import ProbeStream
from collectors.readings import AnyReading, Note, NoteKind
from embedded_engine.errors import EngineError
from embedded_engine.launch import Engine
from embedded_engine.logs import tail
from inferwatch.feed import FeedState, LoadDesk, Playback, RecordState
from inferwatch.loading.load import Load
from inferwatch.metrics.snapshot import Snapshot, Window
from inferwatch.pipeline import Pipeline
from inferwatch.watching.sources import EngineSource

MakeLoad = Callable[[SessionClock, Engine, Snapshot], Load]
"""Plans the load for an engine that has just come up, by what is known of it."""

PROBE_WAIT_NS = 5 * NS_PER_S
"""A probe answers in milliseconds; after this it is absent."""


class Watch:
    """A live session, as :class:`inferwatch.feed.Feed` shows it to the screens."""

    def __init__(
        self,
        clock: SessionClock,
        pipeline: Pipeline,
        source: EngineSource,
        make_load: MakeLoad | None = None,
    ) -> None:
        self.clock = clock
        self._pipeline = pipeline
        self._source = source
        self._make_load = make_load
        self._anchor = anchor()
        self._engine: Engine | None = None
        self._load: Load | None = None
        self._load_end: asyncio.Task[None] | None = None
        self._restart = asyncio.Event()
        self.state = FeedState.STARTING
        self.live = asyncio.Event()
        """Set while an engine answers and its load, if any, runs."""
        self.lost = asyncio.Event()
        """Set when the engine died or never came; ``reason`` says why."""
        self.reason = ""

    # What the screens ask.

    @property
    def served(self) -> bool:
        """The engine outlives us."""
        return self._source.served

    @property
    def can_restart(self) -> bool:
        """The engine is gone and can be started again."""
        return self.state is FeedState.LOST and self._source.can_restart

    @property
    def record(self) -> RecordState | None:
        """What the recorder does."""
        return self._pipeline.record

    @property
    def playback(self) -> Playback | None:
        """Nothing but now, so far."""
        return None

    @property
    def load_desk(self) -> LoadDesk | None:
        """None, so far."""
        return None

    def now_ns(self) -> int:
        """Session time now."""
        return self.clock.now_ns()

    def wall_text(self, t_ns: int) -> str:
        """Local clock time of a moment."""
        elapsed_ns = t_ns + self.clock.start_ns - self._anchor.t_ns
        wall_s = (self._anchor.wall_ns + elapsed_ns) / NS_PER_S
        return datetime.fromtimestamp(wall_s).astimezone().strftime("%H:%M:%S")

    def snapshot(
        self, window: Window, *, requests: bool = True, client: bool = False
    ) -> Snapshot:
        """Everything as of now; the client's view, which no screen shows, if asked."""
        return self._pipeline.snapshot(
            self.now_ns(), window, requests=requests, client=client
        )

    def log_tail(self, lines: int) -> list[str]:
        """The engine's latest log lines."""
        path = self._source.log_path
        return tail(path, lines) if path else []

    async def restart(self) -> None:
        """Give the engine another life."""
        self._restart.set()

    async def stop_engine(self) -> None:
        """End a served engine."""
        if self._engine is not None:
            self.state = FeedState.ENDED
            self._note(NoteKind.STOPPED, "engine stopped on request")
            await self._engine.stop()

    # The session.

    async def run(self) -> None:
        """Watch until cancelled; whatever we started is gone when this returns."""
        host = HostSampler(self.clock, self._processes)
        self._take(self._anchor, *describe_gpus(self._anchor.t_ns))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tick())
                tasks.create_task(self._pipeline.pump(host))
                tasks.create_task(self._lives())
        finally:
            self._pipeline.tick(self.now_ns())
            await asyncio.to_thread(self._pipeline.close)
            self.state = FeedState.ENDED

    async def _tick(self) -> None:
        while True:
            self._pipeline.tick(self.now_ns())
            await asyncio.sleep(1)

    async def _lives(self) -> None:
        while True:
            await self._life()
            self._restart.clear()
            await self._restart.wait()
            self.lost.clear()
            self.state = FeedState.STARTING
            self._note(NoteKind.RESTARTED, "engine restarted")

    async def _life(self) -> None:
        """From start to death; only the death of the engine ends it."""
        self._engine = None
        stream = ProbeStream(self.clock, self._source.next_life())
        pump = asyncio.create_task(self._pump(stream))
        try:
            self._engine = await self._source.open(self._take)
            await self._is_live(self._engine)
            reason = await self._engine.wait()
            await self._engine.stop()  # what is left of it
        except EngineError as error:
            reason = str(error)
        finally:
            self.live.clear()
            await self._wind_down(stream, pump)
        self._is_lost(reason)

    async def _is_live(self, engine: Engine) -> None:
        self._take(engine.endpoint)
        await self._await_probe()
        if self._make_load is not None:
            self._load = self._make_load(self.clock, engine, self._known())
            await self._load.start(self._pipeline)
            self._load_end = asyncio.create_task(self._note_end_of(self._load))
        self._note(NoteKind.STARTED, f"engine up at {engine.url}")
        self.state = FeedState.LIVE
        self.live.set()

    async def _await_probe(self) -> None:
        """No load before EngineCore's probe answered, so that nothing goes unseen."""
        deadline_ns = self.now_ns() + PROBE_WAIT_NS
        while not self._known().engines:
            if self.now_ns() > deadline_ns:
                text = (
                    "no probe answers in EngineCore, so steps and requests are unseen"
                )
                self._note(NoteKind.PROBE, f"{text}; the log says why: g")
                return
            await asyncio.sleep(0.05)

    async def _note_end_of(self, load: Load) -> None:
        """Nobody stopped it: it came to its end, or to grief."""
        if status := await load.wait():
            text = f"the load generator failed with status {status}"
            self._note(NoteKind.STOPPED, f"{text}; its log: {load.log_path}")

    def _known(self) -> Snapshot:
        return self.snapshot(Window.TEN_SECONDS, requests=False)

    async def _wind_down(self, stream: ProbeStream, pump: asyncio.Task[None]) -> None:
        """Load first, then the engine, then what it still had to say."""
        if self._load_end is not None:
            self._load_end.cancel()
        if self._load is not None:
            await self._load.stop()
            self._load = None
        if self._engine is not None and not self.served:
            await self._engine.stop()
        await stream.close()
        await pump

    async def _pump(self, stream: ProbeStream) -> None:
        try:
            await self._pipeline.pump(stream)
        except SourceLostError:
            return  # Engine.wait() knows the reason and says it
        except CollectorError as error:
            self._note(NoteKind.PROBE, str(error))

    def _is_lost(self, reason: str) -> None:
        if self.state is FeedState.ENDED:
            return  # it was stopped on request
        self.reason = reason
        self.state = FeedState.LOST
        self._note(NoteKind.LOST, reason)
        self.lost.set()

    def _processes(self) -> list[tuple[int, str]]:
        engine = self._engine.processes() if self._engine else []
        load_pid = self._load.pid if self._load else None
        load = [(load_pid, "load")] if load_pid is not None else []
        return [(os.getpid(), "inferwatch"), *engine, *load]

    def _note(self, kind: NoteKind, text: str) -> None:
        now_ns = self.now_ns() + self.clock.start_ns
        self._take(Note(t_ns=now_ns, kind=kind, text=text))

    def _take(self, *readings: AnyReading) -> None:
        """Take readings in raw monotonic time."""
        source = self._engine.engine_id if self._engine else ""
        self._pipeline.take([self.clock.rebase(each, source) for each in readings])
