"""Requests in groups: who is in which, and what they add up to."""

import doctest
from typing import Any

import pytest

from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.requests import request_groups
from inferwatch.metrics.requests.request_groups import (
    LENGTH_BOUNDS,
    LENGTHS,
    GroupBy,
    group_of,
    group_requests,
    length_bucket,
    quantiles_of,
)
from inferwatch.metrics.requests.request_row import RequestRow, RequestState


def row(key: str, **facts: Any) -> RequestRow:
    return RequestRow(key=f"demo/{key}", request_id=key, **facts)


def test_examples() -> None:
    outcome = doctest.testmod(request_groups)

    assert outcome.attempted
    assert not outcome.failed


@pytest.mark.parametrize(("place", "bound"), enumerate(LENGTH_BOUNDS))
def test_a_bucket_begins_at_its_bound(place: int, bound: int) -> None:
    assert length_bucket(bound - 1) == LENGTHS[place]
    assert length_bucket(bound) == LENGTHS[place + 1]


def test_lengths_stand_in_their_order_and_others_largest_first() -> None:
    rows = [
        row("a", prompt_tokens=9_000, priority=1),
        row("b", prompt_tokens=100, priority=0),
        row("c", prompt_tokens=600, priority=1),
        row("d"),
    ]

    lengths = group_requests(rows, GroupBy.LENGTH)
    priorities = group_requests(rows, GroupBy.PRIORITY)

    assert [each.name for each in lengths] == ["1–127", "512–2k", "8k–32k"]
    assert [(each.name, each.requests) for each in priorities] == [("1", 2), ("0", 1)]


@pytest.mark.parametrize(
    ("by", "facts", "name"),
    [
        (GroupBy.LENGTH, {"prompt_tokens": 512}, "512–2k"),
        (GroupBy.OUTPUT, {"output_tokens": 600}, "512–2k"),
        (GroupBy.OUTPUT, {}, None),
        (GroupBy.TIME, {"arrived_ns": 700 * 10**9}, "10–20 min"),
        (GroupBy.MODEL, {"lora": "sql"}, "sql"),
        (GroupBy.MODEL, {}, "tiny"),
        (GroupBy.PRIORITY, {"priority": 0}, "0"),
        (GroupBy.CLASS, {"class_name": "chat"}, "chat"),
        (GroupBy.HEADER, {"header": "team-a"}, "team-a"),
        (GroupBy.CAUSE, {"cause": Cause.QUEUE_KV}, "queue: KV blocks"),
        (GroupBy.LENGTH, {}, None),
        (GroupBy.PRIORITY, {}, None),
        (GroupBy.CLASS, {}, None),
        (GroupBy.HEADER, {}, None),
        (GroupBy.CAUSE, {}, None),
    ],
)
def test_a_request_is_in_the_group_of_what_it_tells(
    by: GroupBy, facts: dict[str, Any], name: str | None
) -> None:
    assert group_of(row("a", **facts), by, {"demo": "tiny"}) == name


def test_each_request_is_of_the_model_of_its_own_server() -> None:
    models = {"a": "small", "a/b": "large"}

    assert group_of(RequestRow(key="a/b/7", request_id="7"), GroupBy.MODEL, models) == (
        "large"
    )
    assert group_of(RequestRow(key="a/7", request_id="7"), GroupBy.MODEL, models) == (
        "small"
    )
    assert group_of(RequestRow(key="c/7", request_id="7"), GroupBy.MODEL, models) is (
        None
    )


def test_a_group_adds_up_what_is_known_of_its_requests() -> None:
    done, gone = RequestState.FINISHED, RequestState.ABORTED
    rows = [
        row(
            "a",
            state=done,
            prompt_tokens=100,
            cached_tokens=40,
            ttft_s=0.2,
            tpot_s=0.01,
            itl_max_s=0.03,
            cause=Cause.PREFILL,
            ttft_parts=((Cause.PREFILL, 0.2),),
        ),
        row(
            "b",
            state=gone,
            prompt_tokens=100,
            cached_tokens=0,
            ttft_s=0.9,
            itl_max_s=0.5,
            cause=Cause.QUEUE_KV,
            ttft_parts=((Cause.QUEUE_KV, 0.8), (Cause.PREFILL, 0.1)),
        ),
        row("c", state=RequestState.QUEUED, prompt_tokens=120, cause=Cause.PREFILL),
    ]
    (group,) = group_requests(rows, GroupBy.LENGTH)

    assert (group.requests, group.live, group.failed) == (3, 1, 1)
    assert (group.ttft_s.n, group.ttft_s.p50, group.ttft_s.p99) == (2, 0.2, 0.9)
    assert group.ttft_s.weak == ("p50", "p90", "p95", "p99")
    assert (group.tpot_p50_s, group.itl_max_s) == (0.01, 0.5)
    assert group.cached_share == 0.2
    assert group.cause is Cause.QUEUE_KV


def test_unknown_stays_unknown() -> None:
    (group,) = group_requests([row("a", prompt_tokens=1)], GroupBy.LENGTH)

    assert group.ttft_s.n == 0
    assert group.ttft_s.p50 is group.tpot_p50_s is group.itl_max_s is None
    assert group.cached_share is None
    assert group.cause is None


def test_what_most_requests_name_counts_where_no_parts_are_known() -> None:
    rows = [
        row("a", prompt_tokens=1, cause=Cause.QUEUE_SEQS),
        row("b", prompt_tokens=1, cause=Cause.PREFILL),
        row("c", prompt_tokens=1, cause=Cause.PREFILL),
    ]

    assert group_requests(rows, GroupBy.LENGTH)[0].cause is Cause.PREFILL


def test_percentiles_are_values_that_were_observed() -> None:
    found = quantiles_of([each / 1_000 for each in range(1_000, 0, -1)])

    assert (found.p50, found.p95, found.p99, found.max) == (0.5, 0.95, 0.99, 1.0)
    assert not found.weak


def test_sampling_takes_near_limits_together_and_names_the_end_of_the_context() -> None:
    rows = [
        row("a", temperature=0.7, top_p=0.9, max_tokens=300, prompt_tokens=10),
        row("b", temperature=0.7, top_p=0.9, max_tokens=400, prompt_tokens=10),
        row("c", temperature=0.7, max_tokens=1_990, prompt_tokens=58),
        row("d", prompt_tokens=5),
    ]

    groups = group_requests(rows, GroupBy.SAMPLING, {}, {"demo": 2_048})

    assert [(each.name, each.requests) for each in groups] == [
        ("temp 0.7, top-p 0.9, max 257–512", 2),
        ("temp 0.7, max to the context's end", 1),
    ]
    assert group_of(rows[2], GroupBy.SAMPLING, {}) == "temp 0.7, max 1,025–2,048"


def test_a_group_tells_how_its_answers_ended() -> None:
    done: dict[str, Any] = {"state": RequestState.FINISHED, "priority": 0}
    rows = [
        row("a", output_tokens=10, reason="stop", thinking_tokens=4, **done),
        row("b", output_tokens=30, reason="length", **done),
        row("c", output_tokens=99, priority=0, state=RequestState.DECODE),
    ]

    (group,) = group_requests(rows, GroupBy.PRIORITY)

    assert group.output_tokens.n == 2
    assert group.output_tokens.max == 30
    assert (group.cut_share, group.thinking_share) == (0.5, 0.4)
