"""What scheduling by priority would make of a load, told of each priority."""

import pytest
from msgspec.structs import replace

from collectors.contract.readings import Phase, RequestEvent, RequestRecord, Vantage
from inferwatch.errors import UsageError
from inferwatch.studies.what_if.answer import answers
from inferwatch.studies.what_if.outcome import measured_outcome
from inferwatch.studies.what_if.prediction import predict
from inferwatch.studies.what_if.priorities import read_priorities, with_priorities
from inferwatch.studies.what_if.recorded import RecordedRun, recorded_run
from inferwatch.studies.what_if.setting import SchedulingPolicy, SettingChange
from inferwatch.studies.what_if.table import as_json, text
from tests.inferwatch.studies.what_if.scripted_engine import Job, ScriptedEngine, jobs

BY_PRIORITY = SettingChange(policy=SchedulingPolicy.PRIORITY)
GIVEN = {"chat": 0, "batch": 10}
FEW = 6
"""Sequences at once, so that many wait."""


def named() -> list[Job]:
    """Three of four are chats, the rest a batch."""
    every = jobs(count=300, per_s=11)
    for job in every:
        job.header = "chat" if job.ordinal % 4 else "batch"
        job.priority = GIVEN[job.header]
    return every


def recorded(*, by_priority: bool) -> RecordedRun:
    engine = ScriptedEngine(max_num_seqs=FEW, by_priority=by_priority)
    return recorded_run(engine.serve(named()))


def test_given_priorities_bring_what_an_engine_with_them_brings() -> None:
    run = with_priorities(recorded(by_priority=False), GIVEN)

    told = predict(run, [BY_PRIORITY])

    (predicted,) = told.predictions
    true = measured_outcome(recorded(by_priority=True))
    assert predicted.outcome is not None, predicted.cannot
    for before, after, there in zip(
        told.measured.by_priority,
        predicted.outcome.by_priority,
        true.by_priority,
        strict=True,
    ):
        assert before.priority == after.priority == there.priority
        assert before.requests == after.requests == there.requests
        for metric in ("ttft_s", "e2el_s"):
            simulated, real = after.latencies[metric].p50, there.latencies[metric].p50
            assert simulated == pytest.approx(real, rel=0.02), (after.priority, metric)
    chat, batch = predicted.outcome.by_priority
    was_chat, was_batch = told.measured.by_priority
    assert (chat.latencies["ttft_s"].p50 or 0) < (was_chat.latencies["ttft_s"].p50 or 0)
    assert (batch.latencies["ttft_s"].p50 or 9) > (
        was_batch.latencies["ttft_s"].p50 or 9
    )


def test_recorded_priorities_are_simulated_as_they_were() -> None:
    told = predict(
        recorded(by_priority=True), [SettingChange(policy=SchedulingPolicy.FCFS)]
    )

    (first,) = told.predictions
    true = measured_outcome(
        with_priorities(recorded(by_priority=False), GIVEN)
    ).by_priority
    assert told.untold == {}
    assert first.outcome is not None
    for there, predicted in zip(true, first.outcome.by_priority, strict=True):
        assert predicted.latencies["ttft_s"].p50 == pytest.approx(
            there.latencies["ttft_s"].p50, rel=0.02
        )


def test_it_is_said_of_each_priority_in_text_and_json() -> None:
    run = with_priorities(recorded(by_priority=False), GIVEN)
    told = predict(run, [BY_PRIORITY])

    said = text(told, "s1")
    (sentence,) = answers(told)
    (prediction,) = as_json(told, "s1")["predictions"]

    assert "priority 0 " in said
    assert "priority 10 " in said
    assert "Priorities as given: chat 0, batch 10." in " ".join(said.split())
    assert "scheduling by priority instead of first come, first served" in sentence
    assert "TTFT p50 of priority 0 falls from" in sentence
    assert "TTFT p50 of priority 10 rises from" in sentence
    assert max(map(len, said.splitlines())) <= 80
    assert [each["priority"] for each in prediction["outcome"]["by_priority"]] == [
        0,
        10,
    ]
    assert prediction["setting"]["by_priority"] is True


def test_without_priorities_it_says_who_has_to_be_named() -> None:
    told = predict(recorded(by_priority=False), [BY_PRIORITY])

    (predicted,) = told.predictions
    assert predicted.outcome is None
    assert "--priority 'chat=0 batch=10'" in (predicted.cannot or "")
    assert told.measured.by_priority == ()


def test_a_name_that_nobody_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="'chats': there are chat, batch"):
        with_priorities(recorded(by_priority=False), {"chats": 0})


def test_requests_without_a_name_keep_what_they_had() -> None:
    run = with_priorities(recorded(by_priority=False), {"batch": 10})

    told = predict(run, [BY_PRIORITY])

    assert [each.priority for each in told.measured.by_priority] == [0, 10]
    assert (
        told.given
        == "Priorities as given: batch 10; 225 requests without such a name: 0"
    )


def test_classes_of_a_load_are_names() -> None:
    readings = [
        replace(each, header=None, external_id=f"cmpl-run-{each.request_id[1:]}-0")
        if isinstance(each, RequestEvent) and each.vantage is Vantage.FRONTEND
        else each
        for each in ScriptedEngine(max_num_seqs=FEW).serve(named())
    ]
    records = [
        RequestRecord(
            index=n,
            external_id=f"run-{n}",
            phase=Phase.STEADY,
            intended_ns=0,
            class_name="chat" if n % 4 else "batch",
        )
        for n in range(300)
    ]

    run = with_priorities(recorded_run([*readings, *records]), GIVEN)

    assert {past.asked_priority for past in run.requests} == {0, 10}


@pytest.mark.parametrize(
    "wrong", ["chat", "chat=", "chat=high", "=3", "", "a=1 b", "'"]
)
def test_what_is_no_priority_says_what_would_be(wrong: str) -> None:
    with pytest.raises(UsageError, match="write 'NAME=NUMBER"):
        read_priorities(wrong)


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 10**4_000])
def test_a_priority_that_vllm_cannot_take_is_refused(number: int) -> None:
    with pytest.raises(UsageError, match="'chat' must fit into 64 bits"):
        read_priorities(f"chat={number}")

    assert read_priorities(f"chat={(1 << 63) - 1}") == {"chat": (1 << 63) - 1}


def test_a_message_shows_the_beginning_of_what_is_long() -> None:
    for long in ("chat=" + "9" * 5_000, "n" * 5_000 + f"={1 << 63}"):
        with pytest.raises(UsageError) as refused:
            read_priorities(long)
        assert len(str(refused.value)) < 200
