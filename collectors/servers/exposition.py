"""Turns the Prometheus text of ``/metrics`` into samples of an engine.

prometheus_client parses each series once. Between two scrapes most lines are identical
and at the same position; in the others only the value changes, and the part before it
identifies a known series. Only changed lines are looked at, and a histogram is built
only if its values changed.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress, count
from operator import ne
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from collectors.contract.readings import REFUSED, EngineSample, Histogram
from collectors.servers.families.family import (
    ADAPTERS,
    ADAPTERS_WAITING,
    Names,
    ServerFamily,
)

MOST_SERIES = 50_000
MOST_RANKS = 1_024
MOST_PARTS = 256
"""Series of one metric: buckets, finish reasons, positions."""
LONGEST_LABEL = 256
LONGEST_SHARED = 1_000
LARGEST = 2**53
"""Largest count accepted: up to here a double holds every integer exactly."""
LATEST_S = 2.0**33
"""Latest start time accepted, in Unix seconds (year 2242): larger ones are in ms."""
LATEST_ALONE_S = 3e9
"""The same of a time that several API servers add up (year 2065)."""
SELDOM_EXPORTED = {"block_lifetime_s", "block_idle_s", "block_reuse_gap_s"}
STARTED = "process_start_time_seconds"


class ExpositionError(ValueError):
    """The text is truncated or not an exposition; the message can be shown to users."""


class _Place(NamedTuple):
    """Where a metric's values belong in an EngineSample."""

    part: str
    """One of highest, sum, histograms, finished, adapters, others, info, started."""
    field: str = ""
    choice: int = 0
    """Index of the metric name among its alternatives."""
    within: str = ""
    """For a histogram: bucket, sum or count. For finished and others: the finish
    reason, or a label name in braces."""


