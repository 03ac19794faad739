"""Formulas that texts on inference print; their tables: cli/test_published_tables."""

from collections.abc import Callable

import pytest

from inferwatch.limits.cache import max_requests
from inferwatch.limits.devices import Device, device_named
from inferwatch.limits.hf_config import shape_of
from inferwatch.limits.parameters import parameters
from inferwatch.limits.plan import joules_per_token
from inferwatch.limits.presets import PRESETS
from inferwatch.limits.roofline import (
    compute_bound_batch,
    is_possible,
    mbu,
    mfu,
)
from inferwatch.limits.shape import ModelShape
from inferwatch.limits.step import (
    StepCosts,
    StepSums,
    StepWork,
    e2el_s,
    load_floor_s,
    ttft_floor_s,
)

PERCENT = 0.01


def shape(name: str) -> ModelShape:
    return shape_of(PRESETS[name])


def gpu(name: str) -> Device:
    device = device_named(name)
    assert device is not None
    return device


@pytest.mark.parametrize(
    ("memory_gb", "bytes_a_weight", "overhead_gb", "request_gb", "most", "name"),
    [
        (80, 2, 4, 0.5, 119, "llama-3-8b"),
        (160, 2, 6, 1.25, 10, "llama-3-70b"),
        (160, 1, 6, 1.25, 66, "llama-3-70b"),
    ],
)
def test_how_many_requests_fit(
    memory_gb: float,
    bytes_a_weight: int,
    overhead_gb: float,
    request_gb: float,
    most: int,
    name: str,
) -> None:
    weights_gb = parameters(shape(name)).total * bytes_a_weight / 1e9

    assert max_requests(memory_gb, weights_gb, overhead_gb, request_gb) == most


def test_what_does_not_fit_at_all_serves_nobody() -> None:
    assert max_requests(80, 141, 4, 1.25) == 0


def test_what_is_unknown_is_neither_possible_nor_impossible() -> None:
    assert is_possible(None, 1) is None
    assert is_possible(1, None) is None
    assert is_possible(0.98, 1) is False
    assert is_possible(0.98, 1, tolerance=0.025) is True


def test_end_to_end_waits_for_the_first_token_once() -> None:
    assert e2el_s(0.5, 0.02, 101) == pytest.approx(2.5)
    assert e2el_s(0.5, 0.02, 1) == 0.5


def test_utilisation_is_one_at_the_floor() -> None:
    assert mbu(4.8e9, 0.001, 4.8e12) == pytest.approx(1)
    assert mfu(0.5e12, 0.001, 989e12) == pytest.approx(0.5 / 0.989)


def test_chunks_read_the_weights_again_but_compute_the_same() -> None:
    model, peak = shape("llama-3-8b"), gpu("H100")
    costs = StepCosts.of(model)

    def floor(chunk: int | None, flops: float | None) -> float:
        size = chunk or 8192
        steps = [StepSums.prefilling(size, n) for n in range(0, 8192, size)]
        found = ttft_floor_s(costs, steps, peak.bytes_per_s, flops)
        assert found is not None
        return found

    flops = peak.flops_at("bfloat16")
    head_s = 3 * 2 * 128_256 * 4096 / peak.flops["bfloat16"]
    assert floor(2048, flops) == pytest.approx(floor(None, flops) + head_s)
    assert floor(2048, None) > 3.8 * floor(None, None)
    assert floor(16, flops) > 1.5 * floor(None, flops)
    assert ttft_floor_s(costs, [StepSums.prefilling(8192)], None, None) is None


def test_decode_of_8b_is_bound_by_compute_from_a_batch_on_that_context_moves() -> None:
    costs, peak = StepCosts.of(shape("llama-3-8b")), gpu("H100")
    flops = peak.flops_at("bfloat16")

    def behind(context: int) -> Callable[[int], StepWork]:
        return lambda batch: costs.work(StepSums.decoding(batch, context))

    short = compute_bound_batch(behind(0), peak.bytes_per_s, flops)
    long = compute_bound_batch(behind(4096), peak.bytes_per_s, flops)

    # with the weights alone it is the ridge point
    assert short == pytest.approx(295, rel=0.02)
    assert long is None
    assert compute_bound_batch(behind(0), None, flops) is None


def test_weights_load_no_faster_than_the_slower_of_storage_and_bus() -> None:
    assert load_floor_s(141e9, 7e9, 25e9) == pytest.approx(20.1, rel=PERCENT)
    assert load_floor_s(141e9, None, 28e9) == pytest.approx(5.04, rel=PERCENT)
    assert load_floor_s(141e9, None, None) is None


def test_energy_of_a_token_is_unknown_without_any() -> None:
    assert joules_per_token(700, 350) == 2
    assert joules_per_token(700, 0) is None
