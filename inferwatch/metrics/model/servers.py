"""Servers in snapshots: what scrapes and traces tell of them, and a row for each."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from collectors.contract.readings import (
    AnyReading,
    BlockMap,
    Endpoint,
    EngineInfo,
    EngineSettings,
    KvCacheEvents,
    LiveLimits,
    ModelConfig,
    Note,
    NoteKind,
    Profile,
    PromptBlocks,
    Refusals,
    RequestEvent,
    RequestSpan,
    Stacks,
    StartupStage,
    Step,
    Totals,
    WatchedSlo,
    WorkerMemory,
)
from inferwatch.metrics.floor.peaks import Devices
from inferwatch.metrics.requests.slo import Limit
from inferwatch.metrics.series.curves import Grid
from inferwatch.metrics.series.window import Latency, Window
from inferwatch.metrics.servers.imbalance import Key, Steady, with_remarks
from inferwatch.metrics.servers.scraped import ScrapedServers
from inferwatch.metrics.servers.scraped_health import verdict_of
from inferwatch.metrics.servers.scraped_window import ScrapedWindow
from inferwatch.metrics.servers.server_state import ServerState, Via
from inferwatch.metrics.servers.traced import Traces, advice_left, best_of
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.engines import Engines

# A Model for each server is kept beside the pooled one, once there are two servers.
#
# Pooled numbers cannot be separated again. So from the second server on each reading is
# folded twice: into the pooled Model and into that server's own. The first server's
# Model is a copy of the pooled one, which until then was of that server alone. With one
# server there is no cost.

MOST_MODELS = 32
"""Largest number of servers with a Model; more have only pooled numbers."""
TOLD_APART = frozenset(
    {
        Step,
        RequestEvent,
        EngineInfo,
        Endpoint,
        Totals,
        RequestSpan,
        KvCacheEvents,
        BlockMap,
        PromptBlocks,
        Refusals,
        Stacks,
        Profile,
        ModelConfig,
        EngineSettings,
        LiveLimits,
        WorkerMemory,
        StartupStage,
    }
)
"""Readings that a Model pools; scraped samples are kept apart anyway."""


class PooledModel(Protocol):
    """The methods of a Model that ServerModels needs."""

    def fold(self, reading: AnyReading) -> None:
        """Fold a reading."""

    def copied(self) -> Self: ...

    @property
    def devices(self) -> Devices:
        """The peaks of GPUs and hosts."""
        ...

    def share_devices(self, devices: Devices) -> None:
        """Use the devices of another Model."""

    @property
    def objectives(self) -> tuple[WatchedSlo, ...]: ...

    @property
    def awaits_classes(self) -> bool: ...

    def await_classes(self) -> None:
        """Wait for what clients tell of requests."""


AnyModel = TypeVar("AnyModel", bound=PooledModel)


class SavedServers(msgspec.Struct, array_like=True):
    """ServerModels as checkpoints keep them, without the Models."""

    only: str | None
    gone: list[str]


class ServerModels(Generic[AnyModel]):
    """Detects a second server, and from then on keeps a Model for each."""

    def __init__(self) -> None:
        self.only: str | None = None
        """The only server; None before the first, and once there are several."""
        self.by_source: dict[str, AnyModel] = {}
        """Their Models; empty while there is one server."""
        self._gone: set[str] = set()
        """Servers that were lost; one that takes their place is not a second server."""

    def take(self, reading: AnyReading, pooled: AnyModel) -> None:
        """Fold a reading into its server's Model, before the pooled Model takes it."""
        source = reading.source
        if self.by_source:
            model = self.by_source.get(source) or self._begin(source, pooled)
            if model is not None:
                model.fold(reading)
            return
        if type(reading) is EngineInfo:
            self._gone.discard(source)
        if self.only is None or (self.only in self._gone and source not in self._gone):
            self.only = source
        elif source not in self._gone:
            self.by_source[self.only] = pooled.copied()
            self.only = None
            self.take(reading, pooled)

    def note(self, note: Note) -> None:
        """Fold a note into the Model of its server, or into all."""
        if note.kind is NoteKind.LOST and not self.by_source:
            self._gone.update({note.source} if note.source else {self.only or ""})
        for source, model in self.by_source.items():
            if note.source in {"", source}:
                model.fold(note)

    def saved(self) -> SavedServers:
        """Return the state for a checkpoint, without the Models."""
        return SavedServers(only=self.only, gone=sorted(self._gone))

    def restore(
        self, saved: SavedServers, models: Iterable[tuple[str, AnyModel]]
    ) -> None:
        self.only, self._gone = saved.only, set(saved.gone)
        self.by_source = dict(models)

    def _begin(self, source: str, pooled: AnyModel) -> AnyModel | None:
        if len(self.by_source) >= MOST_MODELS:
            return None
        make: Callable[[], AnyModel] = type(pooled)
        self.by_source[source] = model = make()
        model.share_devices(pooled.devices)
        if pooled.awaits_classes:
            model.await_classes()
        for each in pooled.objectives:
            model.fold(each)
        return model


class ServerModel(Protocol):
    """What probe or traces tell of one server, exactly."""

    def hold_to(self, limits: Mapping[str, Limit]) -> None: ...

    def exact(self, now_ns: int, window: Window) -> tuple[Latency, ...]:
        """Return the exact latencies of requests."""
        ...

    def beside(self, state: ServerState, now_ns: int, window: Window) -> ServerState:
        """Return the server's state with the exact numbers of this Model."""
        ...

    def steady(self, now_ns: int, window: Window) -> Steady:
        """Return the recent values of the server's gauges."""
        ...


