"""What a screen may know: one frozen picture of everything at one moment.

Made by :meth:`inferwatch.metrics.model.model.Model.snapshot`; screens and the headless
summary read it and nothing else. Live and replayed sessions give equal snapshots.
Times ``*_ns`` are session time. Unknown is ``None``; an empty bin is a gap.
"""

import re
from dataclasses import KW_ONLY, dataclass, field

from collectors.contract.readings import (
    Endpoint,
    EngineInfo,
    LiveLimits,
    Note,
    Step,
)
from inferwatch.metrics.cache.memory import BlockPicture, Memory
from inferwatch.metrics.cache.prefix_cache import PrefixCache
from inferwatch.metrics.causes.cause import SlowRequests
from inferwatch.metrics.findings.finding import Finding, PastFinding
from inferwatch.metrics.floor.view import Limits
from inferwatch.metrics.hardware.hosts import HostState
from inferwatch.metrics.hardware.own_cost import Cost
from inferwatch.metrics.hardware.view import GpuState, Hardware
from inferwatch.metrics.load.canary import Canary
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.objectives.spending_view import Spending
from inferwatch.metrics.objectives.view import SloState
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import (
    Latency,
    Window,
)
from inferwatch.metrics.servers.server_state import ServerState, Via
from inferwatch.metrics.steps.counter import StepTotals
from inferwatch.metrics.steps.efficiency import BatchCurve, Stall
from inferwatch.metrics.steps.flow import Flow, KvState
from inferwatch.metrics.steps.health import Verdict


def _natural(name: str) -> list[tuple[int, str]]:
    """A key to sort names by, in which digits count as numbers."""
    parts = re.split(r"(\d{1,18})", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


@dataclass(frozen=True, slots=True)
class SnapshotQuery:
    """What of a snapshot is wanted: what nobody looks at need not be computed."""

    window: Window
    _: KW_ONLY
    requests: bool = True
    """With rows of requests."""
    client: bool = True
    """With the client's view."""
    hardware: bool = False
    """With each GPU and host over time."""
    source: str | None = None
    """Of that server alone; None, or one that is not known: of all together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything, at one moment, over one window."""

    now_ns: int
    window: Window
    covered_ns: int
    """How much of the window there was an engine to watch; rates are over this."""
    verdict: Verdict
    catching_up: bool = False
    """Probes still tell of the past: nothing is judged until the present is reached."""
    engines: tuple[EngineInfo, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    servers: tuple[ServerState, ...] = ()
    """Those attached to, in order of first contact; ranks one after the other."""
    shown_source: str | None = None
    """All else here is of this server alone; None: of all together."""
    via: Via | None = None
    """The best source of the latencies; None before there is one."""
    advice: tuple[str, ...] = ()
    """What would make more known: a flag or variable each, in a sentence."""
    gpus: tuple[GpuState, ...] = ()
    hosts: tuple[HostState, ...] = ()
    """Our own host first."""
    hardware: Hardware = field(default_factory=Hardware)
    last_token_ns: int | None = None
    flow: Flow = field(default_factory=Flow)
    latencies: tuple[Latency, ...] = ()
    """ttft_s, queue_s, prefill_s, tpot_s, itl_s, e2el_s in this order."""
    lengths: tuple[Latency, ...] = ()
    """Where only buckets tell them: prompt_tokens and output_tokens of requests,
    step_tokens of engine steps; in tokens, mean and brackets."""
    timeline: Timeline = field(default_factory=Timeline)
    latest_step: Step | None = None
    """The last one that ended, without its members; None after a loss."""
    steps: StepTotals = field(default_factory=StepTotals)
    kv: KvState = field(default_factory=KvState)
    prefix_cache: PrefixCache | None = None
    """None where no server tells of single blocks."""
    memory: Memory | None = None
    """None where no probe tells of an engine."""
    block_maps: tuple[BlockPicture, ...] = ()
    """One a rank whose probe copies its pool; without holes, or not there."""
    slowest: SlowRequests | None = None
    """None before a request got its first token in the window."""
    batch_curve: BatchCurve | None = None
    """None before there were steps."""
    stalls: tuple[Stall, ...] = ()
    """Of the window, newest first, at most 50."""
    limits: Limits | None = None
    """None where no engine tells of its steps."""
    findings: tuple[Finding, ...] = ()
    """At most three, what costs most first."""
    past_findings: tuple[PastFinding, ...] = ()
    """The latest 200 that are over, in the order of their ends."""
    slo: SloState | None = None
    """None where no objective was given."""
    spending: Spending | None = None
    """None where neither a price nor energy is known."""
    settings: dict[str, str | int | float | bool | None] = field(default_factory=dict)
    """Of the engine as it told them, by vLLM's flags; of the first rank."""
    live_limits: tuple[LiveLimits, ...] = ()
    """Of engines whose limits may be changed while they run, one a rank; the infos of
    ``engines`` have what is in force."""
    limit_changes: tuple[LiveLimits, ...] = ()
    """The latest 64 of each rank, oldest first, those in force included."""
    requests: tuple[RequestRow, ...] = ()
    """Live ones and the latest ended ones, at most 2,000, newest arrival first."""
    requests_evicted: int = 0
    requests_seen: int = 0
    """In the session, those without a row included."""
    client: ClientView | None = None
    canary: Canary | None = None
    """None before the first tiny request."""
    cost: Cost = field(default_factory=Cost)
    notes: tuple[Note, ...] = ()
    """The latest 200, oldest first; stages included."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The servers, each once, in the order of their names: 2 before 10."""
        return tuple(sorted({each.source for each in self.servers}, key=_natural))

    @property
    def server(self) -> ServerState | None:
        """The one that all else is of; None where there is none, or several."""
        found = {each.source: each for each in reversed(self.shown_servers)}
        return next(iter(found.values())) if len(found) == 1 else None

    @property
    def shown_servers(self) -> tuple[ServerState, ...]:
        """Those that all else is of, rank by rank."""
        one = self.shown_source
        return tuple(each for each in self.servers if one in {None, each.source})

    @property
    def without_steps(self) -> bool:
        """No engine tells of its steps: all is known from what servers count."""
        return bool(self.servers) and not self.engines

    @property
    def charts_end_ns(self) -> int:
        """Now, or when the engine was lost."""
        lost_ns = self.timeline.lost_ns
        return self.now_ns if lost_ns is None else lost_ns
