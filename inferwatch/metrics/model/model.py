"""The Model: folds readings, and makes snapshots."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Self

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    AnyReading,
    BlockMap,
    BoundBy,
    CanaryRequest,
    ClientSample,
    Contact,
    Endpoint,
    EngineInfo,
    EngineSample,
    EngineSettings,
    EventKind,
    GpuInfo,
    GpuProcesses,
    GpuSample,
    HostInfo,
    HostSample,
    KvCacheEvents,
    LiveLimits,
    LoadEvent,
    LoadPlanned,
    MeasuredPeak,
    ModelConfig,
    Note,
    NoteKind,
    OtherProcesses,
    Prices,
    Profile,
    PromptBlocks,
    Refusals,
    RequestEvent,
    RequestRecord,
    RequestSpan,
    ServerInfo,
    Stacks,
    StartupStage,
    Step,
    Tick,
    TokenTimes,
    Totals,
    Vantage,
    WatchedSlo,
    WorkerMemory,
)
from inferwatch.metrics.breakdown.tracker import BreakdownTracker, SavedBreakdown
from inferwatch.metrics.cache.memory import Memory
from inferwatch.metrics.cache.prefix_cache import PrefixCaches, SavedCaches
from inferwatch.metrics.cache.tracker import MemoryMoment, MemoryTracker, SavedMemory
from inferwatch.metrics.causes.cause import SlowRequests
from inferwatch.metrics.causes.clock_drops import ClockDrops, SavedClock
from inferwatch.metrics.causes.queue import BOUND_OF_CAUSE
from inferwatch.metrics.findings.facts import Around
from inferwatch.metrics.findings.finding import SLIGHT, Finding, PastFinding, Subject
from inferwatch.metrics.findings.gather import Sources
from inferwatch.metrics.findings.host import Stopped
from inferwatch.metrics.findings.tracker import explains_queue
from inferwatch.metrics.findings.watch import FindingWatch, SavedWatch
from inferwatch.metrics.floor.limits import LimitsMoment, limits_of
from inferwatch.metrics.floor.peaks import Devices
from inferwatch.metrics.floor.rank import StepNeeds
from inferwatch.metrics.floor.tracker import FloorTracker, SavedFloors
from inferwatch.metrics.floor.traffic import SavedTraffic, TrafficTracker
from inferwatch.metrics.floor.view import Limits
from inferwatch.metrics.hardware.own_cost import Cost, CostTracker, SavedCost
from inferwatch.metrics.hardware.view import Hardware
from inferwatch.metrics.load.book import BY_US
from inferwatch.metrics.load.canary import CanaryTracker
from inferwatch.metrics.load.client import LoadClient, SavedLoadClient
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.load.plan import plan_facts
from inferwatch.metrics.model.hardware import HardwareTracker, SavedHardware, around_of
from inferwatch.metrics.model.servers import (
    TOLD_APART,
    SavedServers,
    ServerModels,
    Servers,
)
from inferwatch.metrics.model.spending import spending
from inferwatch.metrics.objectives.tracker import SavedSlo, SloTracker
from inferwatch.metrics.objectives.view import SloState
from inferwatch.metrics.requests.attribution import SavedAttribution
from inferwatch.metrics.requests.outcomes import Outcomes, SavedFailures
from inferwatch.metrics.requests.refusals import RefusalLog, SavedRefusals
from inferwatch.metrics.requests.request_index import RequestIndex, SavedIndex
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.requests.request_tracker import LatencySamples, RequestTracker
from inferwatch.metrics.requests.slo import Limit
from inferwatch.metrics.requests.slowest import SavedSlowLog
from inferwatch.metrics.series.curves import Grid
from inferwatch.metrics.series.history import (
    Bin,
    EndedStep,
    History,
    SavedHistory,
    timeline,
    without_members,
)
from inferwatch.metrics.series.quantiles import DeferredCounts
from inferwatch.metrics.series.samples import (
    Block,
    Counters,
    Samples,
    SavedCounters,
    SavedRows,
    SealedBlocks,
)
from inferwatch.metrics.series.saving import Parts, WrittenParts
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import Latency, Window
from inferwatch.metrics.servers.imbalance import Steady
from inferwatch.metrics.servers.scraped import SavedScraped, ScrapedServers
from inferwatch.metrics.servers.scraped_health import stuck_since_ns
from inferwatch.metrics.servers.scraped_window import ScrapedWindow
from inferwatch.metrics.servers.server_state import ServerState, Via
from inferwatch.metrics.servers.server_steps import SavedServerSteps, ServerSteps
from inferwatch.metrics.servers.traced import SavedTraces, Traces
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.steps.batches import curve_of
from inferwatch.metrics.steps.counter import (
    SPENT_NS,
    SavedSteps,
    StepCounter,
    ratio,
    step_totals,
)
from inferwatch.metrics.steps.engines import Engines, Key, SavedEngines, known_sum
from inferwatch.metrics.steps.flow import (
    ADAPTERS,
    LEAST_NS,
    KvState,
    SchedulerState,
    WindowTotals,
    flow,
    kv_state,
    scheduler_state,
    with_adapters,
)
from inferwatch.metrics.steps.health import (
    CATCHING_UP,
    HealthTracker,
    LastMinute,
    Problem,
    SavedHealth,
)
from inferwatch.metrics.steps.lateness import CatchUp
from inferwatch.metrics.steps.profiles import SessionProfile
from inferwatch.metrics.steps.speculation import Speculation, SpeculationCounter
from inferwatch.metrics.steps.stalls import SavedStalls, StallFinder
from inferwatch.metrics.steps.startup import startup_of
from inferwatch.metrics.tenants.tracker import SavedTenants, TenantTracker
from inferwatch.metrics.tenants.view import Tenants

BREAKDOWN = "breakdown"
"""The name under which its rows are saved."""
TENANTS = "tenants: "
"""What the names of theirs begin with."""
MOST_NOTES = 200
SLOW_FROM_S = 0.5
"""Worst TTFT below which no request of a minute is looked at for its causes."""
LATEST = 6
"""Short columns up to now, where those of a window are long; GPUs tell late."""
LATELY_NS = 2 * NS_PER_S
"""Length of the window for present rates."""


BlocksOf = Callable[[str, SavedRows], Sequence[Block]]
"""Finds the sealed blocks that saved rows refer to."""
DeferredOf = Callable[[str, SavedRows], DeferredCounts]
"""Finds the totals of these blocks."""


class SavedState(msgspec.Struct, array_like=True):
    """A Model as checkpoints keep it, without lasting parts and blocks of rows."""

    passing: list[bytes]
    """The parts that change between checkpoints."""
    rows: dict[str, SavedRows]
    counters: dict[str, SavedCounters]
    history: SavedHistory
    failed: SavedFailures
    refusals: SavedRefusals
    requests: SavedIndex
    engines: SavedEngines
    client: SavedLoadClient
    cost: SavedCost
    health: SavedHealth
    catch_up: CatchUp
    notes: list[Note]
    hardware: SavedHardware
    traffic: SavedTraffic
    floors: SavedFloors
    last_token_ns: int | None
    began_ns: int | None
    prefix_caches: SavedCaches
    memory: SavedMemory
    traces: SavedTraces
    canaries: list[CanaryRequest]
    steps: SavedSteps
    stalls: SavedStalls
    scraped: SavedScraped
    causes: SavedAttribution
    slow: SavedSlowLog
    clocks: dict[str, SavedClock]
    classes: dict[str, str]
    servers: SavedServers
    slo: SavedSlo
    prices: Prices | None
    priced: bool
    """Whether prices were set by the viewer."""
    findings: SavedWatch
    server_steps: SavedServerSteps
    breakdown: SavedBreakdown
    tenants: SavedTenants
    models: dict[str, "SavedState"]
    """The Models of single servers by source; their rows are named after it, too."""


STATES = msgspec.msgpack.Decoder(SavedState)
"""Made before any thread needs it: see ``saving._decoder``."""


class SavedModel(msgspec.Struct, frozen=True):
    """A Model as checkpoints keep it."""

    state: bytes
    parts: list[bytes]
    blocks: dict[str, SealedBlocks]
    """By the name of the rows."""


class Model:
    """All arithmetic between readings and screens; it has no clock.

    The same readings in the same order give equal snapshots at equal ``now_ns``, no
    matter which snapshots were taken before. Memory is bounded however long it runs.
    """

    def __init__(
        self, slo: WatchedSlo | None = None, prices: Prices | None = None
    ) -> None:
        self._prices, self._priced = prices, prices is not None
        self._history = History()
        self._latencies = LatencySamples(self._history)
        self._outcomes = Outcomes()
        self._refusals = RefusalLog()
        self._requests = RequestIndex()
        self._slo = SloTracker(self._requests, slo)
        sinks = self._requests, self._latencies, self._outcomes, self._slo
        self._engines = Engines()
        self._tenants = TenantTracker(self._requests, self._engines.model_of)
        self._breakdown = BreakdownTracker(
            self._requests, self._engines.model_of, self._tenants.logged
        )
        self._tracker = RequestTracker(*sinks, self._breakdown)
        self._tracker.tenants = self._tenants
        self._traces = Traces(*sinks)
        self._steps = StepCounter()
        self._speculation = SpeculationCounter()
        self._stalls = StallFinder(self._requests, self._engines.profiles)
        self._client = LoadClient()
        self._cost = CostTracker()
        self._health = HealthTracker(self._engines, self._requests)
        self._notes: deque[Note] = deque(maxlen=MOST_NOTES)
        self._hardware = HardwareTracker()
        self._traffic = TrafficTracker()
        self._floors = FloorTracker(self._engines, self._traffic)
        self._last_token_ns: int | None = None
        self._began_ns: int | None = None
        self._prefix_caches = PrefixCaches()
        self._memory = MemoryTracker(self._engines, self._requests)
        self._canaries = CanaryTracker()
        self._scraped = ScrapedServers()
        self._models: ServerModels[Model] = ServerModels()
        self._server_steps = ServerSteps()
        self._servers = Servers(self._scraped, self._traces, self._engines)
        self._clocks = ClockDrops()
        self.watch = FindingWatch(
            Sources(
                engines=self._engines,
                requests=self._requests,
                steps=self._steps,
                outcomes=self._outcomes,
                refusals=self._refusals,
                slow=self._tracker.slow,
                tenants=self._tenants,
                stalls=self._stalls,
                health=self._health,
                memory=self._memory,
                history=self._history,
                speculation=self._speculation,
                scraped=self._scraped,
            )
        )
        self.unrecorded_readings = 0
        """Readings that a recorder lost, set by whoever takes snapshots."""
        self._fold: dict[type, Callable[[Any], None]] = {
            Step: self._step,
            RequestEvent: self._event,
            EngineInfo: self._info,
            Endpoint: self._endpoint,
            Totals: self._totals,
            Refusals: self._refused,
            Stacks: self._stalls.stacks.take,
            Profile: self._engines.profiles.take,
            Note: self._note,
            RequestRecord: self._record,
            TokenTimes: self._client.tokens,
            LoadPlanned: self._planned,
            LoadEvent: self._client.event,
            ClientSample: self._client.sample,
            HostSample: self._host,
            HostInfo: self._hardware.hosts.info,
            OtherProcesses: self._hardware.hosts.others,
            GpuInfo: self._gpu_info,
            GpuSample: self._gpu,
            GpuProcesses: self._hardware.gpus.processes,
            RequestSpan: self._span,
            KvCacheEvents: self._prefix_caches.take,
            BlockMap: self._memory.map,
            PromptBlocks: self._memory.prompt,
            CanaryRequest: self._canaries.take,
            ServerInfo: self._scraped.info,
            Contact: self._scraped.contact,
            EngineSample: self._scraped.sample,
            ModelConfig: self._config,
            EngineSettings: self._engines.take_settings,
            LiveLimits: self._engines.take_limits,
            WorkerMemory: self._engines.take_memory,
            StartupStage: self._engines.take_stage,
            MeasuredPeak: self._peak,
            WatchedSlo: self._watched_slo,
            Tick: self._tick,
            Prices: self._price,
        }
        if slo is not None:
            self._scraped.slo(slo)

    def hold_to(self, limits: Mapping[str, Limit]) -> None:
        """Judge latencies by these limits, which apply to the whole session."""
        self._scraped.hold_to(limits)

    def fold(self, reading: AnyReading) -> None:
        """Fold one reading, in session time and in order of receipt."""
        kind = type(reading)
        if kind in TOLD_APART and reading.source != self._models.only:
            self._models.take(reading, self)  # each of several has a Model, too
        take = self._fold.get(kind)
        if take is not None:  # anchors do not affect numbers
            take(reading)

    @property
    def notes(self) -> tuple[Note, ...]:
        """The latest 200 notes, oldest first."""
        return tuple(self._notes)

    def stalls_now(self, now_ns: int) -> dict[str, int]:
        """Return since when each engine that is stalled at this tick has been so."""
        stuck = stuck_since_ns(self._scraped.named(None), self._engines.sources)
        for model in self._models.by_source.values():
            stuck |= model.stalls_now(now_ns)
        since_ns = self._health.stalled_since_ns(now_ns)
        if since_ns is not None and not self._models.by_source:
            stuck[self._models.only or ""] = since_ns
        return stuck

    @property
    def profiles(self) -> tuple[SessionProfile, ...]:
        """The latest profiles, oldest first; cheaper than a snapshot."""
        return self._engines.profiles.every

    @property
    def objectives(self) -> tuple[WatchedSlo, ...]:
        return self._slo.said

    @property
    def slo_missed_since_ns(self) -> int | None:
        """When the share of good requests fell below the target; None if met."""
        return self._slo.missed_since_ns

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings as of the latest tick, costliest first."""
        return self.watch.findings(self._watches())

    @property
    def untrue(self) -> set[str]:
        """Names of findings that were taken back."""
        watches = (self.watch, *self._watches().values())
        return {name for each in watches for name in each.tracker.untrue}

    @property
    def past_findings(self) -> tuple[PastFinding, ...]:
        """The latest findings that ended, by their end."""
        return self.watch.ended(self._watches())

    def saved(self) -> SavedModel:
        """Return the whole state for a checkpoint; as cheap as a snapshot."""
        parts = Parts()
        state = self.saved_in(parts)
        models = self._models.by_source
        blocks = self.blocks()
        for source, model in models.items():
            blocks |= {_named(source, name): b for name, b in model.blocks().items()}
        state.passing = parts.passing
        return SavedModel(
            state=msgspec.msgpack.encode(state), parts=parts.lasting, blocks=blocks
        )

    def saved_in(self, parts: Parts) -> SavedState:
        """Return the state for a checkpoint; large pieces of it are added to ``parts``.

        Rows of samples and counters are saved separately.
        """
        breakdown = self._breakdown.saved()
        samples, counters = self._samples(), self._counters()
        rows = {name: each.rows for name, each in (samples | counters).items()}
        rows[BREAKDOWN] = self._breakdown.rows
        tenants = self._tenants.saved()
        rows |= {TENANTS + name: each for name, each in self._tenants.rows.items()}
        models = self._models.by_source
        return SavedState(
            rows={name: each.saved() for name, each in rows.items()},
            counters={name: each.saved() for name, each in counters.items()},
            history=self._history.saved(parts),
            failed=self._outcomes.saved(parts),
            refusals=self._refusals.saved(),
            requests=self._requests.saved(parts),
            passing=[],  # filled once all parts are added
            engines=self._engines.saved(),
            client=self._client.saved(parts),
            cost=self._cost.saved(),
            health=self._health.saved(),
            catch_up=self._health.catch_up,
            notes=list(self._notes),
            hardware=self._hardware.saved(parts),
            traffic=self._traffic.saved(parts),
            floors=self._floors.saved(),
            last_token_ns=self._last_token_ns,
            began_ns=self._began_ns,
            prefix_caches=self._prefix_caches.saved(parts),
            memory=self._memory.saved(parts),
            traces=self._traces.saved(),
            canaries=self._canaries.saved(),
            steps=self._steps.saved(),
            stalls=self._stalls.saved(),
            scraped=self._scraped.saved(parts),
            causes=self._tracker.causes.saved(),
            slow=self._tracker.slow.saved(parts),
            clocks=self._clocks.saved(),
            classes=self._requests.classes,
            servers=self._models.saved(),
            slo=self._slo.saved(),
            prices=self._prices,
            priced=self._priced,
            findings=self.watch.saved(),
            server_steps=self._server_steps.saved(parts),
            breakdown=breakdown,
            tenants=tenants,
            models={source: each.saved_in(parts) for source, each in models.items()},
        )

    def blocks(self) -> dict[str, SealedBlocks]:
        counted: dict[str, Samples | Counters] = self._samples() | self._counters()
        blocks = {name: each.rows.blocks for name, each in counted.items()}
        blocks |= {TENANTS + n: each.blocks for n, each in self._tenants.rows.items()}
        return blocks | {BREAKDOWN: self._breakdown.rows.blocks}

    @classmethod
    def restored(
        cls,
        state: bytes,
        parts: Sequence[bytes],
        blocks_of: BlocksOf,
        deferred_of: DeferredOf,
    ) -> Self:
        """Restore a saved Model.

        Raises:
            msgspec.MsgspecError: the state is not that of a Model.
        """
        saved = STATES.decode(state)
        written = WrittenParts(parts, saved.passing)
        return cls._restored(saved, written, blocks_of, deferred_of)

    @classmethod
    def _restored(
        cls,
        saved: SavedState,
        written: WrittenParts,
        blocks_of: BlocksOf,
        deferred_of: DeferredOf,
    ) -> Self:
        model = cls()
        model._client.restore(saved.client, written)
        model._requests.restore(saved.requests, written)
        model._slo.restore(saved.slo)
        model._prices, model._priced = saved.prices, saved.priced
        for name, samples in model._samples().items():
            rows = saved.rows[name]
            samples.restore(rows, blocks_of(name, rows), deferred_of(name, rows))
        for name, counters in model._counters().items():
            rows = saved.rows[name]
            counters.restore(saved.counters[name], rows, blocks_of(name, rows))
        rows = saved.rows[BREAKDOWN]
        model._breakdown.restore(saved.breakdown, rows, blocks_of(BREAKDOWN, rows))
        model._tenants.restore(
            saved.tenants,
            {
                name: (saved.rows[TENANTS + name], blocks_of(TENANTS + name, rows))
                for name in model._tenants.rows
                for rows in (saved.rows[TENANTS + name],)
            },
        )
        model._history.restore(saved.history, written)
        model._outcomes.restore(saved.failed, written)
        model._refusals.restore(saved.refusals)
        model._tracker.causes.restore(saved.causes, model._requests.every())
        model._tracker.slow.restore(saved.slow, written)
        model._clocks.restore(saved.clocks)
        model._requests.classes = saved.classes
        model._engines.restore(saved.engines)
        model._prefix_caches.restore(saved.prefix_caches, written)
        model._memory.restore(saved.memory, written)
        model._traces.restore(saved.traces)
        model._canaries.restore(saved.canaries)
        model._steps.restore(saved.steps)
        model._stalls.restore(saved.stalls)
        model._scraped.restore(saved.scraped, written)
        model._cost.restore(saved.cost)
        model._health.restore(saved.health)
        model._health.catch_up = saved.catch_up
        model._notes.extend(saved.notes)
        model._hardware.restore(saved.hardware, written)
        model._traffic.restore(saved.traffic, written)
        model._floors.restore(saved.floors)
        model.watch.restore(saved.findings)
        model._server_steps.restore(saved.server_steps, written)
        model._last_token_ns, model._began_ns = saved.last_token_ns, saved.began_ns
        models = (
            (
                source,
                cls._restored(
                    each, written, *_of_server(source, blocks_of, deferred_of)
                ),
            )
            for source, each in saved.models.items()
        )
        model._models.restore(saved.servers, models)
        for each in model._models.by_source.values():
            each.share_devices(model.devices)
        return model

    def copied(self) -> Self:
        """Return a copy without load runs and hardware; sealed blocks are shared."""
        blocks = (block for each in self.blocks().values() for block in each.latest)
        memo: dict[int, Any] = {id(block): block for block in blocks}
        memo[id(self._client)] = LoadClient()
        memo[id(self._scraped)] = ScrapedServers()
        memo[id(self._hardware)] = HardwareTracker()
        memo[id(self._models)] = ServerModels()
        memo[id(self._clocks)] = ClockDrops()
        memo[id(self._floors.devices)] = self._floors.devices
        return deepcopy(self, memo)

    @property
    def devices(self) -> Devices:
        """The peaks of GPUs and hosts, shared by all Models."""
        return self._floors.devices

    def share_devices(self, devices: Devices) -> None:
        """Use the devices of another Model."""
        self._floors.devices = devices

    def release(self) -> None:
        """Free the memory; nothing may be folded afterwards."""
        for model in self._models.by_source.values():
            model.release()
        counted: dict[str, Samples | Counters] = {**self._samples(), **self._counters()}
        for each in counted.values():
            each.rows.release()
        self._breakdown.rows.release()
        for rows in self._tenants.rows.values():
            rows.release()
        self._tracker.release()
        self._fold = {}

    def snapshot(self, now_ns: int, query: SnapshotQuery) -> Snapshot:
        """Return the snapshot of a moment, without what ``query`` leaves out."""
        shown = self.of_engines(now_ns, query)
        if not query.latest:
            shown = replace(shown, latest=None)
        measured = self._hardware.view(shown, over_time=query.hardware)
        shown = replace(
            shown,
            gpus=measured.gpus,
            hosts=measured.hosts,
            hardware=measured.hardware,
            timeline=replace(shown.timeline, **measured.columns),
            latest=shown.latest and replace(shown.latest, **measured.latest),
            limits=measured.add_to(shown.limits),
        )
        return replace(shown, spending=spending(shown, self._prices))

    def of_engines(self, now_ns: int, query: SnapshotQuery) -> Snapshot:
        """Return a snapshot without GPUs and hosts."""
        window, source = query.window, query.source
        scraped = self._servers.scraped(now_ns, window, source)
        alone = self._alone(source)
        if alone is not None:
            alone.hold_to(self._scraped.limits)
            of_server = alone.of_engines(
                now_ns, replace(query, client=False, source=None)
            )
            if scraped is not None:
                grid = self._columns(now_ns, window, scraped)[0]
                of_server = self._servers.best(scraped, of_server, grid)
            cost = self._cost.cost(self.unrecorded_readings)
            rest = self._client_beside(of_server) if query.client else None
            end_ns = of_server.charts_end_ns
            slo = alone.slo(end_ns, window, of_server.covered_ns, source)
            by_itself = self._of_session(
                replace(of_server, slo=slo), source, cost, rest
            )
            return self._beside_servers(by_itself, None, source)
        grid, bins, end_ns, lost_ns = self._columns(now_ns, window, scraped)
        limits = self._scraped.limits
        latencies = self._latencies.table(end_ns, window, bins, limits)
        totals = self._window_totals(end_ns, window, latencies, lost_ns)
        work, loaded_ns = self._work_now(now_ns), self._client.began_ns
        kv, step = kv_state(self._engines, totals.steps), self._engines.latest_step
        flow_now = flow(totals, work, kv)
        if self._engines.first_settings.get(ADAPTERS) is not None:
            flow_now = with_adapters(flow_now, self._requests)
        table, found = self._steps.table(end_ns, window), self.findings
        shown = Snapshot(
            now_ns=now_ns,
            window=window,
            asked=query,
            shown_source=source if self._knows(source) else None,
            covered_ns=totals.covered_ns,
            verdict=CATCHING_UP
            if self._health.catch_up.goes_on
            else self._health.verdict(
                now_ns,
                work,
                lambda: self._last_minute(now_ns, self._slow_minute(now_ns)),
                loaded_ns,
                self._hardware.hosts.seen_ns,
            ),
            catching_up=self._health.catch_up.goes_on,
            engines=self._engines.infos,
            endpoints=tuple(self._engines.endpoints.values()),
            settings=self._engines.first_settings,
            startup=startup_of(self._engines.stages.values()),
            live_limits=self._engines.live_limits,
            limit_changes=self._engines.limit_changes,
            last_token_ns=self._last_token_ns,
            flow=flow_now,
            refused=totals.refused or (),
            latencies=latencies,
            timeline=timeline(grid.start_ns, grid.bin_ns, bins, lost_ns),
            latest=self._latest(end_ns, grid, lost_ns) if query.latest else None,
            latest_step=step and without_members(step),
            steps=step_totals(
                totals.steps,
                totals.durations,
                table,
                self._steps.graphs,
                self._steps.deferrals.over(end_ns, window),
            ),
            server_steps=self._server_steps.shown(end_ns, window),
            speculation=self._speculated(end_ns, window),
            batch_curve=curve_of(table, self._batch_now(now_ns)),
            stalls=self._stalls.over(end_ns, window),
            stacks=self._stalls.stacks.latest,
            profiles=self._engines.profiles.every,
            step_needs=self._step_needs() if query.needs else None,
            limits=self._limits(end_ns, window, totals),
            kv=kv,
            prefix_cache=self._prefix_caches.shown(end_ns, window),
            memory=self._memory_view(
                end_ns, window, kv, totals, holders=query.requests
            ),
            block_maps=self._memory.pictures(),
            prefix_misses=self._memory.misses(end_ns, window.value)
            if query.misses
            else None,
            requests=self._rows() if query.requests else (),
            slowest=self._slowest(end_ns, window, latencies),
            breakdown=self._breakdown.shown(end_ns, window)
            if query.breakdown
            else None,
            tenants=self._tenants_shown(end_ns, window) if query.tenants else None,
            findings=tuple(
                each for each in found if each.subject is not Subject.MEASURING
            ),
            trust=tuple(each for each in found if each.subject is Subject.MEASURING),
            past_findings=self.past_findings,
            requests_evicted=self._requests.evicted,
            requests_seen=self._requests.seen,
            client=self._client.view(now_ns, window, grid) if query.client else None,
            cost=self._cost.cost(self.unrecorded_readings),
            notes=tuple(self._notes),
            slo=self.slo(end_ns, window, totals.covered_ns, source),
        )
        if scraped is not None:
            shown = self._servers.best(scraped, shown, grid)
        read, weights = self._traffic.over(
            shown.charts_end_ns, window, shown.covered_ns
        )
        rates = self._traffic.rates(window, grid)
        shown = replace(
            shown,
            timeline=replace(shown.timeline, derived_bytes_per_s=rates),
            hardware=Hardware(derived_bytes_per_s=read, derived_weights_share=weights),
        )
        return self._beside_servers(shown, scraped, source)

    def _alone(self, source: str | None) -> "Model | None":
        """Return the Model of one server; None if this one has only that server."""
        models = self._models.by_source
        found = models.get(source or "")
        others = bool(models) or self._models.only not in {None, source}
        if found is None and others and source in self._scraped.servers:
            return Model()  # only its scrapes are known
        return found

    def _knows(self, source: str | None) -> bool:
        """Return whether the server is the only one of this Model, or a scraped one."""
        return source in {self._models.only, *self._scraped.servers}

    def _columns(
        self, now_ns: int, window: Window, scraped: ScrapedWindow | None
    ) -> tuple[Grid, list[Bin | None], int, int | None]:
        """Return the grid of charts, their bins and end, and when all were lost."""
        lost_ns, end_ns = self._health.lost_ns, self._end_ns(now_ns)
        if scraped is not None:
            lost_ns, end_ns = scraped.lost_ns, scraped.now_ns
        begun = [self._client.began_ns, scraped.first_ns if scraped else None]
        since_ns = min((each for each in begun if each is not None), default=None)
        if since_ns is None and self._history.empty:
            since_ns = self._hardware.first_ns
        start_ns, bin_ns, bins = self._history.columns(end_ns, window, since_ns)
        return Grid(start_ns, bin_ns, len(bins)), bins, end_ns, lost_ns

    def _latest(self, end_ns: int, grid: Grid, lost_ns: int | None) -> Timeline | None:
        """Return the last short columns, up to now, if those of the grid are long."""
        if grid.bin_ns <= NS_PER_S:
            return None
        start_ns, bin_ns, bins = self._history.columns(end_ns, Window.MINUTE)
        start_ns += (len(bins) - LATEST) * bin_ns
        return timeline(start_ns, bin_ns, bins[-LATEST:], lost_ns)

    def _beside_servers(
        self, snapshot: Snapshot, scraped: ScrapedWindow | None, source: str | None
    ) -> Snapshot:
        """Add the canary's results and the list of all servers to a snapshot."""
        canary = self._canaries.view(snapshot.now_ns, snapshot.window, source)
        if canary is not None:
            snapshot = replace(snapshot, canary=canary)
        servers = self._servers.rows(snapshot, scraped, self._model_of)
        if not servers:
            return snapshot
        via = snapshot.via or (Via.PROBE if snapshot.engines else None)
        return replace(snapshot, servers=servers, via=via)

    def _model_of(self, source: str) -> "Model | None":
        """Return the Model of a server: this one, unless there are several."""
        models = self._models.by_source
        return models.get(source) if models else self

    def exact(self, now_ns: int, window: Window) -> tuple[Latency, ...]:
        """Return the exact latencies of requests, without trends."""
        return self._latencies.table(now_ns, window, [])

    def slo(
        self, now_ns: int, window: Window, covered_ns: int, source: str | None
    ) -> SloState | None:
        """Return the state of the objectives of one server, or of all."""
        return self._slo.state(now_ns, window, covered_ns, source)

    def beside(self, state: ServerState, now_ns: int, window: Window) -> ServerState:
        """Return the server's state with the exact numbers of this Model."""
        end_ns = self._end_ns(now_ns)
        latencies = self.exact(end_ns, window)
        totals = self._window_totals(end_ns, window, latencies, self._health.lost_ns)
        work = self._work_now(now_ns)
        seen = flow(totals, work, kv_state(self._engines, totals.steps))
        ends = [rank.last_end_ns for rank in self._engines.ranks.values()]
        return replace(
            state,
            last_ns=max(
                (e for e in (*ends, state.last_ns) if e is not None), default=None
            ),
            running=seen.running,
            waiting=seen.waiting,
            kv_usage=seen.kv_usage,
            arrivals_per_s=seen.arrivals_per_s,
            output_tokens_per_s=seen.output_tokens_per_s,
            prefix_hit_rate=seen.prefix_hit_rate,
            failed=seen.failed,
            refused=seen.refused,
            preemptions=seen.preemptions,
            speculation=self._speculated(end_ns, window),
            latencies=latencies,
            live_limits=self._engines.live_limits,
        )

    def steady(self, now_ns: int, window: Window) -> Steady:
        """Return the recent medians of the only server's gauges."""
        short = window is Window.TEN_SECONDS
        span = Window.TEN_SECONDS if short else Window.MINUTE
        _, _, bins = self._history.columns(now_ns, span)
        total = known_sum(rank.total_blocks for rank in self._engines.ranks.values())
        held = [each for each in bins if each is not None and each.steps]
        return Steady.of(
            [
                (each.prefill_requests + each.decode_requests) / each.steps
                for each in held
            ],
            [each.waiting_max for each in held],
            [each.kv[0] / total for each in held if each.kv[0] is not None and total],
        )

    def _client_beside(self, snapshot: Snapshot) -> ClientView | None:
        """Return the session's load runs, charted on the bins of a snapshot."""
        line = snapshot.timeline
        grid = Grid(line.start_ns, line.bin_ns, len(line.steps))
        return self._client.view(snapshot.now_ns, snapshot.window, grid)

    def _of_session(
        self,
        alone: Snapshot,
        source: str | None,
        cost: Cost,
        client: ClientView | None,
    ) -> Snapshot:
        """Return the snapshot of one server with the load and cost of the session."""
        return replace(
            alone,
            shown_source=source,
            client=client,
            cost=replace(cost, probe_us_per_step=alone.cost.probe_us_per_step),
            notes=tuple(self._notes),
        )

    def _step_needs(self) -> dict[Key, StepNeeds]:
        """Return what steps cost of each rank where that is known."""
        needs = ((key, self._floors.needs(key)) for key in sorted(self._engines.ranks))
        return {key: each for key, each in needs if each is not None}

    def _samples(self) -> dict[str, Samples]:
        """Return all samples, by the names under which their rows are saved."""
        return {
            "step_s": self._steps.step_durations,
            "server_step_s": self._server_steps.counter.step_durations,
            "prompt_tokens": self._outcomes.prompts,
            "request_tokens": self._outcomes.sizes,
            "found_tokens": self._outcomes.found,
            "eviction_age_s": self._memory.eviction_ages,
            "block_lifetime_s": self._prefix_caches.lifetimes,
            **self._latencies.samples,
            **self._client.samples(),
            **self._breakdown.named_samples(),
        }

    def _counters(self) -> dict[str, Counters]:
        return {
            "steps": self._steps.counters,
            "server_steps": self._server_steps.counter.counters,
            "speculation": self._speculation.counters,
            "deferrals": self._steps.deferrals,
            "outcomes": self._outcomes.counters,
            "outcomes_while_lost": self._outcomes.while_lost,
            "prefix_cache": self._prefix_caches.counters,
            "evictions": self._memory.evictions,
            **self._slo.counters(),
            **self._floors.rows,
        }

    def _window_totals(
        self,
        now_ns: int,
        window: Window,
        latencies: tuple[Latency, ...],
        lost_ns: int | None,
    ) -> WindowTotals:
        itl = next(row.quantiles for row in latencies if row.metric == "itl_s")
        return WindowTotals(
            covered_ns=self._covered_ns(now_ns, window.value),
            steps=self._steps.over(now_ns, window),
            outcomes=self._outcomes.over(now_ns, window)
            if lost_ns is None
            else self._outcomes.up_to(now_ns, window),
            refused=self._refusals.over(now_ns, window),
            prompts=self._outcomes.prompts.quantiles(now_ns, window),
            durations=self._steps.durations(now_ns, window),
            itl=itl,
        )

    def _limits(
        self, now_ns: int, window: Window, totals: WindowTotals
    ) -> Limits | None:
        short = window in {Window.TEN_SECONDS, Window.MINUTE}
        moment = LimitsMoment(
            now_ns=now_ns,
            window=window,
            covered_ns=totals.covered_ns,
            steps=totals.steps,
            lately=self._steps.over(now_ns, Window.FIVE_MINUTES) if short else None,
        )
        return limits_of(self._floors, self._engines, moment)

    def _speculated(self, now_ns: int, window: Window) -> Speculation | None:
        settings = self._engines.first_settings
        return self._speculation.over(now_ns, window, settings)

    def _memory_view(
        self,
        now_ns: int,
        window: Window,
        kv: KvState,
        totals: WindowTotals,
        *,
        holders: bool,
    ) -> Memory | None:
        moment = MemoryMoment(
            now_ns=now_ns,
            window=window,
            kv=kv,
            steps=totals.steps,
            whole=self._steps.over(now_ns, Window.SESSION),
            recent=self._history.columns(now_ns, Window.TEN_SECONDS)[2],
            minute=self._history.columns(now_ns, Window.MINUTE)[2],
        )
        return self._memory.view(moment, self._outcomes, holders=holders)

    def _rows(self) -> tuple[RequestRow, ...]:
        self._tracker.causes.refresh(self._requests.live)
        return self._requests.rows()

    def _tenants_shown(self, now_ns: int, window: Window) -> Tenants | None:
        """Return the tenants, with the block size where all engines have one."""
        sizes = {info.kv_block_tokens for info in self._engines.infos}
        size = sizes.pop() if len(sizes) == 1 else None
        return self._tenants.shown(now_ns, window, size)

    def _slowest(
        self, now_ns: int, window: Window, latencies: tuple[Latency, ...]
    ) -> SlowRequests | None:
        """Return the slowest requests; None where no engine reports waits."""
        if not any(Vantage.ENGINE in each for each in self._requests.tellers.values()):
            return None
        ttft = next(row.quantiles for row in latencies if row.metric == "ttft_s")
        return self._tracker.slow.of(now_ns, window, ttft)

    def _work_now(self, now_ns: int) -> SchedulerState:
        """Return running and waiting requests, with the token rate once it is known."""
        work = scheduler_state(now_ns, self._engines, self._requests)
        lately = self._steps.counters.after(now_ns - LATELY_NS)
        covered_ns = self._covered_ns(now_ns, LATELY_NS)
        if work.running is None or covered_ns < LEAST_NS:
            return work
        if work.any and not lately.rows:  # steps are longer, or stalled
            return work
        tokens_per_s = lately.sums["output_tokens"] * NS_PER_S / covered_ns
        return replace(work, tokens_per_s=tokens_per_s)

    def _batch_now(self, now_ns: int) -> float | None:
        """Return requests per step in the last two seconds; None without steps."""
        lately = self._steps.counters.after(now_ns - LATELY_NS)
        return ratio(lately.sums["batch"], lately.rows)

    def _covered_ns(self, now_ns: int, span_ns: int | None) -> int:
        """Return how many nanoseconds of the last ``span_ns`` an engine was watched."""
        if self._began_ns is None:
            return 0
        to_ns = self._end_ns(now_ns)
        from_ns = self._began_ns
        if span_ns is not None:
            from_ns = max(from_ns, now_ns - span_ns)
        return max(0, to_ns - from_ns)

    def _end_ns(self, now_ns: int) -> int:
        """Return where windows end: now, or when the engine was lost."""
        lost_ns = self._health.lost_ns
        return now_ns if lost_ns is None else min(now_ns, lost_ns)

    def _began(self, t_ns: int) -> None:
        """Set when watching began, if that is earlier than known so far."""
        if self._began_ns is None or t_ns < self._began_ns:
            self._began_ns = t_ns

    # One method for each kind of reading.

    def _step(self, step: Step) -> None:
        if step.memberless:
            if step.source not in self._engines.alive:  # its probe tells more
                self._server_steps.take(step)
                self._scraped.stepped(step)
            return
        if self._began_ns is None or step.start_ns < self._began_ns:
            self._began_ns = step.start_ns
        rank = self._engines.rank(step.source, step.rank)
        before = rank.step
        kv, gap_ns = self._engines.take_step(rank, step), rank.gap_ns
        self._tracker.step(step, gap_ns)
        self._stalls.step(step, before, gap_ns)
        floor_ns = self._floors.step(step, self._traffic.step(step), gap_ns)
        tokens, budget = sum(step.produced), rank.token_budget(step)
        ended = EndedStep(step, tokens, kv, gap_ns, floor_ns, budget)
        self._steps.add(ended)
        if step.drafted_tokens is not None:
            self._speculation.add(step)
        self._history.add_step(ended)
        if self._health.step(step):
            self.watch.tracker.take_back(Stopped.NAME)
        self._health.catch_up.take(step.end_ns)
        if tokens and step.end_ns > (self._last_token_ns or step.start_ns):
            self._last_token_ns = step.end_ns

    def _event(self, event: RequestEvent) -> None:
        if self._began_ns is None or event.t_ns < self._began_ns:
            self._began(max(event.t_ns, 0))
        self._tracker.event(event)
        if event.ordinal is not None:
            self._stalls.event(event)
            self._traffic.event(event)
            if event.kind is EventKind.FINISHED:
                self._memory.ended(event)
        self._health.worked(event.t_ns)

    def _span(self, span: RequestSpan) -> None:
        if span.source in self._engines.alive:
            return  # its probe reports the same request
        self._began(max(span.arrived_ns, 0))
        self._traces.take(span)

    def _info(self, info: EngineInfo) -> None:
        self._began(max(info.t_ns, 0))
        self._engines.take_info(info)
        self._traffic.info(info)
        self._floors.info(info)
        self._health.info(info)
        self.watch.info(info)

    def _config(self, config: ModelConfig) -> None:
        self._engines.take_config(config)
        self._floors.config(config)

    def _peak(self, peak: MeasuredPeak) -> None:
        self._engines.take_peak(peak)
        self._floors.devices.measured(peak)

    def _endpoint(self, endpoint: Endpoint) -> None:
        self._engines.endpoints[endpoint.source] = endpoint
        self._floors.changed()

    def _totals(self, totals: Totals) -> None:
        self._tracker.totals(totals)
        self._engines.take_totals(totals)
        self._cost.totals(totals)
        self._hardware.totals(totals)
        of_core = totals.running is not None or totals.kv_used_blocks is not None
        self._health.catch_up.take(totals.t_ns, of_core=of_core)
        self.watch.totals(totals)

    def _refused(self, told: Refusals) -> None:
        self._began(max(told.t_ns, 0))
        self._slo.refused(told.source, told.t_ns, self._refusals.take(told))

    def _note(self, note: Note) -> None:
        self._models.note(note)
        self._notes.append(note)
        self.watch.note(note)
        if note.kind is not NoteKind.LOST:
            self._health.note(note)
        if note.kind in {NoteKind.DROPPED, NoteKind.AWAKE}:
            self._interrupted(note)
        elif note.kind is NoteKind.COMPILATION:
            self._tracker.compiled(note)
            self._stalls.compiled(note)
        elif note.kind is NoteKind.LOST:
            self._tracker.lost(note)
            self._tenants.lost(note.source)
            self._engines.lost(note.source, note.t_ns)
            self._stalls.lost(note.source)
            self._memory.lost(note.source)
            self._traffic.lost(note.source)
            self._floors.lost(note.source)
            self._hardware.hosts.lost(note.source)
            if not self._engines.alive:  # other engines are alive
                self._health.note(note)
                self._health.catch_up = CatchUp(tick_ns=self._health.catch_up.tick_ns)
                self._cost.lost()
                self._last_token_ns = None

    def _interrupted(self, note: Note) -> None:
        """Forget what was under way: readings were lost, or the engine stalled."""
        if note.kind is NoteKind.DROPPED:
            self._cost.dropped(note)
            self._tracker.dropped(note)
            self._memory.dropped(note.source)
        for rank in self._engines.ranks_of(note.source):
            rank.forget()
        self._stalls.forget(note.source)

    def _planned(self, planned: LoadPlanned) -> None:
        self._client.planned(planned)
        facts = plan_facts(planned)
        if facts is None or not facts.names_classes:
            return
        for model in (self, *self._models.by_source.values()):
            model.await_classes()

    @property
    def awaits_classes(self) -> bool:
        """Whether clients are to tell the class of requests."""
        return self._breakdown.awaits_classes

    def await_classes(self) -> None:
        """Wait for what clients tell of requests, from now on."""
        self._breakdown.await_classes()

    def _record(self, record: RequestRecord) -> None:
        ended_ns = self._client.record(record)
        for model in (self, *self._models.by_source.values()):
            model.told(record.external_id, record.class_name)
        if record.failure not in {None, *BY_US}:
            lost = self._health.lost_ns is not None
            self._outcomes.client_failed(record.external_id, ended_ns, lost=lost)

    def _price(self, prices: Prices) -> None:
        if not self._priced:
            self._prices = prices

    def _tick(self, tick: Tick) -> None:
        told = (*self._engines.infos, *self._engines.endpoints.values())
        around = around_of(tick.t_ns, self._hardware, self._client, told)
        late_s = self._health.catch_up.overdue_ns(tick.t_ns) / NS_PER_S
        self.judge(tick.t_ns, replace(around, late_s=late_s))

    def judge(self, now_ns: int, around: Around) -> None:
        """Judge diagnoses at a tick: for each server, then for all together."""
        self._health.catch_up.tick(now_ns)
        for model in self._models.by_source.values():
            model.judge(now_ns, replace(around, late_s=0.0))
        if self._health.catch_up.goes_on:
            self.watch.facts = None
            return
        self._slo.tick(now_ns)
        self._breakdown.tick(now_ns)
        self._tenants.tick(now_ns)
        steps = self._steps.over(now_ns, Window.TEN_SECONDS)
        moment = LimitsMoment(
            now_ns=now_ns,
            window=Window.TEN_SECONDS,
            covered_ns=self._covered_ns(now_ns, Window.TEN_SECONDS.value),
            steps=steps,
        )
        around = replace(
            around,
            slo=self.slo(now_ns, Window.MINUTE, 0, None),
            limits=limits_of(self._floors, self._engines, moment),
        )
        slow = self._slow_minute(now_ns)
        self.watch.tick(now_ns, self._began_ns, (steps, slow), around, self._watches())
        work = scheduler_state(now_ns, self._engines, self._requests)
        self._health.tick(now_ns, work, self._last_minute(now_ns, slow))

    def _slow_minute(self, now_ns: int) -> SlowRequests | None:
        """Return the slowest requests of the last minute; None where none was slow."""
        worst_s = self._tracker.slow.worst_s(now_ns, Window.MINUTE)
        if worst_s is None or (worst_s < SLOW_FROM_S and not self._slo.said):
            return None
        if not any(Vantage.ENGINE in each for each in self._requests.tellers.values()):
            return None
        samples = self._latencies.samples["ttft_s"]
        ttft = samples.quantiles(now_ns, Window.MINUTE)
        return self._tracker.slow.of(now_ns, Window.MINUTE, ttft)

    def _last_minute(self, now_ns: int, slow: SlowRequests | None) -> LastMinute:
        """Return what the verdict is judged by."""
        facts = self.watch.facts
        known = facts is not None and facts.now_ns == now_ns
        over = facts.steps_minute if known and facts is not None else None
        steps = (over or self._steps.over(now_ns, Window.MINUTE)).sums
        slow_shares: dict[BoundBy, float] = {}
        for each in slow.groups if slow is not None else ():
            if (bound := BOUND_OF_CAUSE.get(each.cause)) is not None:
                slow_shares[bound] = slow_shares.get(bound, 0.0) + each.share
        deferrals = self._steps.deferrals.over(now_ns, Window.MINUTE).sums
        deferral = max(deferrals, key=deferrals.__getitem__)
        return LastMinute(
            covered_ns=self._covered_ns(now_ns, Window.MINUTE.value),
            ranks=max(len(self._engines.ranks), 1),
            bound_ns={
                bound: steps[SPENT_NS[bound]]
                for bound in BoundBy
                if bound is not BoundBy.NOTHING
            },
            slow_shares=slow_shares,
            deferral=deferral if deferrals[deferral] else None,
            p99_ttft_s=None if slow is None else slow.from_s,
            worst_ttft_s=self._tracker.slow.worst_s(now_ns, Window.MINUTE),
            preemptions=steps["preemptions"],
            problems=[
                Problem(
                    text=each.title,
                    since_ns=each.since_ns,
                    queues=explains_queue(each.name),
                )
                for each in self.findings
                if each.subject is not Subject.MEASURING and each.cost >= SLIGHT
            ],
        )

    def _watches(self) -> dict[str, FindingWatch]:
        """Return the FindingWatch of each server, where there are several."""
        return {source: model.watch for source, model in self._models.by_source.items()}

    def told(self, external_id: str, class_name: str | None) -> None:
        """Take over what a client told of a request."""
        request = self._requests.classed(external_id, class_name)
        if request is None:
            return
        if class_name is not None:
            self._slo.classed(request)
        self._breakdown.told(request)

    def clocks_dropped(self, uuid: str, span: tuple[int, int]) -> None:
        """Record that the clocks of a GPU, used by an engine or not, were throttled."""
        known = self._engines.infos
        sources = {each.source for each in known if not each.gpus or uuid in each.gpus}
        self._tracker.clocks_dropped(sources, span)

    def _watched_slo(self, slo: WatchedSlo) -> None:
        if not self._slo.take(slo):
            return
        self._scraped.slo(slo)
        for model in self._models.by_source.values():
            model.fold(slo)

    def _gpu_info(self, info: GpuInfo) -> None:
        self._hardware.gpus.info(info)
        self._floors.devices.gpu(info)

    def _gpu(self, sample: GpuSample) -> None:
        self._hardware.gpus.sample(sample)
        held = self._clocks.take(sample)
        if held is not None:
            for model in (self, *self._models.by_source.values()):
                model.clocks_dropped(sample.source, held)

    def _host(self, sample: HostSample) -> None:
        self._hardware.hosts.sample(sample)
        if not sample.source:  # other hosts do not run inferwatch
            self._cost.host(sample)
            self._client.host(self._cost.host_use())


def _named(source: str, rows: str) -> str:
    return f"{source}: {rows}"


def _of_server(
    source: str, blocks_of: BlocksOf, deferred_of: DeferredOf
) -> tuple[BlocksOf, DeferredOf]:
    """Return functions that fetch one server's saved rows and deferred counts."""

    def blocks(name: str, rows: SavedRows) -> Sequence[Block]:
        return blocks_of(_named(source, name), rows)

    def deferred(name: str, rows: SavedRows) -> DeferredCounts:
        return deferred_of(_named(source, name), rows)

    return blocks, deferred
