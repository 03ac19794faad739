"""Figures that texts on inference print, from the real command.

What differs from the printed figure by more than a hundredth is explained in
docs/plan.md, and its row says what it is instead.
"""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from inferwatch.cli.main import inferwatch

A80 = "--gpu mine --peak-gbps 2039 --peak-tflops 312 --memory-gb 80 --memory-share 1"
STEP_AT = "--output 1 --prompt"
"""A step of decode behind so many tokens: the first one of an answer."""
FP8_70B = "70b --gpu 4xH100 --quantization fp8"
GPT_OSS = (
    "--layers 24 --hidden 2880 --heads 64 --kv-heads 8 --head-dim 64 --ffn 2880 "
    "--vocab 201088 --gpu H100"
)
MHA_405B = (
    "--layers 126 --hidden 16384 --heads 128 --ffn 53248 --vocab 128256 --gpu H100"
)


def plan(words: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(
        inferwatch, ["plan", *words.split(), "--json"], standalone_mode=False
    )
    assert done.exception is None, done.exception
    found = json.loads(done.output)
    return int(done.return_value), {**found, **found["plans"][0]}


def rows(key: str, table: dict[str, float]) -> list[Any]:
    return [pytest.param(words, key, value, id=words) for words, value in table.items()]


WEIGHTS = rows(
    "total_weight_bytes",
    {
        "8b --gpu H100": 16.06e9,
        "70b --gpu H100": 141.1e9,
        "405b --gpu H100": 811.7e9,
        # embedding and head in 16 bit, as servers keep them
        "8b --gpu H100 --quantization w8a8": 9.1e9,
        "70b --gpu H100 --quantization w8a8": 72.7e9,
        "405b --gpu H100 --quantization w8a8": 410e9,
        "8b --gpu H100 --quantization int4": 5.7e9,
        "70b --gpu H100 --quantization int4": 39.5e9,
        "405b --gpu H100 --quantization int4": 215.5e9,
        # as printed: all of it, and without scales
        "8b --gpu H100 --quantization w8a8 --quantize-head": 8.03e9,
        "70b --gpu H100 --quantization w8a8 --quantize-head": 70.6e9,
        "405b --gpu H100 --quantization w8a8 --quantize-head": 405e9,
        "8b --gpu H100 --weight-bits 4 --quantize-head": 4.0e9,
        "70b --gpu H100 --weight-bits 4 --quantize-head": 35.3e9,
        "405b --gpu H100 --weight-bits 4 --quantize-head": 203e9,
        # printed as 10.8 and 10.6 GB
        "qwen2.5-7b --gpu H100": 15.2e9,
        "gpt-oss-20b --gpu H100": 13.76e9,
    },
)
KV_OF_A_TOKEN = rows(
    "kv_bytes_per_token",
    {
        "8b --gpu H100": 131_072,
        "70b --gpu H100": 327_680,
        "405b --gpu H100": 516_096,
        "qwen2.5-7b --gpu H100": 57_344,
        "qwen2.5-72b --gpu H100": 327_680,
        "mixtral-8x7b --gpu H100": 131_072,
        # 61 layers of 512 + 64 values
        "deepseek-v3 --gpu H100": 70_272,
        "gpt-oss-20b --gpu H100": 49_152,
        MHA_405B: 8064 * 1024,
    },
)
KV_OF_A_REQUEST = rows(
    "kv_bytes_per_request",
    {
        "8b --gpu H100 --context 4096": 0.5 * 2**30,
        "70b --gpu H100 --context 4096": 1.25 * 2**30,
        "405b --gpu H100 --context 4096": 1.969 * 2**30,
        # in whole blocks
        "8b --gpu H100 --context 4097": 4112 * 131_072,
        "qwen2.5-7b --gpu H100 --context 16K": 939.5e6,
        "qwen2.5-7b --gpu H100 --context 128K": 7.52e9,
        # if all layers kept all; half of them keep 128 tokens
        f"{GPT_OSS} --context 16K": 805.3e6,
        f"{GPT_OSS} --context 128K": 6.44e9,
        "gpt-oss-20b --gpu H100 --context 16K": 406e6,
        f"{MHA_405B} --context 1000000": 8.26e12,
    },
)
B_MAX = rows(
    "max_requests",
    {
        # printed as 119, 10 and 66: GiB of KV cache taken from GB of memory
        f"8b {A80} --overhead-gb 4 --context 4096": 111,
        f"70b {A80} --overhead-gb 3 --context 4096 --tp 2": 9,
        f"70b {A80} --overhead-gb 3 --context 4096 --tp 2 --quantization w8a16": 60,
    },
)
RIDGES = rows(
    "ridge_point",
    {
        "8b --gpu A100": 153,
        "8b --gpu H100": 295,
        # as printed, with 2.0 TB/s
        "8b --gpu A100 --peak-gbps 2000": 156,
    },
)
TPOT = rows(
    "tpot_floor_s",
    {
        f"8b --gpu A100 {STEP_AT} 1": 7.36e-3,
        f"8b --gpu H100 {STEP_AT} 1": 4.48e-3,
        # printed as KV bytes over bandwidth, 0.13 ms
        f"8b --gpu A100 {STEP_AT} 2048": 7.5e-3,
        f"70b --gpu 2xA100 {STEP_AT} 1": 34.1e-3,
        f"70b --gpu 4xA100 --quantization int8 {STEP_AT} 1": 8.65e-3,
        f"70b --gpu 2xH100 {STEP_AT} 1": 20.7e-3,
        f"{FP8_70B} {STEP_AT} 1": 5.27e-3,
        f"70b --gpu 8xH100 --quantization fp8 {STEP_AT} 1": 2.63e-3,
        f"405b --gpu 8xH100 --quantization fp8 {STEP_AT} 1": 15.1e-3,
        # at 16 bit a weight; FP8, of weights alone here, allows half
        f"405b --gpu 16xA100 {STEP_AT} 1": 25.0e-3,
        f"405b --gpu 16xA100 --quantization fp8 {STEP_AT} 1": 12.6e-3,
        # 8.8 and 7.0 ms where the input embedding is read, too
        f"{FP8_70B} --batch 32 {STEP_AT} 4096": 8.47e-3,
        f"{FP8_70B} --kv-dtype fp8 --batch 32 {STEP_AT} 4096": 6.87e-3,
        # 219 and 10,238 tokens/s
        f"8b --gpu H100 {STEP_AT} 2048": 1 / 219,
        f"8b --gpu H100 --batch 256 {STEP_AT} 2048": 256 / 10_238,
        # 1,032 tokens/s if each KV head were on one of the 16 GPUs
        f"405b --gpu 16xH100 --batch 16 {STEP_AT} 2048": 16 / 1_009,
    },
)
TTFT = rows(
    "ttft_floor_s",
    {
        # 98, 31, 912 and 104 ms: all parameters, no attention
        "8b --gpu A100 --prompt 2048": 95.2e-3,
        "8b --gpu H100 --prompt 2048": 30.0e-3,
        "70b --gpu 2xA100 --prompt 4096": 934e-3,
        "405b --gpu 8xH100 --quantization fp8 --prompt 2048": 105e-3,
        "8b --gpu A100 --prompt 2048 --quantization w8a16": 95.2e-3,
        "8b --gpu A100 --prompt 2048 --quantization w8a8": 47.6e-3,
        # printed as 0.74 s, for 744 TFLOP
        f"405b --gpu H100 --peak-tflops 1000 {STEP_AT} 1000": 807e-3,
    },
)
LONG_405B = f"405b --gpu H100 {STEP_AT} 100000"
FLOP = [
    # 744 TFLOP printed, for FFNs of 2.67 times the width and full heads
    pytest.param(f"405b --gpu H100 {STEP_AT} 1000", "prefill_flops", 807e12, id="1k"),
    # 8.1e16 linear, less the embedding, and 8.26e16 of attention, causal: half
    pytest.param(LONG_405B, "prefill_flops", 8.03e16 + 8.26e16 / 2, id="100k"),
    # 190,000 with the full square
    pytest.param(LONG_405B, "prefill_intensity", 141e3, id="intensity of 100k"),
    pytest.param(LONG_405B, "prefill_bytes", 861.6e9, id="bytes of 100k"),
    pytest.param(LONG_405B, "decode_flops", 1.635e12, id="decode at 100k"),
    pytest.param(LONG_405B, "decode_intensity", 1.9, id="intensity at 100k"),
    pytest.param(f"8b --gpu H100 {STEP_AT} 1", "decode_intensity", 1.0, id="of one"),
]
PRICES = rows(
    "price_per_million_measured",
    {
        "70b --gpu 4xH100 --gpu-hour 4 --batch 16 --measured-tokens-per-s 286": 15.5,
        "70b --gpu 4xA100 --gpu-hour 4 --batch 32 --measured-tokens-per-s 7200": 0.62,
        # 14.4 times as much a token as the 4 for 7,200, and not 8 times
        "405b --gpu 16xH100 --gpu-hour 4 --batch 16 --measured-tokens-per-s 2000": (
            14.4 * 0.617
        ),
    },
)
AT_BEST = rows(
    "price_per_million",
    {
        # 1.2 and 1.0 printed, of 8.8 and 7.0 ms a token
        f"{FP8_70B} --gpu-hour 4 --batch 32 {STEP_AT} 4096": 1.18,
        f"{FP8_70B} --gpu-hour 4 --kv-dtype fp8 --batch 32 {STEP_AT} 4096": 0.954,
    },
)
OTHER = [
    # OpenAI counts 3.61 B: without the input embedding
    *rows("active_parameters", {"gpt-oss-20b --gpu H100": 3.61e9 + 201_088 * 2880}),
    *rows("load_pcie_estimate_s", {"qwen2.5-7b --gpu A100": 0.57}),
    *rows("load_pcie_floor_s", {"qwen2.5-7b --gpu H100": 0.24}),
    *rows("experts_touched", {"mixtral-8x7b --gpu H100 --batch 4": 1 - 0.75**4}),
]


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        *(*WEIGHTS, *KV_OF_A_TOKEN, *KV_OF_A_REQUEST, *B_MAX, *RIDGES),
        *(*TPOT, *TTFT, *FLOP, *PRICES, *AT_BEST, *OTHER),
    ],
)
def test_what_tables_print_comes_out(words: str, key: str, value: float) -> None:
    _, found = plan(words)

    assert found[key] == pytest.approx(value, rel=0.01)


