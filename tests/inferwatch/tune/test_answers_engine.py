"""Answers compared on real vLLM: the same settings answer alike, another dtype not.

The demo's model will not do: it says nearly the same whatever it is asked. This one has
the same shape, and weights so loud that every token depends on all before it.
"""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import platformdirs
import pytest
from safetensors.numpy import load_file, save_file

from collectors.readings import AnswerHashes
from embedded_engine.config import EngineConfig, demo_config
from embedded_engine.launch import Engine
from embedded_engine.tiny_model import make
from inferwatch.loadgen.target_server import TargetServer
from inferwatch.tune.running.answers import (
    ANSWER_TOKENS,
    answer_prompts,
    ask_answers,
    compare_answers,
)
from tests.conftest import living_in

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
PROMPTS = 16


@pytest.fixture(scope="module")
def loud_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose next token depends on all before it."""
    cache = platformdirs.user_cache_path("inferwatch", appauthor=False)
    model = tmp_path_factory.mktemp("loud") / "model"
    shutil.copytree(make(cache), model)
    weights = load_file(model / "model.safetensors")
    draw = np.random.default_rng(1)
    for name, matrix in weights.items():
        if "norm" not in name:
            loud = 1.0 if "embed" in name else 0.06
            weights[name] = draw.normal(0, loud, matrix.shape).astype(np.float32)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    return model


def config_of(model: Path, *flags: str) -> EngineConfig:
    """The demo's engine, of another model and with other flags."""
    config = demo_config()
    names = {each.partition("=")[0] for each in flags}
    kept = (each for each in config.flags if each.partition("=")[0] not in names)
    return replace(config, model=str(model), tiny_model_dir=None, flags=(*kept, *flags))


@contextmanager
def running(home: Path, config: EngineConfig) -> Iterator[Engine]:
    with living_in(home):
        engine = asyncio.run(Engine.start(config, lambda _: None))
        try:
            yield engine
        finally:
            asyncio.run(engine.stop())


def asked(engine: Engine) -> AnswerHashes:
    target = TargetServer(url=str(engine.url))
    prompts = answer_prompts(PROMPTS)
    return asyncio.run(ask_answers(target, engine.endpoint.model, prompts))


def test_the_same_settings_answer_alike_and_another_dtype_does_not(
    loud_model: Path, tmp_path: Path
) -> None:
    with running(tmp_path, config_of(loud_model, "--dtype=bfloat16")) as engine:
        first, again = asked(engine), asked(engine)
    with running(tmp_path, config_of(loud_model, "--dtype=float32")) as engine:
        wide = asked(engine)

    assert first.by_tokens
    assert [len(each) for each in first.alone] == [ANSWER_TOKENS] * PROMPTS
    assert len({each[-1] for each in first.alone}) == PROMPTS  # no two alike
    same = compare_answers([first], again)
    assert same is not None
    assert same.against.differ == 0
    assert same.sentence.startswith(f"100% of {PROMPTS * ANSWER_TOKENS} tokens equal; ")
    other = compare_answers([first, again], wide)
    assert other is not None
    print(same.sentence, "|", other.sentence)  # noqa: T201 - shown when it fails
    assert other.against.differ > 0
    assert other.against.first is not None
