"""GPUs and hosts in snapshots: what they did last, over the window and over time."""

import json
import tracemalloc
from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from collectors.contract.readings import (
    AnyReading,
    GpuInfo,
    GpuProcesses,
    GpuSample,
    HostInfo,
    HostSample,
    ProcessUsage,
)
from inferwatch.metrics.hardware.view import GpuState
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.printing.summary.session import summarise
from tests.inferwatch.metrics.drawn import drawn
from tests.inferwatch.metrics.scripted_hardware import (
    LIMIT_W,
    PEAK,
    S,
    gpu_info,
    plausible,
    uuid,
)
from tests.inferwatch.record.test_round_trip import readings_of


def look(
    readings: Iterable[AnyReading], now_s: float, window: Window = Window.MINUTE
) -> Snapshot:
    model = Model()
    for reading in readings:
        model.fold(reading)
    return model.snapshot(round(now_s * S), SnapshotQuery(window, hardware=True))


def sample(
    t_s: float, index: int = 0, span_s: float | None = 1.0, **fields: Any
) -> GpuSample:
    span_ns = None if span_s is None else round(span_s * S)
    return GpuSample(t_ns=round(t_s * S), source=uuid(index), span_ns=span_ns, **fields)


def one(readings: Iterable[AnyReading], now_s: float, **kwargs: Window) -> GpuState:
    (gpu,) = look([gpu_info(), *readings], now_s, **kwargs).gpus
    return gpu


def test_bandwidth_is_the_share_of_the_peak_of_that_sample() -> None:
    fast = sample(1, dram_active=0.5, peak_bytes_per_s=4e12)
    slow = sample(2, dram_active=0.5, peak_bytes_per_s=2e12)

    gpu = one([fast, slow], 2)

    assert gpu.hbm_bytes_per_s == 1e12
    assert gpu.hbm_bytes_per_s_mean == pytest.approx(1.5e12)
    assert gpu.hbm_share == gpu.hbm_share_mean == 0.5


def test_a_mean_weighs_samples_by_what_they_cover() -> None:
    brief = sample(1, span_s=0.2, sm_active=1.0)
    long = sample(2, span_s=0.8, sm_active=0.5)

    assert one([brief, long], 2).sm_active_mean == pytest.approx(0.6)


def test_a_field_that_was_not_read_anew_stays_what_it_was() -> None:
    gpu = one([sample(1, temperature_c=60), sample(2, sm_active=0.5)], 2)

    assert (gpu.temperature_c, gpu.sm_active) == (60, 0.5)


def test_what_cannot_be_read_any_more_is_unknown() -> None:
    later = replace(gpu_info(), missing={"sm_active": "no permission: …"})

    gpu = one([sample(1, sm_active=0.5, power_w=300.0), later], 2)

    assert (gpu.sm_active, gpu.power_w) == (None, 300.0)


def test_energy_is_what_the_counter_rose_by_and_power_its_mean() -> None:
    told = [sample(t, energy_mj=7_000 + 500_000 * t, power_w=1.0) for t in range(11)]

    gpu = one(told, 10)

    assert gpu.energy_j == pytest.approx(5_000)
    assert gpu.power_w_mean == pytest.approx(500)


def test_energy_counts_on_after_the_counter_began_anew() -> None:
    counts = [100_000, 400_000, 10_000, 210_000]
    told = [sample(t, energy_mj=count) for t, count in enumerate(counts)]

    gpu = one(told, 3)

    assert gpu.energy_j == pytest.approx(300 + 200)
    assert gpu.timeline.power_w[-5:] == (None, None, 200.0, 200.0, None)


