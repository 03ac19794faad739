"""The slowest requests of any window, and the causes of their delay."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import msgspec

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.causes.cause import TTFT_CAUSES, Cause, SlowGroup, SlowRequests
from inferwatch.metrics.causes.queue import largest
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.series.saving import Parts, WrittenParts
from inferwatch.metrics.series.window import Quantiles, Window

KEPT_S = max(window.value for window in Window if window.value is not None) // NS_PER_S
MOST_A_SECOND = 64
MOST_BEFORE = 1_024
SECONDS_A_PART = 4
SECONDS_A_PART_BEFORE = 256
LEAST_FOR_P99 = 100
SLOWEST_PART = 10
"""Of few requests, the slowest tenth is shown."""
NO_TIME = (0,) * len(TTFT_CAUSES)
LEAST_PART = 10
"""A cause with less than a tenth of the time names no request."""


class Slow(NamedTuple):
    """One request that may be among the slowest; orders by slowness."""

    ttft_ns: int
    t_ns: int
    """When its first token came."""
    key: str
    spent_ns: list[int]
    """In the order of ``TTFT_CAUSES``."""


class Spent(NamedTuple):
    """The TTFTs of a window by cause."""

    n: int
    ttft_ns: int
    """Sum of these TTFTs."""
    by_cause: dict[Cause, int]
    worst: dict[Cause, str]
    """Key of the request delayed most, for each cause of at least a tenth of all."""


class _Sum(NamedTuple):
    """Requests by cause, in the order of ``TTFT_CAUSES``."""

    n: int
    spent_ns: Sequence[int]
    worst: Sequence[Slow | None]
    """The request that each cause delayed most."""


class SavedSlowLog(msgspec.Struct, array_like=True):
    """The parts of a SlowLog in a checkpoint."""

    lately: list[int]
    before: list[int]


class SlowLog:
    """Keeps the 64 slowest requests of each second of the longest rolling window.

    Of the time before that it keeps the slowest 1,024.
    """

    def __init__(self) -> None:
        self._lately: dict[int, list[Slow]] = {}
        """Slowest requests by second, in rising order."""
        self._before: list[Slow] = []
        """Slowest requests of the time before those, in rising order."""
        self._latest = 0
        """The latest second."""
        self._sums: dict[int, _Sum] = {}
        """Sums of seconds that did not change since they were asked for."""

    def add(self, request: Request, t_ns: int) -> None:
        """Add a request at its first token."""
        ttft_ns, spent_ns = request.ttft_ns, request.spent_ns
        if ttft_ns is None or spent_ns is None:
            return
        second = t_ns // NS_PER_S
        kept = self._lately.get(second)
        if kept is None:
            kept = self._new_second(second)
        if len(kept) >= MOST_A_SECOND and ttft_ns < kept[0].ttft_ns:
            return
        self._sums.pop(second, None)
        _keep(kept, Slow(ttft_ns, t_ns, request.key, spent_ns), MOST_A_SECOND)

    def explain(self, request: Request) -> None:
        """Update the causes of a request that were reported after its first token."""
        if request.ttft_ns is None or request.arrived_ns is None:
            return
        t_ns, key = request.arrived_ns + request.ttft_ns, request.key
        kept = self._lately.get(t_ns // NS_PER_S, [])
        place = bisect_left(kept, (request.ttft_ns, t_ns, key))
        key_there = kept[place].key if place < len(kept) else None
        if key_there == key and request.spent_ns is not None:
            self._sums.pop(t_ns // NS_PER_S, None)
            kept[place] = kept[place]._replace(spent_ns=request.spent_ns)

    def of(
        self, now_ns: int, window: Window, ttft: Quantiles | None
    ) -> SlowRequests | None:
        """Return the slowest requests of a window, given its TTFT quantiles."""
        if ttft is None or not ttft.n or ttft.p99 is None:
            return None
        is_p99 = ttft.n >= LEAST_FOR_P99
        if is_p99:
            slow = list(self._from(now_ns, window, ttft.p99))
        else:
            most = max(1, ttft.n // SLOWEST_PART)
            slow = sorted(self._from(now_ns, window, 0.0), reverse=True)[:most]
        return _grouped(slow, ttft.n, is_p99=is_p99) if slow else None

    def worst_s(self, now_ns: int, window: Window) -> float | None:
        """Return the longest TTFT of a window; cheaper than ``of``."""
        worst = next(self._from(now_ns, window, 0.0), None)
        if worst is None:
            return None
        since_ns = -1 if window.value is None else now_ns - window.value
        firsts = (rows[-1] for rows in self._lately.values() if rows)
        latest = [each for each in firsts if each.t_ns > since_ns]
        return max([worst, *latest]).ttft_ns / NS_PER_S

    def spent(self, now_ns: int, window: Window) -> Spent:
        """Return the TTFTs of a window by cause, for the requests that are kept."""
        since_ns = -1 if window.value is None else now_ns - window.value
        first = since_ns // NS_PER_S
        parts = [self._sum(each) for each in self._lately if each > first]
        edge = self._lately.get(first, [])
        parts.append(_sum_of([slow for slow in edge if slow.t_ns > since_ns]))
        if window.value is None:
            parts.append(_sum_of(self._before))
        whole = _sum_of_all(parts)
        total_ns = sum(whole.spent_ns)
        caused = list(zip(TTFT_CAUSES, whole.spent_ns, whole.worst, strict=True))
        return Spent(
            whole.n,
            total_ns,
            {cause: ns for cause, ns, _ in caused if ns > 0},
            {c: w.key for c, ns, w in caused if w and ns * LEAST_PART > total_ns},
        )

    def saved(self, parts: Parts) -> SavedSlowLog:
        """Return the state for a checkpoint; past seconds are in lasting ``parts``."""
        lately = (slow for kept in self._lately.values() for slow in kept)
        return SavedSlowLog(
            lately=_saved(lately, SECONDS_A_PART, parts),
            before=_saved(self._before, SECONDS_A_PART_BEFORE, parts),
        )

    def restore(self, saved: SavedSlowLog, parts: WrittenParts) -> None:
        for slow in _restored(saved.lately, parts):
            self._lately.setdefault(slow.t_ns // NS_PER_S, []).append(slow)
        self._before = sorted(_restored(saved.before, parts))
        self._latest = max(self._lately, default=0)

    def _from(self, now_ns: int, window: Window, least_s: float) -> Iterator[Slow]:
        """Return the kept requests of a window that took at least ``least_s``."""
        since_ns = -1 if window.value is None else now_ns - window.value
        first = since_ns // NS_PER_S
        kept = [rows for second, rows in self._lately.items() if second >= first]
        if window.value is None:
            kept.append(self._before)
        for rows in kept:
            for slow in reversed(rows):
                if slow.ttft_ns / NS_PER_S < least_s:
                    break
                if slow.t_ns > since_ns:
                    yield slow

    def _sum(self, second: int) -> _Sum:
        """Return the sum of a second, which seldom changes once it is over."""
        known = self._sums.get(second)
        if known is None:
            known = self._sums[second] = _sum_of(self._lately[second])
        return known

    def _new_second(self, second: int) -> list[Slow]:
        """Return the list of a new second.

        Seconds that are too old for any window but the session's are merged.
        """
        self._latest = max(self._latest, second)
        oldest = self._latest - KEPT_S
        for old in [each for each in self._lately if each < oldest]:
            self._sums.pop(old, None)
            for slow in self._lately.pop(old):
                _keep(self._before, slow, MOST_BEFORE)
        return self._lately.setdefault(second, [])


def _sum_of(requests: Sequence[Slow]) -> _Sum:
    if not requests:
        return _Sum(0, NO_TIME, (None,) * len(NO_TIME))
    columns = list(zip(*(slow.spent_ns for slow in requests), strict=True))
    worst: list[Slow | None] = []
    for column in columns:
        most = max(column)
        if most <= 0:
            worst.append(None)
        elif column.count(most) == 1:
            worst.append(requests[column.index(most)])
        else:
            equals = zip(requests, column, strict=True)
            worst.append(max(slow for slow, each in equals if each == most))
    return _Sum(len(requests), [sum(column) for column in columns], worst)


def _sum_of_all(parts: Sequence[_Sum]) -> _Sum:
    spent_ns = [sum(each) for each in zip(*(p.spent_ns for p in parts), strict=True)]
    worst = []
    for place, slowest in enumerate(zip(*(p.worst for p in parts), strict=True)):
        known = [(slow.spent_ns[place], slow) for slow in slowest if slow is not None]
        worst.append(max(known)[1] if known else None)
    return _Sum(sum(part.n for part in parts), spent_ns, worst)


def _keep(slowest: list[Slow], slow: Slow, most: int) -> None:
    if len(slowest) >= most:
        if slow <= slowest[0]:
            return
        del slowest[0]
    insort(slowest, slow)


def _grouped(rows: list[Slow], of: int, *, is_p99: bool) -> SlowRequests:
    """Return these requests' time by cause, with the request that each delayed most."""
    whole = _sum_of(rows)
    whole_ns = sum(whole.spent_ns)
    firsts = [largest(slow.spent_ns) for slow in rows]
    groups = []
    causes = zip(TTFT_CAUSES, whole.spent_ns, whole.worst, strict=True)
    for cause, total_ns, worst in causes:
        if total_ns > 0 and worst is not None:
            groups.append(
                SlowGroup(
                    cause=cause,
                    requests=firsts.count(cause),
                    share=total_ns / whole_ns,
                    worst_key=worst.key,
                    worst_ttft_s=worst.ttft_ns / NS_PER_S,
                )
            )
    slowest = max(rows)
    return SlowRequests(
        n=len(rows),
        of=of,
        from_s=min(rows).ttft_ns / NS_PER_S,
        is_p99=is_p99,
        ttft_s=whole_ns / NS_PER_S,
        groups=tuple(sorted(groups, key=attrgetter("share"), reverse=True)),
        worst_key=slowest.key,
        worst_ttft_s=slowest.ttft_ns / NS_PER_S,
    )


def _saved(slow: Iterable[Slow], seconds: int, parts: Parts) -> list[int]:
    """Save the requests in one part per ``seconds``, and return the parts' numbers."""

    def part_of(each: Slow) -> int:
        return each.t_ns // NS_PER_S // seconds

    ordered = sorted(slow, key=lambda each: (part_of(each), each))
    latest = max(map(part_of, ordered), default=0)
    return [
        parts.add(list(some), lasts=number != latest)
        for number, some in groupby(ordered, key=part_of)
    ]


def _restored(numbers: list[int], parts: WrittenParts) -> list[Slow]:
    return [slow for number in numbers for slow in parts.get(number, list[Slow])]
