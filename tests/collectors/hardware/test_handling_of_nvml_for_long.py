"""Our handling of NVML over many sweeps in which anything may fail at any time.

It proves that *we* leak nothing and go on, on a fake library; not that a driver does.
"""

import gc
from random import Random

import psutil
import pytest

from tests.collectors.hardware.watched_fake import (
    FIRST,
    NO_EVENTS,
    SECOND,
    Watching,
    watched,
)
from tests.fake_nvml import FakeNvml, in_fake_nvml

GROWTH_BYTES = 4 << 20
"""Far below what a sample, or a reading, leaked in each sweep would add up to."""
CODES = (2, 3, 4, 6, 9, 13, 15, 16, 19, 21, 25, 27, 999)
FUNCTIONS = (
    *("nvmlGpmSampleGet", "nvmlGpmMetricsGet", "nvmlGpmMigSampleGet"),
    *("nvmlGpmSampleAlloc", "nvmlGpmQueryDeviceSupport", "nvmlInitWithFlags"),
    *("nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"),
    *("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetName", "nvmlDeviceGetMigMode"),
    *("nvmlDeviceGetFieldValues", "nvmlDeviceGetMemoryInfo_v2", "*"),
    *("nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId"),
    *("nvmlDeviceGetClockInfo", "nvmlDeviceGetComputeRunningProcesses_v3"),
)


def mishap(random: Random) -> str:
    """What goes wrong next, or is mended."""
    gpu = random.randrange(2)
    first, count = random.randrange(1, 4), random.randrange(1, 6)
    code = random.choice(CODES)
    return random.choice(
        (
            f"return {random.choice(FUNCTIONS)} * {code} {first} {count}",
            f"return {random.choice(FUNCTIONS)} {gpu} {code} {first} {count}",
            f"lose {gpu} {random.choice((15, 16))}",
            f"back {gpu}",
            f"anew {gpu}",
            f"reset {gpu}",
            f"metric {gpu} {random.choice((2, 5, 10))} {random.choice((0, 3, 'nan'))}",
            f"field {gpu} {random.choice((82, 186, 269))} {random.choice((0, 3, 999))}",
            f"field_type {gpu} 83 {random.randrange(9)}",
            f"unmig {gpu} 255",
            f"mig {gpu} {random.randrange(7)} 1g.10gb 9856",
            f"value {gpu} sm {random.choice(('-', '101', '1e9'))}",
            "driver 535.129.03 (simulated)",
            "driver 580.95.05 (simulated)",
            f"fresh_faults; {NO_EVENTS}",
        )
    )


def forget(watching: Watching) -> int:
    """What was told so far; how many samples."""
    count = len(watching.samples(FIRST)) + len(watching.samples(SECOND))
    watching.told.clear()
    return count


def held(watching: Watching) -> int:
    """Samples that are still of use."""
    return sum(2 for each in watching.source._every() if each.counters_run)


@in_fake_nvml
def test_nothing_leaks_in_2_000_sweeps_with_faults_at_random(fake: FakeNvml) -> None:
    nothing_leaks(fake, 2_000)


@pytest.mark.soak
@in_fake_nvml
def test_nothing_leaks_in_10_000_sweeps_with_faults_at_random(fake: FakeNvml) -> None:
    nothing_leaks(fake, 10_000)


def nothing_leaks(fake: FakeNvml, sweeps: int) -> None:
    random, process = Random(12), psutil.Process()
    settled_bytes = samples = 0
    with watched(fake) as watching:
        for sweep in range(sweeps):
            if random.random() < 0.1:
                fake.do(mishap(random))
            watching.tick(random.choice((0.05, 0.2, 1.0, 1.0, 12.0)))
            assert fake.count("samples alive") == held(watching)
            samples += forget(watching)
            if sweep == sweeps // 5:
                gc.collect()
                settled_bytes = process.memory_info().rss
        gc.collect()
        grown = process.memory_info().rss - settled_bytes
        assert grown < GROWTH_BYTES
        assert samples > sweeps / 4  # it was not all in vain
        fake.do(f"fresh_faults; {NO_EVENTS}; driver 580.95.05 (simulated)")
        for gpu in range(2):
            fake.do(f"unmig {gpu} 255; anew {gpu}")
        watching.source.close()
        watching.told += watching.source.probe()
        watching.ticks(3)
        assert watching.last("dram_active", FIRST) is not None
        assert watching.last("dram_active", SECOND) is not None
