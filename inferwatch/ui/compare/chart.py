"""Curves of both sides of a comparison: latencies as CDFs, values over time.

Sides differ by colour and dashes; a side of several runs has a sparser curve for each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from rich.segment import Segment
from textual.geometry import Size
from textual.strip import Strip
from textual_plotext import PlotextPlot

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.number import Unit
from inferwatch.studies.compare.metrics import DISTRIBUTIONS, JudgedMetric
from inferwatch.studies.compare.reading.session_numbers import (
    ComparedSide,
    SessionNumbers,
    Throughput,
)
from inferwatch.studies.compare.statistics.resampling import (
    CountedValues,
    Floats,
    merged,
)
from inferwatch.ui.kit.panel import Inked
from inferwatch.ui.kit.renderables.plot import (
    MARGIN,
    coloured_runs,
    nice_ceiling,
    tick_text,
)
from inferwatch.ui.kit.renderables.text import Line, TextRun, join, ruled

Curve = tuple[tuple[float, float], ...]
"""Points in order of x."""
PATTERNS = ("1", "11110000", "1100", "111100100", "111111001100", "10011110")
"""Dash patterns by side; the first is solid."""
THIN = ("10", "1000")
"""Dash patterns of one of several runs: first side, other sides."""
INKS = ("decode", "prefill", "kv", "waiting", "mean", "output")
DASHES = ("────", "─ ─ ", "· · ", "─ · ", "── ─", "·── ")
"""Dashes for the legend, by side."""
FRAME, CURVES = 8, 16
"""Palette numbers of the axes and of the first side's curves."""
MARK = "●"
"""Marks a judged quantile on a curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCurve:
    """A curve of one run; a gap splits it into two."""

    side: int
    """Index of the side."""
    points: Curve
    thin: bool = False
    """The side has several runs."""
    marks: Curve = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """The curves of a chart; both axes are scaled already."""

    title: str
    note: str
    names: tuple[str, ...]
    """Names of the sides."""
    curves: tuple[SideCurve, ...]
    x_span: tuple[float, float]
    y_top: float
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


class CompareChart(Inked, PlotextPlot):  # type: ignore[misc] # untyped library
    """Draws an overlay with plotext in the colours of the theme."""

    DEFAULT_CSS = """
    CompareChart { width: 1fr; height: 1fr; min-height: 5; }
    """

    overlay: Overlay | None = None
    _rows: list[str] | None = None
    _built = Size()

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.plt.theme("clear")
        self.plt.xaxes(lower=True, upper=False)
        self.plt.yaxes(left=True, right=False)
        self.plt.ticks_color(FRAME)

    def show(self, overlay: Overlay | None) -> None:
        if overlay != self.overlay:
            self.overlay, self._rows = overlay, None
            self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        overlay = self.overlay
        if overlay is None:
            return Strip.blank(width, self.ink(""))
        if y == 0:
            return self.strip_of(_heading(overlay, width), width)
        if self._rows is None or self._built != self.size:
            self._built = self.size
            self._rows = self._build(overlay, width, self.size.height - 1)
        if y > len(self._rows):
            return Strip.blank(width, self.ink(""))
        return Strip(
            Segment(text, self.ink(_ink(number)))
            for text, number in coloured_runs(self._rows[y - 1])
        ).adjust_cell_length(width, self.ink(""))

    def _build(self, overlay: Overlay, width: int, height: int) -> list[str]:
        """Return the rows of the chart, as plotext draws them."""
        plot = self.plt
        plot.clear_data()
        plot._set_size(width, height)  # noqa: SLF001 - plotsize stops at 80 columns
        plot.xlim(*overlay.x_span)
        plot.ylim(0, overlay.y_top)
        plot.xticks(*_split(overlay.x_ticks))
        values, labels = _split(_apart(overlay.y_ticks, overlay.y_top / (height - 2)))
        plot.yticks(values, [f"{label:>{MARGIN - 2}} " for label in labels])
        scale = (overlay.x_span, overlay.y_top, max(width - MARGIN, 2), height - 2)
        for curve in overlay.curves:
            xs, ys = dotted(curve.points, _pattern(curve), *scale)
            plot.scatter(xs, ys, marker="braille", color=CURVES + curve.side)
        for curve in overlay.curves:
            if curve.marks:
                xs, ys = zip(*curve.marks, strict=True)
                plot.scatter(xs, ys, marker=MARK, color=CURVES + curve.side)
        return str(plot.build()).split("\n")[:height]


def _heading(overlay: Overlay, width: int) -> Line:
    title = (TextRun(overlay.title, "strong"), TextRun(f" {overlay.note}", "muted"))
    legend = [
        (
            TextRun(f"{DASHES[place % len(DASHES)]} ", _ink(CURVES + place)),
            TextRun(name),
        )
        for place, name in enumerate(overlay.names)
    ]
    return ruled(title, join(legend, "  "), width)


def _pattern(curve: SideCurve) -> str:
    if curve.thin:
        return THIN[min(curve.side, 1)]
    return PATTERNS[curve.side % len(PATTERNS)]


def _ink(number: int | None) -> str:
    if number is None:
        return "faint"
    if number < CURVES:
        return "faint"
    return INKS[(number - CURVES) % len(INKS)]


def _apart(
    ticks: Sequence[tuple[float, str]], row: float
) -> Sequence[tuple[float, str]]:
    """Return the ticks that have a row of their own; of two on a row, the upper one."""
    result: list[tuple[float, str]] = []
    for value, label in reversed(ticks):
        if not result or result[-1][0] - value > 1.5 * row:
            result.append((value, label))
    return result


def _split(ticks: Sequence[tuple[float, str]]) -> tuple[list[float], list[str]]:
    return [value for value, _ in ticks], [label for _, label in ticks]


POINTS = 240
TAILS = 0.001
"""CDFs are drawn from this share to as much below 1."""
MARKED = (0.5, 0.99)
SHARES = ((0.0, "0"), (0.5, "p50"), (0.9, "p90"), (0.99, "p99"))
FALLBACKS = ("ttft_s", "client.ttft_s")
SMOOTH = 3
"""Bins averaged for the throughput."""
CLOCK_STEPS = (0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)
"""Seconds between the ticks of a time axis."""
SPANS = 30
"""Values over time: enough to see when, few enough for a p99 of each."""


def cdf(sides: Sequence[ComparedSide], metric: JudgedMetric) -> Overlay | None:
    """Return each side's CDF of a metric (of TTFT for a rate); None if all lack it."""
    runs = [run for side in sides for run in side.runs]
    names = (metric.of, *FALLBACKS)
    name = next((name for name in names if any(_has(run, name) for run in runs)), None)
    if name is None:
        return None
    curves = tuple(
        SideCurve(
            side=place,
            points=_cdf(run.counted[name]),
            thin=side.is_repeated,
            marks=_marks(run.counted[name]),
        )
        for place, side in enumerate(sides)
        for run in side.runs
        if _has(run, name)
    )
    ends = [x for curve in curves for x, _ in curve.points]
    lowest = min(ends)
    x_span = (lowest, max(*ends, lowest + 0.1))
    number = DISTRIBUTIONS[name]
    vantage = f"{number.vantage}, " if number.vantage else ""
    return Overlay(
        title=f"{number.label} CDF",
        note=f"{vantage}log s, {MARK} p50 p99",
        names=tuple(each.name for each in sides),
        curves=curves,
        x_span=x_span,
        y_top=1.0,
        x_ticks=_decades(x_span),
        y_ticks=SHARES,
    )


