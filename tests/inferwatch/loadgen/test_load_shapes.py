"""What a run sends, and what it says of itself, against the truth server."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import numpy as np
import pytest

from collectors.contract.readings import (
    AnyReading,
    ClientSample,
    LoadEvent,
    LoadKind,
    Phase,
    RequestRecord,
    TokenTimes,
)
from inferwatch.loadgen.plan.lengths import Range, fixed
from inferwatch.loadgen.plan.plan import (
    Api,
    Arrivals,
    LoadPlan,
    PromptForm,
    TraceRow,
    TransportKind,
)
from inferwatch.loadgen.plan.rates import steps

RunPlan = Callable[[LoadPlan], Awaitable[list[AnyReading]]]
TruthLog = Callable[[str], dict[str, Any]]
MS = 1_000_000


def plan_for(url: str, run_id: str, **changes: Any) -> LoadPlan:
    plan = LoadPlan(
        run_id=run_id,
        model="ttft=0.02,itl=0.005",
        url=url,
        arrivals=Arrivals.CLOSED,
        concurrency=4,
        requests=20,
        warmup_s=0.0,
        prompt_tokens=fixed(12),
        output_tokens=fixed(8),
    )
    if changes.get("arrivals", Arrivals.CLOSED) is not Arrivals.CLOSED:
        changes.setdefault("concurrency", 1)
    return msgspec.structs.replace(plan, **changes)


def records(readings: list[AnyReading]) -> list[RequestRecord]:
    found = [each for each in readings if isinstance(each, RequestRecord)]
    return sorted(found, key=lambda record: record.intended_ns)


def final(readings: list[AnyReading]) -> ClientSample:
    (sample,) = (
        each for each in readings if isinstance(each, ClientSample) and each.final
    )
    return sample


def said(readings: list[AnyReading], kind: LoadKind) -> str:
    return next(
        each.text
        for each in readings
        if isinstance(each, LoadEvent) and each.kind is kind
    )


def open_at_once(sent: list[RequestRecord]) -> int:
    moments = [(each.sent_ns or 0, 1) for each in sent]
    moments += [(each.end_ns or 0, -1) for each in sent]
    return max(accumulate(change for _, change in sorted(moments)))


async def test_a_closed_loop_keeps_its_users_busy_and_asks_as_often_as_told(
    truth_url: str, run_plan: RunPlan
) -> None:
    sent = records(await run_plan(plan_for(truth_url, "closed")))

    assert len(sent) == 20
    assert open_at_once(sent) == 4
    assert {each.failure for each in sent} == {None}


@pytest.mark.parametrize("end", [{"duration_s": 0.5}, {"requests": 2}])
async def test_a_run_does_not_wait_for_who_thinks(
    truth_url: str, run_plan: RunPlan, end: dict[str, Any]
) -> None:
    plan = plan_for(truth_url, "pensive", concurrency=2, think_s=3e4)
    plan = msgspec.structs.replace(plan, **{"requests": None, **end})

    async with asyncio.timeout(20):
        readings = await run_plan(plan)

    assert len(records(readings)) == 2


async def test_users_think_from_the_answer_to_the_next_question(
    truth_url: str, run_plan: RunPlan
) -> None:
    plan = plan_for(truth_url, "think", concurrency=1, requests=5, think_s=0.1)

    sent = records(await run_plan(plan))

    for earlier, later in pairwise(sent):
        assert later.intended_ns - (earlier.end_ns or 0) == 100 * MS


async def test_what_a_closed_loop_asks_while_warming_up_is_not_of_its_requests(
    truth_url: str, run_plan: RunPlan
) -> None:
    plan = plan_for(truth_url, "cboth", requests=10, warmup_s=0.5)

    sent = records(await run_plan(plan))

    phases = Counter(each.phase for each in sent)
    assert phases[Phase.STEADY] == 10
    assert phases[Phase.WARMUP] > 10


async def test_the_steady_part_of_a_closed_loop_is_the_same_after_any_warm_up(
    truth_url: str, truth_log: TruthLog, run_plan: RunPlan
) -> None:
    lengths = []
    for name, warmup_s in (("cshort", 0.0), ("clong", 0.4)):
        changes = {"warmup_s": warmup_s, "prompt_tokens": Range(8, 4096)}
        plan = plan_for(truth_url, name, requests=12, concurrency=1, **changes)
        sent = records(await run_plan(plan))
        steady = [each for each in sent if each.phase is Phase.STEADY]
        lengths.append([each.prompt_tokens for each in steady])

    assert len(lengths[0]) == 12
    assert lengths[0] == lengths[1]


async def test_a_closed_loop_marks_its_warm_up_by_time(
    truth_url: str, run_plan: RunPlan
) -> None:
    plan = plan_for(
        truth_url, "cwarm", requests=None, warmup_s=0.5, duration_s=0.5, seed=4
    )

    readings = await run_plan(plan)

    sent = records(readings)
    phases = [each.phase for each in sent]
    turn = phases.index(Phase.STEADY)
    assert set(phases[:turn]) == {Phase.WARMUP}
    assert set(phases[turn:]) == {Phase.STEADY}
    assert sent[turn].intended_ns - sent[0].intended_ns >= 490 * MS
    assert said(readings, LoadKind.WARMUP_ENDED) == "0.5 s"


async def test_the_final_sample_tells_of_the_whole_run(
    truth_url: str, run_plan: RunPlan
) -> None:
    readings = await run_plan(plan_for(truth_url, "sample"))

    sample = final(readings)
    lags = [(each.sent_ns or 0) - each.intended_ns for each in records(readings)]
    assert sample.transport == "raw"
    assert (sample.sends, sample.tokens) == (20, 160)
    assert sample.send_lag_max_ns == max(lags)
    assert sample.send_lag_p50_ns == pytest.approx(np.percentile(lags, 50), abs=1)
    assert sample.late_sends == sum(lag > 10 * MS for lag in lags)
    assert sample.reads > 80  # a busy machine merges some
    assert sample.cpu_s > 0
    assert readings.index(sample) > max(
        readings.index(each) for each in readings if isinstance(each, RequestRecord)
    )


@pytest.mark.timing
async def test_the_kernel_stamps_each_token_that_comes_over_tcp(
    truth_url: str, truth_log: TruthLog, run_plan: RunPlan
) -> None:
    readings = await run_plan(plan_for(truth_url, "kernel"))

    times = [each for each in readings if isinstance(each, TokenTimes)]
    sample = final(readings)
    assert all(each.by_kernel for each in times)
    assert sample.kernel_stamps == sample.tokens == 160
    assert sample.recv_lag_p50_ns is not None
    truth = truth_log("kernel")
    lags = [
        came - left
        for each in times
        for came, left in zip(
            accumulate(each.gaps_ns, initial=each.first_ns),
            truth[each.external_id].sent_ns,
            strict=True,
        )
    ]
    assert min(lags) >= 0
    assert np.median(lags) < 5 * MS


async def test_over_a_unix_socket_the_stamps_are_ours(
    truth_uds: str, run_plan: RunPlan
) -> None:
    readings = await run_plan(plan_for("http://localhost", "uds", uds=truth_uds))

    times = [each for each in readings if isinstance(each, TokenTimes)]
    assert {each.by_kernel for each in times} == {False}
    assert final(readings).kernel_stamps == 0
    assert final(readings).recv_lag_p50_ns is None


async def test_httpx_says_that_it_was_httpx(truth_url: str, run_plan: RunPlan) -> None:
    plan = plan_for(truth_url, "byhttpx", transport=TransportKind.HTTPX)

    readings = await run_plan(plan)

    assert final(readings).transport == "httpx"
    assert final(readings).kernel_stamps == 0
    assert len(records(readings)) == 20


async def test_chat_is_asked_in_words(
    truth_url: str, truth_log: TruthLog, run_plan: RunPlan
) -> None:
    plan = plan_for(truth_url, "chat", endpoint=Api.CHAT)

    readings = await run_plan(plan)

    assert {each.failure for each in records(readings)} == {None}
    assert {each.output_tokens for each in records(readings)} == {8}
    (message,) = truth_log("chat")["chat-0"].prompt
    assert len(message["content"].split()) == 12
    assert "length of prompts estimated" in said(readings, LoadKind.STARTED)


async def test_completions_can_be_asked_in_words(
    truth_url: str, truth_log: TruthLog, run_plan: RunPlan
) -> None:
    await run_plan(plan_for(truth_url, "words", prompt_form=PromptForm.TEXT))

    assert len(truth_log("words")["words-0"].prompt.split()) == 12


async def test_body_and_headers_of_the_plan_go_over_ours(
    truth_url: str, truth_log: TruthLog, run_plan: RunPlan
) -> None:
    plan = plan_for(
        truth_url,
        "extra",
        extra_body={"top_p": 0.5, "ignore_eos": False},
        headers={"X-Request-Id": "extra-mine"},
        temperature=None,
        requests=1,
    )

    await run_plan(plan)

    body = truth_log("extra")["extra-mine"].body
    assert (body["top_p"], body["ignore_eos"]) == (0.5, False)
    assert "temperature" not in body


async def test_a_trace_is_asked_as_it_was_seen(
    truth_url: str, truth_log: TruthLog, run_plan: RunPlan
) -> None:
    rows = tuple(
        TraceRow(offset_s=n * 0.2, prompt_tokens=10 + n, output_tokens=1 + n)
        for n in range(5)
    )
    plan = plan_for(
        truth_url,
        "trace",
        arrivals=Arrivals.TRACE,
        trace=rows,
        speed=2.0,
        requests=None,
    )

    sent = records(await run_plan(plan))

    first_ns = sent[0].intended_ns
    assert [each.intended_ns - first_ns for each in sent] == [
        n * 100 * MS for n in range(5)
    ]
    log = truth_log("trace")
    asked = [log[each.external_id] for each in sent]
    assert [len(each.prompt) for each in asked] == [10, 11, 12, 13, 14]
    assert [each.max_tokens for each in asked] == [1, 2, 3, 4, 5]


async def test_a_change_of_rate_is_told_when_it_happens(
    truth_url: str, run_plan: RunPlan
) -> None:
    plan = plan_for(
        truth_url,
        "steps",
        arrivals=Arrivals.CONSTANT,
        rates=steps([10, 40], each_s=0.5),
        duration_s=1.0,
        requests=None,
    )

    readings = await run_plan(plan)

    told = [
        each.rate_per_s
        for each in readings
        if isinstance(each, LoadEvent) and each.kind is LoadKind.RATE
    ]
    assert told == [10, 40]
    assert len(records(readings)) in {24, 25}


async def test_what_is_in_flight_at_the_end_of_the_drain_is_aborted_and_counted(
    truth_url: str, run_plan: RunPlan
) -> None:
    plan = plan_for(
        truth_url,
        "drain",
        model="itl=30",
        requests=None,
        duration_s=0.3,
        drain_s=0.2,
    )

    readings = await run_plan(plan)

    assert said(readings, LoadKind.DRAINING) == "4 in flight"
    assert [each.failure for each in records(readings)] == ["aborted"] * 4
    assert "4 aborted" in said(readings, LoadKind.STOPPED)


async def test_the_end_tells_what_the_first_failure_of_each_kind_said(
    truth_url: str, run_plan: RunPlan
) -> None:
    plan = plan_for(truth_url, "said", model="variant=http_429", requests=4)

    readings = await run_plan(plan)

    assert "4 http_4xx (429 slow down (retry-after: 1))" in said(
        readings, LoadKind.STOPPED
    )


async def test_a_host_without_address_ends_the_run(
    under_load: Callable[[LoadPlan], Any],
) -> None:
    plan = plan_for("http://no-such-host.invalid:1", "nowhere")

    async with under_load(plan) as run:
        assert await run.end() == 3

    assert "no-such-host.invalid" in said(run.readings, LoadKind.STOPPED)


async def test_latencies_from_the_intended_start_show_a_server_that_freezes(
    truth_url: str, truth_log: TruthLog, run_plan: RunPlan
) -> None:
    """800 ms of each 2 s, and never more than four in flight: most wait in us."""
    plan = plan_for(
        truth_url,
        "frozen",
        model="ttft=0.02,itl=0,freeze=0.8,every=2",
        arrivals=Arrivals.CONSTANT,
        rate_per_s=40.0,
        duration_s=4.0,
        requests=None,
        max_in_flight=4,
        output_tokens=fixed(1),
    )

    sent = records(await run_plan(plan))

    truth = truth_log("frozen")
    reported = [(each.first_token_ns or 0) - each.intended_ns for each in sent]
    real = [truth[each.external_id].sent_ns[0] - each.intended_ns for each in sent]
    assert len(sent) == 159
    assert np.mean(reported) == pytest.approx(np.mean(real), rel=0.02)
    assert np.mean(reported) > 120 * MS
