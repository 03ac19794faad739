"""Assigns Prometheus series to the engines of a fleet by their labels."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from collectors.contract.clock import NS_PER_S, SessionClock
from collectors.contract.garbage import collecting_later
from collectors.contract.readings import AnyReading, Contact, EngineSample, ServerInfo
from collectors.servers.exposition import (
    STARTED,
    ExposedSeries,
    Exposition,
    read_number,
    series_names,
)
from collectors.servers.families import FAMILIES
from collectors.servers.families.family import ServerFamily
from collectors.servers.prometheus_api import ScrapedSeries, ServerTime
from collectors.servers.scrape import went_back

UP, TOOK = "up", "scrape_duration_seconds"
"""Metrics Prometheus itself records for every scrape."""
NAME = "__name__"
PEOPLE_CALL_IT = ("pod", "instance")
"""Labels that name an engine to people, best first."""
SMALL_FLEET = 64
"""Largest fleet of which family-specific metrics are read as well."""
MOST_ENGINES = 10_000
MOST_SERIES = 4_000_000
LONGEST_LABEL = 256
MOST_APART_S = 3_600.0
"""Samples with timestamps further from now are discarded."""
STALE_SCRAPES, STALE_S = 4, 60.0
"""An engine without a new scrape for so many intervals, and so long, is lost."""

Values = list[tuple[float, str]]
Identity = frozenset[tuple[str, str]]


@dataclass(slots=True)
class FleetEngine:
    """One server, identified by the labels its series have in common."""

    source: str
    labels: Mapping[str, str]
    exposition: Exposition | None = None
    """None until one of its metrics was seen."""
    scrapes: dict[float, list[tuple[ExposedSeries, str]]] = field(default_factory=dict)
    """New scrapes by Prometheus's timestamp."""
    latest_s: float = 0.0
    """Timestamp of the last scrape processed."""
    interval_s: float = 0.0
    took: dict[float, float] = field(default_factory=dict)
    """Duration of scrapes by timestamp."""
    up: bool | None = None
    answers: bool | None = None
    """Whether the server answers, as last reported."""
    started_s: float | None = None
    counted: dict[tuple[str, str | None], EngineSample] = field(default_factory=dict)
    """Last sample of each rank: counters fall only at a restart."""
    told: ServerInfo | None = None

    def keep_enough(self) -> None:
        """Keep only two scrapes of the first query: enough for rates, and fast."""
        if not self.latest_s:
            latest = sorted(self.scrapes)[-2:]
            self.scrapes = {at_s: self.scrapes[at_s] for at_s in latest}

    def readings(self, now: ServerTime, clock: SessionClock) -> Iterator[AnyReading]:
        """Readings of the engine's new scrapes, and a Contact when it is lost."""
        for at_s in sorted(self.scrapes):
            yield from self._scraped(at_s, now, clock)
        why = self._why_lost(now.unix_s)
        if why is not None and self.answers is not False:
            self.answers = False
            t_ns = now.t_ns - clock.start_ns
            yield Contact(source=self.source, t_ns=t_ns, answers=False, why=why)

    def _scraped(
        self, at_s: float, now: ServerTime, clock: SessionClock
    ) -> Iterator[AnyReading]:
        if self.exposition is None:
            return
        half_ns = round(self.took.pop(at_s, 0.0) * NS_PER_S / 2)
        t_ns = now.monotonic_ns(at_s) + half_ns - clock.start_ns
        scraped = self.exposition.read_values(
            self.scrapes[at_s],
            t_ns=t_ns,
            uncertainty_ns=half_ns + now.round_trip_ns // 2,
            source=self.source,
        )
        if self.latest_s:
            self.interval_s = at_s - self.latest_s
        self.latest_s = at_s
        if not scraped.samples:
            return
        restarted = self._began_anew(scraped.samples, scraped.started_s)
        if self.answers is not True or restarted:
            self.answers = True
            yield Contact(
                source=self.source, t_ns=t_ns, answers=True, restarted=restarted
            )
        yield from self._info(scraped.samples, t_ns)
        for sample in scraped.samples:
            yield msgspec.structs.replace(sample, by_prometheus=True)

    def _began_anew(
        self, samples: Iterable[EngineSample], started_s: float | None
    ) -> bool:
        previous, self.started_s = self.started_s, started_s or self.started_s
        fell = False
        for sample in samples:
            key = (sample.rank, sample.model)
            before = self.counted.get(key)
            fell |= before is not None and went_back(before, sample)
            self.counted[key] = sample
        return fell or (previous is not None and previous != self.started_s)

    def _info(self, samples: Sequence[EngineSample], t_ns: int) -> Iterator[ServerInfo]:
        """The engine's ServerInfo, if that changed."""
        if self.exposition is None:
            return
        family, labels = self.exposition.family, self.labels
        facts = family.describe({}, self.exposition.labels)
        name = next(filter(None, map(labels.get, PEOPLE_CALL_IT)), self.source)
        models = {each.model for each in samples if each.model is not None}
        started_s = self.started_s
        info = ServerInfo(
            source=self.source,
            t_ns=t_ns,
            name=name,
            family=family.name,
            version=facts.version,
            models=facts.models or sorted(models),
            max_model_len=facts.max_model_len,
            started_wall_ns=None if started_s is None else round(started_s * NS_PER_S),
            num_kv_blocks=facts.num_kv_blocks,
            kv_block_tokens=facts.kv_block_tokens,
            settings={**facts.settings, **labels},
            advice=[
                "Every second instead of every scrape: attach to the server itself.",
                *facts.advice,
            ],
        )
        if self.told is None or info != msgspec.structs.replace(self.told, t_ns=t_ns):
            self.told = info
            yield info

    def _why_lost(self, now_s: float) -> str | None:
        """Why the engine counts as lost; None while it does not."""
        if self.up is False:
            return "Prometheus gets no answer from it: its last scrape failed"
        silent_s = now_s - self.latest_s
        if self.latest_s and silent_s > max(STALE_S, STALE_SCRAPES * self.interval_s):
            return f"Prometheus has no scrape of it in the last {silent_s:.0f} s"
        return None


