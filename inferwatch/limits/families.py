"""Properties of model families that their configurations do not contain.

As in ``transformers`` (``modeling_X.py``, ``configuration_X.py``); a test compares each
with the parameters and caches of those classes. Unlisted families are rejected: they
may give any key another meaning, or do what no key says.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from inferwatch.limits.formats import ShapeError

MOST = 1 << 31
"""Larger than any size in a model; larger values would overflow later arithmetic."""


def first_number(text: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """The first of these keys that is set; a list of equal numbers counts as one.

    Raises:
        ShapeError: the value is not a whole number, or out of range.
    """
    for name in names:
        value = text.get(name)
        if isinstance(value, list) and value:
            if any(each != value[0] for each in value):
                raise ShapeError(f"{name} differs between layers: unknown")
            value = value[0]
        if value is None or isinstance(value, bool) or value == []:
            continue
        if not isinstance(value, int):
            raise ShapeError(f"{name} is {value!r:.40}, which is not a whole number")
        if not 0 <= value < MOST:
            raise ShapeError(f"{name} is {value!s:.40}")
        return value
    return None


def items(text: Mapping[str, Any], name: str) -> list[Any]:
    """The list at a key; empty if the key is not set.

    Raises:
        ShapeError: the value is not a list.
    """
    value = text.get(name)
    if value is not None and not isinstance(value, list):
        raise ShapeError(f"{name} is {value!r:.40}, which is not a list")
    return value or []


PATTERN = "sliding_window_pattern"
FullLayers = Callable[[Mapping[str, Any], int], int]
"""Returns the number of layers with full attention, if ``layer_types`` is missing."""


def _last_of(every: int, key: str = "") -> FullLayers:
    """Return a function that counts the layers with full attention.

    They are every n-th, the last of each group of n, unless the config's ``key`` says
    otherwise.
    """

    def full_layers(text: Mapping[str, Any], layers: int) -> int:
        pattern = text.get(key)
        if isinstance(pattern, str):
            return _lettered(pattern, layers)
        return layers // (first_number(text, (key,)) or every)

    return full_layers


def _lettered(pattern: str, layers: int) -> int:
    """Number of full-attention layers: those marked G in a pattern, and the last one.

    A pattern such as LLLG repeats over the layers, as in EXAONE 4.
    """
    if not pattern or set(pattern) - {"L", "G"}:
        raise ShapeError(f"{PATTERN} is {pattern!r:.40}, not of L and G alone")
    return sum(
        pattern[layer % len(pattern)] == "G" or layer == layers - 1
        for layer in range(layers)
    )


def _first_of(every: int) -> FullLayers:
    """Return a function that counts the layers with full attention.

    They are every n-th, the first of each group of n.
    """
    return lambda _, layers: -(-layers // every)


def _before_window_layers(text: Mapping[str, Any], layers: int) -> int:
    """Number of full-attention layers: those before ``max_window_layers``."""
    return min(first_number(text, ("max_window_layers",)) or 0, layers)


def _without_rope(text: Mapping[str, Any], layers: int) -> int:
    """Number of full-attention layers: those without rotary positions.

    They are marked with 0 in ``no_rope_layers``; without it, every fourth is one.
    """
    named = items(text, "no_rope_layers")
    if named:
        return named[:layers].count(0)
    return layers // (first_number(text, ("no_rope_layer_interval",)) or 4)


def _none(_: Mapping[str, Any], __: int) -> int:
    """Number of full-attention layers: none, as all have the sliding window."""
    return 0


def _all(_: Mapping[str, Any], layers: int) -> int:
    """Number of full-attention layers: all, unless ``layer_types`` says otherwise."""
    return layers


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """Properties of a ``model_type`` that its configuration does not contain."""

    gated: bool = True
    biased: bool = False
    """Biases everywhere: attention, its output, FFN."""
    bias_key: str = ""
    """The key that enables those biases."""
    qkv_bias: bool = False
    output_bias: bool = True
    """``attention_bias`` covers the output projection, too."""
    qk_norm: bool = False
    wide_qk_norm: bool = False
    """Norms over the queries and keys of all heads together."""
    norms: int = 2
    last_norms: int = 1
    """Norms outside of layers: after the last, and before the first if there is one."""
    norm_bias: bool = False
    tied: bool = False
    positions: bool = False
    extra_positions: int = 0
    head_bias: bool = False
    full_layers: FullLayers | None = _none
    """Number of layers with full attention in models with windows; None: unknown."""
    otherwise: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of absent keys, where they differ from the usual ones: no windows, no
    experts, one KV head per head, and heads that add up to the hidden size."""
    known: Mapping[str, Any] = field(default_factory=dict)
    """Keys whose other values would give a model that is not supported here."""