def test_time_under_a_power_cap_is_the_counters_share_of_the_window() -> None:
    told = [
        sample(t, throttled_ns={"power_cap": t * S // 4}, throttle_reasons=0)
        for t in range(9)
    ]

    assert one(told, 8).throttled["power cap"] == pytest.approx(0.25)


def test_without_counters_throttling_is_how_often_it_was_seen() -> None:
    told = [sample(t, throttle_reasons=0x44 * (t % 2)) for t in range(1, 10)]

    gpu = one(told, 9)

    assert gpu.throttle_reasons == ("power cap", "hardware thermal")
    assert gpu.throttled["hardware thermal"] == pytest.approx(0.5)
    assert gpu.throttled["power brake"] == 0


def test_columns_cover_what_a_sample_covers_and_nothing_else() -> None:
    line = one([sample(5, span_s=2, dram_active=0.5)], 6).timeline

    assert line.hbm_share[-13:] == (*[None] * 6, *[0.5] * 4, *[None] * 3)


def test_while_a_gpu_is_lost_there_is_a_gap() -> None:
    told: list[AnyReading] = [sample(t, energy_mj=t, power_w=5.0) for t in (1, 2)]
    lost = replace(gpu_info(), lost_because="it fell off the bus")
    back = [sample(t, energy_mj=t, power_w=5.0) for t in (6, 7)]

    gpu = one([*told, lost, gpu_info(), *back], 8)

    known = [value is not None for value in gpu.timeline.power_w[-16:]]
    assert known == [True] * 3 + [False] * 7 + [True] * 3 + [False] * 3


def test_a_lost_gpu_has_no_part_in_what_there_is_now() -> None:
    told = [sample(1, index, power_w=100.0) for index in (0, 1)]
    lost = replace(gpu_info(1), lost_because="it fell off the bus")

    hardware = look([gpu_info(0), gpu_info(1), *told, lost], 1).hardware

    assert (hardware.gpus, hardware.power_w) == (2, 100.0)


def test_gpus_are_in_the_order_of_their_index() -> None:
    snapshot = look([gpu_info(1), gpu_info(0)], 1)

    assert [gpu.info.index for gpu in snapshot.gpus] == [0, 1]


def test_no_gpu_has_its_reason() -> None:
    none = GpuInfo(t_ns=0, absent_because="no NVIDIA driver")

    assert look([none], 1).hardware.no_gpu == "no NVIDIA driver"


def test_a_plausible_minute_is_plausible() -> None:
    snapshot = look(plausible(60, gpus=2), 60)

    hardware, line = snapshot.hardware, snapshot.timeline
    share, power_w = hardware.hbm_share_mean, hardware.power_w_mean
    assert share is not None
    assert power_w is not None
    assert hardware.gpus == 2
    assert 0.5 < share < 0.6
    assert hardware.hbm_bytes_per_s_mean == pytest.approx(2 * PEAK * share)
    assert 2 * 90 < power_w < 2 * LIMIT_W
    assert hardware.power_limit_w == 2 * LIMIT_W
    assert len(line.hbm_bytes_per_s) == len(line.steps)
    assert max(x for x in line.throttled if x is not None) == pytest.approx(0.6)
    assert all(x is not None for x in line.host_busy[3:-1])


def host(t_s: float, source: str = "", **used_s: float) -> HostSample:
    pids = {"core": 7, "api": 8}
    return HostSample(
        t_ns=round(t_s * S),
        source=source,
        cores=4,
        busy_s=sum(used_s.values()),
        processes=[
            ProcessUsage(pid=pids[role], role=role, cpu_s=s, rss_bytes=1)
            for role, s in used_s.items()
        ],
    )


def test_a_host_tells_its_busy_cores_and_who_keeps_them_so() -> None:
    (node,) = look([host(t, core=0.9 * t, api=0.5 * t) for t in range(8)], 8).hosts

    assert node.busy == pytest.approx(1.4)
    assert [each.cpu_share for each in node.processes] == pytest.approx([0.9, 0.5])
    assert node.timeline.busy[-4] == pytest.approx(0.35)
    assert node.timeline.cpu_by_role["core"][-4] == pytest.approx(0.9)


def test_another_host_has_no_part_in_what_watching_costs() -> None:
    mine = [host(t, core=t) for t in range(3)]
    theirs = [host(t + 0.5, "node-2", core=t / 2) for t in range(3)]

    snapshot = look([*mine, *theirs], 3)

    assert [each.source for each in snapshot.hosts] == ["", "node-2"]
    assert snapshot.cost.process_cpu_share["core"] == pytest.approx(1.0)


def test_a_session_without_steps_is_charted_from_its_first_sample() -> None:
    line = look(plausible(60), 60, Window.SESSION).timeline

    assert len(line.hbm_share) == 121
    assert all(x is not None for x in line.hbm_share[:-1])


def in_turn(
    streams: list[list[AnyReading]], order: Iterable[int]
) -> Iterable[AnyReading]:
    """Each stream in its own order, whichever goes on."""
    left = [iter(stream) for stream in streams]
    for number in order:
        yield from islice(left[number % len(left)], 1)
    for stream in left:
        yield from stream


@drawn(6, 30, st.lists(st.integers(0, 4), max_size=200))
def test_it_does_not_matter_who_is_heard_first(order: list[int]) -> None:
    told = plausible(8, gpus=3, hz=10)
    streams = [
        [each for each in told if each.source == source]
        for source in sorted({each.source for each in told})
    ]

    shuffled = look(in_turn(streams, order), 8)

    assert shuffled == look(in_turn(streams, []), 8)


@drawn(
    15,
    60,
    st.lists(
        st.tuples(
            st.integers(1, 3_000), st.integers(0, 2_000), st.none() | st.floats(0, 1)
        ),
        max_size=40,
    ),
)
def test_means_and_energy_are_those_of_plain_arithmetic(
    told: list[tuple[int, int, float | None]],
) -> None:
    """Milliseconds to the next sample, a rise of energy (0: began anew), a share."""
    at_ms, energy_mj, rises, held, covered = 0, 10_000, 0, 0.0, 0.0
    readings: list[AnyReading] = [sample(0, energy_mj=energy_mj)]
    for took_ms, rise_mj, share in told:
        at_ms += took_ms
        energy_mj = energy_mj + rise_mj if rise_mj else 5
        rises += rise_mj
        span_s = took_ms / 1000
        fields: dict[str, Any] = {"energy_mj": energy_mj, "sm_active": share}
        readings.append(sample(at_ms / 1000, span_s=span_s, **fields))
        if share is not None:
            held, covered = held + share * span_s, covered + span_s
    if not told or energy_mj == 5:
        return  # nothing is counted yet

    for window in (Window.FIVE_MINUTES, Window.SESSION):
        gpu = one(readings, at_ms / 1000, window=window)
        mean = held / covered if covered else None
        assert gpu.sm_active_mean == pytest.approx(mean)
        assert (gpu.energy_j or 0) == pytest.approx(rises / 1000, abs=1e-6)


@drawn(8, 40, st.integers(1, 500), st.integers(1, 40))
def test_the_session_is_charted_whole_however_long_it_is(
    seconds: int, every_s: int
) -> None:
    told = [
        sample(t, span_s=every_s, dram_active=0.25)
        for t in range(every_s, seconds * every_s + 1, every_s)
    ]

    gpu = one(told, seconds * every_s, window=Window.SESSION)

    line = gpu.timeline.hbm_share
    assert len(line) <= 241
    assert gpu.hbm_share_mean == pytest.approx(0.25)
    assert {None if x is None else round(x, 6) for x in line[:-1]} == {0.25}


@pytest.mark.parametrize(
    ("window", "late_s"),
    [(Window.TEN_SECONDS, 975), (Window.MINUTE, 870), (Window.FIVE_MINUTES, 390)],
    ids=str,
)
def test_what_is_heard_too_late_for_a_window_is_still_in_the_session(
    window: Window, late_s: int
) -> None:
    told = [sample(t, sm_active=0.5) for t in range(301, 1_001)]
    late = [*told, sample(late_s, sm_active=1.0), sample(1, sm_active=1.0)]

    assert one(late, 1_000, window=window) == one(told, 1_000, window=window)
    whole = one(late, 1_000, window=Window.SESSION)
    assert whole.sm_active_mean == pytest.approx((700 * 0.5 + 2) / 702)


def test_a_session_keeps_its_place_while_its_columns_grow_wider() -> None:
    told = [
        sample(t + 0.5, sm_active=0.5) for t in range(100, 1_001) if not 300 < t <= 700
    ]

    snapshot = look([gpu_info(), *told], 1_001, Window.SESSION)

    line, known = snapshot.timeline, snapshot.gpus[0].timeline.sm_active
    where = {
        t_s: known[line.index_at(t_s * S) or 0] for t_s in (110, 290, 310, 690, 710)
    }
    assert where == {110: 0.5, 290: 0.5, 310: None, 690: None, 710: 0.5}


def test_what_was_read_at_a_moment_is_not_believed_of_minutes_before() -> None:
    line = one([sample(1, power_w=9.0), sample(50, power_w=9.0)], 50).timeline

    assert [x is not None for x in line.power_w[-21:]] == [True] * 20 + [False]
    assert line.power_w[-30] is None


def test_what_was_read_long_ago_is_not_told_as_now() -> None:
    told: list[AnyReading] = [gpu_info(), sample(1, power_w=300.0)]

    assert look(told, 5).hardware.power_w == 300
    assert look(told, 60).hardware.power_w is None
    assert look(told, 60).gpus[0].power_w == 300


def test_who_joins_late_has_a_gap_before() -> None:
    told = plausible(60, gpus=2)
    late = [e for e in told if e.source != uuid(1) or getattr(e, "t_ns", 0) > 40 * S]

    both, alone = look(told, 60), look(late, 60)

    assert alone.gpus[0] == both.gpus[0]
    assert alone.gpus[1].timeline.sm_active[:79] == (None,) * 79
    assert alone.gpus[1].timeline.sm_active[79:] == both.gpus[1].timeline.sm_active[79:]
    together = both.timeline.hbm_bytes_per_s
    assert alone.timeline.hbm_bytes_per_s[:79] == (None,) * 79
    assert alone.timeline.hbm_bytes_per_s[80:] == together[80:]


@pytest.mark.parametrize("long_ago_s", [5e6, 5e8])
def test_a_reading_of_long_ago_takes_no_more_memory_than_others(
    long_ago_s: float,
) -> None:
    model = Model()
    for reading in (gpu_info(), sample(-long_ago_s, sm_active=0.5)):
        model.fold(reading)

    tracemalloc.start()
    for window in Window:
        model.snapshot(60 * S, SnapshotQuery(window, hardware=True))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20_000_000


HEARD: list[Any] = [GpuInfo, GpuSample, GpuProcesses, HostInfo, HostSample]


@drawn(6, 25, st.lists(st.one_of([readings_of(each) for each in HEARD]), max_size=12))
def test_no_reading_breaks_the_picture(told: list[AnyReading]) -> None:
    model = Model()
    for reading in told:
        model.fold(reading)
    for window in Window:
        snapshot = model.snapshot(60 * S, SnapshotQuery(window, hardware=True))
        json.dumps(summarise(snapshot, None), allow_nan=False)
    model.saved()
