"""Reads a model's configuration from its directory on this host."""

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from collectors.contract.plain_file import read_plain
from collectors.contract.readings import ModelConfig

# Filters a model's configuration down to plain, non-private values.
#
# Fields that may name paths, tokens or people are dropped: a configuration is foreign
# text.

MOST_TEXT, MOST_ITEMS, DEEPEST = 100, 512, 6
"""Longer texts or lists and deeper nesting do not describe a model's shape."""
PRIVATE = ("token", "path", "label", "auth", "prompt")
"""Fields whose name contains one of these words are dropped."""
NOTHING = ...
"""Stands for a dropped value."""


def plain_fields(fields: Mapping[Any, Any], depth: int = DEEPEST) -> dict[str, Any]:
    """The fields without private names and values that are not plain, at any depth."""
    plain = {}
    for name, value in fields.items():
        if not isinstance(name, str) or name.startswith("_"):
            continue
        if any(word in name.lower() for word in PRIVATE):
            continue
        tree = _plain_tree(value, depth)
        if tree is not NOTHING:
            plain[name] = tree
    return plain


def _plain_tree(value: object, depth: int) -> object:
    if isinstance(value, Mapping):
        return plain_fields(value, depth - 1) if depth else NOTHING
    if isinstance(value, list | tuple):
        if len(value) > MOST_ITEMS or not depth:
            return NOTHING
        items = [_plain_tree(each, depth - 1) for each in value]
        return NOTHING if NOTHING in items else items
    return _plain_value(value)


def _plain_value(value: object) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else NOTHING
    text = str(value)
    if not isinstance(value, str) and not text.startswith("torch."):
        return NOTHING
    is_place = "/" in text or "\\" in text
    too_long = len(text) > MOST_TEXT
    return NOTHING if is_place or too_long else text.removeprefix("torch.")


CONFIG = "config.json"
MOST_BYTES = 1_000_000
AUTO = "auto"


def local_config(
    root: str, *, t_ns: int, source: str, kv_dtype: str | None
) -> ModelConfig | None:
    """Configuration of the model directory that a local server reports.

    None if there is no such directory. The name comes from the server and is not
    trusted; only plain values of config.json are kept. Blocks on disk reads.
    """
    path = Path(root) / CONFIG
    if not path.is_absolute():
        return None
    fields: dict[str, Any] = {}
    with suppress(OSError, ValueError, RecursionError, msgspec.MsgspecError):
        fields = msgspec.json.decode(read_plain(path, MOST_BYTES), type=dict[str, Any])
    if not fields:
        return None
    of_text = fields.get("text_config")
    text = of_text if isinstance(of_text, dict) else {}
    config = plain_fields(fields | text)
    config.pop("text_config", None)
    dtype = config.get("dtype", config.get("torch_dtype"))
    quantized = config.get("quantization_config")
    method = quantized.get("quant_method") if isinstance(quantized, dict) else None
    computed = dtype if isinstance(dtype, str) else None
    return ModelConfig(
        t_ns=t_ns,
        source=source,
        model=Path(root).name,
        config=msgspec.json.encode(config).decode(),
        dtype=computed,
        kv_dtype=computed if kv_dtype in {None, AUTO} else kv_dtype,
        quantization=method if isinstance(method, str) else None,
    )