class ExposedSeries:
    """A series and its latest value."""

    __slots__ = ("scrape", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        """None if the text was not a valid number."""
        self.scrape = 0
        """Number of the scrape that last contained the series."""


_Value = tuple[ExposedSeries | None, float | None]
"""The series of a line, and its value in that line."""
_Parts = dict[str | float, list[ExposedSeries]]
"""Series by bucket bound or by label value."""
_Choices = list[Sequence[ExposedSeries]]
"""Series by metric name, those of the newest name first."""
_Labelled = list[tuple[str, bool, Sequence[ExposedSeries]]]
"""Series by key in the sample, and whether their maximum counts instead of the sum."""
_Buckets = list[tuple[float, ExposedSeries, Sequence[ExposedSeries]]]
"""Upper bounds with their series: mostly one, and the others."""


@dataclass(slots=True)
class _ExposedHistogram:
    """The series of a histogram."""

    metric: str
    buckets: _Buckets
    total: Sequence[ExposedSeries]
    count: Sequence[ExposedSeries]
    values: object = None
    """What :attr:`latest` was built from."""
    latest: Histogram | None = None


class _Layout(NamedTuple):
    """Which series each field of a rank's sample is computed from."""

    numbers: list[tuple[str, bool, _Choices]]
    """Field, whether the maximum counts instead of the sum, and the series."""
    kv_usage: _Choices
    other_pools: list[_Choices]
    histograms: list[tuple[str, list[_ExposedHistogram]]]
    finished: _Labelled
    adapters: _Labelled
    others: _Labelled


@dataclass(slots=True)
class _Rank:
    """The series of one rank, by place."""

    places: dict[_Place, _Parts]
    layout: _Layout | None = None
    """Made for the next scrape after a series was added."""


class ScrapedPage(NamedTuple):
    """Result of reading one ``/metrics`` page."""

    samples: list[EngineSample]
    started_s: float | None
    """Unix time at which the process started."""
    wrong: list[str]
    """Why values were discarded, as text for users."""


class Exposition:
    """Reads the metrics a server of one family exposes, scrape after scrape."""

    def __init__(self, family: ServerFamily) -> None:
        self.family = family
        self.labels: Mapping[str, str] = {}
        """Labels of the info metric: the engine's configuration."""
        self._places: dict[str, list[_Place]] = defaultdict(list)
        for name, place in _places(family):
            self._places[name].append(place)
        self._prefixes = (*family.prefixes, *family.refused, STARTED)
        self._scrape = 0
        self._forget()

    def _forget(self) -> None:
        self._lines: list[str | None] = []
        self._values: list[_Value] = []
        """Series and value of each of these lines."""
        self._has_repeats = True
        """Whether several lines may have the same series: the last one counts."""
        self._series: dict[str, ExposedSeries | None] = {}
        self._ranks: dict[tuple[str, str | None], _Rank] = {}
        self._started = ExposedSeries()
        self._wrong: dict[str, None] = {}
        self._left_out: dict[str, ExposedSeries] = {}

    def read(
        self, text: str, *, t_ns: int = 0, uncertainty_ns: int = 0, source: str = ""
    ) -> ScrapedPage:
        """Samples of a complete page; invalid values are discarded and listed.

        Raises:
            ExpositionError: the text is truncated.
        """
        if text and not text.endswith("\n"):
            raise ExpositionError("the answer broke off in the middle")
        if len(self._series) >= MOST_SERIES:
            self._forget()
        self._wrong.clear()
        lines: list[str | None] = [*text.split("\n")]
        added = len(lines) - len(self._lines)
        before = [*self._lines, *[None] * added]
        self._values = [*self._values, *[(None, None)] * added][: len(lines)]
        self._lines = lines
        has_same_series = added == 0 and not self._has_repeats
        for at in compress(count(), map(ne, lines, before)):
            ((was, _), (series, value)) = self._values[at], self._take(lines[at] or "")
            has_same_series = has_same_series and series is was
            self._values[at] = series, value
            if series is not None:
                series.value = value
        if not has_same_series:
            self._begin()
            for series, value in self._values:
                if series is not None:
                    series.scrape = self._scrape
                    series.value = value
            kept = [series for series, _ in self._values if series is not None]
            self._has_repeats = len(set(kept)) < len(kept)
        return self._scraped(t_ns, uncertainty_ns, source)

    def series(self, name: str, labels: Mapping[str, str]) -> ExposedSeries | None:
        """Register a series parsed elsewhere; None if its metric is not kept."""
        places = self._places.get(name)
        return self._add_series(places, labels) if places else None

    def read_values(
        self,
        values: Iterable[tuple[ExposedSeries, str]],
        *,
        t_ns: int = 0,
        uncertainty_ns: int = 0,
        source: str = "",
    ) -> ScrapedPage:
        """Samples of one scrape, from registered series and their value texts."""
        self._wrong.clear()
        self._begin()
        for series, number in values:
            series.scrape = self._scrape
            series.value = read_number(number)
        return self._scraped(t_ns, uncertainty_ns, source)

    def _begin(self) -> None:
        """No series is in the scrape any more, until it is met again."""
        self._scrape += 1
        self._has_repeats = True

    def _scraped(self, t_ns: int, uncertainty_ns: int, source: str) -> ScrapedPage:
        samples = [
            EngineSample(
                source=source,
                t_ns=t_ns,
                uncertainty_ns=uncertainty_ns,
                rank=name,
                model=model,
                **fields,
            )
            for (name, model), fields in self._fields_by_rank().items()
        ]
        started_s = self._together([self._started])
        if started_s is not None and started_s > LATEST_S:
            started_s = None
            self._wrong["a start time that cannot be"] = None
        for why, series in self._left_out.items():
            if series.scrape == self._scrape:
                self._wrong[why] = None
        return ScrapedPage(samples, started_s, list(self._wrong))

    def _take(self, line: str) -> _Value:
        """The series of a line and its value; None for series that are not kept."""
        head, _, number = line.rpartition(" ")
        series = self._series.get(head)
        if series is None:  # or the line is written in another way
            if not line.startswith(self._prefixes):
                return None, None
            head, number = split_line(line)
            try:
                series = self._series[head]
            except KeyError:
                series = self._register(head)
        return series, None if series is None else read_number(number)

    def _register(self, head: str) -> ExposedSeries | None:
        """Register a new series; None for metrics that are not kept."""
        if len(self._series) >= MOST_SERIES:
            return self._placeholder(f"more than {MOST_SERIES:,} series")
        places = self._places.get(head.partition("{")[0].rstrip())
        series = self._keep(head, places) if places else None
        self._series[head] = series
        return series

    def _placeholder(self, why: str) -> ExposedSeries:
        """A placeholder for a series that is left out, which reports the reason."""
        return self._left_out.setdefault(why, ExposedSeries())

    def _keep(self, head: str, places: Sequence[_Place]) -> ExposedSeries | None:
        labels = read_labels(head)
        if labels is None:
            return self._placeholder("lines that are not metrics")
        return self._add_series(places, labels)

    def _add_series(
        self, places: Sequence[_Place], labels: Mapping[str, str]
    ) -> ExposedSeries | None:
        """Add a new series to its rank; None if it has nothing but labels."""
        if places[0].part == "started":
            return self._started
        if places[0].part == "info":
            self.labels = {key: _short(text) for key, text in labels.items()}
            return None
        parts_of = [
            (place, part)
            for place in places
            if (part := self._part(place, labels)) is not None
        ]
        if not parts_of:
            return None
        rank = self._rank(labels)
        if rank is None:
            return self._placeholder(f"more than {MOST_RANKS:,} ranks")
        series, rank.layout = ExposedSeries(), None
        for place, part in parts_of:
            parts = rank.places.setdefault(place, {})
            if part in parts or len(parts) < MOST_PARTS:
                parts.setdefault(part, []).append(series)
            else:
                series = self._placeholder(
                    f"more than {MOST_PARTS} parts of {place.field}"
                )
        return series

    def _part(self, place: _Place, labels: Mapping[str, str]) -> str | float | None:
        """As ``_part`` below; None for a series that counts no refused requests."""
        if place.part == "adapters":
            return _adapters(*(labels.get(each) for each in place.within.split()))
        if place.field != REFUSED:
            return _part(place, labels)
        kind = self.family.refused[place.within](labels)
        return None if kind is None else _short(kind)

    def _rank(self, labels: Mapping[str, str]) -> _Rank | None:
        model = labels.get(self.family.model_label)
        name = _short(labels.get(self.family.rank_label, ""))
        key = name, None if model is None else _short(model)
        if key not in self._ranks and len(self._ranks) >= MOST_RANKS:
            return None
        return self._ranks.setdefault(key, _Rank({}))

    def _fields_by_rank(self) -> dict[tuple[str, str | None], dict[str, Any]]:
        """Fields of EngineSample by rank and model, from this scrape.

        Series without a rank label belong to the whole server, and to its rank if it
        has only one.
        """
        result = {
            key: fields
            for key, rank in self._ranks.items()
            if (fields := self._fields(rank))
        }
        named = [key for key in result if key[0]]
        for name, model in [key for key in result if not key[0]]:
            fields = result.pop((name, model))
            of_model = [key for key in named if model in {None, key[1]}]
            if of_model and (len(of_model) == 1 or not fields.keys() - {"others"}):
                result[of_model[0]] = _joined(fields, result[of_model[0]])
            else:
                result["all" if named else "0", model] = fields
        return result

    def _fields(self, rank: _Rank) -> dict[str, Any]:
        """Known fields of one rank's EngineSample, from this scrape."""
        layout = rank.layout
        if layout is None:
            layout = rank.layout = _layout(self.family, rank.places)
        fields: dict[str, Any] = {}
        for name, highest, choices in layout.numbers:
            value = self._first(choices, highest=highest)
            if value is not None and (number := _count(value)) is not None:
                fields[name] = number
        usage = self._kv_usage(layout)
        if usage is not None:
            fields["kv_usage"] = usage
        histograms = {
            name: histogram
            for name, choices in layout.histograms
            if (histogram := self._histogram(choices))
        }
        finished = {
            how: number
            for how, value in self._by_label(layout.finished).items()
            if (number := _count(value)) is not None
        }
        groups = {
            "histograms": histograms,
            "finished": finished,
            "others": self._by_label(layout.others) | self._adapters(layout.adapters),
        }
        return fields | {name: values for name, values in groups.items() if values}

    def _kv_usage(self, layout: _Layout) -> float | None:
        """KV cache usage; None also while another pool that shares it is in use."""
        if any(self._first(each, highest=True) for each in layout.other_pools):
            return None
        return self._first(layout.kv_usage, highest=True)

    def _first(self, choices: _Choices, *, highest: bool) -> float | None:
        """Value of the newest of several metric names that is present; None without."""
        for series in choices:
            value = self._together(series, highest=highest)
            if value is not None:
                return value
        return None

    def _together(
        self, series: Sequence[ExposedSeries], *, highest: bool = False
    ) -> float | None:
        """Sum or maximum of series in this scrape; None if absent or invalid."""
        if len(series) == 1 and series[0].value is not None:  # nearly always
            return series[0].value if series[0].scrape == self._scrape else None
        values = [each.value for each in series if each.scrape == self._scrape]
        numbers = [value for value in values if value is not None]
        if len(numbers) < len(values):
            self._wrong["numbers that cannot be"] = None
            return None
        return (max if highest else sum)(numbers) if numbers else None

    def _by_label(self, labelled: _Labelled) -> dict[str, float]:
        return {
            key: value
            for key, highest, series in labelled
            if (value := self._together(series, highest=highest)) is not None
        }

    def _adapters(self, labelled: _Labelled) -> dict[str, float]:
        """How many LoRA adapters run and wait, by the labels that applied last."""
        times = self._by_label(labelled)
        latest = max(times, key=lambda each: times[each], default=None)
        if latest is None or times[latest] > LATEST_ALONE_S:
            return {}
        counts = map(float, latest.split())
        return dict(zip((ADAPTERS, ADAPTERS_WAITING), counts, strict=True))

    def _histogram(self, choices: Sequence[_ExposedHistogram]) -> Histogram | None:
        for exposed in choices:
            buckets = self._counts(exposed.buckets)
            if buckets:
                total, count = (
                    self._together(exposed.total),
                    self._together(exposed.count),
                )
                if exposed.latest is None or exposed.values != (buckets, total, count):
                    exposed.values = buckets, total, count
                    exposed.latest = _whole(dict(buckets), total, count)
                if exposed.latest is None:
                    self._wrong[f"{exposed.metric}, which contradicts itself"] = None
                return exposed.latest
        return None

    def _counts(self, buckets: _Buckets) -> list[tuple[float, float | None]]:
        """Upper bounds and cumulative counts, from this scrape."""
        scrape = self._scrape
        return [
            (bound, self._together((one, *others)) if others else one.value)
            for bound, one, others in buckets
            if one.scrape == scrape or any(each.scrape == scrape for each in others)
        ]


def _layout(family: ServerFamily, places: Mapping[_Place, _Parts]) -> _Layout:
    """Find the series of each field among those of a rank."""

    def choices(part: str, name: str, names: Names) -> _Choices:
        found = (places.get(_Place(part, name, at), {}) for at in range(len(names)))
        return [series for parts in found for series in parts.values()]

    def labelled(part: str) -> _Labelled:
        return [
            (_key(place, value), part != "finished" and place.choice == 0, series)
            for place, parts in places.items()
            if place.part == part
            for value, series in parts.items()
        ]

    numbers = [
        (name, part == "highest", choices(part, name, names))
        for part, metrics in (("highest", family.gauges), ("sum", family.counters))
        for name, names in metrics.items()
    ]
    histograms = [
        (name, _histograms(name, names, places))
        for name, names in family.histograms.items()
    ]
    return _Layout(
        numbers=[each for each in numbers if each[2]],
        kv_usage=choices("highest", "kv_usage", family.kv_usage),
        other_pools=[choices("highest", name, (name,)) for name in family.other_pools],
        histograms=[each for each in histograms if each[1]],
        finished=labelled("finished"),
        adapters=labelled("adapters"),
        others=labelled("others"),
    )


def _histograms(
    name: str, metrics: Names, places: Mapping[_Place, _Parts]
) -> list[_ExposedHistogram]:
    """The histograms that can be a field, that of the newest metric name first."""
    found = []
    for choice, metric in enumerate(metrics):
        buckets, total, count = (
            places.get(_Place("histograms", name, choice, within), {})
            for within in ("bucket", "sum", "count")
        )
        if buckets:
            found.append(
                _ExposedHistogram(
                    metric,
                    [(float(le), one, rest) for le, (one, *rest) in buckets.items()],
                    total.get("", ()),
                    count.get("", ()),
                )
            )
    return found


def _key(place: _Place, part: str | float) -> str:
    """A key such as ``name{value}`` in a sample's mapping of numbers."""
    name = place.field if place.part == "others" else ""
    return (f"{name}{{{part}}}" if part else name) if name else str(part)


def _parsed(head: str) -> Mapping[str, str] | None:
    """The labels of a series; None if the text is not a valid series."""
    try:
        (metric,) = text_string_to_metric_families(f"{head} 0\n")
        (sample,) = metric.samples
    except (ValueError, IndexError, KeyError, TypeError):
        return None
    return sample.labels


_labels = lru_cache(maxsize=4_096)(_parsed)
"""Shared cache: many servers expose the same series."""


def read_labels(head: str) -> Mapping[str, str] | None:
    """The labels of a series; None if the text is not a valid series."""
    return _labels(head) if len(head) < LONGEST_SHARED else _parsed(head)


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Merge two mappings, and those nested in them; on conflict the second wins."""
    both = one | other
    for name in one.keys() & other.keys():
        if isinstance(one[name], dict):
            both[name] = one[name] | other[name]
    return both


def _part(place: _Place, labels: Mapping[str, str]) -> str | float:
    """The bucket bound or label value that distinguishes a series in its metric."""
    if place.within == "bucket":
        try:
            return float(labels["le"])
        except (KeyError, ValueError):
            return math.nan
    if place.within[:1] == "{":
        return _short(labels.get(place.within[1:-1], ""))
    return place.within if place.part == "finished" else ""


def _adapters(runs: str | None, waits: str | None) -> str | None:
    """How many adapters run, and how many only wait; None where labels lack them.

    >>> _adapters("a,b", "b,c"), _adapters("", ""), _adapters("a", None)
    ('2 1', '0 0', None)
    """
    if runs is None or waits is None:
        return None
    running, waiting = ({*each.split(",")} - {""} for each in (runs, waits))
    return f"{len(running)} {len(waiting - running)}"


def _whole(
    buckets: Mapping[float, float | None], total: float | None, count: float | None
) -> Histogram | None:
    """The histogram, if bounds and counts are consistent; otherwise None."""
    bounds = sorted(bound for bound in buckets if bound < math.inf)
    length = len(bounds) + (math.inf in buckets)
    counts = [*(buckets[bound] for bound in bounds), buckets.get(math.inf, count)]
    ints = [round(each) for each in counts if each is not None]
    whole = len(ints) == len(counts) and length == len(buckets)  # no bound is NaN
    if total is None or not whole or ints != sorted(ints) or ints[-1] > LARGEST:
        return None
    return Histogram(bounds=bounds, counts=ints, sum=total)


def split_line(line: str) -> tuple[str, str]:
    """Split a line into series and value text."""
    head, _, number = line.rpartition(" ")
    if not head.endswith("}") and (" " in head or not head):
        return _spaced_otherwise(line)
    return head, number


def _spaced_otherwise(line: str) -> tuple[str, str]:
    """Split a line with tabs or a timestamp, as :func:`split_line` does."""
    head, bracket, rest = line.rpartition("}")
    if not bracket:
        head, *numbers = line.split()
    else:
        numbers = rest.split()
    return head + bracket, numbers[0] if numbers else ""


def _count(value: float) -> int | None:
    return round(value) if value <= LARGEST else None


def read_number(text: str) -> float | None:
    """The value, if it is a finite number that is not negative."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < math.inf and "_" not in text else None


def _short(text: str) -> str:
    return text[:LONGEST_LABEL]


def _places(family: ServerFamily) -> Iterator[tuple[str, _Place]]:
    """Every series name of a family, with the field that its values belong to."""
    yield STARTED, _Place("started")
    for name in family.info:
        yield name, _Place("info")
    pools = {name: (name,) for name in family.other_pools}
    usage = {"kv_usage": family.kv_usage, **pools}
    yield from _plain("highest", {**family.gauges, **usage})
    yield from _plain("sum", family.counters)
    for name, how in family.finished.items():
        yield from _with_total(name, _Place("finished", name, 0, how))
    yield from _others(family)
    for field, choices in family.histograms.items():
        for choice, name in enumerate(choices):
            for part in ("bucket", "sum", "count"):
                yield f"{name}_{part}", _Place("histograms", field, choice, part)


def _others(family: ServerFamily) -> Iterator[tuple[str, _Place]]:
    for name, label in family.others.items():
        gauge = _Place("others", family.short(name), 0, f"{{{label}}}" if label else "")
        yield name, gauge
        yield f"{name}_total", gauge._replace(choice=1)
    for name in family.refused:
        yield from _with_total(name, _Place("others", REFUSED, 1, name))
    for name, labels in family.adapters.items():
        yield name, _Place("adapters", within=" ".join(labels))
    for name, label in family.sums.items():
        for part in ("sum", "count"):
            field = family.short(f"{name}_{part}")
            within = f"{{{label}}}" if label else ""
            yield f"{name}_{part}", _Place("others", field, 1, within)


def _plain(part: str, metrics: Mapping[str, Names]) -> Iterator[tuple[str, _Place]]:
    for field, choices in metrics.items():
        for choice, names in enumerate(choices):
            for name in names.split(" + "):
                yield from _with_total(name, _Place(part, field, choice))


def _with_total(name: str, place: _Place) -> Iterator[tuple[str, _Place]]:
    yield name, place
    yield f"{name}_total", place


def series_names(family: ServerFamily) -> dict[str, list[str]]:
    """Series names by histogram field; the rest under "others" and "plain".

    Histograms that few servers export are among the others. What tells of speculative
    decoding, and has a series a rank, is read of the largest fleet, too.
    """
    drafts = {
        family.short(name)
        for name in family.speculation.values()
        if family.others[name] is None
    }
    names: dict[str, list[str]] = defaultdict(list)
    for name, place in _places(family):
        if place.field == REFUSED and not name.startswith(family.prefixes):
            continue  # every program's that has a web server
        if place.part == "histograms" and place.field not in SELDOM_EXPORTED:
            names[place.field].append(name)
        elif place.part == "others" and place.field in drafts:
            names["drafts"].append(name)
        else:
            others = place.part in {"histograms", "adapters", "others"}
            names["others" if others else "plain"].append(name)
    return names
