"""Families of models, against what transformers makes of their configurations.

Every key of each is left out and changed: what is made of it then is counted right, or
refused.
"""

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from inferwatch.limits.cache import kv_bytes_per_layer
from inferwatch.limits.families import FAMILIES
from inferwatch.limits.hf_config import ShapeError, shape_of
from inferwatch.limits.parameters import parameters
from tests.embedded_engine.loaded_vllm import loaded_vllm

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("loaded vLLM")]
"""transformers comes with vLLM."""

PROGRAM = "tests.inferwatch.limits.real_models"
FEW = ["gemma3_text", "granitemoeshared", "llama4_text", "qwen3_moe"]
ELSEWHERE = {
    *("bailing_moe", "deepseek", "internlm3", "orion", "phi3_v", "phi4mm"),
    *("exaone", "internlm2", "kimi_k2", "mimo", "transformer"),
    *("gemma3", "qwen2_5_omni_text", "qwen2_5_vl", "qwen2_vl"),
}
"""Names by which transformers makes no model of text."""
SEEING = {
    *("glm4v_text", "glm4v_moe_text", "qwen2_vl_text", "qwen2_5_vl_text"),
    *("qwen3_omni_moe_text", "qwen3_vl_text", "qwen3_vl_moe_text"),
}
"""Made without a head, which is of the whole model."""
EXACT = 2e-6
"""Of parameters: sinks of attention and biases of routers are not counted."""


def told(tmp_path: Path, asked: str, *arguments: str) -> dict[str, Any]:
    with closing(loaded_vllm().run(tmp_path / "log", PROGRAM, *arguments)) as program:
        program.go_on(asked)
        return asyncio.run(program.told())


def wrong(case: list[Any]) -> str | None:
    """What is counted otherwise than it is; nothing where it is refused."""
    name, config, count, layers = case
    try:
        shape = shape_of(config)
    except ShapeError:
        return None
    counted = parameters(shape)
    total = counted.total - (counted.head if config["model_type"] in SEEING else 0)
    if total != pytest.approx(count, rel=EXACT):
        return f"{name}: {total:,} parameters for {count:,}"
    kept = [each for each, _ in layers]
    windows = [window for _, window in layers if window is not None]
    if {8 * kv_bytes_per_layer(shape) / shape.kv_bits} != set(kept):
        return f"{name}: caches of {kept}"
    if windows != [shape.window] * shape.window_layers:
        return f"{name}: {shape.window_layers} × {shape.window} for {windows}"
    return None


@pytest.mark.parametrize("family", FEW)
def test_what_is_counted_is_what_transformers_makes(
    family: str, tmp_path: Path
) -> None:
    cases = told(tmp_path, family)["cases"]

    assert [wrong(each) for each in cases] == [None, None]
    assert shape_of(cases[0][1]).layers == shape_of(cases[1][1]).layers


@pytest.mark.soak
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - ELSEWHERE))
def test_each_key_of_a_configuration_is_counted_or_refused(
    family: str, tmp_path: Path
) -> None:
    cases = told(tmp_path, family, "changes")["cases"]

    assert [said for each in cases if (said := wrong(each))] == []
    for _, config, *_ in cases[:2]:
        shape_of(config)
    assert len(cases) > 20


@pytest.mark.soak
def test_families_that_are_not_known_are_refused_by_name(tmp_path: Path) -> None:
    strangers = set(told(tmp_path, "families")["families"]) - FAMILIES.keys()

    assert len(strangers) > 50
    for family in strangers:
        sizes = {"num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100}
        with pytest.raises(ShapeError, match=family):
            shape_of({"model_type": family, "num_attention_heads": 4, **sizes})