A100_8B = {1: 140, 4: 540, 16: 2000, 32: 3600, 64: 5800, 128: 7200, 256: 7800}
H100_8B = {1: 238, 256: 16_500}


@pytest.mark.parametrize(
    "words",
    [
        *(
            f"8b --gpu {gpu} {STEP_AT} 2048 --batch {batch} "
            f"--measured-tokens-per-s {rate}"
            for gpu, curve in (("A100", A100_8B), ("H100", H100_8B))
            for batch, rate in curve.items()
        ),
        "8b --gpu A100 --prompt 2048 --measured-ttft 45ms",
        "8b --gpu H100 --prompt 2048 --measured-ttft 18ms",
        "8b --gpu A100 --prompt 2048 --measured-tpot 0.13ms",
        "70b --gpu 2xA100 --prompt 4096 --measured-ttft 320ms",
        "70b --gpu 2xA100 --measured-tpot 15ms",
        "70b --gpu 4xA100 --quantization int8 --measured-tpot 6.5ms",
        "70b --gpu 2xH100 --measured-tpot 9ms",
        f"{FP8_70B} --measured-tpot 3.5ms",
        "70b --gpu 8xH100 --quantization fp8 --measured-tpot 2.2ms",
        "405b --gpu 8xH100 --quantization fp8 --measured-tpot 11ms",
        "405b --gpu 16xA100 --measured-tpot 22ms",
        "405b --gpu 16xH100 --batch 16 --measured-tokens-per-s 2000",
        f"{FP8_70B} --kv-dtype fp8 --batch 32 --measured-tokens-per-s 7200",
    ],
)
def test_what_tables_print_and_cannot_be_is_named(words: str) -> None:
    status, found = plan(words)

    assert status == 1
    assert [each["possible"] for each in found["measured"]] == [False]


