"""Our handling of NVML's troubles, through real pynvml on a fake library.

What is proven is what *we* make of each answer that the interface allows, not that a
driver ever gives it: that is for ``tests/gpu``, on hardware.
"""

from pathlib import Path
from tempfile import NamedTemporaryFile

import pynvml as nv
import pytest

from collectors.hardware import nvml_errors, nvml_gpu
from collectors.hardware.gpu_source import Gpm, GpuOptions, ReadInterval
from tests.collectors.hardware.watched_fake import FIRST, SECOND, Watching, watched
from tests.fake_nvml import FakeNvml, in_fake_nvml, with_old_driver

GPM_FIELDS = {"dram_active", "sm_active", "sm_occupancy", "tensor_active"}


# What is read where nothing fails.


@in_fake_nvml
def test_we_read_of_a_healthy_gpu_everything_there_is(fake: FakeNvml) -> None:
    with watched(fake, "value 0 dram 63; value 0 power 512") as watching:
        watching.ticks(3)
        info = watching.info()
        assert info.missing == {}
        assert info.name == "NVIDIA H100 80GB HBM3"
        assert info.architecture == "Hopper"
        assert info.peak_bytes_per_s == pytest.approx(3352.3e9, rel=1e-4)
        assert "simulated" in (info.driver or "")
        sample = watching.samples()[-1]
        assert sample.via == "gpm"
        assert sample.span_ns == 1_000_000_000
        assert sample.dram_active == pytest.approx(0.63)
        assert sample.power_w == pytest.approx(512)
        unknown = [
            name for name in sample.__struct_fields__ if getattr(sample, name) is None
        ]
        assert unknown == []


@in_fake_nvml
def test_our_window_is_as_long_as_the_time_between_two_sweeps(fake: FakeNvml) -> None:
    with watched(fake, "value 0 dram 50") as watching:
        watching.tick()
        watching.tick(1)
        fake.do("value 0 dram 10")
        watching.tick(30)  # nobody was there
        assert watching.samples()[-1].span_ns == 30_000_000_000
        assert watching.last("dram_active") == pytest.approx(0.10)


@in_fake_nvml
def test_we_ask_for_no_second_sample_within_a_tenth_of_a_second(
    fake: FakeNvml,
) -> None:
    with watched(fake) as watching:
        watching.tick()
        watching.tick(0.3)
        sampled = watching.calls("nvmlGpmSampleGet")
        watching.tick(0.05)
        assert watching.calls("nvmlGpmSampleGet") == sampled
        assert watching.samples()[-1].dram_active is None
        watching.tick(0.06)
        assert watching.samples()[-1].span_ns == 110_000_000


@in_fake_nvml
def test_our_slow_readings_are_not_taken_at_each_sweep(fake: FakeNvml) -> None:
    with watched(fake) as watching:
        listed = watching.calls("nvmlDeviceGetComputeRunningProcesses_v3")
        watching.tick(1, {ReadInterval.EACH, ReadInterval.SECOND})
        watching.tick(0.1, {ReadInterval.EACH})
        assert watching.calls("nvmlDeviceGetComputeRunningProcesses_v3") == listed
        assert watching.calls("nvmlDeviceGetPcieThroughput") == 0  # it blocks


# Why there is none at all.


@in_fake_nvml
def test_we_say_that_the_driver_is_not_loaded_and_try_again_later(
    fake: FakeNvml,
) -> None:
    with watched(fake, "return nvmlInitWithFlags * 9") as watching:
        assert "not loaded" in watching.absent[0]
        watching.tick(5)
        assert watching.calls("nvmlInitWithFlags") == 1
        fake.do("return nvmlInitWithFlags * 0")
        watching.tick(30)
        watching.ticks(2)
        assert watching.last("power_w") is not None
        assert len(watching.absent) == 1


@in_fake_nvml
def test_we_do_not_retry_a_driver_that_differs_from_its_library(
    fake: FakeNvml,
) -> None:
    with watched(fake, "return nvmlInitWithFlags * 18") as watching:
        assert "reboot" in watching.absent[0]
        assert watching.source.idle_s is None


