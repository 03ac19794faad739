"""Charts of both sides over the time since their loads began."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from inferwatch.formatting import format_durations, format_rate
from inferwatch.metrics.series.quantiles import Ints
from inferwatch.printing.svg import (
    HEADROOM,
    SHORT_S,
    SIDES,
    AxisTick,
    Figure,
    Say,
    broken_lines,
    clock,
    heights,
    nice,
    stretch,
    tooltip_at,
)
from inferwatch.studies.compare.comparison import SessionPair
from inferwatch.studies.compare.metrics import KEYS
from inferwatch.studies.compare.reading.session_numbers import (
    SessionNumbers,
    Throughput,
)
from inferwatch.studies.compare.statistics.resampling import (
    PIECES,
    CountedValues,
    Floats,
)
from inferwatch.studies.compare.verdicts import MetricVerdict

COLUMNS = 60
CHOICES = (60, 30, 20, 15, 12, 10, 6)
"""How many stretches a latency chart may have; each divides the span's pieces evenly.
"""
LEAST_VALUES = 20
"""Least mean number of values per stretch, so that its median and p90 are meaningful.
"""
MEDIAN, TAIL = 0.5, 0.9
MOST_CHARTS = 4
CLIENT_PREFIX = "client."
MOST_TICKS = 6
STEPS_S = (
    *(1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200),
    *(14_400, 28_800, 86_400, 604_800),
)
HOUR_S = 3600
OPEN = {MetricVerdict.OPEN, MetricVerdict.SAME}


@dataclass(frozen=True, slots=True)
class _Grid:
    """The shared time axis: equal columns from the load's start to the last end."""

    end_s: float

    @property
    def edges(self) -> Floats:
        return np.linspace(0.0, self.end_s, COLUMNS + 1)

    @property
    def middles(self) -> Floats:
        edges = self.edges
        return np.asarray((edges[1:] + edges[:-1]) / 2, np.float64)

    def ticks(self) -> list[AxisTick]:
        step = next(
            (each for each in STEPS_S if self.end_s / each <= MOST_TICKS), STEPS_S[-1]
        )
        moments = np.arange(0, self.end_s, step).tolist()
        if self.end_s < SHORT_S:
            return [AxisTick(each / self.end_s, f"{each:g} s") for each in moments]
        return [AxisTick(each / self.end_s, self.time(each)) for each in moments]

    def time(self, moment_s: float) -> str:
        """Minutes and seconds, with hours only if the axis is at least an hour long."""
        text = clock(moment_s)
        return text if self.end_s >= HOUR_S else text.removeprefix("0:")


def over_time(pair: SessionPair) -> list[str]:
    """Charts of throughput, of TTFT, and of other request latencies if they changed."""
    runs = [run for side in (pair.a, pair.b) for run in side.runs]
    grid = _Grid(max((run.span.to_s for run in runs), default=0.0))
    if grid.end_s <= 0:
        return []
    latencies = (_latency(pair, of, grid) for of in _wanted(pair))
    charts = [each for each in (_throughput(pair, grid), *latencies) if each]
    return charts[:MOST_CHARTS]


def _wanted(pair: SessionPair) -> list[str]:
    """Latencies to chart, as measured by clients where both sides have that."""
    changed = [each.metric.of for each in pair.results if each.verdict not in OPEN]
    by_name: dict[str, str] = {}
    for of in ("ttft_s", *changed):
        name = of.removeprefix(CLIENT_PREFIX)
        client = f"{CLIENT_PREFIX}{name}"
        sides = (pair.a, pair.b)
        met = all(any(client in run.counted for run in side.runs) for side in sides)
        by_name[name] = client if met else name
    return list(by_name.values())


def _throughput(pair: SessionPair, grid: _Grid) -> str:
    sides = [
        _mean([_rates(r.throughput, grid) for r in side.runs if r.throughput])
        for side in (pair.a, pair.b)
    ]
    return _Lines(
        title="Output tokens per second",
        unit="over the time since the load began",
        thick=sides,
        say=lambda values: [format_rate(each) for each in values],
    ).chart(pair, grid)


def _rates(of: Throughput, grid: _Grid) -> Floats:
    """Output tokens per second by column, from interpolated cumulative counts."""
    edges = np.arange(len(of.per_s) + 1) * of.bin_s
    tokens = np.concatenate(([0.0], np.cumsum(np.array(of.per_s) * of.bin_s)))
    upto = np.interp(grid.edges, edges, tokens, right=np.nan)
    return np.asarray(np.diff(upto) / np.diff(grid.edges), np.float64)


