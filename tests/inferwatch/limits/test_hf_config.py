"""Configurations in the words of many: what they say, and what they lack."""

from typing import Any

import pytest

from inferwatch.limits.hf_config import ShapeError, shape_of
from inferwatch.limits.presets import PRESETS

LLAMA: dict[str, Any] = dict(PRESETS["llama-3-8b"])
SMALL = {
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}

PATTERN = "sliding_window_pattern"
LLAMA_4 = {
    "model_type": "llama4_text",
    "attention_chunk_size": 9,
    "num_experts_per_tok": 1,
}
QWEN = {"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": True}


@pytest.mark.parametrize(
    "key",
    [
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
    ],
)
def test_what_is_missing_is_named(key: str) -> None:
    lacking = {name: value for name, value in LLAMA.items() if name != key}

    with pytest.raises(ShapeError, match=key):
        shape_of(lacking)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "mamba2", "state_size": 128}, "state_size"),
        ({"model_type": "jamba", "mamba_d_state": 16}, "state instead of a cache"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder"),
        ({"model_type": "deepseek_v32", "index_topk": 2048}, "indexer"),
        ({"model_type": "gemma3n_text", "num_kv_shared_layers": 10}, "kv_shared"),
        ({"model_type": "jetmoe"}, "family jetmoe"),
        (
            {"model_type": "smollm3", "sliding_window": 9, "use_sliding_window": True},
            "layers have the window",
        ),
        ({"model_type": "transformer", "moe": {"num_experts": 8}}, "with moe"),
        ({"model_type": "opt", "word_embed_proj_dim": 32}, "word_embed_proj_dim"),
        ({"model_type": "minicpm3", "kv_lora_rank": 512}, "family minicpm3"),
        ({"model_type": "bert", "type_vocab_size": 2}, "encoder"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"intermediate_size": [128, 256]}, "differs between layers"),
        ({"num_local_experts": 8}, "num_experts_per_tok"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim"),
        ({"torch_dtype": "float7"}, "float7"),
        ({"quantization_config": {"quant_method": "gguf"}}, "gguf"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_strangers_are_refused_with_a_reason(
    config: dict[str, Any], words: str
) -> None:
    with pytest.raises(ShapeError, match=words):
        shape_of(SMALL | config)


def test_the_model_of_text_is_found_inside_others() -> None:
    outer = {"model_type": "mistral3", "vision_config": {}, "text_config": LLAMA}

    assert shape_of(outer) == shape_of(LLAMA)


def test_quantisation_and_ties_may_stand_outside_of_the_text_model() -> None:
    text = {key: each for key, each in LLAMA.items() if key != "tie_word_embeddings"}
    outer = {
        "text_config": text,
        "tie_word_embeddings": True,
        "quantization_config": {"quant_method": "fp8"},
    }

    assert shape_of(outer).tied
    assert shape_of(outer).weight_bits == 8


@pytest.mark.parametrize(
    ("config", "window", "layers"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, 4096, 6),
        ({"model_type": "mistral", "sliding_window": None}, None, 0),
        ({"sliding_window": 4096, "use_sliding_window": False}, None, 0),
        (
            QWEN | {"max_window_layers": 4},
            *(9, 2),
        ),
        (
            QWEN | {"max_window_layers": 6},
            *(None, 0),
        ),
        ({"model_type": "gemma2", "sliding_window": 9}, 9, 3),
        ({"model_type": "gemma3_text", "sliding_window": 9}, 9, 5),
        ({"model_type": "gemma3", "sliding_window": 9, PATTERN: 3}, 9, 4),
        ({"model_type": "gemma2", "sliding_window": 9, PATTERN: 3}, 9, 3),
        ({"model_type": "cwm", "sliding_window": 9}, 9, 4),
        (LLAMA_4, 9, 5),
        (LLAMA_4 | {"no_rope_layers": []}, 9, 5),
        (LLAMA_4 | {"no_rope_layers": [1, 0, 0, 1, 0, 1]}, 9, 3),
        (
            {
                "sliding_window": 9,
                "layer_types": ["sliding_attention"] * 2 + ["full_attention"] * 4,
            },
            *(9, 2),
        ),
        ({"sliding_window": 9, "layer_types": ["full_attention"] * 6}, None, 0),
    ],
)
def test_windows_in_the_ways_that_models_tell_them(
    config: dict[str, Any], window: int | None, layers: int
) -> None:
    shape = shape_of(SMALL | config)

    assert (shape.window, shape.window_layers) == (window, layers)


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({}, 6),
        ({"first_k_dense_replace": 2, "moe_layer_freq": 1}, 4),
        ({"first_k_dense_replace": 2, "moe_layer_freq": 2}, 2),
        ({"decoder_sparse_step": 2}, 3),
        ({"mlp_only_layers": [0, 5]}, 4),
        ({"mlp_layer_types": ["dense", *(["sparse"] * 5)]}, 5),
        ({"moe_layers": [1, 3]}, 2),
        ({"moe_layer_start_index": 1, "moe_layer_interval": 2}, 3),
    ],
)
def test_layers_with_experts_in_the_ways_that_models_tell_them(
    config: dict[str, Any], layers: int
) -> None:
    told = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

    experts = shape_of(SMALL | told | config).experts

    assert experts is not None
    assert experts.layers == layers


