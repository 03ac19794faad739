"""The facts that diagnoses judge: one engine, or several together, at one tick."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import BoundBy, EngineInfo, LiveLimits, Note
from inferwatch.metrics.cache.misses import PrefixMisses
from inferwatch.metrics.causes.cause import Cause, SlowRequests
from inferwatch.metrics.findings.finding import Effort, Knob
from inferwatch.metrics.floor.peaks import CPU
from inferwatch.metrics.floor.view import Limits
from inferwatch.metrics.hardware.hosts import HostState
from inferwatch.metrics.hardware.view import GpuState
from inferwatch.metrics.objectives.view import SloState
from inferwatch.metrics.requests.refusals import RefusedGroup
from inferwatch.metrics.requests.starvation import StarvedPriority
from inferwatch.metrics.series.samples import CounterTotals
from inferwatch.metrics.series.window import Quantiles
from inferwatch.metrics.servers.counted_requests import CountedRequests
from inferwatch.metrics.steps.efficiency import Stall
from inferwatch.metrics.steps.health import Verdict
from inferwatch.metrics.steps.live_limits import LIMITS
from inferwatch.metrics.steps.stacks import StalledStacks
from inferwatch.metrics.steps.startup import Startup
from inferwatch.metrics.tenants.view import NoisyTenant

Setting = str | int | float | bool | None
NOTHING = CounterTotals(0, {}, {})
INFO_FIELDS = {
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
    "enable_prefix_caching": "prefix_caching",
    "async_scheduling": "async_scheduling",
    "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel",
    "data_parallel_size": "data_parallel",
}
"""Fields of EngineInfo by the vLLM setting that they report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSteps:
    """How mixed steps (prefill and decode) delayed decoding requests in ten seconds."""

    steps: int
    """Steps that computed both prompt tokens and output tokens."""
    usual_s: float
    """Median duration of steps that only decode."""
    mean_s: float
    """Mean duration of mixed steps, weighted by output tokens."""
    delay_share: float
    """Delay by mixed steps beyond ``usual_s`` / time of all output tokens, 0-1."""
    worst_ns: int
    """When the longest mixed step ended."""
    worst_s: float
    worst_tokens: int
    """Prompt tokens in the longest mixed step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPrompts:
    """Waiting requests, and the long prompt in prefill that they wait behind."""

    waiting: int
    waiting_p50: int
    """Median prompt length of the waiting requests, in tokens."""
    longest: int
    """Length of the longest prompt in prefill, in tokens."""
    longest_key: str


@dataclass(frozen=True, slots=True)
class FlagValue:
    """A value that a flag should have."""

    value: int | str
    why: str
    """What was seen that says so, and what binds then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """Facts about the whole session rather than one engine."""

    gpus: tuple[GpuState, ...] = ()
    hosts: tuple[HostState, ...] = ()
    client_why: str | None = None
    """Why the load generator is too slow; None if it keeps up or none runs."""
    dropped: int = 0
    """Readings lost in the last minute."""
    late_s: float = 0.0
    """How late this tick of inferwatch is."""
    limits: Limits | None = None
    slo: SloState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What diagnoses judge: of the last ten seconds, unless a field says otherwise."""

    now_ns: int
    up_s: float = 0.0
    """Seconds since watching began or the engine restarted."""
    covered_s: float = 0.0
    """How many of the last ten seconds an engine was watched."""
    minute_s: float = 0.0
    """How many seconds of the last minute an engine was watched."""
    silent_s: float | None = None
    """Seconds since the latest message of any engine process; None before the first."""
    ranks: int = 1
    infos: tuple[EngineInfo, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    startup: Startup | None = None
    """How the latest start went, where a probe tells."""
    live_limits: tuple[LiveLimits, ...] = ()
    """Live limits of the engines whose limits can be changed while they run."""
    verdict: Verdict | None = None
    running: int | None = None
    """Running requests at this moment; waiting ones and KV usage are of now, too."""
    waiting: int | None = None
    oldest_wait_s: float | None = None
    waited: int = 0
    """Most requests that waited at once at one rank in the last minute."""
    kv_usage: float | None = None
    kv_blocks: int | None = None
    block_tokens: int | None = None
    steps: CounterTotals = NOTHING
    steps_minute: CounterTotals = NOTHING
    drafts: CounterTotals = NOTHING
    """Steps of the last minute that verified drafts; without any, nothing speculates.
    """
    speculates: bool = False
    """Whether it decodes speculatively, by its settings, steps or counters."""
    deferrals: Mapping[str, int] = field(default_factory=dict)
    """Time of steps by why requests were deferred, in nanoseconds."""
    outcomes: CounterTotals = NOTHING
    """Requests by outcome in the last minute; prompt lengths are of it, too."""
    refused: tuple[RefusedGroup, ...] = ()
    """Refused requests of the last minute by kind, most first."""
    prompts: Quantiles = field(default_factory=Quantiles)
    ttft_n: int = 0
    """First tokens whose latency is attributed to causes."""
    ttft_ns: int = 0
    """Sum of the TTFTs of these first tokens."""
    spent_ns: Mapping[Cause, int] = field(default_factory=dict)
    """Share of ``ttft_ns`` due to each cause, in nanoseconds."""
    slowest: Mapping[Cause, str] = field(default_factory=dict)
    """Key of the request that lost most time to each cause."""
    slow: SlowRequests | None = None
    """The slowest requests of the last minute, as the table of causes shows them."""
    mixed: MixedSteps | None = None
    behind: WaitingPrompts | None = None
    noisy: NoisyTenant | None = None
    """The tenant that made others queue most in the last minute."""
    starved: StarvedPriority | None = None
    """The priority that starves at this moment."""
    compilations: Sequence[Note] = ()
    """What engines compiled while they served in the last minute, newest last."""
    stalls: Sequence[Stall] = ()
    """Stalls in the last minute, newest first."""
    stacks: StalledStacks | None = None
    """Of the stall that goes on; None where none were taken."""
    waste_share: float | None = None
    """Empty room in last blocks / room in used blocks, 0-1; only of a nearly full
    cache.
    """
    hit_rate: float | None = None
    """Prefix cache hit rate over the last minute, 0-1."""
    hit_rate_ever: float | None = None
    """Prefix cache hit rate over the session, 0-1."""
    reachable_hit_rate: float | None = None
    """Hit rate that a cache eight times as large would reach, 0-1."""
    prefix_misses: Callable[[], PrefixMisses | None] = lambda: None
    """Why the prompts of the last minute missed the prefix cache; costs milliseconds.
    """
    slow_start: Quantiles | None = None
    """Step durations in the engine's first minute; None after it."""
    longest_s: float | None = None
    """Longest recent step; None after the engine's first minute."""
    lost_ns: tuple[int, ...] = ()
    """When engines were lost in the last ten minutes."""
    lost_why: str = ""
    has_log: bool = False
    """Whether the log of an engine lies here; not that of attached servers."""
    counted: CountedRequests | None = None
    """What servers without a probe count; None while none refuses or defers."""
    around: Around = field(default_factory=Around)
    decode_steps: Callable[[int, int], Mapping[int, float]] = lambda *_: {}
    """Returns the median decode step between two moments, by batch size."""
    held_batch: Callable[[], int | None] = lambda: None
    """Returns the largest batch of the last minute in a step without preemptions."""

    @property
    def source(self) -> str:
        """The source of the engine; of the first one where there are several."""
        return self.infos[0].source if self.infos else ""

    @property
    def limits(self) -> Limits | None:
        return self.around.limits

    @property
    def slow_shares(self) -> Sequence[tuple[Cause, float]]:
        """Each cause of the slowest requests' TTFT, with its share of it, 0-1."""
        groups = self.slow.groups if self.slow is not None else ()
        return [(each.cause, each.share) for each in groups]

    @property
    def works(self) -> bool:
        return bool(self.running or self.waiting)

    def bound_share(self, *bounds: BoundBy) -> float:
        """Return the share of the last ten seconds in which these limits bound, 0-1."""
        whole_s = self.covered_s * self.ranks
        spent_ns = sum(self.steps.sums.get(f"{each}_ns", 0) for each in bounds)
        return min(spent_ns / NS_PER_S / whole_s, 1.0) if whole_s else 0.0

    def busy_share(self) -> float:
        """Return the share of the last ten seconds in which a step ran, 0-1."""
        return self.bound_share(*BoundBy)

    def ttft_share(self, *causes: Cause) -> float | None:
        """Return these causes' share of TTFT, 0-1; None without first tokens."""
        if not self.ttft_ns:
            return None
        return sum(self.spent_ns.get(each, 0) for each in causes) / self.ttft_ns

    def ttft_s(self, *causes: Cause) -> float | None:
        """Return the mean TTFT due to these causes; None without first tokens."""
        if not self.ttft_n:
            return None
        spent_ns = sum(self.spent_ns.get(each, 0) for each in causes)
        return spent_ns / self.ttft_n / NS_PER_S

    def share(self, part: str, of: str) -> float | None:
        """Return the ratio of two step counters by name; None where the second is 0."""
        whole = self.steps.sums.get(of, 0)
        return self.steps.sums.get(part, 0) / whole if whole else None

    @property
    def step_s(self) -> float | None:
        spent_ns = sum(self.steps.sums.get(f"{each}_ns", 0) for each in BoundBy)
        return spent_ns / NS_PER_S / self.steps.rows if self.steps.rows else None

    @property
    def gap_share(self) -> float | None:
        """Share of the time with work in which no step ran, 0-1; None without work."""
        gap_ns = self.steps.sums.get("gap_ns", 0)
        spent_ns = sum(self.steps.sums.get(f"{each}_ns", 0) for each in BoundBy)
        return gap_ns / (gap_ns + spent_ns) if gap_ns + spent_ns else None

    @property
    def host(self) -> HostState | None:
        """The host that runs the engine's process; None where it is not known."""
        pids = {info.pid for info in self.infos}
        for host in self.around.hosts:
            if pids & {each.pid for each in host.processes}:
                return host
        return None

    @property
    def gpus(self) -> tuple[GpuState, ...]:
        """The engine's GPUs; all GPUs where it does not report its own."""
        uuids = {uuid for info in self.infos for uuid in info.gpus}
        there = self.around.gpus
        return tuple(g for g in there if g.info.uuid in uuids) if uuids else there

    @property
    def on_cpu(self) -> bool:
        """Whether the engine is known to compute on the CPU."""
        return bool(self.infos) and all(each.device == CPU for each in self.infos)

    def setting(self, name: str) -> Setting:
        """Return an engine setting; None if unknown, or if engines differ in it."""
        if name in self.settings:
            return self.settings[name]
        place = INFO_FIELDS.get(name)
        if place is None or not self.infos:
            return None
        values = {getattr(info, place) for info in self.infos}
        value: Setting = values.pop() if len(values) == 1 else None
        return value

    def live(self, name: str) -> tuple[int, int] | None:
        """Return a live limit as (present value, value at start).

        None where the limit cannot be changed live on every engine.
        """
        limits = self.live_limits
        if name not in LIMITS or not limits or len(limits) < len(self.infos):
            return None
        if any(name in each.fixed for each in limits):
            return None
        start = max(getattr(each, f"start_{name}") for each in limits)
        return min(getattr(each, name) for each in limits), start

    def limit(self, name: str) -> int | None:
        """Return a limit as it is now, be it set live or at start; None if unknown."""
        now, _ = self.live(name) or (self.setting(name), None)
        return now if isinstance(now, int) else None

    def limit_text(self, name: str) -> str:
        """Return a limit as text; empty where it is unknown."""
        now, start = self.live(name) or (0, 0)
        if now < start:
            return f"{now:,} (a live limit, {start:,} at start)"
        limit = self.setting(name)
        return f"{limit:,}" if isinstance(limit, int) else ""

    def flag(
        self,
        name: str,
        text: str,
        expected: str,
        *effort: Effort,
        also: str = "",
        lower: bool = False,
        value: FlagValue | None = None,
    ) -> Knob:
        """Return a knob for a vLLM flag, with its present value.

        Set ``lower`` where lowering helps. A limit that can be changed live needs no
        restart as long as it stays at or below its value at start.
        """
        live = self.live(name)
        if value is not None:
            number, most = value.value, live[1] if live and live[0] < live[1] else None
            if most is not None and isinstance(number, int):
                number = min(number, most)
            also, text = f" {number}", f"{text} ({value.why})"
        present = setting_text(self.setting(name))
        if live is not None and live[0] < live[1]:
            present = f"{live[0]:,}, a live limit of ours; {live[1]:,} at start"
        if live is not None and (lower or live[0] < live[1]):
            text, effort = f"{text}: k turns it live", (Effort.NOW,)
        return Knob(
            text=text,
            flag="--" + name.replace("_", "-") + also,
            present=present,
            expected=expected,
            effort=effort or (Effort.RESTART,),
        )


def setting_text(value: Setting) -> str | None:
    """Return a setting as text for operators; None where it is unknown."""
    match value:
        case None:
            return None
        case bool():
            return "on" if value else "off"
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def read_log(facts: Facts, expected: str, *, end: bool = False) -> Knob:
    """Return the advice to read the engine's log, by its key where it lies here."""
    part = "the end of its log" if end else "its log"
    where = "(l)" if facts.has_log else "where it runs"
    return now(f"Read {part} {where}", expected)


def now(text: str, expected: str) -> Knob:
    """Return a knob that needs no restart."""
    return Knob(text=text, expected=expected, effort=(Effort.NOW,))
