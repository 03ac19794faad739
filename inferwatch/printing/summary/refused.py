"""Refused requests in a summary, by route, status and reason."""

from collections import Counter
from collections.abc import Iterable

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import ELSEWHERE
from inferwatch.metrics.requests.refusals import RefusedGroup
from inferwatch.printing.summary.latencies import Summary
from inferwatch.printing.text import named_line

NUMBERS = (
    *("route", "method", "status", "reason", "parameter", "count"),
    *("asked_tokens", "allowed_tokens", "why", "vantage"),
)


def refused_rows(groups: Iterable[RefusedGroup]) -> list[Summary]:
    return [
        {
            **{name: getattr(each, name) for name in NUMBERS},
            "last_s": None if each.last_ns is None else each.last_ns / NS_PER_S,
        }
        for each in groups
    ]


def refused_lines(rows: Iterable[Summary]) -> list[str]:
    """A line of refused requests by reason; none where none was refused."""
    said = refused_words(rows)
    return [named_line("refused", said)] if said else []


def refused_words(rows: Iterable[Summary]) -> str:
    """Counts of refused requests by reason: *7 too long, 3 unknown model*."""
    counts = Counter[str]()
    for each in rows:
        elsewhere = each["route"] == ELSEWHERE
        counts["on other paths" if elsewhere else each["why"]] += each["count"]
    return ", ".join(f"{count:,} {why}" for why, count in counts.most_common())
