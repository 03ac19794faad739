"""Steps: what they read and compute, and the least time that takes."""

from dataclasses import replace

import pytest

from inferwatch.limits.cache import kv_bytes_per_token
from inferwatch.limits.hf_config import shape_of
from inferwatch.limits.parameters import parameters, weight_bytes
from inferwatch.limits.presets import PRESETS
from inferwatch.limits.step import (
    StepCosts,
    StepSums,
    StepWork,
    binding,
    causal_pairs,
    floor_s,
)

LLAMA = shape_of(PRESETS["llama-3-8b"])
OSS = shape_of(PRESETS["gpt-oss-20b"])


@pytest.mark.parametrize("window", [None, 1, 3, 7, 100])
@pytest.mark.parametrize("tokens", [1, 5, 20])
@pytest.mark.parametrize("before", [0, 2, 7, 30])
def test_pairs_are_those_that_a_mask_leaves(
    tokens: int, before: int, window: int | None
) -> None:
    seen = [position + 1 for position in range(before, before + tokens)]

    assert causal_pairs(tokens, before, window) == sum(
        each if window is None else min(each, window) for each in seen
    )


def test_a_chunked_prompt_has_the_pairs_of_a_whole_one() -> None:
    chunks = [StepSums.prefilling(512, before) for before in range(0, 2048, 512)]

    assert sum(each.attention_pairs for each in chunks) == causal_pairs(2048, 0)


def test_an_input_table_that_is_not_tied_is_not_read_but_for_a_row_a_token() -> None:
    work = StepCosts.of(LLAMA).work(StepSums.decoding(1, 0))

    table = 128_256 * 4096 * 2
    kv_written = kv_bytes_per_token(LLAMA)
    assert work.bytes_read == pytest.approx(
        weight_bytes(LLAMA) - table + 4096 * 2 + kv_written
    )


def test_a_tied_table_is_read_once_as_the_head() -> None:
    tied = replace(LLAMA, tied=True)

    work = StepCosts.of(tied).work(StepSums.decoding(1, 0))

    row = 4096 * 2
    assert work.bytes_read == weight_bytes(tied) + row + kv_bytes_per_token(tied)


def test_each_token_of_context_is_read_and_each_new_one_written() -> None:
    costs = StepCosts.of(LLAMA)

    short, long = (costs.work(StepSums.decoding(8, n)) for n in (100, 1100))

    assert long.bytes_read - short.bytes_read == 8 * 1000 * 131_072
    assert long.flops - short.flops == 8 * 1000 * 4 * 32 * 4096


def test_a_chunk_is_seen_from_its_first_token_on() -> None:
    first, last, next_ = (
        StepSums.decoding(1, before, 8, chunked=True) for before in (0, 7, 8)
    )
    across = StepSums.prefilling(10, 6, 8, chunked=True)

    assert (first.window_context_tokens, first.window_pairs) == (0, 1)
    assert (last.window_context_tokens, last.window_pairs) == (7, 8)
    assert (next_.window_context_tokens, next_.window_pairs) == (0, 1)
    assert across.window_pairs == 7 + 8 + sum(range(1, 9))


def test_layers_with_a_window_read_and_compute_no_more_than_it() -> None:
    costs = StepCosts.of(OSS)

    inside = costs.work(StepSums.decoding(1, 100, OSS.window))
    beyond = costs.work(StepSums.decoding(1, 10_100, OSS.window))

    layer = 2 * 8 * 64 * 2
    assert beyond.bytes_read - inside.bytes_read == layer * 12 * (10_000 + 28)
    # of 128 that a query sees one is its own
    assert beyond.flops - inside.flops == 4 * 64 * 64 * 12 * (10_000 + 27)


def test_more_tokens_touch_more_experts_but_never_more_than_all() -> None:
    costs = StepCosts.of(OSS)

    assert costs.touched(1) == pytest.approx(4 / 32)
    assert costs.touched(32) == pytest.approx(1 - (1 - 4 / 32) ** 32)
    assert costs.touched(10_000) == pytest.approx(1)


def test_a_token_of_a_mixture_costs_its_active_parameters() -> None:
    costs = StepCosts.of(OSS)
    counted = parameters(OSS)

    work = costs.work(StepSums(1, 1, 0, 0))

    assert work.flops == 2 * (counted.linear_active + counted.head)


@pytest.mark.parametrize("ways", [2, 4, 8])
def test_shares_of_tensor_parallel_gpus_add_up(ways: int) -> None:
    sums = StepSums.decoding(16, 500)
    whole, share = (StepCosts.of(LLAMA, n).work(sums) for n in (1, ways))

    assert ways * share.bytes_read == pytest.approx(whole.bytes_read)
    assert ways * share.flops == pytest.approx(whole.flops)


def test_what_cannot_be_divided_is_on_several_gpus() -> None:
    few = replace(LLAMA, kv_heads=2)

    two, eight = (StepCosts.of(few, n) for n in (2, 8))

    assert eight.kv_full_bytes == two.kv_full_bytes


def test_a_step_without_logits_does_not_read_the_head() -> None:
    costs = StepCosts.of(LLAMA)

    without, with_ = (costs.work(StepSums(1, n, 0, 1)) for n in (0, 1))

    assert with_.bytes_read - without.bytes_read == 128_256 * 4096 * 2


def test_the_floor_is_the_larger_of_both_and_says_which() -> None:
    memory, compute = StepWork(100, 10), StepWork(10, 1000)

    assert floor_s(memory, 10, 10) == 10
    assert binding(memory, 10, 10) == "memory"
    assert floor_s(compute, 10, 10) == 100
    assert binding(compute, 10, 10) == "compute"


def test_one_known_peak_still_bounds_a_step_but_does_not_say_what_binds() -> None:
    work = StepWork(100, 10)

    assert floor_s(work, 10, None) == 10
    assert floor_s(work, None, 10) == 1
    assert floor_s(work, None, None) is None
    assert binding(work, 10, None) is None
