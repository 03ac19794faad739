"""Runs of the real generator against the truth server, and what that server knows."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from collectors.contract.clock import SessionClock
from collectors.contract.readings import AnyReading
from collectors.load.load_stream import LoadStream
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.process import LoadProcess

DEADLINE_S = 60


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    """Wait for a condition that another process brings about."""

    async def wait(holds: Callable[[], bool], seconds: float = 30) -> None:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - another process tells nothing
                await asyncio.sleep(0.01)

    return wait


@pytest.fixture
def truth_log(truth_url: str) -> Callable[[str], dict[str, Any]]:
    """What the server knows of the requests whose ids start so, by id."""

    def log(prefix: str) -> dict[str, Any]:
        answers = httpx.get(f"{truth_url}/log", trust_env=False).json()
        return {
            answer["request_id"]: SimpleNamespace(**answer)
            for answer in answers
            if answer["request_id"].startswith(f"{prefix}-")
        }

    return log


@pytest.fixture
def under_load(tmp_path: Path) -> Callable[[LoadPlan], Any]:
    """Run a plan beside the test, as an asynchronous context.

    In it, ``run.readings`` grows, ``run.process`` is the child, and ``run.end()`` waits
    for its end and for the last reading. Times are raw: the session started at zero.
    """

    @asynccontextmanager
    async def start(plan: LoadPlan) -> AsyncIterator[Any]:
        run = SimpleNamespace(readings=[], process=LoadProcess(tmp_path / "load.log"))
        stream = LoadStream(SessionClock(0), plan.run_id, tmp_path / "load")

        async def pump() -> None:
            async for batch in stream.batches():
                run.readings.extend(batch)

        async def end() -> int:
            status: int = await asyncio.wait_for(run.process.wait(), DEADLINE_S)
            await stream.close()
            await pumping
            return status

        run.end = end
        pumping = asyncio.create_task(pump())
        try:
            await run.process.start(plan, stream.address)
            yield run
        finally:
            await run.process.stop()
            await end()

    return start


@pytest.fixture
def run_plan(
    under_load: Callable[[LoadPlan], Any],
) -> Callable[[LoadPlan], Awaitable[list[AnyReading]]]:
    """All readings of a run from start to end."""

    async def run(plan: LoadPlan) -> list[AnyReading]:
        async with under_load(plan) as running:
            assert await running.end() == 0
        readings: list[AnyReading] = running.readings
        return readings

    return run
