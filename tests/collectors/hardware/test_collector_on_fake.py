"""The collector's thread, on a fake library in real time: our handling, no driver's."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from unittest.mock import patch

from collectors.contract.clock import SessionClock
from collectors.contract.readings import AnyReading, GpuInfo, GpuSample, Note
from collectors.hardware.gpu_collector import GpuCollector
from collectors.hardware.gpu_source import GpuOptions
from tests.collectors.hardware.watched_fake import FIRST, left_clean
from tests.fake_nvml import FakeNvml, in_fake_nvml

Meanwhile = Callable[[GpuCollector, list[AnyReading]], Awaitable[None]]
PATIENCE_S = 60.0


def collected(
    fake: FakeNvml, meanwhile: Meanwhile, rate_hz: float = 10.0
) -> list[AnyReading]:
    """All that is handed over until ``meanwhile`` returns; nothing may be left."""
    told: list[AnyReading] = []

    async def run() -> None:
        collector = GpuCollector(SessionClock(), GpuOptions(rate_hz=rate_hz))

        async def take() -> None:
            async for batch in collector.batches():
                told.extend(batch)

        taking = asyncio.create_task(take())
        async with asyncio.timeout(PATIENCE_S):
            await meanwhile(collector, told)
        await collector.close()
        await taking

    with (  # this library always returns, however busy the machine
        patch("collectors.hardware.gpu_collector.JOIN_S", PATIENCE_S),
        patch("collectors.hardware.nvml_events.JOIN_S", PATIENCE_S),
    ):
        asyncio.run(run())
    left_clean(fake)
    return told


def samples(told: list[AnyReading]) -> list[GpuSample]:
    """Of the first GPU."""
    return [
        each for each in told if isinstance(each, GpuSample) and each.source == FIRST
    ]


async def until(what: Callable[[], object]) -> None:
    """Poll; the caller has a deadline."""
    while not what():  # noqa: ASYNC110 - what it waits for has no event
        await asyncio.sleep(0.01)


@in_fake_nvml
def test_we_sweep_faster_while_somebody_looks_closely(fake: FakeNvml) -> None:
    counts: list[int] = []

    async def look(collector: GpuCollector, told: list[AnyReading]) -> None:
        await until(lambda: samples(told))
        collector.look_closely(True)
        await until(lambda: len(samples(told)) > 2)
        counts.append(len(samples(told)))
        await asyncio.sleep(1.5)
        counts.append(len(samples(told)))
        collector.look_closely(False)
        await asyncio.sleep(0.3)  # one may be under way
        counts.append(len(samples(told)))
        await asyncio.sleep(0.6)
        counts.append(len(samples(told)))

    collected(fake, look, rate_hz=1.0)
    before, closely, after, later = counts
    assert 5 <= closely - before <= 16  # a busy machine sweeps less often
    assert later - after <= 1


@in_fake_nvml
def test_we_ask_a_slow_driver_less_often_and_say_so(fake: FakeNvml) -> None:
    """For the engine needs it too."""
    fake.do("gpus 1; cost nvmlDeviceGetFieldValues 150000")

    async def look(_: GpuCollector, told: list[AnyReading]) -> None:
        await until(lambda: any(isinstance(each, Note) for each in told))

    told = collected(fake, look)
    [note] = [each.text for each in told if isinstance(each, Note)]
    assert "the driver takes 1" in note
    moments = [each.t_ns for each in samples(told)]
    assert moments[2] - moments[1] > 600_000_000


@in_fake_nvml
def test_a_driver_that_takes_long_does_not_hold_up_the_event_loop(
    fake: FakeNvml,
) -> None:
    fake.do("cost nvmlDeviceGetFieldValues 400000; cost nvmlInitWithFlags 400000")
    late_s: list[float] = []

    async def look(_: GpuCollector, told: list[AnyReading]) -> None:
        while len(samples(told)) < 2:
            slept_s = time.perf_counter()
            await asyncio.sleep(0.01)
            late_s.append(time.perf_counter() - slept_s - 0.01)

    collected(fake, look)
    late_s.sort()
    assert late_s[len(late_s) // 2] < 0.05


@in_fake_nvml
def test_closing_waits_for_a_call_under_way_and_frees_all(fake: FakeNvml) -> None:
    async def look(_: GpuCollector, told: list[AnyReading]) -> None:
        await until(lambda: len(samples(told)) > 1)
        fake.do("cost nvmlDeviceGetFieldValues 700000")
        await asyncio.sleep(0.2)

    told = collected(fake, look)
    assert fake.count("references") == 0
    assert {each.source for each in told if isinstance(each, GpuInfo)}


@in_fake_nvml
def test_closing_before_anything_was_read_is_clean(fake: FakeNvml) -> None:
    async def look(_: GpuCollector, told: list[AnyReading]) -> None:
        await asyncio.sleep(0)

    for _ in range(3):
        collected(fake, look)
    assert fake.count("references") == 0
