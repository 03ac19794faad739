"""Tenants as a table in 80 columns and as JSON, the same on screen and in print."""

from collections.abc import Iterator, Sequence
from typing import Any

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    UNKNOWN,
    counted,
    format_count,
    format_durations,
    format_share,
)
from inferwatch.metrics.number import label_of
from inferwatch.metrics.objectives.spending_view import Spending
from inferwatch.metrics.tenants.view import Tenant, Tenants
from inferwatch.printing.document import Block, Sentence, headed_table
from inferwatch.printing.text import (
    WIDTH,
    columns_of,
    end_of,
    grid,
    wrapped_sentence,
)
from inferwatch.visible import visible

HEADING = "Who made whom wait"
NAME_WIDTH = 14
HEADS = (
    *(label_of(Tenant.name), label_of(Tenant.requests)),
    *(label_of(Tenant.prompt_tokens), label_of(Tenant.output_tokens), "KV block·s"),
    *(label_of(Tenant.queue_ns), label_of(Tenant.caused_ns)),
    *(label_of(Tenant.caused_share), label_of(Tenant.cost_share)),
)
NO_ENGINE = "No engine told who waited for whom: that takes a probe in it"


def tenant_rows(tenants: Tenants) -> list[list[str]]:
    """Return the cells of each of their rows, under ``HEADS``."""
    every = tenants.rows
    queues = format_durations([_seconds(each.queue_ns) for each in every])
    caused = format_durations([_seconds(each.caused_ns) for each in every])
    return [
        [
            end_of(each.name, NAME_WIDTH),
            format_count(each.requests).strip(),
            format_count(each.prompt_tokens).strip(),
            format_count(each.output_tokens).strip(),
            format_count(tenants.block_s(each)).strip(),
            queues[number].strip(),
            caused[number].strip(),
            format_share(each.caused_share).strip(),
            format_share(each.cost_share).strip(),
        ]
        for number, each in enumerate(every)
    ]


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / NS_PER_S


def tenant_sentence(tenants: Tenants) -> str:
    """Return who makes others wait most, in a sentence without its period."""
    if not tenants.several:
        return "One tenant alone: it makes nobody else wait"
    if tenants.queue_ns is None:
        return NO_ENGINE
    worst = max(tenants.tenants, key=lambda each: each.caused_ns or 0)
    share = worst.caused_share
    if not worst.caused_ns or share is None:
        return "No tenant made another one queue"
    if not worst.requests:
        return (
            f"{visible(worst.name)}, none of whose requests ended, caused "
            f"{format_share(share).strip()} of the queue time of all others"
        )
    part = worst.requests / tenants.requests
    return (
        f"{visible(worst.name)} sent {format_share(part).strip()} of the requests and "
        f"caused {format_share(share).strip()} of the queue time of all others"
    )


def fairness_sentence(tenants: Tenants) -> str | None:
    """Return how evenly tenants were served; None where no minute tells.

    Judged by what is left over when a minute ends: it is blind to shorter queues.
    """
    minutes = tenants.fairness
    if not minutes:
        return None
    worst = min(minutes, key=lambda each: each.index)
    return (
        "Fairness (Jain's index), by what was left over at the end of a minute: "
        f"{minutes[-1].index:.2f} in the latest of {counted(len(minutes), 'minute')}, "
        f"{worst.index:.2f} at worst; 1: the same part of what each wanted. Queues "
        "that were gone by then do not show in it"
    )


def tenants_lines(tenants: Tenants) -> list[str]:
    """Return the sentence, the table and how fair it was, within 80 columns."""
    lines = wrapped_sentence(f"{tenant_sentence(tenants)}.", then="")
    rows = [[*HEADS], *tenant_rows(tenants)]
    table = grid(rows)
    if (over := max(map(columns_of, table)) - WIDTH) > 0:
        table = grid([[end_of(n, NAME_WIDTH - over), *rest] for n, *rest in rows])
    lines += ["", *table, ""]
    lines += wrapped_sentence(
        "Of requests that ended. queue: in the engine's queue, without the wait for "
        "the running step that --all counts; caused: what others queued so while its "
        "own requests, ended or not, held what bound the queue, and which part of all "
        "their queue time that is; cost: its part of the time of all steps, by tokens.",
        then="",
    )
    fair = fairness_sentence(tenants)
    if fair is not None:
        lines += wrapped_sentence(f"{fair}.", then="")
    return lines


def tenants_blocks(tenants: Tenants | None) -> Iterator[Block]:
    """A heading, the table and its sentences; nothing where there is one tenant."""
    if tenants is None or not tenants.several:
        return
    yield from headed_table(HEADING, HEADS[1:], tenant_rows(tenants), first=HEADS[0])
    yield Sentence(text=f"{tenant_sentence(tenants)}.")
    if (fair := fairness_sentence(tenants)) is not None:
        yield Sentence(text=f"{fair}.")


def rows_of_several(
    tenants: Tenants | None, spending: Spending | None
) -> dict[str, Any]:
    """Return the tenants for a summary; nothing where there is one alone."""
    if tenants is None or not tenants.several:
        return {}
    return {"tenants": tenants_row(tenants, spending)}


def tenants_row(
    tenants: Tenants | None, spending: Spending | None = None
) -> dict[str, Any] | None:
    """Return the tenants for JSON: whole nanoseconds and tokens, which add up.

    None where no request has ended and no step ran.
    """
    if tenants is None:
        return None
    per_hour = None if spending is None else spending.per_hour
    return {
        "requests": tenants.requests,
        "queue_ns": tenants.queue_ns,
        "gpu_ns": tenants.gpu_ns,
        "sentence": tenant_sentence(tenants),
        "tenants": [_row(tenants, each, per_hour) for each in tenants.tenants],
        "fairness": [
            {"since_ns": each.since_ns, "jain": each.index} for each in tenants.fairness
        ],
    }


def _row(tenants: Tenants, each: Tenant, per_hour: float | None) -> dict[str, Any]:
    share = each.cost_share
    cost = None if per_hour is None or share is None else per_hour * share
    return {
        "name": each.name,
        "requests": each.requests,
        "prompt_tokens": each.prompt_tokens,
        "output_tokens": each.output_tokens,
        "kv_token_ns": each.kv_token_ns,
        "kv_block_s": tenants.block_s(each),
        "queue_ns": each.queue_ns,
        "queue_by_others_ns": each.by_others_ns,
        "queue_by_itself_ns": each.by_itself_ns,
        "caused_ns": each.caused_ns,
        "caused_share": each.caused_share,
        "gpu_ns": each.gpu_ns,
        "cost_share": share,
        "cost_per_hour": cost,
        "served": list(each.served),
    }


def last_known(values: Sequence[float | None]) -> str:
    """Return the latest known share as text."""
    known = [value for value in values if value is not None]
    return format_share(known[-1]).strip() if known else UNKNOWN
