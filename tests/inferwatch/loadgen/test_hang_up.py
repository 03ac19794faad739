"""Clients that hang up, over a whole run: who they are, how they count."""

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from collectors.contract.readings import AnyReading, RequestRecord
from inferwatch.loadgen.plan.lengths import fixed
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan, TransportKind
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.load.result import load_result
from inferwatch.printing.summary.load import load_text, summarise_load

RunPlan = Callable[[LoadPlan], Awaitable[list[AnyReading]]]
SOON_NS = 100_000_000
TOKENS = 30


def plan_of(url: str, run_id: str, **changes: Any) -> LoadPlan:
    common: dict[str, Any] = {
        "model": "ttft=0.01,itl=0.01",
        "url": url,
        "rate_per_s": 20.0,
        "requests": 40,
        "warmup_s": 0.0,
        "output_tokens": fixed(TOKENS),
        "hang_up": 0.5,
        "hang_up_after_tokens": 4,
    }
    return LoadPlan(run_id=run_id, **{**common, **changes})


def book_of(run_id: str, readings: list[AnyReading]) -> LoadBook:
    book = LoadBook(run_id)
    for each in readings:
        book.fold(each)
    return book


@pytest.mark.parametrize("kind", [TransportKind.RAW, TransportKind.HTTPX])
async def test_the_server_sees_each_hang_up_at_once(
    truth_url: str,
    truth_log: Callable[[str], Any],
    run_plan: RunPlan,
    kind: TransportKind,
) -> None:
    run_id = f"leaves{kind}"
    readings = await run_plan(plan_of(truth_url, run_id, transport=kind))

    records = [each for each in readings if isinstance(each, RequestRecord)]
    truth = truth_log(run_id)
    hung = [each for each in records if each.failure == "hung_up"]
    assert 10 <= len(hung) <= 30
    for each in records:
        seen = truth[each.external_id]
        assert seen.cut_off is (each.failure == "hung_up")
    for each in hung:
        seen = truth[each.external_id]
        assert 0 <= seen.cut_off_ns - (each.end_ns or 0) < SOON_NS
        assert 4 <= len(seen.sent_ns) < TOKENS


async def test_each_request_has_one_outcome_and_none_is_the_servers_fault(
    truth_url: str, run_plan: RunPlan
) -> None:
    book = book_of("counts", await run_plan(plan_of(truth_url, "counts")))

    result = load_result(book)

    assert result.sent == 40
    assert result.failed == result.unaccounted == 0
    assert result.hung_up == result.aborted > 0
    assert result.succeeded + result.hung_up == 40
    said = load_text(summarise_load(result))
    assert f"{result.hung_up} aborted, {result.hung_up} of them hung up, as" in said


async def test_a_user_who_hung_up_asks_again_at_once(
    truth_url: str, run_plan: RunPlan
) -> None:
    plan = plan_of(
        truth_url,
        "again",
        arrivals=Arrivals.CLOSED,
        rate_per_s=None,
        concurrency=1,
        requests=6,
        hang_up=1.0,
    )

    records = book_of("again", await run_plan(plan)).records

    assert {each.failure for each in records} == {"hung_up"}
    pauses = [
        (later.sent_ns or 0) - (earlier.end_ns or 0)
        for earlier, later in pairwise(records)
    ]
    assert max(pauses) < SOON_NS  # whom a server refuses waits 250 ms


async def test_nobody_hangs_up_in_a_warm_up(truth_url: str, run_plan: RunPlan) -> None:
    plan = plan_of(truth_url, "warms", warmup_s=0.5, hang_up=1.0, requests=5)

    book = book_of("warms", await run_plan(plan))

    assert book.warmup
    assert {each.failure for each in book.warmup} == {None}
    assert {each.failure for each in book.records} == {"hung_up"}
