"""Engines of a model that is so loud that every token depends on all before it.

The demo's says nearly the same whatever it is asked. This one has the same shape.
"""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import platformdirs
from safetensors.numpy import load_file, save_file

from embedded_engine.config import EngineConfig, demo_config
from embedded_engine.launch import Engine
from embedded_engine.tiny_model import make
from tests.conftest import living_in


def make_loud(home: Path) -> Path:
    """A model whose next token depends on all before it."""
    cache = platformdirs.user_cache_path("inferwatch", appauthor=False)
    model = home / "model"
    shutil.copytree(make(cache), model)
    weights = load_file(model / "model.safetensors")
    draw = np.random.default_rng(1)
    for name, matrix in weights.items():
        if "norm" not in name:
            loud = 1.0 if "embed" in name else 0.06
            weights[name] = draw.normal(0, loud, matrix.shape).astype(np.float32)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    return model


@contextmanager
def running(home: Path, model: Path, *flags: str) -> Iterator[Engine]:
    """The demo's engine, of another model and with other flags; that is its home."""
    with living_in(home):
        config = config_of(model, *flags)
        engine = asyncio.run(Engine.start(config, lambda _: None))
    try:
        yield engine
    finally:
        with living_in(home):
            asyncio.run(engine.stop())


def config_of(model: Path, *flags: str) -> EngineConfig:
    """As the demo's, but for these flags."""
    config = demo_config()
    names = {each.partition("=")[0] for each in flags}
    kept = (each for each in config.flags if each.partition("=")[0] not in names)
    return replace(config, model=str(model), tiny_model_dir=None, flags=(*kept, *flags))
