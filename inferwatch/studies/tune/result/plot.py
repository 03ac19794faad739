"""A text plot of throughput against p99 latency, for screen, text and log.

Throughput rises upwards and latency to the right, so settings that no other beats lie
towards the top left: this frontier has capital letters and is joined by dots. Intervals
are drawn through each point. Letters are those of the table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from string import ascii_lowercase

from inferwatch.printing.axis import PlotAxis
from inferwatch.printing.canvas import GUTTER, PlotCanvas, PlotRow, PlotStyle
from inferwatch.studies.tune.result.tune_result import PointResult, TuneResult

LEAST_WIDTH, LEAST_HEIGHT = 40, 8
NO_MARK = "•"
"""The mark from the 27th setting on, as letters are used up."""
BEHIND = "behind another: "


class PlotLatency(StrEnum):
    """The p99 latency that throughput is plotted against."""

    TTFT = "TTFT"
    TPOT = "TPOT"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotPoint:
    """A setting for which both numbers are known; spans are 95% intervals."""

    result: PointResult
    mark: str
    latency_s: float
    latency_span: tuple[float, float] | None
    tokens_per_s: float
    tokens_span: tuple[float, float] | None
    on_frontier: bool
    style: PlotStyle


def latencies_of(slo: str | None) -> tuple[PlotLatency, ...]:
    """The latencies to plot: TTFT, and TPOT if there is an objective for it."""
    has_tpot = slo is not None and "tpot_s" in slo
    return (PlotLatency.TTFT, *([PlotLatency.TPOT] if has_tpot else []))


def marks_of(result: TuneResult) -> dict[int, str]:
    """A lowercase letter for each measured setting, by its index in the result."""
    places = [n for n, each in enumerate(result.points) if each.score is not None]
    letters = dict(enumerate(ascii_lowercase))
    return {place: letters.get(n, NO_MARK) for n, place in enumerate(places)}


def plot_points(
    result: TuneResult, latency: PlotLatency = PlotLatency.TTFT
) -> list[PlotPoint]:
    """The settings to plot, best first; marks on the frontier are uppercase."""
    points = []
    for place, mark in marks_of(result).items():
        each = result.points[place]
        ttft = latency is PlotLatency.TTFT
        latency_s = each.ttft_p99_s if ttft else each.tpot_p99_s
        leads = each.on_frontier if ttft else each.on_tpot_frontier
        if latency_s is not None and each.tokens_per_s is not None:
            points.append(
                PlotPoint(
                    result=each,
                    mark=mark.upper() if leads else mark,
                    latency_s=latency_s,
                    latency_span=each.ttft_p99_s_span if ttft else each.tpot_p99_s_span,
                    tokens_per_s=each.tokens_per_s,
                    tokens_span=each.tokens_per_s_span,
                    on_frontier=leads,
                    style=_style(result, each, leads=leads),
                )
            )
    return points


def _style(result: TuneResult, each: PointResult, *, leads: bool) -> PlotStyle:
    if result.best is not None and each.point == result.best.point:
        return PlotStyle.BEST
    if result.present is not None and each.point == result.present.point:
        return PlotStyle.PRESENT
    return PlotStyle.FRONTIER if leads else PlotStyle.POINT


def plot_axes(points: Sequence[PlotPoint]) -> tuple[PlotAxis, PlotAxis]:
    """The axes of latency and of throughput; needs at least one point."""
    return (
        PlotAxis.of([(p.latency_s, p.latency_span) for p in points], may_be_log=True),
        PlotAxis.of([(p.tokens_per_s, p.tokens_span) for p in points]),
    )


def stairs(points: Sequence[PlotPoint]) -> list[tuple[float, float]]:
    """The corners of the frontier as (latency, throughput), from the left."""
    leading = sorted((p.latency_s, p.tokens_per_s) for p in points if p.on_frontier)
    corners = leading[:1]
    for (_, below), (x, y) in pairwise(leading):
        corners += [(x, below), (x, y)]
    return corners


def tune_plot(
    result: TuneResult,
    width: int = 80,
    height: int = 18,
    latency: PlotLatency = PlotLatency.TTFT,
) -> list[PlotRow]:
    """The rows of the plot, plus one that lists hidden points, if any.

    Empty if fewer than two settings can be plotted.
    """
    points = plot_points(result, latency)
    if len(points) < 2:
        return []
    room = max(width, LEAST_WIDTH) - GUTTER - 1, max(height, LEAST_HEIGHT) - 3
    canvas = _Canvas(*room, *plot_axes(points))
    canvas.draw_stairs(stairs(points))
    for point in reversed(points):
        canvas.draw_interval(point)
    for point in points:
        canvas.draw_mark(point)
    ticks = canvas.x.durations(canvas.most_ticks)
    return [*_head(latency, width), *canvas.rows(ticks), *_behind(canvas.behind, width)]


def _head(latency: PlotLatency, width: int) -> Iterator[PlotRow]:
    what = f"output tokens/s against {latency} p99"
    better = f"{what}; better: up and left"
    forms = (f"{better}; capitals: the frontier", better, what.removeprefix("output "))
    text = next((each for each in forms if len(each) <= width), forms[-1])
    yield ((text, PlotStyle.LABEL),)


def _behind(behind: Sequence[str], width: int) -> Iterator[PlotRow]:
    """A row that lists points hidden behind others."""
    if behind:
        text = f"{BEHIND}{', '.join(behind)}"
        cut = text if len(text) <= width else f"{text[: width - 1]}…"
        yield ((cut, PlotStyle.LABEL),)


class _Canvas(PlotCanvas):
    """The canvas of a tune: the first drawn line stays, and marks cover everything."""

    def __init__(self, width: int, height: int, x: PlotAxis, y: PlotAxis) -> None:
        super().__init__(width, height, x, y)
        self._marks: dict[tuple[int, int], str] = {}
        self.behind: list[str] = []
        """For example ``c (A)``: the hidden mark, and the mark in front of it."""

    def draw_stairs(self, corners: Sequence[tuple[float, float]]) -> None:
        for (x, y), (to_x, to_y) in pairwise(corners):
            for column in range(self.column(x), self.column(to_x) + 1):
                self.put(column, self.row(y), "·", PlotStyle.STAIRS)
            for row in range(self.row(to_y), self.row(y) + 1):
                self.put(self.column(to_x), row, "·", PlotStyle.STAIRS)

    def draw_interval(self, point: PlotPoint) -> None:
        """Draw intervals in both directions, with arrows where they leave the axes."""
        column, row = self.column(point.latency_s), self.row(point.tokens_per_s)
        if point.latency_span is not None:
            low, high = map(self.column, point.latency_span)
            for each in range(low, high + 1):
                self._cross(each, row, "─")
            self._arrows(self.x, point.latency_span, [(low, row), (high, row)], "◂▸")
        if point.tokens_span is not None:
            high, low = map(self.row, point.tokens_span)
            for each in range(low, high + 1):
                self._cross(column, each, "│")
            ends = [(column, high), (column, low)]
            self._arrows(self.y, point.tokens_span, ends, "▾▴")

    def _arrows(
        self,
        axis: PlotAxis,
        span: tuple[float, float],
        ends: Sequence[tuple[int, int]],
        signs: str,
    ) -> None:
        for value, end, sign in zip(span, ends, signs, strict=True):
            if not axis.holds(value):
                self.cells[end] = sign, PlotStyle.INTERVAL

    def draw_mark(self, point: PlotPoint) -> None:
        at = self.column(point.latency_s), self.row(point.tokens_per_s)
        if at in self._marks:
            self.behind.append(f"{point.mark} ({self._marks[at]})")
            return
        self._marks[at] = point.mark
        self.cells[at] = point.mark, point.style

    def _cross(self, column: int, row: int, sign: str) -> None:
        there, _ = self.cells.get((column, row), ("", PlotStyle.NONE))
        crossing = there in {"─", "│", "┼"} and there != sign
        self.cells[column, row] = "┼" if crossing else sign, PlotStyle.INTERVAL
