"""Reads a model's configuration from its directory on this host."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from collectors.contract.plain_file import read_plain
from collectors.contract.readings import ModelConfig
from collectors.servers.plain_config import plain_fields

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
