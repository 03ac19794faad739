"""The moments of one request as arrays, made once a story and asked at every drawing.

A request of a hundred thousand tokens costs what its columns cost.
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


@dataclass(frozen=True)
class Stop:
    """Where the cursor can stand: at a phase, or at a token that came after a gap."""

    t_ns: int
    span: StorySpan | None = None
    gap: int | None = None
    """Its number, from zero; the token it ends with is the next but one."""


@dataclass(frozen=True)
class GapColumns:
    """Gaps between tokens as columns; each stands for its worst."""

    edges: Ints
    """Number of the first gap of each column, and of the one behind the last."""
    worst: Ints
    """Number of the worst gap of each column."""

    @property
    def first(self) -> int:
        """Number of the first gap."""
        return int(self.edges[0])

    @property
    def fold(self) -> int:
        """Gaps a column, at most."""
        return int(np.diff(self.edges).max(initial=1))

    def column_of(self, gap: int) -> int | None:
        """The column that a gap is in; None outside of them."""
        column = int(np.searchsorted(self.edges, gap, side="right")) - 1
        return column if 0 <= column < len(self.worst) else None


@dataclass(frozen=True, eq=False)
class Lane:
    """The spans of one kind, as arrays."""

    kind: SpanKind
    spans: tuple[StorySpan, ...]
    starts: Ints = field(repr=False)
    ends: Ints = field(repr=False)

    @property
    def total_s(self) -> float:
        """All of them together."""
        return float((self.ends - self.starts).sum()) / NS_PER_S


def lane_of(kind: SpanKind, spans: Sequence[StorySpan]) -> Lane:
    """Spans that follow one another, as a lane."""
    starts = np.array([each.start_ns for each in spans], dtype=np.int64)
    ends = np.array([each.end_ns for each in spans], dtype=np.int64)
    return Lane(kind, tuple(spans), starts, ends)


class StoryMoments:
    """When what happened to a request."""

    def __init__(self, story: RequestStory) -> None:
        self.story = story
        spans = story.spans
        arrived_ns = story.row.arrived_ns
        self.arrived_ns = arrived_ns
        """Zero on its own axis; what the client did before is to the left of it."""
        self.start_ns = min((arrived_ns, *(each.start_ns for each in spans[:1])))
        last_ns = spans[-1].end_ns if spans else arrived_ns
        self.end_ns = max(story.end_ns, last_ns, self.start_ns + 1)
        self.tokens = np.array(story.token_ns, dtype=np.int64)
        self.gaps = np.diff(self.tokens)
        self.gap_ends = self.tokens[1:]

    @cached_property
    def first_token_ns(self) -> int | None:
        """When the first came out of the engine."""
        return int(self.tokens[0]) if len(self.tokens) else None

    @cached_property
    def ttft_end_ns(self) -> int:
        """The end of its wait for the first token, or of the wait so far."""
        ttft_s = self.story.row.ttft_s
        if ttft_s is not None:
            return self.arrived_ns + round(ttft_s * NS_PER_S)
        return self.end_ns if self.first_token_ns is None else self.first_token_ns

    @cached_property
    def median_ns(self) -> float | None:
        """Of its gaps."""
        return float(np.median(self.gaps)) if len(self.gaps) else None

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """Those that it has, in the order of their kinds."""
        spans = self.story.spans
        found = {
            kind: [each for each in spans if each.kind is kind] for kind in SpanKind
        }
        return tuple(lane_of(kind, told) for kind, told in found.items() if told)

    @cached_property
    def spikes(self) -> dict[int, Spike]:
        """Late tokens by the number of the gap before each, in order.

        One that was late only at its client is told of when the engine had made it.
        """
        if not len(self.gaps):
            return {}
        found: dict[int, Spike] = {}
        for spike in sorted(self.story.spikes, key=lambda each: each.t_ns):
            place = int(np.searchsorted(self.gap_ends, spike.t_ns, side="right")) - 1
            known = found.get(max(place, 0))
            if known is None or known.cause is Cause.MERGED:
                found[max(place, 0)] = spike
        return dict(sorted(found.items()))

    @cached_property
    def step_ends(self) -> Ints:
        """Of the steps that are told singly."""
        return np.array([each.end_ns for each in self.story.steps], dtype=np.int64)

    @cached_property
    def phases(self) -> tuple[Stop, ...]:
        """What it went through up to its first token; a phase is met in its middle."""
        until_ns = self.first_token_ns
        return tuple(
            Stop((each.start_ns + each.end_ns) // 2, span=each)
            for each in self.story.spans
            if each.kind is not SpanKind.DECODE
            and (until_ns is None or each.end_ns <= until_ns)
        )

    def columns(self, room: int, around: int | None = None) -> GapColumns:
        """All gaps in the room there is; with a gap given, one a column around it."""
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
        """The phase or the gap that a moment is in; None outside its life."""
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
        """The same, where there may be no cursor."""
        return None if cursor_ns is None else self.stop_at(cursor_ns)

    @property
    def telling_ns(self) -> int:
        """The middle of the longest phase before its first token."""
        if not self.phases:
            return self.end_ns
        return max(self.phases, key=_length_ns).t_ns

    def moved(self, cursor_ns: int | None, by: int, columns: GapColumns) -> Stop | None:
        """The stop so many phases and columns of gaps away; the ends hold."""
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
        """Among phases and columns."""
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
        """When the late token next to a moment came; from nowhere the first or last."""
        late_ns = [int(self.gap_ends[gap]) for gap in self.spikes]
        if by > 0:
            here_ns = self.start_ns - 1 if cursor_ns is None else cursor_ns
            return next((each for each in late_ns if each > here_ns), None)
        here_ns = self.end_ns + 1 if cursor_ns is None else cursor_ns
        return next((each for each in reversed(late_ns) if each < here_ns), None)

    def step_at(self, t_ns: int) -> StoryStep | None:
        """The step that was under way."""
        place = int(np.searchsorted(self.step_ends, t_ns))
        steps = self.story.steps
        if place < len(steps) and steps[place].start_ns <= t_ns:
            return steps[place]
        return None


def _length_ns(stop: Stop) -> int:
    return 0 if stop.span is None else stop.span.end_ns - stop.span.start_ns
