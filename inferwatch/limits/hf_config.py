"""The shape of a model from a Hugging Face ``config.json``, whoever's words it uses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferwatch.limits.formats import (
    DTYPE_BITS,
    ShapeError,
    cache_bits,
    plain_dtype,
    weight_format,
)
from inferwatch.limits.shape import Experts, Mla, ModelShape

__all__ = ["ShapeError", "shape_of"]

NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
FFN = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
TOP_K = ("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k")
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
RECURRENT = (
    *("state_size", "ssm_cfg", "mamba_d_state", "mamba_num_heads", "ssm_state_size"),
    *("linear_num_value_heads", "linear_attn_config", "attn_layer_period"),
    *("conv_L_cache", "lru_width"),
)
"""Keys of models with layers that keep a state instead of a cache."""
UNEVEN = (
    *("num_kv_shared_layers", "hidden_size_per_layer_input", "block_configs"),
    *("global_head_dim", "num_global_key_value_heads", "swa_num_key_value_heads"),
    "zero_expert_num",
)
"""Keys of models whose layers differ, share, or are left out."""
UNKNOWN_KINDS = {
    *("afmoe", "bitnet", "doge", "gemma4_unified_text", "helium", "inkling_text"),
    *("jetmoe", "longcat_flash", "minimax_m3_vl_text", "zaya"),
}
"""Attention or experts of their own, that no key tells: counts would be wrong."""
PLAIN_ACTIVATIONS = {"relu", "relu2", "squared_relu", "xielu"}
"""Of FFNs with two matrices, whoever's model it is."""
STATEFUL_LAYERS = ("linear", "mamba", "conv", "recurrent")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What a ``model_type`` does that its configuration does not say."""

    gated: bool = True
    biased: bool = False
    """Everywhere: attention, its output, FFN."""
    qkv_bias: bool = False
    qk_norm: bool = False
    norms: int = 2
    norm_bias: bool = False
    tied: bool = False
    positions: bool = False
    extra_positions: int = 0
    head_bias: bool = False
    alternates: int | None = None
    """Every so many-th layer sees all, the others have the window."""


_GPT2 = _Kind(gated=False, biased=True, norm_bias=True, tied=True, positions=True)
_KINDS = {
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "opt": _Kind(
        gated=False,
        biased=True,
        norm_bias=True,
        tied=True,
        positions=True,
        extra_positions=2,
    ),
    "phi": _Kind(gated=False, biased=True, norms=1, norm_bias=True, head_bias=True),
    "nemotron": _Kind(gated=False, norm_bias=True),
    "persimmon": _Kind(gated=False, biased=True, norm_bias=True),
    "gpt_neox": _Kind(gated=False, biased=True, norm_bias=True),
    "bloom": _Kind(gated=False, biased=True, norm_bias=True, tied=True),
    "falcon": _Kind(gated=False, norm_bias=True, tied=True),
    "starcoder2": _Kind(gated=False, biased=True, norm_bias=True, tied=True),
    "qwen2": _Kind(qkv_bias=True),
    "qwen2_moe": _Kind(qkv_bias=True),
    "qwen3": _Kind(qk_norm=True),
    "qwen3_moe": _Kind(qk_norm=True),
    "gemma": _Kind(tied=True),
    "gemma2": _Kind(tied=True, norms=4, alternates=2),
    "gemma3": _Kind(tied=True, norms=4, qk_norm=True, alternates=6),
    "gemma3_text": _Kind(tied=True, norms=4, qk_norm=True, alternates=6),
    "cohere": _Kind(tied=True, norms=1),
    "cohere2": _Kind(tied=True, norms=1, alternates=4),
    "gpt_oss": _Kind(alternates=2),
}
_LLAMA = _Kind()


def shape_of(
    config: Mapping[str, Any],
    *,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    quantization: str | None = None,
) -> ModelShape:
    """What the configuration says; what it leaves open as its ``model_type`` has it.

    What a server was told wins over the checkpoint: the dtype of activations, of the KV
    cache, and a method that quantises while loading. Vision and audio towers are left
    out.

    Raises:
        ShapeError: something is missing, or the model is not of attention alone.
    """
    text = _text_model(config)
    kind = _KINDS.get(str(text.get("model_type") or ""), _LLAMA)
    _refuse_strangers(text)
    # servers make 16 bit of checkpoints in FP32 unless told otherwise
    told = str(text.get("dtype") or text.get("torch_dtype") or "auto")
    plain = plain_dtype(dtype) or {"float16": "float16"}.get(
        plain_dtype(told) or "", "bfloat16"
    )
    quantised = _mapping(
        text.get("quantization_config") or config.get("quantization_config")
    )
    bits = DTYPE_BITS[plain]
    format_ = weight_format(quantization, quantised, bits)
    layers = _required(text, LAYERS)
    hidden = _required(text, HIDDEN)
    heads = _required(text, HEADS)
    experts = _experts(text, layers)
    mla = _mla(text)
    window, window_layers = _window(text, kind, layers)
    kv_heads = heads if mla else _kv_heads(text, heads)
    return ModelShape(
        name=text.get("_name_or_path") or config.get("_name_or_path") or None,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(text, mla, hidden, heads),
        ffn=_ffn(text, experts, hidden, layers),
        gated=kind.gated and text.get("hidden_act") not in PLAIN_ACTIVATIONS,
        vocab=_required(text, ("vocab_size",)),
        tied=_flag(text, config, "tie_word_embeddings", kind.tied),
        attention_bias=kind.biased or kind.qkv_bias or _told(text, "attention_bias"),
        output_bias=kind.biased or _output_bias(text),
        ffn_bias=kind.biased or _told(text, "mlp_bias"),
        head_bias=kind.head_bias,
        qk_norm=kind.qk_norm or _told(text, "use_qk_norm"),
        norms=kind.norms,
        norm_bias=kind.norm_bias,
        learned_positions=_positions(text, kind),
        experts=experts,
        mla=mla,
        window=window,
        window_layers=window_layers,
        weight_bits=format_.weight_bits,
        other_bits=bits,
        expert_bits=format_.expert_bits,
        quantised_attention=format_.quantised_attention,
        kv_bits=cache_bits(kv_dtype, plain, quantised),
        compute_dtype=format_.compute_dtype or plain,
    )


def reads_all(config: Mapping[str, Any]) -> bool:
    """Each step reads all weights and the whole context, whatever the shape is."""
    text = _text_model(config)
    windows = ("sliding_window", "attention_chunk_size", "attention_window_size")
    parts = (*EXPERTS, *UNEVEN, *windows, "index_topk")
    return all((text.get(key) or 0) in (0, 1) for key in parts)


def _text_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of the part that speaks."""
    for name in NESTED:
        nested = config.get(name)
        if isinstance(nested, Mapping) and nested:
            return _text_model(nested)
    return config


