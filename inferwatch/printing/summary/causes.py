"""Causes of slow requests, memory use and stalls of the scheduler, as JSON."""

from msgspec import to_builtins

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import counted, format_duration, format_share
from inferwatch.metrics.cache.memory import BlockPicture
from inferwatch.metrics.requests.request_groups import GroupBy, group_requests
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.printing.summary.latencies import Summary, quantiles_row
from inferwatch.printing.summary.why import by_cause
from inferwatch.printing.text import named_line

MOST_SLOW = 10
"""The number of slow requests that are listed individually."""


def cause_rows(snapshot: Snapshot) -> Summary:
    """Causes of slow requests in the window, memory, batch sizes and stalls."""
    slowest, memory, curve = snapshot.slowest, snapshot.memory, snapshot.batch_curve
    return {
        "slowest": None
        if slowest is None
        else to_builtins(slowest) | {"sentence": slowest.sentence},
        "slow_requests": [request_row(each) for each in slowest_rows(snapshot)],
        "request_groups": group_rows(snapshot),
        "memory": None if memory is None else to_builtins(memory),
        "block_maps": [_block_map(each) for each in snapshot.block_maps],
        "batch_curve": None if curve is None else to_builtins(curve),
        "stalls": [
            to_builtins(each)
            | {
                "start_s": each.start_ns / NS_PER_S,
                "duration_s": (each.end_ns - each.start_ns) / NS_PER_S,
            }
            for each in snapshot.stalls
        ],
    }


def slowest_rows(snapshot: Snapshot) -> list[RequestRow]:
    rows = [each for each in snapshot.requests if each.ttft_s is not None]
    rows.sort(key=lambda each: (-(each.ttft_s or 0.0), each.key))
    return rows[:MOST_SLOW]


def group_rows(snapshot: Snapshot) -> Summary:
    models = {each.source: each.model for each in snapshot.engines}
    contexts = {
        each.source: each.max_model_len
        for each in snapshot.engines
        if each.max_model_len
    }
    return {
        by.name.lower(): [
            to_builtins(group)
            | {
                "ttft_s": quantiles_row(group.ttft_s),
                "output_tokens": quantiles_row(group.output_tokens),
            }
            for group in group_requests(snapshot.requests, by, models, contexts)
        ]
        for by in GroupBy
    }


def request_row(row: RequestRow) -> Summary:
    return {
        "key": row.key,
        "request_id": row.request_id,
        "external_id": row.external_id,
        "sequence": row.sequence,
        "state": row.state,
        "ttft_s": row.ttft_s,
        "queue_s": row.queue_s,
        "prefill_s": row.prefill_s,
        "tpot_s": row.tpot_s,
        "itl_max_s": row.itl_max_s,
        "e2el_s": row.e2el_s,
        "prompt_tokens": row.prompt_tokens,
        "cached_tokens": row.cached_tokens,
        "output_tokens": row.output_tokens,
        "thinking_tokens": row.thinking_tokens,
        "media_items": row.media_items,
        "media_cached": row.media_cached,
        "preemptions": row.preemptions,
        "cause": row.cause,
        "ttft_parts_s": by_cause(row.ttft_parts),
        "itl_cause": row.itl_cause,
        "lora": row.lora,
        "priority": row.priority,
        "class": row.class_name,
        "header": row.header,
    }


def _block_map(picture: BlockPicture) -> Summary:
    """The number of blocks in each state; only screens draw the map itself."""
    free, cached, private, shared = picture.counts
    return {
        "source": picture.source,
        "rank": picture.rank,
        "t_s": picture.t_ns / NS_PER_S,
        "free_blocks": free,
        "cached_blocks": cached,
        "private_blocks": private,
        "shared_blocks": shared,
        "holders": len(picture.holders),
        "cost_us": picture.cost_us,
    }


def cause_lines(summary: Summary) -> list[str]:
    """Lines on what the slowest requests waited for, memory use, and stalls."""
    lines = []
    slowest, memory, stalls = summary["slowest"], summary["memory"], summary["stalls"]
    if slowest is not None and slowest["sentence"]:
        lines.append(named_line("slowest", slowest["sentence"]))
    if memory is not None and memory["private_blocks"] is not None:
        private, shared = memory["private_blocks"], memory["shared_blocks"]
        waste = format_share(memory["waste_share"]).strip()
        blocks = f"{private:,} private, {shared:,} shared now"
        lines.append(
            named_line("KV blocks", f"{blocks}; {waste} of their room is waste")
        )
    if stalls:
        worst = format_duration(max(each["duration_s"] for each in stalls)).strip()
        text = f"{counted(len(stalls), 'stall')}, the longest {worst}"
        lines.append(named_line("stalls", text))
    return lines