@in_fake_nvml
def test_we_say_who_may_not_open_the_driver_at_all(fake: FakeNvml) -> None:
    with watched(fake, "return nvmlInitWithFlags * 4") as watching:
        assert "permission" in watching.absent[0]


@in_fake_nvml
def test_we_say_that_there_is_a_driver_but_no_gpu(fake: FakeNvml) -> None:
    with watched(fake, "gpus 0") as watching:
        assert "no NVIDIA GPU" in watching.absent[0]


@in_fake_nvml
def test_we_tell_of_a_driver_that_goes_and_comes_back(fake: FakeNvml) -> None:
    with watched(fake) as watching:
        watching.ticks(2)
        fake.do("return * * 9")
        watching.tick()
        assert "not loaded" in (watching.info().lost_because or "")
        fake.do("return * * 0")
        watching.ticks(3, 20)
        assert watching.info().lost_because is None
        watching.ticks(2)
        assert watching.samples()[-1].dram_active is not None


@in_fake_nvml
def test_we_open_the_library_once_more_when_somebody_shut_it_down(
    fake: FakeNvml,
) -> None:
    with watched(fake) as watching:
        watching.ticks(2)
        opened = watching.calls("nvmlInitWithFlags")
        nv.nvmlShutdown()  # another part of this process
        watching.ticks(4)
        assert watching.calls("nvmlInitWithFlags") == opened + 1
        assert watching.samples()[-1].dram_active is not None
        fake.do("fresh; hold; return nvmlEventSetCreate * 3")  # those samples are lost


# One reading fails.


@in_fake_nvml
def test_a_reading_that_is_not_supported_is_not_asked_for_again(
    fake: FakeNvml,
) -> None:
    function = "nvmlDeviceGetEnforcedPowerLimit"
    with watched(fake, f"return {function} * 3") as watching:
        watching.ticks(20)
        assert watching.calls(function) == 2  # once of each GPU
        assert "power_limit_w" in watching.info().missing
        assert watching.last("power_limit_w") is None
        assert watching.last("power_w") is not None


@in_fake_nvml
def test_a_field_value_fails_alone(fake: FakeNvml) -> None:
    with watched(fake, "field 0 82 3; field 0 3 3") as watching:
        watching.ticks(3)
        assert set(watching.info().missing) == {"memory_temperature_c", "ecc_corrected"}
        assert watching.last("memory_temperature_c") is None
        assert watching.last("energy_mj") is not None
        assert watching.info(SECOND).missing == {}


@in_fake_nvml
def test_we_read_a_field_by_the_type_it_comes_in(fake: FakeNvml) -> None:
    with watched(fake, "value 0 power 321; value 0 memory_temperature 66") as watching:
        for kind in (0, 1, 2, 3, 4, 5):
            fake.do(f"field_type 0 186 {kind}; field_type 0 82 {kind}")
            watching.tick()
            assert watching.samples()[-1].power_w == pytest.approx(321)
            assert watching.samples()[-1].memory_temperature_c == 66


@in_fake_nvml
def test_we_do_not_trust_a_type_that_we_do_not_know(fake: FakeNvml) -> None:
    with watched(fake, "field_type 0 186 17; field_type 0 83 17") as watching:
        watching.ticks(3)
        assert watching.last("power_w") is not None  # by the call of its own
        assert watching.info().missing == {}


@in_fake_nvml
def test_power_and_energy_have_calls_of_their_own_where_fields_fail(
    fake: FakeNvml,
) -> None:
    with watched(fake, "field 0 186 3; field 0 83 3; value 0 power 250") as watching:
        watching.ticks(3)
        assert watching.last("power_w") == pytest.approx(250)
        assert watching.last("energy_mj") is not None
        assert watching.info().missing == {}


@in_fake_nvml
def test_all_fields_may_fail_at_once(fake: FakeNvml) -> None:
    with watched(fake, "return nvmlDeviceGetFieldValues 0 3") as watching:
        watching.ticks(5)
        assert watching.calls("nvmlDeviceGetFieldValues") < 15
        assert watching.last("power_w") is not None
        assert watching.last("dram_active") is not None
        assert "throttled_ns" in watching.info().missing


