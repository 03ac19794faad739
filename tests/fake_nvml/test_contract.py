"""The fake library keeps what NVIDIA's header promises, seen through real pynvml.

It proves nothing about a driver: it shows that the tests which stand on the fake stand
on the interface and not on what we wish it were.
"""

import ctypes
import json
import math
from collections.abc import Callable
from typing import Any

import pynvml as nv
import pytest

from tests.fake_nvml import HERE, FakeNvml, in_fake_nvml, with_old_driver
from tests.gpu.test_readings import CALLS, FIELDS, outcome

DRAM, SM, PCIE_RX, FP64 = 10, 2, 21, 11
NVLINK = {"138", "139"}
"""The H100 was alone in its machine; the fake's have links."""


def code(call: Callable[..., object], *arguments: object) -> int:
    """What it returns as C has it."""
    try:
        call(*arguments)
    except nv.NVMLError as error:
        value: int = error.value
        return value
    return 0


def field(handle: Any, number: int) -> Any:
    """One field value."""
    return nv.nvmlDeviceGetFieldValues(handle, [number])[0]


def started(fake: FakeNvml, commands: str = "hold") -> Any:
    """The first GPU's handle, while time stands still."""
    fake.do(commands)
    nv.nvmlInit()
    return nv.nvmlDeviceGetHandleByIndex(0)


def between(one: Any, two: Any, *metrics: int) -> Any:
    """What GPM says of the time between two samples."""
    asked = nv.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = nv.NVML_GPM_METRICS_GET_VERSION, len(metrics)
    asked.sample1, asked.sample2 = one, two
    for slot, metric in zip(asked.metrics, metrics, strict=False):
        slot.metricId = metric
    return nv.nvmlGpmMetricsGet(asked).metrics


@in_fake_nvml
def test_before_init_and_after_shutdown_every_call_is_uninitialized(
    fake: FakeNvml,
) -> None:
    assert code(nv.nvmlDeviceGetCount) == nv.NVML_ERROR_UNINITIALIZED
    nv.nvmlInit()
    nv.nvmlInit()  # counted
    nv.nvmlShutdown()
    assert code(nv.nvmlDeviceGetCount) == 0
    nv.nvmlShutdown()
    assert code(nv.nvmlDeviceGetCount) == nv.NVML_ERROR_UNINITIALIZED
    assert code(nv.nvmlShutdown) == nv.NVML_ERROR_UNINITIALIZED


@in_fake_nvml
def test_it_says_that_it_is_simulated(fake: FakeNvml) -> None:
    nv.nvmlInit()
    assert "simulated" in nv.nvmlSystemGetDriverVersion()
    assert "simulated" in nv.nvmlSystemGetNVMLVersion()


@in_fake_nvml
def test_a_gpu_is_found_by_index_uuid_and_bus(fake: FakeNvml) -> None:
    nv.nvmlInit()
    second = nv.nvmlDeviceGetHandleByIndex(1)
    uuid = nv.nvmlDeviceGetUUID(second)
    bus_id = nv.nvmlDeviceGetPciInfo(second).busId
    for same in (
        nv.nvmlDeviceGetHandleByUUID(uuid.encode()),
        nv.nvmlDeviceGetHandleByPciBusId(bus_id.encode()),
    ):
        assert nv.nvmlDeviceGetIndex(same) == 1
    assert code(nv.nvmlDeviceGetHandleByIndex, 2) == nv.NVML_ERROR_INVALID_ARGUMENT
    assert code(nv.nvmlDeviceGetHandleByUUID, b"GPU-0") == nv.NVML_ERROR_NOT_FOUND


@in_fake_nvml
def test_memory_of_version_two_leaves_out_what_is_reserved(fake: FakeNvml) -> None:
    gpu = started(fake)
    old = nv.nvmlDeviceGetMemoryInfo(gpu)
    new = nv.nvmlDeviceGetMemoryInfo(gpu, version=nv.nvmlMemory_v2)
    assert old.used == new.used + new.reserved
    assert new.total == new.used + new.reserved + new.free
    mismatch = nv.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    assert code(nv.nvmlDeviceGetMemoryInfo, gpu, 3) == mismatch


@in_fake_nvml
def test_averages_are_of_the_time_between_two_samples(fake: FakeNvml) -> None:
    gpu = started(fake, "hold; value 0 dram 80; value 0 pcie_rx 1000")
    one, two = nv.nvmlGpmSampleAlloc(), nv.nvmlGpmSampleAlloc()
    nv.nvmlGpmSampleGet(gpu, one)
    fake.do("jump 1; value 0 dram 20; jump 3")
    nv.nvmlGpmSampleGet(gpu, two)
    dram, pcie, fp64 = between(one, two, DRAM, PCIE_RX, FP64)[:3]
    assert dram.value == pytest.approx(35)  # (80 + 3 * 20) / 4
    assert pcie.value == pytest.approx(1000)
    assert fp64.nvmlReturn == nv.NVML_ERROR_NOT_SUPPORTED
    assert fake.count("misuses") == 0
    nv.nvmlGpmSampleFree(one)
    nv.nvmlGpmSampleFree(two)
    assert fake.count("samples alive") == 0