class Servers:
    """Fills snapshots by scrapes where there is no probe, and makes a row a server."""

    def __init__(
        self, scraped: ScrapedServers, traces: Traces, engines: Engines
    ) -> None:
        self._scraped = scraped
        self._traces = traces
        self._engines = engines

    def scraped(
        self, now_ns: int, window: Window, source: str | None
    ) -> ScrapedWindow | None:
        """Return the scrapes of the selected servers; None where all have a probe."""
        asked = self._scraped.named(source)
        heard = [each for each in asked if each.answers is not False]
        probed = self._engines.alive if heard else self._engines.sources
        if all(each.source in probed for each in heard or asked):
            return None
        return ScrapedWindow(asked, self._scraped.limits, now_ns, window)

    def best(self, scraped: ScrapedWindow, exact: Snapshot, grid: Grid) -> Snapshot:
        """Return scraped numbers, with exact latencies if traces cover all requests."""
        probed = self._engines.alive
        refused = not self._scraped.leaves_out_refused
        missed = scraped.missed(self._scraped.target, with_refused=refused)
        counted = _as_counted(exact, scraped, grid, self._engines.sources, missed)
        exact_of_all = self._traces.tell_all(
            counted.latencies, exact.latencies, scraped, exact.window, probed
        )
        return _as_traced(counted, exact) if exact_of_all else counted

    def rows(
        self,
        snapshot: Snapshot,
        scraped: ScrapedWindow | None,
        model_of: Callable[[str], ServerModel | None],
    ) -> tuple[ServerState, ...]:
        """Return all servers of the session, rank by rank."""
        servers = self._scraped.named(None)
        if not servers:
            return ()
        if scraped is None or len(scraped.servers) < len(servers):
            limits = self._scraped.limits
            scraped = ScrapedWindow(servers, limits, snapshot.now_ns, snapshot.window)
        states, steady = scraped.states(), scraped.steady()
        traced = self._traces.sources(scraped, snapshot.window.value)
        better = dict.fromkeys(traced, Via.TRACES)
        better |= dict.fromkeys(self._engines.alive, Via.PROBE)
        if better:
            ranks = Counter(each.source for each in states)
            states = tuple(
                self._with_exact_numbers(
                    replace(each, via=better[each.source]),
                    model_of(each.source),
                    snapshot,
                    steady,
                )
                if each.source in better and ranks[each.source] == 1
                else _with_best_source(each, snapshot, better)
                for each in states
            )
        states = tuple(_as_of_now(each, better.get(each.source)) for each in states)
        return with_remarks(states, steady)

    def _with_exact_numbers(
        self,
        state: ServerState,
        model: ServerModel | None,
        snapshot: Snapshot,
        steady: dict[Key, Steady],
    ) -> ServerState:
        """Return a server's state with the exact numbers of its probe or traces."""
        if model is None:
            return state
        now_ns, window = snapshot.now_ns, snapshot.window
        model.hold_to(self._scraped.limits)
        if state.via is Via.PROBE:
            steady[state.source, state.rank] = model.steady(now_ns, window)
            return model.beside(state, now_ns, window)
        exact = model.exact(now_ns, window)
        return replace(state, latencies=tuple(best_of(exact, state.latencies)))


def _with_best_source(
    state: ServerState, snapshot: Snapshot, better: Mapping[str, Via]
) -> ServerState:
    """Return the state; its source is the best one where one server is shown alone."""
    alone = snapshot.shown_source or snapshot.server
    via = better.get(state.source) if alone else None
    return replace(state, via=via) if via else state


def _as_of_now(state: ServerState, via: Via | None) -> ServerState:
    """Return the state without rates if the server is lost, and without old advice."""
    if state.answers is False:
        state = replace(state, arrivals_per_s=None, output_tokens_per_s=None)
    elif via is Via.PROBE and state.info is None:
        state = replace(state, why=None)  # an application has paths of its own
    if via is None or state.info is None:
        return state
    left = advice_left(state.info.advice, via)
    return replace(state, info=msgspec.structs.replace(state.info, advice=left))


def _as_counted(
    base: Snapshot,
    scraped: ScrapedWindow,
    grid: Grid,
    probed: Collection[str],
    missed: Latency | None,
) -> Snapshot:
    """Return the snapshot of scraped servers, charted on ``grid``.

    Servers in ``probed`` have a probe and need no advice.
    """
    flow, charts = scraped.flow(), scraped.charts(grid)
    line, published = (
        charts.timeline(scraped.lost_ns, scraped.restarts_ns),
        base.server_steps,
    )
    totals = scraped.step_totals()
    if published is not None:
        line, totals = published.added_to(line), published.added_to_totals(totals)
    return replace(
        base,
        via=scraped.via,
        advice=scraped.advice(probed),
        covered_ns=scraped.gained.watched_ns,
        verdict=verdict_of(
            scraped.servers, flow, scraped.now_ns, missed, scraped.refused_lately()
        ),
        engines=(),
        last_token_ns=scraped.last_token_ns,
        flow=flow,
        refused=scraped.refused,
        latencies=scraped.latencies(charts),
        lengths=scraped.lengths(),
        timeline=line,
        latest=scraped.latest(),
        latest_step=None if published is None else published.latest,
        steps=totals,
        kv=scraped.kv(),
        speculation=scraped.speculation(),
        server_counts=scraped.server_counts(),
    )


def _as_traced(counted: Snapshot, exact: Snapshot) -> Snapshot:
    """Return a scraped snapshot with the exact latencies of traces."""
    line = exact.timeline
    return replace(
        counted,
        via=Via.TRACES,
        latencies=tuple(best_of(exact.latencies, counted.latencies)),
        timeline=replace(
            counted.timeline,
            ttft_mean_s=line.ttft_mean_s,
            ttft_max_s=line.ttft_max_s,
        ),
        advice=tuple(advice_left(counted.advice, Via.TRACES)),
    )