@in_fake_nvml
def test_slowdown_times_are_asked_for_by_the_ids_of_the_driver(fake: FakeNvml) -> None:
    """A newer binding's ids mean power profiles to an older driver."""
    for driver, known in (
        ("570.86.15 (simulated)", False),
        ("575.51.03 (simulated)", True),
        ("580.65.06 (simulated)", True),
        ("580.95.05 (simulated)", True),
        ("590.48.01 (simulated)", True),
    ):
        fake.do("fresh")
        commands = f"model 0 b200; driver {driver}; value 0 reasons 32"
        with watched(fake, commands) as watching:
            watching.ticks(4)
            thermal = watching.last("throttled_ns").get("thermal", -1)
            assert (thermal >= 0) is known, driver
            assert not known or thermal >= 3_000_000_000, driver


@in_fake_nvml
def test_a_reading_without_permission_is_tried_again_ever_more_rarely(
    fake: FakeNvml,
) -> None:
    function = "nvmlDeviceGetEnforcedPowerLimit"
    with watched(fake, f"gpus 1; return {function} 0 4 1 6") as watching:
        watching.tick(0)
        assert "permission" in watching.info().missing["power_limit_w"]
        watching.ticks(62)
        assert watching.calls(function) == 6  # after 1, 2, 4, 8, 16, 32 s
        watching.ticks(2, 40)
        assert watching.last("power_limit_w") is not None
        assert watching.info().missing == {}


@in_fake_nvml
def test_nothing_new_is_no_failure(fake: FakeNvml) -> None:
    for code in (6, 21, 27):
        fake.do("fresh")
        commands = f"gpus 1; return nvmlDeviceGetEnforcedPowerLimit 0 {code} 2 1"
        with watched(fake, commands) as watching:
            watching.ticks(3)
            limits = [each.power_limit_w for each in watching.samples()]
            assert limits.count(None) == 1
            assert watching.info().missing == {}


@in_fake_nvml
def test_a_call_that_fails_without_a_reason_has_the_driver_opened_anew(
    fake: FakeNvml,
) -> None:
    """At most once a minute: a container has lost its GPUs, for instance."""
    with watched(fake) as watching:
        watching.ticks(61)
        opened = watching.calls("nvmlInitWithFlags")
        fake.do("return nvmlDeviceGetClockInfo * 999")
        watching.ticks(50)
        assert watching.calls("nvmlInitWithFlags") == opened + 1
        watching.ticks(70)
        assert watching.calls("nvmlInitWithFlags") == opened + 2
        assert "container" in watching.info().missing["sm_clock_mhz"]
        assert watching.last("power_w") is not None


@in_fake_nvml
def test_a_driver_that_goes_on_failing_is_not_opened_anew_for_ever(
    fake: FakeNvml,
) -> None:
    function = "nvmlDeviceGetEnforcedPowerLimit"
    with watched(fake, f"gpus 1; return {function} * 999") as watching:
        for _ in range(40):
            watching.tick(30)
        assert watching.calls("nvmlInitWithFlags") == 1 + 5
        assert watching.last("power_w") is not None


@in_fake_nvml
def test_a_name_that_is_no_text_hurts_nobody(fake: FakeNvml) -> None:
    fake._library.fake_do(b"text 0 name \xff\xfe\x80")
    with watched(fake) as watching:
        watching.ticks(2)
        assert watching.last("power_w") is not None
        assert watching.info(SECOND).name == "NVIDIA H100 80GB HBM3"


@in_fake_nvml
def test_memory_that_is_the_hosts_is_said_to_be(fake: FakeNvml) -> None:
    for commands in ("model 0 gb10", "model 0 gb10; value 0 total 0"):
        fake.do("fresh")
        with watched(fake, f"gpus 1; {commands}") as watching:
            watching.ticks(2)
            info = watching.info()
            assert "host" in info.missing["memory_used_bytes"]
            assert info.memory_bytes is None
            assert info.peak_bytes_per_s is None


