"""Process usage is read from the operating system."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collectors.clock import SessionClock
from collectors.host import HostSampler, _quotas, short_of_cores, usable_cores
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


def test_the_usable_cores_are_no_more_than_the_affinity_allows() -> None:
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(everywhere)])
    try:
        assert 0 < usable_cores() <= 1
    finally:
        os.sched_setaffinity(0, everywhere)


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        (
            "0::/box/inner",
            {"box/cpu.max": "150000 100000", "box/inner/cpu.max": "max 1"},
        ),
        ("0::/elsewhere", {"cpu.max": "150000 100000"}),
        (
            "3:memory:/box\n1:cpu,cpuacct:/box",
            {
                "cpu,cpuacct/box/cpu.cfs_quota_us": "150000",
                "cpu,cpuacct/box/cpu.cfs_period_us": "100000",
                "memory/box/cpu.max": "1 100000",
            },
        ),
    ],
    ids=["of a group above", "as a container sees it", "of the first version"],
)
def test_a_quota_of_a_control_group_counts(
    tmp_path: Path, membership: str, files: dict[str, str]
) -> None:
    (tmp_path / "membership").write_text(membership)
    for name, content in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(content)

    assert list(_quotas(tmp_path / "membership", tmp_path / "groups")) == [1.5]


def test_a_group_without_a_quota_grants_everything(tmp_path: Path) -> None:
    (tmp_path / "membership").write_text("0::/\n1:cpu:/")
    (tmp_path / "cpu.max").write_text("max 100000")
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")

    assert not list(_quotas(tmp_path / "membership", tmp_path))


def test_a_client_needs_a_core_besides_the_engines_busy_threads() -> None:
    assert short_of_cores(1, 2) is None
    assert short_of_cores(2, 2) == (
        "this host has 2 cores and the engine keeps 2 threads busy: a client on this "
        "host waits for a core, and its latencies include that wait"
    )
    assert "1.5 cores and the engine keeps 1 thread busy" in str(short_of_cores(1, 1.5))
