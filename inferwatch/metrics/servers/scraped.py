"""Scraped servers: what each is, whether it answers, and its latest gauges."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite

import msgspec

from collectors.contract.readings import (
    Contact,
    EngineSample,
    ServerInfo,
    Step,
    WatchedSlo,
)
from collectors.servers.families import POOLS, speculation_in
from collectors.servers.families.family import ADAPTERS, ADAPTERS_WAITING
from inferwatch.errors import UsageError
from inferwatch.metrics.requests.objectives import parse_objectives
from inferwatch.metrics.requests.slo import DEFAULT_SHARE, Limit
from inferwatch.metrics.series.saving import Parts, WrittenParts
from inferwatch.metrics.servers.counted import Counted, SavedCounted
from inferwatch.metrics.servers.server_state import ServerState, Via
from inferwatch.metrics.steps.health import (
    MANY_WAITING,
    MINUTE_NS,
    QUEUE_PERSISTS_NS,
    QUEUE_SHARE,
    MinuteSpans,
)

BY_REASON = "num_requests_waiting_by_reason{"
AWAKE = "engine_sleep_state{awake}"
STEPS = "step_tokens"
"""The histogram that has one value per step."""
KV_FULL = 0.95
"""KV usage from which requests queue for blocks, 0-1; the last are seldom used."""
CAPACITY, DEFERRED, KV = "capacity", "deferred", "kv"
"""What requests queue for; the first two are vLLM's own reasons."""
MOST_SERVERS = 4_096
MOST_RANKS = 8_192
MOST_RESTARTS = 100


class Gauges(msgspec.Struct, array_like=True):
    """The latest gauges of a rank, and since when they have been so."""

    t_ns: int
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    by_prometheus: bool = False
    waiting_since_ns: int | None = None
    """Since when every sample had waiting requests."""
    calm_since_ns: int | None = None
    """When requests last stopped waiting, or the first sample."""
    busy_since_ns: int | None = None
    """Since when every sample had work."""
    idle_since_ns: int | None = None
    progress_ns: int | None = None
    """When it last made progress."""
    token_ns: int | None = None
    """When output tokens last increased."""
    preempted_ns: int | None = None
    """When preemptions last increased."""
    interval_ns: int = 0
    """Time between the latest two samples."""
    tells_progress: bool = False
    """Whether it exports counts of tokens or steps."""
    queued: MinuteSpans = msgspec.field(default_factory=MinuteSpans)
    """Spans of the last minute with a lasting queue."""
    queueing_since_ns: int | None = None
    """When the queue began by which it is judged as queueing; None while it is not."""
    watched_since_ns: int | None = None
    """The first sample of this life of the server."""
    queued_for: dict[str, MinuteSpans] = {}
    """Spans of the last minute with waiting requests, by what they waited for; an empty
    name where the gauges do not tell it.
    """
    acceptance: float | None = None
    """Of speculative decoding, where the server tells it as a gauge."""
    acceptance_length: float | None = None
    pools: dict[str, float] = msgspec.field(default_factory=dict)
    """Usage of each pool of a hybrid model's cache, where ``kv_usage`` is unknown."""
    deferred: int = 0
    """Waiting requests that something else than room keeps from the batch."""
    adapters: int | None = None
    """LoRA adapters of running requests; None where the server does not tell them."""
    adapters_waiting: int | None = None
    """LoRA adapters needed only by waiting requests."""
    asleep: bool = False
    """Whether the server says that its engine was put to sleep."""

    @property
    def work(self) -> int:
        return (self.running or 0) + (self.waiting or 0)


