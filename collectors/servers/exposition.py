"""Turns the Prometheus text of ``/metrics`` into samples of an engine.

prometheus_client parses each series once. Between two scrapes most lines are identical
and at the same position; in the others only the value changes, and the part before it
identifies a known series.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from collectors.contract.readings import EngineSample, Histogram
from collectors.servers.families.family import Names, ServerFamily

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
_EMPTY: tuple[object, ...] = (None, {})
STARTED = "process_start_time_seconds"


class ExpositionError(ValueError):
    """The text is truncated or not an exposition; the message can be shown to users."""


class _Place(NamedTuple):
    """Where a metric's values belong in an EngineSample."""

    part: str
    """One of highest, sum, histograms, finished, others, info and started."""
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


_Line = tuple[str | None, ExposedSeries | None, float | None]
"""A line's text, its series and its value."""
_NO_LINE: _Line = (None, None, None)
_Parts = dict[str | float, list[ExposedSeries]]
"""Series by bucket bound or by label value."""
_Rank = dict[_Place, _Parts]
"""The series of one rank, by place."""


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
        self._prefixes = (*family.prefixes, STARTED)
        self._scrape = 0
        self._forget()

    def _forget(self) -> None:
        self._lines: list[_Line] = []
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
        self._begin()
        lines = text.split("\n")
        cache = self._lines = [*self._lines, *[_NO_LINE] * len(lines)][: len(lines)]
        for at, line in enumerate(lines):
            before, series, value = cache[at]
            if line != before:
                series, value = self._take(line)
                cache[at] = line, series, value
            if series is not None:
                series.scrape = self._scrape
                series.value = value
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
        self._begin()
        for series, number in values:
            series.scrape = self._scrape
            series.value = read_number(number)
        return self._scraped(t_ns, uncertainty_ns, source)

    def _begin(self) -> None:
        self._scrape += 1
        self._wrong.clear()

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

    def _take(self, line: str) -> tuple[ExposedSeries | None, float | None]:
        """The series of a line and its value; None for series that are not kept."""
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
        rank = self._rank(labels)
        if rank is None:
            return self._placeholder(f"more than {MOST_RANKS:,} ranks")
        series = ExposedSeries()
        for place in places:
            parts = rank.setdefault(place, {})
            part = _part(place, labels)
            if part in parts or len(parts) < MOST_PARTS:
                parts.setdefault(part, []).append(series)
            else:
                series = self._placeholder(
                    f"more than {MOST_PARTS} parts of {place.field}"
                )
        return series

    def _rank(self, labels: Mapping[str, str]) -> _Rank | None:
        model = labels.get(self.family.model_label)
        name = _short(labels.get(self.family.rank_label, ""))
        key = name, None if model is None else _short(model)
        if key not in self._ranks and len(self._ranks) >= MOST_RANKS:
            return None
        return self._ranks.setdefault(key, {})

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
        """Fields of one rank's EngineSample, from this scrape."""
        family = self.family
        fields: dict[str, Any] = {}
        for part, metrics in (("highest", family.gauges), ("sum", family.counters)):
            for name, choices in metrics.items():
                value = self._first(rank, part, name, choices)
                fields[name] = None if value is None else _count(value)
        fields["kv_usage"] = self._kv_usage(rank)
        fields["histograms"] = {
            name: histogram
            for name, choices in family.histograms.items()
            if (histogram := self._histogram(rank, name, choices))
        }
        finished: dict[str, float] = {}
        others: dict[str, float] = {}
        for place, parts in rank.items():
            if place.part == "finished":
                finished |= self._by_label(place, parts, "")
            elif place.part == "others":
                others |= self._by_label(place, parts, place.field)
        fields["finished"] = {
            how: number
            for how, value in finished.items()
            if (number := _count(value)) is not None
        }
        fields["others"] = others
        return {name: value for name, value in fields.items() if value not in _EMPTY}

    def _kv_usage(self, rank: _Rank) -> float | None:
        """KV cache usage; None also while another pool that shares it is in use."""
        pools = self.family.other_pools
        if any(self._first(rank, "highest", name, (name,)) for name in pools):
            return None
        return self._first(rank, "highest", "kv_usage", self.family.kv_usage)

    def _first(self, rank: _Rank, part: str, name: str, choices: Names) -> float | None:
        """Value of the newest of several metric names that is present; None without."""
        for choice in range(len(choices)):
            for series in rank.get(_Place(part, name, choice), {}).values():
                value = self._together(series, highest=part == "highest")
                if value is not None:
                    return value
        return None

    def _together(
        self, series: Sequence[ExposedSeries], *, highest: bool = False
    ) -> float | None:
        """Sum or maximum of series in this scrape; None if absent or invalid."""
        values = [each.value for each in series if each.scrape == self._scrape]
        numbers = [value for value in values if value is not None]
        if len(numbers) < len(values):
            self._wrong["numbers that cannot be"] = None
            return None
        return (max if highest else sum)(numbers) if numbers else None

    def _by_label(self, place: _Place, parts: _Parts, name: str) -> dict[str, float]:
        """Values of a metric by label value, with keys such as ``name{value}``."""
        highest = place.part == "others" and place.choice == 0
        return {
            (f"{name}{{{part}}}" if part else name) if name else str(part): value
            for part, series in parts.items()
            if (value := self._together(series, highest=highest)) is not None
        }

    def _histogram(self, rank: _Rank, name: str, choices: Names) -> Histogram | None:
        for choice, metric in enumerate(choices):
            place = _Place("histograms", name, choice)
            parts = rank.get(place._replace(within="bucket"))
            buckets = self._buckets(parts) if parts else None
            if buckets:
                total = rank.get(place._replace(within="sum"), {}).get("", ())
                count = rank.get(place._replace(within="count"), {}).get("", ())
                histogram = _whole(
                    buckets, self._together(total), self._together(count)
                )
                if histogram is None:
                    self._wrong[f"{metric}, which contradicts itself"] = None
                return histogram
        return None

    def _buckets(self, parts: _Parts) -> dict[float, float | None]:
        """Cumulative counts by upper bound, from this scrape."""
        scrape = self._scrape
        buckets: dict[float, float | None] = {}
        for bound, series in parts.items():
            if len(series) > 1:
                if any(each.scrape == scrape for each in series):
                    buckets[float(bound)] = self._together(series)
            elif series[0].scrape == scrape:
                buckets[float(bound)] = series[0].value
        return buckets


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
    for name in family.sums:
        for part in ("sum", "count"):
            field = family.short(f"{name}_{part}")
            yield f"{name}_{part}", _Place("others", field, 1)


def _plain(part: str, metrics: Mapping[str, Names]) -> Iterator[tuple[str, _Place]]:
    for field, choices in metrics.items():
        for choice, names in enumerate(choices):
            for name in names.split(" + "):
                yield from _with_total(name, _Place(part, field, choice))


def _with_total(name: str, place: _Place) -> Iterator[tuple[str, _Place]]:
    yield name, place
    yield f"{name}_total", place


def series_names(family: ServerFamily) -> dict[str, list[str]]:
    """Series names by histogram field; the rest under "others" and "plain"."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, place in _places(family):
        part = place.field if place.part == "histograms" else place.part
        names[part if place.part in {"histograms", "others"} else "plain"].append(name)
    return names