@in_fake_nvml
def test_who_uses_the_memory_may_be_unknown(fake: FakeNvml) -> None:
    with watched(fake, "process 0 4711 1048576; process 0 12 -") as watching:
        watching.tick()
        assert watching.processes()[-1].memory_bytes == {4711: 1048576, 12: None}


# Counters.


@in_fake_nvml
def test_energy_is_told_as_the_driver_counts_it_even_backwards(
    fake: FakeNvml,
) -> None:
    """Whoever takes differences bases them anew."""
    with watched(fake) as watching:
        watching.ticks(2)
        before = watching.last("energy_mj")
        fake.do("reset 0")
        watching.tick()
        assert 0 <= watching.last("energy_mj") < before


@in_fake_nvml
def test_a_counter_beyond_all_measure_is_unknown(fake: FakeNvml) -> None:
    """No record could hold it, nor the readings beside it."""
    with watched(fake, "gpus 1; value 0 energy 1.8e19") as watching:
        watching.ticks(3)
        assert watching.last("energy_mj") is None
        assert watching.last("power_w") is not None


@in_fake_nvml
def test_a_byte_counter_of_32_bits_gives_no_rate_and_a_reason(fake: FakeNvml) -> None:
    """At 6 GB/s it wraps more than once a second: no difference tells how often."""
    with watched(fake, "gpus 1; model 0 a100; value 0 pcie_tx 6000") as watching:
        watching.ticks(3)
        assert watching.last("pcie_tx_bytes_per_s") is None
        assert "32 bits" in watching.info().missing["pcie_tx_bytes_per_s"]


@in_fake_nvml
def test_a_byte_counter_that_wraps_gives_no_rate_that_once(fake: FakeNvml) -> None:
    commands = "gpus 1; model 0 a100; value 0 pcie_tx 100; field_type 0 197 3"
    with watched(fake, commands) as watching:
        watching.ticks(3)
        assert watching.last("pcie_tx_bytes_per_s") == pytest.approx(100 << 20, rel=0.1)
        fake.do("reset 0")
        watching.tick()
        assert watching.samples()[-1].pcie_tx_bytes_per_s is None
        watching.tick()
        assert watching.last("pcie_tx_bytes_per_s") == pytest.approx(100 << 20, rel=0.1)


# Performance counters.


@in_fake_nvml
def test_before_hopper_we_say_what_could_tell_and_show_time_as_time(
    fake: FakeNvml,
) -> None:
    for model in ("a100", "l40s", "t4", "rtx4090"):
        fake.do("fresh")
        with watched(fake, f"gpus 1; model 0 {model}") as watching:
            watching.ticks(3)
            missing = watching.info().missing
            assert set(missing) >= GPM_FIELDS
            assert "DCGM" in missing["dram_active"]
            assert watching.last("memory_busy") is not None
            assert watching.last("dram_active") is None
            assert watching.samples()[-1].via == "nvml"


@in_fake_nvml
def test_all_ways_to_say_that_there_are_no_counters_mean_the_same(
    fake: FakeNvml,
) -> None:
    for code in (3, 13, 25):
        fake.do("fresh")
        commands = f"gpus 1; model 0 a100; return nvmlGpmQueryDeviceSupport * {code}"
        with watched(fake, commands) as watching:
            watching.ticks(5)
            assert set(watching.info().missing) >= GPM_FIELDS
            assert watching.calls("nvmlGpmQueryDeviceSupport") == 1


@in_fake_nvml
def test_support_is_what_a_sample_proves_and_not_what_is_claimed(
    fake: FakeNvml,
) -> None:
    """A virtual GPU that is part of one says yes, and gives nothing."""
    commands = "gpus 1; virtual 0 2; return nvmlGpmSampleGet * 3"
    with watched(fake, commands) as watching:
        watching.ticks(10)
        assert "virtual" in watching.info().missing["dram_active"]
        assert watching.calls("nvmlGpmSampleGet") == 1
        assert watching.last("power_w") is not None


