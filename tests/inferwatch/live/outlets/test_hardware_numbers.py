"""GPUs and hosts for the monitoring that people run: base units, counters that grow."""

from collections.abc import Iterable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from collectors.contract.readings import (
    AnyReading,
    GpuSample,
    HostInfo,
    HostSample,
    ProcessUsage,
    Totals,
)
from inferwatch.live.outlets.endpoint import exposition
from inferwatch.live.outlets.exact import ExactNumbers
from inferwatch.live.outlets.exposed import PREFIX, exposed_points
from inferwatch.live.outlets.otlp import _metric
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from tests.inferwatch.metrics.scripted_hardware import PEAK, gpu_info, plausible, uuid

S = 1_000_000_000
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def folded(readings: Iterable[AnyReading]) -> ExactNumbers:
    numbers = ExactNumbers()
    for reading in readings:
        numbers.fold(reading)
    return numbers


def scraped(readings: Iterable[AnyReading], now_s: float = 60) -> Series:
    """As a Prometheus reads the text: values by name without our prefix, and labels."""
    points = exposed_points(folded(readings), round(now_s * S), None)
    text, _ = exposition(points, "text/plain;version=0.0.4")
    return {
        (sample.name.removeprefix(PREFIX), frozenset(sample.labels.items())): (
            sample.value
        )
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def one(found: Series, name: str, **labels: str) -> float:
    (value,) = [
        value
        for (known, has), value in found.items()
        if known == name and labels.items() <= set(has)
    ]
    return value


def names(found: Series) -> set[str]:
    return {name for name, _ in found}


def test_gauges_are_those_of_the_latest_samples_in_base_units() -> None:
    readings = plausible(60)
    latest = [each for each in readings if isinstance(each, GpuSample)][-2]

    found = scraped(readings)

    this = {"uuid": uuid(0), "gpu": "0", "gpu_model": "NVIDIA H100 80GB HBM3"}
    ratio = one(found, "gpu_memory_bandwidth_ratio", **this)
    assert ratio == pytest.approx(latest.dram_active)
    rate = one(found, "gpu_memory_bandwidth_bytes_per_second", **this)
    assert rate == pytest.approx(ratio * PEAK)
    assert one(found, "gpu_power_watts", **this) == pytest.approx(latest.power_w)
    assert one(found, "gpu_sm_clock_hertz", **this) == 1.98e9
    assert one(found, "gpu_up", **this) == 1


def test_energy_is_a_counter_that_agrees_with_the_screens() -> None:
    readings = plausible(60, gpus=1)
    model = Model()
    for reading in readings:
        model.fold(reading)
    (gpu,) = model.snapshot(60 * S, SnapshotQuery(Window.SESSION)).gpus

    found = scraped(readings)

    assert one(found, "gpu_energy_joules_total") == pytest.approx(gpu.energy_j)
    held_s = one(found, "gpu_clocks_held_down_seconds_total", reason="power_cap")
    assert held_s == pytest.approx(gpu.throttled["power cap"] * 60, rel=0.05)


def test_a_driver_that_was_loaded_anew_takes_nothing_back() -> None:
    counts = [5_000, 9_000, 1_000, 2_000]

    found = scraped(
        GpuSample(source="GPU-a", t_ns=t * S, energy_mj=count)
        for t, count in enumerate(counts)
    )

    assert one(found, "gpu_energy_joules_total") == 5


def test_of_a_lost_gpu_or_a_silent_one_no_old_number_stands() -> None:
    readings = plausible(20, gpus=1)
    lost = gpu_info(lost_because="fell off the bus")

    gone, silent = scraped([*readings, lost], 20), scraped(readings, 120)

    assert one(gone, "gpu_up") == 0
    for found in (gone, silent):
        assert "gpu_power_watts" not in names(found)
        assert "gpu_energy_joules_total" in names(found)
    assert "host_run_queue" not in names(silent)


def test_what_is_not_measured_is_not_exposed() -> None:
    old = GpuSample(source="GPU-a", t_ns=S, memory_busy=0.9, power_w=float("nan"))

    found = scraped([old], 1)

    assert one(found, "gpu_memory_busy_time_ratio") == 0.9
    assert not {name for name in names(found) if "bandwidth" in name or "watts" in name}


def test_processes_are_told_by_role_and_a_new_one_takes_nothing_back() -> None:
    used = [(7, 10.0), (7, 12.0), (8, 0.5), (8, 1.5)]

    found = scraped(
        [
            HostInfo(source="far", t_ns=0, name="node-2"),
            *(
                HostSample(
                    source="far",
                    t_ns=t * S,
                    processes=[
                        ProcessUsage(pid=pid, role="api", cpu_s=cpu_s, rss_bytes=5)
                    ],
                    run_queue=t,
                )
                for t, (pid, cpu_s) in enumerate(used)
            ),
        ]
    )

    labels = {"host": "node-2", "role": "api"}
    assert one(found, "host_process_cpu_seconds_total", **labels) == 3
    assert one(found, "host_process_memory_bytes", **labels) == 5
    assert one(found, "host_run_queue", host="node-2") == 3


def test_the_event_loop_of_a_server_is_told_with_the_server() -> None:
    found = scraped([Totals(source="engine-1", t_ns=S, loop_lag_max_ns=3_000_000)])

    assert one(found, "api_event_loop_lag_seconds", server="engine-1") == 0.003


def test_own_cpu_is_that_of_the_host_inferwatch_runs_on() -> None:
    numbers = folded([*plausible(5), *plausible(5, host="node-2")])

    assert numbers.own_cpu_s == pytest.approx(1.15)


@pytest.mark.parametrize(
    ("name", "otlp", "unit"),
    [
        ("gpu_power_watts", "inferwatch.gpu_power", "W"),
        ("gpu_energy_joules", "inferwatch.gpu_energy", "J"),
        (
            "gpu_memory_bandwidth_bytes_per_second",
            "inferwatch.gpu_memory_bandwidth",
            "By/s",
        ),
        ("gpu_sm_active_ratio", "inferwatch.gpu_sm_active", "1"),
    ],
)
def test_a_collector_gets_units_as_opentelemetry_writes_them(
    name: str, otlp: str, unit: str
) -> None:
    points = exposed_points(folded(plausible(20)), 20 * S, None)
    (exposed,) = [each for each in points if each.name == name]

    metric = _metric(exposed, points[exposed], 0, 1)

    assert (metric.name, metric.unit) == (otlp, unit)
