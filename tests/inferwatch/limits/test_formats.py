"""Bits of a parameter and of a cached value in the formats that servers use."""

from typing import Any

import pytest

from inferwatch.limits.formats import ShapeError, cache_bits, plain_dtype, weight_format


@pytest.mark.parametrize(
    ("method", "config", "bits"),
    [
        ("fp8", {}, 8),
        (None, {"quant_method": "fp8", "weight_block_size": [128, 128]}, 8.00195),
        (None, {"quant_method": "gptq", "bits": 4, "group_size": 128}, 4.15625),
        (None, {"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
        ("awq_marlin", {"quant_method": "awq", "bits": 4, "group_size": 64}, 4.3125),
        (None, {"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        (None, {"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        (
            *(
                None,
                {"quant_method": "bitsandbytes", "bnb_4bit_use_double_quant": True},
            ),
            4.127,
        ),
        ("modelopt", {"quant_algo": "NVFP4"}, 4.5),
        ("int8", {}, 8),
        ("none", {}, 16),
        (None, {}, 16),
    ],
)
def test_bits_of_a_weight(
    method: str | None, config: dict[str, Any], bits: float
) -> None:
    assert weight_format(method, config, 16).weight_bits == pytest.approx(
        bits, abs=0.0005
    )


@pytest.mark.parametrize(
    ("method", "computes"),
    [
        ("w8a8", "int8"),
        ("w8a8_fp8", "float8"),
        ("fp8_per_channel", "float8"),
        ("w8a16", None),
        ("int8_per_channel_weight_only", None),
        ("gptq", None),
    ],
)
def test_what_products_are_computed_in(method: str, computes: str | None) -> None:
    assert weight_format(method, {}, 16).compute_dtype == computes


def test_mxfp4_is_of_experts_alone() -> None:
    found = weight_format("mxfp4", {}, 16)

    assert (found.weight_bits, found.expert_bits) == (16, 4.25)
    assert not found.quantised_attention


def test_int8_of_experts_leaves_the_rest() -> None:
    found = weight_format("experts_int8", {}, 16)

    assert (found.weight_bits, found.expert_bits) == (16, 8)


def compressed(
    bits: int, kind: str, *, group: int | None = None, inputs: int | None = None
) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "group_size": group}
    activations = None if inputs is None else {"num_bits": inputs, "type": kind}
    groups = {"group_0": {"weights": weights, "input_activations": activations}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


@pytest.mark.parametrize(
    ("config", "bits", "computes"),
    [
        (compressed(8, "float", inputs=8), 8, "float8"),
        (compressed(8, "int", inputs=8), 8, "int8"),
        (compressed(4, "int", group=128), 4.125, None),
        (compressed(4, "float", group=16, inputs=4), 4.5, "float4"),
        (compressed(8, "int"), 8, None),
    ],
)
def test_compressed_tensors_say_it_themselves(
    config: dict[str, Any], bits: float, computes: str | None
) -> None:
    found = weight_format(None, config, 16)

    assert (found.weight_bits, found.compute_dtype) == (bits, computes)


@pytest.mark.parametrize(
    ("names", "quantised"),
    [
        (["lm_head"], True),
        (["lm_head", "model.layers.*.self_attn"], False),
        (["re:.*self_attn.*"], False),
        (["model.layers.0.self_attn.q_proj"], True),
    ],
)
def test_attention_may_be_left_out(names: list[str], quantised: bool) -> None:
    config = {"quant_method": "fp8", "modules_to_not_convert": names}

    assert weight_format(None, config, 16).quantised_attention is quantised


@pytest.mark.parametrize(
    ("kv_dtype", "config", "bits"),
    [
        (None, {}, 16),
        ("auto", {}, 16),
        ("auto", {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, 8),
        ("auto", {"kv_cache_quant_algo": "FP8"}, 8),
        ("fp8_e5m2", {}, 8),
        ("torch.float8_e4m3fn", {}, 8),
        ("bf16", {"kv_cache_quant_algo": "FP8"}, 16),
        ("float32", {}, 32),
        ("nvfp4", {}, 4.5),
        ("fp8_ds_mla", {}, 9.111),
    ],
)
def test_bits_of_a_cached_value(
    kv_dtype: str | None, config: dict[str, Any], bits: float
) -> None:
    assert cache_bits(kv_dtype, "bfloat16", config) == pytest.approx(bits, abs=0.001)


def test_what_nobody_knows_is_said() -> None:
    with pytest.raises(ShapeError, match="turboquant_k8v4"):
        cache_bits("turboquant_k8v4", "bfloat16")
    with pytest.raises(ShapeError, match="gguf"):
        weight_format("gguf", {}, 16)
    with pytest.raises(ShapeError, match="config_groups"):
        weight_format("compressed-tensors", {}, 16)
    with pytest.raises(ShapeError, match="int9"):
        plain_dtype("int9")
