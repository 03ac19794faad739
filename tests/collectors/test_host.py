"""Process usage is read from the operating system."""

import asyncio
import os
import subprocess
import sys
import time

import pytest

from collectors.clock import SessionClock
from collectors.host import HostSampler
from collectors.readings import HostSample


async def one_sample(sampler: HostSampler) -> HostSample:
    async for batch in sampler.batches():
        await sampler.close()
        (sample,) = batch
        assert isinstance(sample, HostSample)
        return sample
    raise AssertionError("no sample")


async def test_a_sample_holds_cpu_and_memory_by_role() -> None:
    sampler = HostSampler(SessionClock(), lambda: [(os.getpid(), "inferwatch")], 0.01)

    (usage,) = (await one_sample(sampler)).processes

    assert usage.role == "inferwatch"
    assert usage.cpu_s > 0
    assert usage.rss_bytes > 1_000_000


@pytest.mark.process
async def test_a_process_that_ended_is_left_out() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    sampler = HostSampler(SessionClock(), lambda: [(child.pid, "core")], 0.01)

    assert (await one_sample(sampler)).processes == []


async def test_a_busy_event_loop_shows_as_lag() -> None:
    sampler = HostSampler(SessionClock(), list, 0.01)
    sampling = asyncio.create_task(one_sample(sampler))
    await asyncio.sleep(0)

    time.sleep(0.1)  # noqa: ASYNC251 - blocking the loop is the point

    lag_s = (await sampling).loop_lag_s
    assert lag_s is not None
    assert lag_s >= 0.08
