"""The text of ``/metrics``, read again and again, as samples of an engine.

prometheus_client parses every series once. Between two scrapes only the numbers at the
ends of the lines change, so what stands before a number names a series that is known.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from collectors.engines.family import Family, Names
from collectors.readings import EngineSample, Histogram

MOST_SERIES = 50_000
MOST_RANKS = 1_024
MOST_PARTS = 256
"""Of one metric: buckets, reasons, positions."""
LONGEST_LABEL = 256
LARGEST = 2**53
"""No engine counts further: up to here every whole number is told apart."""
_EMPTY: tuple[object, ...] = (None, {})
STARTED = "process_start_time_seconds"


class ExpositionError(ValueError):
    """The text is not whole; the message is fit to show."""


class _Place(NamedTuple):
    """Where the values of a metric belong in a sample."""

    part: str
    """plain, usage, finished, others; bucket, sum, count; info, started."""
    field: str = ""
    choice: int = 0
    """Which spelling it is."""


class _Series:
    """One series and its last value."""

    __slots__ = ("scrape", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        """None where it was no number that can be."""
        self.scrape = 0
        """In which it was seen last."""


_Rank = dict[_Place, dict[str | float, list[_Series]]]
"""The series of one rank: by place, then by bucket's bound or by what a label says."""


class Scraped(NamedTuple):
    """What one text said."""

    samples: list[EngineSample]
    started_s: float | None
    """Unix time at which the process began."""
    wrong: list[str]
    """What was left out, and why; fit to show."""


