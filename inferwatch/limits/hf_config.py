"""Derives a model's shape from a Hugging Face ``config.json`` of any family."""

from collections.abc import Mapping, Sequence
from typing import Any

from inferwatch.limits.families import (
    FAMILIES,
    LLAMA,
    VERSIONS,
    ModelFamily,
    first_number,
    items,
)
from inferwatch.limits.formats import (
    DTYPE_BITS,
    ShapeError,
    cache_bits,
    plain_dtype,
    weight_format,
)
from inferwatch.limits.shape import Experts, Mla, ModelShape

__all__ = ["ShapeError", "UnknownFamilyError", "reads_all", "shape_of"]


class UnknownFamilyError(ShapeError):
    """The model's family, or the value of one of its keys, is not supported."""


NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
FFN = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
TOP_K = ("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k")
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
POSITIONS = ("n_positions", "max_position_embeddings")
RECURRENT = (
    *("state_size", "ssm_cfg", "mamba_d_state", "mamba_num_heads", "ssm_state_size"),
    *("linear_num_value_heads", "linear_attn_config", "attn_layer_period"),
    *("conv_L_cache", "lru_width"),
)
"""Keys of models with layers that keep a state instead of a KV cache."""
UNEVEN = (
    *("num_kv_shared_layers", "hidden_size_per_layer_input", "block_configs"),
    *("global_head_dim", "num_global_key_value_heads", "swa_num_key_value_heads"),
    "zero_expert_num",
)
"""Keys of models whose layers differ, share weights, or are skipped."""
WINDOWS = ("window", "sliding", "attention_chunk", "local_attention")
"""Words in keys that limit attention to part of the context."""
PARTS = (*UNEVEN, "index_topk")
PLAIN_ACTIVATIONS = {"relu", "relu2", "squared_relu", "xielu"}
"""Activation functions of FFNs with two matrices, in any family."""
MOST_LAYERS = 10_000
MOST_BITS = 64
ODD = (TypeError, ValueError, ArithmeticError, LookupError, RecursionError)
"""Errors caused by values of unexpected types."""
STATEFUL_LAYERS = ("linear", "mamba", "conv", "recurrent")


def shape_of(
    config: Mapping[str, Any],
    *,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    quantization: str | None = None,
) -> ModelShape:
    """The shape in a configuration; gaps are filled by defaults of its ``model_type``.

    The server's own settings override the checkpoint: dtype of activations and KV
    cache, and a quantisation method applied while loading. Vision and audio encoders
    are left out.

    Raises:
        ShapeError: something is missing or malformed, or the model is not a plain
            attention decoder.
    """
    try:
        shape = _shape_of(config, dtype, kv_dtype, quantization)
    except ODD as error:
        raise ShapeError(f"the model's configuration is odd: {error}") from error
    bits = (shape.weight_bits, shape.kv_bits, shape.expert_bits or shape.weight_bits)
    if not all(0 < each <= MOST_BITS for each in bits):
        raise ShapeError(f"the model's configuration speaks of values of {bits} bits")
    return shape


def _shape_of(
    config: Mapping[str, Any],
    dtype: str | None,
    kv_dtype: str | None,
    quantization: str | None,
) -> ModelShape:
    text = _text_model(config)
    _refuse_unsupported(text)
    kind = _family(text)
    text = _with_defaults(text, kind)
    biased = kind.biased or _is_set(text, kind.bias_key)
    # servers load FP32 checkpoints in 16 bits unless told otherwise
    checkpoint_dtype = str(text.get("dtype") or text.get("torch_dtype") or "auto")
    plain = plain_dtype(dtype) or {"float16": "float16"}.get(
        plain_dtype(checkpoint_dtype) or "", "bfloat16"
    )
    quantised = _mapping(
        text.get("quantization_config") or config.get("quantization_config")
    )
    bits = DTYPE_BITS[plain]
    format_ = weight_format(quantization, quantised, bits)
    layers = _required(text, LAYERS)
    if layers > MOST_LAYERS:
        raise ShapeError(f"{layers} layers are more than {MOST_LAYERS}")
    hidden = _required(text, HIDDEN)
    heads = _required(text, HEADS)
    experts = _experts(text, layers)
    mla = _mla(text)
    window, window_layers = _window(text, kind, layers)
    kv_heads = heads if mla else _kv_heads(text, heads)
    return ModelShape(
        name=_name(text) or _name(config),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(text, mla, hidden, heads),
        ffn=_ffn(text, experts, hidden, layers),
        gated=kind.gated and text.get("hidden_act") not in PLAIN_ACTIVATIONS,
        vocab=_required(text, ("vocab_size",)),
        tied=_flag(text, config, "tie_word_embeddings", kind.tied),
        attention_bias=biased or kind.qkv_bias or _attention_bias(text),
        output_bias=biased or _output_bias(text, kind),
        ffn_bias=biased or _is_set(text, "mlp_bias"),
        head_bias=kind.head_bias or _is_set(text, "lm_head_bias"),
        qk_norm=kind.qk_norm,
        # Llama 4 has the same key, but those norms have no weights
        wide_qk_norm=kind.wide_qk_norm
        or (kind.norms == 1 and _is_set(text, "use_qk_norm")),
        norms=_norms(text, kind),
        last_norms=kind.last_norms,
        norm_bias=kind.norm_bias,
        learned_positions=_positions(text, kind),
        experts=experts,
        mla=mla,
        window=window,
        chunked=window is not None and window == text.get("attention_chunk_size"),
        window_layers=window_layers,
        weight_bits=format_.weight_bits,
        other_bits=bits,
        expert_bits=format_.expert_bits,
        quantised_attention=format_.quantised_attention,
        kv_bits=cache_bits(kv_dtype, plain, quantised),
        integer_cache=str(kv_dtype).lower().startswith("int"),
        compute_dtype=format_.compute_dtype or plain,
    )


