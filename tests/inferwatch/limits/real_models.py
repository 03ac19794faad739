"""Models of transformers, without weights: a program that prints what they are made of.

Reads the name of a family from a line; prints an object: ``cases``, each a name, a
configuration, its parameters, and of each layer what it keeps of a token and how many
tokens. With ``changes`` as an argument there is a case for each of its keys left out
and changed, as far as that makes a model. ``families`` instead of a name are all names.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

LAYERS = 8
"""Enough for every pattern of windows."""
SEEN = {
    "rope_type": "default",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.5,
    "mrope_section": [8, 12, 12],
}
NEEDED: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6, "moe_intermediate_size": 1408},
    "dots1": {"num_experts_per_tok": 6, "n_routed_experts": 8, "n_shared_experts": 2},
    "glm4v_moe_text": {"num_attention_heads": 32, "rope_parameters": SEEN},
    "glm4v_text": {"rope_parameters": SEEN},
    "hunyuan_v1_dense": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "qwen3_omni_moe_text": {"num_attention_heads": 32},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
}
"""Without these nothing can be made of the defaults of a family."""
CLASSES = {"qwen3_omni_moe_text": "Qwen3OmniMoeThinkerTextModel"}
"""Of families of which no automatic class makes the part that speaks."""
TOWERS = "embed_tokens_extend"
"""Its parameters see and hear."""
SIZES = {
    *(
        "num_hidden_layers",
        "n_layer",
        "num_layers",
        "hidden_size",
        "n_embd",
        "vocab_size",
    ),
    *("num_attention_heads", "n_head", "intermediate_size", "ffn_dim", "n_inner"),
    *("num_experts_per_tok", "moe_topk", "moe_k", "head_dim"),
}
"""Keys that a model cannot do without, or is refused."""
NO_SIZES = ("token", "dropout", "_id", "num_hidden_layers", "n_layer")

Told = dict[str, Any]
Case = tuple[str, Told, int, list[tuple[int, int | None]]]


def main() -> None:
    transformers.logging.set_verbosity_error()
    asked = sys.stdin.readline().strip()
    if asked == "families":
        print(json.dumps({"families": list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)}))  # noqa: T201
        return
    told = list(cases(asked, changes="changes" in sys.argv))
    print(json.dumps({"cases": told}, default=str), flush=True)  # noqa: T201


def cases(family: str, *, changes: bool) -> Iterator[Case]:
    small = next(
        {**NEEDED.get(family, {}), name: LAYERS}
        for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
        if hasattr(configured(family, NEEDED.get(family, {})), name)
    )
    held = plain(configured(family, small))
    told = without_derived(family, held)
    yield ("as it is held", *measured(family, held))
    written = measured(family, told)
    yield ("as it is written", *written)
    if not changes:
        return
    for name, changed in changed_ones(told, held):
        try:
            same = plain(configured(family, changed)) == held
            made = written if same else measured(family, changed)
        except Exception:  # noqa: BLE001, S112 - no such model can be
            continue
        yield (name, {"model_type": family, **changed}, *made[1:])


def changed_ones(told: Told, held: Told) -> Iterator[tuple[str, Told]]:
    """The same with a key less, or with another value; or with sizes alone."""
    yield "sizes alone", {key: told[key] for key in told if key in SIZES}
    if "use_sliding_window" in told:
        windows = {"sliding_window": 64, "use_sliding_window": True}
        unused = told | {"sliding_window": 64}
        del unused["use_sliding_window"]
        yield "a window that nothing uses", unused
        yield "windows", told | windows
        yield "some windows", told | windows | {"max_window_layers": 2}
    for key in told:
        rest = {name: each for name, each in told.items() if name != key}
        yield f"without {key}", rest
    for key, value in (told | held).items():
        if not any(name in key for name in NO_SIZES):
            for other in others(value):
                yield f"{key} = {other}"[:60], told | {key: other}


def configured(family: str, told: Told) -> Any:
    named = {key: each for key, each in told.items() if key != "model_type"}
    return transformers.AutoConfig.for_model(family, **named)


def plain(config: Any) -> Told:
    """As JSON, without what all models have."""
    common = set(transformers.PretrainedConfig().to_dict()) - {"is_encoder_decoder"}
    told = json.loads(json.dumps(config.to_dict(), default=str))
    return {key: each for key, each in told.items() if key not in common}


def without_derived(family: str, held: Told) -> Told:
    """Without lists that follow from other keys: files of models often lack them."""
    told = held
    for key in [key for key, each in held.items() if isinstance(each, list)]:
        rest = {name: each for name, each in told.items() if name != key}
        try:
            same = plain(configured(family, rest)) == held
        except Exception:  # noqa: BLE001 - it is needed
            same = False
        told = rest if same else told
    return told


def others(value: object) -> list[object]:
    """Values that might be there instead."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value // 2, value * 2] if value > 1 else [2, 256]
    if value is None:
        return [2, 64, 256]
    if value == []:
        return [[0, 1]]
    if isinstance(value, list) and "_attention" in str(value[0]):
        return [[each] * len(value) for each in (value[0], value[-1])]
    return []


def measured(family: str, told: Told) -> tuple[Told, int, list[tuple[int, int | None]]]:
    config = configured(family, told)
    with torch.device("meta"):
        try:
            make = transformers.AutoModelForCausalLM.from_config
            model = make(config, dtype=torch.bfloat16)
        except ValueError:  # the text model of one that sees
            model = text_model(family, config)
    told_of = (each for name, each in model.named_parameters() if TOWERS not in name)
    count = sum(each.numel() for each in told_of)
    return {"model_type": family, **told}, count, caches(model, config)


def text_model(family: str, config: Any) -> Any:
    if family not in CLASSES:
        return transformers.AutoModel.from_config(config, dtype=torch.bfloat16)
    made = getattr(transformers, CLASSES[family])
    return made._from_config(config, dtype=torch.bfloat16)


def caches(model: Any, config: Any) -> list[tuple[int, int | None]]:
    """Of each layer: numbers that it keeps of a token, and how far it looks back."""
    cache = transformers.DynamicCache(config=config)
    tokens = torch.zeros((1, 3), dtype=torch.long, device="meta")
    model(input_ids=tokens, past_key_values=cache, use_cache=True)
    rank = getattr(config, "kv_lora_rank", None)  # vLLM keeps the latent vectors
    latent = rank + config.qk_rope_head_dim if rank else None
    return [
        (latent or width(layer.keys) + width(layer.values), window_of(layer))
        for layer in cache.layers
    ]


def width(kept: Any) -> int:
    """Heads times their size."""
    return int(kept.shape[1] * kept.shape[3])


def window_of(layer: Any) -> int | None:
    return getattr(layer, "sliding_window", None)


if __name__ == "__main__":
    main()
