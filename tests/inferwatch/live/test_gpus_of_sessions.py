"""A session lets go of the GPUs when it ends."""

import asyncio
from threading import enumerate as running_threads

from collectors.contract.clock import SessionClock
from inferwatch.live.load.load_session import LoadSession
from inferwatch.live.pipeline import Pipeline
from inferwatch.loadgen.target_server import TargetServer
from inferwatch.metrics.model.model import Model


def reading() -> list[str]:
    return [each.name for each in running_threads() if each.name == "gpu"]


async def test_no_thread_reads_gpus_after_a_load() -> None:
    target = TargetServer.at("http://127.0.0.1:9", None, {})
    session = LoadSession(SessionClock(), Pipeline(Model()), target)
    async with session.opened():
        async with asyncio.timeout(10):
            while not reading():  # noqa: ASYNC110 - a thread that starts
                await asyncio.sleep(0.01)

    assert reading() == []
