"""Limits of real vLLM turned from the desk, told in the snapshot, and never left so."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from collectors.clock import NS_PER_S, SessionClock
from collectors.probe.control import WATCHER_GONE_S
from collectors.readings import LimitChange, LiveLimits
from embedded_engine.config import demo_config
from embedded_engine.probe_settings import ProbeSettings
from inferwatch.errors import UsageError
from inferwatch.feed import LimitPair
from inferwatch.metrics.model import Model
from inferwatch.metrics.snapshot import Window
from inferwatch.session.demo import demo_load
from inferwatch.session.engine_session import EngineSession
from inferwatch.session.engine_source import StartedEngine
from inferwatch.session.pipeline import Pipeline

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

WATCHER = """
import asyncio, sys
from collectors.probe.limit_control import LimitControl

async def main():
    control = await LimitControl.open(sys.argv[1], by="a watcher to be killed")
    await control.set(max_num_seqs=16)
    print("turned", flush=True)
    await asyncio.sleep(1_000)

asyncio.run(main())
"""
"""Another process that turns a limit and stays."""


async def until(holds: Callable[[], bool], seconds: float = 90) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - another process tells nothing
            await asyncio.sleep(0.05)


@asynccontextmanager
async def watched() -> AsyncIterator[EngineSession]:
    """A small engine with control, and a load that keeps it stepping."""
    source = StartedEngine(configure=lambda: demo_config(ProbeSettings(control=True)))
    pipeline = Pipeline(Model())
    watch = EngineSession(SessionClock(), pipeline, source, demo_load(seed=1))
    watching = asyncio.create_task(watch.run())
    try:
        await asyncio.wait_for(watch.live.wait(), 150)
        yield watch
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def told(watch: EngineSession) -> LiveLimits | None:
    """As the engine's steps tell."""
    return next(iter(watch.present().live_limits), None)


def seqs(watch: EngineSession) -> int | None:
    limits = told(watch)
    return limits.max_num_seqs if limits is not None else None


async def test_a_limit_is_turned_told_and_never_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))
    async with watched() as watch:
        desk = watch.limit_desk
        await until(lambda: seqs(watch) is not None)
        start = seqs(watch)
        assert start == 32
        assert desk.unavailable is None

        await desk.set(LimitPair(max_num_seqs=8))
        await until(lambda: seqs(watch) == 8)
        limits = told(watch)
        assert limits is not None
        assert (limits.change, limits.by) == (LimitChange.SET, desk.by)
        assert watch.present().engines[0].max_num_seqs == 8
        assert watch.snapshot(Window.TEN_SECONDS).live_limits[0].in_force

        with pytest.raises(UsageError, match="above 32"):
            await desk.set(LimitPair(max_num_seqs=33))
        await desk.reset()
        await until(lambda: seqs(watch) == start)

        await _killed_watcher(watch)
        await until(lambda: seqs(watch) == start, 60)
        limits = told(watch)
        assert limits is not None
        assert limits.change is LimitChange.WATCHER_GONE


async def _killed_watcher(watch: EngineSession) -> None:
    """Somebody turns a limit, and is killed; it holds for a while."""
    (engine,) = watch.present().engines
    engine_id = engine.source
    await asyncio.sleep(2.5)  # a change may come so long after the one before
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WATCHER, engine_id), stdout=PIPE
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        assert line == b"turned\n"
        await until(lambda: seqs(watch) == 16)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
    killed_ns = watch.clock.now_ns()
    await until(lambda: seqs(watch) == 32, 60)
    limits = told(watch)
    assert limits is not None
    waited_s = (limits.t_ns - killed_ns) / NS_PER_S
    assert WATCHER_GONE_S - 1 < waited_s < WATCHER_GONE_S + 10
