"""A session reads the dcgm-exporters that are named: our handling, no GPU."""

import asyncio

import pytest

from collectors.contract.clock import SessionClock
from collectors.hardware.gpu_source import GpuOptions
from inferwatch.live.live_session import LiveSession
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.hardware.view import GpuState
from inferwatch.metrics.model.model import Model
from tests.collectors.hardware.truth_exporter import GPU_A, TruthExporter
from tests.collectors.http_server import serving


async def test_gpus_of_an_exporter_are_in_the_snapshot() -> None:
    async with serving({"/metrics": TruthExporter().page()}) as server:
        clock = SessionClock()
        session = LiveSession(clock, Pipeline(Model()))
        session.gpus.options = GpuOptions(dcgm=(server.url,))

        async def seen() -> GpuState:
            while not (found := session.snapshot().gpus):  # noqa: ASYNC110 - it is told
                await asyncio.sleep(0.01)
            return found[-1]

        collecting = asyncio.create_task(session.collect())
        async with asyncio.timeout(20):
            gpu = await seen()
        await session.close_collectors()
        collecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collecting

    assert gpu.info.uuid == GPU_A
    assert gpu.info.driver == "580.65.06 simulated"
