"""Finds out whether sessions were sent the same requests at the same times.

A load with the same plan and seed, or one that repeats another, is the same to the
microsecond: bursts and long prompts come to both sessions at the same times and affect
both alike. Such sessions are compared request by request ("paired").
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inferwatch.metrics.series.quantiles import Ints
from inferwatch.studies.compare.reading.requests import (
    CLIENT_DONE,
    UNKNOWN,
    ClientRequests,
)
from inferwatch.studies.compare.reading.span import ComparedSpan, WarmupCut

Truths = npt.NDArray[np.bool_]

LEAST_SHARED = 0.9
"""Share of the requests that both must have; a stopped load may lack the last ones."""
LEAST_COMMON = 0.1
"""Share from which one load is called one that was stopped."""
LEAST_ALIKE = 0.95
"""Share of the shared requests whose prompt tokens must be equal."""
NEAR_NS = 100_000
"""Tolerance for schedule times; those of other tools may be inexact."""
FIRST = 64
"""One of this many first requests of each session must be the same request."""
TRIED = 200
"""How many requests are matched to find the offset of two schedules."""


@dataclass(frozen=True, slots=True)
class PlannedRequests:
    """What a load generator planned to send, without warm-up; one row per request."""

    number: Ints
    """The request's number in its load run, which may count warm-up requests."""
    due_ns: Ints
    """Due times in session time, ascending."""
    prompt_tokens: Ints
    done: Truths
    """Whether the request was answered."""

    @classmethod
    def of(cls, client: ClientRequests) -> "PlannedRequests | None":
        """The plan, or None if no load or more than one load was recorded."""
        columns = client.columns
        if not len(client) or len(np.unique(columns["source"])) > 1:
            return None
        if len(np.unique(columns["number"])) < len(client):
            return None
        order = np.lexsort((columns["number"], columns["intended_ns"]))
        return cls(
            number=columns["number"][order],
            due_ns=columns["intended_ns"][order],
            prompt_tokens=columns["prompt_tokens"][order],
            done=columns[CLIENT_DONE][order] == 1,
        )


@dataclass(frozen=True, slots=True)
class SharedSchedule:
    """The requests that several sessions have in common."""

    numbers: tuple[Ints, ...]
    """The common requests, by the numbers that each session gives them."""
    late_ns: tuple[int, ...]
    """How much later each session's schedule is than the first's."""
    answered: Truths
    """Whether all sessions answered the request."""
    due_ns: Ints
    """Due times in the first session's time."""


def shared(schedules: Sequence[PlannedRequests | None]) -> SharedSchedule | None:
    """The requests that all sessions were sent at the same times; None without any."""
    found = common(schedules)
    longest = max(len(each.number) for each in schedules if each is not None)
    if found is None or len(found.due_ns) < LEAST_SHARED * longest:
        return None
    return found


def common(schedules: Sequence[PlannedRequests | None]) -> SharedSchedule | None:
    """The requests of one load that some sessions may have got for longer than others.

    What one left unanswered as its load ended, another had the time to answer: that is
    no difference between engines, so such sessions are not paired.
    """
    known = [each for each in schedules if each is not None]
    if len(known) < len(schedules) or len(known) < 2:
        return None
    first, late_ns = known[0], [0]
    rows = [np.arange(len(first.due_ns))]
    for each in known[1:]:
        late_ns.append(_delay_ns(first, each))
        rows.append(_same_moments(first, each, late_ns[-1]))
    in_all = np.logical_and.reduce([row >= 0 for row in rows])
    rows = [row[in_all] for row in rows]
    of_all, longest = in_all.sum(), max(len(each.number) for each in known)
    if not of_all or of_all < LEAST_COMMON * longest:
        return None
    if of_all < LEAST_SHARED * _most_at_once(known, late_ns):
        return None
    tokens = [each.prompt_tokens[row] for each, row in zip(known, rows, strict=True)]
    if not all(_alike(tokens[0], each) for each in tokens[1:]):
        return None
    done = [each.done[row] for each, row in zip(known, rows, strict=True)]
    return SharedSchedule(
        numbers=tuple(e.number[row] for e, row in zip(known, rows, strict=True)),
        late_ns=tuple(late_ns),
        answered=np.logical_and.reduce(done),
        due_ns=first.due_ns[in_all],
    )


def _most_at_once(schedules: Sequence[PlannedRequests], late_ns: Sequence[int]) -> int:
    """The most requests that a session was sent while all were loaded."""
    dues = [e.due_ns - late for e, late in zip(schedules, late_ns, strict=True)]
    from_ns, to_ns = max(due[0] for due in dues), min(due[-1] for due in dues)
    return max(
        int(((due >= from_ns - NEAR_NS) & (due <= to_ns + NEAR_NS)).sum())
        for due in dues
    )


def _delay_ns(first: PlannedRequests, other: PlannedRequests) -> int:
    """How much later the other session was sent the same requests, most likely.

    Either may begin with requests that the other lacks: a load that repeats a session
    does not know requests that were never answered.
    """
    due, starts = first.due_ns, other.due_ns[:TRIED]
    candidates = [*(starts[0] - due[:FIRST]), *(starts[:FIRST] - due[0])]
    met = [_near(due, starts - late).mean() for late in candidates]
    return int(candidates[int(np.argmax(met))])


def _near(due: Ints, moments: Ints) -> Truths:
    after = np.searchsorted(due, moments).clip(1, max(len(due) - 1, 1))
    around = np.minimum(after, len(due) - 1), after - 1
    before, behind = (np.abs(due[at] - moments) <= NEAR_NS for at in around)
    return np.asarray(before | behind)


def _same_moments(first: PlannedRequests, other: PlannedRequests, late_ns: int) -> Ints:
    """For each request of the first, the other's row, or -1 if it has none.

    Matched in order, as several requests may be due at one moment.
    """
    rows = np.full(len(first.due_ns), -1)
    theirs = (other.due_ns - late_ns).tolist()
    row = 0
    for place, due_ns in enumerate(first.due_ns.tolist()):
        while row < len(theirs) and theirs[row] < due_ns - NEAR_NS:
            row += 1
        if row < len(theirs) and theirs[row] <= due_ns + NEAR_NS:
            rows[place] = row
            row += 1
    return rows


def _alike(tokens: Ints, others: Ints) -> bool:
    both = (tokens != UNKNOWN) & (others != UNKNOWN)
    return bool((~both | (tokens == others)).mean() >= LEAST_ALIKE)


def common_spans(
    spans: Sequence[ComparedSpan], late_ns: Sequence[int]
) -> list[ComparedSpan] | None:
    """The same part of each schedule; None if there is no common part."""
    starts = [s.start_ns - late for s, late in zip(spans, late_ns, strict=True)]
    ends = [s.end_ns - late for s, late in zip(spans, late_ns, strict=True)]
    start_ns, end_ns = max(starts), min(ends)
    if end_ns <= start_ns:
        return None
    cut = spans[starts.index(start_ns)].cut
    if any(each.cut is WarmupCut.UNSETTLED for each in spans):
        cut = WarmupCut.UNSETTLED
    return [
        ComparedSpan(
            origin_ns=span.origin_ns,
            start_ns=start_ns + late,
            end_ns=end_ns + late,
            cut=cut,
            load_runs=span.load_runs,
        )
        for span, late in zip(spans, late_ns, strict=True)
    ]