class Exposition:
    """Reads what a server of a family exposes."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.labels: Mapping[str, str] = {}
        """How the engine is configured, as far as it told."""
        self._places = dict(_places(family))
        self._parted_by = _parted_by(family)
        self._prefixes = (*family.prefixes, STARTED)
        self._scrape = 0
        self._forget()

    def _forget(self) -> None:
        self._series: dict[str, _Series | None] = {}
        self._ranks: dict[tuple[str, str | None], _Rank] = {}
        self._started = _Series()
        self._wrong: dict[str, None] = {}

    def read(
        self, text: str, *, t_ns: int = 0, uncertainty_ns: int = 0, source: str = ""
    ) -> Scraped:
        """The samples in a whole text; what cannot be is left out, and told.

        Raises:
            ExpositionError: it broke off.
        """
        if text and not text.endswith("\n"):
            raise ExpositionError("the answer broke off in the middle")
        if len(self._series) >= MOST_SERIES:
            self._forget()
        self._scrape += 1
        self._wrong.clear()
        for line in text.split("\n"):
            if line.startswith(self._prefixes):
                self._take(line)
        samples = [
            EngineSample(
                source=source,
                t_ns=t_ns,
                uncertainty_ns=uncertainty_ns,
                rank=name,
                model=model,
                **fields,
            )
            for (name, model), rank in self._ranks.items()
            if (fields := self._fields(rank))
        ]
        started_s = self._together([self._started])
        return Scraped(samples, started_s, list(self._wrong))

    def _take(self, line: str) -> None:
        head, _, number = line.rpartition(" ")
        if not head.endswith("}") and (" " in head or not head):
            head, number = _spaced_otherwise(line)
        try:
            series = self._series[head]
        except KeyError:
            series = self._meet(head)
        if series is not None:
            series.scrape = self._scrape
            series.value = _number(number)

    def _meet(self, head: str) -> _Series | None:
        """A series not met before; None for one that is not kept."""
        if len(self._series) >= MOST_SERIES:
            self._wrong[f"more than {MOST_SERIES:,} series"] = None
            return None
        place = self._places.get(head.partition("{")[0].rstrip())
        series = place and self._keep(head, place)
        self._series[head] = series
        return series

    def _keep(self, head: str, place: _Place) -> _Series | None:
        try:
            (metric,) = text_string_to_metric_families(f"{head} 0\n")
            (sample,) = metric.samples
        except (ValueError, IndexError, KeyError, TypeError):
            self._wrong["lines that are no metrics"] = None
            return None
        labels = sample.labels
        if place.part == "started":
            return self._started
        if place.part == "info":
            self.labels = {key: _short(text) for key, text in labels.items()}
            return None
        rank = self._rank(labels)
        if rank is None:
            return None
        parts = rank.setdefault(place, {})
        part = self._part(place, labels)
        if part not in parts and len(parts) >= MOST_PARTS:
            self._wrong[f"more than {MOST_PARTS} parts of {place.field}"] = None
            return None
        series = _Series()
        parts.setdefault(part, []).append(series)
        return series

    def _part(self, place: _Place, labels: Mapping[str, str]) -> str | float:
        if place.part == "bucket":
            try:
                return float(labels["le"])
            except (KeyError, ValueError):
                return math.nan
        return _short(labels.get(self._parted_by.get(place, ""), ""))

    def _rank(self, labels: Mapping[str, str]) -> _Rank | None:
        model = labels.get(self.family.model_label)
        name = _short(labels.get(self.family.rank_label) or "0")
        key = name, None if model is None else _short(model)
        if key not in self._ranks and len(self._ranks) >= MOST_RANKS:
            self._wrong[f"more than {MOST_RANKS:,} ranks"] = None
            return None
        return self._ranks.setdefault(key, {})

    def _fields(self, rank: _Rank) -> dict[str, Any]:
        """What a rank said in this scrape, by field of the sample."""
        family = self.family
        fields: dict[str, Any] = {
            name: _count(value)
            for name, choices in (*family.gauges.items(), *family.counters.items())
            if (value := self._first(rank, "plain", name, choices)) is not None
        }
        usage = self._first(rank, "usage", "kv_usage", family.kv_usage)
        if usage is not None:
            fields["kv_usage"] = usage
        for name, choices in family.histograms.items():
            if histogram := self._histogram(rank, name, choices):
                fields.setdefault("histograms", {})[name] = histogram
        for place, parts in rank.items():
            if place.part in {"finished", "others"}:
                self._parted(place, parts, fields.setdefault(place.part, {}))
        return {
            name: value for name, value in fields.items() if value not in ({}, None)
        }

    def _first(self, rank: _Rank, part: str, name: str, choices: Names) -> float | None:
        """The value of the newest spelling that was there."""
        for choice in range(len(choices)):
            for series in rank.get(_Place(part, name, choice), {}).values():
                value = self._together(series, most=part == "usage")
                if value is not None:
                    return value
        return None

    def _together(self, series: list[_Series], *, most: bool = False) -> float | None:
        """The sum of what was seen in this scrape; None of nothing, or of nonsense."""
        values = [each.value for each in series if each.scrape == self._scrape]
        numbers = [value for value in values if value is not None]
        if len(numbers) < len(values):
            self._wrong["numbers that cannot be"] = None
            return None
        return (max if most else sum)(numbers) if numbers else None

    def _parted(
        self,
        place: _Place,
        parts: Mapping[str | float, list[_Series]],
        into: dict[str, float | None],
    ) -> None:
        for label, series in parts.items():
            value = self._together(series)
            if value is None:
                continue
            if place.part == "finished":
                into.setdefault(str(label), _count(value) or 0)
            else:
                into[f"{place.field}{{{label}}}" if label else place.field] = value

    def _histogram(self, rank: _Rank, name: str, choices: Names) -> Histogram | None:
        for choice, metric in enumerate(choices):
            found = rank.get(_Place("bucket", name, choice), {})
            buckets = {
                float(bound): self._together(series)
                for bound, series in found.items()
                if any(each.scrape == self._scrape for each in series)
            }
            if buckets:
                total = self._first_of(rank, _Place("sum", name, choice))
                count = self._first_of(rank, _Place("count", name, choice))
                histogram = _whole(buckets, total, count)
                if histogram is None:
                    self._wrong[f"{metric}, which contradicts itself"] = None
                return histogram
        return None

    def _first_of(self, rank: _Rank, place: _Place) -> float | None:
        return self._together(rank.get(place, {}).get("", []))


def _whole(
    buckets: Mapping[float, float | None], total: float | None, count: float | None
) -> Histogram | None:
    """A histogram, if the pieces are those of one."""
    bounds = sorted(bound for bound in buckets if bound < math.inf)
    counts = [*(buckets[bound] for bound in bounds), buckets.get(math.inf, count)]
    known = [round(each) for each in counts if each is not None and each <= LARGEST]
    whole = len(known) == len(counts) and not any(map(math.isnan, buckets))
    if total is None or not whole or any(now < then for then, now in pairwise(known)):
        return None
    return Histogram(bounds=bounds, counts=known, sum=total)


def _spaced_otherwise(line: str) -> tuple[str, str]:
    """Series and number of a line with tabs, or with a time at its end."""
    head, bracket, rest = line.rpartition("}")
    if not bracket:
        head, *numbers = line.split()
    else:
        numbers = rest.split()
    return head + bracket, numbers[0] if numbers else ""


def _count(value: float) -> int | None:
    return round(value) if value <= LARGEST else None


def _number(text: str) -> float | None:
    """What is written there, if an engine can have counted or measured it."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < math.inf and "_" not in text else None


def _short(text: str) -> str:
    return text[:LONGEST_LABEL]


def _places(family: Family) -> Iterator[tuple[str, _Place]]:
    """Where the values of each series name belong."""
    yield STARTED, _Place("started")
    for name in family.info:
        yield name, _Place("info")
    for part, metrics in (
        ("plain", family.gauges),
        ("plain", family.counters),
        ("usage", {"kv_usage": family.kv_usage}),
        ("finished", {"finished": family.finished}),
        ("others", {family.short(name): (name,) for name in family.others}),
    ):
        for field, choices in metrics.items():
            for choice, name in enumerate(choices):
                yield name, _Place(part, field, choice)
                yield f"{name}_total", _Place(part, field, choice)
    for field, choices in family.histograms.items():
        for choice, name in enumerate(choices):
            for part in ("bucket", "sum", "count"):
                yield f"{name}_{part}", _Place(part, field, choice)


def _parted_by(family: Family) -> dict[_Place, str]:
    """By which label the series of a place are told apart."""
    finished = {
        _Place("finished", "finished", choice): family.finished_label
        for choice in range(len(family.finished))
    }
    return finished | {
        _Place("others", family.short(name)): label
        for name, label in family.others.items()
        if label
    }
