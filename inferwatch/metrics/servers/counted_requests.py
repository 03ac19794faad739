"""Requests that servers without a probe count as refused or as deferred."""

from collections.abc import Collection
from dataclasses import dataclass

from inferwatch.metrics.requests.refusals import RefusedGroup
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.servers.scraped import ScrapedServers
from inferwatch.metrics.servers.scraped_window import ScrapedWindow
from inferwatch.metrics.steps.engines import known_sum


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRequests:
    """The requests of all servers without a probe that answer."""

    refused: tuple[RefusedGroup, ...] = ()
    """Of the last minute."""
    ended: int = 0
    """Requests that ended in the last minute."""
    running: int = 0
    waiting: int = 0
    deferred: int = 0
    """Waiting requests that something else than room keeps from the batch."""


def counted_requests(
    scraped: ScrapedServers, probed: Collection[str], now_ns: int
) -> CountedRequests | None:
    """Return what servers count; None while none refuses or defers requests."""
    servers = [
        each
        for each in scraped.servers.values()
        if each.answers and each.source not in probed
    ]
    ranks = [rank for each in servers for rank in each.ranks.values()]
    gauges = [rank.gauges for rank in ranks if rank.gauges is not None]
    deferred = sum(each.deferred for each in gauges)
    refuse = any(rank.counted.has_refused for rank in ranks)
    if not deferred and not refuse:
        return None
    minute = ScrapedWindow(servers, {}, now_ns, Window.MINUTE) if refuse else None
    return CountedRequests(
        refused=minute.refused if minute else (),
        ended=minute.gained.all_ended if minute else 0,
        running=known_sum(each.running for each in gauges) or 0,
        waiting=known_sum(each.waiting for each in gauges) or 0,
        deferred=deferred,
    )
