"""The parts of a request screen, drawn in the rows each is given."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from inferwatch.formatting import (
    about,
    format_count,
    format_duration,
    format_durations,
    format_share,
)
from inferwatch.metrics.causes.cause import ESTIMATES, Parts
from inferwatch.metrics.story.story import RequestStory, SpanKind
from inferwatch.ui.kit.renderables.text import Line, TextRun, beside, join_whole, ruled
from inferwatch.ui.kit.renderables.time_track import bars
from inferwatch.ui.request.axis import (
    BLANK,
    LABEL_WIDTH,
    Axis,
    Cell,
    axis_of,
    pointed,
    row,
    tick_line,
)
from inferwatch.ui.request.diagnosis import wait_parts
from inferwatch.ui.request.display import DisplayOptions, Drawing
from inferwatch.ui.request.facts import fact_lines, missing_lines
from inferwatch.ui.request.gap_strip import (
    gap_heading,
    gap_rows,
    late_entries,
    late_list,
    legend_is_below,
)
from inferwatch.ui.request.moments import OF_OUTPUT, Ints, Lane, StoryMoments, lane_of
from inferwatch.ui.request.step_list import (
    companion_rows,
    companions_title,
    step_rows,
    steps_title,
)
from inferwatch.ui.request.styles import CAUSES, LANES, LATE, CauseStyle

SAMPLE_HOLDS = 2.0
"""Longest time before a sample that it describes, in sampling intervals."""
GPU_NAMES = ("HBM", "SM active", "SM clock")

Floats = NDArray[np.float64]


def block_rows(
    moments: StoryMoments, axis: Axis, rows: int, cursor: int | None
) -> list[Line]:
    story = moments.story
    if not story.kv_blocks:
        return []
    values = _blocks(story, axis)
    peak = story.kv_peak_blocks or max(count for _, count in story.kv_blocks)
    peak_text = f"peak {format_count(peak).strip()}"
    return _bars(
        Chart("KV blocks", peak_text, max(peak, 1), "kv"), values, rows, cursor
    )


def _blocks(story: RequestStory, axis: Axis) -> list[float | None]:
    """Return the most KV blocks held in each column; None while none are held."""
    times = np.array([t_ns for t_ns, _ in story.kv_blocks], dtype=np.int64)
    counts = np.array([count for _, count in story.kv_blocks], dtype=np.int64)
    from_ = np.searchsorted(times, axis.edges[:-1], side="right") - 1
    to = np.searchsorted(times, axis.edges[1:], side="left")
    blocks: list[float | None] = []
    for low, high, left_ns in zip(
        from_.tolist(), to.tolist(), axis.edges[:-1].tolist(), strict=True
    ):
        part = counts[max(low, 0) : max(high, low + 1, 1)] if high > 0 else counts[:0]
        most = int(part.max()) if len(part) and left_ns <= story.end_ns else 0
        blocks.append(float(most) if most else None)
    return blocks


def gpu_rows(moments: StoryMoments, axis: Axis, cursor: int | None) -> list[Line]:
    """Return rows of the GPU's bandwidth, activity and clock, if they were sampled."""
    samples = moments.story.gpu
    if not samples:
        return []
    times = np.array([each[0] for each in samples], dtype=np.int64)
    lines: list[Line] = []
    for place, name in enumerate(GPU_NAMES, start=1):
        column = [each[place] for each in samples]
        measured = [float(value) for value in column if value is not None]
        if not measured:
            continue
        values = np.array(
            [np.nan if v is None else v for v in column], dtype=np.float64
        )
        mean = sum(measured) / len(measured)
        is_clock = name == GPU_NAMES[-1]
        text = f"{mean:,.0f} MHz" if is_clock else f"{format_share(mean)} mean"
        top = max(measured) if is_clock else 1.0
        drawn = _sampled(times, values, axis)
        lines += _bars(Chart(name, text, top, "mean"), drawn, 1, cursor)
    return lines


def _sampled(times: Ints, values: Floats, axis: Axis) -> list[float | None]:
    """Return the mean sample in each column, else the next one if it is near."""
    lefts = np.searchsorted(times, axis.edges[:-1], side="left")
    rights = np.searchsorted(times, axis.edges[1:], side="left")
    apart_ns = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    means: list[float | None] = []
    for low, high, end_ns in zip(
        lefts.tolist(), rights.tolist(), axis.edges[1:].tolist(), strict=True
    ):
        samples = values[low:high]
        if high == low and low < len(times):
            near = times[low] - end_ns <= SAMPLE_HOLDS * apart_ns
            samples = values[low : low + 1] if near else samples
        samples = samples[~np.isnan(samples)]
        means.append(float(samples.mean()) if len(samples) else None)
    return means