@in_fake_nvml
def test_counters_that_a_container_loses_are_tried_again_until_they_are_back(
    fake: FakeNvml,
) -> None:
    with watched(fake, "gpus 1; return nvmlGpmSampleGet 0 4 10 5") as watching:
        watching.ticks(12)
        assert "container" in watching.info().missing["dram_active"]
        assert watching.samples()[-1].dram_active is None
        assert watching.samples()[-1].power_w is not None
        watching.ticks(70)
        assert watching.info().missing == {}
        assert watching.samples()[-1].dram_active is not None


@in_fake_nvml
def test_counters_for_administrators_only_say_who_could_read_them(
    fake: FakeNvml,
) -> None:
    with watched(fake, "return nvmlGpmSampleGet * 4") as watching:
        watching.ticks(3)
        because = watching.info().missing["sm_active"]
        assert "SYS_ADMIN" in because
        assert watching.last("memory_busy") is not None


@in_fake_nvml
def test_what_the_driver_was_told_says_whom_counters_are_for(fake: FakeNvml) -> None:
    with (
        NamedTemporaryFile("w", encoding="ascii") as parameters,
        pytest.MonkeyPatch.context() as patch,
    ):
        parameters.write("ResmanDebugLevel: 1\nRmProfilingAdminOnly: 1\n")
        parameters.flush()
        patch.setattr(nvml_errors, "PARAMETERS", Path(parameters.name))
        with watched(fake, "gpus 1; return nvmlGpmSampleGet * 4") as watching:
            watching.ticks(2)
            because = watching.info().missing["dram_active"]
    assert "NVreg_RestrictProfilingToAdminUsers=0" in because


@in_fake_nvml
def test_under_wsl_we_say_that_it_is_not_passed_on(fake: FakeNvml) -> None:
    commands = "gpus 1; return nvmlGpmQueryDeviceSupport * 3"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvml_gpu, "under_wsl", lambda: True)
        with watched(
            fake, f"{commands}; return nvmlDeviceGetUtilizationRates * 3"
        ) as watching:
            watching.ticks(2)
            missing = watching.info().missing
    assert "WSL" in missing["dram_active"]
    assert "WSL" in missing["gpu_busy"]


@in_fake_nvml
def test_a_metric_that_fails_leaves_the_others(fake: FakeNvml) -> None:
    with watched(fake, "gpus 1; metric 0 5 3; metric 0 60 3") as watching:
        watching.ticks(3)
        missing = watching.info().missing
        assert "tensor_active" in missing
        assert watching.last("tensor_active") is None
        assert watching.last("dram_active") is not None


@in_fake_nvml
def test_no_number_is_left_unknown_and_not_zero(fake: FakeNvml) -> None:
    with watched(fake, "gpus 1; metric 0 10 nan") as watching:
        watching.ticks(3)
        assert watching.last("dram_active") is None
        assert watching.last("sm_active") is not None


@in_fake_nvml
def test_counters_that_give_no_number_say_so_and_are_asked_on(fake: FakeNvml) -> None:
    with watched(fake, "gpus 1; metric 0 10 nan") as watching:
        watching.ticks(4)
        assert watching.info().missing == {}  # a blank is nothing unusual
        watching.ticks(3)
        assert "no number" in watching.info().missing["dram_active"]
        assert watching.last("sm_active") is not None
        fake.do("metric 0 10 0")
        watching.ticks(2)
        assert watching.info().missing == {}
        assert watching.last("dram_active") is not None


@in_fake_nvml
def test_more_than_everything_is_kept_as_it_was_told(fake: FakeNvml) -> None:
    with watched(fake, "gpus 1; value 0 sm 137") as watching:
        watching.ticks(3)
        assert watching.last("sm_active") == pytest.approx(1.37)


@in_fake_nvml
def test_after_a_failed_call_no_old_value_is_told_again(fake: FakeNvml) -> None:
    """The request keeps the numbers of the call before."""
    with watched(fake, "gpus 1; return nvmlGpmMetricsGet * 999 3 1") as watching:
        watching.ticks(3)
        assert watching.samples()[-1].dram_active is not None
        known = len([each for each in watching.samples() if each.dram_active])
        watching.tick()
        now = len([each for each in watching.samples() if each.dram_active])
        assert now == known
        watching.ticks(6)
        assert watching.samples()[-1].dram_active is not None
        assert watching.samples()[-1].span_ns == 1_000_000_000


