"""A priority that starves: its requests wait while better ones that came later start.

Asked once a tick of the requests that are known: no step pays for it.
"""

from dataclasses import dataclass
from itertools import islice

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import rank_of
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.requests.request_index import RequestIndex

MOST_WAITING = 2_000
"""Waiting requests that are looked at, those first that wait longest."""
MOST_STARTED = 2_000
"""The same of those that started meanwhile, the latest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StarvedPriority:
    """The priority whose oldest request was passed by, and how often."""

    priority: int
    oldest_wait_s: float
    oldest_key: str
    since_ns: int
    """Since when the oldest waits."""
    waiting: int
    """Requests of this priority that wait."""
    passed_by: int
    """Requests of a better priority that came later and were scheduled before it."""
    most: int
    """The priority that most of these have."""
    others: int
    """Requests of its own priority, or a worse one, that were scheduled meanwhile."""
    at_least: bool = False
    """Whether more may have started than are still known."""

    @property
    def share(self) -> float:
        """Of those scheduled meanwhile, the share of better ones that came later."""
        return self.passed_by / (self.passed_by + self.others)


def starved_priority(
    requests: RequestIndex, now_ns: int, least_wait_s: float
) -> StarvedPriority | None:
    """Return what the request that waits longest was passed by by; None if by nothing.

    A request of a worse priority has to wait for so long at least. None, too, where
    all have the same priority, as under first come, first served.
    """
    ranked = [
        each
        for each in islice(requests.waiting, MOST_WAITING)
        if each.priority is not None and each.waiting_since_ns is not None
    ]
    before_ns = now_ns - round(least_wait_s * NS_PER_S)
    oldest = min(ranked, key=_since_ns, default=None)
    if oldest is None or _since_ns(oldest) > before_ns:
        return None
    since_ns, own = _since_ns(oldest), oldest.priority or 0
    looked_at = [*islice(requests.running, MOST_STARTED)]
    ended = [*requests.latest_ended(MOST_STARTED)]
    looked_at += ended
    passed, others = dict[int, int](), 0
    for each in looked_at:
        if each.scheduled_ns is None or each.scheduled_ns < since_ns:
            continue
        if each.priority is None or not _share_a_queue(each, oldest):
            continue
        if each.priority >= own:
            others += 1
        elif (each.added_ns or 0) > since_ns:
            passed[each.priority] = passed.get(each.priority, 0) + 1
    if not passed:
        return None
    last_end_ns = ended[-1].end_ns if len(ended) == MOST_STARTED else None
    return StarvedPriority(
        priority=own,
        oldest_wait_s=(now_ns - since_ns) / NS_PER_S,
        oldest_key=oldest.key,
        since_ns=since_ns,
        waiting=sum(each.priority == own for each in ranked),
        passed_by=sum(passed.values()),
        most=max(passed, key=lambda priority: passed[priority]),
        others=others,
        at_least=last_end_ns is not None and last_end_ns > since_ns,
    )


def _since_ns(request: Request) -> int:
    return request.waiting_since_ns or 0


def _share_a_queue(one: Request, other: Request) -> bool:
    """Return whether both were queued by one rank of one engine."""
    if one.source != other.source:
        return False
    if one.ordinal is None or other.ordinal is None:
        return True
    return rank_of(one.ordinal) == rank_of(other.ordinal)