@dataclass(frozen=True, slots=True)
class Chart:
    """Labels, scale and ink of bars."""

    name: str
    told: str
    top: float
    ink: str


def _bars(
    chart: Chart, values: Sequence[float | None], rows: int, cursor: int | None
) -> list[Line]:
    """Draw a chart as bars, with its name and value beside the lowest row."""
    *upper, lowest = (
        pointed([BLANK if each == " " else (each, chart.ink) for each in text], cursor)
        for text in bars(values, rows, chart.top or 1)
    )
    return [
        *(row("", cells, "") for cells in upper),
        row(chart.name, lowest, chart.told),
    ]


LITTLE = 0.25
"""Share of a column below which a phase is drawn as a thin line."""
THIN = "▏"
BEFORE_QUEUE = {
    *(SpanKind.NETWORK, SpanKind.TOKENISE, SpanKind.HANDOVER),
    *(SpanKind.MEDIA, SpanKind.PREPROCESS),
}
SECOND_CHUNK = "▓"
"""Glyph of every second prefill chunk."""
TOLD_APART_FROM = 2.0
"""Least mean length of chunks in columns for the second glyph."""


def waterfall(
    moments: StoryMoments, axis: Axis, cursor: int | None, most_rows: int = 99
) -> list[Line]:
    """Return a line for each lane of the request's phases, with its total time.

    If rows are short, the lanes before the queue are merged and the longest lanes are
    kept.
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
    """Merge lanes into one, of the kind of the first."""
    spans = sorted((s for lane in lanes for s in lane.spans), key=lambda s: s.start_ns)
    return lane_of(lanes[0].kind, spans)


def _cells(lane: Lane, moments: StoryMoments, axis: Axis) -> list[Cell]:
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
    if lane.kind in OF_OUTPUT:
        _mark_late(cells, lane, moments, axis)
    return cells


def _longest(starts: Ints, ends: Ints, left_ns: int, right_ns: int) -> int:
    """Return the index of the span that covers most of a column."""
    within = np.minimum(ends, right_ns) - np.maximum(starts, left_ns)
    return int(within.argmax())


def _covered_until(lane: Lane, covered_ns: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return for each edge how much time before it the lane covers."""
    place = np.searchsorted(lane.ends, edges, side="right")
    begun = np.minimum(place, len(lane.spans) - 1)
    part = np.clip(edges - lane.starts[begun], 0, None)
    return np.asarray(covered_ns[place] + np.where(place < len(lane.spans), part, 0))


def _look(lane: Lane, place: int) -> CauseStyle:
    """Return the style of a lane's span; a wait in the queue has that of its cause."""
    cause = lane.spans[place].cause
    if lane.kind is SpanKind.QUEUE and cause is not None:
        return CAUSES[cause]
    return LANES[lane.kind]


def _mark_late(
    cells: list[Cell], lane: Lane, moments: StoryMoments, axis: Axis
) -> None:
    """Mark the longest late gap in each column with the letter of its cause."""
    thought_ns = moments.thought_ns
    for gap, spike in sorted(moments.spikes.items(), key=lambda each: each[1].gap_ns):
        is_thinking = int(moments.gap_ends[gap]) <= thought_ns
        if is_thinking is not (lane.kind is SpanKind.THINKING):
            continue
        column = axis.column_at(int(moments.gap_ends[gap]))
        if column is not None:
            look = LATE[spike.cause]
            cells[column] = (look.glyph, f"{look.ink} bold")


NAME_WIDTH = 20
"""Cells of a part's name; a longer one gets what it takes."""
BESIDE_NAME = 2 + 9 + 6
GAP = 3


