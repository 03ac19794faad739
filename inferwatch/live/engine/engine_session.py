"""A session that watches an engine through its restarts, and the load on it."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from collectors.contract.clock import SessionClock
from collectors.contract.readings import Endpoint
from embedded_engine.engine.logs import tail
from inferwatch.feed import FeedState
from inferwatch.live.engine.engine_supervisor import EngineSupervisor
from inferwatch.live.engine_source import EngineSource
from inferwatch.live.limit_desk import NO_ENGINE, LimitTarget, WatchedLimitDesk
from inferwatch.live.load.elsewhere_loads import ExternalLoadWatcher
from inferwatch.live.load.load_desk import LoadTarget, MakeLoad, WatchedLoadDesk
from inferwatch.live.pipeline import Pipeline
from inferwatch.live.watch import Watch


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
        """Whether an engine has ever answered: else there is nothing to sum up."""
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
        """Whether the engine will go on: one that is served, while it lives."""
        return self.served and self.live.is_set()

    @property
    def farewell(self) -> str:
        return "detached; the engine keeps running. `inferwatch` attaches to it again."

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
        """Return where the engine listens; nothing while none answers."""
        engine = self._supervisor.engine
        return [engine.endpoint] if engine and self.live.is_set() else []

    def _limit_target(self) -> LimitTarget | str:
        """Return the engine; while none answers, why its limits cannot be set."""
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
