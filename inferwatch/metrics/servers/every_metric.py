"""All metrics that a server exposes, over a span: computed while somebody looks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import MetricsPage
from collectors.servers.metrics_page import (
    Labels,
    PageLayout,
    PageSeries,
    evenly,
    numbers_of,
    read_layout,
)
from inferwatch.metrics.series.histograms import Buckets, Pool
from inferwatch.metrics.series.window import Bracket
from inferwatch.visible import visible

LONGEST = 300
"""Characters of a name, labels or help that are kept."""
MOST_READ = 20
"""Pages of a span that are parsed, evenly spread; more would hold up the dashboard."""
Trend = tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue:
    """A metric, or one of its series, over the span between two pages."""

    value: float | None = None
    """Of a gauge now; of a counter or histogram the total since the server began."""
    per_s: float | None = None
    """Increase of a counter, or values of a histogram, per second."""
    mean: float | None = None
    """Of the values that a histogram or summary took in the span."""
    p50: Bracket | None = None
    p99: Bracket | None = None
    trend: Trend = ()
    """Between pages: rates of a counter, means of a histogram; a gauge at each page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EverySeries:
    """One series of a metric."""

    labels: str
    now: MetricValue


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryMetric:
    """One metric of a server."""

    name: str
    kind: str
    """Its TYPE; empty where the server does not say."""
    help: str
    series: tuple[EverySeries, ...]
    now: MetricValue
    """Its only series; of several counters or histograms all together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryMetrics:
    """The latest page of a server, with what changed since the first of a span."""

    t_ns: int
    since_ns: int
    pages: int
    metrics: tuple[EveryMetric, ...]
    left_out: int = 0
    """Lines and series beyond what is kept."""
    unreadable: int = 0
    """Lines that are no metric."""


Point = tuple[float | None, float | None, float | None]
"""Value, or sum and count, of a series in one page."""


class _Page:
    """The numbers of a page by metric and labels."""

    def __init__(self, page: MetricsPage, layout: PageLayout) -> None:
        self.t_ns = page.t_ns
        self.layout = layout
        self._numbers = numbers_of(page.lines)

    def number(self, place: int | None) -> float | None:
        return None if place is None else self._numbers[place]

    def series(self, name: str, labels: Labels) -> PageSeries | None:
        metric = self.layout.metrics.get(name)
        return metric.series.get(labels) if metric is not None else None

    def point(self, series: PageSeries | None) -> Point:
        if series is None:
            return None, None, None
        return (
            self.number(series.value),
            self.number(series.total),
            self.number(series.count),
        )


def every_metric(pages: Sequence[MetricsPage]) -> EveryMetrics | None:
    """Return the metrics of pages in order of time; None without any."""
    if not pages:
        return None
    read = _read(evenly(pages, MOST_READ))
    last = read[-1]
    metrics = [
        _metric(read, name)
        for name, metric in sorted(last.layout.metrics.items())
        if metric.series
    ]
    return EveryMetrics(
        t_ns=last.t_ns,
        since_ns=read[0].t_ns,
        pages=len(read),
        metrics=tuple(metrics),
        left_out=pages[-1].left_out + last.layout.left_out,
        unreadable=last.layout.unreadable,
    )


def _read(pages: Iterable[MetricsPage]) -> list[_Page]:
    """Read pages; those with the same series in the same lines share a layout."""
    read: list[_Page] = []
    heads: list[str] = []
    layout = PageLayout()
    for page in pages:
        found = [line.rpartition(" ")[0] for line in page.lines]
        if found != heads:
            heads, layout = found, read_layout(page.lines)
        read.append(_Page(page, layout))
    return read


def _metric(pages: Sequence[_Page], name: str) -> EveryMetric:
    metric = pages[-1].layout.metrics[name]
    series: list[EverySeries] = []
    buckets: list[Buckets] = []
    for labels in metric.series:
        value, gained = _value(pages, name, labels, metric.kind)
        buckets += gained
        series.append(EverySeries(labels=_text(labels), now=value))
    values = [each.now for each in series]
    return EveryMetric(
        name=_safe(name),
        kind=_safe(metric.kind),
        help=_safe(metric.help),
        series=tuple(series),
        now=values[0] if len(values) == 1 else _together(values, metric.kind, buckets),
    )


def _value(
    pages: Sequence[_Page], name: str, labels: Labels, kind: str
) -> tuple[MetricValue, list[Buckets]]:
    """Return a series over the span, and the values its histogram took."""
    every = [page.series(name, labels) for page in pages]
    points = [page.point(series) for page, series in zip(pages, every, strict=True)]
    times_ns = [page.t_ns for page in pages]
    value, _, count = points[-1]
    if count is not None:
        return _of_counts(pages, every, points, times_ns)
    numbers = [point[0] for point in points]
    if kind != "counter":
        return MetricValue(value=value, trend=tuple(numbers)), []
    rises = _rises(numbers)
    return (
        MetricValue(
            value=value,
            per_s=_per_s(rises, times_ns),
            trend=tuple(_rates(rises, times_ns)),
        ),
        [],
    )


def _of_counts(
    pages: Sequence[_Page],
    every: Sequence[PageSeries | None],
    points: Sequence[Point],
    times_ns: Sequence[int],
) -> tuple[MetricValue, list[Buckets]]:
    """Return a histogram or summary over the span, and the values it took."""
    counts = _rises([point[2] for point in points])
    sums = [
        None if count is None or then[1] is None or now[1] is None else now[1] - then[1]
        for count, (then, now) in zip(counts, pairwise(points), strict=True)
    ]
    known = [
        (count, total)
        for count, total in zip(counts, sums, strict=True)
        if count and total is not None
    ]
    taken = sum(count for count, _ in known)
    since = _latest_start(counts)
    buckets = _buckets(pages, every, since)
    brackets = Pool(buckets).brackets()
    return (
        MetricValue(
            value=points[-1][2],
            per_s=_per_s(counts, times_ns),
            mean=sum(total for _, total in known) / taken if taken else None,
            p50=brackets.p50,
            p99=brackets.p99,
            trend=tuple(
                total / count if count and total is not None else None
                for count, total in zip(counts, sums, strict=True)
            ),
        ),
        buckets,
    )


def _rises(numbers: Sequence[float | None]) -> list[float | None]:
    """Return what a counter gained between pages; None across a restart or a gap."""
    return [
        None if then is None or now is None or now < then else now - then
        for then, now in pairwise(numbers)
    ]


def _latest_start(rises: Sequence[float | None]) -> int:
    """Return the page from which on the counter was watched without a gap."""
    gaps = [at for at, rise in enumerate(rises) if rise is None]
    return gaps[-1] + 1 if gaps else 0


def _per_s(rises: Sequence[float | None], times_ns: Sequence[int]) -> float | None:
    watched = [
        (rise, now - then)
        for rise, (then, now) in zip(rises, pairwise(times_ns), strict=True)
        if rise is not None
    ]
    took_ns = sum(took for _, took in watched)
    return sum(rise for rise, _ in watched) * NS_PER_S / took_ns if took_ns else None


def _rates(rises: Sequence[float | None], times_ns: Sequence[int]) -> Trend:
    return tuple(
        None if rise is None or now <= then else rise * NS_PER_S / (now - then)
        for rise, (then, now) in zip(rises, pairwise(times_ns), strict=True)
    )


def _buckets(
    pages: Sequence[_Page], every: Sequence[PageSeries | None], since: int
) -> list[Buckets]:
    """Return the values a histogram took from that page on, if its bounds are sound."""
    first, last = every[since], every[-1]
    if first is None or last is None or first.buckets.keys() != last.buckets.keys():
        return []
    bounds = sorted(last.buckets)
    if not bounds or bounds[-1] != np.inf:
        return []
    upto = [
        (pages[-1].number(last.buckets[le]) or 0)
        - (pages[since].number(first.buckets[le]) or 0)
        for le in bounds
    ]
    rising = np.maximum.accumulate(np.maximum(upto, 0.0))
    return [Buckets(tuple(bounds[:-1]), rising, 0.0)] if rising[-1] > 0 else []


def _together(
    values: Sequence[MetricValue], kind: str, buckets: Sequence[Buckets]
) -> MetricValue:
    """Return several series as one; gauges are not added, as it may mean nothing."""
    rates = [each.per_s for each in values if each.per_s is not None]
    if kind != "counter" and not rates:
        return MetricValue()
    totals = [each.value for each in values if each.value is not None]
    means = [
        (each.mean, each.per_s)
        for each in values
        if each.mean is not None and each.per_s
    ]
    weight = sum(per_s for _, per_s in means)
    brackets = Pool(buckets).brackets()
    return MetricValue(
        value=sum(totals) if totals else None,
        per_s=sum(rates) if rates else None,
        mean=sum(mean * per_s for mean, per_s in means) / weight if weight else None,
        p50=brackets.p50,
        p99=brackets.p99,
        trend=_summed([each.trend for each in values]) if kind == "counter" else (),
    )


def _summed(trends: Sequence[Trend]) -> Trend:
    columns = zip(*trends, strict=True)
    known = ([each for each in column if each is not None] for column in columns)
    return tuple(sum(column) if column else None for column in known)


def _text(labels: Labels) -> str:
    return _safe(" ".join(f"{name}={value}" for name, value in labels))


def _safe(text: str) -> str:
    return visible(text[:LONGEST])
