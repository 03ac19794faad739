"""Counts of parameters: against what is published, and what a model is made of."""

from dataclasses import replace

import pytest

from inferwatch.limits.hf_config import shape_of
from inferwatch.limits.parameters import parameters, weight_bytes
from inferwatch.limits.presets import PRESETS

PUBLISHED = {
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-30b-a3b": 30_532_122_624,
    "mixtral-8x7b": 46_702_792_704,
    "gpt-oss-20b": 20_914_757_184,
    "deepseek-v3": 671_026_419_200,
}
"""Of the safetensors that their makers publish, without layers for speculation."""
ACTIVE = {
    "mixtral-8x7b": 12.9e9,
    "qwen3-30b-a3b": 3.3e9,
    "deepseek-v3": 37e9,
    "llama-3-8b": 8.03e9,
}


@pytest.mark.parametrize("name", PRESETS)
def test_totals_are_those_that_are_published(name: str) -> None:
    counted = parameters(shape_of(PRESETS[name])).total

    assert counted == pytest.approx(PUBLISHED[name], rel=0.0005)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_ones_are_those_that_are_published(name: str) -> None:
    counted = parameters(shape_of(PRESETS[name])).active

    assert counted == pytest.approx(ACTIVE[name], rel=0.02)


def test_openai_counts_active_ones_without_the_input_embedding() -> None:
    counted = parameters(shape_of(PRESETS["gpt-oss-20b"]))

    assert counted.active - counted.embedding == pytest.approx(3.61e9, rel=0.01)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("llama-3-8b", 16.06),
        ("qwen2.5-7b", 15.23),
        # 13.76 GB of safetensors: experts in MXFP4, the rest in BF16
        ("gpt-oss-20b", 13.76),
    ],
)
def test_weights_take_what_the_checkpoints_take(name: str, gigabytes: float) -> None:
    taken = weight_bytes(shape_of(PRESETS[name]))

    assert taken / 1e9 == pytest.approx(gigabytes, rel=0.005)


def test_a_tied_table_is_counted_once() -> None:
    tied = parameters(shape_of({**PRESETS["llama-3-8b"], "tie_word_embeddings": True}))
    untied = parameters(shape_of(PRESETS["llama-3-8b"]))

    assert untied.total - tied.total == 128_256 * 4096


def test_norms_of_heads_and_biases_of_experts_are_counted_to_the_last() -> None:
    qwen = shape_of(PRESETS["qwen3-30b-a3b"])
    oss = shape_of(PRESETS["gpt-oss-20b"])

    plain = parameters(replace(qwen, qk_norm=False))
    assert parameters(qwen).total - plain.total == 48 * 2 * 128
    assert oss.experts is not None
    bare = replace(oss, experts=replace(oss.experts, bias=False))
    biases = 24 * 32 * (2 * 2880 + 2880)
    assert parameters(oss).expert_biases == biases
    assert weight_bytes(oss) - weight_bytes(bare) == 2 * biases
