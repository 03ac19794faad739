"""The roofline: steps under the limits of memory and compute."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from inferwatch.formatting import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_duration,
    format_durations,
    format_flops,
    format_rate,
    format_share,
)
from inferwatch.metrics.floor.view import Bound, EnginePeak, Limits, OperatingPoint
from inferwatch.metrics.number import label_of
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.plot import MARGIN
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    beside,
    fit,
    join_whole,
    ruled,
)
from inferwatch.ui.limits.grid import FREE, LogAxes, PlotGrid, axis_label, foot
from inferwatch.ui.limits.texts import (
    DECODE,
    PREFILL,
    bound_words,
    missing,
    missing_lines,
    points_of,
    reached,
)
from inferwatch.ui.widgets.hardware_charts import bytes_per_s_text

USUAL_DECADES = (0, 4)
"""From 1 to 10,000 FLOP/byte: from single sequences to long prompts."""
ABOVE_ROOF = 0.45
"""Decades above the roof, for its name."""
BELOW = 0.3
"""Decades below the lowest point."""
STEPS = 2
"""Steps per decade in which the lower end moves."""
MEMORY, COMPUTE, RIDGE, GAP = "kv", "shared", "accent", "faint"
"""Inks of the roofs, the ridge, and the way from a point to its roof."""
LEAST_COLUMNS, LEAST_ROWS = 20, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """The limits of the devices."""

    bytes_per_s: float
    flops: float | None = None
    """None is unknown: then memory alone is the limit."""

    def at(self, intensity: float) -> float:
        """Return the FLOP/s possible at an arithmetic intensity, in FLOP/byte."""
        memory = self.bytes_per_s * intensity
        return memory if self.flops is None else min(self.flops, memory)

    @property
    def ridge(self) -> float | None:
        """FLOP/byte at which both limits meet; None if that of compute is unknown."""
        return None if self.flops is None else self.flops / self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofPoint:
    """A kind of steps under the roof."""

    glyph: str
    ink: str
    intensity: float
    flops: float
    reached: float | None = None
    """Share of what is possible, by step; None computes it from the roof."""


def axes_of(
    roof: Roof, points: Sequence[RoofPoint], columns: int, rows: int
) -> LogAxes:
    """Return axes of whole decades, so that they stay while points move.

    >>> axes = axes_of(Roof(bytes_per_s=3.35e12, flops=989e12), [], 40, 10)
    >>> axes.left, axes.right, round(axes.bottom, 2), round(axes.top, 2)
    (0, 4, 12.0, 15.45)
    """
    across = [log10(each.intensity) for each in points]
    first, last = USUAL_DECADES
    left = min([first, *map(floor, across)])
    bend = [ceil(log10(roof.ridge) + 0.5)] if roof.ridge else []
    right = max([last, *bend, *map(ceil, across)])
    up = [log10(each.flops) for each in points]
    # An impossible point stands above the roof, and is seen there.
    highest = log10(roof.at(10.0**right))
    top = max([highest + ABOVE_ROOF, *(each + BELOW for each in up)])
    lowest = min([log10(roof.at(10.0**left)), *up]) - BELOW
    bottom = floor(lowest * STEPS) / STEPS
    return LogAxes(left, right, bottom, top, columns, rows)


def draw_roofline(
    roof: Roof,
    points: Sequence[RoofPoint],
    width: int,
    height: int,
    within: Sequence[RoofPoint] = (),
) -> list[Line]:
    """Return the chart's rows from the top, with the intensities at the bottom.

    The axes have room for the points, and for those in ``within``.
    """
    columns, rows = width - MARGIN, height - 1
    if columns < LEAST_COLUMNS or rows < LEAST_ROWS:
        return []
    axes = axes_of(roof, [*points, *within], columns, rows)
    grid = PlotGrid(columns, rows)
    ridge = None if roof.ridge is None else int(axes.column(roof.ridge))
    if ridge is not None:
        for row in range(int(axes.row(roof.at(10.0**axes.right)))):
            grid.put(ridge, row, "┊", FREE)
    _draw_roofs(grid, axes, roof)
    _draw_points(grid, axes, roof, points)
    _name_roofs(grid, axes, roof)
    labels = _decades(axes)
    drawn = [
        (TextRun(axis_label(labels.get(row)), "faint"), *grid.line(row))
        for row in reversed(range(rows))
    ]
    return [*drawn, _foot(axes, roof, ridge)]


def _draw_roofs(grid: PlotGrid, axes: LogAxes, roof: Roof) -> None:
    """Draw the limits of memory and compute."""

    def ink(intensity: float) -> str:
        binds = roof.ridge is not None and intensity >= roof.ridge
        return COMPUTE if binds else MEMORY

    grid.curve(axes, roof.at, ink)


def _name_roofs(grid: PlotGrid, axes: LogAxes, roof: Roof) -> None:
    """Name the limits: compute above its line, memory left of the slope."""
    above = floor(axes.row(roof.at(10.0**axes.right))) + 1
    if roof.flops is not None:
        compute = f"compute {format_flops(roof.flops).strip()}"
        at = grid.columns - len(compute) - 1
        if grid.is_free(at, above, len(compute)):
            grid.put(at, above, compute, COMPUTE)
    memory = f"memory {bytes_per_s_text(roof.bytes_per_s).strip()}"
    middle = max(above // 2, 1)
    for row in (*range(middle, above), *range(middle - 1, 0, -1)):
        reached = 10 ** (axes.bottom + row / axes.rows * (axes.top - axes.bottom))
        at = int(axes.column(reached / roof.bytes_per_s)) - len(memory) - 2
        if grid.is_free(at, row, len(memory) + 1):
            grid.put(at, row, memory, MEMORY)
            return
    for row in range(above - 1):  # no room above the slope
        reached = 10 ** (axes.bottom + row / axes.rows * (axes.top - axes.bottom))
        at = int(axes.column(reached / roof.bytes_per_s)) + 4
        if grid.is_free(at, row, len(memory)):
            grid.put(at, row, memory, MEMORY)
            return


def _draw_points(
    grid: PlotGrid, axes: LogAxes, roof: Roof, points: Iterable[RoofPoint]
) -> None:
    """Draw the points, the gaps up to the roof, and their shares of the roof."""
    placed = _placed(axes, points)
    for point, column, row in placed:
        for each in range(row + 1, floor(axes.row(roof.at(point.intensity)))):
            grid.put(column, each, "╎", GAP)
    for point, column, row in placed:
        grid.put(column, row, point.glyph, point.ink)
    for point, column, row in placed:
        reached = point.reached
        if reached is None:
            reached = point.flops / roof.at(point.intensity)
        share = format_share(reached).strip()
        beside = (column + 2, column - 1 - len(share))
        room = len(share) + 1
        at = next((at for at in beside if grid.is_free(at - 1, row, room)), None)
        if at is not None:
            grid.put(at, row, share, point.ink)


def _placed(
    axes: LogAxes, points: Iterable[RoofPoint]
) -> list[tuple[RoofPoint, int, int]]:
    """Return column and row of each point; points in one cell are moved apart."""
    placed: list[tuple[RoofPoint, int, int]] = []
    for point in points:
        column, row = axes.cell(point.intensity, point.flops)
        if any((column, row) == (at, on) for _, at, on in placed):
            column += 1 if column + 1 < axes.columns else -1
        placed.append((point, column, row))
    return placed


def _decades(axes: LogAxes) -> dict[int, str]:
    """Return labels of the y axis."""

    def text(flops: float) -> str:
        text = format_flops(flops).removesuffix("FLOP/s").strip()
        return text.replace(".00", "").replace(".0", "")

    return axes.decades(text)


def _foot(axes: LogAxes, roof: Roof, ridge: int | None) -> Line:
    """Return the x axis with decades and the ridge."""
    named = f"▲ ridge {format_rate(roof.ridge).strip()}" if roof.ridge else ""
    return foot(axes, [(ridge or 0, named)] if named else [], RIDGE)


LABEL, VALUE = 11, 14
NUMBERS = 2 + LABEL + 2 * VALUE
"""Cells of the numbers beside the plot."""
PLOT_FROM = 72
"""Least width for a plot."""
OF_POSSIBLE, MEASURED, DERIVED = "of possible", "measured", "derived"
LEAST_NUMBERS = 9
"""Rows of numbers that take precedence over reasons."""
Text = Callable[[OperatingPoint], str]


class RooflinePanel(Panel):
    """The plot on the left, numbers on the right; unknown values give the reason."""

    DEFAULT_CSS = """
    RooflinePanel { height: 12; }
    """

    _snapshot: Snapshot | None = None
    _way_on = ""

    def __init__(self) -> None:
        super().__init__()
        self._latest: dict[str, RoofPoint] = {}
        """By glyph, so that the axes stay while there are no steps."""

    def show(self, snapshot: Snapshot, way_on: str = "") -> None:
        """Show the roofline; ``way_on`` is the key to what takes turns with it."""
        before, self._snapshot = self._snapshot, snapshot
        self._way_on = way_on
        if before is not None and before.shown_source != snapshot.shown_source:
            self._latest = {}
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        if self._snapshot is None:
            return ()
        why, limits = missing(self._snapshot), self._snapshot.limits
        title: Line = (TextRun("roofline", "strong"), TextRun(self._way_on, "muted"))
        rows = height - 1
        if limits is None:
            return [ruled(title, (), width), *missing_lines(why, width, rows)]
        head = ruled(title, peak_words(limits.peak, width), width)
        wide = width >= PLOT_FROM
        room = width - NUMBERS if wide else width
        plot = self._plot(limits, room, rows) if wide else []
        reasons = missing_lines(why, min(room, NUMBERS), rows) if plot else ()
        numbers = numbers_of(limits, max(rows - len(reasons), LEAST_NUMBERS))
        if not wide:
            reason_lines = missing_lines(why, width, rows - len(numbers))
            return [head, *(fit(each, width) for each in (*numbers, *reason_lines))]
        if not plot:
            return [head, *beside(missing_lines(why, room, rows), room, numbers)]
        numbers += missing_lines(why, NUMBERS, rows - len(numbers))
        return [head, *beside(plot, room, numbers)]

    def _plot(self, limits: Limits, width: int, rows: int) -> list[Line]:
        peak = limits.peak
        if not peak.bytes_per_s:
            return []
        points = [
            RoofPoint(
                glyph=glyph,
                ink=ink,
                intensity=point.intensity,
                flops=point.flops,
                reached=reached(point),
            )
            for _, glyph, ink, point in points_of(limits)
            if point.intensity > 0 and point.flops > 0
        ]
        self._latest |= {each.glyph: each for each in points}
        roof = Roof(bytes_per_s=peak.bytes_per_s, flops=peak.flops)
        return draw_roofline(roof, points, width, rows, [*self._latest.values()])


def peak_words(peak: EnginePeak, width: int) -> Line:
    if peak.device is None and peak.read_from is None:
        return ()
    name = peak.device or "the device"
    device = name if peak.devices == 1 else f"{peak.devices} × {name}"
    facts = [device, peak.dtype, peak.read_from and f"peaks: {peak.read_from}"]
    parts: list[Line] = [(TextRun(each, "muted"),) for each in facts if each]
    return join_whole(parts, width - 20, " · ")


def numbers_of(limits: Limits, rows: int) -> list[Line]:
    """Return a table of decode and prefill steps, the most important rows first."""
    if limits.missing and limits.decode is None and limits.prefill is None:
        return [_measured(limits)][:rows]
    decode, prefill = limits.decode, limits.prefill
    head: Line = (
        TextRun(" " * (2 + LABEL)),
        TextRun(f"{DECODE[0]} decode".rjust(VALUE), DECODE[1]),
        TextRun(f"{PREFILL[0]} prefill".rjust(VALUE), PREFILL[1]),
    )
    step, floor = _times(decode, prefill)
    table: list[tuple[str, Sequence[str]]] = [
        (OF_POSSIBLE, _both(limits, lambda each: format_share(reached(each)))),
        (
            label_of(OperatingPoint.bound),
            _both(limits, lambda each: _bound(each.bound)),
        ),
        (label_of(OperatingPoint.step_s), step),
        (label_of(OperatingPoint.floor_s), floor),
        (
            label_of(OperatingPoint.intensity),
            _both(limits, lambda each: format_rate(each.intensity)),
        ),
        (
            label_of(OperatingPoint.flops),
            _both(limits, lambda each: format_flops(each.flops)),
        ),
        (
            f"{label_of(OperatingPoint.mbu)} {DERIVED}",
            _both(limits, lambda e: format_share(e.mbu)),
        ),
        (
            f"{label_of(OperatingPoint.mfu)} {DERIVED}",
            _both(limits, lambda e: format_share(e.mfu)),
        ),
    ]
    lines = [head, *(_row(label, texts) for label, texts in table)]
    lines.append(_measured(limits))
    counts = _both(limits, lambda each: format_count(each.steps))
    lines.append(_row(label_of(OperatingPoint.steps), counts))
    return [*lines, *_of_model(limits)][:rows]


def _of_model(limits: Limits) -> list[Line]:
    """Return rows of the model's sizes, from which floors are computed."""
    whole, active = limits.parameters, limits.active_parameters
    facts = (
        (Limits.parameters, format_count(whole)),
        (Limits.active_parameters, format_count(None if active == whole else active)),
        (Limits.weight_bytes, format_bytes(limits.weight_bytes)),
        (Limits.kv_bytes_per_token, format_bytes(limits.kv_bytes_per_token)),
        (Limits.tpot_floor_s, format_duration(limits.tpot_floor_s)),
    )
    return [
        _row(label_of(field), ["", text.strip()])
        for field, text in facts
        if text.strip() != UNKNOWN or field is Limits.tpot_floor_s
    ]