class Fleet:
    """The engines of a fleet, and the owner of each series."""

    def __init__(self, *, told_apart: bool) -> None:
        self.engines: dict[Identity, FleetEngine] = {}
        self._told_apart = told_apart
        """The selector matches engines only, so targets that never answered count as
        well."""
        self._sources: set[str] = set()
        self._families: dict[str, ServerFamily] = {}
        self._by_target = False
        """Prometheus's ``up`` shows the labels of targets; without it they are
        guessed."""
        self._label_names: frozenset[str] = frozenset()
        """Labels that identify an engine."""
        self._owners: dict[bytes, tuple[FleetEngine, ExposedSeries | str] | None] = {}
        """Owner of a series, and the series in its exposition, or the name of one of
        Prometheus's own metrics. None: no owner."""

    @property
    def oldest_new_s(self) -> float | None:
        """The earliest timestamp among new scrapes; None without any."""
        stamps = [min(each.scrapes) for each in self.engines.values() if each.scrapes]
        return min(stamps, default=None)

    def first_names(self) -> list[str]:
        """Names of metrics that show which engines exist and which scrapes are new."""
        names = {UP: None, TOOK: None}
        for family in FAMILIES:
            names |= dict.fromkeys(series_names(family)["plain"])
        return list(names)

    def other_names(self) -> Iterator[list[str]]:
        """Names of the remaining metrics of the fleet's families, by query."""
        queries: dict[str, list[str]] = {}
        for family in self._families.values():
            for part, names in series_names(family).items():
                queries.setdefault(part, []).extend(names)
        del queries["plain"]
        if len(self.engines) > SMALL_FLEET:
            queries.pop("others", None)
        elif drafts := queries.pop("drafts", []):
            queries.setdefault("others", []).extend(drafts)
        yield from queries.values()

    def take_first(self, results: Sequence[ScrapedSeries], now_s: float) -> None:
        """Take the result for :meth:`first_names`, at a time on Prometheus's clock.

        Of other metrics only samples of the same scrapes are taken later; a scrape that
        is stored in the meantime is left to the next look.
        """
        for engine in self.engines.values():
            engine.scrapes, engine.took = {}, {}
        self._meet(results)
        for series in results:
            match self._owners.get(series.key):
                case (engine, str() as name):
                    _say(engine, name, series.values)
                case (engine, ExposedSeries() as one):
                    for at_s, number in series.values:
                        if engine.latest_s < at_s and abs(now_s - at_s) < MOST_APART_S:
                            engine.scrapes.setdefault(at_s, []).append((one, number))
        for engine in self.engines.values() if len(self.engines) > SMALL_FLEET else ():
            engine.keep_enough()

    def take(self, results: Sequence[ScrapedSeries]) -> None:
        """Take further metrics of the new scrapes."""
        self._meet(results)
        for series in results:
            match self._owners.get(series.key):
                case (engine, ExposedSeries() as one):
                    for at_s, number in series.values:
                        if (scrape := engine.scrapes.get(at_s)) is not None:
                            scrape.append((one, number))

    def readings(self, now: ServerTime, clock: SessionClock) -> list[AnyReading]:
        """Readings from the latest queries, oldest first."""
        readings = [
            reading
            for engine in self.engines.values()
            for reading in engine.readings(now, clock)
        ]
        return sorted(readings, key=lambda each: each.t_ns)  # type: ignore[union-attr]

    def lost(self, t_ns: int, why: str) -> Iterator[Contact]:
        for engine in self.engines.values():
            if engine.answers is not False:
                engine.answers = False
                yield Contact(source=engine.source, t_ns=t_ns, answers=False, why=why)

    def _meet(self, series: Sequence[ScrapedSeries]) -> None:
        """Find the engine that each new series belongs to."""
        unknown = [each for each in series if each.key not in self._owners]
        if not unknown:
            return
        with collecting_later():
            self._learn([(each.key, each.labels()) for each in unknown])

    def _learn(self, labelled: list[tuple[bytes, dict[str, str]]]) -> None:
        self._learn_labels([labels for _, labels in labelled])
        ours = {UP, TOOK, STARTED}
        labelled.sort(key=lambda each: each[1].get(NAME) in ours)  # engines first
        for key, labels in labelled:
            if len(self._owners) >= MOST_SERIES:
                self._owners.clear()
            owner = self._owner(labels)
            # its engine may appear later
            if owner is not None or labels.get(NAME) not in ours:
                self._owners[key] = owner

    def _learn_labels(self, label_sets: Sequence[Mapping[str, str]]) -> None:
        """Learn which labels are the target's: those of ``up``, which has no others."""
        targets = [set(each) for each in label_sets if each.get(NAME) == UP]
        running = {
            name: {NAME, family.rank_label, family.model_label}
            for family in FAMILIES
            for names in family.gauges.get("running", ())
            for name in names.split(" + ")
        }
        if not targets and not self._by_target:
            targets = [
                set(each) - running[each[NAME]]
                for each in label_sets
                if each.get(NAME) in running
            ]
        elif not self._by_target:
            self._by_target, self._label_names = True, frozenset()
        self._label_names = self._label_names.union(*targets) - {NAME}

    def _owner(
        self, labels: Mapping[str, str]
    ) -> tuple[FleetEngine, ExposedSeries | str] | None:
        name = labels.get(NAME, "")
        family = next((one for one in FAMILIES if name.startswith(one.prefixes)), None)
        identity = frozenset(
            (key, text[:LONGEST_LABEL])
            for key, text in labels.items()
            if key in self._label_names
        )
        is_wanted = family is not None or (name == UP and self._told_apart)
        engine = self.engines.get(identity)
        if engine is None and is_wanted and len(self.engines) < MOST_ENGINES:
            engine = self.engines[identity] = self._new(dict(identity))
        if engine is None:
            return None
        if name in {UP, TOOK}:
            return engine, name
        if engine.exposition is None and family is not None:
            engine.exposition = Exposition(family)
            self._families[family.name] = family
        if engine.exposition is None or family not in (None, engine.exposition.family):
            return None
        series = engine.exposition.series(name, labels)
        return None if series is None else (engine, series)

    def _new(self, labels: dict[str, str]) -> FleetEngine:
        """A new engine, named by its address, or more labels if that is not unique."""
        rest = [labels[key] for key in sorted(labels) if key != "instance"]
        address = labels.get("instance") or "/".join(rest) or "engine"
        source = address
        if source in self._sources:
            source = f"{address} {'/'.join(rest)}"
        self._sources.add(source)
        return FleetEngine(source=source, labels=labels)


def _say(engine: FleetEngine, name: str, values: Values) -> None:
    """Take one of Prometheus's own metrics about the engine's scrapes."""
    if name == UP and values:
        engine.up = values[-1][1] != "0"
    elif name == TOOK:
        for at_s, text in values:
            took_s = read_number(text)
            if took_s is not None and took_s <= STALE_S:
                engine.took[at_s] = took_s