def reads_all(config: Mapping[str, Any]) -> bool:
    """Whether every step reads all weights and the whole context.

    True if no key of the configuration, at any depth, means experts, windows or
    differing layers; False for an empty configuration.
    """
    deeper: list[object] = [config]
    while deeper:
        here = deeper.pop()
        if isinstance(here, list):
            deeper += here
        elif isinstance(here, Mapping):
            if any(_means_partial_reads(here, key) for key in here):
                return False
            deeper += here.values()
    return bool(config)


def _means_partial_reads(text: Mapping[str, Any], key: str) -> bool:
    """Whether a key means that a step may read only part of the weights or context."""
    value = text[key]
    if key == "layer_types":
        full = isinstance(value, list) and set(map(str, value)) <= {"full_attention"}
        return value is not None and not full
    if isinstance(value, int | float) and value is not True:
        value = value > 1  # a single expert is none, and -1 is no window
    if not value:
        return False
    if any(word in key for word in WINDOWS):
        return text.get("use_sliding_window") is not False
    return key in PARTS or any(word in key for word in ("expert", "moe"))


def _text_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in NESTED:
        nested = config.get(name)
        if isinstance(nested, Mapping) and nested:
            return _text_model(nested)
    return config


def _refuse_unsupported(text: Mapping[str, Any]) -> None:
    """Reject models other than plain decoders of attention and FFN, with the reason."""
    kind = text.get("model_type") or "this model"
    if text.get("is_encoder_decoder") or "type_vocab_size" in text:
        raise ShapeError(f"{kind} has an encoder: limits are known of decoders alone")
    types = items(text, "layer_types")
    stateful = {t for t in types if any(word in str(t) for word in STATEFUL_LAYERS)}
    recurrent = [key for key in RECURRENT if text.get(key)]
    if stateful or recurrent or str(kind).startswith(("mamba", "rwkv")):
        named = ", ".join(sorted(map(str, stateful)) or recurrent) or kind
        raise ShapeError(
            f"{kind} has layers that keep a state instead of a cache ({named}): "
            "their arithmetic is not known here"
        )
    if text.get("index_topk"):
        raise ShapeError(f"{kind} attends to tokens that an indexer chooses: unknown")
    uneven = [key for key in UNEVEN if text.get(key)]
    if uneven:
        keys = ", ".join(uneven)
        raise ShapeError(f"the layers of {kind} differ ({keys}): unknown")


def _family(text: Mapping[str, Any]) -> ModelFamily:
    """The family; Llama's for a configuration without ``model_type``."""
    kind = text.get("model_type")
    if not kind:
        return LLAMA
    family = FAMILIES.get(str(kind)) or _by_version(text)
    if family is None:
        raise UnknownFamilyError(
            f"how models of the family {kind} are built is not known here"
        )
    fixed = {**family.known, "word_embed_proj_dim": text.get("hidden_size")}
    odd = [key for key, value in fixed.items() if text.get(key) not in (None, value)]
    if odd:
        raise UnknownFamilyError(f"{kind} with {', '.join(odd)} as here is not known")
    return family


def _by_version(text: Mapping[str, Any]) -> ModelFamily | None:
    """The family of a text model determined by the model's version."""
    version = text.get("version")
    versions = VERSIONS.get(str(text.get("model_type")), {})
    return versions.get("" if version is None else str(version))


def _with_defaults(text: Mapping[str, Any], kind: ModelFamily) -> Mapping[str, Any]:
    """The configuration with the family's defaults for keys absent under any name."""
    absent = {
        key: value
        for key, value in kind.otherwise.items()
        if not any(name in text for name in _names_of(key))
    }
    return {**text, **absent}


def _names_of(key: str) -> Sequence[str]:
    groups = (KV_HEADS, EXPERTS, SHARED, POSITIONS)
    return next((names for names in groups if key in names), (key,))


def _required(text: Mapping[str, Any], names: Sequence[str]) -> int:
    value = first_number(text, names)
    if value is None:
        others = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        raise ShapeError(f"the model's configuration has no {names[0]}{others}")
    return value


def _kv_heads(text: Mapping[str, Any], heads: int) -> int:
    kv_heads = first_number(text, KV_HEADS)
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1
    return kv_heads or heads


