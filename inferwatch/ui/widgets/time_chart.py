"""Charts over time: layers on the time axis that all charts of a screen share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.lookup import widgets_of
from inferwatch.ui.kit.panel import Inked, LinePanel
from inferwatch.ui.kit.renderables.plot import (
    MARGIN,
    BlockCell,
    Texture,
    TimeAxis,
    axis_top,
    shared_axis,
    split,
    stack,
    ticks,
)
from inferwatch.ui.kit.renderables.text import Line, TextRun, join, ruled, width_of
from inferwatch.ui.messages import LookAgain
from inferwatch.ui.widgets.charts import ChartPlan, Columns, Series, span_of
from inferwatch.ui.widgets.help_drawer import Key

RESTART = "┊"
LIMIT, DIVIDER, FRAME = -1, -2, -3
"""Layer numbers of lines; series have numbers from 0."""
LINE_INKS = {LIMIT: "warn", DIVIDER: "rule", FRAME: "faint"}
TRACED = 1_000
"""Layer number of a trace; the number of the layer behind it, from one, is added."""
TRACE = "⣀⠤⠒⠉"
"""From the lower to the upper edge of a cell."""
LINE = "╌"
LINES = {LIMIT: LINE, DIVIDER: "─"}
"""Different glyphs: at the border of two axes there is a limit or a plain divider."""
BLANK = " ", None
LATE_NS = 10 * NS_PER_S
"""Longest delay of a late value."""
FRAMED = 6
"""Cells of a heading besides title and legend."""
Present = tuple[Snapshot, int | None]
"""A snapshot whose timeline is of the last moments, and the column of now."""
Run = tuple[str, int | None]
"""Text and its layer number; None has no colour of its own."""


class TimeChart(Inked):
    """Draws a ChartPlan; layers have numbers and the theme colours them."""

    DEFAULT_CSS = """
    TimeChart { width: 1fr; height: 1fr; min-height: 3; }
    """

    @dataclass
    class BinClicked(Message):
        """A moment was clicked."""

        t_ns: int

    _axis: TimeAxis | None = None
    _scale: tuple[float | None, float | None, float | None] = (None, None, None)
    """Upper end of the scale, limit that is drawn, upper end of the lane's scale."""
    _rows: list[list[Run]] | None = None
    _built = Size()
    _heading: Line = ()
    _remark = ""
    _marked: int | None = None
    _restarts: tuple[int, ...] = ()

    def __init__(self, plan: ChartPlan, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._declared = self._plan = plan
        self._columns: list[Columns] = []

    def show(self, snapshot: Snapshot, axis: TimeAxis) -> None:
        """Show the values of a snapshot; redraw only if a column changed."""
        self._plan, before = self._declared.of(snapshot), self._plan
        columns = [
            axis.fold(series.values(snapshot), series.fold)
            for series in self._plan.all_series
        ]
        full, limit = self._plan.full(snapshot), self._plan.limit(snapshot)
        restart_columns = map(axis.column_at, snapshot.timeline.restarts_ns)
        restarts = tuple(column for column in restart_columns if column is not None)
        self._axis = axis  # it moves on even if no cell changes
        scale = full, limit, self._plan.lane_full(snapshot)
        state = (columns, scale, restarts)
        previous = (self._columns, self._scale, self._restarts)
        if state != previous or before != self._plan:
            self._columns, self._scale, self._restarts = state
            self._rows = None
            self.refresh()

    def head(
        self, snapshot: Snapshot, index: int | None, now: Present | None = None
    ) -> None:
        """Show the values of a bin in the heading, which is the legend, too.

        ``now`` has better values of the present, for what it knows.
        """
        plan = self._declared.of(snapshot)
        values = [_value(series, snapshot, index, now) for series in plan.all_series]
        legend = list(map(_entry, plan.all_series, plan.texts(values)))
        if plan.trace is not None:
            *legend, _ = legend
            if any(plan.trace.values(snapshot)):  # shown only if there is a value
                text = plan.texts(values)[-1]
                legend.append(_entry(plan.trace, text, TRACE[1]))
        whole, limit = list(legend), plan.limit(snapshot)
        if limit:
            entry = _limit_entry(plan.limit_label, plan.show_limit(limit))
            whole.insert(len(plan.series), entry)
        title, width = (TextRun(plan.title, "strong"),), self.size.width
        noted = (*title, TextRun(f" {plan.note}", "muted"))
        choices = [(noted, whole), (title, whole), (title, legend)]
        if any(series.brief for series in plan.series):
            brief = [replace(e, label=e.brief or e.label) for e in plan.all_series]
            choices.append((title, list(map(_entry, brief, plan.texts(values)))))
        heading = _heading(choices, width)
        if heading != self._heading:
            self._heading = heading
            self.refresh(Region(0, 0, self.size.width, 1))

    @property
    def title(self) -> str:
        return self._plan.title

    def remark(self, text: str) -> None:
        """Write a text in the middle of the chart, which has no values to draw."""
        if text != self._remark:
            self._remark = text
            self.refresh()

    def mark(self, t_ns: int | None) -> None:
        """Draw the cursor at a moment, None for none."""
        column = self._axis.column_at(t_ns) if self._axis and t_ns is not None else None
        if column == self._marked:
            return
        for each in {self._marked, column} - {None}:
            self.refresh(Region(MARGIN + (each or 0), 1, 1, self.size.height - 1))
        self._marked = column

    def on_click(self, event: events.Click) -> None:
        column = event.x - MARGIN
        if self._axis is not None and column >= 0:
            self.post_message(self.BinClicked(self._axis.moment(column)))

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y == 0:
            return self.strip_of(self._heading, width)
        if self._remark and y == self.size.height // 2:
            text = self._remark.center(max(width - MARGIN, 0))
            return self.strip_of((TextRun(" " * MARGIN + text, "muted"),), width)
        if self._rows is None or self._built != self.size:
            self._built = self.size
            self._rows = self._build(width, self.size.height - 1)
        strip = Strip(
            Segment(text, self._paint(number)) for text, number in self._rows[y - 1]
        ).adjust_cell_length(width, self.ink(""))
        for column in self._restarts:
            strip = self._over(strip, column, RESTART, "warn")
        if self._marked is not None:
            strip = self._over(strip, self._marked, "│", "marker")
        return strip

    def _over(self, strip: Strip, column: int, glyph: str, ink: str) -> Strip:
        at, width = MARGIN + column, self.size.width
        line = Strip([Segment(glyph, self.ink(ink))])
        return Strip.join([strip.crop(0, at), line, strip.crop(at + 1, width)])

    def _build(self, width: int, rows: int) -> list[list[Run]]:
        """Return the chart's rows from the top: labels of the y axis, and cells."""
        plan, count = self._plan, len(self._plan.series)
        full, limit, lane_full = self._scale
        low, high = split(rows) if plan.lane is not None else (rows, 0)
        tops = plan.tops(self._columns[:count])
        trace = self._columns[-1] if plan.trace and self._columns else ()
        peak = max(_peak(tops), max(filter(None, trace), default=0))
        top = full or axis_top(peak, plan.least, limit)
        labels_by_row = ticks(top, low, plan.unit)
        textures = [series.texture for series in plan.series]
        cells = _cells(tops, top, low, textures)
        cells += _traced(trace, top, low, cells)
        if limit and limit < top:  # behind all that is drawn
            row, glyph = int(limit / top * low), LINES[LIMIT]
            dashes = (BlockCell(n, row, glyph, LIMIT) for n in range(len(tops)))
            cells = [*dashes, *cells]
        if plan.lane is not None and high:
            base = rows - high
            lane = plan.tops(self._columns[count : count + 1])
            lane_top = lane_full or axis_top(_peak(lane), plan.least)
            above = _cells(lane, lane_top, high, [plan.lane.texture])
            cells += [cell._replace(row=base + cell.row, layer=count) for cell in above]
            if base > low:
                labels_by_row[-1] = (low, labels_by_row[-1][1])
                line = LIMIT if top == limit else DIVIDER
                glyph = LINES[line]
                cells += [
                    BlockCell(column, low, glyph, line) for column in range(len(tops))
                ]
            unit = plan.lane_unit or plan.unit
            labels_by_row += ticks(lane_top, high, unit, base) if _peak(lane) else []
        labels = dict(labels_by_row)
        drawn = _drawn(cells, width - MARGIN, rows)
        return [
            [
                *_axis(
                    labels.get(row), count if high and row >= rows - high else FRAME
                ),
                *drawn[row],
            ]
            for row in reversed(range(rows))
        ]

    def _paint(self, number: int | None) -> Style:
        if number is None:
            return self.ink("")
        drawn = self._plan.all_series
        if number >= TRACED:
            ink, under = self.ink(drawn[-1].ink), number - TRACED - 1
            back = self.ink(drawn[under].ink).color if under >= 0 else None
            return ink + Style(bgcolor=back)
        return self.ink(drawn[number].ink if number >= 0 else LINE_INKS[number])


def _peak(tops: Sequence[Sequence[float]]) -> float:
    return max(map(max, filter(None, tops)), default=0)


def _cells(
    tops: Sequence[Sequence[float]],
    top: float,
    rows: int,
    textures: Sequence[Texture],
) -> list[BlockCell]:
    """Return the chart's cells in all columns; the y axis ends at ``top``."""
    return [
        cell
        for column, edges in enumerate(tops)
        for cell in stack([edge / top * rows for edge in edges], textures, column, rows)
    ]


def _traced(
    values: Columns, top: float, rows: int, cells: Iterable[BlockCell]
) -> list[BlockCell]:
    """Return the dots of a line that is drawn over the cells."""
    behind = {
        (cell.column, cell.row): cell.layer for cell in cells if cell.glyph == "█"
    }
    dots: list[BlockCell] = []
    for column, value in enumerate(values):
        if value:  # a line along the axis would hide layers
            row, share = divmod(min(value / top * rows, rows - 0.01), 1)
            number = TRACED + 1 + behind.get((column, int(row)), -1)
            glyph = TRACE[int(share * len(TRACE))]
            dots.append(BlockCell(column, int(row), glyph, number))
    return dots


def _axis(label: str | None, ink: int) -> list[Run]:
    """Return a cell of the y axis; labels of a lane have the ink of what it shows."""
    if label is None:
        return [(" " * (MARGIN - 1), None), ("│", FRAME)]
    return [(f"{label:>{MARGIN - 2}}", ink), (" ┤", FRAME)]


def _drawn(cells: Iterable[BlockCell], width: int, rows: int) -> list[list[Run]]:
    """Return cells as rows from the bottom; later cells cover earlier ones."""
    grid: list[dict[int, tuple[str, int]]] = [{} for _ in range(rows)]
    for cell in cells:
        if cell.row < rows and cell.column < width:
            grid[cell.row][cell.column] = cell.glyph, cell.layer
    return [
        [
            ("".join(glyph for glyph, _ in run), number)
            for number, run in groupby(
                (row.get(column, BLANK) for column in range(width)), itemgetter(1)
            )
        ]
        for row in grid
    ]


def _heading(choices: Iterable[tuple[Line, Sequence[Line]]], width: int) -> Line:
    """Return the first title and legend that fit, else the last ones, cut off."""
    heading: Line = ()
    for title, entries in choices:
        legend = join(entries, "  ")
        heading = ruled(title, legend, width)
        if width_of(title) + width_of(legend) + FRAMED <= width:
            break
    return heading


def _limit_entry(label: str, limit: str) -> Line:
    return (
        TextRun(f"{LINE} ", LINE_INKS[LIMIT]),
        TextRun(f"{label} ", "muted"),
        TextRun(limit.strip()),
    )


def _value(
    series: Series, snapshot: Snapshot, index: int | None, now: Present | None = None
) -> float | None:
    if now is not None:
        present, place = now
        values = series.values(present)
        if place is not None and len(values) == len(present.timeline.steps):
            known = (v for v in reversed(values[: place + 1]) if v is not None)
            value = next(known, None) if series.late else values[place]
            if value is not None or not (series.late or present.without_steps):
                return value
    values = series.values(snapshot)
    if index is None or index >= len(values):
        return None
    if series.late and all(value is None for value in values[index:]):
        first = max(index - LATE_NS // snapshot.timeline.bin_ns, 0)
        numbers = (each for each in reversed(values[first:index]) if each is not None)
        return next(numbers, None)
    return values[index]


def _entry(series: Series, text: str, sample: str = "") -> Line:
    return (
        TextRun(f"{sample or series.texture.sample} ", series.ink),
        TextRun(f"{series.label} ", "muted"),
        TextRun(text),
    )


class TimeAxisLine(LinePanel):
    """Seconds before the current moment, and the time under the cursor."""

    _axis: TimeAxis | None = None
    _marked: int | None = None
    _label = ""
    _end = "now"

    def show(
        self, axis: TimeAxis, marked_ns: int | None, label: str, end: str = "now"
    ) -> None:
        """Set the axis, the cursor and its wall time, and the text at the right end."""
        self._axis, self._label, self._end = axis, label, end
        self._marked = None if marked_ns is None else axis.column_at(marked_ns)
        self.redraw()

    def line(self, width: int) -> Line:
        if self._axis is None:
            return ()
        cursor = self._cursor(width)
        text = list(" " * width)
        span_s = self._axis.columns * self._axis.column_ns / NS_PER_S
        occupied = set(cursor[0]) if cursor else set[int]()
        for part in (1.0, 0.0, 0.5, 0.25, 0.75):
            label = self._end if part == 1.0 else _ago(span_s * (1 - part))
            at = MARGIN + round(part * (self._axis.columns - 1))
            start = max(min(at - len(label) // 2, width - len(label)), 0)
            cells_ = set(range(start - 1, start + len(label) + 1))
            if not cells_ & occupied:
                occupied |= cells_
                text[start : start + len(label)] = label
        if cursor is None:
            return (TextRun("".join(text), "muted"),)
        (span, label), plain = cursor, "".join(text)
        before, after = plain[: span.start], plain[span.stop :]
        return (
            TextRun(before, "muted"),
            TextRun(label, "accent"),
            TextRun(after, "muted"),
        )

    def _cursor(self, width: int) -> tuple[range, str] | None:
        """Return the columns of the cursor's label, and its text."""
        if self._marked is None:
            return None
        label, start = f"▲ {self._label}", MARGIN + self._marked
        if start + len(label) > width:
            label, start = f"{self._label} ▲", start - len(self._label) - 1
        return range(start, start + len(label)), label


def _ago(seconds: float) -> str:
    if seconds < 0.5:
        return ""
    if seconds < 120:
        return f"−{seconds:.3g} s"
    return f"−{seconds / 60:.3g} min"


CHART_KEYS: Sequence[Key] = (("click", "on a chart: put the time cursor there"),)
CHART_BINDINGS: list[BindingType] = [
    Binding("tab", "chart(1)", "chart", tooltip="One chart alone, then the next"),
    Binding("shift+tab", "chart(-1)", "previous chart", show=False),
]
LEAST_ROWS = 3
"""Least height of a chart: its heading and two more rows."""


class ChartStack(Vertical):
    """Charts in a fixed order: all that there is room for, otherwise one at a time."""

    DEFAULT_CSS = """
    ChartStack { min-height: 4; }
    """

    def __init__(
        self,
        plans: Sequence[ChartPlan],
        most_telling: int = 0,
        *,
        id: str | None = None,
    ) -> None:
        super().__init__(id=id)
        self._plans = plans
        self._most_telling = most_telling
        """Index of the chart shown first if there is room for only one."""
        self._alone: int | None = None
        """Index of the chart the user chose to see alone."""
        self._only_one = False
        self._drawn_width = 0
        self._source: str | None = None
        self._empty_charts = self._optional
        """Indices of optional charts without a value so far; once drawn, a chart
        stays."""

    def compose(self) -> ComposeResult:
        for index, plan in enumerate(self._plans):
            yield TimeChart(plan, id=f"chart-{index}")
        yield TimeAxisLine()

    @property
    def _optional(self) -> set[int]:
        return {index for index, plan in enumerate(self._plans) if plan.optional}

    @property
    def _stops(self) -> Sequence[int]:
        """What is shown in turn: each chart with data, then all of them at once."""
        charts = [i for i in range(len(self._plans)) if i not in self._empty_charts]
        return charts if self._only_one else [*charts, len(self._plans)]

    def next(self, by: int) -> None:
        """Show the next chart alone; after the last one all, if there is room."""
        stops = self._stops
        self._alone = stops[(stops.index(self._here) + by) % len(stops)]
        self.fit(only_one=self._only_one)
        self.post_message(LookAgain())

    @property
    def titles(self) -> set[str]:
        """The charts in sight, whose headings show values."""
        charts = (each for each in widgets_of(self, TimeChart) if each.display)
        return {each.title for each in charts} if self.display else set()

    def at_end(self, by: int) -> bool:
        """Return True if the next chart is at the other end of the stack."""
        stops = self._stops
        return not 0 <= stops.index(self._here) + by < len(stops)

    def fit(self, *, only_one: bool) -> None:
        """Show one chart if several would be unreadable, else all that fit."""
        self._only_one = only_one
        here, every = self._here, len(self._plans)
        indices = [i for i in range(every) if i not in self._empty_charts]
        room = (
            max((self.size.height - 1) // LEAST_ROWS, 1) if self.size.height else every
        )
        while len(indices) > room and indices[-1] in self._optional:
            indices.pop()
        for index, chart in enumerate(widgets_of(self, TimeChart)):
            chart.display = index in indices if here == every else index == here

    def on_resize(self) -> None:
        if self._drawn_width not in {0, self.size.width}:
            self.post_message(LookAgain())

    def axis(self, snapshot: Snapshot) -> TimeAxis:
        line = snapshot.timeline
        self._drawn_width = self.size.width or self.screen.size.width
        return shared_axis(
            line.start_ns,
            line.bin_ns,
            len(line.steps),
            span_of(line, snapshot.window.value),
            max(self._drawn_width - MARGIN - 1, 1),
        )

    def show(self, snapshot: Snapshot) -> None:
        if not self.display:
            return
        if snapshot.shown_source != self._source:
            self._source, self._empty_charts = snapshot.shown_source, self._optional
        with_value = {
            i for i in self._empty_charts if self._plans[i].has_value(snapshot)
        }
        if with_value:
            self._empty_charts = self._empty_charts - with_value
            self.fit(only_one=self._only_one)
        axis = self.axis(snapshot)
        for chart in widgets_of(self, TimeChart):
            if chart.display:
                chart.show(snapshot, axis)

    def remark(self, text: str) -> None:
        for chart in widgets_of(self, TimeChart):
            chart.remark(text)

    def point(
        self,
        snapshot: Snapshot,
        index: int | None,
        cursor_ns: int | None,
        clock: str,
        end: str,
        now: Present | None = None,
    ) -> None:
        """Show a bin's values in the charts' headings, and draw the time cursor.

        ``clock`` is the wall time under the cursor, ``end`` the label at the end of the
        axis.
        """
        for chart in widgets_of(self, TimeChart):
            chart.head(snapshot, index, now)
            chart.mark(cursor_ns)
        for line in widgets_of(self, TimeAxisLine):  # none while the page is being left
            line.show(self.axis(snapshot), cursor_ns, clock, end)

    @property
    def _here(self) -> int:
        """The chart that is shown alone, or one past the last if all are shown."""
        if self._alone is not None and self._alone in self._stops:
            return self._alone
        if not self._only_one:
            return len(self._plans)
        stops = self._stops
        return self._most_telling if self._most_telling in stops else stops[0]