def _kv(heads: int, **others: Any) -> dict[str, Any]:  # noqa: ANN401 - as of JSON
    return {"num_key_value_heads": heads, **others}


_GPT2 = ModelFamily(
    gated=False,
    biased=True,
    norm_bias=True,
    tied=True,
    positions=True,
    otherwise={"n_positions": 1024},
    known={"add_cross_attention": False},
)


def _qwen_windows(full_layers: int) -> dict[str, Any]:
    return {
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": full_layers,
    }


_QWEN2 = ModelFamily(
    qkv_bias=True,
    full_layers=_before_window_layers,
    otherwise=_qwen_windows(28),
)
_QWEN3 = replace(_QWEN2, qkv_bias=False, qk_norm=True)
_QWEN2_VL = replace(_QWEN2, otherwise={**_qwen_windows(80), **_kv(8)})
_QWEN2_MOE = ModelFamily(
    qkv_bias=True,
    full_layers=None,
    otherwise={
        "use_sliding_window": False,
        "num_experts": 60,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    },
    known={"qkv_bias": True},
)
_QWEN3_MOE = ModelFamily(
    qk_norm=True,
    otherwise=_kv(
        4, use_sliding_window=False, num_experts=128, moe_intermediate_size=768
    ),
)
_GEMMA = ModelFamily(tied=True, otherwise={"head_dim": 256})
_GEMMA2 = replace(
    _GEMMA,
    norms=4,
    full_layers=_last_of(2),
    otherwise=_kv(4, head_dim=256, sliding_window=4096),
)
_GEMMA3 = replace(
    _GEMMA2,
    qk_norm=True,
    full_layers=_last_of(6, PATTERN),
    # multimodal configurations omit what equals these defaults
    otherwise=_kv(
        4,
        num_attention_heads=8,
        head_dim=256,
        sliding_window=4096,
        vocab_size=262_208,
    ),
    known={"use_bidirectional_attention": False},
)
_GLM = ModelFamily(output_bias=False, otherwise=_kv(2, attention_bias=True))
_MISTRAL = ModelFamily(otherwise=_kv(8, sliding_window=4096))
_EXAONE4 = ModelFamily(
    qk_norm=True,
    full_layers=_last_of(4, PATTERN),
    otherwise={"sliding_window": 4096},
)
_OLMO2 = ModelFamily(wide_qk_norm=True)
# for other families with MLA, such as minicpm3, vLLM caches whole keys and values
_DEEPSEEK = ModelFamily(known={"mlp_bias": False})
_DEEPSEEK_V3 = replace(
    _DEEPSEEK,
    otherwise={
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
    },
)

_GLM4_MOE = ModelFamily(
    output_bias=False,
    otherwise=_kv(
        8,
        n_routed_experts=128,
        moe_intermediate_size=1408,
        n_shared_experts=1,
        first_k_dense_replace=1,
    ),
)

