"""Which model a plan is of: a preset, a file, a folder, or a shape given by flags."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from inferwatch.cli.options import flag_of
from inferwatch.errors import UsageError
from inferwatch.formatting import format_bytes
from inferwatch.limits.hf_config import ShapeError, UnknownFamilyError, shape_of
from inferwatch.limits.plan import GpuSetup
from inferwatch.limits.presets import ALSO_KNOWN_AS, PRESETS
from inferwatch.limits.shape import ModelShape

SAME_SIZE = 0.03
"""The relative difference allowed between stored and computed weights."""
MOST_CONFIG_BYTES = 64 << 20
SHAPE_FLAGS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "tied": "tie_word_embeddings",
    "experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "expert_ffn": "moe_intermediate_size",
    "window": "sliding_window",
}
NEEDED = ("layers", "hidden", "heads", "vocab")


ModelFiles = tuple[str, Mapping[str, Any], int | None]
"""The model's name, its configuration, and the bytes of its weights on disk."""


def config_of(given: Mapping[str, Any]) -> ModelFiles:
    shape_flags = {
        flag: given[flag] for flag in SHAPE_FLAGS if given[flag] not in {None, False}
    }
    model: str | None = given["model"]
    if model is not None and shape_flags:
        flags = ", ".join(map(flag_of, shape_flags))
        raise UsageError(
            f"{flags} describe a model without a file: leave them or --model out"
        )
    if model is not None:
        return find_model(model)
    inner = (
        ("expert_ffn", "experts_per_token") if "experts" in shape_flags else ("ffn",)
    )
    missing = [flag_of(flag) for flag in (*NEEDED, *inner) if flag not in shape_flags]
    if not shape_flags or missing:
        also = f"; {', '.join(missing)} missing" if shape_flags else ""
        raise UsageError(
            "say which model: a preset or a config.json, or its shape by --layers, "
            f"--hidden, --heads, --ffn and --vocab{also}"
        )
    return (
        "model",
        {SHAPE_FLAGS[flag]: value for flag, value in shape_flags.items()},
        None,
    )


def find_model(model: str, flag: str = "--model") -> ModelFiles:
    """Find a model: a preset, a file, a folder, or one in the Hugging Face cache."""
    key = ALSO_KNOWN_AS.get(model.lower(), model.lower())
    path = Path(model).expanduser()
    if key in PRESETS and not path.exists():
        return key, PRESETS[key], None
    for file in (path, path / "config.json", *_cached(model)):
        if file.is_file():
            name = path.name if path.exists() else model
            return name, _read(file), _stored(file.parent)
    if path.is_dir():
        raise UsageError(f"{model}: there is no config.json in this folder")
    near = get_close_matches(key, [*PRESETS, *ALSO_KNOWN_AS], 1, 0.5)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise UsageError(
        f"{flag} {model}: no such file or folder, not in the Hugging Face cache here, "
        f"and no preset.{hint} Presets are {', '.join(PRESETS)}. The config.json of a "
        "model is enough: its weights are not needed"
    )


def _cached(model: str) -> Iterator[Path]:
    """Yield the model's configurations in Hugging Face's cache, without a download."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        return
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    folder = hub / f"models--{model.replace('/', '--')}" / "snapshots"
    yield from sorted(folder.glob("*/config.json"))


def _stored(folder: Path) -> int | None:
    """Return the size of the weight files beside a configuration; None without any."""
    sizes = [each.stat().st_size for each in folder.glob("model*.safetensors")]
    return sum(sizes) or None


def odd_size(stored: int | None, computed: int, given: Mapping[str, Any]) -> str | None:
    """Return a warning if the weight files' size differs from the computed weights."""
    reshaped = given["dtype"] or given["quantization"] or given["weight_bits"]
    if stored is None or reshaped or abs(stored - computed) <= SAME_SIZE * computed:
        return None
    return (
        f"\nIts files hold {format_bytes(stored).strip()}, but its configuration makes "
        f"{format_bytes(computed).strip()} of weights. What a configuration does not "
        "tell is left\nout: towers for images, layers for speculation, missing files."
    )


def _read(file: Path) -> Mapping[str, Any]:
    try:
        if file.stat().st_size > MOST_CONFIG_BYTES:
            raise UsageError(f"{file} is too large to be a config.json")
        config = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UsageError(f"{file} is not a configuration of a model: not a JSON object")
    return config


def shape_with(
    config: Mapping[str, Any], given: Mapping[str, Any], method: str | None, kv: str
) -> ModelShape:
    bits = given["weight_bits"]
    try:
        shape = shape_of(
            config,
            dtype=given["dtype"],
            kv_dtype=kv,
            quantization="none" if bits else method,
        )
    except UnknownFamilyError as error:
        raise ShapeError(
            f"{error}; where it is built as Llama is, leave --model out and give its "
            "shape: --layers, --hidden, --heads, --kv-heads, --ffn and --vocab"
        ) from error
    if bits is not None:
        if method not in {None, "none"}:
            raise UsageError("--weight-bits and --quantization: give one of both")
        shape = replace(shape, weight_bits=bits)
    if not given["quantize_head"]:
        return shape
    if method is None and shape.weight_bits == shape.other_bits:
        raise UsageError("--quantize-head goes with --quantization or --weight-bits")
    return replace(shape, table_bits=shape.weight_bits)


def splittable(shape: ModelShape, machine: GpuSetup) -> ModelShape:
    """Return the shape if so many GPUs can share it."""
    if shape.experts is None and (machine.data_parallel > 1 or machine.expert_parallel):
        flag = "--ep" if machine.expert_parallel else f"--dp {machine.data_parallel}"
        raise UsageError(
            f"{flag}: this model has no experts to share; data parallel ranks of it "
            "are replicas: plan for one, with its share of the requests"
        )
    ways, stages = machine.tensor_parallel, machine.pipeline_parallel
    if stages > shape.layers:
        raise UsageError(f"--pp {stages}: the model has but {shape.layers} layers")
    if shape.heads % ways:
        can = [
            str(n) for n in range(1, min(shape.heads, 64) + 1) if not shape.heads % n
        ]
        raise UsageError(
            f"--tp {ways}: {shape.heads} attention heads cannot be shared evenly "
            f"among {ways} GPUs; {', '.join(can)} would do"
        )
    return shape
