"""Curves of several sessions over each other: latencies as CDFs, throughput over time.

They differ by colour, and by how they are dashed.
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

from inferwatch.compare.metrics import JudgedMetric
from inferwatch.compare.resampling import CountedValues
from inferwatch.compare.session_numbers import SessionNumbers, Throughput
from inferwatch.metrics.catalog import CATALOG
from inferwatch.ui.shared.panel import Inked
from inferwatch.ui.shared.renderables.plot import (
    MARGIN,
    coloured_runs,
    nice_ceiling,
    tick_text,
)
from inferwatch.ui.shared.renderables.text import Line, TextRun, join, ruled

Curve = tuple[tuple[float, float], ...]
"""Points in order of x."""
PATTERNS = ("1", "11110000", "1100", "111100100", "111111001100", "10011110")
"""Dots that are drawn and left out along a curve; the first is solid."""
INKS = ("decode", "prefill", "kv", "waiting", "mean", "output")
DASHES = ("────", "─ ─ ", "· · ", "─ · ", "── ─", "·── ")
"""For legends, in the order of the sessions."""
FRAME, CURVES = 8, 16
"""Palette numbers of axes and of the first curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """The curves of a comparison chart; both axes are already scaled."""

    title: str
    note: str
    names: tuple[str, ...]
    curves: tuple[Curve, ...]
    x_span: tuple[float, float]
    y_top: float
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


class CompareChart(Inked, PlotextPlot):  # type: ignore[misc] # untyped library
    """Draws an overlay with plotext, whose palette numbers the theme gives colours."""

    DEFAULT_CSS = """
    CompareChart { width: 1fr; height: 1fr; min-height: 5; }
    """

    _overlay: Overlay | None = None
    _rows: list[str] | None = None
    _built = Size()

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.plt.theme("clear")
        self.plt.xaxes(lower=True, upper=False)
        self.plt.yaxes(left=True, right=False)
        self.plt.ticks_color(FRAME)

    def show(self, overlay: Overlay | None) -> None:
        """Take other curves; None: there are none."""
        if overlay != self._overlay:
            self._overlay, self._rows = overlay, None
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """The heading, or a row as plotext drew it."""
        width = self.size.width
        overlay = self._overlay
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
        """Let plotext draw; the rows from the top."""
        plot = self.plt
        plot.clear_data()
        plot._set_size(width, height)  # noqa: SLF001 - plotsize stops at 80 columns
        plot.xlim(*overlay.x_span)
        plot.ylim(0, overlay.y_top)
        plot.xticks(*_split(overlay.x_ticks))
        values, labels = _split(_apart(overlay.y_ticks, overlay.y_top / (height - 2)))
        plot.yticks(values, [f"{label:>{MARGIN - 2}} " for label in labels])
        scale = (overlay.x_span, overlay.y_top, max(width - MARGIN, 2), height - 2)
        for place, curve in enumerate(overlay.curves):
            xs, ys = dotted(curve, place, *scale)
            plot.scatter(xs, ys, marker="braille", color=CURVES + place)
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


def _ink(number: int | None) -> str:
    if number is None:
        return "faint"
    if number < CURVES:
        return "faint"
    return INKS[(number - CURVES) % len(INKS)]


def _apart(
    ticks: Sequence[tuple[float, str]], row: float
) -> Sequence[tuple[float, str]]:
    """One a row, of two the upper: plotext would draw either."""
    kept: list[tuple[float, str]] = []
    for value, label in reversed(ticks):
        if not kept or kept[-1][0] - value > 1.5 * row:
            kept.append((value, label))
    return kept


def _split(ticks: Sequence[tuple[float, str]]) -> tuple[list[float], list[str]]:
    return [value for value, _ in ticks], [label for _, label in ticks]


POINTS = 240
TAILS = 0.001
"""A CDF is drawn from here to as much below 1."""
SHARES = ((0.0, "0"), (0.5, "50%"), (0.9, "90%"), (1.0, "100%"))
FALLBACKS = ("ttft_s", "client.ttft_s")
SMOOTH = 3
"""Bins of the throughput that are drawn as one."""