def _both(limits: Limits, text: Text) -> Sequence[str]:
    points = (limits.decode, limits.prefill)
    return [UNKNOWN if each is None else text(each).strip() for each in points]


def _bound(bound: Bound | None) -> str:
    """Return what binds, as narrow as its column."""
    return bound.value if bound is Bound.OVERHEAD else bound_words(bound)


def _times(*points: OperatingPoint | None) -> tuple[Sequence[str], Sequence[str]]:
    """Return mean step times and floors of the points; each pair shares a unit."""
    pairs = [
        format_durations((each.step_s, each.floor_s)) if each else (UNKNOWN, UNKNOWN)
        for each in points
    ]
    return [each[0].strip() for each in pairs], [each[1].strip() for each in pairs]


def _row(label: str, texts: Sequence[str]) -> Line:
    values = (
        TextRun(each.rjust(VALUE), "faint" if each == UNKNOWN else "") for each in texts
    )
    return (TextRun(f"  {label:<{LABEL}}", "muted"), *values)


def _measured(limits: Limits) -> Line:
    """Return MBU and MFU of all steps, as GPU counters measure them."""
    label = TextRun(f"  {MEASURED:<{LABEL}}", "muted")
    mbu, mfu = limits.measured_mbu, limits.measured_mfu
    if mbu is None and mfu is None:
        return (label, TextRun("no GPU counter tells".rjust(2 * VALUE), "faint"))
    facts = (
        f"{label_of(Limits.measured_mbu)} {format_share(mbu)}  "
        f"{label_of(Limits.measured_mfu)} {format_share(mfu)}"
    )
    return (label, TextRun(facts.rjust(2 * VALUE)))
