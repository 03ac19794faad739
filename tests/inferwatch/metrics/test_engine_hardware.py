"""Which GPUs are the engine's, and what they and it do together."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from collectors.contract.readings import (
    AnyReading,
    Contact,
    EngineInfo,
    EngineSample,
    GpuProcesses,
    GpuSample,
    HostSample,
    ProcessUsage,
    ServerInfo,
    Totals,
)
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from tests.inferwatch.metrics.scripted_hardware import S, gpu_info, slice_info, uuid

Traffic = Callable[..., Any]
MB = 1_000_000


def look(
    readings: Iterable[AnyReading],
    now_s: float = 10,
    window: Window = Window.MINUTE,
    source: str | None = None,
) -> Snapshot:
    model = Model()
    for reading in readings:
        model.fold(reading)
    return model.snapshot(
        round(now_s * S), SnapshotQuery(window, hardware=True, source=source)
    )


def engine(source: str = "engine-1", pid: int = 7, **fields: Any) -> EngineInfo:
    known: dict[str, Any] = {"t_ns": 0, "model": "tiny", "vllm_version": "0"}
    return EngineInfo(**(known | fields), source=source, pid=pid)


def used(uuid: str, *pids: int) -> GpuProcesses:
    return GpuProcesses(t_ns=1, source=uuid, memory_bytes=dict.fromkeys(pids, 1))


def host(source: str = "", **pids: int) -> HostSample:
    listed = [
        ProcessUsage(pid=pid, role=role, cpu_s=0, rss_bytes=0)
        for role, pid in pids.items()
    ]
    return HostSample(t_ns=1, source=source, processes=listed)


def watched(snapshot: Snapshot) -> list[bool | None]:
    return [gpu.watched for gpu in snapshot.gpus]


GPUS = [gpu_info(index) for index in range(3)]


def test_an_engine_tells_its_gpus() -> None:
    snapshot = look([*GPUS, engine(gpus=[uuid(2), "GPU-elsewhere"])])

    assert watched(snapshot) == [False, False, True]
    assert snapshot.hardware.gpus == 1


def test_else_they_are_those_on_which_its_processes_have_memory() -> None:
    listed = [used(uuid(0), 7), used(uuid(1), 8, 99), used(uuid(2), 99, 100)]

    snapshot = look([*GPUS, engine(), host(core=7, worker=8, api=100), *listed])

    assert watched(snapshot) == [True, True, False]


def test_a_process_of_the_same_number_on_another_host_is_another() -> None:
    far = gpu_info(1, host="node-2")
    listed = [used(uuid(0), 99), used(uuid(1), 7)]

    assert look([GPUS[0], far, host(core=7), *listed]).gpus[1].watched is None


def test_where_nobody_knows_all_gpus_count() -> None:
    snapshot = look([*GPUS, engine()])

    assert watched(snapshot) == [None] * 3
    assert snapshot.hardware.gpus == 3


def test_of_one_server_its_own_gpus_are_marked() -> None:
    two: list[AnyReading] = [
        engine("a", gpus=[uuid(0)]),
        engine("b", gpus=[uuid(1)]),
        Totals(t_ns=1, source="b", running=1),
    ]

    assert watched(look([*GPUS, *two])) == [True, True, False]
    assert watched(look([*GPUS, *two], source="b")) == [False, True, False]


def server(source: str, url: str) -> list[AnyReading]:
    return [
        Contact(t_ns=1, source=source, answers=True),
        ServerInfo(t_ns=1, source=source, name=source, family="vllm", url=url),
        EngineSample(t_ns=1, source=source, running=1),
    ]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("http://gpu1:8000", "http://gpu2:8000", [True, False]),
        ("http://gpu1.example:8000", "http://gpu2.example:8000", [True, False]),
        ("http://gpu1:8000", "http://gpu1:8001", [None, None]),  # either may be it
        ("http://192.0.2.1:8000", "http://192.0.2.2:8000", [None, None]),
    ],
)
def test_of_one_server_of_several_the_gpus_are_those_of_its_host(
    one: str, other: str, expected: list[bool | None]
) -> None:
    gpus = [gpu_info(0, host="gpu1"), gpu_info(1, host="gpu2")]
    listed = [used(uuid(0), 7), used(uuid(1), 7)]
    hosts = [host("gpu1", core=7), host("gpu2", core=7)]
    both = [*server("a", one), *server("b", other)]

    assert watched(look([*gpus, *both, *hosts, *listed], source="a")) == expected
    assert watched(look([*gpus, *both, *hosts, *listed])) == [True, True]


def test_slices_are_not_counted_beside_the_gpu_that_they_are_part_of() -> None:
    slices = [slice_info(0), slice_info(1)]

    all_of_them = look([GPUS[0], *slices])
    on_a_slice = look([GPUS[0], *slices, engine(gpus=[slices[1].source])])

    profiles = [gpu.info.profile for gpu in all_of_them.gpus]
    assert profiles == [None, "1g.10gb", "1g.10gb"]
    assert all_of_them.hardware.gpus == 1
    assert watched(on_a_slice) == [True, False, True]
    assert on_a_slice.hardware.gpus == 1


def test_a_slice_has_shares_and_no_bandwidth() -> None:
    part = slice_info(0)
    sample = GpuSample(
        t_ns=S, source=part.source, span_ns=S, dram_active=0.5, peak_bytes_per_s=1e12
    )

    (gpu,) = look([part, sample]).gpus

    assert (gpu.hbm_share, gpu.hbm_bytes_per_s) == (0.5, None)


def powered(
    traffic: Any, watts: float, seconds: int, since_s: int = 0
) -> Iterator[AnyReading]:
    """A GPU of constant power beside an engine, sampled once a second."""
    yield gpu_info()
    yield from traffic.start()
    for second in range(seconds):
        if second >= since_s:
            yield GpuSample(
                t_ns=second * S, source=uuid(0), energy_mj=round(watts * second * 1000)
            )
        yield from traffic.run(1)


@pytest.mark.parametrize(
    "window",
    [
        pytest.param(Window.TEN_SECONDS, marks=pytest.mark.soak),
        Window.MINUTE,
        pytest.param(Window.FIVE_MINUTES, marks=pytest.mark.soak),
        Window.SESSION,
    ],
    ids=str,
)
def test_the_energy_of_a_token_is_that_of_the_same_time(
    traffic: Any, window: Window
) -> None:
    readings = list(powered(traffic, 500.0, 30))

    snapshot = look(readings, 30, window)

    per_token = snapshot.hardware.joules_per_token
    rate = snapshot.flow.output_tokens_per_s
    assert per_token is not None
    assert rate is not None
    assert per_token == pytest.approx(500 / rate, rel=0.03)
    assert snapshot.hardware.tokens_per_s_per_w == pytest.approx(1 / per_token)


def test_energy_that_was_counted_long_before_the_engine_is_spread(traffic: Any) -> None:
    """The session's columns begin with steps, and are narrower than energy's bins."""
    idle = [
        GpuSample(t_ns=t * S, source=uuid(0), energy_mj=500_000 * (600 + t))
        for t in range(-600, 0)
    ]
    busy = [
        replace(each, energy_mj=each.energy_mj + 300_000_000)
        if isinstance(each, GpuSample) and each.energy_mj is not None
        else each
        for each in powered(traffic, 500.0, 30)
    ]

    snapshot = look([*idle, *busy], 30, Window.SESSION)

    rate = snapshot.flow.output_tokens_per_s
    assert snapshot.timeline.bin_ns < S
    assert rate is not None
    assert snapshot.hardware.joules_per_token == pytest.approx(500 / rate, rel=0.1)


def test_below_five_seconds_a_token_has_no_energy(traffic: Any) -> None:
    readings = list(powered(traffic, 500.0, 30, since_s=25))

    hardware = look(readings, 30).hardware

    assert hardware.energy_j == pytest.approx(4 * 500)
    assert hardware.joules_per_token is None


def test_idle_power_is_part_of_the_energy_of_tokens(traffic: Any) -> None:
    busy = list(powered(traffic, 500.0, 10))
    idle = [
        GpuSample(t_ns=t * S, source=uuid(0), energy_mj=500_000 * t)
        for t in range(10, 21)
    ]
    alone = look(busy, 10).hardware.joules_per_token
    both = look([*busy, *idle], 20).hardware.joules_per_token

    assert alone is not None
    assert both == pytest.approx(2 * alone, rel=0.1)


@pytest.mark.parametrize(
    "window",
    [
        pytest.param(Window.MINUTE, marks=pytest.mark.soak),
        Window.SESSION,
    ],
    ids=str,
)
def test_idle_power_before_a_load_costs_what_it_costs_behind_it(
    make_step: Traffic, window: Window
) -> None:
    """Ten seconds of load in twenty that are watched, first or last."""

    def joules_per_token(begin_s: int) -> float | None:
        load = [make_step(begin_s * 1_000 + 100 * n, {0: 1}) for n in range(1, 100)]
        power = [read_at(second) for second in range(21)]
        readings = [gpu_info(), engine(), *load, *power]
        return look(readings, 20, window).hardware.joules_per_token

    assert joules_per_token(0) == pytest.approx(20 * 500 / 99, rel=0.05)
    assert joules_per_token(10) == pytest.approx(20 * 500 / 99, rel=0.05)


def read_at(second: int, index: int = 0) -> GpuSample:
    return GpuSample(
        t_ns=second * S, source=uuid(index), energy_mj=500_000 * second, power_w=500.0
    )


def test_while_one_gpu_is_silent_what_all_take_is_unknown() -> None:
    """Its energy would be told as none, and that of tokens as half."""
    both = [read_at(second, index) for second in range(6) for index in (0, 1)]
    alone = [read_at(second) for second in range(6, 11)]

    snapshot = look([gpu_info(0), gpu_info(1), *both, *alone], 10, Window.TEN_SECONDS)

    line = snapshot.timeline
    at = [line.index_at(round(second * S)) for second in (2.5, 8.5)]
    assert [line.power_w[i] for i in at if i is not None] == [1_000.0, None]


def test_the_energy_of_one_gpu_is_not_told_as_that_of_two(traffic: Any) -> None:
    readings = [gpu_info(1), *powered(traffic, 500.0, 30)]

    hardware = look(readings, 30).hardware

    assert (hardware.energy_j, hardware.joules_per_token) == (None, None)


def test_steps_imply_memory_traffic_where_the_size_of_the_model_is_known(
    traffic: Any,
) -> None:
    sizes = {"weight_bytes": 100 * MB, "kv_bytes_per_token": 1_000}
    readings = [
        replace(each, **sizes) if isinstance(each, EngineInfo) else each
        for each in [*traffic.start(), *traffic.run(10)]
    ]

    snapshot = look(readings, 10)

    hardware, steps = snapshot.hardware, snapshot.steps
    rate, share = hardware.derived_bytes_per_s, hardware.derived_weights_share
    assert rate is not None
    assert share is not None
    assert rate * share == pytest.approx(100 * MB * steps.count / 10, rel=0.02)
    assert hardware.weight_bytes == 100 * MB
    assert hardware.kv_bytes == 300 * 16 * 1_000
    told = [x for x in snapshot.timeline.derived_bytes_per_s[-20:-1] if x]
    assert sum(told) / len(told) == pytest.approx(rate, rel=0.1)


def test_without_it_no_traffic_is_derived(traffic: Any) -> None:
    snapshot = look([*traffic.start(), *traffic.run(3)], 3)

    assert snapshot.hardware.derived_bytes_per_s is None
    assert snapshot.timeline.derived_bytes_per_s == ()


def test_the_worst_lag_of_an_api_server_is_told_of_its_host(traffic: Any) -> None:
    (endpoint,) = [e for e in traffic.start() if type(e).__name__ == "Endpoint"]
    told = [
        Totals(t_ns=t * S, source=endpoint.source, loop_lag_max_ns=lag)
        for t, lag in [(1, 5), (3, 7), (4, 80_000_000), (5, 7)]
    ]
    here, there = host(api=endpoint.pid), host("node-2", api=endpoint.pid + 1)

    mine, theirs = look([endpoint, here, there, *told], 6).hosts

    assert mine.api_loop_lag_s == pytest.approx(0.08)
    assert mine.timeline.loop_lag_s[-7:-5] == pytest.approx((0.08, 0.08))
    assert theirs.api_loop_lag_s is None


def test_while_a_server_starts_its_event_loop_is_nobodys_concern() -> None:
    blocked = [(t, t - 0.2) for t in range(1, 9)]
    told: list[AnyReading] = [
        Totals(t_ns=t * S, source="engine-1", loop_lag_max_ns=round(lag_s * S))
        for t, lag_s in [*blocked, (9, 8.3), (10, 0.3), (11, 0.01), (12, 4.5)]
    ]
    known: list[AnyReading] = [engine(), host(core=7)]

    (still,) = look([*known, *told[:9]], 9).hosts
    (up,) = look([*known, *told[:11]], 11).hosts
    (late,) = look([*known, *told], 12).hosts

    assert still.api_loop_lag_s is None
    assert up.api_loop_lag_s == pytest.approx(0.3)
    assert late.api_loop_lag_s == pytest.approx(4.5)
