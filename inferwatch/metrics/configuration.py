"""The configuration of a server, as tags that find sessions with an equal one."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import msgspec

from inferwatch.metrics.snapshot import Snapshot

OF_ENGINE = (
    "dtype",
    "kv_block_tokens",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "tensor_parallel",
    "pipeline_parallel",
    "data_parallel",
    "executor",
    "prefix_caching",
    "async_scheduling",
)
"""Fields that the probe reports; the pool's size differs at each start."""
ENGINE_SETTINGS = (
    "kv_cache_dtype",
    "attention_backend",
    "cudagraph_mode",
    "compilation_mode",
    "kv_connector",
)
"""By vLLM's flags, as in use; only a probe tells them."""
OF_SETTINGS = (
    *ENGINE_SETTINGS,
    "quantization",
    "enforce_eager",
    "speculative_method",
    "num_speculative_tokens",
)
"""Settings that the probe reports by vLLM's flags."""
PASSING = (
    "clock",
    "is_sleeping",
    "kv_cache_max_concurrency",
    "kv_cache_size_tokens",
    "max_total_num_tokens",
)
"""Fields that a server reports but that need not be equal after a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Model, program, hardware and settings, as far as they are known."""

    model: str
    version: str | None = None
    """Of the serving program."""
    gpus: tuple[str, ...] = ()
    """Their names; empty without GPUs, or where they are not known."""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def exact_tag(self) -> str:
        """A tag of sessions that is equal for equal configurations."""
        facts = [self.model, self.version, self.gpus, sorted(self.settings.items())]
        return f"config:{_short(facts)}"

    @property
    def model_tag(self) -> str:
        """A tag of sessions that is equal for equal models."""
        return f"model:{_short(self.model)}"


def configuration_of(now: Snapshot, asked: str | None = None) -> Configuration | None:
    """Return the configuration of the watched server.

    None for several servers, or where no model is known. ``asked`` is the model to use
    of a server that has several.
    """
    if now.engines:
        engine = now.engines[0]
        if any(each.model != engine.model for each in now.engines):
            return None
        names = {each.source: each.info.name for each in now.gpus}
        gpus = [names.get(uuid) for each in now.engines for uuid in each.gpus]
        reported = {name: getattr(engine, name) for name in OF_ENGINE}
        reported |= {name: now.settings.get(name) for name in OF_SETTINGS}
        return Configuration(
            model=engine.model,
            version=engine.vllm_version,
            gpus=tuple(sorted(name for name in gpus if name)),
            settings={
                name: each for name, each in reported.items() if each is not None
            },
        )
    info = now.server.info if now.server else None
    if info is None or not info.models:
        return None
    settings: dict[str, Any] = {
        name: each for name, each in info.settings.items() if name not in PASSING
    }
    if info.max_model_len is not None:
        settings["max_model_len"] = info.max_model_len
    if now.speculation is not None:  # which a server tells by its counters alone
        settings["speculation"] = True
    return Configuration(
        model=asked or info.models[0], version=info.version, settings=settings
    )


def _short(content: object) -> str:
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:12]
