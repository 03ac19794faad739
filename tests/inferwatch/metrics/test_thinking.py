"""When the answer of a reasoning model began."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_fields

from collectors.contract.readings import EventKind, RequestEvent
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.story.story import RequestStory

See = Callable[..., Snapshot]
Make = Callable[..., Any]
MS = 1_000_000


def test_thinking_is_learnt_when_a_request_ends(see: See, make_life: Make) -> None:
    front, engine = make_life(0, ordinal=0, tokens=6)
    told = [
        replace_fields(each, thinking_tokens=4)
        if isinstance(each, RequestEvent) and each.kind is EventKind.FINISHED
        else each
        for each in engine
    ]

    (row,) = see([*front, *told]).requests
    (plain,) = see([*front, *engine]).requests

    assert (row.thinking_tokens, plain.thinking_tokens) == (4, None)


@pytest.mark.parametrize(
    ("thinking", "times", "expected"),
    [
        (2, (10, 20, 30), 0.03),
        (3, (10, 20, 30), None),
        (None, (10, 20, 30), None),
        (1, (10, 20), None),
    ],
    ids=["after two", "no answer", "not told", "several tokens a step"],
)
def test_the_answer_begins_with_the_token_after_the_thinking(
    see: See,
    make_life: Make,
    thinking: int | None,
    times: tuple[int, ...],
    expected: float | None,
) -> None:
    front, engine = make_life(0, ordinal=0, tokens=3)
    (row,) = see([*front, *engine]).requests
    row = replace(row, arrived_ns=0, thinking_tokens=thinking)

    story = RequestStory(row=row, end_ns=1, token_ns=tuple(t * MS for t in times))

    assert story.answer_after_s == expected
