"""What GPUs send each other in a step, and how long that takes."""

import pytest

from inferwatch.limits.communication import (
    Interconnect,
    Parallelism,
    communication,
    interconnect_of,
)
from inferwatch.limits.devices import Device, device_named
from inferwatch.limits.hf_config import shape_of
from inferwatch.limits.presets import PRESETS
from inferwatch.limits.shape import ModelShape


def preset(name: str) -> ModelShape:
    return shape_of(PRESETS[name])


def gpu(name: str) -> Device:
    device = device_named(name)
    assert device is not None
    return device


def test_a_large_model_on_eight_gpus_waits_for_calls_and_not_for_the_link() -> None:
    sent = communication(preset("llama-3-405b"), Parallelism(tensor_parallel=8), 1)
    link = interconnect_of(gpu("H100"), call_s=0.0)
    calls = interconnect_of(gpu("H100"), call_s=10e-6)
    assert link is not None
    assert calls is not None

    assert sent.calls == 252
    assert sent.sent_bytes == 252 * 2 * 7 / 8 * 16_384 * 2
    assert sent.time_s(link) == pytest.approx(0.032e-3, rel=0.01)
    assert sent.time_s(calls) == pytest.approx(2.55e-3, rel=0.01)


def test_one_gpu_sends_nothing() -> None:
    assert communication(preset("llama-3-8b"), Parallelism(), 64) == (0, 0)
    assert communication(
        preset("deepseek-v3"), Parallelism(expert_parallel=True), 64
    ) == (0, 0)


def test_stages_hand_over_hidden_states_and_residuals() -> None:
    sent = communication(preset("llama-3-8b"), Parallelism(pipeline_parallel=3), 10)

    assert sent == (2 * 2 * 10 * 4096 * 2, 2)


def test_tokens_go_once_to_each_gpu_that_has_one_of_their_experts() -> None:
    shape = preset("deepseek-v3")
    ways = Parallelism(data_parallel=8, expert_parallel=True)

    sent = communication(shape, ways, 16)

    others = 7 * (1 - (7 / 8) ** 8)
    assert sent.calls == 58 * 2
    assert sent.sent_bytes == pytest.approx(58 * 2 * 16 * 7168 * 2 * others)


def test_without_whole_experts_all_tokens_go_to_all_gpus() -> None:
    sent = communication(preset("deepseek-v3"), Parallelism(data_parallel=4), 16)

    assert sent.sent_bytes == pytest.approx(58 * 2 * 16 * 7168 * 2 * 4 * 3 / 4)


def test_the_faster_link_of_a_data_sheet_is_used() -> None:
    nvlink, pcie = interconnect_of(gpu("H100")), interconnect_of(gpu("L4"))

    assert nvlink == Interconnect(name="NVLink", bytes_per_s=450e9)
    assert pcie is not None
    assert (pcie.name, pcie.bytes_per_s) == ("PCIe Gen4", 31.508e9)
