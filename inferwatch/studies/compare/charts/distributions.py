"""Charts of the cumulative latency distributions of both sides, one over the other."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

import numpy as np

from inferwatch.formatting import format_durations, format_round_duration
from inferwatch.printing.svg import (
    EDGE,
    SIDES,
    AxisTick,
    Figure,
    band,
    dot,
    line,
    shift,
)
from inferwatch.studies.compare.comparison import MetricResult, SessionPair
from inferwatch.studies.compare.metrics import CLIENT, KEYS, STATISTICS, JudgedMetric
from inferwatch.studies.compare.reading.session_numbers import ComparedSide
from inferwatch.studies.compare.report import GLYPHS, change_text, title, values_text
from inferwatch.studies.compare.statistics.resampling import CountedValues, Floats
from inferwatch.visible import as_html

LATENCIES = (
    *(name for each in CLIENT for name in (each, each.removeprefix("client."))),
    "queue_s",
)
"""Latencies that get a chart: for each, the client's and the server's view."""
BOTTOM, TOP, FEW_TOP = 0.01, 0.999, 0.99
MANY = 1000
"""With at least this many values the share axis goes up to p99.9."""
POINTS = 240
MOST_DECADES = 4
LEAST_DECADES = 0.2
STEPS = {1.35: (1, 2, 3, 5), 2.3: (1, 2, 5), math.inf: (1,)}
"""Tick steps within each power of ten, by how many powers of ten the axis spans."""
NARROW_DECADES = 0.7
EVEN = (1, 2, 5, 10, 20, 50, 100)
MOST_MARKS = 7
APART = 0.11
"""Least distance between two tick labels, as a share of the axis."""
APART_AT_EDGE = 0.18
"""Least distance after a tick at the left edge, whose label extends to the right."""
MARKED = {"p1": 0.01, "p10": 0.10, **STATISTICS, "p99.9": 0.999}
HOVERED = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999)
NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class _Shares:
    """The y axis: shares on a normal probability scale, giving room to both tails."""

    top: float

    def y(self, share: float) -> float:
        """Vertical position of a share: 0 is the top, 1 the bottom."""
        low, high = NORMAL.inv_cdf(BOTTOM), NORMAL.inv_cdf(self.top)
        return 1 - (NORMAL.inv_cdf(share) - low) / (high - low)

    @property
    def drawn(self) -> list[float]:
        """The shares at which curves are drawn, equally spaced on the axis."""
        low, high = NORMAL.inv_cdf(BOTTOM), NORMAL.inv_cdf(self.top)
        steps = (low + (high - low) * i / POINTS for i in range(POINTS + 1))
        return [NORMAL.cdf(each) for each in steps]

    def ticks(self) -> list[AxisTick]:
        return [
            AxisTick(self.y(share), name)
            for name, share in MARKED.items()
            if share <= self.top + 1e-9
        ]


@dataclass(frozen=True, slots=True)
class _Durations:
    """The x axis: durations on a logarithmic scale."""

    low: float
    high: float

    @classmethod
    def of(cls, values_s: Floats, marked_s: Sequence[float]) -> "_Durations":
        """An axis that covers all values and marks, except extremely short values."""
        high = math.log10(values_s.max())
        low = max(math.log10(values_s.min()), high - MOST_DECADES)
        low = min([low, *(math.log10(each) for each in marked_s if each > 0)])
        spare = max(LEAST_DECADES - (high - low), 0.04 * (high - low)) / 2
        return cls(low - spare, high + spare)

    def x(self, value_s: float) -> float:
        """Horizontal position, 0 to 1 from the left; 0 if too short for the axis."""
        if value_s <= 0:
            return 0.0
        return min(max((math.log10(value_s) - self.low) / (self.high - self.low), 0), 1)

    def ticks(self) -> list[AxisTick]:
        narrow = self.high - self.low < NARROW_DECADES
        durations = self._even() if narrow else self._round()
        ticks: list[AxisTick] = []
        for each in durations:
            x = self.x(each)
            apart = APART_AT_EDGE if ticks and ticks[-1].at < EDGE else APART
            if not ticks or x - ticks[-1].at >= apart:
                ticks.append(AxisTick(x, format_round_duration(each)))
        return ticks

    def _round(self) -> list[float]:
        steps = next(s for most, s in STEPS.items() if self.high - self.low < most)
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        durations = (step * 10.0**power for power in powers for step in steps)
        return [each for each in durations if self.low <= math.log10(each) <= self.high]

    def _even(self) -> list[float]:
        """Ticks at equal time steps, where the axis is too narrow for powers of ten."""
        low, high = 10**self.low, 10**self.high
        power = 10.0 ** (math.floor(math.log10(high - low)) - 1)
        step = next(
            power * each for each in EVEN if (high - low) / (power * each) <= MOST_MARKS
        )
        first = math.ceil(low / step)
        return [step * each for each in range(first, math.floor(high / step) + 1)]


def distributions(pair: SessionPair) -> list[str]:
    charts = (_chart(pair, of) for of in LATENCIES)
    return [each for each in charts if each]


def _chart(pair: SessionPair, of: str) -> str:
    sides = (pair.a, pair.b)
    runs_of_sides = [_runs_with(side, of) for side in sides]
    most = max((each.n for runs in runs_of_sides for each in runs), default=0)
    shares = _Shares(TOP if most >= MANY else FEW_TOP)
    curves = [[_quantiles(run, shares.drawn) for run in runs] for runs in runs_of_sides]
    positive = [each[each > 0] for runs in curves for each in runs]
    if not sum(map(len, positive)):
        return ""
    results = [each for each in pair.results if each.metric.of == of]
    marked = [v for each in results if each.metric.share for v in (each.a, each.b) if v]
    across = _Durations.of(np.concatenate(positive), marked)
    metric = _metric(of)
    return Figure(
        title=metric.name,
        unit=metric.vantage,
        sides=[side.name for side in sides],
        shapes=[
            *_hovered(pair, runs_of_sides, shares),
            *_lines(curves, shares, across),
            *_marks(pair, results, shares, across),
        ],
        x_ticks=across.ticks(),
        y_ticks=shares.ticks(),
        below="".join(_marks_table(results)),
    ).html()


def _runs_with(side: ComparedSide, of: str) -> list[CountedValues]:
    return [r.counted[of] for r in side.runs if of in r.counted and r.counted[of].n]


def _metric(of: str) -> JudgedMetric:
    return next(each for each in KEYS.values() if each.of == of)


def _quantiles(values: CountedValues, shares: Sequence[float]) -> Floats:
    """Quantiles by nearest rank, as everywhere in inferwatch."""
    upto = np.cumsum(values.counts.sum(axis=0))
    ranks = np.maximum(np.ceil(np.array(shares) * upto[-1] - 1e-9), 1)
    return np.asarray(values.values_s[np.searchsorted(upto, ranks)], np.float64)


def _mean_over_runs(runs: Sequence[Floats]) -> Floats:
    """The geometric mean over runs of each quantile, as in the table."""
    if len(runs) == 1:
        return runs[0]
    return np.asarray(np.exp(np.log(np.maximum(runs, 1e-9)).mean(axis=0)), np.float64)


def _lines(
    curves: Sequence[Sequence[Floats]], shares: _Shares, across: _Durations
) -> Iterator[str]:
    ys = [shares.y(each) for each in shares.drawn]
    for side, runs in zip(SIDES, curves, strict=True):
        if len(runs) > 1:
            for run in runs:
                yield line(zip(map(across.x, run), ys, strict=True), f"{side} thin")
        if runs:
            whole = _mean_over_runs(runs)
            yield line(zip(map(across.x, whole), ys, strict=True), side)


def _marks(
    pair: SessionPair,
    results: Sequence[MetricResult],
    shares: _Shares,
    across: _Durations,
) -> Iterator[str]:
    """Dots at the table's percentiles, and lines from A's value to B's."""
    for result in results:
        share = result.metric.share
        if share is None:
            continue
        y, values = shares.y(share), (result.a, result.b)
        if result.a is not None and result.b is not None:
            yield shift(across.x(result.a), across.x(result.b), y)
        texts = values_text(result)
        for side, each, value, text in zip(
            SIDES, (pair.a, pair.b), values, texts, strict=True
        ):
            if value is not None:
                words = f"{title(result)} of {each.name}: {text.strip()}"
                yield dot(side, across.x(value), y, words)


