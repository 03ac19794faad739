"""A session that watches an engine: its lives, its load, the record of both."""

import asyncio

from collectors.clock import SessionClock
from collectors.readings import Endpoint
from embedded_engine.logs import tail
from inferwatch.feed import FeedState, RecordState
from inferwatch.formatting import wall_clock
from inferwatch.metrics.snapshot import Snapshot, Window
from inferwatch.session.elsewhere_loads import ElsewhereLoads
from inferwatch.session.engine_source import EngineSource
from inferwatch.session.engine_supervisor import EngineSupervisor
from inferwatch.session.live_playback import LivePlayback
from inferwatch.session.live_session import LiveSession
from inferwatch.session.load_desk import MakeLoad, WatchedLoadDesk
from inferwatch.session.pipeline import Pipeline


class EngineSession:
    """Watches an engine and its load, as a :class:`inferwatch.feed.Feed`."""

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
        self._session = LiveSession(clock, pipeline, self._processes)
        self.load_desk = WatchedLoadDesk(
            self._session, served=source.served, make_load=make_load
        )
        """Where load on the engine is started, changed and stopped."""
        self.playback = LivePlayback(clock, pipeline)
        """Holds the view, and goes through the past; what is recorded goes on."""
        self._supervisor = EngineSupervisor(self._session, source, self.load_desk)
        self._elsewhere = ElsewhereLoads(self._session, self._endpoint)

    # What the screens ask.

    @property
    def state(self) -> FeedState:
        """Where the numbers come from right now."""
        return (
            self._supervisor.state
            if self._session.ended_ns is None
            else FeedState.ENDED
        )

    @property
    def live(self) -> asyncio.Event:
        """Set while an engine answers and its load, if any, runs."""
        return self._supervisor.live

    @property
    def came_up(self) -> bool:
        """An engine has answered: there is something to sum up."""
        return self._supervisor.came_up

    @property
    def lost(self) -> asyncio.Event:
        """Set when the engine died or never came."""
        return self._supervisor.lost

    @property
    def reason(self) -> str:
        """Why the engine was lost."""
        return self._supervisor.reason

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
        """What the recorder does; None when nothing is recorded."""
        return self._pipeline.record

    def now_ns(self) -> int:
        """Session time of what is shown."""
        return self.playback.position_ns

    def wall_text(self, t_ns: int, *, ms: bool = False) -> str:
        """Local clock time of a moment."""
        wall_ns = self._session.anchors.wall_ns(t_ns + self.clock.start_ns)
        return wall_clock(wall_ns, ms=ms)

    def snapshot(
        self,
        window: Window,
        *,
        requests: bool = True,
        client: bool = False,
        source: str | None = None,
    ) -> Snapshot:
        """Everything as of the moment shown; the client's view if asked."""
        return self.playback.snapshot(
            window, requests=requests, client=client, source=source
        )

    def present(self, source: str | None = None) -> Snapshot:
        """As things are now, whatever moment is shown."""
        return self._session.known(Window.MINUTE, source)

    def whole(self) -> Snapshot:
        """The whole session up to now, or up to its end."""
        now_ns = (
            self.clock.now_ns()
            if self._session.ended_ns is None
            else self._session.ended_ns
        )
        return self._pipeline.snapshot(now_ns, Window.SESSION)

    def log_tail(self, lines: int) -> list[str]:
        """The engine's latest log lines."""
        path = self._source.log_path
        return tail(path, lines) if path else []

    async def restart(self) -> None:
        """Start the lost engine again."""
        self._supervisor.restart()

    async def stop_engine(self) -> None:
        """End a served engine."""
        await self._supervisor.stop_engine()

    # The session.

    async def run(self) -> None:
        """Watch until cancelled; whatever we started is gone when this returns."""
        async with self._session.recorded():
            try:
                await self._session.collect(
                    self._supervisor.run(), self._elsewhere.run()
                )
            finally:
                await self.playback.close()

    def _endpoint(self) -> Endpoint | None:
        """Where the engine listens, while one answers."""
        engine = self._supervisor.engine
        return engine.endpoint if engine and self.live.is_set() else None

    def _processes(self) -> list[tuple[int, str]]:
        engine = self._supervisor.engine.processes() if self._supervisor.engine else []
        load_pid = self.load_desk.pid
        load = [(load_pid, "load")] if load_pid is not None else []
        return [*engine, *load]
