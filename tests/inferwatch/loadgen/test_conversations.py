"""Conversations: what was said is said again, with the real answer in its place."""

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import (
    AnyReading,
    LoadEvent,
    LoadKind,
    Phase,
    RequestRecord,
)
from inferwatch.loadgen.exchange.reply import Reply
from inferwatch.loadgen.plan.lengths import Range, fixed
from inferwatch.loadgen.plan.plan import Api, Arrivals, LoadPlan, PromptForm
from inferwatch.loadgen.prompts.prompts import Prompt, Turn
from inferwatch.loadgen.sending.conversations import continued

RunPlan = Callable[[LoadPlan], Awaitable[list[AnyReading]]]
TruthLog = Callable[[str], dict[str, Any]]
MS = 1_000_000


def plan_for(url: str, run_id: str, **changes: Any) -> LoadPlan:
    plan = LoadPlan(
        run_id=run_id,
        model="ttft=0.01,itl=0.001",
        url=url,
        arrivals=Arrivals.CLOSED,
        concurrency=2,
        requests=4,
        warmup_s=0.0,
        prompt_tokens=fixed(10),
        output_tokens=fixed(4),
        turns=fixed(3),
        turn_tokens=fixed(5),
        think_s=0.05,
    )
    if changes.get("arrivals", Arrivals.CLOSED) is not Arrivals.CLOSED:
        changes.setdefault("concurrency", 1)
    return msgspec.structs.replace(plan, **changes)


def turns_of(readings: list[AnyReading]) -> list[RequestRecord]:
    found = [each for each in readings if isinstance(each, RequestRecord)]
    return sorted(found, key=lambda record: record.intended_ns)


def reply(*events: bytes) -> Reply:
    told = Reply(keep_words=True)
    for event in events:
        told.read(b"data: " + event + b"\n\n", 1)
    told.end()
    return told


WORDS = (b'{"choices":[{"text":"Good"}]}', b'{"choices":[{"text":"bye"}]}')
IDS = (
    b'{"choices":[{"text":"Good","token_ids":[7]}]}',
    b'{"choices":[{"text":"bye","token_ids":[8,9]}]}',
    b'{"choices":[{"text":"","finish_reason":"length"}]}',
)
FIRST = Prompt(
    token_ids=[1, 2, 3],
    max_tokens=4,
    kv_tokens=7,
    turn=1,
    later=(Turn([5], 6, "more"), Turn([6], 7, "end")),
)


def test_ids_go_on_with_the_ids_of_the_answer() -> None:
    second = continued(FIRST, reply(*IDS), chats=False)

    assert second.token_ids == [1, 2, 3, 7, 8, 9, 5]
    assert (second.max_tokens, second.turn, second.tokens) == (6, 2, 7)
    assert second.later == FIRST.later[1:]


def test_a_server_that_gives_no_ids_gets_as_many_others() -> None:
    second = continued(FIRST, reply(*WORDS), chats=False)

    assert second.token_ids == [1, 2, 3, 1, 2, 5]


def test_ids_with_a_gap_are_not_taken() -> None:
    second = continued(FIRST, reply(IDS[0], WORDS[1]), chats=False)

    assert second.token_ids == [1, 2, 3, 1, 2, 5]


def test_text_goes_on_with_the_text_of_the_answer() -> None:
    second = continued(FIRST._replace(text="Say"), reply(*WORDS), chats=False)

    assert second.text == "SayGoodbye more"
    assert second.tokens is None  # nobody has counted them


def test_a_chat_repeats_its_messages() -> None:
    chunk = b'{"choices":[{"delta":{"content":"Hello"}}]}'
    thought = b'{"choices":[{"delta":{"reasoning":"hm"}}]}'
    second = continued(FIRST._replace(text="Say"), reply(thought, chunk), chats=True)
    third = continued(second, reply(chunk), chats=True)

    assert [(each["role"], each["content"]) for each in third.messages] == [
        ("user", "Say"),
        ("assistant", "Hello"),
        ("user", "more"),
        ("assistant", "Hello"),
        ("user", "end"),
    ]


