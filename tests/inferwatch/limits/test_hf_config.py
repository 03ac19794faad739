"""Configurations in the words of many: what they say, and what they lack."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as some

from inferwatch.limits.families import FAMILIES, VERSIONS
from inferwatch.limits.hf_config import ShapeError, reads_all, shape_of
from inferwatch.limits.parameters import weight_bytes
from inferwatch.limits.presets import PRESETS
from inferwatch.limits.shape import ModelShape
from tests.inferwatch.metrics.drawn import drawn

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
EXAONE_4 = {"model_type": "exaone4", "sliding_window": 9}
MINICPM = {"model_type": "minicpmv"}
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
        ({"num_hidden_layers": 10**9}, "more than 10000"),
        ({"hidden_size": 10**400}, "hidden_size is 1000"),
        ({"vocab_size": "100"}, "vocab_size is '100'"),
        (QWEN | {"max_window_layers": "28"}, "max_window_layers is '28'"),
        ({"sliding_window": 9, "layer_types": "full_attention"}, "not a list"),
        (EXAONE_4 | {PATTERN: "LXG"}, "not of L and G"),
        (EXAONE_4 | {PATTERN: [1, {}]}, "differs between layers"),
        ({"quantization_config": {"quant_method": "gptq", "bits": [4]}}, "is odd"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 1e300}}, "bits"),
        (MINICPM | {"version": "2.0"}, "family minicpmv"),
        (MINICPM, "family minicpmv"),
        ({"model_type": "baichuan"}, "family baichuan"),
        ({"model_type": "internlm3", "qkv_bias": True}, "qkv_bias"),
        ({"model_type": "bailing_moe", "use_qk_norm": True}, "use_qk_norm"),
        ({"model_type": "phi", "qk_layernorm": True}, "qk_layernorm"),
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
        (EXAONE_4, 9, 5),
        (EXAONE_4 | {PATTERN: 3}, 9, 4),
        # the last sees all, whatever its letter
        (EXAONE_4 | {PATTERN: "LLLG"}, 9, 4),
        (EXAONE_4 | {PATTERN: "LLG"}, 9, 4),
        (EXAONE_4 | {PATTERN: "GGL"}, 9, 1),
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
        ({"moe_layer_start_index": 1, "moe_layer_end_index": -1}, 5),
        ({"moe_layer_end_index": [3, 3]}, 4),
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


def test_null_is_as_if_it_were_absent() -> None:
    for family, key in [
        ("gemma3_text", "use_bidirectional_attention"),
        ("phi", "qk_layernorm"),
        ("opt", "word_embed_proj_dim"),
    ]:
        absent = SMALL | {"model_type": family}

        assert shape_of(absent | {key: None}) == shape_of(absent)


@pytest.mark.parametrize(
    ("config", "like"),
    [
        (MINICPM | {"version": 2.5}, "llama"),
        (MINICPM | {"version": 2.6}, "qwen2"),
        (MINICPM | {"version": "4.0"}, "llama"),
        (MINICPM | {"version": "4.5"}, "qwen3"),
        ({"model_type": "minicpmo"}, "qwen2"),
        ({"model_type": "minicpmo", "version": "4.5"}, "qwen3"),
        ({"model_type": "phi3_v"}, "phi3"),
        ({"model_type": "phi4mm"}, "phi3"),
        ({"model_type": "internlm3"}, "llama"),
    ],
)
def test_what_speaks_in_models_that_see_is_of_a_family(
    config: dict[str, Any], like: str
) -> None:
    assert shape_of(SMALL | config) == shape_of(SMALL | {"model_type": like})


@pytest.mark.parametrize(
    "family", ["bailing_moe", "deepseek", "qwen3_omni_moe_text", "mixtral"]
)
def test_families_with_experts_have_them(family: str) -> None:
    told = {"num_experts": 8, "num_experts_per_tok": 2, "num_shared_experts": 1}
    told |= {"moe_intermediate_size": 32, "first_k_dense_replace": 1}

    experts = shape_of(SMALL | told | {"model_type": family}).experts

    assert experts is not None
    assert (experts.count, experts.layers, experts.shared_ffn) == (8, 5, 32)


def test_of_two_glms_one_has_biases_of_attention() -> None:
    told = SMALL | EXPERTS

    assert not shape_of(told | {"model_type": "glm4_moe"}).attention_bias
    assert shape_of(told | {"model_type": "glm4v_moe_text"}).attention_bias


def test_orion_is_llama_with_biases_of_norms() -> None:
    orion, llama = (
        shape_of(SMALL | {"model_type": each}) for each in ("orion", "llama")
    )

    # 13 norms of 64 numbers in BF16
    assert weight_bytes(orion) - weight_bytes(llama) == 13 * 64 * 2


def keys() -> list[str]:
    """All words in quotation marks where configurations are read."""
    folder = Path(shape_of.__code__.co_filename).parent
    files = [folder / f"{name}.py" for name in ("families", "formats", "hf_config")]
    texts = [file.read_text("utf-8") for file in files]
    return sorted({key for text in texts for key in re.findall(r'"(\w+)"', text)})


KEYS = some.sampled_from(keys())
JSON = some.recursive(
    some.none()
    | some.booleans()
    | some.integers()
    | some.sampled_from([-1, 0, 1, 2, 8, 10**400])
    | some.floats()
    | some.text(max_size=8),
    lambda each: (
        some.lists(each, max_size=3) | some.dictionaries(KEYS, each, max_size=3)
    ),
    max_leaves=6,
)
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MLA = {"kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8}
BEGINNINGS = [
    {},
    EXPERTS,
    MLA | {"v_head_dim": 8},
    QWEN,
    EXAONE_4,
    LLAMA_4 | EXPERTS,
    *(
        {"quantization_config": {"quant_method": each}}
        for each in ("fp8", "gptq", "compressed-tensors", "modelopt", "bitsandbytes")
    ),
]


@drawn(
    200,
    5_000,
    beginning=some.sampled_from(BEGINNINGS),
    family=some.none() | some.sampled_from([*FAMILIES, *VERSIONS]),
    odd=some.dictionaries(KEYS, JSON, min_size=1, max_size=2),
    odd_format=some.dictionaries(KEYS, JSON, max_size=2),
)
def test_any_value_of_any_key_makes_a_shape_or_says_why_not(
    beginning: dict[str, Any],
    family: str | None,
    odd: dict[str, Any],
    odd_format: dict[str, Any],
) -> None:
    kind = {} if family is None else {"model_type": family}
    config = SMALL | kind | beginning | odd
    if isinstance(told := config.get("quantization_config"), dict):
        config["quantization_config"] = told | odd_format

    assert reads_all(config) in {True, False}
    try:
        shape = shape_of(config)
    except ShapeError:
        return
    assert isinstance(shape, ModelShape)
    assert weight_bytes(shape) >= 0


@pytest.mark.parametrize(
    ("config", "whole"),
    [
        ({}, False),
        (SMALL, True),
        (LLAMA, True),
        (SMALL | {"num_experts": 1, "sliding_window": None}, True),
        (SMALL | {"attn_config": {"sliding_window_size": -1}}, True),
        (SMALL | {"layer_types": ["full_attention"] * 6}, True),
        (QWEN | {"use_sliding_window": False, "max_window_layers": 28}, True),
        (QWEN, False),
        (SMALL | {"layer_types": ["full_attention", "sliding_attention"]}, False),
        ({"model_type": "transformer", "moe": {"num_experts": 8}}, False),
        ({"model_type": "dbrx", "ffn_config": {"moe_num_experts": 16}}, False),
        (SMALL | {"window": 128}, False),
        (SMALL | {"window_size": 256}, False),
        (SMALL | {"local_attention": 128}, False),
        (SMALL | {"blocks": [{"sliding": True}]}, False),
        ({"text_config": SMALL | {"n_routed_experts": 8}}, False),
        (SMALL | {"index_topk": 2048}, False),
        (SMALL | {"num_kv_shared_layers": 4}, False),
    ],
)
def test_steps_read_all_where_nothing_speaks_of_parts(
    config: dict[str, Any],
    whole: bool,
) -> None:
    assert reads_all(config) == whole
