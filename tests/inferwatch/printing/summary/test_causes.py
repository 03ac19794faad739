"""What the summary says of causes, memory and the scheduler."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from inferwatch.metrics.cache.memory import BlockPicture, BlockState, Memory
from inferwatch.metrics.causes.cause import Cause, SlowGroup, SlowRequests
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.efficiency import BatchCurve, BatchPoint, Stall, StallKind
from inferwatch.printing.summary.session import summarise, summary_text

See = Callable[..., Snapshot]

SLOWEST = SlowRequests(
    n=2,
    of=150,
    from_s=1.0,
    is_p99=True,
    ttft_s=4.0,
    groups=(
        SlowGroup(
            cause=Cause.QUEUE_KV,
            requests=2,
            share=0.61,
            worst_key="e/1",
            worst_ttft_s=2.5,
        ),
    ),
    worst_key="e/1",
    worst_ttft_s=2.5,
)
MEMORY = Memory(private_blocks=40, shared_blocks=12, waste_share=0.05)
PICTURE = BlockPicture(
    source="e",
    rank=0,
    t_ns=2_000_000_000,
    states=bytes(
        [BlockState.NULL, BlockState.PRIVATE, BlockState.SHARED, BlockState.FREE]
    ),
    references=bytes([0, 1, 2, 0]),
    holders=(0, 1),
    held=((1, 2), (2,)),
)
CURVE = BatchCurve(
    points=(BatchPoint(batch=8, steps=3, step_mean_s=0.01, output_tokens_per_s=800.0),)
)
STALL = Stall(
    kind=StallKind.GAP, start_ns=10**9, end_ns=2 * 10**9, evidence="no step for 1 s"
)


def row(number: int, ttft_s: float | None) -> RequestRow:
    parts = () if ttft_s is None else ((Cause.QUEUE_KV, ttft_s),)
    return RequestRow(
        key=f"e/{number}", request_id=str(number), ttft_s=ttft_s, ttft_parts=parts
    )


def told(see: See, **parts: Any) -> dict[str, Any]:
    return summarise(replace(see([]), **parts), "s1")


def test_the_slowest_are_told_by_cause_and_with_their_sentence(see: See) -> None:
    summary = told(see, slowest=SLOWEST)

    slowest = summary["slowest"]
    assert slowest["sentence"] == "61% of p99 TTFT is queueing for KV blocks"
    assert slowest["groups"][0]["cause"] == "queue: KV blocks"
    assert "61% of p99 TTFT is queueing for KV blocks" in summary_text(summary)


def test_requests_are_told_in_groups_of_each_kind(see: See) -> None:
    rows = [
        replace(row(number, ttft_s), prompt_tokens=100 * number, lora="sql")
        for number, ttft_s in ((1, 0.2), (2, 0.4), (3, None))
    ]
    groups = told(see, requests=tuple(rows))["request_groups"]

    assert groups.keys() == {
        "cause",
        "class",
        "header",
        "length",
        "model",
        "output",
        "priority",
        "sampling",
        "time",
    }
    assert [(each["name"], each["requests"]) for each in groups["length"]] == [
        ("1–127", 1),
        ("128–511", 2),
    ]
    (model,) = groups["model"]
    assert model["name"] == "sql"
    assert model["cause"] == "queue: KV blocks"
    assert (model["ttft_s"]["n"], model["ttft_s"]["p50"]) == (2, 0.2)
    assert groups["header"] == []
    json.dumps(groups)


def test_requests_are_told_slowest_first_and_those_without_a_token_not(
    see: See,
) -> None:
    summary = told(see, requests=(row(1, 0.2), row(2, None), row(3, 0.7)))

    slow = summary["slow_requests"]
    assert [each["request_id"] for each in slow] == ["3", "1"]
    assert slow[0]["ttft_parts_s"] == {"queue: KV blocks": 0.7}


def test_blocks_are_counted_by_what_they_are(see: See) -> None:
    (blocks,) = told(see, block_maps=(PICTURE,))["block_maps"]

    names = ("free_blocks", "cached_blocks", "private_blocks", "shared_blocks")
    assert [blocks[name] for name in names] == [1, 0, 1, 1]


def test_memory_curve_and_stalls_become_json(see: See) -> None:
    summary = told(see, memory=MEMORY, batch_curve=CURVE, stalls=(STALL,))

    again = json.loads(json.dumps(summary))
    assert again["memory"]["shared_blocks"] == 12
    assert again["batch_curve"]["points"][0]["batch"] == 8
    assert again["stalls"][0]["duration_s"] == 1.0
    assert "1 stall, the longest 1.00 s" in summary_text(summary)


def test_where_nothing_is_known_nothing_is_said(see: See) -> None:
    summary = told(see)

    assert summary["slowest"] is None
    assert summary["memory"] is None
    assert summary["stalls"] == []
    assert "slowest" not in summary_text(summary)
