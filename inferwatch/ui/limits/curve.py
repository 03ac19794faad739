"""The floor by batch size, and beside it what steps of these batches took."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import NamedTuple

from inferwatch.formatting import (
    format_count,
    format_durations,
    format_share,
)
from inferwatch.metrics.floor.curve import FloorCurve
from inferwatch.metrics.floor.view import Limits
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.batches import BATCHES, point_at
from inferwatch.metrics.steps.efficiency import BatchCurve, BatchPoint
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.plot import MARGIN, tick_text
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    beside,
    fit,
    join_whole,
    ruled,
)
from inferwatch.ui.limits.grid import FREE, LogAxes, PlotGrid, axis_label, foot
from inferwatch.ui.limits.texts import DECODE, missing, missing_lines
from inferwatch.ui.steps.curve import CurveRow, range_of, rows_of

NUMBERS = 41
"""Cells of the numbers beside the plots."""
PLOT_FROM, BOTH_FROM = 72, 150
"""Least width for a plot, and for one of step times as well."""
LEAST_COLUMNS, LEAST_ROWS = 20, 4
LEAST_BATCHES = 64
"""The axis reaches at least so far."""
BEYOND = 2
"""How far it reaches beyond the knee and the largest batch that was measured."""
ABOVE, BELOW = 0.15, 0.1
"""Decades above and below all that is drawn."""
MEMORY, COMPUTE, MARK = "kv", "shared", "accent"
KNEE, BEND = "■ knee", "▲ compute"
NO_DECODE = ("No step that only decodes in this window: there is no batch to compare.",)
Value = Callable[[float], float | None]


class StepPoint(NamedTuple):
    """Steps of about the same batch size."""

    batch: float
    """Their mean."""
    step_s: float
    is_now: bool

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second of such steps."""
        return self.batch / self.step_s


def points_of(curve: BatchCurve | None) -> list[StepPoint]:
    """Return measured steps by batch size; that of now last, so nothing covers it."""
    if curve is None:
        return []
    here = point_at(curve, curve.now_batch)
    points = [
        StepPoint(_mean_batch(each), each.step_mean_s, at == here)
        for at, each in enumerate(curve.points)
        if each.step_mean_s > 0
    ]
    return sorted(points, key=lambda each: each.is_now)


def _mean_batch(point: BatchPoint) -> float:
    """Return the mean batch of a point, which covers those up to the next one's.

    A request produces one token in a step, or several with speculation.
    """
    tokens = point.output_tokens_per_s * point.step_mean_s
    next_at = bisect_right(BATCHES, point.batch)
    last = BATCHES[next_at] - 1 if next_at < len(BATCHES) else point.batch
    return min(max(tokens, point.batch), last)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePlot:
    """What is drawn over the batch: tokens a second, or the time of a step."""

    name: str
    unit: str
    floor: Value
    of: Callable[[StepPoint], float]


def plots_of(curve: FloorCurve) -> tuple[CurvePlot, CurvePlot]:
    """Return the plots of throughput and of step time."""

    def most(batch: float) -> float | None:
        floor_s = curve.floor_s(batch)
        return batch / floor_s if floor_s else None

    return (
        CurvePlot(
            name="tok/s at best", unit="", floor=most, of=lambda e: e.tokens_per_s
        ),
        CurvePlot(
            name="step at best", unit="s", floor=curve.floor_s, of=lambda e: e.step_s
        ),
    )


def draw_curve(
    curve: FloorCurve,
    plot: CurvePlot,
    points: Sequence[StepPoint],
    width: int,
    height: int,
) -> list[Line]:
    """Return the rows of a plot from the top, with batch sizes at the bottom."""
    columns, rows = width - MARGIN, height - 1
    ends = plot.floor(1), plot.floor(_last_batch(curve, points))
    if columns < LEAST_COLUMNS or rows < LEAST_ROWS or None in ends:
        return []
    axes = _axes(curve, plot, points, (columns, rows))
    grid = PlotGrid(columns, rows)
    places = _places(curve, axes)
    for column, batch, _ in places:
        for row in range(floor(axes.row(plot.floor(batch) or 1))):
            grid.put(column, row, "┊", FREE)
    compute = curve.compute_bound_from

    def ink(batch: float) -> str:
        return COMPUTE if compute is not None and batch >= compute else MEMORY

    grid.curve(axes, lambda batch: plot.floor(batch) or 1, ink)
    for each in points:
        glyph, colour = DECODE if each.is_now else ("•", DECODE[1])
        grid.put(*axes.cell(each.batch, plot.of(each)), glyph, colour)
    _name(grid, axes, plot)
    _share_now(grid, axes, plot, points)
    labels = axes.decades(lambda each: tick_text(each, plot.unit), (1, 3, 2, 5))
    drawn = [
        (TextRun(axis_label(labels.get(row)), "faint"), *grid.line(row))
        for row in reversed(range(rows))
    ]
    return [*drawn, foot(axes, [(at, name) for at, _, name in places], MARK)]


def _last_batch(curve: FloorCurve, points: Sequence[StepPoint]) -> float:
    """Return where the axis ends, in doublings, so that it stays while points move."""
    measured = max((each.batch for each in points), default=1.0)
    furthest = BEYOND * max(measured, curve.knee or 1)
    return float(2 ** ceil(log10(max(furthest, LEAST_BATCHES)) / log10(2)))


def _axes(
    curve: FloorCurve,
    plot: CurvePlot,
    points: Sequence[StepPoint],
    size: tuple[int, int],
) -> LogAxes:
    last = _last_batch(curve, points)
    ends = [plot.floor(1), plot.floor(last), *map(plot.of, points)]
    heights = [log10(each) for each in ends if each]
    columns, rows = size
    return LogAxes(
        left=0,
        right=log10(last),
        bottom=min(heights) - BELOW,
        top=max(heights) + ABOVE,
        columns=columns,
        rows=rows,
    )


