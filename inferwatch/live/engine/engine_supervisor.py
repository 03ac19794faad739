"""Watches an engine from start to death, and starts it again on request."""

import asyncio
from functools import partial
from typing import Protocol

from collectors.contract.clock import NS_PER_S
from collectors.contract.collector import (
    CollectorError,
    SourceLostError,
    TappedCollector,
    name_of,
)
from collectors.contract.readings import AnyReading, NoteKind
from collectors.probe.stream import ProbeStream
from embedded_engine.engine.errors import EngineError
from inferwatch.feed import FeedState
from inferwatch.live.engine_source import EngineSource, LiveEngine
from inferwatch.live.live_session import LiveSession
from inferwatch.live.supervision import FaultReporter

PROBE_WAIT_NS = 5 * NS_PER_S
"""A probe answers in milliseconds; after this long it is taken to be absent."""


class EngineUser(Protocol):
    """What uses the engine while it lives and takes its probe's readings: a load."""

    async def engine_up(self, engine: LiveEngine) -> None:
        """Start to use the engine: it answers."""
        ...

    async def engine_down(self) -> None:
        """Stop using the engine: it is lost or about to be stopped."""
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
        """Watch one start after the other, until cancelled."""
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
        try:
            self.engine = await self._source.open(self._session.take)
            await self._is_live(self.engine)
            reason = await self.engine.wait()
            await self.engine.stop()  # ends processes that are left
        except EngineError as error:
            reason = str(error)
        finally:
            self.live.clear()
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
        """Wait for EngineCore's probe before any load, so that none goes unseen."""
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

    async def _pump(self, stream: ProbeStream) -> None:
        try:
            await self._session.pipeline.pump(TappedCollector(stream, self._user.hear))
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
