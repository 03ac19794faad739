"""Reads an engine's model configuration and settings off vLLM's configuration.

Read once, when the scheduler is created. Only plain values are reported, never names of
paths, tokens or people.
"""

import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import msgspec

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import EngineSettings, ModelConfig
from collectors.servers.local_model import plain_fields
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.vllm_names import AttributeReader, Vllm

Missing = Callable[[str], None]
Plain = str | int | float | bool | None

MOST_TEXT = 100


def model_config(scheduler: Vllm, rank: int, model: str, lacks: Missing) -> ModelConfig:
    """Configuration of the text model, also within a multimodal one."""
    reader = AttributeReader("Scheduler", names.MODEL_CONFIG, lacks)
    text, whole, dtype, kv_dtype, quantization = reader.read(scheduler)
    config = _fields(text)
    for name in ("quantization_config", "tie_word_embeddings"):
        if name not in config and (of_whole := _fields(whole).get(name)) is not None:
            config[name] = of_whole
    if _value_at(scheduler, names.UNTIED) is True:
        config["tie_word_embeddings"] = False
    computed = text_of(dtype)
    return ModelConfig(
        t_ns=monotonic_ns(),
        rank=rank,
        model=model,
        config=msgspec.json.encode(config).decode(),
        dtype=computed,
        kv_dtype=computed if kv_dtype == names.KV_AUTO else text_of(kv_dtype),
        quantization=text_of(quantization),
    )


def engine_settings(
    scheduler: Vllm, rank: int, lacks: Missing, in_use: Mapping[str, Plain]
) -> EngineSettings:
    """Settings by the names of vLLM's flags; those this vLLM lacks are left out.

    ``in_use`` are those that vLLM chose in its workers.
    """
    values = AttributeReader("Scheduler", names.SETTINGS, lacks).read(scheduler)
    settings = dict(zip(names.SETTING_PATHS, values, strict=True))
    for flag, paths in names.SOMETIMES_SET.items():
        for path in paths.split("|"):
            value = _value_at(scheduler, f"vllm_config.{path}")
            if value is not names.UNTOLD and settings.get(flag) is None:
                settings[flag] = value
    settings |= {flag: value for flag, value in in_use.items() if value is not None}
    return EngineSettings(
        t_ns=monotonic_ns(),
        rank=rank,
        settings={
            flag: plain(value)
            for flag, value in settings.items()
            if value is not names.UNTOLD
        },
    )


def plain(value: object) -> Plain:
    """A value that fits into a reading: enumerations and types become their names."""
    if value is None or (isinstance(value, bool | int) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return (text_of(value) or "")[:MOST_TEXT]


def text_of(value: object) -> str | None:
    """The bare name of a type, enumeration member or torch dtype."""
    if value is None:
        return None
    if isinstance(value, Enum) and not isinstance(value, str):
        return value.name
    if isinstance(value, Enum):
        return str(value.value)
    return getattr(value, "__name__", str(value)).removeprefix("torch.")


def _value_at(thing: Vllm, path: str) -> object:
    """The value at a dotted path; None if a part of the path is None."""
    for name in path.split("."):
        if thing is None:
            return None
        thing = getattr(thing, name, names.UNTOLD)
    return thing


def _fields(config: Vllm) -> dict[str, Any]:
    """Plain values of a transformers configuration."""
    if config is None:
        return {}
    try:
        fields = config.to_dict()
    except Exception:  # third-party code failed: fall back to its attributes
        fields = vars(config)
    return plain_fields(fields)