@dataclass(slots=True)
class ScrapedRank:
    """One rank of a server with one model."""

    counted: Counted = field(default_factory=Counted)
    gauges: Gauges | None = None
    peak_usage: float | None = None

    @property
    def speculates(self) -> bool:
        """Whether it decodes speculatively, by its counters or gauges."""
        gauges = self.gauges
        told = gauges is not None and bool(gauges.acceptance_length)
        return told or self.counted.speculates

    def begin_anew(self) -> None:
        """Forget what queued, as the server restarted."""
        if self.gauges is not None:
            self.gauges = _in_new_life(self.gauges)

    def take(self, sample: EngineSample) -> bool:
        """Add a sample, and return whether its counters restarted."""
        before = self.gauges
        if before is not None and sample.t_ns <= before.t_ns:
            return False
        if sample.kv_usage is not None and not isfinite(sample.kv_usage):
            sample = msgspec.structs.replace(sample, kv_usage=None)
        restarted = self.counted.take(sample)
        if restarted:
            self.begin_anew()
            before = self.gauges
        self.gauges = _gauges(before, sample, self.counted)
        if sample.kv_usage is not None:
            self.peak_usage = max(self.peak_usage or 0.0, sample.kv_usage)
        return restarted


def _pools(sample: EngineSample) -> dict[str, float]:
    return {
        name: usage
        for name, key in POOLS.items()
        if (usage := sample.others.get(key)) is not None
    }


def _count(sample: EngineSample, name: str) -> int | None:
    value = sample.others.get(name)
    return None if value is None else round(value)


def _in_new_life(gauges: Gauges) -> Gauges:
    """Return the gauges of a server that restarted, without what queued before."""
    return msgspec.structs.replace(
        gauges,
        waiting_since_ns=None,
        queued=MinuteSpans(),
        queueing_since_ns=None,
        queued_for={},
        watched_since_ns=None,
    )


def _gauges(before: Gauges | None, sample: EngineSample, counted: Counted) -> Gauges:
    """Return the gauges of a sample; ``before`` are those of the previous one."""
    t_ns = sample.t_ns
    speculation = speculation_in(sample.others)
    now = Gauges(
        t_ns=t_ns,
        running=sample.running,
        waiting=sample.waiting,
        kv_usage=sample.kv_usage,
        by_prometheus=sample.by_prometheus,
        interval_ns=t_ns - before.t_ns if before else 0,
        tells_progress=sample.output_tokens is not None or STEPS in sample.histograms,
        queued=before.queued if before else MinuteSpans(),
        queued_for=before.queued_for if before else {},
        acceptance=speculation.get("acceptance"),
        acceptance_length=speculation.get("acceptance_length"),
        pools=_pools(sample) if sample.kv_usage is None else {},
        deferred=round(_waiting_for(sample, DEFERRED)),
        adapters=_count(sample, ADAPTERS),
        adapters_waiting=_count(sample, ADAPTERS_WAITING),
        asleep=sample.others.get(AWAKE) == 0,
    )
    old = before or Gauges(t_ns=t_ns)
    watched_ns = old.watched_since_ns
    now.watched_since_ns = t_ns if watched_ns is None else watched_ns
    if now.waiting:
        since_ns = old.waiting_since_ns
        now.waiting_since_ns = t_ns if since_ns is None else since_ns
        now.calm_since_ns = old.calm_since_ns
        spans = now.queued_for.setdefault(_cause(sample, counted), MinuteSpans())
        spans.take(t_ns if since_ns is None else old.t_ns, t_ns)
        spans.within(t_ns)  # forgets older ones
        lasts = t_ns - now.waiting_since_ns >= QUEUE_PERSISTS_NS
        if lasts:
            now.queued.take(now.waiting_since_ns, t_ns)
    else:
        calm = before is not None and not old.waiting
        now.calm_since_ns = old.calm_since_ns if calm else t_ns
        lasts = False
    queued_ns = sum(now.queued.within(t_ns))
    if queued_ns:
        now.queueing_since_ns = old.queueing_since_ns
        many = (now.waiting or 0) >= MANY_WAITING
        counts = many or queued_ns >= QUEUE_SHARE * MINUTE_NS
        if now.queueing_since_ns is None and lasts and counts:
            now.queueing_since_ns = now.waiting_since_ns
    if now.work:
        now.busy_since_ns = old.busy_since_ns if old.busy_since_ns is not None else t_ns
    else:
        idle_ns = old.idle_since_ns
        now.idle_since_ns = t_ns if idle_ns is None else idle_ns
    tokens = counted.just_added("output_tokens")
    now.token_ns = t_ns if tokens else old.token_ns
    preempted = counted.just_added("preemptions")
    now.preempted_ns = t_ns if preempted else old.preempted_ns
    got_on = bool(counted.added.any()) or not old.work
    now.progress_ns = t_ns if got_on else old.progress_ns
    return now