@in_fake_nvml
def test_counters_are_left_alone_where_people_say_so(fake: FakeNvml) -> None:
    with watched(fake, "", GpuOptions(gpm=Gpm.OFF)) as watching:
        watching.ticks(3)
        assert watching.calls("nvmlGpmSampleAlloc") == 0
        assert "--gpm off" in watching.info().missing["dram_active"]


# GPUs that go and come.


@in_fake_nvml
def test_a_lost_gpu_is_told_and_the_others_go_on(fake: FakeNvml) -> None:
    for code, word in ((15, "bus"), (16, "reset")):
        fake.do("fresh")
        with watched(fake) as watching:
            watching.ticks(2)
            fake.do(f"lose 1 {code}")
            watching.ticks(3)
            assert word in (watching.info(SECOND).lost_because or "")
            assert watching.info(FIRST).lost_because is None
            assert watching.samples(FIRST)[-1].dram_active is not None
            lost_at = len(watching.samples(SECOND))
            watching.ticks(5)
            assert len(watching.samples(SECOND)) == lost_at


@in_fake_nvml
def test_a_lost_gpu_is_looked_for_once_a_minute_and_found_again(
    fake: FakeNvml,
) -> None:
    for way in ("back", "anew"):
        fake.do("fresh")
        with watched(fake) as watching:
            watching.ticks(2)
            fake.do("lose 1")
            asked = watching.calls("nvmlDeviceGetHandleByUUID")
            watching.ticks(58)
            assert watching.calls("nvmlDeviceGetHandleByUUID") == asked
            fake.do(f"{way} 1")
            watching.ticks(5)
            assert watching.info(SECOND).lost_because is None
            assert watching.samples(SECOND)[-1].dram_active is not None
            assert any("again" in text for text in watching.notes)


@in_fake_nvml
def test_a_gpu_that_stays_lost_is_not_asked_for_at_each_sweep(fake: FakeNvml) -> None:
    """Others wait while the driver looks for it."""
    with watched(fake) as watching:
        watching.tick()
        fake.do("lose 1")
        watching.ticks(600)
        assert watching.calls("nvmlDeviceGetHandleByUUID") <= 10


@in_fake_nvml
def test_a_gpu_that_is_lost_again_while_it_is_read_is_not_back(fake: FakeNvml) -> None:
    with watched(fake) as watching:
        watching.tick()
        fake.do("lose 1")
        watching.tick()
        fake.do("back 1; return nvmlDeviceGetClockInfo 1 15")
        watching.ticks(3, 61)
        assert watching.info(SECOND).lost_because
        assert fake.count("samples alive") == 2  # of the first
        fake.do("return nvmlDeviceGetClockInfo 1 0")
        watching.ticks(3, 61)
        assert watching.info(SECOND).lost_because is None


@in_fake_nvml
def test_a_gpu_that_we_may_not_open_is_left_out(fake: FakeNvml) -> None:
    commands = "gpus 3; return nvmlDeviceGetHandleByIndex_v2 1 4"
    with watched(fake, commands) as watching:
        watching.ticks(2)
        indexes = {each.index for each in watching.told if hasattr(each, "index")}
        assert indexes == {0, 2}
        assert any("GPU 1" in text for text in watching.notes)


@in_fake_nvml
def test_gpus_that_cannot_be_opened_are_told_once_and_tried_again(
    fake: FakeNvml,
) -> None:
    with watched(fake, "return nvmlDeviceGetHandleByIndex_v2 * 15") as watching:
        for _ in range(10):
            watching.tick(30)
        assert len(watching.absent) == 1
        assert "fallen off the bus" in watching.absent[0]
        assert watching.notes.count(watching.notes[0]) == 1
        fake.do("return nvmlDeviceGetHandleByIndex_v2 * 0")
        watching.ticks(4, 30)
        assert watching.last("dram_active") is not None


