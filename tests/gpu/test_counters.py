"""What a GPU's own counters are worth, against work of a known size."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import isfinite
from statistics import median
from threading import Event, Thread
from typing import Any

import pynvml as nv
import pytest

from collectors.hardware.gpu_source import GpuOptions, ReadInterval
from collectors.hardware.nvml import NvmlSource
from collectors.hardware.peaks import peak_of
from tests.gpu.conftest import Figures, code_of

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

METRICS = {
    "sm": nv.NVML_GPM_METRIC_SM_UTIL,
    "occupancy": nv.NVML_GPM_METRIC_SM_OCCUPANCY,
    "tensor": nv.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "dram": nv.NVML_GPM_METRIC_DRAM_BW_UTIL,
    "pcie_tx": nv.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
    "pcie_rx": nv.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
}
COPIED_BYTES = 8 << 30
WORK_S = 5.0
CALLS = 1000
OUTSIDER = 65534
"""nobody"""
SAMPLES_GPM = f"""
import os, time, pynvml as nv
os.setgroups([])
os.setgid({OUTSIDER})
os.setuid({OUTSIDER})
nv.nvmlInit()
gpu = nv.nvmlDeviceGetHandleByIndex(0)
print("user", os.getuid())
try:
    one, two = nv.nvmlGpmSampleAlloc(), nv.nvmlGpmSampleAlloc()
    nv.nvmlGpmSampleGet(gpu, one); time.sleep(0.3); nv.nvmlGpmSampleGet(gpu, two)
    asked = nv.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = nv.NVML_GPM_METRICS_GET_VERSION, 1
    asked.sample1, asked.sample2 = one, two
    asked.metrics[0].metricId = nv.NVML_GPM_METRIC_DRAM_BW_UTIL
    nv.nvmlGpmMetricsGet(asked)
    print("code", asked.metrics[0].nvmlReturn)
except nv.NVMLError as error:
    print("code", error.value)
