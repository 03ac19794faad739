"""GPUs and hosts in a session's summary: units in names, and lines for people."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from collectors.contract.readings import AnyReading, EngineInfo, GpuInfo
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.printing.summary.session import summarise, summary_text
from tests.inferwatch.metrics.scripted_hardware import (
    PEAK,
    S,
    gpu_info,
    plausible,
    uuid,
)


def summary_of(readings: list[AnyReading], seconds: int = 60) -> dict[str, Any]:
    model = Model()
    for reading in readings:
        model.fold(reading)
    snapshot = model.snapshot(seconds * S, SnapshotQuery(Window.SESSION))
    found: dict[str, Any] = json.loads(json.dumps(summarise(snapshot, "s1")))
    return found


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    return summary_of(plausible(60, gpus=2))


def test_bandwidth_is_in_decimal_gigabytes_and_so_is_its_peak(
    summary: dict[str, Any],
) -> None:
    together, first = summary["hardware"], summary["gpus"][0]

    share = together["hbm_share_mean"]
    assert together["hbm_gbps_mean"] == pytest.approx(2 * PEAK / 1e9 * share)
    assert first["peak_gbps"] == pytest.approx(3_352.3)
    assert first["sheet_gbps"] == 3_350
    assert first["peak_from"] == "clock and bus width"


def test_each_gpu_and_each_host_has_a_row(summary: dict[str, Any]) -> None:
    (host,) = summary["hosts"]

    assert [each["uuid"] for each in summary["gpus"]] == [uuid(0), uuid(1)]
    assert [each["engines"] for each in summary["gpus"]] == [True, True]
    assert summary["gpus"][0]["throttled"]["power cap"] > 0
    assert summary["gpus"][0]["memory_used_bytes"] > 60e9
    assert (host["name"], host["cores"]) == ("node-1", 8)
    assert {each["role"] for each in host["processes"]} > {"api", "core", "worker"}


def test_people_read_it_in_lines_of_80_columns(summary: dict[str, Any]) -> None:
    lines = summary_text(summary).splitlines()

    assert "GPUs         2 NVIDIA H100 80GB HBM3, simulated" in lines
    [hbm] = [line for line in lines if line.startswith("HBM GB/s    3,7")]
    assert hbm.endswith(" mean, 56% of peak, 61% SM active")
    assert any(line.startswith("power W       97") for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_lost_gpu_is_told_with_its_reason() -> None:
    lost = gpu_info(1, t_ns=30 * S, lost_because="it fell off the bus (Xid 79)")

    summary = summary_of([*plausible(60, gpus=2), lost])

    assert summary["gpus"][1]["lost_because"] == "it fell off the bus (Xid 79)"
    assert "1 GPU lost: it fell off the bus (Xid 79)" in summary_text(summary)


def test_without_a_gpu_there_is_the_reason_and_what_steps_imply(traffic: Any) -> None:
    sizes = {"weight_bytes": 10**9, "kv_bytes_per_token": 1_000}
    readings = [
        replace(each, **sizes) if isinstance(each, EngineInfo) else each
        for each in [*traffic.start(), *traffic.run(5)]
    ]

    summary = summary_of(readings, 5)

    assert summary["gpus"] == []
    assert summary["hardware"]["no_gpu"] == "no NVIDIA driver"
    assert summary["hardware"]["weight_bytes"] == 10**9
    text = summary_text(summary)
    assert "GB/s of memory traffic, derived from steps, not measured" in text
    assert "GPUs" not in text


def test_nothing_is_said_of_hardware_where_nothing_is_known() -> None:
    none = GpuInfo(t_ns=0, absent_because="no NVIDIA driver")

    text = summary_text(summary_of([none]))

    assert "GPU" not in text
    assert "derived" not in text