@in_fake_nvml
def test_a_gpu_lost_before_it_was_found_is_found_later(fake: FakeNvml) -> None:
    with watched(fake, "lose 1") as watching:
        watching.ticks(2)
        assert watching.samples(SECOND) == []
        fake.do("back 1")
        watching.ticks(62)
        assert watching.samples(SECOND)[-1].power_w is not None


@in_fake_nvml
def test_an_event_is_noted_once_and_with_what_it_means(fake: FakeNvml) -> None:
    with watched(fake, "", events=True) as watching:
        watching.tick()
        fake.do("xid 1 79")
        heard(watching)
        assert [text for text in watching.notes if "79" in text] == [
            "GPU 1: Xid 79: the GPU has fallen off the bus: reset it or reboot"
        ]


@in_fake_nvml
def test_events_that_cannot_be_had_or_fail_hurt_no_reading(fake: FakeNvml) -> None:
    for commands in (
        "return nvmlEventSetCreate * 999",
        "return nvmlDeviceGetSupportedEventTypes * 3",
        "return nvmlDeviceRegisterEvents * 3",
        "return nvmlEventSetWait_v2 * 15",
    ):
        fake.do("fresh")
        with watched(fake, commands, events=True) as watching:
            watching.ticks(3)
            assert watching.samples()[-1].dram_active is not None
            assert watching.notes == []


@in_fake_nvml
def test_errors_of_memory_are_noted_where_no_event_tells_them(fake: FakeNvml) -> None:
    with watched(fake, "value 0 ecc_uncorrected 2") as watching:
        watching.ticks(2)
        assert watching.notes == []  # they are from before
        fake.do("value 0 ecc_uncorrected 3")
        watching.ticks(2)
        assert watching.notes == ["GPU 0: 1 more uncorrectable memory error"]


# Which are meant.


@in_fake_nvml
def test_gpus_are_meant_by_uuid_or_number_or_as_cuda_may_see_them(
    fake: FakeNvml,
) -> None:
    by_cuda = {"CUDA_VISIBLE_DEVICES": "1"}
    for options, environment, meant in (
        (GpuOptions(gpus=("1",)), {}, {SECOND}),
        (GpuOptions(gpus=(FIRST,)), by_cuda, {FIRST}),
        (GpuOptions(), by_cuda, {SECOND}),
        (GpuOptions(gpus=("all",)), by_cuda, {FIRST, SECOND}),
    ):
        fake.do("fresh")
        with watched(fake, "", options, environment) as watching:
            watching.ticks(2)
            assert {uuid for uuid in (FIRST, SECOND) if watching.samples(uuid)} == meant


@in_fake_nvml
def test_what_people_know_of_the_peak_counts(fake: FakeNvml) -> None:
    with watched(fake, "", GpuOptions(peak_gbps=3000)) as watching:
        watching.ticks(3)
        assert watching.info().peak_bytes_per_s == 3e12
        assert watching.last("peak_bytes_per_s") == 3e12
        assert watching.info().sheet_bytes_per_s == 3.35e12


@in_fake_nvml
def test_the_peak_follows_the_memory_clock(fake: FakeNvml) -> None:
    with watched(fake, "gpus 1; value 0 memory_clock 1310") as watching:
        watching.ticks(3)
        assert watching.last("peak_bytes_per_s") == pytest.approx(1676.8e9)
        assert watching.info().peak_bytes_per_s == pytest.approx(3352.3e9, rel=1e-4)


# MIG.

SLICES = "gpus 1; mig 0 3 1g.10gb 9856; hole 0; mig 0 5 2g.20gb 19968"
SMALL, LARGE = (f"MIG-5e1f0000-0000-4000-8000-000000{number:06}" for number in (3, 5))


