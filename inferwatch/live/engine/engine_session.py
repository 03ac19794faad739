"""A session that watches an engine through its restarts, and the load on it."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Protocol

from collectors.contract.clock import NS_PER_S, SessionClock
from collectors.contract.collector import CollectorError, SourceLostError, name_of
from collectors.contract.readings import AnyReading, Endpoint, NoteKind
from collectors.http.server import Server
from collectors.probe.stream import ProbeStream
from collectors.servers.page_scraper import PageScraper
from embedded_engine.engine.errors import EngineError
from embedded_engine.engine.logs import tail
from inferwatch.feed import FeedState
from inferwatch.live.engine_source import EngineSource, LiveEngine
from inferwatch.live.limit_desk import NO_ENGINE, LimitTarget, WatchedLimitDesk
from inferwatch.live.live_session import LiveSession
from inferwatch.live.load.elsewhere_loads import ExternalLoadWatcher
from inferwatch.live.load.load_desk import LoadTarget, MakeLoad, WatchedLoadDesk
from inferwatch.live.pipeline import Pipeline
from inferwatch.live.supervision import FaultReporter
from inferwatch.live.watch import Watch

PROBE_WAIT_NS = 5 * NS_PER_S
"""A probe answers in milliseconds; after this long it is taken to be absent."""


class EngineUser(Protocol):
    """A user of the engine, such as a load, which also takes its probe's readings."""

    async def engine_up(self, engine: LiveEngine) -> None:
        """Start to use the engine, which answers now."""
        ...

    async def engine_down(self) -> None:
        """Stop using the engine, which is lost or about to be stopped."""
        ...

    def hear(self, reading: AnyReading) -> None:
        """Take a reading of the engine's probe, in session time."""
        ...


class EngineSupervisor:
    """Opens an engine, follows its probe until it dies, and restarts it on request."""

    def __init__(
        self, session: LiveSession, source: EngineSource, user: EngineUser
    ) -> None:
        self._session = session
        self._source = source
        self._user = user
        self._again = asyncio.Event()
        self.engine: LiveEngine | None = None
        """The engine that was started last, once it is up."""
        self.state = FeedState.STARTING
        self.live = asyncio.Event()
        """Set while an engine answers and its load, if any, runs."""
        self.came_up = False
        """Whether an engine has answered, after this start or an earlier one."""
        self.lost = asyncio.Event()
        """Set when the engine died or never came; ``reason`` says why."""
        self.reason = ""

    async def run(self) -> None:
        """Watch each start of the engine in turn, until cancelled."""
        while True:
            await self._watch_once()
            self._again.clear()
            await self._again.wait()
            self.lost.clear()
            self.state = FeedState.STARTING
            self._note(NoteKind.RESTARTED, "engine restarted")

    def restart(self) -> None:
        self._again.set()

    async def stop_engine(self) -> None:
        """Stop the load, then the engine, for good."""
        if self.engine is not None:
            await self._user.engine_down()
            self.state = FeedState.ENDED
            self._note(NoteKind.STOPPED, "engine stopped on request")
            await self.engine.stop()

    async def _watch_once(self) -> None:
        """Watch one start of the engine until it dies, whatever else fails."""
        self.engine = None
        stream = ProbeStream(self._session.clock, self._source.prepare())
        pump = asyncio.create_task(self._pump(stream))
        pages: asyncio.Task[None] | None = None
        try:
            self.engine = await self._source.open(self._session.take)
            await self._is_live(self.engine)
            pages = asyncio.create_task(self._keep_pages(self.engine))
            reason = await self.engine.wait()
            await self.engine.stop()  # ends processes that are left
        except EngineError as error:
            reason = str(error)
        finally:
            self.live.clear()
            if pages is not None:
                pages.cancel()
            await self._wind_down(stream, pump)
        self._is_lost(reason)

    async def _is_live(self, engine: LiveEngine) -> None:
        self.came_up = True
        self._session.take(engine.endpoint, source=engine.engine_id)
        await self._await_probe()
        self._session.look_at_cores(engine.busy_threads(), engine.engine_id)
        await self._user.engine_up(engine)
        self._note(NoteKind.STARTED, f"engine up at {engine.url}")
        self.state = FeedState.LIVE
        self.live.set()

    async def _await_probe(self) -> None:
        """Wait for EngineCore's probe before any load, so that it sees all requests."""
        deadline_ns = self._session.now_ns() + PROBE_WAIT_NS
        while not self._session.snapshot().engines:
            if self._session.now_ns() > deadline_ns:
                text = (
                    "the probe in EngineCore does not answer, so steps and "
                    "requests cannot be seen"
                )
                self._note(NoteKind.PROBE, f"{text}; the log says why: l")
                return
            await asyncio.sleep(0.05)

    async def _wind_down(self, stream: ProbeStream, pump: asyncio.Task[None]) -> None:
        """Stop the load, then the engine, then take the last readings of its probe."""
        await self._user.engine_down()
        if self.engine is not None and not self._source.served:
            await self.engine.stop()
        await stream.close()
        await pump

    async def _keep_pages(self, engine: LiveEngine) -> None:
        """Record all that the engine exposes, now and then: a probe has no names."""
        endpoint = engine.endpoint
        server = Server(
            url=endpoint.url or "http://localhost",
            uds=endpoint.uds,
            name=engine.engine_id,
        )
        scraper = PageScraper(self._session.clock, server)
        try:
            await self._session.pipeline.pump(scraper)
        except Exception as error:  # noqa: BLE001 - the engine still runs and is watched
            say = partial(self._note, NoteKind.PROBE)
            FaultReporter(name_of(scraper), say).report(error)

    async def _pump(self, stream: ProbeStream) -> None:
        """Take the readings of the probe, passing each to the engine's user first."""
        try:
            async for batch in stream.batches():
                for reading in batch:
                    self._user.hear(reading)
                self._session.pipeline.take(batch)
        except SourceLostError:
            return  # Engine.wait() knows the reason and says it
        except CollectorError as error:
            self._note(NoteKind.PROBE, str(error))
        except Exception as error:  # noqa: BLE001 - the engine still runs and is watched
            say = partial(self._note, NoteKind.PROBE)
            FaultReporter(name_of(stream), say).report(error)

    def _is_lost(self, reason: str) -> None:
        if self.state is FeedState.ENDED:
            return  # it was stopped on request
        self.reason = reason
        self.state = FeedState.LOST
        self._note(NoteKind.LOST, reason)
        self.lost.set()

    def _note(self, kind: NoteKind, text: str) -> None:
        source = self.engine.engine_id if self.engine else ""
        self._session.note(kind, text, source)


