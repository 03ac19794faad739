"""A model that is so loud that every token depends on all before it.

The demo's says nearly the same whatever it is asked. This one has the same shape.
"""

import shutil
from pathlib import Path

import numpy as np
import platformdirs
from safetensors.numpy import load_file, save_file

from embedded_engine.tiny_model import make


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