@pytest.mark.parametrize(
    ("config", "shared"),
    [
        ({"model_type": "granitemoeshared", "shared_intermediate_size": 48}, 48),
        ({"model_type": "qwen2_moe", "shared_expert_intermediate_size": 48}, 48),
        ({"model_type": "glm4_moe", "n_shared_experts": 2}, 64),
        # as their families have it where it is absent
        ({"model_type": "granitemoeshared"}, 0),
        ({"model_type": "qwen2_moe"}, 5632),
    ],
)
def test_shared_experts_in_the_ways_that_models_tell_them(
    config: dict[str, Any], shared: int
) -> None:
    told = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

    experts = shape_of(SMALL | told | config).experts

    assert experts is not None
    assert experts.shared_ffn == shared


def test_what_is_absent_is_as_the_family_has_it_unless_it_has_another_name() -> None:
    mixtral = {"model_type": "mixtral", "num_experts_per_tok": 2}

    absent = shape_of(SMALL | mixtral)
    null = shape_of(SMALL | mixtral | {"num_key_value_heads": None})
    other = shape_of(SMALL | mixtral | {"num_experts": 4})

    assert (absent.kv_heads, null.kv_heads) == (8, 4)
    assert absent.experts is not None
    assert other.experts is not None
    assert (absent.experts.count, other.experts.count) == (8, 4)


def test_windows_of_llama_4_are_chunks() -> None:
    assert shape_of(SMALL | LLAMA_4).chunked
    assert not shape_of(SMALL | {"model_type": "gemma2"}).chunked


def test_what_the_server_was_told_wins() -> None:
    shape = shape_of(
        LLAMA, dtype="torch.float16", kv_dtype="fp8_e4m3", quantization="fp8"
    )

    assert (shape.weight_bits, shape.other_bits, shape.kv_bits) == (8, 16, 8)
    assert shape.compute_dtype == "float8"


@pytest.mark.parametrize(
    ("told", "dtype", "bits", "computes"),
    [
        ("bfloat16", None, 16, "bfloat16"),
        ("float16", "auto", 16, "float16"),
        # servers make 16 bit of it unless they are told otherwise
        ("float32", None, 16, "bfloat16"),
        ("float32", "float32", 32, "float32"),
        (None, None, 16, "bfloat16"),
    ],
)
def test_dtypes(told: str | None, dtype: str | None, bits: int, computes: str) -> None:
    shape = shape_of(SMALL | {"dtype": told}, dtype=dtype)

    assert (shape.weight_bits, shape.kv_bits) == (bits, bits)
    assert shape.compute_dtype == computes


def test_a_tie_that_is_not_told_is_as_the_family_has_it() -> None:
    assert not shape_of(SMALL | {"model_type": "llama"}).tied
    assert shape_of(SMALL | {"model_type": "gemma2"}).tied