class EngineSession(Watch):
    """Watches one engine, which it starts or finds, and its load."""

    def __init__(
        self,
        clock: SessionClock,
        pipeline: Pipeline,
        source: EngineSource,
        make_load: MakeLoad | None = None,
    ) -> None:
        super().__init__(clock, pipeline)
        self._source = source
        self._desk = WatchedLoadDesk(
            self._session, served=source.served, make_load=make_load
        )
        self._supervisor = EngineSupervisor(self._session, source, self._desk)
        self._elsewhere = ExternalLoadWatcher(self._session, self._endpoints)
        self._limit_desk = WatchedLimitDesk(self._session, self._limit_target)

    @property
    def load_desk(self) -> WatchedLoadDesk:
        return self._desk

    @property
    def limit_desk(self) -> WatchedLimitDesk:
        return self._limit_desk

    @property
    def _state(self) -> FeedState:
        return self._supervisor.state

    @property
    def live(self) -> asyncio.Event:
        """Set while an engine answers and its load, if any, runs."""
        return self._supervisor.live

    @property
    def begun(self) -> asyncio.Event:
        """Set while the engine is live."""
        return self._supervisor.live

    @property
    def came_up(self) -> bool:
        """Whether an engine has ever answered; if not, there is nothing to sum up."""
        return self._supervisor.came_up

    @property
    def lost(self) -> asyncio.Event:
        """Set when the engine died or never came up."""
        return self._supervisor.lost

    @property
    def failure(self) -> str | None:
        """Why the engine was lost; None while it is not."""
        return self._supervisor.reason if self.lost.is_set() else None

    @property
    def served(self) -> bool:
        """Whether the engine outlives this process."""
        return self._source.served

    @property
    def runs_on(self) -> bool:
        """Whether the engine will keep running: a served one does, while it lives."""
        return self.served and self.live.is_set()

    @property
    def farewell(self) -> str:
        return "detached; the engine keeps running. `inferwatch` attaches to it again."

    @property
    def starts(self) -> bool:
        """Whether we start the engine; else it was found running."""
        return self._source.can_restart

    @property
    def can_restart(self) -> bool:
        """Whether the engine is lost and can be started again."""
        return self.state is FeedState.LOST and self._source.can_restart

    @property
    def can_stop(self) -> bool:
        """Whether the engine can be stopped: one that is served, while it lives."""
        return self.served and self.state is FeedState.LIVE

    def log_tail(self, lines: int) -> list[str]:
        path = self._source.log_path
        return tail(path, lines) if path else []

    async def restart(self) -> None:
        self._supervisor.restart()

    async def stop_engine(self) -> None:
        await self._supervisor.stop_engine()

    def _work(self) -> list[Coroutine[Any, Any, None]]:
        return [self._supervisor.run(), self._elsewhere.run()]

    async def _wind_down(self) -> None:
        """Close the limit desk; the supervisor has stopped the load and the engine."""
        await self._limit_desk.close()

    def _endpoints(self) -> list[Endpoint]:
        """Return the engine's endpoint; nothing while no engine answers."""
        engine = self._supervisor.engine
        return [engine.endpoint] if engine and self.live.is_set() else []

    def _limit_target(self) -> LimitTarget | str:
        """Return the engine, or why its limits cannot be set while none answers."""
        engine = self._supervisor.engine
        if engine is None or not self.live.is_set():
            return NO_ENGINE
        return LimitTarget(
            engine_id=engine.engine_id,
            source=engine.engine_id,
            host=self._desk.must_name_host,
        )

    def _canary_targets(self) -> dict[str, LoadTarget]:
        """Return the engine as the only target, while it answers."""
        engine = self._supervisor.engine
        if engine is None or not self.live.is_set():
            return {}
        return {engine.engine_id: LoadTarget.of(engine.endpoint)}

    def _processes(self) -> list[tuple[int, str]]:
        engine = self._supervisor.engine.processes() if self._supervisor.engine else []
        load_pid = self._desk.pid
        load = [(load_pid, "load")] if load_pid is not None else []
        return [*engine, *load]
