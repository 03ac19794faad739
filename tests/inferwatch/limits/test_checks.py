"""Figures that texts on inference print: which reproduce, and which cannot be.

Those that beat the hardware are as instructive: they must be told from possible ones.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from inferwatch.limits.cache import kv_bytes, kv_bytes_per_token, max_requests
from inferwatch.limits.devices import Device, device_named
from inferwatch.limits.hf_config import shape_of
from inferwatch.limits.parameters import parameters, weight_bytes
from inferwatch.limits.plan import cost_per_million, joules_per_token
from inferwatch.limits.presets import PRESETS
from inferwatch.limits.roofline import (
    compute_bound_batch,
    is_possible,
    mbu,
    mfu,
    ridge_point,
)
from inferwatch.limits.shape import ModelShape
from inferwatch.limits.step import (
    StepCosts,
    StepSums,
    StepWork,
    e2el_s,
    floor_s,
    load_floor_s,
    ttft_floor_s,
)

GIB = 2**30
PERCENT = 0.01


def shape(
    name: str, quantization: str | None = None, kv: str | None = None
) -> ModelShape:
    return shape_of(PRESETS[name], quantization=quantization, kv_dtype=kv)


def gpu(name: str) -> Device:
    device = device_named(name)
    assert device is not None
    return device


@pytest.mark.parametrize(
    ("name", "per_token", "gib"),
    [
        ("llama-3-8b", 131_072, 0.5),
        ("llama-3-70b", 327_680, 1.25),
        ("llama-3-405b", 516_096, 1.969),
    ],
)
def test_kv_of_grouped_heads(name: str, per_token: int, gib: float) -> None:
    model = shape(name)

    assert kv_bytes_per_token(model) == per_token
    assert kv_bytes(model, 4096) / GIB == pytest.approx(gib, rel=PERCENT)


@pytest.mark.parametrize(
    ("name", "at_16k", "at_128k"),
    [("qwen2.5-7b", 939.5e6, 7.52e9), ("gpt-oss-20b", 805.3e6, 6.44e9)],
)
def test_kv_of_long_contexts_if_all_layers_keep_all(
    name: str, at_16k: float, at_128k: float
) -> None:
    model = replace(shape(name), window=None, window_layers=0)

    assert kv_bytes(model, 16_384) == pytest.approx(at_16k, rel=PERCENT)
    assert kv_bytes(model, 131_072) == pytest.approx(at_128k, rel=PERCENT)


def test_half_of_the_layers_of_gpt_oss_keep_128_tokens() -> None:
    kept = kv_bytes(shape("gpt-oss-20b"), 16_384)

    assert kept == 2 * 8 * 64 * 2 * 12 * (16_384 + 128)


def test_kv_without_grouped_heads_is_sixteen_times_as_much() -> None:
    model = replace(shape("llama-3-405b"), kv_heads=128)

    assert kv_bytes_per_token(model) == 8064 * 1024
    assert kv_bytes(model, 1_000_000) == pytest.approx(8.26e12, rel=PERCENT)


@pytest.mark.parametrize(
    ("quoted", "least", "recomputed"),
    [
        (10.8e9, weight_bytes(shape("qwen2.5-7b")), 15.2e9),
        (10.6e9, 21e9 * 4.25 / 8, 11.2e9),
    ],
    ids=["qwen2.5-7b in bf16", "21B at 4.25 bits"],
)
def test_weights_that_are_too_small_are_told(
    quoted: float, least: float, recomputed: float
) -> None:
    assert least == pytest.approx(recomputed, rel=PERCENT)
    assert is_possible(quoted, least) is False


def test_gpt_oss_takes_more_than_if_all_were_four_bits() -> None:
    assert weight_bytes(shape("gpt-oss-20b")) > 21e9 * 4.25 / 8


@pytest.mark.parametrize(
    ("flops", "bandwidth", "ridge"), [(312e12, 2e12, 156), (989e12, 3.35e12, 295)]
)
def test_ridge_points(flops: float, bandwidth: float, ridge: float) -> None:
    assert ridge_point(flops, bandwidth) == pytest.approx(ridge, rel=PERCENT)


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


def test_a_long_prompt_of_405b() -> None:
    model = shape("llama-3-405b")
    linear = 2 * parameters(model).active * 100_000
    moved = weight_bytes(model) + kv_bytes(model, 100_000)

    assert linear == pytest.approx(8.1e16, rel=PERCENT)
    assert moved == pytest.approx(861.6e9, rel=PERCENT)


@pytest.mark.parametrize(("tokens_per_s", "dollars"), [(286, 15.5), (7200, 0.62)])
def test_price_of_a_million_tokens(tokens_per_s: float, dollars: float) -> None:
    price = cost_per_million(16, 1, tokens_per_s)

    assert price == pytest.approx(dollars, rel=PERCENT)
    assert cost_per_million(4, 4, tokens_per_s) == price


@pytest.mark.parametrize(
    ("kv", "floor_ms", "dollars"), [("fp16", 8.8, 1.2), ("fp8", 7.0, 0.97)]
)
def test_the_cheaper_of_these_prices_needs_steps_that_cannot_be(
    kv: str, floor_ms: float, dollars: float
) -> None:
    floor_s = decode_floor("llama-3-70b", "H100", 4, 32, 4096, quantised="fp8", kv=kv)

    assert floor_s == pytest.approx(floor_ms / 1e3, rel=0.05)
    assert is_possible(32 / 7200, floor_s) is False
    assert cost_per_million(16, 1, 32 / floor_s) == pytest.approx(dollars, rel=0.05)


def decode_floor(  # noqa: PLR0913 - a row of a table
    name: str,
    device: str,
    ways: int = 1,
    batch: int = 1,
    context: int = 0,
    *,
    quantised: str | None = None,
    kv: str | None = None,
) -> float:
    """Of a step in which all decode."""
    model, peak = shape(name, quantised, kv), gpu(device)
    work = StepCosts.of(model, ways).work(StepSums.decoding(batch, context))
    floor = floor_s(work, peak.bytes_per_s, peak.flops_at(model.compute_dtype))
    assert floor is not None
    return floor


def prefill_floor(
    name: str, device: str, ways: int, prompt: int, quantised: str | None = None
) -> float:
    """Of a prompt in one step."""
    model, peak = shape(name, quantised), gpu(device)
    flops = peak.flops_at(model.compute_dtype)
    steps = [StepSums.prefilling(prompt)]
    floor = ttft_floor_s(StepCosts.of(model, ways), steps, peak.bytes_per_s, flops)
    assert floor is not None
    return floor


@pytest.mark.parametrize(
    ("device", "quoted_tokens_per_s", "floor_ms"),
    [("A100", 140, 7.36), ("H100", 238, 4.48)],
)
def test_one_request_of_8b_is_printed_faster_than_weights_can_be_read(
    device: str, quoted_tokens_per_s: float, floor_ms: float
) -> None:
    floor_s = decode_floor("llama-3-8b", device)

    assert floor_s == pytest.approx(floor_ms / 1e3, rel=PERCENT)
    assert is_possible(1 / quoted_tokens_per_s, floor_s) is False
    assert is_possible(1.01 * floor_s, floor_s) is True


@pytest.mark.parametrize(
    ("batch", "quoted_tokens_per_s"),
    [(1, 140), (4, 540), (16, 2000), (32, 3600), (64, 5800), (128, 7200), (256, 7800)],
)
def test_each_row_of_a_table_of_8b_on_a100_beats_its_floor(
    batch: int, quoted_tokens_per_s: float
) -> None:
    floor_s = decode_floor("llama-3-8b", "A100", 1, batch, 2048)

    assert is_possible(batch / quoted_tokens_per_s, floor_s) is False


@pytest.mark.parametrize(
    ("name", "device", "ways", "quantised", "quoted_ms", "floor_ms"),
    [
        ("llama-3-70b", "A100", 2, None, 15, 34),
        ("llama-3-70b", "A100", 4, "int8", 6.5, 8.5),
        ("llama-3-70b", "H100", 2, None, 9, 20.7),
        ("llama-3-70b", "H100", 4, "fp8", 3.5, 5.2),
        ("llama-3-70b", "H100", 8, "fp8", 2.2, 2.6),
        ("llama-3-405b", "H100", 8, "fp8", 11, 15.1),
    ],
)
def test_tokens_of_large_models_are_printed_faster_than_can_be(
    name: str,
    device: str,
    ways: int,
    quantised: str | None,
    quoted_ms: float,
    floor_ms: float,
) -> None:
    floor_s = decode_floor(name, device, ways, quantised=quantised)

    assert floor_s == pytest.approx(floor_ms / 1e3, rel=0.02)
    assert is_possible(quoted_ms / 1e3, floor_s) is False


@pytest.mark.parametrize(
    (
        "name",
        "device",
        "ways",
        "prompt",
        "quantised",
        "quoted_ms",
        "floor_ms",
        "can_be",
    ),
    [
        ("llama-3-8b", "A100", 1, 2048, None, 45, 98, False),
        ("llama-3-8b", "H100", 1, 2048, None, 18, 31, False),
        ("llama-3-70b", "A100", 2, 4096, None, 320, 912, False),
        ("llama-3-405b", "H100", 8, 2048, "fp8", 120, 104, True),
    ],
)
def test_first_tokens_that_are_printed(  # noqa: PLR0913, PLR0917 - a row of a table
    name: str,
    device: str,
    ways: int,
    prompt: int,
    quantised: str | None,
    quoted_ms: float,
    floor_ms: float,
    can_be: bool,
) -> None:
    floor_s = prefill_floor(name, device, ways, prompt, quantised)

    # those of the text are without attention, and with the head for all tokens
    assert floor_s == pytest.approx(floor_ms / 1e3, rel=0.04)
    assert is_possible(quoted_ms / 1e3, floor_s) is can_be


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
