"""Counts of parameters against the headers of safetensors that transformers writes."""

import asyncio
import json
from contextlib import closing
from math import prod
from typing import Any

import pytest

from inferwatch.limits.hf_config import shape_of
from inferwatch.limits.parameters import parameters, weight_bytes
from tests.embedded_engine.loaded_vllm import loaded_vllm

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("loaded vLLM")]
"""transformers comes with vLLM."""

PROGRAM = "tests.inferwatch.limits.written_models"
SIZES = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 160,
    "vocab_size": 512,
}
LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 8,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("llama", SIZES | {"num_key_value_heads": 8}),
    "dense, tied": ("llama", SIZES | {"tie_word_embeddings": True}),
    "dense, biased": ("llama", SIZES | {"attention_bias": True, "mlp_bias": True}),
    "grouped heads": ("llama", SIZES),
    "one KV head": ("llama", SIZES | {"num_key_value_heads": 1}),
    "wide heads": ("qwen3", SIZES | {"head_dim": 32}),
    "qwen2": ("qwen2", SIZES),
    "mistral": ("mistral", SIZES | {"head_dim": None}),
    "gemma2": ("gemma2", SIZES | {"head_dim": 16}),
    "gemma3": ("gemma3_text", SIZES | {"head_dim": 16}),
    "phi": ("phi", SIZES),
    "phi3": ("phi3", SIZES | {"pad_token_id": 0}),
    "gpt2": (
        "gpt2",
        {
            "n_layer": 4,
            "n_embd": 64,
            "n_head": 4,
            "n_positions": 128,
            "vocab_size": 512,
        },
    ),
    "opt": (
        "opt",
        {
            "num_hidden_layers": 4,
            "hidden_size": 64,
            "word_embed_proj_dim": 64,
            "num_attention_heads": 4,
            "ffn_dim": 256,
            "max_position_embeddings": 128,
            "vocab_size": 512,
        },
    ),
    "gpt_neox": ("gpt_neox", SIZES | {"num_key_value_heads": 8}),
    "nemotron": ("nemotron", SIZES),
    "two matrices by its activation": ("arcee", SIZES),
    "bloom": (
        "bloom",
        {"n_layer": 4, "hidden_size": 64, "n_head": 4, "vocab_size": 512},
    ),
    "one KV head of GPT": (
        "gpt_bigcode",
        {
            "n_layer": 4,
            "n_embd": 64,
            "n_head": 4,
            "n_positions": 128,
            "vocab_size": 512,
        },
    ),
    "experts": ("mixtral", SIZES | {"num_local_experts": 4, "head_dim": None}),
    "many small experts": (
        "qwen3_moe",
        SIZES
        | {"num_experts": 16, "moe_intermediate_size": 32, "head_dim": 16}
        | {"decoder_sparse_step": 2, "num_experts_per_tok": 2},
    ),
    "shared expert": (
        "qwen2_moe",
        SIZES
        | {"num_experts": 8, "moe_intermediate_size": 32}
        | {"shared_expert_intermediate_size": 48, "num_experts_per_tok": 2},
    ),
    "experts with biases": (
        "gpt_oss",
        SIZES | {"num_local_experts": 4, "head_dim": 16, "intermediate_size": 48},
    ),
    "latent attention": (
        "deepseek_v3",
        SIZES
        | LATENT
        | {"n_routed_experts": 8, "moe_intermediate_size": 32, "n_group": 2}
        | {"n_shared_experts": 2, "first_k_dense_replace": 1, "topk_group": 1},
    ),
    "latent attention, queries whole": (
        "deepseek_v2",
        SIZES
        | LATENT
        | {"q_lora_rank": None, "n_routed_experts": 8, "moe_intermediate_size": 32}
        | {"n_shared_experts": 1, "first_k_dense_replace": 1}
        | {"num_experts_per_tok": 2},
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is in their files, by name."""
    log = tmp_path_factory.mktemp("models") / "log"
    with closing(loaded_vllm().run(log, PROGRAM)) as program:
        program.go_on(json.dumps(MODELS))
        return asyncio.run(program.told())


@pytest.mark.parametrize("name", MODELS)
def test_counts_are_those_of_the_checkpoint(name: str, models: dict[str, Any]) -> None:
    model = models[name]
    tensors = model["tensors"].values()
    stored = sum(prod(each["shape"]) for each in tensors)
    n_bytes = sum(b - a for a, b in (each["data_offsets"] for each in tensors))

    for told in (model["written"], model["held"]):
        shape = shape_of(told)

        assert parameters(shape).total == pytest.approx(stored, rel=0.01)
        assert weight_bytes(shape) == pytest.approx(n_bytes, rel=0.01)
