"""The roofline: where steps stand under what memory and compute allow, in numbers."""

from collections.abc import Callable, Sequence
from itertools import zip_longest

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
from inferwatch.metrics.catalog import label_of
from inferwatch.metrics.floor.view import Limits, OperatingPoint, Peak
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    fit,
    join_whole,
    ruled,
    width_of,
)
from inferwatch.ui.limits.roof_plot import Roof, RoofPoint, draw_roofline
from inferwatch.ui.limits.words import (
    DECODE,
    PREFILL,
    bound_words,
    missing,
    missing_lines,
    points_of,
    reached,
)

LABEL, VALUE = 11, 14
NUMBERS = 2 + LABEL + 2 * VALUE
"""Cells of the numbers; the plot has the rest."""
PLOT_FROM = 72
"""Columns; with fewer there are numbers alone."""
OF_POSSIBLE, MEASURED, DERIVED = "of possible", "measured", "derived"
LEAST_NUMBERS = 9
"""Rows of them that matter more than why others are missing."""
Text = Callable[[OperatingPoint], str]


class RooflinePanel(Panel):
    """The plot on the left, numbers on the right; what is unknown says why."""

    DEFAULT_CSS = """
    RooflinePanel { height: 12; }
    """

    _shown: Snapshot | None = None

    def show(self, shown: Snapshot) -> None:
        """Take what is known of the window."""
        self._shown = shown
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The heading, then both."""
        if self._shown is None:
            return ()
        said, limits = missing(self._shown), self._shown.limits
        title, rows = (TextRun("roofline", "strong"),), height - 1
        if limits is None:
            return [ruled(title, (), width), *missing_lines(said, width, rows)]
        head = ruled(title, peak_words(limits.peak, width), width)
        wide = width >= PLOT_FROM
        room = width - NUMBERS if wide else width
        plot = self._plot(limits, room, rows) if wide else []
        reasons = missing_lines(said, min(room, NUMBERS), rows) if plot else ()
        numbers = numbers_of(limits, max(rows - len(reasons), LEAST_NUMBERS))
        if not wide:
            told = missing_lines(said, width, rows - len(numbers))
            return [head, *(fit(each, width) for each in (*numbers, *told))]
        if not plot:
            return [head, *_beside(missing_lines(said, room, rows), room, numbers)]
        numbers += missing_lines(said, NUMBERS, rows - len(numbers))
        return [head, *_beside(plot, room, numbers)]

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
        roof = Roof(bytes_per_s=peak.bytes_per_s, flops=peak.flops)
        return draw_roofline(roof, points, width, rows)


def _beside(left: Sequence[Line], width: int, right: Sequence[Line]) -> list[Line]:
    """Rows of both, the left ones exactly so wide."""
    lines: list[Line] = []
    for first, second in zip_longest(left, right, fillvalue=()):
        cut = fit(first, width)
        gap = TextRun(" " * (width - width_of(cut)))
        lines.append((*cut, gap, *second))
    return lines


def peak_words(peak: Peak, width: int) -> Line:
    """Of which devices, at which dtype, and who says so."""
    if peak.device is None and peak.read_from is None:
        return ()
    name = peak.device or "the device"
    device = name if peak.devices == 1 else f"{peak.devices} × {name}"
    facts = [device, peak.dtype, peak.read_from and f"peaks: {peak.read_from}"]
    told: list[Line] = [(TextRun(each, "muted"),) for each in facts if each]
    return join_whole(told, width - 20, " · ")


def numbers_of(limits: Limits, rows: int) -> list[Line]:
    """A column for each kind of steps; the first rows matter most."""
    if limits.decode is None and limits.prefill is None:
        return [_measured(limits)][:rows]
    decode, prefill = limits.decode, limits.prefill
    head: Line = (
        TextRun(" " * (2 + LABEL)),
        TextRun(f"{DECODE[0]} decode".rjust(VALUE), DECODE[1]),
        TextRun(f"{PREFILL[0]} prefill".rjust(VALUE), PREFILL[1]),
    )
    step, floor = _times(decode, prefill)
    told: list[tuple[str, Sequence[str]]] = [
        (OF_POSSIBLE, _both(limits, lambda each: format_share(reached(each)))),
        (_label("bound"), _both(limits, lambda each: bound_words(each.bound))),
        (_label("step_s"), step),
        (_label("floor_s"), floor),
        (_label("intensity"), _both(limits, lambda each: format_rate(each.intensity))),
        (_label("flops"), _both(limits, lambda each: format_flops(each.flops))),
        (f"{_label('mbu')} {DERIVED}", _both(limits, lambda e: format_share(e.mbu))),
        (f"{_label('mfu')} {DERIVED}", _both(limits, lambda e: format_share(e.mfu))),
    ]
    lines = [head, *(_row(label, texts) for label, texts in told)]
    lines.append(_measured(limits))
    counts = _both(limits, lambda each: format_count(each.steps))
    lines.append(_row(_label("steps"), counts))
    return [*lines, *_of_model(limits)][:rows]


def _of_model(limits: Limits) -> list[Line]:
    """What floors follow from, where there is room for it."""
    whole, active = limits.parameters, limits.active_parameters
    facts = (
        ("parameters", format_count(whole)),
        ("active_parameters", format_count(None if active == whole else active)),
        ("weight_bytes", format_bytes(limits.weight_bytes)),
        ("kv_bytes_per_token", format_bytes(limits.kv_bytes_per_token)),
        ("tpot_floor_s", format_duration(limits.tpot_floor_s)),
    )
    return [
        _row(label_of(f"limits.{name}"), ["", text.strip()])
        for name, text in facts
        if text.strip() != UNKNOWN
    ]


def _label(name: str) -> str:
    return label_of(f"operating_point.{name}")


def _both(limits: Limits, text: Text) -> Sequence[str]:
    points = (limits.decode, limits.prefill)
    return [UNKNOWN if each is None else text(each).strip() for each in points]


def _times(*points: OperatingPoint | None) -> tuple[Sequence[str], Sequence[str]]:
    """Means of steps over their floors: each pair is read together."""
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
    """What the GPU's own counters say, of all steps together."""
    label = TextRun(f"  {MEASURED:<{LABEL}}", "muted")
    mbu, mfu = limits.measured_mbu, limits.measured_mfu
    if mbu is None and mfu is None:
        return (label, TextRun("no GPU counter tells".rjust(2 * VALUE), "faint"))
    told = (
        f"{label_of('limits.measured_mbu')} {format_share(mbu)}  "
        f"{label_of('limits.measured_mfu')} {format_share(mfu)}"
    )
    return (label, TextRun(told.rjust(2 * VALUE)))