"""


class Counters:
    """GPM between two moments."""

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu
        self._samples = [nv.nvmlGpmSampleAlloc(), nv.nvmlGpmSampleAlloc()]

    def begin(self) -> None:
        nv.nvmlGpmSampleGet(self._gpu, self._samples[0])

    def end(self) -> dict[str, float]:
        """The averages since it began."""
        nv.nvmlGpmSampleGet(self._gpu, self._samples[1])
        asked = nv.c_nvmlGpmMetricsGet_t()
        asked.version = nv.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(METRICS)
        asked.sample1, asked.sample2 = self._samples
        for slot, metric in zip(asked.metrics, METRICS.values(), strict=False):
            slot.metricId = metric
        nv.nvmlGpmMetricsGet(asked)
        return {
            name: slot.value
            for name, slot in zip(METRICS, asked.metrics, strict=False)
            if not slot.nvmlReturn
        }

    def close(self) -> None:
        for sample in self._samples:
            nv.nvmlGpmSampleFree(sample)


@pytest.fixture
def counters(hopper: Any) -> Iterator[Counters]:
    made = Counters(hopper)
    yield made
    made.close()


@pytest.mark.parametrize("duty", [1.0, 0.75, 0.5, 0.25])
def test_the_share_of_bandwidth_is_what_a_copy_moves(
    hopper: Any, cuda: Any, counters: Counters, figures: Figures, duty: float
) -> None:
    """Which of the peaks, by formula or by data sheet, comes nearer is kept."""
    source = cuda.empty(COPIED_BYTES, dtype=cuda.uint8, device="cuda")
    target = cuda.empty_like(source)

    def copies() -> int:
        """Bytes read and written."""
        began_s = time.perf_counter()
        for _ in range(8):
            target.copy_(source)
        cuda.cuda.synchronize()
        busy_s = time.perf_counter() - began_s
        time.sleep(busy_s * (1 / duty - 1))
        return 8 * 2 * COPIED_BYTES

    copies()  # warms up
    counters.begin()
    moved, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < WORK_S:
        moved += copies()
    told = counters.end()
    measured = moved / (time.perf_counter() - began_s)
    clock = nv.nvmlDeviceGetClockInfo(hopper, nv.NVML_CLOCK_MEM)
    bus = nv.nvmlDeviceGetMemoryBusWidth(hopper)
    peak = peak_of(
        nv.nvmlDeviceGetName(hopper),
        memory_clock_mhz=clock,
        bus_bits=bus,
        given_gbps=None,
    )
    share = told["dram"] / 100
    formula = 2 * clock * 1e6 * bus / 8
    figures[f"copy at {duty:.0%}"] = {
        "bytes_per_s": measured,
        "dram_share": share,
        "told_by_formula": share * formula / measured,
        "told_by_sheet": share * (peak.sheet_bytes_per_s or formula) / measured,
        "sm": told["sm"],
    }
    assert share * formula == pytest.approx(measured, rel=0.08)


def test_a_matrix_product_keeps_sms_and_tensor_cores_active(
    cuda: Any, counters: Counters, figures: Figures
) -> None:
    product = gemm(cuda)
    product()
    counters.begin()
    for_seconds(WORK_S, product)
    told = figures["gemm bf16"] = counters.end()
    assert told["sm"] > 80
    assert told["tensor"] > 40


def test_an_idle_gpu_tells_zeros_and_not_nothing(
    hopper: Any, counters: Counters, figures: Figures
) -> None:
    """Unless somebody else is at work on it."""
    time.sleep(2)
    if nv.nvmlDeviceGetUtilizationRates(hopper).gpu:
        pytest.skip("the GPU is not idle: somebody else uses it")
    counters.begin()
    time.sleep(2)
    told = figures["idle"] = counters.end()
    assert told["sm"] < 2
    assert told["dram"] < 2


def test_what_samples_too_near_to_each_other_tell(
    counters: Counters, figures: Figures
) -> None:
    """Kept, not judged: the header says more than 100 ms, and not what else happens."""
    told = {}
    for wait_ms in (5, 20, 50, 90, 110, 250):
        seen = []
        for _ in range(10):
            counters.begin()
            time.sleep(wait_ms / 1000)
            seen.append(counters.end())
        told[wait_ms] = {
            "dram_known": sum(isfinite(each["dram"]) for each in seen),
            "pcie_zero": sum(each["pcie_tx"] == 0 for each in seen),
        }
    figures["windows of ms"] = told
    assert told[250]["dram_known"] == 10


def test_what_calls_cost(hopper: Any, figures: Figures) -> None:
    sample = nv.nvmlGpmSampleAlloc()
    slow = {"processes": nv.nvmlDeviceGetComputeRunningProcesses}
    calls: dict[str, Callable[[Any], object]] = {
        "gpm sample": lambda gpu: nv.nvmlGpmSampleGet(gpu, sample),
        "energy": nv.nvmlDeviceGetTotalEnergyConsumption,
        "power": nv.nvmlDeviceGetPowerUsage,
        "fields": lambda gpu: nv.nvmlDeviceGetFieldValues(
            gpu, [186, 83, 74, 82, 197, 198]
        ),
        "sm clock": lambda gpu: nv.nvmlDeviceGetClockInfo(gpu, nv.NVML_CLOCK_SM),
        "reasons": nv.nvmlDeviceGetCurrentClocksEventReasons,
        "memory": nv.nvmlDeviceGetMemoryInfo,
        "utilisation": nv.nvmlDeviceGetUtilizationRates,
        "temperature": lambda gpu: nv.nvmlDeviceGetTemperature(gpu, 0),
        **slow,
    }
    costs = {}
    for name, call in calls.items():
        if code := code_of(call, hopper):
            costs[name] = {"code": float(code)}
            continue
        times = sorted(timed(call, hopper) for _ in range(CALLS))
        costs[name] = {
            "median_us": median(times) * 1e6,
            "p99_us": times[int(0.99 * CALLS)] * 1e6,
        }
    nv.nvmlGpmSampleFree(sample)
    figures["costs"] = costs
    quick = [each["median_us"] for name, each in costs.items() if name not in slow]
    assert sum(quick) < 20_000  # a sweep a second must not be felt


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_who_is_not_root_reads_counters_or_is_told_why(
    hopper: Any, figures: Figures
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAMPLES_GPM],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    told = dict(line.split() for line in done.stdout.splitlines())
    assert told["user"] == str(OUTSIDER)
    figures["counters as nobody"] = {"code": int(told["code"]), **driver_parameters()}
    assert int(told["code"]) in {0, nv.NVML_ERROR_NO_PERMISSION}


def test_two_readers_do_not_disturb_each_other(
    hopper: Any, cuda: Any, figures: Figures
) -> None:
    product = gemm(cuda)
    one, two = Counters(hopper), Counters(hopper)
    one.begin()
    for_seconds(1, product)
    two.begin()
    for_seconds(2, product)
    inner, outer = two.end(), one.end()
    one.close()
    two.close()
    figures["two readers"] = {"inner": inner, "outer": outer}
    assert inner["sm"] == pytest.approx(outer["sm"], abs=10)


def test_energy_agrees_with_power_and_moves_in_steps(
    hopper: Any, cuda: Any, figures: Figures
) -> None:
    product = gemm(cuda)
    for_seconds(3, product)  # power is an average over a second
    stop = Event()
    worker = Thread(target=until, args=(stop, product))
    worker.start()
    moments, watts = [], []
    began_s = time.perf_counter()
    last_mj = nv.nvmlDeviceGetTotalEnergyConsumption(hopper)
    try:
        while (now_s := time.perf_counter()) - began_s < 10:
            energy_mj = nv.nvmlDeviceGetTotalEnergyConsumption(hopper)
            if energy_mj != last_mj:
                moments.append((now_s, energy_mj))
                last_mj = energy_mj
            watts.append(nv.nvmlDeviceGetPowerUsage(hopper) / 1000)
            time.sleep(0.002)
    finally:
        stop.set()
        worker.join()
    (first_s, first_mj), (last_s, last_mj) = moments[0], moments[-1]
    by_energy = (last_mj - first_mj) / 1000 / (last_s - first_s)
    gaps = [after[0] - before[0] for before, after in pairwise(moments)]
    figures["energy"] = {
        "step_ms": median(gaps) * 1000,
        "watts_by_energy": by_energy,
        "watts_by_power": sum(watts) / len(watts),
    }
    assert by_energy == pytest.approx(sum(watts) / len(watts), rel=0.07)


def test_ten_readings_a_second_do_not_slow_a_matrix_product(
    hopper: Any, cuda: Any, figures: Figures
) -> None:
    """Alternating, pair by pair: with somebody who reads everything, and without."""
    product = gemm(cuda)
    for_seconds(2, product)
    ratios = []
    for _ in range(8):
        alone = rounds_in(2, product)
        with polled():
            watched = rounds_in(2, product)
        ratios.append(watched / alone)
    figures["polled at 10 Hz, ratio"] = median(ratios)
    assert median(ratios) > 0.99


@contextmanager
def polled() -> Iterator[None]:
    """We read all that we read, as fast as while the GPU screen is shown."""
    over = Event()

    def poll() -> None:
        source = NvmlSource(time.monotonic_ns, GpuOptions(), lambda _: None)
        source.probe()
        last_s = 0.0
        while not over.wait(0.1):
            each_second = time.monotonic() - last_s >= 1
            last_s = time.monotonic() if each_second else last_s
            source.read(
                {ReadInterval.EACH, ReadInterval.SECOND}
                if each_second
                else {ReadInterval.EACH}
            )
        source.close()

    thread = Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def gemm(torch: Any, size: int = 8192) -> Callable[[], None]:
    """A product of two matrices, done when it returns."""
    one, two = (
        torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2)
    )
    into = torch.empty_like(one)

    def product() -> None:
        torch.mm(one, two, out=into)
        torch.cuda.synchronize()

    return product


def for_seconds(seconds: float, work: Callable[[], None]) -> None:
    """Again and again."""
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        work()


def until(stop: Event, work: Callable[[], None]) -> None:
    """Again and again."""
    while not stop.is_set():
        work()


def rounds_in(seconds: float, work: Callable[[], None]) -> float:
    """How often a second."""
    began_s, rounds = time.perf_counter(), 0
    while time.perf_counter() - began_s < seconds:
        work()
        rounds += 1
    return rounds / (time.perf_counter() - began_s)


def timed(call: Callable[[Any], object], gpu: Any) -> float:
    """Seconds that it took."""
    began_s = time.perf_counter()
    call(gpu)
    return time.perf_counter() - began_s


def driver_parameters() -> dict[str, str]:
    """What the driver was told about who may profile."""
    try:
        with open("/proc/driver/nvidia/params", encoding="utf-8") as file:  # noqa: PTH123
            pairs = [line.partition(":") for line in file]
    except OSError:
        return {}
    return {
        name: value.strip()
        for name, _, value in pairs
        if name.startswith("RmProfiling")
    }
