"""A watch of an engine that answers and dies as told; what it serves is the truth."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collectors.contract.clock import SessionClock, monotonic_ns
from collectors.contract.readings import AnyReading, Endpoint
from embedded_engine.engine.errors import EngineError
from inferwatch.live.engine import engine_session as lives
from inferwatch.live.engine.engine_session import EngineSession
from inferwatch.live.engine_source import LiveEngine, OnStage
from inferwatch.live.load.load_desk import MakeLoad
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model
from inferwatch.record.lookup.recorded_readings import RecordedReadings
from inferwatch.record.writing.recorder import Recorder


@dataclass
class ScriptedEngine:
    """Serves at a URL until ``die`` is called."""

    url: str | None
    engine_id: str = "engine-1"
    stopped: bool = False
    threads: int = 0
    death: asyncio.Future[str] = field(default_factory=asyncio.Future)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(
            t_ns=monotonic_ns(), pid=1, model="ttft=0.02,itl=0.01", url=self.url
        )

    def processes(self) -> list[tuple[int, str]]:
        return []

    def busy_threads(self) -> int:
        return self.threads

    async def wait(self) -> str:
        return await asyncio.shield(self.death)

    async def stop(self) -> None:
        self.stopped = True

    def die(self, why: str = "the core died") -> None:
        self.death.set_result(why)


@dataclass
class ScriptedSource:
    """Gives a new engine for each life; without a URL it cannot."""

    url: str | None
    served: bool = False
    can_restart: bool = True
    log_path: Path | None = None
    engines: list[ScriptedEngine] = field(default_factory=list)
    threads: int = 0

    def prepare(self) -> str:
        return f"engine-{len(self.engines) + 1}"

    async def open(self, on_stage: OnStage) -> LiveEngine:  # noqa: ARG002 - scripted
        if self.url is None:
            raise EngineError("no room on the GPU")
        self.engines.append(
            ScriptedEngine(self.url, self.prepare(), threads=self.threads)
        )
        return self.engines[-1]


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    """Wait for a condition that a task or another process brings about."""

    async def wait(holds: Callable[[], bool], seconds: float = 20) -> None:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - another process tells nothing
                await asyncio.sleep(0.01)

    return wait


@pytest.fixture
def watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A watch that goes on beside the test, as an asynchronous context.

    ``run.watch``, ``run.source``, ``run.desk``; ``run.readings()`` are the record's,
    once the context has ended.
    """
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(lives, "PROBE_WAIT_NS", 0)

    @asynccontextmanager
    async def watch(
        url: str | None,
        *,
        served: bool = False,
        make_load: MakeLoad | None = None,
        threads: int = 0,
    ) -> AsyncIterator[Any]:
        clock, path = SessionClock(), tmp_path / "sessions.db"
        pipeline = Pipeline(Model(), Recorder.open(path, clock=clock))
        source = ScriptedSource(url, served, threads=threads)
        shown = EngineSession(clock, pipeline, source, make_load)

        async def readings() -> list[AnyReading]:
            return [
                each
                async for batch in RecordedReadings(path, "last").batches()
                for each in batch
            ]

        def hear(*events: AnyReading) -> None:
            for each in events:
                shown.load_desk.hear(each)

        run = SimpleNamespace(
            watch=shown,
            source=source,
            desk=shown.load_desk,
            readings=readings,
            hear=hear,
        )
        going = asyncio.create_task(shown.run())
        try:
            yield run
        finally:
            going.cancel()
            await asyncio.gather(going, return_exceptions=True)

    return watch