def ttft_bar(parts: Parts, width: int) -> Line:
    """Draw the parts of a TTFT by length; parts shorter than a cell are left out.

    >>> from inferwatch.metrics.causes.cause import Cause
    >>> parts = ((Cause.API, 1.0), (Cause.QUEUE_KV, 2.0), (Cause.PREFILL, 1.0))
    >>> "".join(run.text for run in ttft_bar(parts, 8))
    '··▒▒▒▒██'
    """
    ends = list(accumulate((seconds for _, seconds in parts), initial=0.0))
    if not ends[-1]:
        return ()
    edges = [round(end / ends[-1] * width) for end in ends]
    return tuple(
        TextRun(CAUSES[cause].glyph * (high - low), CAUSES[cause].ink)
        for (cause, _), (low, high) in zip(parts, pairwise(edges), strict=True)
        if high > low
    )


def ttft_legend(parts: Parts, width: int, most_rows: int = 9) -> list[Line]:
    """Return glyph, cause, time and share of each part of a TTFT, in columns.

    If rows are short, the smallest parts are added up.
    """
    total_s = sum(seconds for _, seconds in parts)
    if not total_s or most_rows < 1:
        return []
    name_width = max(len(CAUSES[cause].name) + 1 for cause, _ in parts)
    name_width = max(name_width, NAME_WIDTH)
    columns = max((width + GAP) // (BESIDE_NAME + name_width + GAP), 1)
    room = columns * most_rows
    visible = parts
    if len(parts) > room:
        largest = sorted(parts, key=lambda part: -part[1])[: room - 1]
        visible = tuple(part for part in parts if part in largest)
    rest_s = total_s - sum(seconds for _, seconds in visible)
    seconds_ = [seconds for _, seconds in visible]
    if len(visible) < len(parts):
        seconds_.append(rest_s)
    texts = format_durations(seconds_)
    entries = [
        _entry(
            CAUSES[cause]._replace(name=CAUSES[cause].name.ljust(name_width)),
            text,
            seconds / total_s,
            estimated=cause in ESTIMATES,
        )
        for (cause, seconds), text in zip(visible, texts, strict=False)
    ]
    if len(visible) < len(parts):
        name = f"{len(parts) - len(visible)} smaller ones"
        share = rest_s / total_s
        rest = CauseStyle(" ", "", name.ljust(name_width))
        entries.append(_entry(rest, texts[-1], share, estimated=False))
    rows = -(-len(entries) // columns)
    return [_row(entries[row::rows]) for row in range(rows)]


def _entry(look: CauseStyle, text: str, share: float, *, estimated: bool) -> Line:
    percent = format_share(share).rjust(6)
    return (
        TextRun(f"{look.glyph} ", look.ink),
        TextRun(look.name, "muted"),
        TextRun(about(text) if estimated else text),
        TextRun(about(percent) if estimated else percent, "muted"),
    )


def _row(entries: Sequence[Line]) -> Line:
    line: list[TextRun] = []
    for place, entry in enumerate(entries):
        if place:
            line.append(TextRun(" " * GAP))
        line += entry
    return tuple(line)


BESIDE_FROM = 110
"""Least width for companions beside the steps."""
COMPANION_WIDTH = 38
MOST_GAP_ROWS, LEAST_GAP_ROWS = 10, 3
MOST_BLOCK_ROWS = 4
LEAST_STEP_ROWS = 3


class RequestLayout:
    """Adds the parts of a request to a drawing."""

    def __init__(
        self,
        drawing: Drawing,
        moments: StoryMoments,
        options: DisplayOptions,
        width: int,
        room: int,
    ) -> None:
        self.drawing, self.moments, self.options = drawing, moments, options
        self.width, self.room = width, room
        columns = drawing.columns
        self.columns = columns if columns is not None else moments.columns(room)
        self.axis: Axis = axis_of(
            moments, options.zoom, options.cursor_ns, room, len(self.columns.worst)
        )
        here_ns = options.cursor_ns
        self.at = None if here_ns is None else self.axis.column_at(here_ns)
        stop = None if here_ns is None else moments.stop_at(here_ns)
        self.gap = stop.gap if stop is not None else None

    @property
    def at_gap(self) -> int | None:
        """The cursor's column in the gap strip."""
        return None if self.gap is None else self.columns.column_of(self.gap)

    def add_all(self, rows: int) -> None:
        """Add all parts of the screen; spare rows go to the most informative ones."""
        missing = missing_lines(self.moments.story, self.width, 2)
        legend, lanes = len(self._legend(3)), len(self.moments.lanes)
        gpu = gpu_rows(self.moments, self.axis, self.at)
        late = self._late_below
        used = 2 + legend + 3 + lanes + 2 + LEAST_GAP_ROWS + late + 2 + LEAST_STEP_ROWS
        spare = rows - used - len(missing)
        spare, rest = _allot(spare, -spare, len(missing))
        missing = missing[: len(missing) - rest]
        lanes -= min(max(-spare, 0), lanes)
        spare, height = _allot(spare, len(gpu), len(gpu))
        gpu = gpu if height == len(gpu) else []
        spare, gaps = _allot(spare, 2, 2)
        spare, blocks = _allot(spare, 1, 1)
        spare, steps = _allot(spare, 3, 3)
        spare, more_gaps = _allot(spare, spare // 2, MOST_GAP_ROWS - LEAST_GAP_ROWS - 2)
        spare, more_blocks = _allot(spare, spare // 3, MOST_BLOCK_ROWS - 2)
        self._add_ttft(legend)
        self._add_lanes(lanes, 1 + blocks + more_blocks, gpu)
        self._add_gaps(LEAST_GAP_ROWS + gaps + more_gaps)
        story = self.moments.story
        listed = max(len(story.steps), len(story.companions), 1)
        rows = min(LEAST_STEP_ROWS + steps + max(spare, 0), max(listed, 3))
        self._add_company(2 + rows)
        left = LEAST_STEP_ROWS + steps + max(spare, 0) - rows + len(missing)
        self.drawing.add(*missing_lines(story, self.width, left))

    def add_time(self, rows: int) -> None:
        legend, lanes = len(self._legend()), len(self.moments.lanes)
        gpu = gpu_rows(self.moments, self.axis, self.at)
        titled = bool(legend)
        spare = rows - (legend + 1 + titled if legend else 0) - lanes - 2
        if spare < 0 and titled:
            titled, spare = False, spare + 1
        merged = len([each for each in self.moments.lanes if each.kind in BEFORE_QUEUE])
        cut = min(max(-spare, 0), max(merged - 1, 0))
        lanes, spare = lanes - cut, spare + cut
        cut = min(max(-spare, 0), max(legend - 2, 0))
        legend, spare = legend - cut, spare + cut
        lanes -= min(max(-spare, 0), lanes)
        most = MOST_BLOCK_ROWS if self.moments.story.kv_blocks else 0
        spare, blocks = _allot(spare, most, most)
        self._add_ttft(legend, titled=titled)
        gpu = gpu if spare >= len(gpu) else []
        self._add_lanes(lanes, blocks, gpu)
        spare -= len(gpu)
        facts = fact_lines(self.moments.story, self.options.arrived, self.width)
        if spare > len(facts):
            title = (TextRun("what is known", "strong"),)
            self.drawing.add(ruled(title, (), self.width), *facts)

    def add_tokens(self, rows: int) -> None:
        every = late_list(self.moments, None, self.width, rows)
        listed = min(len(every), max(rows // 2 - 1, 0))
        strip = min(max(rows - listed - 2 - self._late_below, 1), MOST_GAP_ROWS + 8)
        self._add_gaps(strip)
        left = rows - strip - 2 - self._late_below
        if listed:
            self.drawing.add(*late_list(self.moments, self.gap, self.width, left))

    def add_steps(self, rows: int) -> None:
        self._add_company(rows)

    def add_facts(self, rows: int) -> None:
        story = self.moments.story
        facts = fact_lines(story, self.options.arrived, self.width)
        gpu = gpu_rows(self.moments, self.axis, self.at)
        has_charts = bool(story.kv_blocks) or bool(gpu)
        least = len(facts) + 2 + (len(gpu) + 3 if has_charts else 0)
        missing = missing_lines(story, self.width, max(rows - least, 1))
        left = rows - len(facts) - len(gpu) - len(missing) - 3 - bool(missing)
        title = (TextRun("what is known", "strong"),)
        self.drawing.add(ruled(title, (), self.width), *facts)
        if has_charts:
            head = (TextRun("KV blocks", "strong"), TextRun("  that it held", "muted"))
            self.drawing.add(ruled(head, self._zoomed(), self.width))
            tall = min(max(left, 1), 2 * MOST_BLOCK_ROWS)
            blocks = block_rows(self.moments, self.axis, tall, self.at)
            self.drawing.add_clickable([*blocks, *gpu, self._ticks()], self._moment)
        if missing:
            unknown = TextRun("what is not known", "strong")
            self.drawing.add(ruled((unknown,), (), self.width), *missing)

    def _legend(self, most_rows: int = 9) -> list[Line]:
        parts = wait_parts(self.moments.story)
        return ttft_legend(parts, self.width - 2, most_rows)

    def _add_ttft(self, rows: int, *, titled: bool = True) -> None:
        story = self.moments.story
        legend = self._legend(rows)
        if not legend:
            return
        waits = story.row.ttft_s is None
        title = TextRun("wait so far" if waits else "time to first token", "strong")
        if titled:
            self.drawing.add(ruled((title,), (), self.width))
        self.drawing.add((TextRun(" "), *ttft_bar(wait_parts(story), self.width - 2)))
        self.drawing.add(*((TextRun(" "), *line) for line in legend))

    def _add_lanes(self, lanes: int, blocks: int, gpu: Sequence[Line]) -> None:
        title = (TextRun("its time", "strong"), TextRun(f"  {self._span}", "muted"))
        self.drawing.add(ruled(title, self._zoomed(), self.width))
        lines = waterfall(self.moments, self.axis, self.at, lanes)
        if blocks:
            lines += block_rows(self.moments, self.axis, blocks, self.at)
        self.drawing.add_clickable([*lines, *gpu, self._ticks()], self._moment)

    @property
    def _span(self) -> str:
        return self.options.zoom.value

    def _zoomed(self) -> Line:
        return (
            TextRun("z", "accent", "screen.zoom"),
            TextRun(f" {self.options.zoom.next}", "muted", "screen.zoom"),
        )

    def _ticks(self) -> Line:
        return row("arrival +", tick_line(self.axis, self.at), "")

    def _moment(self, x: int) -> int | None:
        column = x - LABEL_WIDTH
        return self.axis.moment(column) if 0 <= column < self.room else None

    def _add_gaps(self, rows: int) -> None:
        moments, columns = self.moments, self.columns
        if not len(columns.worst):
            between = TextRun("gaps between tokens", "strong")
            self.drawing.add(ruled((between,), (), self.width))
            self.drawing.add((TextRun(" no two tokens yet", "muted"),))
            return
        self.drawing.add(gap_heading(moments, columns, self.width))
        drawn = gap_rows(moments, columns, self.room, rows, self.at_gap)
        self.drawing.add_clickable(drawn, self._moment_of_gap)
        if self._late_below:
            room = self.width - LABEL_WIDTH
            legend = join_whole(late_entries(moments), room)
            self.drawing.add((TextRun(" " * LABEL_WIDTH), *legend))

    @property
    def _late_below(self) -> bool:
        return legend_is_below(self.moments, self.columns, self.width)

    def _moment_of_gap(self, x: int) -> int | None:
        column = x - LABEL_WIDTH
        if 0 <= column < len(self.columns.worst):
            return int(self.moments.gap_ends[self.columns.worst[column]])
        return None

    def _add_company(self, rows: int) -> None:
        if rows < 3:
            return
        story, options = self.moments.story, self.options
        cursor_ns = options.cursor_ns
        at = None if cursor_ns is None else self.moments.step_at(cursor_ns)
        slowest = at is None and bool(story.steps)
        if self.width >= BESIDE_FROM:
            right = COMPANION_WIDTH + max(self.width - 160, 0) // 2
            left = self.width - right - 2
            titled = ruled(steps_title(story, left, slowest=slowest), (), left)
            company_title = ruled(companions_title(story, right), (), right)
            self.drawing.add((*titled, TextRun("  "), *company_title))
            steps = step_rows(
                self.moments, options.cursor_ns, options.budget, left, rows - 1
            )
            company = companion_rows(
                story.companions, options.companion, right, rows - 1
            )
            self.drawing.add(*beside(steps, left + 2, company))
            return
        beside_rows = min(len(story.companions) + 2, rows // 2)
        self.drawing.add(
            ruled(steps_title(story, self.width, slowest=slowest), (), self.width),
            *step_rows(
                self.moments,
                options.cursor_ns,
                options.budget,
                self.width,
                rows - beside_rows - 1,
            ),
            ruled(companions_title(story, self.width), (), self.width),
            *companion_rows(
                story.companions, options.companion, self.width, beside_rows - 1
            ),
        )


def _allot(spare: int, rows: int, most: int) -> tuple[int, int]:
    share = min(max(rows, 0), most, max(spare, 0))
    return spare - share, share
