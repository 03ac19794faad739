"""Requests that API servers refused: how many, by route, status and reason."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from msgspec import structs

from collectors.contract.readings import (
    ELSEWHERE,
    Refusal,
    RefusalReason,
    Refusals,
    Vantage,
)
from inferwatch.metrics.series.window import Window

LEAST_REFUSED = 3
"""Refused requests of a minute below which they are no trouble."""
MOST_PROCESSES = 1_024
MOST_KINDS = 1_024
MOST_RECENT = 20_000
KEPT_NS = 2 * (Window.FIVE_MINUTES.value or 0)
BY_SERVER = "5"
"""First digit of a status that is the server's fault, not the request's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedGroup:
    """Refused requests of one kind in the window."""

    route: str | None
    """The route's template; None where only the reason is known."""
    method: str | None
    status: str | None
    """400, or 4xx where the server counts no finer."""
    reason: RefusalReason | None
    parameter: str | None = None
    count: int
    last_ns: int | None = None
    """When the latest one was reported."""
    asked_tokens: int | None = None
    """The most that any of the session asked for, where it was too long."""
    allowed_tokens: int | None = None
    vantage: Vantage = Vantage.FRONTEND

    @property
    def by_server(self) -> bool:
        return (self.status or BY_SERVER).startswith(BY_SERVER)

    @property
    def place(self) -> str:
        """Route and status as text, or the reason where only that is known."""
        known = [each for each in (self.route, self.status) if each]
        return " ".join(known) or self.why

    @property
    def why(self) -> str:
        """The reason as text: *invalid parameter n*."""
        if self.reason is None:
            return self.status or "–"
        if self.reason is RefusalReason.OTHER and self.status is not None:
            return f"status {self.status}"
        return f"{self.reason} {self.parameter}" if self.parameter else f"{self.reason}"


def of_requests(groups: Iterable[RefusedGroup]) -> list[RefusedGroup]:
    """Return the groups of requests to a model, without other paths."""
    return [each for each in groups if each.route != ELSEWHERE]


def refused_count(groups: Iterable[RefusedGroup]) -> int:
    """Return how many requests to a model were refused."""
    return sum(each.count for each in of_requests(groups))


def refused_failures(
    outcomes: Mapping[str, int], groups: Iterable[RefusedGroup]
) -> int:
    """Return how many counted as failed were refused, as our load generator saw."""
    return min(outcomes.get("failed_unlisted", 0), refused_count(groups))


def counted_groups(counts: Mapping[str, int], failed: int) -> tuple[RefusedGroup, ...]:
    """Return what a server counts by ``route status`` or reason, most first.

    Requests that a full queue turned away, and those that the engine had and that
    ``failed``, are counted by their status, too.
    """
    full = counts.get(RefusalReason.QUEUE_FULL, 0)
    left = full + failed
    groups = [_counted(full, reason=RefusalReason.QUEUE_FULL)]
    for kind, count in sorted(counts.items(), key=lambda each: -each[1]):
        if kind == RefusalReason.QUEUE_FULL:
            continue
        route, _, status = kind.rpartition(" ")
        taken = min(left, count) if status.startswith(BY_SERVER) else 0
        left -= taken
        groups.append(_counted(count - taken, route, status))
    groups.sort(key=lambda each: -each.count)
    return tuple(each for each in groups if each.count)


def _counted(
    count: int,
    route: str | None = None,
    status: str | None = None,
    reason: RefusalReason | None = None,
) -> RefusedGroup:
    return RefusedGroup(
        route=route,
        method=None,
        status=status,
        reason=reason,
        count=count,
        vantage=Vantage.SCRAPE,
    )


class RefusalKind(NamedTuple):
    """What refusals are counted by."""

    route: str
    method: str
    status: int
    reason: RefusalReason
    parameter: str | None


class RefusalTotal(msgspec.Struct, array_like=True):
    """The refusals of one kind over the session."""

    count: int = 0
    last_ns: int = 0
    asked: int | None = None
    allowed: int | None = None


class SavedRefusals(msgspec.Struct, array_like=True):
    """A RefusalLog as checkpoints keep it."""

    latest: list[Refusals]
    totals: list[tuple[RefusalKind, RefusalTotal]]
    recent: list[tuple[int, int, int]]
    """Moment, index in ``totals``, count."""


