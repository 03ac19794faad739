"""The moments of one request as arrays, computed once per story.

Drawing a request of 100,000 tokens costs no more than its columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.story.story import (
    RequestStory,
    SpanKind,
    Spike,
    StorySpan,
    StoryStep,
)

Ints = NDArray[np.int64]
OF_OUTPUT = {SpanKind.THINKING, SpanKind.DECODE}


@dataclass(frozen=True)
class Stop:
    """A place of the cursor: a phase, or a token after a gap."""

    t_ns: int
    span: StorySpan | None = None
    gap: int | None = None
    """Index of the gap; it ends with the token two after it."""


@dataclass(frozen=True)
class GapColumns:
    """Gaps between tokens as columns; each shows its longest."""

    edges: Ints
    """Index of the first gap of each column, and one past the last."""
    worst: Ints
    """Index of the longest gap of each column."""

    @property
    def first(self) -> int:
        return int(self.edges[0])

    @property
    def fold(self) -> int:
        """The most gaps that a column stands for."""
        return int(np.diff(self.edges).max(initial=1))

    def column_of(self, gap: int) -> int | None:
        """Return the column of a gap, None if it is out of range."""
        column = int(np.searchsorted(self.edges, gap, side="right")) - 1
        return column if 0 <= column < len(self.worst) else None


@dataclass(frozen=True, eq=False)
class Lane:
    """The spans of one kind as arrays."""

    kind: SpanKind
    spans: tuple[StorySpan, ...]
    starts: Ints = field(repr=False)
    ends: Ints = field(repr=False)

    @property
    def total_s(self) -> float:
        return float((self.ends - self.starts).sum()) / NS_PER_S


def lane_of(kind: SpanKind, spans: Sequence[StorySpan]) -> Lane:
    starts = np.array([each.start_ns for each in spans], dtype=np.int64)
    ends = np.array([each.end_ns for each in spans], dtype=np.int64)
    return Lane(kind, tuple(spans), starts, ends)


class StoryMoments:
    """The times of everything that happened to a request."""

    def __init__(self, story: RequestStory) -> None:
        self.story = story
        spans = story.spans
        arrived_ns = story.row.arrived_ns
        self.arrived_ns = arrived_ns
        """Zero of its axis; what the client did before is left of it."""
        self.start_ns = min((arrived_ns, *(each.start_ns for each in spans[:1])))
        last_ns = spans[-1].end_ns if spans else arrived_ns
        self.end_ns = max(story.end_ns, last_ns, self.start_ns + 1)
        self.tokens = np.array(story.token_ns, dtype=np.int64)
        self.gaps = np.diff(self.tokens)
        self.gap_ends = self.tokens[1:]

    @cached_property
    def first_token_ns(self) -> int | None:
        return int(self.tokens[0]) if len(self.tokens) else None

    @cached_property
    def thought_ns(self) -> int:
        """End of its thinking; its start where that is not told apart."""
        spans = self.story.spans
        ends = (each.end_ns for each in spans if each.kind is SpanKind.THINKING)
        return max(ends, default=self.start_ns)

    @cached_property
    def ttft_end_ns(self) -> int:
        """End of the wait for the first token, or of the wait so far."""
        ttft_s = self.story.row.ttft_s
        if ttft_s is not None:
            return self.arrived_ns + round(ttft_s * NS_PER_S)
        return self.end_ns if self.first_token_ns is None else self.first_token_ns

    @cached_property
    def median_ns(self) -> float | None:
        return float(np.median(self.gaps)) if len(self.gaps) else None

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """The request's spans of time, one lane for each kind that it has."""
        spans = self.story.spans
        by_kind = {
            kind: [each for each in spans if each.kind is kind] for kind in SpanKind
        }
        return tuple(
            lane_of(kind, spans_of_kind)
            for kind, spans_of_kind in by_kind.items()
            if spans_of_kind
        )

    @cached_property
    def spikes(self) -> dict[int, Spike]:
        """Late tokens by the index of the gap before them, in order.

        A token late only at its client counts when the engine produced it.
        """
        if not len(self.gaps):
            return {}
        spikes: dict[int, Spike] = {}
        for spike in sorted(self.story.spikes, key=lambda each: each.t_ns):
            place = int(np.searchsorted(self.gap_ends, spike.t_ns, side="right")) - 1
            earlier = spikes.get(max(place, 0))
            if earlier is None or earlier.cause is Cause.MERGED:
                spikes[max(place, 0)] = spike
        return dict(sorted(spikes.items()))

    @cached_property
    def step_ends(self) -> Ints:
        """The end times of the request's steps that were recorded one by one."""
        return np.array([each.end_ns for each in self.story.steps], dtype=np.int64)

    @cached_property
    def phases(self) -> tuple[Stop, ...]:
        until_ns = self.first_token_ns
        return tuple(
            Stop((each.start_ns + each.end_ns) // 2, span=each)
            for each in self.story.spans
            if each.kind not in OF_OUTPUT
            and (until_ns is None or each.end_ns <= until_ns)
        )

    def columns(self, room: int, around: int | None = None) -> GapColumns:
        """Return all gaps in ``room`` columns, or one gap a column around a gap."""
        count = len(self.gaps)
        if not count or room < 1:
            return GapColumns(np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int64))
        if around is not None or count <= room:
            first = min(max((around or 0) - room // 2, 0), max(count - room, 0))
            edges = np.arange(first, min(first + room, count) + 1)
            return GapColumns(edges, edges[:-1])
        edges = np.arange(room + 1) * count // room
        bounds = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        worst = [low + int(self.gaps[low:high].argmax()) for low, high in bounds]
        return GapColumns(edges, np.array(worst, dtype=np.int64))

    def stop_at(self, t_ns: int) -> Stop | None:
        """Return the phase or gap at a moment, None outside the request."""
        if not self.start_ns <= t_ns <= self.end_ns:
            return None
        first_ns = self.first_token_ns
        if first_ns is not None and t_ns > first_ns:
            gap = int(np.searchsorted(self.gap_ends, t_ns))
            return Stop(t_ns, gap=gap) if gap < len(self.gaps) else None
        return next(
            (
                stop
                for stop in self.phases
                if stop.span is not None
                and stop.span.start_ns <= t_ns <= stop.span.end_ns
            ),
            None,
        )

    def stop_at_cursor(self, cursor_ns: int | None) -> Stop | None:
        return None if cursor_ns is None else self.stop_at(cursor_ns)

    @property
    def telling_ns(self) -> int:
        """Middle of the longest phase before the first token; without any, the end."""
        if not self.phases:
            return self.end_ns
        return max(self.phases, key=_length_ns).t_ns

    def moved(self, cursor_ns: int | None, by: int, columns: GapColumns) -> Stop | None:
        """Return the stop ``by`` phases and columns away, but not beyond the ends."""
        count = len(self.phases) + len(columns.worst)
        if not count:
            return None
        here = count if cursor_ns is None else self._place(cursor_ns, columns)
        place = min(max(here + by, 0), count - 1)
        if place < len(self.phases):
            return self.phases[place]
        gap = int(columns.worst[place - len(self.phases)])
        return Stop(int(self.gap_ends[gap]), gap=gap)

    def _place(self, t_ns: int, columns: GapColumns) -> int:
        """Return the index of a moment among the phases and then the gap columns."""
        stop = self.stop_at(t_ns)
        if stop is not None and stop.gap is not None:
            column = columns.column_of(stop.gap)
            return len(self.phases) + (column or 0)
        before = sum(each.t_ns < t_ns for each in self.phases)
        if stop is None or stop.span is None:
            past = len(self.phases) + len(columns.worst)
            return past if t_ns > self.end_ns or before else -1
        return next(i for i, each in enumerate(self.phases) if each.span is stop.span)

    def late_from(self, cursor_ns: int | None, by: int) -> int | None:
        """Return the moment of the next or previous late token."""
        late_ns = [int(self.gap_ends[gap]) for gap in self.spikes]
        if by > 0:
            here_ns = self.start_ns - 1 if cursor_ns is None else cursor_ns
            return next((each for each in late_ns if each > here_ns), None)
        here_ns = self.end_ns + 1 if cursor_ns is None else cursor_ns
        return next((each for each in reversed(late_ns) if each < here_ns), None)

    def step_at(self, t_ns: int) -> StoryStep | None:
        place = int(np.searchsorted(self.step_ends, t_ns))
        steps = self.story.steps
        if place < len(steps) and steps[place].start_ns <= t_ns:
            return steps[place]
        return None


def _length_ns(stop: Stop) -> int:
    return 0 if stop.span is None else stop.span.end_ns - stop.span.start_ns
