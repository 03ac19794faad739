"""Pages of ``/metrics`` as readings, with all that no family names.

A page is kept every ten seconds: at first, and every ten minutes, with all its lines;
of those between, only the values that changed since. Nothing is parsed before somebody
looks, so the cost of a scrape stays that of its named metrics.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, count
from operator import ne
from typing import TypeVar

from msgspec.structs import replace

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import MetricsPage
from collectors.servers.exposition import read_labels, split_line

EVERY_NS = 10 * NS_PER_S
EARLY_NS = NS_PER_S // 2
"""A scrape this much too early is not left for the next."""
WHOLE_EVERY_NS = 600 * NS_PER_S
MOST_CHARACTERS = 2_000_000
"""Of a page; lines beyond are left out, and counted."""
MOST_SERIES = 20_000
"""Of a page that is shown."""
Each = TypeVar("Each")
Labels = tuple[tuple[str, str], ...]


class PageKeeper:
    """Decides which scrapes of a server are kept as a page."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._taken_ns: int | None = None
        self._whole: MetricsPage | None = None
        """The latest page with all lines, which those after it build on."""

    def take(self, text: str, t_ns: int) -> MetricsPage | None:
        """Return the page to record; None if the last one is recent enough."""
        taken_ns = self._taken_ns
        if taken_ns is not None and t_ns < taken_ns + EVERY_NS - EARLY_NS:
            return None
        self._taken_ns = t_ns
        kept = text[:MOST_CHARACTERS]
        lines = kept.split("\n")
        left_out = 0
        if len(kept) < len(text):
            lines.pop()  # it is cut
            left_out = text.count("\n") - len(lines)
        elif not lines[-1]:
            lines.pop()
        page = self._changes(lines, t_ns)
        if page is None:
            page = self._whole = MetricsPage(
                source=self._source,
                t_ns=t_ns,
                whole=True,
                left_out=left_out,
                lines=lines,
            )
        return page

    def _changes(self, lines: list[str], t_ns: int) -> MetricsPage | None:
        """Return the values that changed; None where other lines changed, too."""
        whole = self._whole
        if whole is None or t_ns >= whole.t_ns + WHOLE_EVERY_NS:
            return None
        before = whole.lines
        if len(before) != len(lines):
            return None
        places = [*compress(count(), map(ne, lines, before))]
        values = []
        for place in places:
            head, _, value = lines[place].rpartition(" ")
            if head != before[place].rpartition(" ")[0] or head[:1] == "#":
                return None
            values.append(value)
        return MetricsPage(
            source=self._source,
            t_ns=t_ns,
            left_out=whole.left_out,
            places=places,
            values=values,
            whole_ns=whole.t_ns,
        )


def evenly(pages: Sequence[Each], most: int) -> Sequence[Each]:
    """Return at most so many, evenly spread, the first and the last among them."""
    if len(pages) <= most:
        return pages
    last = len(pages) - 1
    return [pages[round(last * place / (most - 1))] for place in range(most)]


def filled(whole: MetricsPage, page: MetricsPage) -> MetricsPage:
    """Return a page with all its lines, those that did not change from ``whole``.

    ``whole`` must be the one it builds on: see ``MetricsPage.whole_ns``.
    """
    lines = [*whole.lines]
    for place, value in zip(page.places, page.values, strict=False):
        if 0 <= place < len(lines):  # or the record is damaged
            lines[place] = f"{lines[place].rpartition(' ')[0]} {value}"
    return replace(page, whole=True, lines=lines, places=[], values=[], whole_ns=None)


@dataclass(slots=True)
class PageSeries:
    """The lines of one series: of a histogram or summary several."""

    labels: Labels
    value: int | None = None
    """Number of its line; None for a histogram."""
    total: int | None = None
    """Of the sum of a histogram or summary."""
    count: int | None = None
    buckets: dict[float, int] = field(default_factory=dict)
    """Number of the line by upper bound."""


@dataclass(slots=True)
class PageMetric:
    """A metric of a page: its HELP, TYPE and series."""

    name: str
    kind: str = ""
    """counter, gauge, histogram, summary, or empty where the page does not say."""
    help: str = ""
    series: dict[Labels, PageSeries] = field(default_factory=dict)


@dataclass(slots=True)
class PageLayout:
    """What stands in which line of a page."""

    metrics: dict[str, PageMetric] = field(default_factory=dict)
    unreadable: int = 0
    """Lines that are no metric."""
    left_out: int = 0
    """Series beyond MOST_SERIES."""


PARTS = {
    "histogram": ("_bucket", "_sum", "_count"),
    "gaugehistogram": ("_bucket", "_gsum", "_gcount"),
    "summary": ("_sum", "_count"),
    "counter": ("_total",),
}
"""Suffixes of the series of a metric, by its type."""
SUMS, COUNTS = ("_sum", "_gsum"), ("_count", "_gcount")


def read_layout(lines: Sequence[str]) -> PageLayout:
    """Find every metric and series of a page."""
    layout = PageLayout()
    owners: dict[str, tuple[PageMetric, str]] = {}
    """Metric and suffix by the name of a series."""
    seen = 0
    for place, line in enumerate(lines):
        if line[:1] == "#":
            _take_comment(layout, owners, line)
            continue
        if not line.strip():
            continue
        head, _ = split_line(line)
        labels = read_labels(head)
        name = head.partition("{")[0].strip()
        if labels is None or not name:
            layout.unreadable += 1
        elif seen >= MOST_SERIES:
            layout.left_out += 1
        else:
            seen += 1
            metric, suffix = owners.get(name) or (_metric(layout, name), "")
            _add(metric, suffix, labels, place)
    return layout


def _metric(layout: PageLayout, name: str) -> PageMetric:
    return layout.metrics.setdefault(name, PageMetric(name))


def _take_comment(
    layout: PageLayout, owners: dict[str, tuple[PageMetric, str]], line: str
) -> None:
    """Take a HELP or TYPE line; other comments say nothing."""
    word, name, text = (*line[1:].split(None, 2), "", "", "")[:3]
    if word not in {"HELP", "TYPE"} or not name:
        return
    metric = _metric(layout, name)
    owners.setdefault(name, (metric, ""))
    if word == "HELP":
        metric.help = text.replace("\\n", " ").replace("\\\\", "\\")
        return
    metric.kind = "" if text in {"untyped", "unknown"} else text
    for suffix in PARTS.get(text, ()):
        owners[f"{name}{suffix}"] = metric, suffix


def _add(
    metric: PageMetric, suffix: str, labels: Mapping[str, str], place: int
) -> None:
    """Add a line to its series; of two that are the same, the last one counts."""
    own = labels
    if suffix == "_bucket":
        own = {name: text for name, text in labels.items() if name != "le"}
    key = tuple(sorted(own.items()))
    series = metric.series.setdefault(key, PageSeries(key))
    if suffix == "_bucket":
        bound = number_of(labels.get("le", ""))
        if bound is not None:
            series.buckets[bound] = place
    elif suffix in SUMS:
        series.total = place
    elif suffix in COUNTS:
        series.count = place
    else:
        series.value = place


def numbers_of(lines: Sequence[str]) -> list[float | None]:
    """The value in each line; None in comments, and where it is no finite number."""
    return [
        None if line[:1] in {"#", ""} else _finite(number_of(split_line(line)[1]))
        for line in lines
    ]


def _finite(number: float | None) -> float | None:
    return None if number is None or math.isinf(number) else number


def number_of(text: str) -> float | None:
    """The number, which may be negative or infinite; None for what is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value
