"""What is told of steps and requests, where the CPU engine cannot show it."""

from types import SimpleNamespace
from typing import Any

import pytest

from collectors.contract.readings import (
    AnyReading,
    EventKind,
    RequestEvent,
    Step,
)
from embedded_engine.probe.tap import step_assembler as ordinals
from embedded_engine.probe.tap.step_assembler import RequestOrdinals, StepAssembler

ASKED = (10, 20, 0.5, 0.9)


@pytest.fixture
def standing() -> dict[str, AnyReading]:
    return {}


@pytest.fixture
def story(standing: dict[str, AnyReading]) -> StepAssembler:
    def let_go(key: str) -> None:
        standing.pop(key, None)

    return StepAssembler(2, 100, standing.__setitem__, let_go, print)


def begin(story: StepAssembler, members: dict[str, int], start_ns: int) -> object:
    """A step of decode begins; returns what stands for vLLM's output."""
    output = object()
    tokens, runs = sum(members.values()), len(members)
    story.under_way.append(
        (output, members, start_ns, tokens, runs, ordinals.ONLY_DECODE)
    )
    return output


def came(tokens: dict[str, int], **stats: Any) -> SimpleNamespace:
    outputs = [
        SimpleNamespace(request_id=name, new_token_ids=[1] * count)
        for name, count in tokens.items()
    ]
    return SimpleNamespace(
        outputs=outputs, scheduler_stats=SimpleNamespace(**stats) if stats else None
    )


def end(
    story: StepAssembler, output: object, end_ns: int, tokens: dict[str, int]
) -> list[AnyReading]:
    return story.end(output, {0: came(tokens)}, end_ns - 1, end_ns, (40, 70))


def test_overlapping_steps_pair_first_in_first_out(story: StepAssembler) -> None:
    for name in ("a", "b"):
        story.added(1, name, ASKED)
    first = begin(story, {"a": 1}, 100)
    second = begin(story, {"a": 1, "b": 1}, 150)

    (one,) = end(story, first, 200, {"a": 1})
    (two,) = end(story, second, 230, {"a": 1, "b": 1})

    assert isinstance(one, Step)
    assert isinstance(two, Step)
    assert (one.index, one.duration_ns, len(one.members)) == (0, 100, 1)
    assert (two.index, two.start_ns, two.duration_ns) == (1, 150, 30)
    assert two.members == [2 << 40, (2 << 40) + 1]


def test_a_step_that_never_ended_is_forgotten(story: StepAssembler) -> None:
    begin(story, {"a": 1}, 100)
    second = begin(story, {"a": 1}, 150)

    (step,) = end(story, second, 200, {"a": 1})

    assert isinstance(step, Step)
    assert step.start_ns == 150


def test_an_end_without_a_beginning_is_no_step(story: StepAssembler) -> None:
    assert end(story, object(), 200, {}) == []


def test_who_finished_under_way_is_told_after_the_step(story: StepAssembler) -> None:
    output = begin(story, {"a": 1, "b": 1}, 100)
    story.freed(150, "b", "abort", (3, 0, None))
    story.freed(199, "a", "length", (7, 1, 5))

    step, gone, done = end(story, output, 200, {"a": 1})

    assert isinstance(step, Step)
    assert isinstance(gone, RequestEvent)
    assert isinstance(done, RequestEvent)
    assert (step.produced, step.kv_used_blocks) == ([1, 0], 60)
    assert (step.kv_cached_blocks, step.kv_free_blocks) == (40, 0)
    assert (gone.t_ns, gone.reason, gone.output_tokens) == (150, "abort", 3)
    assert (done.t_ns, done.reason, done.preemptions) == (200, "length", 1)
    assert [gone.ordinal, done.ordinal] == [step.members[1], step.members[0]]


def test_tokens_of_several_front_ends_go_to_their_members(story: StepAssembler) -> None:
    output = begin(story, {"a": 1, "b": 2, "c": 1}, 100)

    outputs = {1: came({"b": 2}), 0: came({"a": 1})}
    (step,) = story.end(output, outputs, 199, 200, (None, None))

    assert isinstance(step, Step)
    assert step.produced == [1, 2, 0]
    assert (step.kv_used_blocks, step.prefix_queries) == (None, None)


def test_graphs_and_drafts_are_told_where_there_are_any(story: StepAssembler) -> None:
    output = begin(story, {"a": 4}, 100)
    part = came(
        {"a": 3},
        prefix_cache_stats=SimpleNamespace(queries=5, hits=2),
        cudagraph_stats=SimpleNamespace(num_paddings=4, runtime_mode="FULL"),
        spec_decoding_stats=SimpleNamespace(
            num_drafts=1,
            num_draft_tokens=3,
            num_accepted_tokens=2,
            num_accepted_tokens_per_pos=[1, 1, 0],
        ),
    )

    (step,) = story.end(output, {0: part}, 199, 200, (40, None))

    assert isinstance(step, Step)
    assert (step.padded_tokens, step.graph_mode) == (4, "FULL")
    assert (step.drafted_tokens, step.accepted_tokens, step.drafts) == (3, 2, 1)
    assert step.accepted_by_position == [1, 1, 0]
    assert (step.prefix_queries, step.prefix_hits) == (5, 2)


def test_what_lives_stands_for_newcomers(
    story: StepAssembler, standing: dict[str, AnyReading]
) -> None:
    story.added(1, "a", ASKED)
    story.scheduled(2, "a", 8)
    assert story.scheduled(3, "a", 16) == []  # again, after a preemption

    kinds = [r.kind for r in standing.values() if isinstance(r, RequestEvent)]
    assert kinds == [EventKind.ADDED, EventKind.SCHEDULED]

    story.freed(4, "a", "stop", (1, 0, None))
    assert standing == {}


def test_ordinals_are_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordinals, "REMEMBERED", 2)
    ours = RequestOrdinals(rank=0)
    for name in "abc":
        ours.new(name)
        ours.ended(name)

    assert ours.of_all("bc") == [1, 2]
    assert ours.of("a") == 3  # forgotten: a new one


def test_an_id_that_comes_again_is_another_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ordinals, "REMEMBERED", 1)
    ours = RequestOrdinals(rank=0)
    for name in "aa":
        ours.new(name)
        ours.ended(name)

    assert ours.of("a") == 1