def _latency(pair: SessionPair, of: str, grid: _Grid) -> str:
    metric = next(each for each in KEYS.values() if each.of == of)
    runs_of_sides = [
        [run for run in side.runs if of in run.counted and run.counted[of].n]
        for side in (pair.a, pair.b)
    ]
    if metric.share is None or not all(runs_of_sides):
        return ""
    least = min(run.counted[of].n for runs in runs_of_sides for run in runs)
    count = next((n for n in CHOICES if least / n >= LEAST_VALUES), CHOICES[-1])
    medians, tails = (
        [
            _mean([_quantile(run, of, share, count, grid) for run in runs])
            for runs in runs_of_sides
        ]
        for share in (MEDIAN, TAIL)
    )
    return _Lines(
        title=metric.name,
        unit=f"{metric.vantage}: p50, and thinner p90, by when requests came",
        thick=medians,
        thin=tails,
        say=format_durations,
    ).chart(pair, grid)


def _quantile(
    run: SessionNumbers, of: str, share: float, count: int, grid: _Grid
) -> Floats:
    """The quantile per stretch, interpolated linearly between stretch midpoints."""
    values = run.counted[of]
    pieces = values.counts.reshape(count, PIECES // count, -1).sum(axis=1)
    quantiles = np.array([_of_stretch(values, each, share) for each in pieces])
    edges = np.linspace(run.span.from_s, run.span.to_s, count + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    at = np.searchsorted(edges, grid.middles, side="right") - 1
    known = (at >= 0) & (at < count)
    known[known] = np.isfinite(quantiles[at[known]])
    finite = np.isfinite(quantiles)
    line = np.interp(grid.middles, middles[finite], quantiles[finite])
    return np.where(known, line, np.nan)


def _of_stretch(values: CountedValues, counts: Ints, share: float) -> float:
    upto = np.cumsum(counts)
    if not upto[-1]:
        return float("nan")
    rank = max(int(np.ceil(share * upto[-1] - 1e-9)), 1)
    return float(values.values_s[np.searchsorted(upto, rank)])


def _mean(runs: Sequence[Floats]) -> Floats:
    """The mean per column over runs that lasted that long; NaN where none did."""
    if not runs:
        return np.full(COLUMNS, np.nan)
    known = np.isfinite(runs)
    counts = known.sum(axis=0)
    sums = np.where(known, runs, 0.0).sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    """One chart's lines for both sides, one value per column; NaN leaves a gap."""

    title: str
    unit: str
    say: Say
    thick: Sequence[Floats]
    thin: Sequence[Floats] = ()

    def chart(self, pair: SessionPair, grid: _Grid) -> str:
        """The chart as HTML; empty if no value is known."""
        lines = [*self.thick, *self.thin]
        known = np.concatenate([each[np.isfinite(each)] for each in lines])
        if not known.size:
            return ""
        top = nice(float(known.max()) * HEADROOM)
        names = [pair.a.name, pair.b.name]
        return Figure(
            title=self.title,
            unit=self.unit,
            sides=names,
            shapes=[
                *_left_out(pair, grid),
                *_lines(self.thin, top, " thin"),
                *_lines(self.thick, top),
                *_hovered(grid, names, self.thick, self.say),
            ],
            x_ticks=grid.ticks(),
            y_ticks=heights(top, self.say),
        ).html()


def _left_out(pair: SessionPair, grid: _Grid) -> Iterator[str]:
    for side in (pair.a, pair.b):
        if (from_s := side.first.span.from_s) > 0:
            words = f"{side.name}: not compared, up to {from_s:.1f} s"
            yield stretch(0, from_s / grid.end_s, words, "left-out")


def _lines(sides: Sequence[Floats], top: float, thin: str = "") -> Iterator[str]:
    """One line per side, broken where the value is unknown."""
    for side, values in zip(SIDES, sides, strict=False):
        yield from broken_lines([*map(_known, values)], top, kind=f"{side}{thin}")


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _hovered(
    grid: _Grid, names: Sequence[str], sides: Sequence[Floats], say: Say
) -> Iterator[str]:
    for place, moment_s in enumerate(grid.edges[:-1].tolist()):
        values = [_known(each[place]) for each in sides]
        if any(each is not None for each in values):
            words = tooltip_at(grid.time(moment_s), names, values, say)
            yield stretch(place / COLUMNS, (place + 1) / COLUMNS, words)
