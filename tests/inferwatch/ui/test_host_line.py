"""The hardware in one row: whole facts, the telling ones first."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from inferwatch.metrics.hardware.view import GpuState, Hardware
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.health import Health
from inferwatch.ui.frame.host_line import HostLine
from tests.inferwatch.ui.conftest import NOW_NS, S, snapshot
from tests.inferwatch.ui.hardware import gpu, with_gpus, without_gpu


def written(shown: Snapshot, width: int = 120) -> str:
    line = HostLine()
    line.show(shown)
    return "".join(run.text for row in line.draw(width, 1) for run in row).rstrip()


def beside(*gpus: GpuState) -> Snapshot:
    return with_gpus(snapshot(), *gpus)


@pytest.mark.parametrize(
    ("width", "facts"),
    [
        (60, ["HBM 3.61 TB/s  74%", "SM  88%", "588/700 W"]),
        (80, ["SM  88%  588/700 W", "clocks ok     │ CPU api  34%"]),
        (120, ["SM  88%  tensor  31%", "core  71%  loop lag  2.1 ms"]),
    ],
)
def test_what_has_no_room_goes_as_a_whole_and_the_least_telling_first(
    width: int, facts: Sequence[str]
) -> None:
    text = written(beside(), width)

    assert all(fact in text for fact in facts)
    assert text.endswith(facts[-1])


def test_numbers_do_not_move_when_clocks_are_held_down() -> None:
    fine, held = (
        written(beside(gpu(throttle_reasons=why))) for why in ((), ("power cap",))
    )

    assert fine.index("│") == held.index("│")
    assert "▼ power cap" in held


@pytest.mark.parametrize(
    ("gpus", "head"),
    [
        ([gpu()], "H200"),
        ([gpu(0), gpu(1, watched=False)], "GPU0 H200"),
        ([gpu(0), gpu(1)], "2 × H200"),
        ([gpu(0), gpu(1, name="NVIDIA L4"), gpu(2)], "2 × H200, 1 × L4"),
        ([gpu(driver="simulated 580.1")], "simulated GPU H200"),
        ([gpu(0), gpu(1, lost_because="fell off the bus")], "2 × H200 ✖ 1 lost"),
        ([gpu(0), gpu(1, parent_uuid=gpu(0).source)], "GPU0 H200"),
        ([gpu(1, parent_uuid="GPU-9"), gpu(2, parent_uuid="GPU-9")], "2 × H200"),
    ],
    ids=[
        *("one", "one of two", "two", "models", "simulated", "lost"),
        *("with its slice", "slices alone"),
    ],
)
def test_the_gpus_of_the_engine_are_named(gpus: Sequence[GpuState], head: str) -> None:
    assert written(beside(*gpus)).startswith(f" {head}  ")


def test_several_gpus_are_folded_into_one() -> None:
    text = written(beside(gpu(0), gpu(1), gpu(2, watched=False)))

    assert "HBM 7.22 TB/s  74%" in text
    assert "1176/1400 W" in text


def test_a_lost_gpu_has_no_values() -> None:
    text = written(beside(gpu(lost_because="fell off the bus")))

    assert "H200 ✖ lost" in text
    assert "TB/s" not in text
    assert "clocks" not in text


def test_readings_that_do_not_come_any_more_have_an_age() -> None:
    assert "ago" not in written(beside(gpu(last_ns=NOW_NS - S)))
    assert "12 s ago" in written(beside(gpu(last_ns=NOW_NS - 12 * S)))


def test_time_in_which_memory_was_busy_is_no_bandwidth() -> None:
    """Before Hopper nothing else is measured; what steps derive tells more."""
    old = gpu(hbm_bytes_per_s=None, hbm_share=None, sm_active=None, memory_busy=0.43)
    derived = beside(old)
    plain = replace(
        derived, hardware=replace(derived.hardware, derived_bytes_per_s=None)
    )

    assert "memory 1.24 GB/s derived" in written(derived)
    assert "mem busy (time)  43%" in written(plain)
    assert "HBM" not in written(derived) + written(plain)


def test_without_a_gpu_it_says_why() -> None:
    text = written(without_gpu(snapshot()), 80)

    assert text.startswith(" GPU no NVIDIA driver │ CPU api")


def test_a_long_reason_is_for_the_screen_of_the_hardware() -> None:
    absent = Hardware(no_gpu="the driver's library and the kernel's module differ")

    assert written(replace(snapshot(), hardware=absent)).startswith(" GPU none │ CPU")
    assert "GPU not checked yet" in written(replace(snapshot(), hardware=Hardware()))


def test_a_quota_that_holds_the_engine_back_is_said() -> None:
    shown = without_gpu(snapshot())
    (host,) = shown.hosts
    held = replace(host.processes[0], throttled=0.34)

    text = written(replace(shown, hosts=(replace(host, processes=(held,)),)), 80)

    assert "▼ CPU quota  34%" in text


def test_of_a_lost_engine_the_processes_are_unknown() -> None:
    shown = snapshot()
    lost = replace(
        shown,
        verdict=replace(shown.verdict, health=Health.LOST),
        cost=replace(shown.cost, process_cpu_share={"load": 0.12}),
    )

    assert "CPU api    –  core    –  load  12%" in written(lost)
