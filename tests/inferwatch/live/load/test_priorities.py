"""What is said before a load whose priorities the server ignores."""

import json

import pytest

from collectors.contract.readings import Phase
from inferwatch.live.load.priorities import unheeded_priorities
from inferwatch.loadgen.exchange.call import Call
from inferwatch.loadgen.exchange.request import body
from inferwatch.loadgen.plan.file import make_plan
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.plan.text import read_class
from inferwatch.loadgen.prompts.prompts import Prompts
from inferwatch.ui.load.form import beside

RANKED = (
    "chat: share=1 prompt=8 output=4 priority=0",
    "batch: share=1 prompt=8 output=4 priority=10",
    "free: share=1 prompt=8 output=4",
)


def plan(*classes: str) -> LoadPlan:
    return make_plan(
        {
            "run_id": "r",
            "model": "m",
            "rate_per_s": 1,
            "classes": [read_class(each) for each in classes],
        }
    )


def test_each_request_asks_for_the_priority_of_its_class() -> None:
    ranked = plan(*RANKED)
    prompts = Prompts(ranked)

    asked = set()
    for number in range(64):
        prompt = prompts.make(Phase.STEADY, number)
        call = Call(
            index=number,
            external_id=f"r-{number}",
            phase=Phase.STEADY,
            intended_ns=0,
            prompt=prompt,
        )
        sent = json.loads(body(ranked, call))
        asked.add((prompt.class_name, sent.get("priority")))

    assert asked == {("chat", 0), ("batch", 10), ("free", None)}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scheduling_policy": "priority"}, None),
        ({"scheduling_policy": "fcfs"}, "schedules by fcfs and ignores"),
        ({}, "not known whether the server heeds"),
    ],
)
def test_a_server_that_ignores_them_is_told_of(
    settings: dict[str, str], said: str | None
) -> None:
    why = unheeded_priorities(plan(*RANKED), settings)

    if said is None:
        assert why is None
    else:
        assert why is not None
        assert said in why
        assert "(chat 0, batch 10)" in why
        assert "--scheduling-policy priority" in why


def test_classes_without_priorities_need_no_policy() -> None:
    assert unheeded_priorities(plan(RANKED[2]), {}) is None


def test_the_form_names_the_priority_of_each_class() -> None:
    assert "chat (priority 0), batch (priority 10), free" in beside(plan(*RANKED))