def _refuse_strangers(text: Mapping[str, Any]) -> None:
    """Say of what is not a decoder of attention and FFN why it is not understood."""
    kind = text.get("model_type") or "this model"
    if text.get("is_encoder_decoder") or "type_vocab_size" in text:
        raise ShapeError(f"{kind} has an encoder: limits are known of decoders alone")
    types = text.get("layer_types") or ()
    stateful = {t for t in types if any(word in str(t) for word in STATEFUL_LAYERS)}
    found = [key for key in RECURRENT if text.get(key)]
    if stateful or found or str(kind).startswith(("mamba", "rwkv")):
        named = ", ".join(sorted(map(str, stateful)) or found) or kind
        raise ShapeError(
            f"{kind} has layers that keep a state instead of a cache ({named}): "
            "their arithmetic is not known here"
        )
    if text.get("index_topk"):
        raise ShapeError(f"{kind} attends to tokens that an indexer chooses: unknown")
    uneven = [key for key in UNEVEN if text.get(key)]
    if uneven or kind in UNKNOWN_KINDS:
        why = f" ({', '.join(uneven)})" if uneven else ""
        raise ShapeError(f"the layers of {kind} are not those of others{why}: unknown")


def _required(text: Mapping[str, Any], names: Sequence[str]) -> int:
    value = _first(text, names)
    if value is None:
        others = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        raise ShapeError(f"the model's configuration has no {names[0]}{others}")
    return value


def _first(text: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """The first of them that is told; a list, of which all are equal, as one."""
    for name in names:
        value = text.get(name)
        if isinstance(value, list) and value:
            if len(set(value)) > 1:
                raise ShapeError(f"{name} differs between layers: unknown")
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool):
            if value < 0:
                raise ShapeError(f"{name} is {value}")
            return value
    return None


def _kv_heads(text: Mapping[str, Any], heads: int) -> int:
    told = _first(text, KV_HEADS)
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1
    return told or heads


def _head_dim(text: Mapping[str, Any], mla: Mla | None, hidden: int, heads: int) -> int:
    if mla is not None:
        return mla.nope_dim + mla.rope_dim
    told = _first(text, ("head_dim", "attention_head_dim"))
    if not told and not heads:
        raise ShapeError("the model's configuration has neither heads nor head_dim")
    return told or hidden // heads


