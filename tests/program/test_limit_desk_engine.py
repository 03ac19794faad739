"""Limits of real vLLM turned from the desk, told in the snapshot, and never left so."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE

import msgspec
import pytest

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import LimitChange, LiveLimits
from collectors.probe.control import BETWEEN_CHANGES_S, WATCHER_GONE_S
from embedded_engine.engine.launch import Engine
from inferwatch.errors import UsageError
from inferwatch.feed import LimitPair
from inferwatch.live.engine.demo import demo_load
from inferwatch.live.engine.engine_session import EngineSession
from inferwatch.live.engine_source import LiveEngine
from inferwatch.loadgen.plan.lengths import fixed
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from tests.program.conftest import adopted, until

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("shared engine")]

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


def light_load(engine: LiveEngine, known: Snapshot) -> LoadPlan:
    """A few requests that keep it stepping: limits are told with steps."""
    plan = demo_load(seed=1)(engine, known)
    return msgspec.structs.replace(
        plan,
        rate_per_s=4.0,
        output_tokens=fixed(40),
        warmup_s=0.0,
        burst_every_s=None,
        burst_tokens=0,
    )


def told(watch: EngineSession) -> LiveLimits | None:
    """As the engine's steps tell."""
    return next(iter(watch.present().live_limits), None)


def seqs(watch: EngineSession) -> int | None:
    limits = told(watch)
    return limits.max_num_seqs if limits is not None else None


async def test_a_limit_is_turned_told_and_never_left_behind(engine: Engine) -> None:
    async with adopted(engine, light_load) as watch:
        desk = watch.limit_desk
        await until(lambda: seqs(watch) == 32, "the limit is known")
        assert desk.unavailable is None
        await asyncio.sleep(BETWEEN_CHANGES_S)  # others may have turned it just now

        await desk.set(LimitPair(max_num_seqs=8))
        await until(lambda: seqs(watch) == 8, "it is turned")
        limits = told(watch)
        assert limits is not None
        assert (limits.change, limits.by) == (LimitChange.SET, desk.by)
        assert watch.present().engines[0].max_num_seqs == 8
        assert watch.snapshot(SnapshotQuery(Window.TEN_SECONDS)).live_limits[0].in_force

        with pytest.raises(UsageError, match="above 32"):
            await desk.set(LimitPair(max_num_seqs=33))
        await desk.reset()
        await until(lambda: seqs(watch) == 32, "it is turned back")

        await _killed_watcher(watch)


async def _killed_watcher(watch: EngineSession) -> None:
    """Somebody turns a limit, and is killed; it holds for a while."""
    (engine,) = watch.present().engines
    await asyncio.sleep(BETWEEN_CHANGES_S + 0.5)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WATCHER, engine.source), stdout=PIPE
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        assert line == b"turned\n"
        await until(lambda: seqs(watch) == 16, "another turned it")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
    killed_ns = watch.clock.now_ns()
    await until(lambda: seqs(watch) == 32, "it is as at start")
    limits = told(watch)
    assert limits is not None
    assert limits.change is LimitChange.WATCHER_GONE
    waited_s = (limits.t_ns - killed_ns) / NS_PER_S
    assert WATCHER_GONE_S - 1 < waited_s < WATCHER_GONE_S + 10
