"""Process usage is read from the operating system."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from collectors.contract.clock import SessionClock
from collectors.contract.readings import (
    AnyReading,
    HostInfo,
    HostSample,
    OtherProcesses,
    ProcessUsage,
)
from collectors.hardware import host
from collectors.hardware.host import (
    HostSampler,
    MemoryLimit,
    OtherProcessFinder,
    _limits,
    _quotas,
    cpu_features,
    cpu_name,
    run_queue,
    short_of_cores,
    throttled_s,
    usable_cores,
)


async def first_two(sampler: HostSampler) -> tuple[HostInfo, HostSample]:
    found: list[AnyReading] = []
    async for batch in sampler.batches():
        found += batch
        if len(found) == 2:
            await sampler.close()
    info, sample = found
    assert isinstance(info, HostInfo)
    assert isinstance(sample, HostSample)
    return info, sample


async def one_sample(sampler: HostSampler) -> HostSample:
    return (await first_two(sampler))[1]


async def test_a_sample_holds_cpu_and_memory_by_role() -> None:
    sampler = HostSampler(SessionClock(), lambda: [(os.getpid(), "inferwatch")], 0.01)

    (usage,) = (await one_sample(sampler)).processes

    assert usage.role == "inferwatch"
    assert usage.cpu_s > 0
    assert usage.rss_bytes > 1_000_000
    assert usage.threads == len([*Path("/proc/self/task").iterdir()])


async def test_what_the_host_is_comes_first_and_its_load_after_it() -> None:
    sampler = HostSampler(SessionClock(), list, 0.01, source="node-7")

    info, sample = await first_two(sampler)

    assert info.source == sample.source == "node-7"
    assert info.name == socket.gethostname()
    assert info.cores == os.cpu_count()
    assert info.memory_bytes is not None
    assert sample.memory_used_bytes is not None
    assert 0 < sample.memory_used_bytes < info.memory_bytes
    assert sample.run_queue is not None


async def test_a_pid_that_comes_again_is_not_the_process_that_was_listed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stat = Path("/proc/self/stat").read_text()
    head, _, fields = stat.rpartition(")")
    (tmp_path / "7").mkdir()
    monkeypatch.setattr(host, "PROC", tmp_path)
    process, alive = host.WatchedProcess(7, "core"), []
    for birth in ("100", "100", "200"):
        numbers = fields.split()
        numbers[host.BIRTH] = birth
        (tmp_path / "7/stat").write_text(f"{head}) {' '.join(numbers)}")
        alive.append(process.usage({}) is not None)

    assert alive == [True, True, False]


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

    found = _quotas(tmp_path / "membership", tmp_path / "groups")
    assert list(found.values()) == [1.5]


def test_a_group_without_a_quota_grants_everything(tmp_path: Path) -> None:
    (tmp_path / "membership").write_text("0::/\n1:cpu:/")
    (tmp_path / "cpu.max").write_text("max 100000")
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")

    assert not _quotas(tmp_path / "membership", tmp_path)


@pytest.mark.parametrize(
    "told",
    [
        "usage_usec 5\nnr_periods 9\nnr_throttled 3\nthrottled_usec 2500000\n",
        "nr_periods 9\nnr_throttled 3\nthrottled_time 2500000000\n",
    ],
    ids=["version 2", "version 1"],
)
def test_how_long_a_quota_held_a_group_back_is_read(tmp_path: Path, told: str) -> None:
    (tmp_path / "cpu.stat").write_text(told)

    assert throttled_s(tmp_path) == 2.5
    assert throttled_s(tmp_path / "nowhere") is None


def test_without_a_quota_nothing_is_said_of_being_held_back() -> None:
    process = host.WatchedProcess(os.getpid(), "core")
    process.quotas = []

    usage = process.usage({})

    assert usage is not None
    assert usage.throttled_s is None


def test_with_a_quota_it_is_told_of_the_process_that_is_in_its_group(
    tmp_path: Path,
) -> None:
    process = host.WatchedProcess(os.getpid(), "core")
    process.quotas = [tmp_path / "inner", tmp_path]

    usage = process.usage({tmp_path / "inner": None, tmp_path: 2.5})

    assert usage is not None
    assert usage.throttled_s == 2.5


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        (
            "0::/box/inner",
            {
                "box/memory.max": "8000000",
                "box/memory.current": "5000000",
                "box/memory.stat": "anon 4000000\ninactive_file 600000\nactive_file 1",
                "box/inner/memory.max": "max",
            },
        ),
        (
            "4:memory:/box",
            {
                "memory/box/memory.limit_in_bytes": "8000000",
                "memory/box/memory.usage_in_bytes": "5000000",
                "memory/box/memory.stat": "cache 9\ntotal_inactive_file 600000",
                "memory/memory.limit_in_bytes": "9223372036854771712",
            },
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_a_container_has_the_memory_that_it_is_granted(
    tmp_path: Path, membership: str, files: dict[str, str]
) -> None:
    (tmp_path / "membership").write_text(membership)
    for name, content in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(content)

    (limit,) = _limits(tmp_path / "membership", tmp_path / "groups")

    assert limit.most == 8_000_000
    assert limit.used_bytes() == 4_400_000


async def test_memory_is_what_the_engine_may_use_and_not_we(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = MemoryLimit(tmp_path, 2_000, "used", "inactive_file")
    engine = MemoryLimit(tmp_path, 8_000, "used", "inactive_file")
    (tmp_path / "used").write_text("1500")
    monkeypatch.setattr(
        host, "_limits", lambda path: [ours if "self" in path.parts else engine]
    )
    monkeypatch.setattr(host, "LIST_EVERY", 1)
    processes: list[tuple[int, str]] = []
    sampler, sizes = HostSampler(SessionClock(), lambda: processes, 0.01), []

    async for batch in sampler.batches():
        sizes += [each.memory_bytes for each in batch if isinstance(each, HostInfo)]
        if processes and any(isinstance(each, HostSample) for each in batch):
            await sampler.close()
        processes = [(os.getpid(), "core"), (os.getppid(), "inferwatch")]

    assert sizes == [2_000, 8_000]


def test_the_run_queue_is_without_the_thread_that_looks(tmp_path: Path) -> None:
    loadavg = tmp_path / "loadavg"
    loadavg.write_text("2.34 1.35 1.41 6/140 31635\n")

    assert run_queue(loadavg) == 5
    assert run_queue(tmp_path / "nowhere") is None
    loadavg.write_text("nonsense")
    assert run_queue(loadavg) is None


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [
        (
            "processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core\n",
            "AMD EPYC 9654 96-Core",
        ),
        ("processor\t: 0\nHardware\t: Neoverse\n", "Neoverse"),
    ],
)
def test_processors_are_named_as_each_architecture_does(
    tmp_path: Path, cpuinfo: str, model: str
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)

    assert cpu_name(tmp_path / "cpuinfo") == model


@pytest.mark.parametrize("key", ["flags\t\t", "Features\t"])
def test_what_a_processor_can_do_is_told_or_unknown(tmp_path: Path, key: str) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{key}: avx2 bf16\n")

    assert cpu_features(tmp_path / "cpuinfo") == {"avx2", "bf16"}
    assert cpu_features(tmp_path / "none") == frozenset()


def test_a_client_needs_a_core_besides_the_engines_busy_threads() -> None:
    assert short_of_cores(1, 2) is None
    assert short_of_cores(2, 2) == (
        "this host has 2 cores and the engine keeps 2 threads busy: a client on this "
        "host waits for a core, and its latencies include that wait"
    )
    assert "1.5 cores and the engine keeps 1 thread busy" in str(short_of_cores(1, 1.5))


def a_sample(second: int, busy_s: float, watched_s: float) -> HostSample:
    watched = ProcessUsage(pid=7, role="core", cpu_s=watched_s, rss_bytes=1)
    return HostSample(
        t_ns=second * 1_000_000_000, processes=[watched], cores=4, busy_s=busy_s
    )


@pytest.fixture
def tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int, str, float], None]:
    """Tell what CPU time a process has used so far: its PID, name and seconds."""
    monkeypatch.setattr(host, "PROC", tmp_path)
    (tmp_path / "self").mkdir()

    def told(pid: int, name: str, cpu_s: float) -> None:
        fields = ["0"] * 30
        fields[host.STATE], fields[host.BIRTH] = "R", f"{pid}"
        fields[host.USER] = str(round(cpu_s * host.TICKS_PER_S))
        stat = tmp_path / f"{pid}" / "stat"
        stat.parent.mkdir(exist_ok=True)
        stat.write_text(f"{pid} ({name}) {' '.join(fields)}")

    return told


def test_others_are_named_while_they_keep_the_host_busy_and_not_more_often(
    tell: Callable[[int, str, float], None],
) -> None:
    finder, looks, found = OtherProcessFinder(), [], []
    for second in range(20):
        busy_s = 4.0 * second
        for pid in (21, 22):
            tell(pid, "a) b", 1.2 * second)
        tell(30, "backup", 0.5 * second)
        tell(31, "one more", 0.2 * second)
        tell(32, "the least", 0.1 * second)
        tell(33, "idle", 3)
        tell(7, "EngineCore", 0.8 * second)
        sample = a_sample(second, busy_s, 0.8 * second)
        if finder.is_due(sample):
            looks.append(second)
            found.append(finder.look(sample))

    assert looks == [1, 6, 11, 16]
    assert found[0] is None
    latest = found[-1]
    assert latest is not None
    assert [(p.name, round(p.cores, 2), p.count) for p in latest.largest] == [
        ("a) b", 2.4, 2),
        ("backup", 0.5, 1),
        ("one more", 0.2, 1),
    ]
    assert latest.largest[0].pid in {21, 22}


@pytest.mark.parametrize(
    ("pause", "looks"), [(range(4, 5), [1, 6, 11]), (range(4, 14), [1, 14, 19])]
)
def test_a_sample_with_room_does_not_begin_the_looks_anew(
    tell: Callable[[int, str, float], None], pause: range, looks: list[int]
) -> None:
    finder, seen, named, busy_s = OtherProcessFinder(), [], [], 0.0
    for second in range(looks[-1] + 1):
        busy_s += 2.0 if second in pause else 4.0
        tell(21, "yes", busy_s)
        sample = a_sample(second, busy_s, 0.0)
        if finder.is_due(sample):
            seen.append(second)
            named.append(finder.look(sample) is not None)

    assert seen == looks
    assert named == [False, len(pause) == 1, True]


def test_who_is_no_longer_watched_is_charged_only_since_the_last_look(
    tell: Callable[[int, str, float], None],
) -> None:
    finder = OtherProcessFinder()
    looks: list[OtherProcesses | None] = []
    for second in range(12):
        tell(7, "EngineCore", 5_000 + 0.8 * second)
        tell(21, "yes", 3.0 * second)
        sample = a_sample(second, 4.0 * second, 0.8 * second)
        if second > 8:
            sample = msgspec.structs.replace(sample, processes=[])
        if finder.is_due(sample):
            looks.append(finder.look(sample))

    latest = looks[-1]
    assert latest is not None
    assert [(p.name, round(p.cores, 2)) for p in latest.largest] == [
        ("yes", 3.0),
        ("EngineCore", 0.8),
    ]


@pytest.mark.parametrize(
    ("busy", "watched"), [(0.5, 0.1), (4.0, 3.9)], ids=["room", "ours"]
)
def test_nobody_is_looked_at_while_there_is_room_or_the_engine_is_it(
    busy: float, watched: float
) -> None:
    finder = OtherProcessFinder()

    due = [finder.is_due(a_sample(n, busy * n, watched * n)) for n in range(10)]

    assert not any(due)
