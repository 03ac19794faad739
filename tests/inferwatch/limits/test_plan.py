"""Plans: four questions for three models on three GPUs, and what holds of all."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferwatch.limits.devices import Device, device_named
from inferwatch.limits.hf_config import shape_of
from inferwatch.limits.plan import (
    BatchLimit,
    CapacityPlan,
    GpuSetup,
    Workload,
    plan_for,
)
from inferwatch.limits.presets import PRESETS
from inferwatch.limits.roofline import is_possible
from inferwatch.limits.shape import ModelShape
from inferwatch.limits.step import StepSums

REQUESTS = Workload(batch=1, prompt=3840, output=256, context=4096)


def gpu(name: str) -> Device:
    device = device_named(name)
    assert device is not None
    return device


def plan(  # noqa: PLR0913 - what tests vary
    name: str,
    device: str,
    ways: int = 1,
    batch: int = 1,
    *,
    quantised: str | None = None,
    kv: str | None = None,
    pipeline: int = 1,
) -> CapacityPlan:
    shape = shape_of(PRESETS[name], quantization=quantised, kv_dtype=kv)
    machine = GpuSetup(
        device=gpu(device),
        tensor_parallel=ways,
        pipeline_parallel=pipeline,
        gpu_hour=2.0,
        storage_bytes_per_s=5e9,
    )
    return plan_for(shape, machine, replace(REQUESTS, batch=batch))


@pytest.mark.parametrize(
    ("name", "device", "ways", "fits"),
    [
        # 16 GB of weights
        ("llama-3-8b", "A100", 1, True),
        ("llama-3-8b", "H100", 1, True),
        ("llama-3-8b", "H200", 1, True),
        # 141 GB
        ("llama-3-70b", "A100", 1, False),
        ("llama-3-70b", "A100", 2, True),
        ("llama-3-70b", "H100", 1, False),
        ("llama-3-70b", "H100", 2, True),
        ("llama-3-70b", "H200", 1, False),
        ("llama-3-70b", "H200", 2, True),
        # 812 GB: not even eight GPUs of 80 GB
        ("llama-3-405b", "A100", 8, False),
        ("llama-3-405b", "H100", 8, False),
        ("llama-3-405b", "H200", 8, True),
    ],
)
def test_does_it_fit(name: str, device: str, ways: int, fits: bool) -> None:
    found = plan(name, device, ways)

    assert found.fits is fits
    assert (found.max_requests > 0) is fits
    assert (found.batch_limit is BatchLimit.WEIGHTS) is not fits


@pytest.mark.parametrize("device", ["A100", "H100", "H200"])
@pytest.mark.parametrize(
    ("name", "ways"), [("llama-3-8b", 1), ("llama-3-70b", 4), ("llama-3-405b", 16)]
)
def test_memory_binds_decode_and_the_cache_limits_the_batch(
    name: str, ways: int, device: str
) -> None:
    found = plan(name, device, ways)

    assert found.binds == "memory"
    assert found.batch_limit is BatchLimit.MEMORY
    intensity = found.decode.intensity
    assert intensity is not None
    assert found.ridge is not None
    assert intensity < 2
    assert found.ridge > 150


def test_short_contexts_are_limited_by_compute_where_more_fit() -> None:
    short = replace(REQUESTS, prompt=40, output=24, context=64)
    machine = GpuSetup(device=gpu("H200"))

    found = plan_for(shape_of(PRESETS["llama-3-8b"]), machine, short)

    assert found.batch_limit is BatchLimit.COMPUTE
    assert found.compute_bound_from is not None
    assert found.compute_bound_from < found.max_requests


@pytest.mark.parametrize(
    ("name", "device", "ways", "tpot_ms", "ttft_ms"),
    [
        # (15.0 + 0.54 GB) / 2.039 TB/s; 2 · 7.0 B · 3840 + attention at 312 TFLOP/s
        ("llama-3-8b", "A100", 1, 7.6, 184),
        ("llama-3-8b", "H100", 1, 4.6, 57),
        ("llama-3-8b", "H200", 1, 3.2, 57),
        ("llama-3-70b", "A100", 4, 17.2, 436),
        ("llama-3-70b", "H100", 4, 10.5, 138),
        ("llama-3-70b", "H200", 4, 7.3, 138),
        ("llama-3-405b", "H200", 8, 21.1, 397),
    ],
)
def test_what_latency(
    name: str, device: str, ways: int, tpot_ms: float, ttft_ms: float
) -> None:
    found = plan(name, device, ways)

    assert found.tpot_floor_s == pytest.approx(tpot_ms / 1e3, rel=0.02)
    assert found.ttft_floor_s == pytest.approx(ttft_ms / 1e3, rel=0.02)
    # tokens before the last have a shorter context
    assert found.e2el_floor_s == pytest.approx(
        (ttft_ms + 255 * tpot_ms) / 1e3, rel=0.02
    )


def test_an_fp8_cache_doubles_what_fits() -> None:
    wide, narrow = (plan("llama-3-70b", "H200", 2, kv=kv) for kv in ("bf16", "fp8"))

    assert narrow.max_requests in {2 * wide.max_requests, 2 * wide.max_requests + 1}


def test_what_does_not_fit_makes_no_tokens_and_has_no_price() -> None:
    found = plan("llama-3-70b", "H100", 2, 64)

    assert not found.fits
    assert found.left_bytes < 0
    assert found.tokens_per_s is found.served_tokens_per_s is None
    assert found.cost(found.tokens_per_s) is None
    assert found.most_tokens_per_s is not None


def test_prices_follow_from_ceilings() -> None:
    found = plan("llama-3-8b", "H100", 1, 64)

    assert found.tokens_per_s is not None
    assert found.tpot_floor_s is not None
    assert found.tokens_per_s == 64 / found.tpot_floor_s
    assert found.cost(found.tokens_per_s) == pytest.approx(
        2.0 / 3600 * 1e6 / found.tokens_per_s
    )


def test_prompts_beside_cost_tokens() -> None:
    found = plan("llama-3-8b", "H100", 1, 64)

    assert found.served_tokens_per_s is not None
    assert found.tokens_per_s is not None
    assert found.served_tokens_per_s < found.tokens_per_s
    # of a request: its prompt's FLOP and those of its tokens; reads are hidden behind
    assert found.ttft_floor_s is not None
    token_s = found.decode.flops / 64 / 989.5e12
    assert found.served_tokens_per_s == pytest.approx(
        256 / (found.ttft_floor_s + 256 * token_s)
    )


def test_answers_that_are_long_leave_prompts_hidden_behind_reads() -> None:
    long = replace(REQUESTS, batch=64, prompt=96, output=4000)

    found = plan_for(
        shape_of(PRESETS["llama-3-8b"]), GpuSetup(device=gpu("H100")), long
    )

    assert found.served_tokens_per_s == pytest.approx(found.tokens_per_s)
    # tokens at the end stand behind twice the mean context
    assert found.ttft_floor_s is not None
    mean_s = (15.01e9 + 64 * 2096 * 131_072) / 3.35e12
    assert found.e2el_floor_s == pytest.approx(
        found.ttft_floor_s + 3999 * mean_s, rel=0.01
    )


def test_overhead_grows_with_the_step_and_with_logits_and_may_be_given() -> None:
    shape, device = shape_of(PRESETS["llama-3-8b"]), gpu("H100")

    def overhead(load: Workload, given: float | None = None) -> float:
        machine = GpuSetup(device=device, overhead_bytes=given)
        return plan_for(shape, machine, load).overhead_bytes

    least = overhead(REQUESTS)
    assert 1.5e9 < least < 4e9
    logits = overhead(replace(REQUESTS, batch=101)) - least
    assert logits == 100 * 128_256 * 4 * 2
    assert overhead(replace(REQUESTS, chunk=16_384)) > least
    assert overhead(REQUESTS, 1e9) == 1e9


def test_the_floor_of_tpot_is_that_of_the_mean_context_of_an_answer() -> None:
    long = Workload(batch=128, prompt=128, output=3968, context=4096)

    found = plan_for(
        shape_of(PRESETS["llama-3-8b"]), GpuSetup(device=gpu("H200")), long
    )

    mean_s = (15.01e9 + 128 * (128 + 3968 / 2) * 131_072) / 4.8e12
    assert found.tpot_floor_s == pytest.approx(mean_s, rel=0.001)
    assert found.tokens_per_s == pytest.approx(128 / mean_s, rel=0.001)


@settings(max_examples=60, deadline=None)
@given(
    *(st.integers(1, 60), st.integers(2, 60)),
    *(st.sampled_from([None, 7, 30]), st.booleans()),
)
def test_the_mean_step_of_an_answer_has_the_mean_of_all_its_steps(
    prompt: int, output: int, window: int | None, chunked: bool
) -> None:
    steps = [
        StepSums.decoding(3, prompt + done, window, chunked=chunked)
        for done in range(output - 1)
    ]

    mean = StepSums.answering(3, (prompt, output), window, chunked=chunked)

    assert mean == pytest.approx(
        [sum(each) / len(steps) for each in zip(*steps, strict=True)]
    )


def test_latent_vectors_and_the_projections_to_them_are_on_every_gpu() -> None:
    four, eight = (plan("deepseek-v3", "B200", n, 64) for n in (4, 8))

    assert eight.kv_bytes == four.kv_bytes
    down = 61 * 7168 * (1536 + 512 + 64)
    assert 2 * eight.weight_bytes - four.weight_bytes == pytest.approx(down, rel=1e-3)


def test_stages_add_up_for_a_token_but_work_on_different_requests() -> None:
    tensor = plan("llama-3-405b", "H200", 8, 32)
    stages = plan("llama-3-405b", "H200", 8, 32, pipeline=2)

    assert stages.tpot_floor_s is not None
    assert tensor.tpot_floor_s is not None
    assert stages.machine.gpus == 16
    assert stages.weight_bytes == tensor.weight_bytes / 2
    # weights of all stages, KV of half of the requests
    assert 0.9 * tensor.tpot_floor_s < stages.tpot_floor_s < tensor.tpot_floor_s
    assert tensor.ttft_floor_s is not None
    assert stages.ttft_floor_s == pytest.approx(tensor.ttft_floor_s / 2)


def test_weights_load_by_share_over_pcie_and_whole_from_storage() -> None:
    found = plan("llama-3-70b", "H100", 2)

    assert found.load_pcie_s == pytest.approx(70.55 / 63.015, rel=0.01)
    assert found.load_storage_s == pytest.approx(141.1 / 5, rel=0.01)


def test_without_peaks_it_says_what_memory_says() -> None:
    device = replace(gpu("H200"), flops={})
    shape = shape_of(PRESETS["llama-3-8b"])

    found = plan_for(shape, GpuSetup(device=device), REQUESTS)

    assert found.fits
    assert found.binds is None
    assert found.ridge is None
    assert found.compute_bound_from is None
    assert found.tpot_floor_s is not None
    assert found.served_tokens_per_s is None


SHAPES = st.builds(
    lambda heads, kv, layers, windowed, vocab, tied, bits: ModelShape(
        layers=layers,
        hidden=heads * 64,
        heads=heads,
        kv_heads=kv,
        head_dim=64,
        ffn=heads * 160,
        vocab=vocab,
        tied=tied,
        window=1024 if windowed else None,
        window_layers=layers // 2 if windowed else 0,
        weight_bits=bits,
    ),
    *(st.sampled_from([8, 16, 32]), st.sampled_from([1, 2, 8]), st.integers(1, 80)),
    *(st.booleans(), st.integers(1000, 200_000), st.booleans()),
    st.sampled_from([4.25, 8.0, 16.0]),
)
LOADS = st.builds(
    lambda batch, prompt, output: Workload(
        batch=batch, prompt=prompt, output=output, context=prompt + output
    ),
    *(st.integers(1, 512), st.integers(1, 20_000), st.integers(1, 2000)),
)


def floor(shape: ModelShape, load: Workload, ways: int = 1) -> CapacityPlan:
    return plan_for(shape, GpuSetup(device=gpu("H100"), tensor_parallel=ways), load)


@settings(max_examples=60, deadline=None)
@given(SHAPES, LOADS)
def test_more_work_never_has_a_lower_floor(shape: ModelShape, load: Workload) -> None:
    least = floor(shape, load)
    more = floor(shape, replace(load, batch=load.batch + 1))
    longer = floor(
        shape, replace(load, prompt=load.prompt + 100, context=load.context + 100)
    )

    for other in (more, longer):
        assert is_possible(other.tpot_floor_s, least.tpot_floor_s)
        assert other.kv_bytes > least.kv_bytes or shape.window is not None
        assert other.max_requests <= least.max_requests
    assert is_possible(longer.ttft_floor_s, least.ttft_floor_s)
    assert is_possible(longer.e2el_floor_s, least.e2el_floor_s)


@settings(max_examples=60, deadline=None)
@given(SHAPES, LOADS, st.sampled_from([2, 4, 8]))
def test_shares_add_up_to_the_whole_or_more(
    shape: ModelShape, load: Workload, ways: int
) -> None:
    whole, share = floor(shape, load), floor(shape, load, ways)

    assert ways * share.weight_bytes >= whole.weight_bytes * (1 - 1e-9)
    if shape.kv_heads % ways == 0:
        assert ways * share.weight_bytes == pytest.approx(whole.weight_bytes)
    assert ways * share.decode.flops == pytest.approx(whole.decode.flops)
    assert ways * share.decode.bytes_read >= whole.decode.bytes_read * (1 - 1e-9)
    if shape.kv_heads % ways == 0:
        assert ways * share.decode.bytes_read == pytest.approx(whole.decode.bytes_read)


@settings(max_examples=60, deadline=None)
@given(SHAPES, LOADS, st.sampled_from([None, 2e9]))
def test_as_many_as_fit_do_fit_and_one_more_does_not(
    shape: ModelShape, load: Workload, overhead: float | None
) -> None:
    machine = GpuSetup(device=gpu("H100"), overhead_bytes=overhead, pipeline_parallel=2)
    found = plan_for(shape, machine, load)
    most = found.max_requests

    more = plan_for(shape, machine, replace(load, batch=most + 1))
    assert more.max_requests == most
    assert not more.fits
    if most:
        assert plan_for(shape, machine, replace(load, batch=most)).fits


@settings(max_examples=60, deadline=None)
@given(SHAPES, LOADS, st.integers(1, 8))
def test_a_pipeline_says_the_same_in_all_its_numbers(
    shape: ModelShape, load: Workload, stages: int
) -> None:
    roomy = replace(gpu("H100"), memory_bytes=1e15)
    machine = GpuSetup(device=roomy, pipeline_parallel=stages)

    found = plan_for(shape, machine, load)

    assert found.tokens_per_s is not None
    assert found.served_tokens_per_s is not None
    assert found.served_tokens_per_s <= found.tokens_per_s
    bound_from = found.compute_bound_from
    computes = bound_from is not None and load.batch >= bound_from
    assert (found.binds == "compute") is computes