@in_fake_nvml
def test_samples_less_than_100_ms_apart_have_no_shares_and_rates_of_zero(
    fake: FakeNvml,
) -> None:
    gpu = started(fake)
    one, two = nv.nvmlGpmSampleAlloc(), nv.nvmlGpmSampleAlloc()
    nv.nvmlGpmSampleGet(gpu, one)
    fake.do("jump 0.099")
    nv.nvmlGpmSampleGet(gpu, two)
    sm, pcie = between(one, two, SM, PCIE_RX)[:2]
    assert sm.nvmlReturn == pcie.nvmlReturn == 0
    assert math.isnan(sm.value)
    assert pcie.value == 0


@in_fake_nvml
def test_samples_must_be_two_filled_in_order_and_of_one_gpu(fake: FakeNvml) -> None:
    gpu = started(fake)
    other = nv.nvmlDeviceGetHandleByIndex(1)
    one, two = nv.nvmlGpmSampleAlloc(), nv.nvmlGpmSampleAlloc()
    nv.nvmlGpmSampleGet(gpu, one)
    invalid = nv.NVML_ERROR_INVALID_ARGUMENT
    assert code(between, one, two, SM) == invalid  # the second is empty
    assert code(between, one, one, SM) == invalid
    fake.do("jump 1")
    nv.nvmlGpmSampleGet(gpu, two)
    assert code(between, two, one, SM) == invalid
    nv.nvmlGpmSampleGet(other, two)
    assert code(between, one, two, SM) == invalid
    assert fake.last_misuse == "samples of two GPUs were compared"


@in_fake_nvml
def test_a_sample_freed_twice_or_used_after_it_is_noticed(fake: FakeNvml) -> None:
    gpu = started(fake)
    sample = nv.nvmlGpmSampleAlloc()
    nv.nvmlGpmSampleFree(sample)
    invalid = nv.NVML_ERROR_INVALID_ARGUMENT
    assert code(nv.nvmlGpmSampleGet, gpu, sample) == invalid
    assert code(nv.nvmlGpmSampleFree, sample) == invalid
    assert fake.count("double frees") == 1
    assert fake.count("misuses") == 2
    assert code(nv.nvmlGpmSampleFree, None) == invalid


@in_fake_nvml
def test_samples_that_outlive_the_library_are_counted(fake: FakeNvml) -> None:
    nv.nvmlInit()
    sample = nv.nvmlGpmSampleAlloc()
    nv.nvmlShutdown()
    assert fake.count("left at shutdown") == 1
    nv.nvmlInit()
    nv.nvmlGpmSampleFree(sample)


@in_fake_nvml
def test_energy_is_the_integral_of_power(fake: FakeNvml) -> None:
    gpu = started(fake, "hold; value 0 power 400")
    before = nv.nvmlDeviceGetTotalEnergyConsumption(gpu)
    assert nv.nvmlDeviceGetPowerUsage(gpu) == 400_000
    fake.do("jump 10")
    after = nv.nvmlDeviceGetTotalEnergyConsumption(gpu)
    assert after - before == pytest.approx(4_000_000, abs=40_000)
    fake.do("reset 0")
    assert nv.nvmlDeviceGetTotalEnergyConsumption(gpu) < before


@in_fake_nvml
def test_throttle_time_runs_while_the_power_is_capped(fake: FakeNvml) -> None:
    gpu = started(fake, "hold; value 0 limit 100; jump 40")
    fake.do("reset 0; jump 0.5")
    assert nv.nvmlDeviceGetPowerUsage(gpu) == 100_000
    assert nv.nvmlDeviceGetCurrentClocksEventReasons(gpu) == 4
    assert field(gpu, 74).value.ullVal == 500_000_000


@in_fake_nvml
def test_each_field_value_has_a_type_and_a_code_of_its_own(fake: FakeNvml) -> None:
    gpu = started(fake, "hold; value 0 power 321; field 0 82 3; field_type 0 83 0")
    power, heat, energy = nv.nvmlDeviceGetFieldValues(gpu, [186, 82, 83])
    assert (power.valueType, power.value.uiVal) == (1, 321_000)
    assert power.value.ullVal != 321_000  # the rest of the union is undefined
    assert heat.nvmlReturn == nv.NVML_ERROR_NOT_SUPPORTED
    assert energy.valueType == 0
    assert energy.value.dVal > 1e9