def _ffn(
    text: Mapping[str, Any], experts: Experts | None, hidden: int, layers: int
) -> int:
    """Of the dense layers; of none where all have experts."""
    if experts is not None and experts.layers == layers:
        return 0
    told = _first(text, ("intermediate_size_mlp", *FFN))
    if told is None and text.get("model_type") in {"gpt2", "gpt_bigcode", "bloom"}:
        return 4 * hidden
    if told is None and text.get("model_type") == "falcon":
        return 4 * hidden
    return told if told is not None else _required(text, FFN)


def _experts(text: Mapping[str, Any], layers: int) -> Experts | None:
    count = _first(text, EXPERTS)
    if not count or count < 2:
        return None
    inner = _first(text, ("moe_intermediate_size", *FFN))
    if inner is None:
        raise ShapeError("the model has experts, but no moe_intermediate_size")
    shared = _first(text, ("shared_expert_intermediate_size",))
    if shared is None:
        shared = (_first(text, SHARED) or 0) * inner
    llama4 = str(text.get("model_type")).startswith("llama4")
    oss = text.get("model_type") == "gpt_oss"
    return Experts(
        count=count,
        per_token=min(_required(text, TOP_K), count),
        ffn=inner,
        shared_ffn=inner if llama4 else shared,
        layers=_expert_layers(text, layers),
        bias=oss,
        router_bias=oss or text.get("topk_method") == "noaux_tc",
    )


def _expert_layers(text: Mapping[str, Any], layers: int) -> int:
    """How many layers have experts, in the ways that models say it."""
    kinds = text.get("mlp_layer_types")
    if isinstance(kinds, list) and kinds:
        return sum(str(kind) == "sparse" for kind in kinds[:layers])
    listed = text.get("moe_layers")
    if isinstance(listed, list) and listed:
        return len(listed)
    dense = _first(text, ("first_k_dense_replace", "moe_layer_start_index")) or 0
    every = _first(text, ("moe_layer_freq",)) or 1
    steps = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
    step = _first(text, steps) or 1
    only = set(text.get("mlp_only_layers") or ())
    return sum(
        layer >= dense
        and layer % every == 0
        and (layer + 1) % step == 0
        and layer not in only
        for layer in range(layers)
    )


def _mla(text: Mapping[str, Any]) -> Mla | None:
    rank = _first(text, ("kv_lora_rank",))
    if not rank:
        return None
    return Mla(
        kv_rank=rank,
        rope_dim=_required(text, ("qk_rope_head_dim",)),
        nope_dim=_required(text, ("qk_nope_head_dim",)),
        value_dim=_required(text, ("v_head_dim",)),
        query_rank=_first(text, ("q_lora_rank",)),
    )


def _window(
    text: Mapping[str, Any], kind: _Kind, layers: int
) -> tuple[int | None, int]:
    """The sliding window, and how many layers have it."""
    window = _first(text, ("sliding_window", "attention_chunk_size"))
    if not window or text.get("use_sliding_window") is False:
        return None, 0
    types = text.get("layer_types")
    if isinstance(types, list) and types:
        chosen = [t for t in types[:layers] if "sliding" in t or "chunked" in t]
        return (window, len(chosen)) if chosen else (None, 0)
    pattern = _first(text, ("sliding_window_pattern",)) or kind.alternates
    if pattern:
        return window, layers - layers // pattern
    if "use_sliding_window" in text:
        before = _first(text, ("max_window_layers",)) or 0
        count = max(0, layers - before)
        return (window, count) if count else (None, 0)
    return window, layers


def _positions(text: Mapping[str, Any], kind: _Kind) -> int:
    if not kind.positions:
        return 0
    names = ("n_positions", "max_position_embeddings")
    return (_first(text, names) or 0) + kind.extra_positions


def _output_bias(text: Mapping[str, Any]) -> bool:
    """Of Llama and gpt-oss ``attention_bias`` is of the output, too."""
    kinds = {"llama", "gpt_oss"}
    return _told(text, "attention_bias") and text.get("model_type") in kinds


def _told(text: Mapping[str, Any], name: str) -> bool:
    return bool(text.get(name))


def _flag(
    text: Mapping[str, Any],
    whole: Mapping[str, Any],
    name: str,
    otherwise: bool,  # noqa: FBT001 - of this file alone
) -> bool:
    for config in (text, whole):
        if isinstance(config.get(name), bool):
            return bool(config[name])
    return otherwise


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