@in_fake_nvml
def test_slices_have_shares_but_no_bandwidth(fake: FakeNvml) -> None:
    with watched(fake, f"{SLICES}; value 0 dram 40") as watching:
        watching.ticks(3)
        info = watching.info(LARGE)
        assert info.parent_uuid == FIRST
        assert info.profile == "2g.20gb"
        assert watching.last("dram_active", LARGE) == pytest.approx(0.40)
        assert watching.last("peak_bytes_per_s", LARGE) is None
        assert watching.last("memory_used_bytes", SMALL) is not None


@in_fake_nvml
def test_slices_that_change_are_found_anew(fake: FakeNvml) -> None:
    with watched(fake, SLICES) as watching:
        watching.ticks(2)
        fake.do("unmig 0 5; mig 0 6 3g.40gb 40192")
        watching.ticks(3)
        new = SMALL[:-1] + "6"
        assert watching.samples(new)
        assert watching.info(LARGE).lost_because
        count = len(watching.samples(LARGE))
        watching.ticks(3)
        assert len(watching.samples(LARGE)) == count


@in_fake_nvml
def test_counters_are_off_under_mig_with_a_driver_that_they_break(
    fake: FakeNvml,
) -> None:
    old = "driver 535.129.03 (simulated); gpm_breaks_memory 1"
    with watched(fake, f"{SLICES}; {old}") as watching:
        watching.ticks(3)
        assert watching.calls("nvmlGpmMigSampleGet") == 0
        assert watching.last("memory_used_bytes", SMALL) is not None
        assert "550" in watching.info(SMALL).missing["dram_active"]
    fake.do("fresh")
    with watched(fake, f"{SLICES}; {old}", GpuOptions(gpm=Gpm.FORCE)) as watching:
        watching.ticks(3)
        assert watching.last("dram_active", SMALL) is not None


@in_fake_nvml
def test_counters_are_given_up_where_other_readings_break_with_them(
    fake: FakeNvml,
) -> None:
    with watched(fake, f"{SLICES}; gpm_breaks_memory 1") as watching:
        watching.ticks(3)
        sampled = watching.calls("nvmlGpmMigSampleGet")
        watching.ticks(5)
        assert watching.calls("nvmlGpmMigSampleGet") == sampled
        assert "--gpm force" in watching.info(SMALL).missing["dram_active"]


@in_fake_nvml
def test_a_parent_that_hides_its_memory_points_to_its_slices(fake: FakeNvml) -> None:
    commands = f"{SLICES}; return nvmlDeviceGetMemoryInfo_v2 0 4"
    with watched(fake, commands) as watching:
        watching.ticks(2)
        assert "slices" in watching.info().missing["memory_used_bytes"]
        assert watching.last("power_w") is not None


# Drivers of old.


@with_old_driver
def test_an_old_driver_is_asked_as_it_knows(fake: FakeNvml) -> None:
    commands = "driver 470.82.01 (simulated); gpus 1; value 0 temperature 55"
    with watched(fake, f"{commands}; process 0 4711 1024") as watching:
        watching.ticks(3)
        assert watching.processes()[-1].memory_bytes == {4711: 1024}
        assert watching.last("temperature_c") == 55
        assert watching.last("throttle_reasons") is not None
        assert watching.last("memory_used_bytes") is not None
        assert watching.last("memory_reserved_bytes") is None
        missing = watching.info().missing
        assert set(missing) >= GPM_FIELDS
        assert "too old" in missing["dram_active"]


def heard(watching: Watching) -> None:
    """Wait for the thread that hears events; it needs no time of ours."""
    import time  # noqa: PLC0415 - nothing else here waits

    until_s = time.monotonic() + 10
    while not any("Xid" in text for text in watching.notes):
        assert time.monotonic() < until_s
        time.sleep(0.01)


@in_fake_nvml
def test_a_gpu_that_has_no_uuid_is_left_out_and_another_named_oddly_is_not(
    fake: FakeNvml,
) -> None:
    commands = "gpus 3; text 0 uuid; text 1 name \x1b[31mH\xff100"
    with watched(fake, commands) as watching:
        watching.ticks(3)
        assert [each for each in watching.notes if "GPU 0 is not read" in each]
        assert watching.samples("") == []
        assert watching.last("dram_active", SECOND) is not None
