"""Floors of classes follow from a step's annotation as those of steps do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferwatch.limits.hf_config import shape_of
from inferwatch.limits.presets import PRESETS
from inferwatch.limits.step import StepCosts, StepSums
from inferwatch.profiles.floors import StepShape, class_floors, step_shape
from inferwatch.profiles.report import ClassCosts, KernelClass

Requests = list[tuple[int, int]]
"""Tokens scheduled and tokens computed before."""
REQUESTS = st.lists(st.tuples(st.integers(1, 900), st.integers(0, 9_000)), max_size=9)


def annotation(prefill: Requests, decode: Requests) -> str:
    """As ``gpu_worker.py`` writes it."""

    def part(requests: Requests) -> str:
        new = sum(q for q, _ in requests)
        length = sum(q + before for q, before in requests)
        squares = sum(q * q for q, _ in requests)
        products = sum(q * (q + before) for q, before in requests)
        return f"{len(requests)}(sq{new}sk{length}sqsq{squares}sqsk{products})"

    total = sum(q for q, _ in (*prefill, *decode))
    return f"execute_{total}_context_{part(prefill)}_generation_{part(decode)}"


@given(prefill=REQUESTS, decode=REQUESTS)
def test_an_annotation_tells_the_sums_of_a_step(
    prefill: Requests, decode: Requests
) -> None:
    sums = StepSums.of_requests([*prefill, *decode])

    shape = step_shape(annotation(prefill, decode))

    assert shape is not None
    assert shape.tokens == sums.tokens
    assert shape.requests == sums.sequences
    assert shape.pairs == sums.attention_pairs
    assert shape.read_tokens == sums.tokens + sums.context_tokens


def test_numbers_that_no_engine_has_are_not_read() -> None:
    assert step_shape(f"execute_context_0(0)_generation_4({'9' * 5000})") is None


def test_the_plain_form_tells_no_context() -> None:
    assert step_shape("execute_context_1(39)_generation_5(5)") == StepShape(1, 39, 5, 5)
    assert step_shape("gpu_model_runner: forward") is None
    assert step_shape("execute_context_1(39)_generation_5(5) and more") is None


def costs(**changes: float) -> ClassCosts:
    plain = {
        "linear_bytes": 1_000.0,
        "expert_bytes": 0.0,
        "untouched": 1.0,
        "kv_token_bytes": 2.0,
        "linear_flops": 10.0,
        "expert_flops": 0.0,
        "sequence_flops": 5.0,
        "pair_flops": 3.0,
        "ns_per_byte": 1.0,
        "ns_per_flop": 0.01,
    }
    return ClassCosts(**{**plain, **changes})


SHAPE = StepShape(0, 0, 4, 4, read_tokens=400, pairs=400.0)


def test_few_tokens_are_bound_by_memory_and_many_by_compute() -> None:
    few = class_floors(SHAPE, costs())
    many = class_floors(StepShape(1, 20_000, 0, 0, 20_000, 9.0), costs())

    assert few == {KernelClass.GEMM: 1_000, KernelClass.ATTENTION: 800}
    assert many[KernelClass.GEMM] == pytest.approx((200_000 + 5) * 0.01)


def test_experts_have_a_floor_of_those_that_are_used() -> None:
    one = class_floors(SHAPE, costs(expert_bytes=100.0, untouched=0.5))

    assert one[KernelClass.MOE] == pytest.approx(100 * (1 - 0.5**4))


@pytest.mark.parametrize(
    ("shape", "given"),
    [
        (SHAPE, None),
        (SHAPE, costs(ns_per_byte=0.0, ns_per_flop=0.0)),
    ],
)
def test_without_a_model_or_a_peak_there_is_no_floor(
    shape: StepShape, given: ClassCosts | None
) -> None:
    assert class_floors(shape, given) == {}


def test_without_the_context_attention_has_no_floor() -> None:
    assert set(class_floors(StepShape(0, 0, 4, 4), costs())) == {KernelClass.GEMM}


def test_classes_together_are_the_work_of_the_step() -> None:
    shape = shape_of(PRESETS["llama-3-8b"])
    whole = StepCosts.of(shape)
    requests = [(1, 700), (1, 90), (64, 128)]
    sums = StepSums.of_requests(requests)
    told = step_shape(annotation(requests[2:], requests[:2]))
    assert told is not None
    given = costs(
        linear_bytes=whole.weight_bytes + whole.head_bytes,
        kv_token_bytes=whole.kv_full_bytes,
        ns_per_flop=0.0,
    )

    floors = class_floors(told, given)

    rows = sums.tokens * whole.row_bytes  # of the embedding: neither GEMM nor attention
    assert sum(floors.values()) == pytest.approx(whole.work(sums).bytes_read - rows)