def _head_dim(text: Mapping[str, Any], mla: Mla | None, hidden: int, heads: int) -> int:
    if mla is not None:
        return mla.nope_dim + mla.rope_dim
    head_dim = first_number(text, ("head_dim", "attention_head_dim"))
    if not head_dim and not heads:
        raise ShapeError("the model's configuration has neither heads nor head_dim")
    return head_dim or hidden // heads


def _ffn(
    text: Mapping[str, Any], experts: Experts | None, hidden: int, layers: int
) -> int:
    """Inner size of dense FFNs; 0 if all layers have experts."""
    if experts is not None and experts.layers == layers:
        return 0
    ffn = first_number(text, ("intermediate_size_mlp", *FFN))
    if ffn is None and text.get("model_type") in {"gpt2", "gpt_bigcode", "bloom"}:
        return 4 * hidden
    if ffn is None and text.get("model_type") == "falcon":
        return 4 * hidden
    return ffn if ffn is not None else _required(text, FFN)


def _experts(text: Mapping[str, Any], layers: int) -> Experts | None:
    count = first_number(text, EXPERTS)
    if not count or count < 2:
        return None
    inner = first_number(text, ("moe_intermediate_size", *FFN))
    if inner is None:
        raise ShapeError("the model has experts, but no moe_intermediate_size")
    sizes = ("shared_expert_intermediate_size", "shared_intermediate_size")
    shared = first_number(text, sizes)
    if shared is None:
        shared = (first_number(text, SHARED) or 0) * inner
    llama4 = str(text.get("model_type")).startswith("llama4")
    oss = text.get("model_type") == "gpt_oss"
    return Experts(
        count=count,
        per_token=min(_required(text, TOP_K), count),
        ffn=inner,
        shared_ffn=inner if llama4 else shared,
        shared_gate=bool(text.get("shared_expert_intermediate_size")),
        layers=_expert_layers(text, layers),
        bias=oss,
        router_bias=oss or text.get("topk_method") == "noaux_tc",
    )


def _expert_layers(text: Mapping[str, Any], layers: int) -> int:
    """Number of layers with experts, by any of the keys families use."""
    kinds = items(text, "mlp_layer_types")
    if kinds:
        return sum(str(kind) == "sparse" for kind in kinds[:layers])
    listed = items(text, "moe_layers")
    if listed:
        return min(len(listed), layers)
    dense = first_number(text, ("first_k_dense_replace", "moe_layer_start_index")) or 0
    end = "moe_layer_end_index"
    last = None if text.get(end) == -1 else first_number(text, (end,))
    last = layers - 1 if last is None else last
    every = first_number(text, ("moe_layer_freq",)) or 1
    steps = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
    step = first_number(text, steps) or 1
    only = set(items(text, "mlp_only_layers"))
    return sum(
        dense <= layer <= last
        and layer % every == 0
        and (layer + 1) % step == 0
        and layer not in only
        for layer in range(layers)
    )


def _mla(text: Mapping[str, Any]) -> Mla | None:
    rank = first_number(text, ("kv_lora_rank",))
    if not rank:
        return None
    return Mla(
        kv_rank=rank,
        rope_dim=_required(text, ("qk_rope_head_dim",)),
        nope_dim=_required(text, ("qk_nope_head_dim",)),
        value_dim=_required(text, ("v_head_dim",)),
        query_rank=first_number(text, ("q_lora_rank",)),
    )


def _window(
    text: Mapping[str, Any], kind: ModelFamily, layers: int
) -> tuple[int | None, int]:
    """The sliding window, and the number of layers that have it."""
    window = first_number(text, ("sliding_window", "attention_chunk_size"))
    if not window or text.get("use_sliding_window") is False:
        return None, 0
    types = [str(each) for each in items(text, "layer_types")]
    if types:
        count = sum("sliding" in each or "chunked" in each for each in types[:layers])
    elif kind.full_layers is None:
        raise ShapeError("which of its layers have the window is not told: unknown")
    else:
        count = layers - kind.full_layers(text, layers)
    return (window, count) if count else (None, 0)


def _norms(text: Mapping[str, Any], kind: ModelFamily) -> int:
    """Norms per layer; Falcon shares one between parallel attention and FFN."""
    if text.get("use_post_norm"):
        return 2 * kind.norms
    if text.get("model_type") == "falcon" and text.get("parallel_attn", True):
        two = text.get("new_decoder_architecture")
        return 2 if two and text.get("num_ln_in_parallel_attn") != 1 else 1
    return kind.norms


def _positions(text: Mapping[str, Any], kind: ModelFamily) -> int:
    if not kind.positions:
        return 0
    return (first_number(text, POSITIONS) or 0) + kind.extra_positions


def _attention_bias(text: Mapping[str, Any]) -> bool:
    return any(_is_set(text, key) for key in ("attention_bias", "use_qkv_bias"))


def _output_bias(text: Mapping[str, Any], kind: ModelFamily) -> bool:
    if "attention_out_bias" in text:
        return _is_set(text, "attention_out_bias")
    return kind.output_bias and _is_set(text, "attention_bias")


def _name(config: Mapping[str, Any]) -> str | None:
    name = config.get("_name_or_path")
    return name if name and isinstance(name, str) else None


def _is_set(text: Mapping[str, Any], name: str) -> bool:
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