def throughput(sides: Sequence[ComparedSide]) -> Overlay | None:
    """Return each side's tokens/s since its load began; None if all are unknown."""
    lines = [
        (place, side, run.throughput or Throughput(bin_s=1.0, per_s=()))
        for place, side in enumerate(sides)
        for run in side.runs
    ]
    curves = [
        SideCurve(side=place, points=_over_time(line), thin=side.is_repeated)
        for place, side, line in lines
    ]
    return _timed(sides, curves, "throughput", "tokens/s", "")


def over_time(sides: Sequence[ComparedSide], metric: JudgedMetric) -> Overlay | None:
    curves = [
        SideCurve(side=place, points=piece, thin=side.is_repeated)
        for place, side in enumerate(sides)
        for run in side.runs
        for piece in _pieces(run, metric)
    ]
    statistic = metric.statistic or "value"
    unit = "s" if metric.unit is Unit.SECONDS else ""
    note = f"{metric.vantage}, {statistic} every {_span_text(sides)}"
    return _timed(sides, curves, metric.name, note, unit)


def _timed(
    sides: Sequence[ComparedSide],
    curves: Sequence[SideCurve],
    title: str,
    note: str,
    unit: str,
) -> Overlay | None:
    """Return curves from the load's start to the longest run's end; None if empty."""
    values = [y for curve in curves for _, y in curve.points]
    if not values:
        return None
    longest_s = max(
        (run.span.end_ns - run.span.origin_ns) / NS_PER_S
        for side in sides
        for run in side.runs
    )
    top = nice_ceiling(max(values))
    return Overlay(
        title=title,
        note=f"{note}, since load start",
        names=tuple(each.name for each in sides),
        curves=tuple(curves),
        x_span=(0.0, longest_s),
        y_top=top,
        x_ticks=_clock(longest_s),
        y_ticks=tuple(
            (share * top, tick_text(share * top, unit)) for share in (0, 0.5, 1)
        ),
    )


