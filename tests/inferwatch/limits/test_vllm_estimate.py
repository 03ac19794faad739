"""Against vLLM's own estimate of a step (``--enable-mfu-metrics``), piece by piece."""

import warnings
from typing import Any

import pytest

from inferwatch.limits.hf_config import shape_of
from inferwatch.limits.presets import PRESETS
from inferwatch.limits.shape import ModelShape
from inferwatch.limits.step import StepCosts, StepSums

pytestmark = [
    *(pytest.mark.process, pytest.mark.soak),
    pytest.mark.xdist_group("vLLM estimate"),
]
"""Importing vLLM asks programs of the host for its processor."""
STEPS: dict[str, list[tuple[int, int]]] = {
    "one token": [(1, 1000)],
    "many tokens": [(1, 1000)] * 64,
    "short contexts": [(1, 30)] * 256,
    "a prompt": [(2048, 0)],
    "a chunk beside tokens": [(512, 1024), *([(1, 800)] * 32)],
}
DENSE = ("llama-3-8b", "llama-3-70b", "qwen2.5-7b")


@pytest.fixture(scope="module")
def perf() -> Any:
    """Of vLLM, where it is installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("vllm.v1.metrics.perf")


def components(perf: Any, shape: ModelShape) -> list[Any]:
    """As vLLM makes them of its configuration."""
    told = {
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "vocab_size": shape.vocab,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn,
        "num_moe_layers": 0,
        **dict.fromkeys(("activation_byte_size", "weight_byte_size"), 2),
        **dict.fromkeys(("tp_size", "pp_size", "ffn_tp_size", "ffn_ep_size"), 1),
        "cache_byte_size": 2,
    }
    return [
        kind.model_validate(told)
        for kind in (perf.AttentionMetrics, perf.FfnMetrics, perf.UnembedMetrics)
    ]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", DENSE)
def test_work_and_activations_are_what_vllm_estimates(
    name: str, step: str, perf: Any
) -> None:
    shape = shape_of(PRESETS[name])
    context = perf.ExecutionContext()
    for tokens, before in STEPS[step]:
        context.add(tokens, tokens + before, is_prefill=tokens > 1)
    told = components(perf, shape)
    flops = sum(each.get_num_flops(context) for each in told)
    moved = sum(
        each.get_read_bytes(context) + each.get_write_bytes(context) for each in told
    )
    sums = StepSums.of_requests(STEPS[step])
    costs = StepCosts.of(shape)
    work = costs.work(sums)

    # of prompts vLLM counts the masked half of attention, too
    masked = sum(n * (n + before) for n, before in STEPS[step]) - sums.attention_pairs
    assert work.flops + costs.pair_flops * masked == pytest.approx(flops, rel=1e-6)
    assert work.flops == pytest.approx(flops, rel=0.05)
    assert work.bytes_read + costs.activation_bytes(sums) == pytest.approx(
        moved, rel=0.01
    )
    assert work.bytes_read < moved * 1.0001


def test_a_step_that_only_decodes_differs_by_its_activations_alone(perf: Any) -> None:
    shape = shape_of(PRESETS["llama-3-8b"])
    context = perf.ExecutionContext()
    for _ in range(64):
        context.add(1, 1001, is_prefill=False)
    moved = sum(
        each.get_read_bytes(context) + each.get_write_bytes(context)
        for each in components(perf, shape)
    )

    work = StepCosts.of(shape).work(StepSums.decoding(64, 1000))

    # a two-thousandth a request
    assert work.bytes_read == pytest.approx(moved, rel=64 / 2000)