def _waiting_for(sample: EngineSample, reason: str) -> float:
    """Return how many requests wait for one of vLLM's reasons; 0 if it is untold."""
    waiting = sample.others.get(f"{BY_REASON}{reason}}}", 0.0)
    return waiting if isfinite(waiting) else 0.0


def _cause(sample: EngineSample, counted: Counted) -> str:
    """Return what the requests of a sample wait for; empty if gauges do not tell it."""
    waiting = {reason: _waiting_for(sample, reason) for reason in (CAPACITY, DEFERRED)}
    if waiting[DEFERRED] > waiting[CAPACITY]:
        return DEFERRED
    full = sample.kv_usage is not None and sample.kv_usage >= KV_FULL
    if full or counted.just_added("preemptions"):
        return KV
    return CAPACITY if waiting[CAPACITY] > 0 and sample.kv_usage is not None else ""


@dataclass(slots=True)
class ScrapedServer:
    """A scraped server: what it is, whether it answers, its ranks."""

    source: str
    info: ServerInfo | None = None
    contact: Contact | None = None
    round_trip_ns: int | None = None
    restarts_ns: list[int] = field(default_factory=list)
    ranks: dict[tuple[str, str | None], ScrapedRank] = field(default_factory=dict)
    """By rank and model."""
    states: dict[tuple[str, int | None], tuple[tuple[object, ...], ServerState]] = (
        field(default_factory=dict)
    )
    """The latest state by rank and window, with the values it was made of."""

    @property
    def answers(self) -> bool | None:
        """Whether the server answers; None before the first scrape."""
        if self.contact is not None:
            return self.contact.answers
        return True if self.ranks else None

    @property
    def name(self) -> str:
        return (
            self.info.name if self.info is not None and self.info.name else self.source
        )

    @property
    def gauges(self) -> list[Gauges]:
        """The latest gauges of the server's ranks."""
        every = (rank.gauges for rank in self.ranks.values())
        return [gauges for gauges in every if gauges is not None]

    @property
    def last_ns(self) -> int | None:
        return max((each.t_ns for each in self.gauges), default=None)

    @property
    def via(self) -> Via:
        """How the server's samples are obtained: by scrapes or from Prometheus."""
        ours = any(not each.by_prometheus for each in self.gauges)
        return Via.SCRAPE if ours or not self.gauges else Via.PROMETHEUS


class SavedRank(msgspec.Struct, array_like=True):
    """A ScrapedRank as checkpoints keep it."""

    rank: str
    model: str | None
    counted: SavedCounted
    gauges: Gauges | None
    peak_usage: float | None


class SavedServer(msgspec.Struct, array_like=True):
    """A ScrapedServer as checkpoints keep it."""

    source: str
    info: ServerInfo | None
    contact: Contact | None
    round_trip_ns: int | None
    restarts_ns: list[int]
    ranks: list[SavedRank]


class SavedScraped(msgspec.Struct, array_like=True):
    """ScrapedServers as checkpoints keep them."""

    servers: list[SavedServer]
    slo: WatchedSlo | None