def _hovered(
    pair: SessionPair, runs_of_sides: Sequence[Sequence[CountedValues]], shares: _Shares
) -> Iterator[str]:
    levels = [each for each in HOVERED if each <= shares.top + 1e-9]
    ys = [shares.y(each) for each in levels]
    ends = [1.0, *((above + below) / 2 for below, above in pairwise(ys)), 0.0]
    columns = [
        _mean_over_runs([_quantiles(run, levels) for run in runs]) if runs else None
        for runs in runs_of_sides
    ]
    for place, level in enumerate(levels):
        values = [None if each is None else float(each[place]) for each in columns]
        durations = ", ".join(
            f"{side.name} {text.strip()}"
            for side, text in zip(
                (pair.a, pair.b), format_durations(values), strict=True
            )
        )
        words = f"{level * 100:g}% take no longer than: {durations}"
        yield band(ends[place + 1], ends[place], words)


def _marks_table(results: Sequence[MetricResult]) -> Iterator[str]:
    rows = [each for each in results if each.metric.share is not None]
    if not rows:
        return
    yield '<table class="marks">'
    for each in rows:
        before, after = (text.strip() for text in values_text(each))
        yield (
            f"<tr><td>{each.metric.statistic}</td><td>{before}</td><td>→ {after}</td>"
            f"<td>{change_text(each.ratio)}</td>"
            f'<td class="said">{GLYPHS[each.verdict]} {as_html(each.verdict)}</td></tr>'
        )
    yield "</table>"
