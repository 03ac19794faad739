"""Were sessions sent the same requests at the same times? Then they are paired.

A load of the same plan and seed, or one that repeats another, is the same to the
microsecond: bursts and long prompts come to both sessions at the same places, and what
they do to one they do to the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inferwatch.compare.requests import CLIENT_DONE, UNKNOWN, ClientRequests
from inferwatch.compare.span import ComparedSpan, WarmupCut
from inferwatch.metrics.series.quantiles import Ints

Truths = npt.NDArray[np.bool_]

LEAST_SHARED = 0.9
"""Of the requests of either; some may not have been sent before it was stopped."""
LEAST_ALIKE = 0.95
"""Of those shared: due at the same time, with as many prompt tokens."""
NEAR_NS = 1_000_000
"""Moments of a schedule are exact; when a load began is not."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What a load generator meant to send, its warm-up left out; one row a request."""

    index: Ints
    due_ns: Ints
    """In session time."""
    prompt_tokens: Ints
    done: Truths
    """It was answered."""

    @classmethod
    def of(cls, client: ClientRequests) -> "Schedule | None":
        """None where there is none, or where there were several loads."""
        columns = client.columns
        if not len(client) or len(np.unique(columns["source"])) > 1:
            return None
        order = np.argsort(columns["number"], kind="stable")
        index = columns["number"][order]
        if (np.diff(index) <= 0).any():
            return None
        return cls(
            index=index,
            due_ns=columns["intended_ns"][order],
            prompt_tokens=columns["prompt_tokens"][order],
            done=columns[CLIENT_DONE][order] == 1,
        )


@dataclass(frozen=True, slots=True)
class SharedSchedule:
    """What several sessions were sent alike."""

    index: Ints
    """Of the requests that all were sent."""
    late_ns: tuple[int, ...]
    """By how much each session's schedule stands later than that of the first."""
    answered: Truths
    """By all of them."""
    due_ns: Ints
    """In the first's session time."""


def shared(schedules: Sequence[Schedule | None]) -> SharedSchedule | None:
    """None where they were sent different things, or at different times."""
    known = [each for each in schedules if each is not None]
    if len(known) < len(schedules) or len(known) < 2:
        return None
    index = known[0].index
    for each in known[1:]:
        index = np.intersect1d(index, each.index, assume_unique=True)
    if len(index) < LEAST_SHARED * max(len(each.index) for each in known):
        return None
    rows = [np.searchsorted(each.index, index) for each in known]
    due = [each.due_ns[row] for each, row in zip(known, rows, strict=True)]
    tokens = [each.prompt_tokens[row] for each, row in zip(known, rows, strict=True)]
    late_ns = [0]
    for place in range(1, len(known)):
        late = due[place] - due[0]
        late_ns.append(int(np.median(late)))
        alike = np.abs(late - late_ns[-1]) <= NEAR_NS
        told = (tokens[0] != UNKNOWN) & (tokens[place] != UNKNOWN)
        alike &= ~told | (tokens[0] == tokens[place])
        if alike.mean() < LEAST_ALIKE:
            return None
    done = [each.done[row] for each, row in zip(known, rows, strict=True)]
    return SharedSchedule(
        index=index,
        late_ns=tuple(late_ns),
        answered=np.logical_and.reduce(done),
        due_ns=due[0],
    )


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
