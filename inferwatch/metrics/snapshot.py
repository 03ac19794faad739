"""The Snapshot: one frozen picture of everything at one moment, for screens.

Made by :meth:`inferwatch.metrics.model.model.Model.snapshot`; screens and the headless
summary read it and nothing else. Live and replayed sessions give equal snapshots. Times
``*_ns`` are session time. Unknown is ``None``; an empty bin is a gap.
"""

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

from collectors.contract.readings import Endpoint, EngineInfo, LiveLimits, Note, Step
from inferwatch.metrics.breakdown.view import Breakdown
from inferwatch.metrics.cache.memory import BlockPicture, Memory
from inferwatch.metrics.cache.misses import PrefixMisses
from inferwatch.metrics.cache.prefix_cache import PrefixCache
from inferwatch.metrics.causes.cause import SlowRequests
from inferwatch.metrics.findings.finding import Finding, PastFinding
from inferwatch.metrics.floor.rank import StepNeeds
from inferwatch.metrics.floor.view import Limits
from inferwatch.metrics.hardware.hosts import HostState
from inferwatch.metrics.hardware.own_cost import Cost
from inferwatch.metrics.hardware.view import GpuState, Hardware
from inferwatch.metrics.load.canary import Canary
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.objectives.spending_view import Spending
from inferwatch.metrics.objectives.view import SloState
from inferwatch.metrics.requests.refusals import RefusedGroup
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import Latency, Window
from inferwatch.metrics.servers.server_counts import ServerCounts
from inferwatch.metrics.servers.server_state import ServerState, Via
from inferwatch.metrics.servers.server_steps import PublishedSteps
from inferwatch.metrics.steps.counter import StepTotals
from inferwatch.metrics.steps.efficiency import BatchCurve, Stall
from inferwatch.metrics.steps.engines import Key
from inferwatch.metrics.steps.flow import Flow, KvState
from inferwatch.metrics.steps.health import Verdict
from inferwatch.metrics.steps.profiles import SessionProfile
from inferwatch.metrics.steps.speculation import Speculation
from inferwatch.metrics.steps.stacks import StalledStacks
from inferwatch.metrics.steps.startup import Startup
from inferwatch.metrics.tenants.view import Tenants


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key in which digits count as numbers."""
    parts = re.split(r"(\d{1,18})", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


@dataclass(frozen=True, slots=True)
class SnapshotQuery:
    """The parts of a snapshot that are needed; others are not computed."""

    window: Window
    _: KW_ONLY
    requests: bool = True
    """Include rows of requests."""
    client: bool = True
    """Include load runs."""
    hardware: bool = False
    """Include charts of each GPU and host."""
    latest: bool = False
    """Include the last moments in short columns, for values of now."""
    breakdown: bool = False
    """Include where the time of all requests went."""
    misses: bool = False
    """Include why prompts missed the prefix cache."""
    tenants: bool = False
    """Include who asked for how much, and who made whom wait."""
    needs: bool = False
    """Include what steps cost, rank by rank, for floors of their parts."""
    source: str | None = None
    """Show this server alone; None, or an unknown one, shows all together."""


EVERY_PART = SnapshotQuery(
    Window.SESSION,
    hardware=True,
    latest=True,
    breakdown=True,
    misses=True,
    tenants=True,
    needs=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything, at one moment, over one window."""

    now_ns: int
    window: Window
    asked: SnapshotQuery = field(default=EVERY_PART, compare=False)
    """What it was asked for, which is nothing that it shows."""
    covered_ns: int
    """The part of the window in which an engine was watched; rates are over this."""
    verdict: Verdict
    catching_up: bool = False
    """Whether probes still report the past; nothing is judged until they are through.
    """
    engines: tuple[EngineInfo, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    servers: tuple[ServerState, ...] = ()
    """The attached servers, in order of first contact, rank by rank."""
    shown_source: str | None = None
    """The server that all other fields are of; None for all together."""
    via: Via | None = None
    """The best source of the latencies; None before there is one."""
    advice: tuple[str, ...] = ()
    """How to learn more: a sentence for each flag or variable."""
    gpus: tuple[GpuState, ...] = ()
    hosts: tuple[HostState, ...] = ()
    """Our own host first."""
    hardware: Hardware = field(default_factory=Hardware)
    last_token_ns: int | None = None
    flow: Flow = field(default_factory=Flow)
    latencies: tuple[Latency, ...] = ()
    """In this order: ttft_s, queue_s, prefill_s, tpot_s, itl_s, e2el_s."""
    lengths: tuple[Latency, ...] = ()
    """Lengths in tokens, known from buckets alone: mean and brackets.

    prompt_tokens and output_tokens of requests, step_tokens of engine steps.
    """
    timeline: Timeline = field(default_factory=Timeline)
    latest: Timeline | None = None
    """The last moments in short columns, for values of now: where those of ``timeline``
    are longer than a second, or servers only count. None elsewhere, or if not asked
    for."""
    latest_step: Step | None = None
    """The step that ended last, without its members; None after a loss."""
    steps: StepTotals = field(default_factory=StepTotals)
    server_steps: PublishedSteps | None = None
    """None where no server publishes its steps; those of probes are not among them."""
    speculation: Speculation | None = None
    """None where speculative decoding is off."""
    kv: KvState = field(default_factory=KvState)
    server_counts: ServerCounts = field(default_factory=ServerCounts)
    """What only servers count: empty where none is scraped."""
    prefix_cache: PrefixCache | None = None
    """None where no server publishes events of single blocks."""
    memory: Memory | None = None
    """None where no probe reports an engine."""
    block_maps: tuple[BlockPicture, ...] = ()
    """One per rank whose probe copies its pool, if it is complete."""
    prefix_misses: PrefixMisses | None = None
    """Of the latest prompts, if asked for; None where nobody tells of their blocks."""
    slowest: SlowRequests | None = None
    """None before the first token of a request in the window."""
    breakdown: Breakdown | None = None
    """None where no request ended in the window, or if not asked for."""
    tenants: Tenants | None = None
    """None where no request ended in the window, or if not asked for."""
    batch_curve: BatchCurve | None = None
    """None without steps."""
    stalls: tuple[Stall, ...] = ()
    """In the window, newest first, at most 50."""
    stacks: StalledStacks | None = None
    """Of the latest stall in which stacks were taken; None before the first."""
    profiles: tuple[SessionProfile, ...] = ()
    """The latest 50, oldest first, one that is on included."""
    step_needs: Mapping[Key, StepNeeds] | None = None
    """By source and rank, where they are known; None if not asked for."""
    limits: Limits | None = None
    """None where no engine reports its steps."""
    findings: tuple[Finding, ...] = ()
    """On the engine and its traffic, costliest first."""
    trust: tuple[Finding, ...] = ()
    """Findings on measuring: how far the numbers can be trusted."""
    past_findings: tuple[PastFinding, ...] = ()
    """The latest 200 that ended, by their end."""
    slo: SloState | None = None
    """None without objectives."""
    spending: Spending | None = None
    """None where neither a price nor energy is known."""
    settings: dict[str, str | int | float | bool | None] = field(default_factory=dict)
    """The engine's settings by vLLM's flags; of the first rank."""
    startup: Startup | None = None
    """How the engine's start went; None where no probe tells."""
    live_limits: tuple[LiveLimits, ...] = ()
    """Live limits of each rank that allows changing them.

    The infos in ``engines`` have the limits in force.
    """
    limit_changes: tuple[LiveLimits, ...] = ()
    """The latest 64 of each rank, oldest first, with those in force."""
    requests: tuple[RequestRow, ...] = ()
    """Live and recently ended ones, at most 2,000, newest arrival first."""
    requests_evicted: int = 0
    requests_seen: int = 0
    """In the session, including those without a row."""
    refused: tuple[RefusedGroup, ...] = ()
    """Refused requests in the window by route, status and reason, most first."""
    client: ClientView | None = None
    canary: Canary | None = None
    """None before the first canary request."""
    cost: Cost = field(default_factory=Cost)
    notes: tuple[Note, ...] = ()
    """The latest 200, oldest first, with stages."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The servers by name, in natural order: 2 before 10."""
        return tuple(sorted({each.source for each in self.servers}, key=_natural))

    @property
    def server(self) -> ServerState | None:
        """The only server shown; None without any, or for several."""
        by_source = {each.source: each for each in reversed(self.shown_servers)}
        return next(iter(by_source.values())) if len(by_source) == 1 else None

    @property
    def shown_servers(self) -> tuple[ServerState, ...]:
        """The servers shown, rank by rank."""
        one = self.shown_source
        return tuple(each for each in self.servers if one in {None, each.source})

    @property
    def without_steps(self) -> bool:
        """Whether no engine reports its steps, so that numbers come from scrapes."""
        return bool(self.servers) and not self.engines

    @property
    def tells_steps(self) -> bool:
        """Whether single steps are told: by a probe, or published by a server."""
        return not self.without_steps or self.server_steps is not None

    @property
    def charts_end_ns(self) -> int:
        """Where charts end: now, or when the engine was lost."""
        lost_ns = self.timeline.lost_ns
        return self.now_ns if lost_ns is None else lost_ns