def joined(before: Refusals | None, told: Refusals) -> Refusals:
    """Return a report with what an earlier one of the same process knew of others."""
    if before is None:
        return told
    kinds = {_kind(each): each for each in (*before.refused, *told.refused)}
    refused = list(kinds.values())[-MOST_KINDS:]
    whole = told.whole or before.whole
    return structs.replace(told, refused=refused, whole=whole)


class LatestRefusals:
    """What each API server told last, from which follows what is new."""

    def __init__(self) -> None:
        self.by_process: dict[tuple[str, int], Refusals] = {}
        """The latest count of each kind, by source and process."""

    def take(self, told: Refusals) -> list[tuple[Refusal, int]]:
        """Return the kinds of which more were refused, and how many more."""
        key = told.source, told.pid
        before = self.by_process.pop(key, None)
        if before is not None and before.t_ns > told.t_ns:
            self.by_process[key] = before
            return []
        self.by_process[key] = joined(before, told)
        while len(self.by_process) > MOST_PROCESSES:
            del self.by_process[next(iter(self.by_process))]
        known = {_kind(each): each.count for each in before.refused} if before else {}
        more = []
        for each in told.refused:
            # Of a kind that is not in a whole report there were none by then.
            unknown = 0 if before and before.whole else each.count - each.new
            more.append((each, each.count - known.get(_kind(each), unknown)))
        return [(each, new) for each, new in more if new > 0]


class RefusalLog:
    """Adds up what API servers report of the requests that they refused."""

    def __init__(self) -> None:
        self._latest = LatestRefusals()
        self._totals: dict[RefusalKind, RefusalTotal] = {}
        self._recent: deque[tuple[int, RefusalKind, int]] = deque(maxlen=MOST_RECENT)

    @property
    def reports(self) -> bool:
        """Whether any API server reports what it refuses."""
        return bool(self._latest.by_process)

    def take(self, told: Refusals) -> int:
        """Add a report; return how many requests to a model were newly refused."""
        fresh = 0
        for each, new in self._latest.take(told):
            kind = _kind(each)
            if kind in self._totals or len(self._totals) < MOST_KINDS:
                self._add(told.t_ns, kind, new, each)
                fresh += new if kind.route != ELSEWHERE else 0
        return fresh

    def _add(self, t_ns: int, kind: RefusalKind, new: int, told: Refusal) -> None:
        total = self._totals.setdefault(kind, RefusalTotal())
        total.count += new
        total.last_ns = t_ns
        total.allowed = told.allowed_tokens
        if told.asked_tokens is not None:
            total.asked = max(total.asked or 0, told.asked_tokens)
        self._recent.append((t_ns, kind, new))
        while self._recent[0][0] < t_ns - KEPT_NS:
            self._recent.popleft()

    def over(self, now_ns: int, window: Window) -> tuple[RefusedGroup, ...] | None:
        """Return the refusals of a window, most first; None if nobody reports them."""
        if not self.reports:
            return None
        counts = {kind: total.count for kind, total in self._totals.items()}
        if window.value is not None:
            counts = dict.fromkeys(counts, 0)
            for t_ns, kind, new in self._recent:
                if t_ns > now_ns - window.value:
                    counts[kind] += new
        return tuple(
            self._group(kind, count)
            for kind, count in sorted(counts.items(), key=lambda each: -each[1])
            if count
        )

    def _group(self, kind: RefusalKind, count: int) -> RefusedGroup:
        total = self._totals[kind]
        return RefusedGroup(
            route=kind.route,
            method=kind.method,
            status=str(kind.status),
            reason=kind.reason,
            parameter=kind.parameter,
            count=count,
            last_ns=total.last_ns,
            asked_tokens=total.asked,
            allowed_tokens=total.allowed,
        )

    def saved(self) -> SavedRefusals:
        """Return the state for a checkpoint."""
        places = {kind: place for place, kind in enumerate(self._totals)}
        return SavedRefusals(
            latest=[*self._latest.by_process.values()],
            totals=[*self._totals.items()],
            recent=[(t_ns, places[kind], new) for t_ns, kind, new in self._recent],
        )

    def restore(self, saved: SavedRefusals) -> None:
        self._latest.by_process = {
            (each.source, each.pid): each for each in saved.latest
        }
        self._totals = dict(saved.totals)
        kinds = [kind for kind, _ in saved.totals]
        self._recent.extend(
            (t_ns, kinds[place], new) for t_ns, place, new in saved.recent
        )


def _kind(told: Refusal) -> RefusalKind:
    return RefusalKind(
        told.route, told.method, told.status, told.reason, told.parameter
    )
