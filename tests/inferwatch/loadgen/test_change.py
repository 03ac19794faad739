"""A run that is changed while it goes on, against the truth server."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from statistics import mean, median
from typing import Any

import msgspec
import pytest

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import (
    AnyReading,
    LoadEvent,
    LoadKind,
    Phase,
    RequestRecord,
)
from inferwatch.loadgen.plan.commands import Change
from inferwatch.loadgen.plan.lengths import fixed
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan, TraceRow
from inferwatch.loadgen.plan.rates import ramp
from inferwatch.metrics.load.book import LoadBook

Until = Callable[..., Awaitable[None]]
UnderLoad = Callable[[LoadPlan], Any]
RunPlan = Callable[[LoadPlan], Awaitable[list[AnyReading]]]
S = 1_000_000_000
MS = 1_000_000


def plan_for(url: str, run_id: str, **changes: Any) -> LoadPlan:
    plan = LoadPlan(
        run_id=run_id,
        model="ttft=0.02,itl=0.005",
        url=url,
        arrivals=Arrivals.CONSTANT,
        rate_per_s=20.0,
        warmup_s=0.0,
        duration_s=4.0,
        prompt_tokens=fixed(12),
        output_tokens=fixed(8),
    )
    return msgspec.structs.replace(plan, **changes)


def sent(run: Any) -> list[RequestRecord]:
    found = [each for each in run.readings if isinstance(each, RequestRecord)]
    return sorted(found, key=lambda record: record.intended_ns)


def told(run: Any, kind: LoadKind = LoadKind.RATE) -> list[LoadEvent]:
    events = [each for each in run.readings if isinstance(each, LoadEvent)]
    return [each for each in events if each.kind is kind]


def achieved(stamps_ns: Sequence[int | None]) -> float:
    known = sorted(each for each in stamps_ns if each is not None)
    return S / mean(later - earlier for earlier, later in pairwise(known))


async def changed(run: Any, until: Until, after: int, **change: Any) -> LoadEvent:
    """Tell the run after so many of its requests; the event of it."""
    before = len(told(run))
    await until(lambda: len(sent(run)) >= after)
    await run.process.change(Change(**change))
    await until(lambda: len(told(run)) > max(before, 1))
    return told(run)[-1]


def arrivals_asked(events: list[LoadEvent], begin_ns: int, end_ns: int) -> float:
    """The integral of the rate that was told, over a span."""
    until_ns = [each.t_ns for each in events[1:]] + [end_ns]
    return sum(
        max(min(end_ns, to_ns) - max(begin_ns, each.t_ns), 0)
        * (each.rate_per_s or 0)
        / S
        for each, to_ns in zip(events, until_ns, strict=True)
    )


def asked_at_most_at_once(run: Any, begin_ns: int, end_ns: int) -> int:
    edges = [
        edge
        for each in sent(run)
        if each.sent_ns is not None and begin_ns <= each.sent_ns < end_ns
        for edge in ((each.sent_ns, 1), (each.end_ns or end_ns, -1))
    ]
    count = most = 0
    for _, step in sorted(edges):
        count += step
        most = max(most, count)
    return most


@pytest.mark.parametrize("arrivals", [Arrivals.CONSTANT, Arrivals.POISSON])
async def test_requests_leave_at_the_new_rate_from_the_change_on(
    truth_url: str, under_load: UnderLoad, until: Until, arrivals: Arrivals
) -> None:
    plan = plan_for(truth_url, f"faster-{arrivals}", arrivals=arrivals, seed=2)

    async with under_load(plan) as run:
        change = await changed(run, until, 30, rate_per_s=60.0)
        assert await run.end() == 0

    intended = [each.intended_ns for each in sent(run)]
    assert all(earlier < later for earlier, later in pairwise(intended))
    before = [each for each in sent(run) if each.intended_ns <= change.t_ns]
    after = [each for each in sent(run) if each.intended_ns > change.t_ns]
    close = 0.02 if arrivals is Arrivals.CONSTANT else 0.3
    due_before = [each.intended_ns for each in before]
    due_after = [each.intended_ns for each in after]
    assert achieved(due_before) == pytest.approx(20, rel=close)
    assert achieved(due_after) == pytest.approx(60, rel=close)
    assert all((each.sent_ns or 0) >= each.intended_ns for each in sent(run))
    assert {each.failure for each in sent(run)} == {None}


async def test_there_is_no_burst_and_no_hole_at_a_change(
    truth_url: str, under_load: UnderLoad, until: Until
) -> None:
    """Between two even arrivals the rate adds up to one, whatever changed there."""
    async with under_load(plan_for(truth_url, "seam", duration_s=None)) as run:
        for after, rate_per_s in ((20, 100.0), (80, 0.2), (80, 40.0), (100, 10.0)):
            await changed(run, until, after, rate_per_s=rate_per_s)
        await until(lambda: len(sent(run)) >= 110)
        await run.process.stop()
        assert await run.end() == 0

    for earlier, later in pairwise(sent(run)):
        asked = arrivals_asked(told(run), earlier.intended_ns, later.intended_ns)
        assert asked == pytest.approx(1, abs=0.001)
    lags = ((each.sent_ns or 0) - each.intended_ns for each in sent(run))
    assert 0 <= median(lags) < 1 * S


async def test_a_change_is_in_the_record_and_in_the_asked_rate(
    truth_url: str, under_load: UnderLoad, until: Until
) -> None:
    plan = plan_for(truth_url, "told")

    async with under_load(plan) as run:
        change = await changed(run, until, 20, rate_per_s=60.0)
        assert await run.end() == 0

    assert change.text == "constant 60.00 requests/s, was 20.00"
    assert change.rate_per_s == 60
    assert [each.rate_per_s for each in told(run)] == [20, 60]
    book = LoadBook(plan.run_id)
    for reading in run.readings:
        book.fold(msgspec.structs.replace(reading, source=plan.run_id))
    assert book.asked_range == (20, 60)
    assert book.asked_per_s == pytest.approx(len(book.records) / 4, rel=0.05)


async def test_no_change_sends_what_was_always_sent(
    truth_url: str, run_plan: RunPlan
) -> None:
    """Of seed 5; as it was before a rate could be changed."""
    plan = plan_for(truth_url, "same", arrivals=Arrivals.POISSON, seed=5)

    readings = await run_plan(plan)

    records = sorted(
        (each for each in readings if isinstance(each, RequestRecord)),
        key=lambda each: each.index,
    )
    gaps_ns = [b.intended_ns - a.intended_ns for a, b in pairwise(records[:6])]
    assert gaps_ns == [37_509_571, 65_067_695, 26_471_403, 1_507_635, 21_696_261]


async def test_a_rate_by_time_gives_way_to_a_change(
    truth_url: str, under_load: UnderLoad, until: Until
) -> None:
    rates = ramp(20, 200, over_s=20)
    plan = plan_for(truth_url, "ramp", rate_per_s=None, rates=rates)

    async with under_load(plan) as run:
        await until(lambda: len(sent(run)) >= 25)
        await run.process.change(Change(rate_per_s=10.0))
        assert await run.end() == 0

    change = told(run)[-1]
    assert change.rate_per_s == 10
    after = [each.sent_ns for each in sent(run) if each.intended_ns > change.t_ns]
    assert achieved(after) == pytest.approx(10, rel=0.05)


async def test_a_change_in_the_warm_up_is_of_what_comes_after_it(
    truth_url: str, under_load: UnderLoad, until: Until
) -> None:
    plan = plan_for(truth_url, "warm", warmup_s=1.0, duration_s=1.0)

    async with under_load(plan) as run:
        change = await changed(run, until, 5, rate_per_s=60.0)
        assert await run.end() == 0

    assert change.text.endswith("was 20.00, from the end of the warm-up")
    phases = [each.phase for each in sent(run)]
    assert phases.count(Phase.WARMUP) == 19
    assert phases.count(Phase.STEADY) == 59


async def test_a_burst_asked_for_leaves_at_once_and_moves_no_other_request(
    truth_url: str, under_load: UnderLoad, until: Until
) -> None:
    plan = plan_for(truth_url, "burst-now", duration_s=2.0, seed=3)

    async with under_load(plan) as run:
        await until(lambda: len(sent(run)) >= 8)
        await run.process.change(Change(burst=25))
        assert await run.end() == 0

    burst = [each for each in sent(run) if each.phase is Phase.BURST]
    steady = [each for each in sent(run) if each.phase is Phase.STEADY]
    assert len(burst) == 25
    assert len({each.intended_ns for each in burst}) == 1
    assert [each.text for each in told(run, LoadKind.BURST)] == ["25 requests"]
    assert len(steady) == 39
    gaps = [b.intended_ns - a.intended_ns for a, b in pairwise(steady)]
    assert max(gaps) - min(gaps) < MS


async def test_a_change_while_the_rate_is_measured_is_the_rate_then(
    truth_url: str, under_load: UnderLoad, until: Until
) -> None:
    plan = plan_for(
        truth_url, "before", rate_per_s=None, warmup_s=1.0, warmup_streams=2,
        duration_s=1.0,
    )  # fmt: skip

    async with under_load(plan) as run:
        await until(lambda: len(sent(run)) >= 5)
        await run.process.change(Change(rate_per_s=40.0))
        assert await run.end() == 0

    assert told(run)[0].text.startswith(
        "constant 40.00 requests/s, was 0.6 of the rate"
    )
    steady = [each for each in sent(run) if each.phase is Phase.STEADY]
    assert len(steady) == 39


@pytest.mark.timing
async def test_users_come_at_once_and_go_when_they_are_answered(
    truth_url: str, under_load: UnderLoad, until: Until
) -> None:
    plan = plan_for(
        truth_url,
        "users",
        arrivals=Arrivals.CLOSED,
        rate_per_s=None,
        concurrency=4,
        duration_s=None,
    )

    async with under_load(plan) as run:
        more = await changed(run, until, 20, concurrency=12)
        fewer = await changed(run, until, 120, concurrency=2)
        await until(lambda: len(sent(run)) >= 180)
        await run.process.stop()
        assert await run.end() == 0

    end_ns = told(run, LoadKind.STOPPED)[0].t_ns
    assert more.text == "closed loop, 12 users, was 4"
    assert fewer.text == "closed loop, 2 users, was 12"
    assert asked_at_most_at_once(run, 0, more.t_ns) == 4
    assert asked_at_most_at_once(run, more.t_ns + 100 * MS, fewer.t_ns) == 12
    assert asked_at_most_at_once(run, fewer.t_ns, end_ns) == 2
    soon = [
        each
        for each in sent(run)
        if each.sent_ns is not None and more.t_ns < each.sent_ns < more.t_ns + 30 * MS
    ]
    assert len(soon) >= 8
    assert {each.failure for each in sent(run)} == {None, "aborted"}


async def test_users_who_are_wanted_again_stay(
    truth_url: str, under_load: UnderLoad, until: Until
) -> None:
    plan = plan_for(
        truth_url,
        "again",
        arrivals=Arrivals.CLOSED,
        rate_per_s=None,
        concurrency=6,
        duration_s=2.0,
    )

    async with under_load(plan) as run:
        await until(lambda: len(sent(run)) >= 20)
        for users in (1, 6, 1, 6):
            await run.process.change(Change(concurrency=users))
        assert await run.end() == 0

    last_ns = told(run)[-1].t_ns
    end_ns = told(run, LoadKind.DRAINING)[0].t_ns
    assert asked_at_most_at_once(run, last_ns + 100 * MS, end_ns) == 6


@pytest.mark.parametrize("line", [b"faster!\n", b'{"type":"Change","concurrency":3}\n'])
async def test_a_bad_command_changes_nothing(
    truth_url: str, under_load: UnderLoad, until: Until, line: bytes
) -> None:
    async with under_load(plan_for(truth_url, "bad", duration_s=2.0)) as run:
        await until(lambda: len(sent(run)) >= 10)
        run.process._process.stdin.write(line)
        assert await run.end() == 0

    assert len(sent(run)) == 39
    assert [each.rate_per_s for each in told(run)] == [20]


async def test_the_end_of_the_commands_is_not_the_end_of_the_run(
    truth_url: str, under_load: UnderLoad, until: Until
) -> None:
    async with under_load(plan_for(truth_url, "eof", duration_s=2.0)) as run:
        await until(lambda: len(sent(run)) >= 5)
        run.process._process.stdin.close()
        await run.process.change(Change(rate_per_s=1.0))
        assert await run.end() == 0

    assert len(sent(run)) == 39


async def test_a_late_command_is_not_heard(
    truth_url: str, under_load: UnderLoad, until: Until
) -> None:
    plan = plan_for(truth_url, "late", model="ttft=1", duration_s=0.5)

    async with under_load(plan) as run:
        await until(lambda: bool(told(run, LoadKind.DRAINING)))
        await run.process.change(Change(rate_per_s=100.0))
        assert await run.end() == 0
        await run.process.change(Change(rate_per_s=100.0))

    assert len(sent(run)) == 9
    assert len(told(run)) == 1


async def test_a_trace_keeps_its_times(
    truth_url: str, under_load: UnderLoad, until: Until
) -> None:
    rows = tuple(
        TraceRow(offset_s=n / 20, prompt_tokens=8, output_tokens=4) for n in range(20)
    )
    plan = plan_for(
        truth_url, "trace", arrivals=Arrivals.TRACE, rate_per_s=None, trace=rows
    )

    async with under_load(plan) as run:
        await until(lambda: len(sent(run)) >= 5)
        await run.process.change(Change(rate_per_s=1.0))
        assert await run.end() == 0

    offsets = [each.intended_ns - sent(run)[0].intended_ns for each in sent(run)]
    assert offsets == [n * 50 * MS for n in range(20)]


@pytest.mark.timing
async def test_changes_without_end_cost_no_send_its_time(
    truth_url: str, under_load: UnderLoad, until: Until
) -> None:
    """A key that is held down: thirty changes a second."""
    async with under_load(plan_for(truth_url, "held", rate_per_s=40.0)) as run:
        await until(lambda: len(sent(run)) >= 5)
        until_ns = monotonic_ns() + 2 * S
        n = 0
        while monotonic_ns() < until_ns:
            n += 1
            await run.process.change(Change(rate_per_s=40.0 + n % 7))
            await asyncio.sleep(1 / 30)
        assert await run.end() == 0

    lags = sorted((each.sent_ns or 0) - each.intended_ns for each in sent(run))
    assert len(told(run)) == n + 1
    assert lags[len(lags) // 10] < 1 * MS  # most may wait for a core, not for a change
