"""Clocks, hosts and gaps, read from what was recorded in the compared part."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from collectors.contract.readings import (
    AnyReading,
    ClockAnchor,
    EngineInfo,
    GpuSample,
    HostInfo,
    HostSample,
    Note,
    NoteKind,
    ProcessUsage,
)
from inferwatch.record.connections import open_for_reading
from inferwatch.record.sessions.sessions import find
from inferwatch.studies.compare.reading.conditions import Conditions, conditions
from inferwatch.studies.compare.reading.session_reader import SessionQuery, read_session
from inferwatch.studies.compare.reading.span import ComparedSpan, WarmupCut
from tests.inferwatch.studies.compare.conftest import ENGINE, SECOND, TinyEngine, write

START_S, END_S = 10, 110
SPAN = ComparedSpan(
    origin_ns=START_S * SECOND,
    start_ns=START_S * SECOND,
    end_ns=END_S * SECOND,
    cut=WarmupCut.NONE,
    load_runs=1,
)


def recorded(path: Path, *readings: AnyReading) -> Conditions:
    """What is made of them."""
    file = path / "sessions.db"
    write(file, "one", iter(readings))
    with closing(open_for_reading(file)) as connection:
        return conditions(connection, find(file, "one").session, SPAN)


def engine(*gpus: str) -> EngineInfo:
    return EngineInfo(
        t_ns=1, pid=7, model="t", vllm_version="1", gpus=list(gpus), source=ENGINE
    )


def clocked(uuid: str = "GPU-1", seconds: int = 120) -> Iterator[GpuSample]:
    """18% of each second held down by power; slow before the part that is compared."""
    for at_s in range(seconds):
        inside = START_S <= at_s < END_S
        yield GpuSample(
            source=uuid,
            t_ns=at_s * SECOND,
            sm_clock_mhz=1755 if inside else 300,
            throttle_reasons=0x4,
            throttled_ns={"power_cap": at_s * 180_000_000, "thermal": 5},
            temperature_c=60 + at_s // 10 if inside else 99,
        )


def test_nothing_recorded_is_nothing_known(tmp_path: Path) -> None:
    assert recorded(tmp_path, engine()) == Conditions()


def test_clocks_are_of_the_compared_part_and_counted_time_beats_looks(
    tmp_path: Path,
) -> None:
    (gpu,) = recorded(tmp_path, engine(), *clocked()).gpus

    assert gpu.median_mhz == 1755
    assert gpu.held["power cap"] == pytest.approx(0.18)
    assert gpu.held["software thermal"] == 0
    assert gpu.hottest_c == 70


def test_without_counters_looks_tell(tmp_path: Path) -> None:
    looks = [
        GpuSample(
            source="GPU-1",
            t_ns=(START_S + place) * SECOND,
            throttle_reasons=0x40 if place < 25 else 0x1,
        )
        for place in range(100)
    ]

    (gpu,) = recorded(tmp_path, engine(), *looks).gpus

    assert gpu.held["hardware thermal"] == pytest.approx(0.25)
    assert gpu.held["power cap"] == 0
    assert gpu.median_mhz is None


def test_a_counter_that_began_anew_only_counts_what_rose(tmp_path: Path) -> None:
    counts = [0, 5, 10, 0, 5]
    told = [
        GpuSample(
            source="GPU-1",
            t_ns=(START_S + place) * SECOND,
            throttled_ns={"power_cap": count * SECOND // 10},
        )
        for place, count in enumerate(counts)
    ]

    (gpu,) = recorded(tmp_path, engine(), *told).gpus

    assert gpu.held["power cap"] == pytest.approx(0.5)


def test_gpus_of_others_are_left_out(tmp_path: Path) -> None:
    found = recorded(tmp_path, engine("GPU-1"), *clocked("GPU-1"), *clocked("GPU-2"))

    assert len(found.gpus) == 1


def hosted(others: float, held: float | None = None) -> Iterator[AnyReading]:
    """Four cores: the engine takes one, and others that share of all."""
    yield HostInfo(t_ns=1, name="box", cpu="EPYC", cores=4)
    for at_s in range(120):
        engine_s = 1.0 * at_s
        yield HostSample(
            t_ns=at_s * SECOND,
            cores=4,
            busy_s=1000 + engine_s + 4 * others * at_s,
            processes=[
                ProcessUsage(
                    pid=7,
                    role="core",
                    cpu_s=50 + engine_s,
                    rss_bytes=1,
                    throttled_s=None if held is None else held * at_s,
                )
            ],
        )


def test_others_on_the_host_are_those_nobody_watches(tmp_path: Path) -> None:
    (host,) = recorded(tmp_path, engine(), *hosted(0.25)).hosts

    assert host.hardware == "EPYC, 4 cores"
    assert host.others == pytest.approx(0.25)
    assert not host.throttled


def test_a_quota_is_told_by_role(tmp_path: Path) -> None:
    (host,) = recorded(tmp_path, engine(), *hosted(0.0, held=0.12)).hosts

    assert host.throttled == {"core": pytest.approx(0.12)}
    assert host.others == pytest.approx(0.0, abs=1e-9)


def test_a_host_that_only_said_what_it_is_is_not_idle(tmp_path: Path) -> None:
    info = HostInfo(t_ns=1, name="box", cpu="EPYC", cores=4)

    (host,) = recorded(tmp_path, engine(), info).hosts

    assert (host.hardware, host.others) == ("EPYC, 4 cores", None)


def test_gaps_are_those_of_the_compared_part(tmp_path: Path) -> None:
    notes = [
        Note(t_ns=at_s * SECOND, kind=kind, text=text, count=count)
        for at_s, kind, text, count in (
            (5, NoteKind.DROPPED, "before", 100),
            (5, NoteKind.LOST, "lost before", None),
            (50, NoteKind.DROPPED, "3 readings were lost", 3),
            (51, NoteKind.DROPPED, "4 readings were lost", 4),
            (60, NoteKind.LOST, "engine died", None),
            (61, NoteKind.RESTARTED, "engine restarted", None),
            (115, NoteKind.RESTARTED, "after", None),
        )
    ]

    gaps = recorded(tmp_path, engine(), *notes).gaps

    assert gaps.dropped == 7
    assert gaps.lives == ("engine died", "engine restarted")


def test_a_wall_clock_that_stepped_is_told_and_other_hosts_are_not(
    tmp_path: Path,
) -> None:
    anchors = [
        ClockAnchor(
            source=source,
            t_ns=at_s * SECOND,
            wall_ns=int((1e9 + at_s + off_s) * SECOND),
            uncertainty_ns=10,
            boot_id="boot",
        )
        for source, at_s, off_s in (
            ("", 0, 0.0),
            ("far", 40, 7.0),
            ("", 50, -3.0),
            ("", 112, 5.0),
        )
    ]

    gaps = recorded(tmp_path, engine(), *anchors).gaps

    assert list(gaps.stepped_s) == pytest.approx([-3.0])


def test_a_session_is_read_with_its_conditions(tmp_path: Path) -> None:
    file = tmp_path / "sessions.db"
    readings = [*TinyEngine(1).run(20), *hosted(0.5)]
    write(file, "one", iter(readings))
    with closing(open_for_reading(file)) as connection:
        numbers = read_session(connection, find(file, "one"), SessionQuery())

    (host,) = numbers.conditions.hosts
    assert host.others == pytest.approx(0.5)