@in_fake_nvml
def test_slowdown_times_have_the_ids_of_their_driver(fake: FakeNvml) -> None:
    gpu = started(fake, "hold; value 0 reasons 32; jump 2")
    for driver, number in (("575.51.03", 251), ("580.65.06", 251), ("580.95.05", 269)):
        fake.do(f"driver {driver}")
        told = [each for each in (251, 269) if not field(gpu, each).nvmlReturn]
        assert told == [number], driver
        assert field(gpu, number).value.ullVal >= 1_900_000_000
    fake.do("model 1 b200")
    profile = field(nv.nvmlDeviceGetHandleByIndex(1), 251)
    assert (profile.nvmlReturn, profile.value.uiVal) == (0, 3)
    fake.do("driver 570.86.15")
    assert field(gpu, 251).nvmlReturn == nv.NVML_ERROR_NOT_SUPPORTED
    assert field(gpu, 269).nvmlReturn == nv.NVML_ERROR_NOT_SUPPORTED


@in_fake_nvml
def test_a_call_fails_from_its_nth_time_on_for_one_gpu(fake: FakeNvml) -> None:
    gpu = started(fake, "return nvmlDeviceGetPowerUsage 0 4 3 2")
    other = nv.nvmlDeviceGetHandleByIndex(1)
    assert [code(nv.nvmlDeviceGetPowerUsage, gpu) for _ in range(6)] == [
        *(0, 0, 4, 4, 0, 0)
    ]
    assert [code(nv.nvmlDeviceGetPowerUsage, other) for _ in range(4)] == [0] * 4


@in_fake_nvml
def test_a_lost_gpu_fails_alone_and_may_come_back_under_a_new_handle(
    fake: FakeNvml,
) -> None:
    gpu = started(fake)
    other = nv.nvmlDeviceGetHandleByIndex(1)
    fake.do("lose 0")
    lost = nv.NVML_ERROR_GPU_IS_LOST
    assert code(nv.nvmlDeviceGetPowerUsage, gpu) == lost
    assert code(nv.nvmlDeviceGetHandleByIndex, 0) == lost
    assert code(nv.nvmlDeviceGetPowerUsage, other) == 0
    fake.do("anew 0")
    assert code(nv.nvmlDeviceGetPowerUsage, gpu) == lost
    assert code(nv.nvmlDeviceGetPowerUsage, nv.nvmlDeviceGetHandleByIndex(0)) == 0
    fake.do("lose 0; back 0")
    assert code(nv.nvmlDeviceGetPowerUsage, nv.nvmlDeviceGetHandleByIndex(0)) == 0


@in_fake_nvml
def test_mig_slices_have_holes_and_handles_that_go_stale(fake: FakeNvml) -> None:
    gpu = started(fake, "mig 0 3 1g.10gb 9856; hole 0; mig 0 5 2g.20gb 19968")
    assert nv.nvmlDeviceGetMigMode(gpu) == [1, 1]
    assert nv.nvmlDeviceGetMaxMigDeviceCount(gpu) == 7
    slices = {
        index: nv.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        for index in range(7)
        if not code(nv.nvmlDeviceGetMigDeviceHandleByIndex, gpu, index)
    }
    assert list(slices) == [0, 2]
    assert nv.nvmlDeviceGetName(slices[2]) == "NVIDIA H100 80GB HBM3 MIG 2g.20gb"
    assert nv.nvmlDeviceGetGpuInstanceId(slices[2]) == 5
    assert nv.nvmlDeviceGetAttributes(slices[2]).memorySizeMB == 19968
    not_supported = nv.NVML_ERROR_NOT_SUPPORTED
    assert code(nv.nvmlDeviceGetUtilizationRates, gpu) == not_supported
    assert code(nv.nvmlDeviceGetPowerUsage, slices[0]) == not_supported
    sample = nv.nvmlGpmSampleAlloc()
    nv.nvmlGpmMigSampleGet(gpu, 5, sample)
    fake.do("unmig 0 5")
    stale = code(nv.nvmlDeviceGetUUID, slices[2])
    assert stale == nv.NVML_ERROR_INVALID_ARGUMENT
    assert code(nv.nvmlGpmMigSampleGet, gpu, 5, sample) == nv.NVML_ERROR_NOT_FOUND
    nv.nvmlGpmSampleFree(sample)