@pytest.mark.parametrize(("gpu", "curve"), [("A100", A100_8B), ("H100", H100_8B)])
def test_no_point_of_a_printed_curve_can_be(gpu: str, curve: dict[int, float]) -> None:
    claim = ",".join(f"{batch}={rate}" for batch, rate in curve.items())
    words = f"8b --gpu {gpu} --batch 1..256 --context 2304 --measured-curve {claim}"

    done = CliRunner().invoke(inferwatch, ["plan", *words.split(), "--json"])

    (found,) = json.loads(done.output)["curves"]
    assert len(found["points"]) == 9
    assert found["impossible_points"] == found["measured_points"] == len(curve)


def test_the_first_token_of_an_answer_is_not_counted_twice() -> None:
    """Of N tokens, N − 1 take a TPOT each; N are printed, too."""
    _, found = plan("8b --gpu H100 --prompt 2048 --output 256")

    decode_s = found["e2el_floor_s"] - found["ttft_floor_s"]
    assert decode_s == pytest.approx(255 * found["tpot_floor_s"])


def test_what_is_shared_out_among_a_batch_is_not_what_each_waits() -> None:
    """976 ms for eight at once is printed as 126 ms of each: 976 / 8 = 122."""
    (_, one), (_, eight) = (plan(f"8b --gpu H100 --batch {n}") for n in (1, 8))

    assert eight["tpot_floor_s"] > one["tpot_floor_s"]
    assert 8 / eight["decode_tokens_per_s"] == pytest.approx(eight["tpot_floor_s"])


@pytest.mark.parametrize(
    "words",
    [
        "405b --gpu 8xH100 --quantization fp8 --prompt 2048 --measured-ttft 120ms",
        # weights of 8 bit need 12.6 ms, also where products are in 16
        "405b --gpu 16xA100 --quantization fp8 --measured-tpot 22ms",
        "8b --gpu A100 --quantization int8 --prompt 2048 --measured-ttft 60ms",
    ],
)
def test_what_tables_print_and_can_be_is_not(words: str) -> None:
    status, found = plan(words)

    assert status == 0
    assert [each["possible"] for each in found["measured"]] == [True]