def cdf(sessions: Sequence[SessionNumbers], metric: JudgedMetric) -> Overlay | None:
    """The distribution of a metric in each session; for a rate, that of TTFT."""
    names = (metric.of, *FALLBACKS)
    known = (name for name in names if any(_has(each, name) for each in sessions))
    name = next(known, None)
    if name is None:
        return None
    curves = tuple(
        _cdf(each.counted[name]) if _has(each, name) else () for each in sessions
    )
    ends = [x for curve in curves for x, _ in curve]
    lowest = min(ends)
    x_span = (lowest, max(*ends, lowest + 0.1))
    shown = CATALOG[name]
    vantage = f"{shown.vantage}, " if shown.vantage else ""
    return Overlay(
        title=f"{shown.abbr} CDF",
        note=f"{vantage}log s",
        names=tuple(each.name for each in sessions),
        curves=curves,
        x_span=x_span,
        y_top=1.0,
        x_ticks=_decades(x_span),
        y_ticks=SHARES,
    )


def throughput(sessions: Sequence[SessionNumbers]) -> Overlay | None:
    """Throughput over the seconds since the load of each session began."""
    lines = [each.throughput or Throughput(bin_s=1.0, per_s=()) for each in sessions]
    longest_s = max(line.bin_s * len(line.per_s) for line in lines)
    if not longest_s:
        return None
    curves = tuple(_over_time(line) for line in lines)
    top = nice_ceiling(max(y for curve in curves for _, y in curve))
    return Overlay(
        title="throughput",
        note="tokens/s, s since load began",
        names=tuple(each.name for each in sessions),
        curves=curves,
        x_span=(0.0, longest_s),
        y_top=top,
        x_ticks=_seconds(longest_s),
        y_ticks=tuple((share * top, tick_text(share * top)) for share in (0, 0.5, 1)),
    )


def _has(numbers: SessionNumbers, name: str) -> bool:
    return name in numbers.counted and numbers.counted[name].n > 0


def _cdf(values: CountedValues) -> Curve:
    """At most POINTS points of the distribution."""
    upto = np.cumsum(values.counts.sum(axis=0)) / values.n
    shares = np.linspace(TAILS, 1 - TAILS, POINTS)
    places = np.minimum(np.searchsorted(upto, shares), len(upto) - 1)
    logs = np.log10(np.maximum(values.values_s[places], 1e-9))
    return tuple(zip(logs.tolist(), shares.tolist(), strict=True))


def _over_time(line: Throughput) -> Curve:
    return tuple(
        ((low + SMOOTH / 2) * line.bin_s, sum(part) / len(part))
        for low in range(0, len(line.per_s), SMOOTH)
        if (part := line.per_s[low : low + SMOOTH])
    )


def _decades(x_span: tuple[float, float]) -> tuple[tuple[float, str], ...]:
    """Round values on a log axis: whole decades, and 2 and 5 where there are few."""
    low, high = math.floor(x_span[0]), math.ceil(x_span[1])
    steps = (1, 2, 5) if x_span[1] - x_span[0] < 2.5 else (1,)
    places = [math.log10(step) + power for power in range(low, high) for step in steps]
    inside = [place for place in places if x_span[0] <= place <= x_span[1]]
    return tuple((place, tick_text(10**place, "s")) for place in inside)


def _seconds(longest_s: float) -> tuple[tuple[float, str], ...]:
    step = nice_ceiling(longest_s / 5)
    count = int(longest_s / step)
    return tuple((n * step, f"{n * step:g} s") for n in range(count + 1))


def dotted(
    curve: Curve,
    place: int,
    x_span: tuple[float, float],
    y_top: float,
    columns: int,
    rows: int,
) -> tuple[Sequence[float], Sequence[float]]:
    """The dots of the curve of the session at that place; 2 by 4 to a cell."""
    width, height = x_span[1] - x_span[0], y_top
    pattern = PATTERNS[place % len(PATTERNS)]
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
