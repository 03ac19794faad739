"""Were sessions sent the same requests at the same times? Then they are paired.

A load of the same plan and seed, or one that repeats another, is the same to the
microsecond: bursts and long prompts come to both sessions at the same places, and what
they do to one they do to the other.
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
"""Of the requests of either; some may not have been sent before it was stopped."""
LEAST_ALIKE = 0.95
"""Of those shared: as many prompt tokens."""
NEAR_NS = 100_000
"""Moments of a schedule are exact; those told by other tools need not be."""
FIRST = 64
"""One of so many at the beginning of each is the same request."""
TRIED = 200
"""Requests by which it is told which."""


@dataclass(frozen=True, slots=True)
class PlannedRequests:
    """What a load generator meant to send, its warm-up left out; one row a request."""

    number: Ints
    """Of the request in its load run, which may count a warm-up as well."""
    due_ns: Ints
    """In session time, ascending."""
    prompt_tokens: Ints
    done: Truths
    """It was answered."""

    @classmethod
    def of(cls, client: ClientRequests) -> "PlannedRequests | None":
        """None where there is none, or where there were several loads."""
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
    """What several sessions were sent alike."""

    numbers: tuple[Ints, ...]
    """Of the requests that all were sent, as each session numbers them."""
    late_ns: tuple[int, ...]
    """By how much each session's schedule stands later than that of the first."""
    answered: Truths
    """By all of them."""
    due_ns: Ints
    """In the first's session time."""


def shared(schedules: Sequence[PlannedRequests | None]) -> SharedSchedule | None:
    """None where they were sent different things, or at different times."""
    known = [each for each in schedules if each is not None]
    if len(known) < len(schedules) or len(known) < 2:
        return None
    first, late_ns = known[0], [0]
    rows = [np.arange(len(first.due_ns))]
    for each in known[1:]:
        late_ns.append(_late(first, each))
        rows.append(_same_moments(first, each, late_ns[-1]))
    in_all = np.logical_and.reduce([row >= 0 for row in rows])
    rows = [row[in_all] for row in rows]
    longest = max(len(each.number) for each in known)
    if not in_all.any() or in_all.sum() < LEAST_SHARED * longest:
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


def _late(first: PlannedRequests, other: PlannedRequests) -> int:
    """By how much the other's moments come later, if they are the same moments.

    Either may begin with requests that the other lacks: what repeats a session knows
    nothing of those that were never answered.
    """
    due, tried = first.due_ns, other.due_ns[:TRIED]
    candidates = [*(tried[0] - due[:FIRST]), *(tried[:FIRST] - due[0])]
    met = [_near(due, tried - late).mean() for late in candidates]
    return int(candidates[int(np.argmax(met))])


def _near(due: Ints, moments: Ints) -> Truths:
    after = np.searchsorted(due, moments).clip(1, max(len(due) - 1, 1))
    around = np.minimum(after, len(due) - 1), after - 1
    before, behind = (np.abs(due[at] - moments) <= NEAR_NS for at in around)
    return np.asarray(before | behind)


def _same_moments(first: PlannedRequests, other: PlannedRequests, late_ns: int) -> Ints:
    """The other's row of each request of the first; -1 where it has none.

    One after the other, as several may be due at one moment.
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
    told = (tokens != UNKNOWN) & (others != UNKNOWN)
    return bool((~told | (tokens == others)).mean() >= LEAST_ALIKE)


def common_spans(
    spans: Sequence[ComparedSpan], late_ns: Sequence[int]
) -> list[ComparedSpan] | None:
    """The same part of the schedule of each; None where they share none."""
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
