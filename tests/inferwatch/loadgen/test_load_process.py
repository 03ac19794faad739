"""The generator as it is used: a process of its own, against the truth server."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import psutil
import pytest

from collectors.contract.clock import SessionClock
from collectors.contract.readings import (
    AnyReading,
    LoadEvent,
    LoadKind,
    Phase,
    RequestRecord,
    TokenTimes,
)
from collectors.load.load_stream import LoadStream
from inferwatch.loadgen.plan.lengths import Range
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.loadgen.process import LoadProcess

pytestmark = pytest.mark.process

RunPlan = Callable[[LoadPlan], Awaitable[list[AnyReading]]]
Until = Callable[..., Awaitable[None]]
MS = 1_000_000


def plan_for(url: str, run_id: str, **changes: Any) -> LoadPlan:
    plan = LoadPlan(
        run_id=run_id,
        model="ttft=0.02,itl=0.005",
        url=url,
        rate_per_s=40.0,
        warmup_s=0.0,
        duration_s=1.5,
        prompt_tokens=Range(8, 16),
        output_tokens=Range(5, 15),
    )
    return msgspec.structs.replace(plan, **changes)


def records(readings: list[AnyReading]) -> list[RequestRecord]:
    found = [each for each in readings if isinstance(each, RequestRecord)]
    return sorted(found, key=lambda record: record.index)


def events(readings: list[AnyReading]) -> list[LoadEvent]:
    return [each for each in readings if isinstance(each, LoadEvent)]


def event(readings: list[AnyReading], kind: LoadKind) -> LoadEvent:
    return next(each for each in events(readings) if each.kind is kind)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_client_and_server_count_the_same(
    truth_url: str, truth_log: Callable[[str], Any], run_plan: RunPlan
) -> None:
    readings = await run_plan(plan_for(truth_url, "count"))

    truth = truth_log("count")
    received = {each.external_id: each.output_tokens for each in records(readings)}
    assert received == {name: len(each.sent_ns) for name, each in truth.items()}
    assert len(received) > 30


async def test_stamps_are_never_before_the_truth_and_close_to_it(
    truth_url: str, truth_log: Callable[[str], Any], run_plan: RunPlan
) -> None:
    readings = await run_plan(plan_for(truth_url, "truth"))

    truth = truth_log("truth")
    lags = [
        came - sent
        for each in readings
        if isinstance(each, TokenTimes)
        for came, sent in zip(
            accumulate(each.gaps_ns, initial=each.first_ns),
            truth[each.external_id].sent_ns,
            strict=True,
        )
    ]
    assert min(lags) >= 0
    assert median(lags) < 200 * MS


async def test_a_record_is_in_order_of_time(truth_url: str, run_plan: RunPlan) -> None:
    for record in records(await run_plan(plan_for(truth_url, "order"))):
        moments = [
            record.intended_ns,
            record.sent_ns,
            record.first_token_ns,
            record.last_token_ns,
            record.end_ns,
        ]
        known = [moment for moment in moments if moment is not None]
        assert len(known) == 5
        assert known == sorted(known)


async def test_readings_carry_the_run_as_their_source(
    truth_url: str, run_plan: RunPlan
) -> None:
    readings = await run_plan(plan_for(truth_url, "source", duration_s=0.3))

    assert {each.source for each in readings} == {"source"}


async def test_a_run_says_what_it_does(truth_url: str, run_plan: RunPlan) -> None:
    readings = await run_plan(plan_for(truth_url, "says"))

    kinds = [each.kind for each in events(readings)]
    assert kinds == [
        LoadKind.STARTED,
        LoadKind.RATE,
        LoadKind.DRAINING,
        LoadKind.STOPPED,
    ]
    assert event(readings, LoadKind.RATE).rate_per_s == 40
    count = len(records(readings))
    assert event(readings, LoadKind.STOPPED).text.startswith(f"{count} requests")


async def test_the_warm_up_is_marked_and_sets_the_rate(
    truth_url: str, run_plan: RunPlan
) -> None:
    plan = plan_for(truth_url, "warm", rate_per_s=None, warmup_s=1.0, warmup_streams=4)

    readings = await run_plan(plan)

    measured = event(readings, LoadKind.WARMUP_ENDED)
    rate = event(readings, LoadKind.RATE)
    assert measured.rate_per_s is not None
    assert rate.rate_per_s == pytest.approx(0.6 * measured.rate_per_s)
    for record in records(readings):
        assert (record.phase is Phase.WARMUP) == (record.intended_ns < measured.t_ns)


async def test_the_warm_up_measures_what_the_server_sent(
    truth_url: str, truth_log: Callable[[str], Any], run_plan: RunPlan
) -> None:
    plan = plan_for(
        truth_url, "measure", rate_per_s=None, warmup_s=1.0, warmup_streams=4
    )

    readings = await run_plan(plan)

    end = event(readings, LoadKind.WARMUP_ENDED)
    sent = [at for each in truth_log("measure").values() for at in each.sent_ns]
    in_time = [at for at in sent if at < end.t_ns]
    truth_per_s = len(in_time) / (end.t_ns - min(sent)) * 1e9
    assert end.rate_per_s is not None
    assert end.rate_per_s * plan.output_tokens.mean == pytest.approx(
        truth_per_s, rel=0.1
    )


async def test_a_server_that_brings_nothing_ends_the_run(
    truth_url: str, under_load: Callable[[LoadPlan], Any]
) -> None:
    plan = plan_for(
        truth_url, "no", model="variant=http_404", rate_per_s=None, warmup_s=0.3
    )

    async with under_load(plan) as run:
        status = await run.end()

    assert status == 3
    assert "no such model" in event(run.readings, LoadKind.STOPPED).text


async def test_a_burst_leaves_at_once_and_is_marked(
    truth_url: str, run_plan: RunPlan
) -> None:
    plan = plan_for(truth_url, "burst", burst_every_s=1.0, burst_tokens=500)

    readings = await run_plan(plan)

    burst = [each for each in records(readings) if each.phase is Phase.BURST]
    said = event(readings, LoadKind.BURST)
    assert said.text.startswith(f"{len(burst)} requests")
    assert len({each.intended_ns for each in burst}) == 1
    asked = sum((each.output_tokens or 0) + (each.prompt_tokens or 0) for each in burst)
    assert 500 <= asked < 500 + 31


async def test_equal_seeds_send_equal_requests_at_equal_times(
    truth_url: str, truth_log: Callable[[str], Any], run_plan: RunPlan
) -> None:
    offsets, prompts = [], []
    for run_id in ("seed1", "seed2"):
        sent = records(await run_plan(plan_for(truth_url, run_id, seed=5)))
        offsets.append([each.intended_ns - sent[0].intended_ns for each in sent])
        log = truth_log(run_id)
        prompts.append([log[each.external_id].prompt for each in sent])

    assert offsets[0] == offsets[1]
    assert prompts[0] == prompts[1]


async def test_a_frozen_client_sends_late_and_skips_nothing(
    truth_url: str, under_load: Callable[[LoadPlan], Any], until: Until
) -> None:
    plan = plan_for(truth_url, "frozen", arrivals=Arrivals.CONSTANT, duration_s=2.0)

    async with under_load(plan) as run:
        await until(lambda: bool(records(run.readings)))
        os.kill(run.process.pid, signal.SIGSTOP)
        await asyncio.sleep(0.5)
        os.kill(run.process.pid, signal.SIGCONT)
        assert await run.end() == 0

    sent = records(run.readings)
    intended = [each.intended_ns for each in sent]
    assert len(sent) == 79
    assert {later - earlier for earlier, later in pairwise(intended)} == {25 * MS}
    assert max((each.sent_ns or 0) - each.intended_ns for each in sent) > 300 * MS
    assert "sent late" in event(run.readings, LoadKind.STOPPED).text


async def test_beyond_the_cap_requests_wait_and_are_not_skipped(
    truth_url: str, run_plan: RunPlan
) -> None:
    plan = plan_for(truth_url, "cap", max_in_flight=2, arrivals=Arrivals.CONSTANT)

    sent = records(await run_plan(plan))

    assert len(sent) == 59
    for record in sent:
        open_then = [
            each
            for each in sent
            if (each.sent_ns or 0) < (record.sent_ns or 0) < (each.end_ns or 0)
        ]
        assert len(open_then) < 2


async def test_being_told_to_stop_aborts_and_reports_what_is_in_flight(
    truth_url: str,
    truth_log: Callable[[str], Any],
    under_load: Callable[[LoadPlan], Any],
    until: Until,
) -> None:
    plan = plan_for(truth_url, "stop", model="itl=1", duration_s=None)

    async with under_load(plan) as run:
        await until(lambda: len(truth_log("stop")) >= 5)
        await run.process.stop()
        assert await run.end() == 0

    failures = {each.external_id: each.failure for each in records(run.readings)}
    assert set(failures) == set(truth_log("stop"))
    assert set(failures.values()) == {"aborted"}
    assert event(run.readings, LoadKind.STOPPED)
    await until(lambda: all(each.cut_off for each in truth_log("stop").values()))


async def test_nothing_is_lost_while_nobody_reads(
    truth_url: str, truth_log: Callable[[str], Any], tmp_path: Path, until: Until
) -> None:
    """The reader is busy until the generator has ended."""
    stream = LoadStream(SessionClock(0), "busy", tmp_path / "load")
    process = LoadProcess()
    await process.start(plan_for(truth_url, "busy"), stream.address)
    assert await process.wait() == 0

    readings: list[AnyReading] = []
    reading = asyncio.create_task(_collect(stream, readings))
    await until(lambda: any(each.kind is LoadKind.STOPPED for each in events(readings)))
    await stream.close()
    await reading

    assert {each.external_id for each in records(readings)} == set(truth_log("busy"))


async def _collect(stream: Any, into: list[AnyReading]) -> None:
    async for batch in stream.batches():
        into.extend(batch)


async def test_it_ends_soon_even_when_nobody_takes_its_readings(
    truth_url: str, truth_log: Callable[[str], Any], tmp_path: Path, until: Until
) -> None:
    process = LoadProcess()
    plan = plan_for(truth_url, "unread", model="itl=1", duration_s=None)
    await process.start(plan, f"ipc://{tmp_path}/nobody")
    await until(lambda: bool(truth_log("unread")))

    await process.stop()

    assert await process.wait() == 0


PARENT = """
import asyncio, sys, msgspec
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.process import LoadProcess

async def main():
    process = LoadProcess()
    plan = msgspec.json.decode(sys.argv[1], type=LoadPlan)
    await process.start(plan, sys.argv[2])
    print(process.pid, flush=True)
    await process.wait()

asyncio.run(main())
"""


async def test_the_child_does_not_outlive_its_parent(
    truth_url: str, truth_log: Callable[[str], Any], tmp_path: Path, until: Until
) -> None:
    plan = plan_for(truth_url, "orphan", model="itl=1", duration_s=None)
    text = msgspec.json.encode(plan).decode()
    command = [sys.executable, "-c", PARENT, text, f"ipc://{tmp_path}/load"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        await until(lambda: bool(truth_log("orphan")))

        parent.kill()

        await until(lambda: gone(pid), seconds=10)
    await until(lambda: all(each.cut_off for each in truth_log("orphan").values()))


def test_the_child_loads_no_screen_no_database_and_no_engine() -> None:
    code = (
        "import sys, json, inferwatch.loadgen.__main__, collectors.load.load_stream;"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )

    loaded = set(json.loads(answer.stdout))
    assert not loaded & {"textual", "sqlite3", "vllm", "torch", "transformers"}