LLAMA = ModelFamily()
FAMILIES: Mapping[str, ModelFamily] = {
    "apertus": ModelFamily(qk_norm=True, gated=False),
    "arcee": ModelFamily(gated=False),
    "aria_text": ModelFamily(
        otherwise={"moe_num_experts": 8, "moe_num_shared_experts": 2},
        known={"mlp_bias": False},
    ),
    "axk1": replace(
        _DEEPSEEK,
        otherwise={
            **_DEEPSEEK_V3.otherwise,
            "n_routed_experts": 192,
            "first_k_dense_replace": 1,
        },
    ),
    # as vLLM reads it
    "bailing_moe": ModelFamily(
        known={
            "use_bias": False,
            "use_qk_norm": False,
            "moe_router_enable_expert_bias": False,
            "moe_shared_expert_intermediate_size": None,
        }
    ),
    "bloom": ModelFamily(
        gated=False, biased=True, norm_bias=True, last_norms=2, tied=True
    ),
    "cohere": ModelFamily(tied=True, norms=1),
    "cohere2": ModelFamily(
        tied=True,
        norms=1,
        full_layers=_last_of(4, PATTERN),
        otherwise={"sliding_window": 4096},
    ),
    "cwm": ModelFamily(full_layers=_first_of(4), otherwise=_kv(8, sliding_window=8192)),
    # as vLLM reads it: without MLA
    "deepseek": ModelFamily(
        known={"attention_bias": False, "mlp_bias": False, "rswa_window": None}
    ),
    "deepseek_v2": replace(
        _DEEPSEEK,
        otherwise={
            **_DEEPSEEK_V3.otherwise,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "moe_intermediate_size": 1407,
            "first_k_dense_replace": 0,
        },
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "dots1": ModelFamily(
        qk_norm=True,
        full_layers=_before_window_layers,
        otherwise={
            "sliding_window": 4096,
            "max_window_layers": 62,
            "moe_intermediate_size": 1408,
        },
    ),
    "ernie4_5": ModelFamily(
        bias_key="use_bias", tied=True, otherwise=_kv(2, head_dim=128)
    ),
    "ernie4_5_moe": ModelFamily(
        tied=True,
        otherwise=_kv(
            4,
            moe_num_experts=64,
            moe_intermediate_size=1536,
            moe_num_shared_experts=2,
            moe_layer_start_index=1,
        ),
        known={"use_bias": False},
    ),
    # has its own code: taken from vLLM's classes, like internlm2 and mimo
    "exaone": ModelFamily(known={"bias": False}),
    "exaone4": _EXAONE4,
    "exaone_moe": replace(
        _EXAONE4,
        otherwise={
            **_EXAONE4.otherwise,
            "num_experts": 64,
            "moe_intermediate_size": 1024,
            "num_shared_experts": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "falcon": ModelFamily(
        gated=False,
        bias_key="bias",
        norm_bias=True,
        tied=True,
        otherwise={"multi_query": True},
    ),
    "flex_olmo": replace(_OLMO2, otherwise={"num_experts": 7}),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "glm": _GLM,
    "glm4": replace(_GLM, norms=4),
    "glm4v_text": ModelFamily(qkv_bias=True, norms=4, otherwise=_kv(2)),
    "glm4v_moe_text": replace(
        _GLM4_MOE, otherwise={**_GLM4_MOE.otherwise, "attention_bias": True}
    ),
    "glm4_moe": _GLM4_MOE,
    "glm4_moe_lite": replace(
        _DEEPSEEK,
        otherwise={
            **_DEEPSEEK_V3.otherwise,
            "q_lora_rank": 768,
            "n_routed_experts": 64,
            "moe_intermediate_size": 1536,
            "first_k_dense_replace": 1,
        },
    ),
    "gpt2": _GPT2,
    "gpt_bigcode": replace(
        _GPT2,
        otherwise={**_GPT2.otherwise, "multi_query": True},
        known={**_GPT2.known, "multi_query": True},
    ),
    "gpt_neox": ModelFamily(
        gated=False, biased=True, norm_bias=True, known={"attention_bias": True}
    ),
    "gpt_oss": ModelFamily(
        full_layers=_last_of(2),
        otherwise=_kv(
            8,
            head_dim=64,
            attention_bias=True,
            num_local_experts=128,
            sliding_window=128,
        ),
    ),
    "granite": ModelFamily(),
    "granite_swa": ModelFamily(
        tied=True, full_layers=_first_of(4), otherwise=_kv(4, sliding_window=128)
    ),
    "granitemoe": ModelFamily(otherwise={"num_local_experts": 8}),
    "granitemoe_swa": ModelFamily(
        full_layers=_first_of(4),
        otherwise={"num_local_experts": 8, "sliding_window": 128},
    ),
    "granitemoeshared": ModelFamily(otherwise={"num_local_experts": 8}),
    "hy_v3": ModelFamily(
        qk_norm=True,
        otherwise=_kv(
            8,
            head_dim=128,
            num_experts=192,
            moe_intermediate_size=1536,
            num_shared_experts=1,
            first_k_dense_replace=1,
        ),
    ),
    "hunyuan_v1_dense": ModelFamily(qk_norm=True),
    "hyperclovax": ModelFamily(otherwise={"use_post_norm": True}),
    "jais2": ModelFamily(
        gated=False,
        norm_bias=True,
        otherwise={"attention_bias": True, "mlp_bias": True},
    ),
    "internlm2": ModelFamily(known={"bias": False}),
    # as vLLM reads it: Llama with a key for the bias of queries, keys and values
    "internlm3": ModelFamily(known={"bias": False, "qkv_bias": False}),
    "kimi_k2": _DEEPSEEK_V3,
    "llama": LLAMA,
    "llama4_text": ModelFamily(
        full_layers=_without_rope,
        otherwise=_kv(8, num_local_experts=16, attention_chunk_size=8192),
    ),
    "mellum": ModelFamily(
        qk_norm=True,
        full_layers=_all,
        otherwise=_kv(4, head_dim=128, num_experts=64, moe_intermediate_size=896),
    ),
    "minimax_m2": ModelFamily(
        wide_qk_norm=True,
        otherwise=_kv(8, head_dim=128, num_local_experts=256),
    ),
    "mimo": replace(_QWEN2, output_bias=False),
    "ministral": _MISTRAL,
    "ministral3": ModelFamily(otherwise=_kv(8)),
    "mistral": _MISTRAL,
    "mixtral": ModelFamily(otherwise=_kv(8, num_local_experts=8)),
    "nemotron": ModelFamily(gated=False, norm_bias=True, otherwise=_kv(8)),
    "olmo": ModelFamily(norms=0, last_norms=0),
    "olmo2": _OLMO2,
    "olmo3": replace(
        _OLMO2, full_layers=_last_of(4), otherwise={"sliding_window": 4096}
    ),
    "olmoe": replace(_OLMO2, otherwise={"num_experts": 64}),
    "opt": replace(
        _GPT2,
        extra_positions=2,
        otherwise={"max_position_embeddings": 2048},
        known={
            "enable_bias": True,
            "layer_norm_elementwise_affine": True,
            "do_layer_norm_before": True,
            "_remove_final_layer_norm": False,
        },
    ),
    # as vLLM reads it
    "orion": ModelFamily(norm_bias=True),
    "persimmon": ModelFamily(gated=False, biased=True, norm_bias=True),
    "phi": ModelFamily(
        gated=False,
        biased=True,
        norms=1,
        norm_bias=True,
        head_bias=True,
        known={"qk_layernorm": False},
    ),
    "phi3": ModelFamily(),
    # as vLLM reads these two: Llama, behind vision and audio encoders
    "phi3_v": ModelFamily(),
    "phi4mm": ModelFamily(),
    "phi4_multimodal": ModelFamily(otherwise=_kv(8)),
    "phimoe": ModelFamily(norm_bias=True, otherwise=_kv(8, num_local_experts=16)),
    "qwen2": _QWEN2,
    "qwen2_5_omni_text": replace(_QWEN2, otherwise={**_QWEN2.otherwise, **_kv(4)}),
    "qwen2_5_vl": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen2_moe": _QWEN2_MOE,
    "qwen2_vl": _QWEN2_VL,
    "qwen2_vl_text": _QWEN2_VL,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_omni_moe_text": ModelFamily(
        qk_norm=True,
        full_layers=None,
        otherwise=_kv(4, num_experts=128, moe_intermediate_size=768),
    ),
    "qwen3_vl_moe_text": ModelFamily(
        qk_norm=True,
        otherwise={"num_experts": 60, "moe_intermediate_size": 1408},
    ),
    "qwen3_vl_text": ModelFamily(qk_norm=True),
    "seed_oss": ModelFamily(
        output_bias=False, otherwise=_kv(8, head_dim=128, attention_bias=True)
    ),
    "smollm3": ModelFamily(
        tied=True, full_layers=None, otherwise=_kv(4, use_sliding_window=False)
    ),
    "solar_open": ModelFamily(
        output_bias=False, otherwise=_kv(8, head_dim=128, n_shared_experts=1)
    ),
    "stablelm": ModelFamily(
        norm_bias=True,
        known={"qk_layernorm": False, "use_parallel_residual": False},
    ),
    "starcoder2": ModelFamily(
        gated=False,
        bias_key="use_bias",
        norm_bias=True,
        tied=True,
        otherwise=_kv(2, use_bias=True),
    ),
    # as vLLM reads a ``params.json`` of Mistral
    "transformer": ModelFamily(known={"moe": None}),
    "vaultgemma": ModelFamily(
        tied=True,
        full_layers=_last_of(2),
        otherwise=_kv(4, head_dim=256, sliding_window=4096),
    ),
}
VERSIONS: Mapping[str, Mapping[str, ModelFamily]] = {
    "minicpmo": {"": _QWEN2, "2.6": _QWEN2, "4.5": _QWEN3},
    "minicpmv": {"2.5": LLAMA, "2.6": _QWEN2, "4.0": LLAMA, "4.5": _QWEN3},
}
"""Text model of MiniCPM-V and MiniCPM-o by ``version``, as vLLM reads it. For a
MiniCPM-V without a version, vLLM guesses between two."""