class ScrapedServers:
    """All scraped servers, in order of first contact."""

    def __init__(self) -> None:
        self.servers: dict[str, ScrapedServer] = {}
        self._slo: WatchedSlo | None = None
        self._limits: Mapping[str, Limit] = {}
        self._target = DEFAULT_SHARE
        self.leaves_out_refused = False
        """Whether the objectives do not judge refused requests."""
        self._ranks = 0

    # Readings.

    def info(self, info: ServerInfo) -> None:
        server = self._server(info.source)
        if server is not None:
            server.info = info

    def contact(self, contact: Contact) -> None:
        server = self._server(contact.source)
        if server is None:
            return
        server.contact = contact
        if contact.round_trip_ns is not None:
            server.round_trip_ns = contact.round_trip_ns
        if contact.restarted:
            self._restarted(server, contact.t_ns)
        for rank in server.ranks.values():
            if contact.restarted:
                rank.counted.begin_anew()
                rank.begin_anew()
            if not contact.answers:
                rank.counted.miss()

    def sample(self, sample: EngineSample) -> None:
        server = self._server(sample.source)
        if server is None:
            return
        key = sample.rank, sample.model
        rank = server.ranks.get(key)
        if rank is None:
            if self._ranks >= MOST_RANKS:
                return
            self._ranks += 1
            rank = server.ranks[key] = ScrapedRank()
        if rank.take(sample):
            self._restarted(server, sample.t_ns)

    def slo(self, slo: WatchedSlo) -> None:
        """Set the objectives of requests; those typed by the user take precedence."""
        typed = self._slo is not None and self._slo.slo and not self._slo.source
        if typed and slo.source:
            return  # typed objectives apply to all
        try:
            objectives = parse_objectives(slo.slo) if slo.slo.strip() else None
        except UsageError:
            return
        self._slo = slo
        every = objectives.every if objectives is not None else None
        self._target = DEFAULT_SHARE if objectives is None else objectives.target
        self.leaves_out_refused = bool(objectives and objectives.leaves_out_refused)
        limits = every.limits if every is not None else ()
        self._limits = {limit.metric: limit for limit in limits}

    def _server(self, source: str) -> ScrapedServer | None:
        server = self.servers.get(source)
        if server is None and len(self.servers) < MOST_SERVERS:
            server = self.servers[source] = ScrapedServer(source)
        return server

    def _restarted(self, server: ScrapedServer, t_ns: int) -> None:
        times_ns = server.restarts_ns
        last_ns = server.last_ns
        if times_ns and last_ns is not None and times_ns[-1] >= last_ns:
            return  # a note and a scrape report the same restart
        del times_ns[: len(times_ns) + 1 - MOST_RESTARTS]
        times_ns.append(t_ns)

    def stepped(self, step: Step) -> None:
        """Take a step that a server published as progress of its rank."""
        server, name = self.servers.get(step.source), str(step.rank)
        for (rank, _), each in server.ranks.items() if server else ():
            if rank == name and each.gauges is not None:
                each.gauges.progress_ns = step.end_ns

    def speculate(self, sources: Iterable[str]) -> bool:
        """Return whether one of these servers decodes speculatively."""
        servers = (each for name in sources if (each := self.servers.get(name)))
        return any(rank.speculates for each in servers for rank in each.ranks.values())

    @property
    def limits(self) -> Mapping[str, Limit]:
        """The limits that latencies are judged by, by metric."""
        return self._limits

    @property
    def target(self) -> float:
        """The share of requests that must hold each limit, 0-1."""
        return self._target

    def hold_to(self, limits: Mapping[str, Limit]) -> None:
        """Judge latencies by these limits, which apply to the whole session."""
        self._limits = limits

    def named(self, source: str | None) -> list[ScrapedServer]:
        """Return the server of that name, else all in order of first contact."""
        server = self.servers.get(source or "")
        return [server] if server is not None else [*self.servers.values()]

    # Checkpoints.

    def saved(self, parts: Parts) -> SavedScraped:
        return SavedScraped(
            servers=[
                SavedServer(
                    source=server.source,
                    info=server.info,
                    contact=server.contact,
                    round_trip_ns=server.round_trip_ns,
                    restarts_ns=server.restarts_ns,
                    ranks=[
                        SavedRank(
                            rank=name,
                            model=model,
                            counted=rank.counted.saved(parts),
                            gauges=rank.gauges,
                            peak_usage=rank.peak_usage,
                        )
                        for (name, model), rank in server.ranks.items()
                    ],
                )
                for server in self.servers.values()
            ],
            slo=self._slo,
        )

    def restore(self, saved: SavedScraped, parts: WrittenParts) -> None:
        for each in saved.servers:
            server = self.servers[each.source] = ScrapedServer(
                each.source,
                each.info,
                each.contact,
                each.round_trip_ns,
                each.restarts_ns,
            )
            for row in each.ranks:
                rank = ScrapedRank(gauges=row.gauges, peak_usage=row.peak_usage)
                rank.counted.restore(row.counted, parts)
                server.ranks[row.rank, row.model] = rank
                self._ranks += 1
        if saved.slo is not None:
            self.slo(saved.slo)
