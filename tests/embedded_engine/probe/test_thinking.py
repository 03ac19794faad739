"""Where an output's thinking ends, and of which tokens its end is made."""

from types import SimpleNamespace

import pytest

from embedded_engine.probe.tap.engine_tap import thinking_end, thinking_tokens


@pytest.mark.parametrize(
    ("output", "end", "expected"),
    [
        ([1, 2, 9, 4], [9], 3),
        ([9, 4], [9], 1),
        ([1, 9, 2, 9, 8, 3], [9, 8], 5),
        ([1, 2, 9], [9, 8], None),
        ([1, 2], [9], None),
        ([], [9], None),
    ],
    ids=["inside", "at once", "of two tokens", "cut", "never", "no output"],
)
def test_thinking_lasts_to_its_end(
    output: list[int], end: list[int], expected: int | None
) -> None:
    assert thinking_tokens(output, end) == expected


def test_the_natural_end_counts_before_the_forced_one() -> None:
    reasoning = SimpleNamespace(
        natural_reasoning_end_token_ids=[9], reasoning_end_token_ids=[7, 9]
    )
    scheduler = SimpleNamespace(vllm_config=SimpleNamespace(reasoning_config=reasoning))

    assert thinking_end(scheduler) == [9]
    reasoning.natural_reasoning_end_token_ids = None
    assert thinking_end(scheduler) == [7, 9]
    scheduler.vllm_config.reasoning_config = None
    assert thinking_end(scheduler) == []