def _places(curve: FloorCurve, axes: LogAxes) -> list[tuple[int, int, str]]:
    """Return column, batch and name of the knee, and of where compute binds."""
    knee, compute = curve.knee, curve.compute_bound_from
    named = [(compute, f"{BEND} {compute:,}")] if compute and compute != knee else []
    if knee:
        named.insert(0, (knee, f"{KNEE} {knee:,}"))
    places = [(int(axes.column(at)), at, name) for at, name in named]
    return [each for each in places if each[0] < axes.columns]


def _name(grid: PlotGrid, axes: LogAxes, plot: CurvePlot) -> None:
    """Write what the line is, in the corner that it leaves free."""
    rising = (plot.floor(axes.x(axes.columns)) or 1) > 1
    for row in (grid.rows - 1, grid.rows - 2, 0):
        at = 1 if rising else grid.columns - len(plot.name) - 1
        if grid.is_free(at, row, len(plot.name)):
            grid.put(at, row, plot.name, MEMORY)
            return


def _share_now(
    grid: PlotGrid, axes: LogAxes, plot: CurvePlot, points: Sequence[StepPoint]
) -> None:
    """Write beside the present point how much of what is possible it reaches."""
    now = next((each for each in points if each.is_now), None)
    least = plot.floor(now.batch) if now is not None else None
    if now is None or least is None:
        return
    ratio = plot.of(now) / least
    share = format_share(1 / ratio if plot.unit else ratio).strip()
    column, row = axes.cell(now.batch, plot.of(now))
    for at in (column + 2, column - 1 - len(share)):
        if grid.is_free(at - 1, row, len(share) + 1):
            grid.put(at, row, share, DECODE[1])
            return


class FloorCurvePanel(Panel):
    """Plots on the left, a table on the right; what is not known gives the reason."""

    DEFAULT_CSS = """
    FloorCurvePanel { height: 12; }
    """

    _snapshot: Snapshot | None = None
    _way_on = ""

    def show(self, snapshot: Snapshot, way_on: str = "") -> None:
        """Show the curve; ``way_on`` is the key to what takes turns with it."""
        self._snapshot, self._way_on = snapshot, way_on
        if self.display:
            self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        if self._snapshot is None:
            return ()
        limits, rows = self._snapshot.limits, height - 1
        title: Line = (
            TextRun("floor by batch", "strong"),
            TextRun(self._way_on, "muted"),
        )
        curve = limits.curve if limits is not None else None
        if limits is None or curve is None:
            why = missing(self._snapshot) or NO_DECODE
            return [ruled(title, (), width), *missing_lines(why, width, rows)]
        head = ruled(title, _aside(limits, curve, width), width)
        points = points_of(self._snapshot.batch_curve)
        numbers = _table(curve, self._snapshot.batch_curve, rows)
        if width < PLOT_FROM:
            return [head, *(fit(each, width) for each in numbers)]
        room = width - NUMBERS - 1
        plots = plots_of(curve)
        rates, times = plots
        if width < BOTH_FROM:
            drawn = draw_curve(curve, rates, points, room, rows)
        else:
            half = room // 2
            left = draw_curve(curve, rates, points, half - 1, rows)
            drawn = beside(left, half, draw_curve(curve, times, points, half, rows))
        return [head, *beside(drawn, room + 1, numbers)]


def _aside(limits: Limits, curve: FloorCurve, width: int) -> Line:
    """Return where the curve bends, for which context, and how many requests fit."""
    knee, compute = curve.knee, curve.compute_bound_from
    tokens = format_count(round(curve.tokens_per_request)).strip()
    facts = [
        f"knee {knee:,}" if knee else "no knee",
        f"compute binds from {compute:,}" if compute else None,
        f"{tokens} tokens each",
        f"{floor(limits.max_requests):,} fit" if limits.max_requests else None,
    ]
    parts: list[Line] = [(TextRun(each, "muted"),) for each in facts if each]
    return join_whole(parts, width - 24, " · ")


def _table(curve: FloorCurve, measured: BatchCurve | None, height: int) -> list[Line]:
    """Return a row per batch size: what steps took, their floor, the share reached."""
    head = f"{'batch':>9}{'step':>11}{'floor':>11}{'of it':>8}"
    lines: list[Line] = [(TextRun(f"  {head}", "muted"),)]
    if measured is None or not measured.points:
        return [*lines, *missing_lines(NO_DECODE, NUMBERS, height - 1)]
    here = point_at(measured, measured.now_batch)
    for row in rows_of(measured.points, max(height - 2, 1), here):
        is_here = here is not None and row.first <= here <= row.last
        lines.append(_row(curve, measured.points, row, is_here=is_here))
    return lines[:height]


def _row(
    curve: FloorCurve, points: Sequence[BatchPoint], row: CurveRow, *, is_here: bool
) -> Line:
    steps = sum(each.steps for each in points[row.first : row.last + 1])
    batch = (
        sum(_mean_batch(e) * e.steps for e in points[row.first : row.last + 1]) / steps
    )
    floor_s = curve.floor_s(batch)
    step, least = format_durations((row.step_s, floor_s))
    share = format_share(floor_s / row.step_s if floor_s else None).strip()
    text = f"{range_of(points, row):>9}{step.strip():>11}{least.strip():>11}{share:>8}"
    mark = f"{DECODE[0]} " if is_here else "  "
    return (TextRun(mark, DECODE[1]), TextRun(text, "strong" if is_here else ""))
