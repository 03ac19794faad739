"""What there is to do right now."""

from dataclasses import dataclass

from collectors.clock import NS_PER_S
from inferwatch.metrics.engine.engines import Engines, Rank
from inferwatch.metrics.engine.requests import Requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Requests that run and wait; None before anything is known."""

    running: int | None = None
    waiting: int | None = None
    oldest_wait_s: float | None = None

    @property
    def any(self) -> bool:
        """There is something to do."""
        return bool(self.running or self.waiting)


def current_work(now_ns: int, engines: Engines, requests: Requests) -> Work:
    """Joins what engines said last with what requests told since.

    An engine speaks when a step ends: it is right about what it held then, loss or
    not. Requests speak at once: they know of a step still under way, and of a queue
    that no step serves. The larger number is the current one.
    """
    if not engines.ranks and not requests.live:
        return Work()
    ranks = [rank for rank in engines.ranks.items() if not rank[1].lost]
    running = sum(_running(rank, requests, source) for (source, _), rank in ranks)
    waiting = sum(rank.waiting for _, rank in ranks) if running else 0
    since = [each.waiting_since_ns or now_ns for each in requests.waiting]
    return Work(
        running=max(running, len(requests.running)),
        waiting=max(waiting, len(requests.waiting)),
        oldest_wait_s=(now_ns - min(since)) / NS_PER_S if since else None,
    )


def _running(rank: Rank, requests: Requests, source: str) -> int:
    """Still running of those that ran in the latest step."""
    if rank.at_rest is not None:
        return rank.at_rest.running or 0
    if rank.step is None:
        return 0
    known = requests.members(source)
    members = [known.get(ordinal) for ordinal in rank.step.members]
    return rank.step.running - sum(each is not None and each.ended for each in members)