@in_fake_nvml
def test_events_are_told_once_and_only_after_they_were_asked_for(
    fake: FakeNvml,
) -> None:
    gpu = started(fake, "xid 0 31")
    events = nv.nvmlEventSetCreate()
    nv.nvmlDeviceRegisterEvents(gpu, nv.nvmlEventTypeXidCriticalError, events)
    assert code(nv.nvmlEventSetWait_v2, events, 1) == nv.NVML_ERROR_TIMEOUT
    fake.do("xid 0 79")
    assert nv.nvmlEventSetWait_v2(events, 1000).eventData == 79
    assert code(nv.nvmlEventSetWait_v2, events, 1) == nv.NVML_ERROR_TIMEOUT
    nv.nvmlEventSetFree(events)
    assert fake.count("event sets alive") == 0


@in_fake_nvml
def test_processes_may_use_memory_that_nobody_knows(fake: FakeNvml) -> None:
    gpu = started(fake)
    assert nv.nvmlDeviceGetComputeRunningProcesses(gpu) == []
    fake.do("process 0 4711 1048576; process 0 4712 -")
    told = nv.nvmlDeviceGetComputeRunningProcesses(gpu)
    assert [(each.pid, each.usedGpuMemory) for each in told] == [
        (4711, 1048576),
        (4712, None),
    ]


@in_fake_nvml
def test_commands_wait_for_their_time(fake: FakeNvml) -> None:
    gpu = started(fake, "@10 lose 0; @20 back 0")
    codes = []
    for _ in range(3):
        codes.append(code(nv.nvmlDeviceGetPowerUsage, gpu))
        fake.do("jump 10.5")
    assert codes == [0, 15, 0]
    with pytest.raises(ValueError, match="nonsense"):
        fake.do("nonsense 0")


@in_fake_nvml
def test_the_workload_is_plausible(fake: FakeNvml) -> None:
    """Everything moves, within bounds, and each GPU is capped now and then."""
    gpu = started(fake)
    seen: dict[str, list[float]] = {"dram": [], "power": [], "clock": [], "heat": []}
    one, two = nv.nvmlGpmSampleAlloc(), nv.nvmlGpmSampleAlloc()
    nv.nvmlGpmSampleGet(gpu, one)
    for _ in range(240):
        fake.do("jump 0.5")
        nv.nvmlGpmSampleGet(gpu, two)
        seen["dram"].append(between(one, two, DRAM)[0].value)
        seen["power"].append(nv.nvmlDeviceGetPowerUsage(gpu) / 1000)
        seen["clock"].append(nv.nvmlDeviceGetClockInfo(gpu, nv.NVML_CLOCK_SM))
        seen["heat"].append(nv.nvmlDeviceGetTemperatureV(gpu, 0))
        one, two = two, one
    assert min(seen["dram"]) == 0
    assert 70 < max(seen["dram"]) < 95
    assert min(seen["power"]) > 60
    assert max(seen["power"]) == 700
    assert len(set(seen["clock"])) > 3
    assert 30 < max(seen["heat"]) < 75
    capped_share = field(gpu, 74).value.ullVal / 120e9
    assert 0.005 < capped_share < 0.2


@with_old_driver
def test_an_old_driver_lacks_functions_and_has_their_elders(fake: FakeNvml) -> None:
    gpu = started(fake)
    missing = nv.NVML_ERROR_FUNCTION_NOT_FOUND
    assert code(nv.nvmlGpmSampleAlloc) == missing
    assert code(nv.nvmlDeviceGetCurrentClocksEventReasons, gpu) == missing
    assert code(nv.nvmlDeviceGetMemoryInfo, gpu, nv.nvmlMemory_v2) == missing
    assert code(nv.nvmlDeviceGetTemperatureV, gpu, 0) == missing
    assert nv.nvmlDeviceGetCurrentClocksThrottleReasons(gpu) in {0, 1, 4}
    assert nv.nvmlDeviceGetMemoryInfo(gpu).used > 0
    assert ctypes.sizeof(nv.c_nvmlMemory_v2_t) == 40


@in_fake_nvml
def test_calls_and_fields_answer_as_an_h100_did(fake: FakeNvml) -> None:
    """``h100.json`` is what ``tests/gpu`` kept of a real one, with driver 580.159."""
    gpu = started(fake)
    truth = json.loads((HERE / "h100.json").read_text(encoding="utf-8"))
    calls = {name: outcome(call, gpu)["code"] for name, call in CALLS.items()}
    fields = {str(number): answer_of(gpu, number) for number in FIELDS}

    assert calls == {name: each["code"] for name, each in truth["calls"].items()}
    for number, each in truth["fields"].items():
        if number not in NVLINK:
            assert fields[number] == (each["code"], each.get("type")), number


def answer_of(gpu: Any, number: int) -> tuple[int, int | None]:
    """Its code, and the type of its value if there is one."""
    told = field(gpu, number)
    return told.nvmlReturn, None if told.nvmlReturn else told.valueType
