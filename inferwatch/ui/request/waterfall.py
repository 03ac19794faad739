"""What a request was in, over time: a lane for each kind of phase that it had."""

from collections.abc import Sequence

import numpy as np

from inferwatch.formatting import format_duration
from inferwatch.metrics.story.story import SpanKind
from inferwatch.ui.kit.renderables.text import Line
from inferwatch.ui.request.axis import BLANK, Axis, Cell, pointed, row
from inferwatch.ui.request.moments import Ints, Lane, Moments, lane_of
from inferwatch.ui.request.words import CAUSES, LANES, LATE, Look

LITTLE = 0.25
"""Of a column; what takes less is drawn as a thin line: it is there all the same."""
THIN = "▏"
BEFORE_QUEUE = {SpanKind.NETWORK, SpanKind.TOKENISE, SpanKind.HANDOVER}
SECOND_CHUNK = "▓"
"""Every other chunk, so that they can be told apart ..."""
TOLD_APART_FROM = 2.0
"""... where they are that many columns long."""


def waterfall(
    moments: Moments, axis: Axis, cursor: int | None, most_rows: int = 99
) -> list[Line]:
    """The lanes, each with all the time that was spent in it.

    Where there are rows for some only, what comes before the queue is one lane, and
    the longest stay.
    """
    lanes = list(moments.lanes)
    names = {lane.kind: LANES[lane.kind].name for lane in lanes}
    before = [lane for lane in lanes if lane.kind in BEFORE_QUEUE]
    if len(lanes) > most_rows and len(before) > 1:
        lanes = [_merged(before), *(each for each in lanes if each not in before)]
        names[lanes[0].kind] = "API"
    if len(lanes) > most_rows:
        longest = sorted(lanes, key=lambda lane: -lane.total_s)[: max(most_rows, 0)]
        lanes = [lane for lane in lanes if lane in longest]
    return [
        row(
            names[lane.kind],
            pointed(_cells(lane, moments, axis), cursor),
            format_duration(lane.total_s),
        )
        for lane in lanes
    ]


def _merged(lanes: Sequence[Lane]) -> Lane:
    """Lanes as one, which is called like the first."""
    spans = sorted((s for lane in lanes for s in lane.spans), key=lambda s: s.start_ns)
    return lane_of(lanes[0].kind, spans)


def _cells(lane: Lane, moments: Moments, axis: Axis) -> list[Cell]:
    edges = axis.edges
    covered_ns = np.concatenate(([0], np.cumsum(lane.ends - lane.starts)))
    at_edge = _covered_until(lane, covered_ns, edges)
    lefts, rights = edges[:-1], edges[1:]
    shares = np.diff(at_edge) / np.maximum(rights - lefts, 1)
    first = np.searchsorted(lane.ends, lefts, side="right")
    behind = np.searchsorted(lane.starts, rights, side="left")
    column_ns = (axis.end_ns - axis.start_ns) / axis.columns
    mean_ns = float(covered_ns[-1]) / len(lane.spans)
    apart = lane.kind is SpanKind.CHUNK and mean_ns >= TOLD_APART_FROM * column_ns
    cells: list[Cell] = []
    for column in range(axis.columns):
        low, high = int(first[column]), int(behind[column])
        if low >= high:
            cells.append(BLANK)
            continue
        place = (
            low
            if high - low == 1
            else low
            + _longest(
                lane.starts[low:high],
                lane.ends[low:high],
                lefts[column],
                rights[column],
            )
        )
        look = _look(lane, place)
        glyph = SECOND_CHUNK if apart and place % 2 else look.glyph
        cells.append((glyph if shares[column] >= LITTLE else THIN, look.ink))
    if lane.kind is SpanKind.DECODE:
        _mark_late(cells, moments, axis)
    return cells


def _longest(starts: Ints, ends: Ints, left_ns: int, right_ns: int) -> int:
    """Of the spans that share a column, which one has most of it."""
    within = np.minimum(ends, right_ns) - np.maximum(starts, left_ns)
    return int(within.argmax())


def _covered_until(lane: Lane, covered_ns: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """How much of the time before each edge belongs to the lane."""
    place = np.searchsorted(lane.ends, edges, side="right")
    begun = np.minimum(place, len(lane.spans) - 1)
    part = np.clip(edges - lane.starts[begun], 0, None)
    return np.asarray(covered_ns[place] + np.where(place < len(lane.spans), part, 0))


def _look(lane: Lane, place: int) -> Look:
    """A queue looks as what it waited for."""
    cause = lane.spans[place].cause
    if lane.kind is SpanKind.QUEUE and cause is not None:
        return CAUSES[cause]
    return LANES[lane.kind]


def _mark_late(cells: list[Cell], moments: Moments, axis: Axis) -> None:
    """The worst late token of a column by the letter of its cause."""
    for gap, spike in sorted(moments.spikes.items(), key=lambda each: each[1].gap_ns):
        column = axis.column_at(int(moments.gap_ends[gap]))
        if column is not None:
            look = LATE[spike.cause]
            cells[column] = (look.glyph, f"{look.ink} bold")
