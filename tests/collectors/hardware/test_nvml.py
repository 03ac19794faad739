"""Without a driver the reason is said, not a zero."""

from pathlib import Path

import pytest

from collectors.contract.clock import SessionClock
from collectors.contract.readings import AnyReading, GpuInfo, GpuSample
from collectors.hardware.gpu_collector import GpuCollector

NO_DRIVER = not Path("/proc/driver/nvidia").exists()


@pytest.mark.skipif(not NO_DRIVER, reason="this machine has an NVIDIA driver")
async def test_a_machine_without_driver_says_so() -> None:
    clock = SessionClock()
    collector = GpuCollector(clock)
    (info,) = await anext(collector.batches())
    await collector.close()

    assert isinstance(info, GpuInfo)
    assert (info.source, info.name) == ("", None)
    assert (info.absent_because or "").startswith("no NVIDIA driver")
    assert 0 < info.t_ns < clock.now_ns()


@pytest.mark.gpu
async def test_a_gpu_has_a_name_and_an_identity() -> None:
    collector = GpuCollector(SessionClock())
    readings: list[AnyReading] = []
    batches = collector.batches()
    while not any(isinstance(each, GpuSample) for each in readings):
        readings += await anext(batches)
    await collector.close()

    infos = [each for each in readings if isinstance(each, GpuInfo)]
    assert infos
    for info in infos:
        assert info.name
        assert info.uuid
        assert info.uuid.startswith("GPU-")