@pytest.mark.parametrize("arrivals", [Arrivals.CLOSED, Arrivals.CONSTANT])
async def test_each_turn_repeats_all_before_it_and_is_due_after_thinking(
    truth_url: str, truth_log: TruthLog, run_plan: RunPlan, arrivals: Arrivals
) -> None:
    rate = 20.0 if arrivals is Arrivals.CONSTANT else None
    name = f"talk{arrivals}"

    sent = turns_of(
        await run_plan(plan_for(truth_url, name, arrivals=arrivals, rate_per_s=rate))
    )

    assert {each.failure for each in sent} == {None}
    assert sorted(each.turn or 0 for each in sent) == [1] * 4 + [2] * 4 + [3] * 4
    log = truth_log(name)
    by_start: dict[tuple[int, ...], list[RequestRecord]] = {}
    for record in sent:
        begin = tuple(log[record.external_id].prompt[:10])
        by_start.setdefault(begin, []).append(record)
    assert len(by_start) == 4
    for turns in by_start.values():
        for before, after in pairwise(turns):
            said = log[before.external_id].prompt
            assert log[after.external_id].prompt[: len(said)] == said
            assert len(log[after.external_id].prompt) == len(said) + 4 + 5
            assert after.intended_ns - (before.end_ns or 0) == 50 * MS


async def test_turns_of_a_chat_are_messages(
    truth_url: str, truth_log: TruthLog, run_plan: RunPlan
) -> None:
    plan = plan_for(truth_url, "talkchat", endpoint=Api.CHAT, requests=1)

    sent = turns_of(await run_plan(plan))

    last = truth_log("talkchat")[sent[-1].external_id].prompt
    assert [each["role"] for each in last] == ["user", "assistant"] * 2 + ["user"]
    assert last[1]["content"] == last[3]["content"] != ""


async def test_text_prompts_grow_too(
    truth_url: str, truth_log: TruthLog, run_plan: RunPlan
) -> None:
    plan = plan_for(truth_url, "talktext", prompt_form=PromptForm.TEXT, requests=1)

    sent = turns_of(await run_plan(plan))

    said = [truth_log("talktext")[each.external_id].prompt for each in sent]
    assert said[1].startswith(said[0])
    assert said[2].startswith(said[1])


async def test_no_turn_is_due_after_the_end(truth_url: str, run_plan: RunPlan) -> None:
    plan = plan_for(
        truth_url,
        "talkend",
        arrivals=Arrivals.CONSTANT,
        rate_per_s=10.0,
        requests=None,
        duration_s=1.0,
        turns=Range(50, 60),
    )

    readings = await run_plan(plan)

    sent = turns_of(readings)
    (draining,) = (
        each
        for each in readings
        if isinstance(each, LoadEvent) and each.kind is LoadKind.DRAINING
    )
    begin_ns = sent[0].intended_ns - 100 * MS
    assert sent[-1].intended_ns < begin_ns + 1_000 * MS
    assert draining.t_ns >= begin_ns + 900 * MS
    assert max(each.turn or 0 for each in sent) > 5


async def test_a_later_turn_belongs_to_the_phase_it_is_due_in(
    truth_url: str, run_plan: RunPlan
) -> None:
    plan = plan_for(
        truth_url,
        "talkwarm",
        arrivals=Arrivals.CONSTANT,
        rate_per_s=5.0,
        requests=None,
        warmup_s=0.5,
        duration_s=0.5,
        turns=fixed(30),
    )

    sent = turns_of(await run_plan(plan))

    turned = [each.phase for each in sent].index(Phase.STEADY)
    assert {each.phase for each in sent[turned:]} == {Phase.STEADY}
    assert (sent[turned].turn or 0) > 1
    begin_ns = sent[0].intended_ns - 200 * MS
    assert 500 * MS <= sent[turned].intended_ns - begin_ns < 600 * MS


async def test_a_failed_turn_ends_its_conversation(
    truth_url: str, run_plan: RunPlan
) -> None:
    plan = plan_for(truth_url, "talkfail", model="variant=http_500", requests=2)

    sent = turns_of(await run_plan(plan))

    assert [each.turn for each in sent] == [1, 1]