def _has(numbers: SessionNumbers, name: str) -> bool:
    return name in numbers.counted and numbers.counted[name].n > 0


def _cdf(values: CountedValues) -> Curve:
    """Return POINTS points of the values' CDF: log10 of the value, and the share."""
    upto = np.cumsum(values.counts.sum(axis=0)) / values.n
    shares = np.linspace(TAILS, 1 - TAILS, POINTS)
    places = np.minimum(np.searchsorted(upto, shares), len(upto) - 1)
    logs = np.log10(np.maximum(values.values_s[places], 1e-9))
    return tuple(zip(logs.tolist(), shares.tolist(), strict=True))


def _marks(values: CountedValues) -> Curve:
    return tuple(
        (math.log10(max(values.quantile_s(share), 1e-9)), share) for share in MARKED
    )


def _over_time(line: Throughput) -> Curve:
    return tuple(
        ((low + SMOOTH / 2) * line.bin_s, sum(part) / len(part))
        for low in range(0, len(line.per_s), SMOOTH)
        if (part := line.per_s[low : low + SMOOTH])
    )


def _pieces(run: SessionNumbers, metric: JudgedMetric) -> list[Curve]:
    """Return a run's values of a metric over time, as curves that end at gaps."""
    if not run.n_of(metric):
        return []
    values = _values(run, metric)
    begins_s = (run.span.start_ns - run.span.origin_ns) / NS_PER_S
    step_s = run.span.length_s / len(values)
    pieces: list[list[tuple[float, float]]] = [[]]
    for place, value in enumerate(values.tolist()):
        if math.isfinite(value):
            pieces[-1].append((begins_s + (place + 0.5) * step_s, value))
        elif pieces[-1]:
            pieces.append([])
    return [tuple(piece) for piece in pieces if piece]


def _values(run: SessionNumbers, metric: JudgedMetric) -> Floats:
    """Return a run's value of a metric in each of SPANS equal times, NaN if unknown."""
    if metric.share is not None:
        counts = run.counted[metric.of]
        upto = np.cumsum(merged(counts.counts.astype(float), SPANS), axis=1)
        ranks = np.ceil(metric.share * upto[:, -1])
        places = [
            int(np.searchsorted(row, max(rank, 1)))
            for row, rank in zip(upto, ranks, strict=True)
        ]
        quantiles = counts.values_s[np.minimum(places, len(counts.values_s) - 1)]
        return np.where(upto[:, -1] > 0, quantiles, np.nan)
    above, below = run.line(metric)
    above, below = merged(above, SPANS), merged(below, SPANS)
    values = np.full(SPANS, np.nan)
    np.divide(above, below, out=values, where=below > 0)
    return values


def _span_text(sides: Sequence[ComparedSide]) -> str:
    longest_s = max(run.span.length_s for side in sides for run in side.runs)
    return tick_text(float(f"{longest_s / SPANS:.2g}"), "s")


def _decades(x_span: tuple[float, float]) -> tuple[tuple[float, str], ...]:
    """Return ticks of a log axis: decades, with 2 and 5 if they are few."""
    low, high = math.floor(x_span[0]), math.ceil(x_span[1])
    steps = (1, 2, 5) if x_span[1] - x_span[0] < 2.5 else (1,)
    places = [math.log10(step) + power for power in range(low, high) for step in steps]
    inside = [place for place in places if x_span[0] <= place <= x_span[1]]
    return tuple((place, tick_text(10**place, "s")) for place in inside)


def _clock(longest_s: float) -> tuple[tuple[float, str], ...]:
    step = next((each for each in CLOCK_STEPS if longest_s / each <= 6), None)
    step = step or nice_ceiling(longest_s / 6)
    count = int(longest_s / step)
    moments = [n * step for n in range(count + 1)]
    if step < 1:
        return tuple((each, f"{each:g} s") for each in moments)
    return tuple(
        (each, f"{int(each) // 60:02d}:{int(each) % 60:02d}") for each in moments
    )


def dotted(
    curve: Curve,
    pattern: str,
    x_span: tuple[float, float],
    y_top: float,
    columns: int,
    rows: int,
) -> tuple[Sequence[float], Sequence[float]]:
    """Return x and y of the dots of a dashed curve; a cell has 2 by 4 dots."""
    width, height = x_span[1] - x_span[0], y_top
    xs: list[float] = []
    ys: list[float] = []
    at = 0
    for (x0, y0), (x1, y1) in pairwise(curve):
        across = abs(x1 - x0) / width * columns * 2
        up = abs(y1 - y0) / height * rows * 4
        dots = max(round(max(across, up)), 1)
        for dot in range(dots):
            if pattern[at % len(pattern)] == "1":
                xs.append(x0 + (x1 - x0) * dot / dots)
                ys.append(y0 + (y1 - y0) * dot / dots)
            at += 1
    return xs, ys
