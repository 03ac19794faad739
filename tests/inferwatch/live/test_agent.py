"""An agent on this host, and a session of its readings, in one process."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from collectors.contract.clock import SessionClock
from collectors.contract.readings import AnyReading, GpuInfo, HostSample
from collectors.remote.agent_stream import RemoteAgent
from inferwatch.feed import FeedState
from inferwatch.live.attached import agent as agent_module
from inferwatch.live.attached.agent import Agent
from inferwatch.live.attached.attached_session import AttachedSession
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        agent_module, "processes_of", lambda _: [(os.getppid(), "core")]
    )


@asynccontextmanager
async def publishing(path: Path) -> AsyncIterator[Agent]:
    said: list[str] = []
    agent = Agent("gpu1", path, said.append)
    agent.open()
    task = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert said == []


@asynccontextmanager
async def watching(
    path: Path,
) -> AsyncIterator[tuple[AttachedSession, list[AnyReading]]]:
    clock = SessionClock()
    heard: list[AnyReading] = []
    session = AttachedSession(
        clock,
        Pipeline(Model(), None, heard.append),
        servers=(),
        agents=[RemoteAgent(address=f"unix:{path}")],
    )
    task = asyncio.create_task(session.run())
    try:
        yield session, heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not what():  # noqa: ASYNC110 - it comes from outside
            await asyncio.sleep(0.02)


async def test_hardware_alone_can_be_watched(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"

    def far(kind: type[AnyReading]) -> list[AnyReading]:
        return [
            each
            for each in heard
            if isinstance(each, kind) and each.source not in {"", None}
        ]

    async with publishing(path), watching(path) as (session, heard):
        await until(lambda: far(HostSample) and far(GpuInfo))
        assert session.begun.is_set()
        assert session.came_up
        assert session.failure is None
        assert session.state is FeedState.LIVE
        assert session.snapshot(SnapshotQuery(Window.MINUTE)) is not None

    sample = far(HostSample)[0]
    assert isinstance(sample, HostSample)
    assert sample.source == "gpu1"
    assert {(each.pid, each.role) for each in sample.processes} == {
        (os.getpid(), "agent"),
        (os.getppid(), "core"),
    }


async def test_an_agent_that_never_answers_is_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.probe.relayed.NEVER_NS", 30_000_000)
    async with watching(tmp_path / "none.sock") as (session, _):
        await until(session.begun.is_set)
        assert session.state is FeedState.LOST
        assert not session.came_up
        assert "no agent answers at" in str(session.failure)


async def test_an_agent_keeps_no_more_than_its_ring_whoever_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "RING_BYTES", 20_000)
    async with publishing(tmp_path / "a.sock") as agent:
        sample = HostSample(t_ns=1, processes=[])
        for _ in range(50):
            agent._tell([sample] * 100)
            await asyncio.sleep(0)
        await until(lambda: agent._channel._sender.emitted >= 5_000)
        assert agent._channel._ring.used_bytes <= 20_000
        assert not agent.watched
