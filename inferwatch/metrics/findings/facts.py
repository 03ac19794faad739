"""What diagnoses look at: one engine, or several together, at one tick."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import BoundBy, EngineInfo, LiveLimits
from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.findings.finding import Effort, Knob
from inferwatch.metrics.floor.view import Limits
from inferwatch.metrics.hardware.hosts import HostState
from inferwatch.metrics.hardware.view import GpuState
from inferwatch.metrics.objectives.view import SloState
from inferwatch.metrics.series.samples import CounterTotals
from inferwatch.metrics.series.window import Quantiles
from inferwatch.metrics.steps.efficiency import Stall
from inferwatch.metrics.steps.health import Verdict
from inferwatch.metrics.steps.live_limits import LABELS

Setting = str | int | float | bool | None
NOTHING = CounterTotals(0, {}, {})
TOLD_BY_INFO = {
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
    "enable_prefix_caching": "prefix_caching",
    "async_scheduling": "async_scheduling",
    "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel",
    "data_parallel_size": "data_parallel",
}
"""Settings that an engine tells with what it is, by the names of its flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSteps:
    """What steps that computed prompts, too, did to requests in decode; ten seconds."""

    steps: int
    """With prompts and with tokens out."""
    usual_s: float
    """Median of steps that only decode."""
    mean_s: float
    """Of the mixed ones, as tokens met them."""
    delay_share: float
    """Of all the time that tokens took, what mixed steps took beyond the usual, 0-1."""
    worst_ns: int
    """When the longest of them ended."""
    worst_s: float
    worst_tokens: int
    """Of prompts, in the longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPrompts:
    """Who waits in the queue or for the rest of a prompt, and behind whom."""

    waiting: int
    waiting_p50: int
    """Median prompt of those who wait, in tokens."""
    longest: int
    """The longest prompt that is being computed."""
    longest_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What is of the whole session, and not of one engine."""

    gpus: tuple[GpuState, ...] = ()
    hosts: tuple[HostState, ...] = ()
    client_why: str | None = None
    """Why the load generator is too slow; None while it is not, or there is none."""
    dropped: int = 0
    """Readings that never came, in the last minute."""
    limits: Limits | None = None
    slo: SloState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Numbers over the last ten seconds, unless they say minute, or now."""

    now_ns: int
    up_s: float = 0.0
    """Since the engine is watched, or began anew."""
    covered_s: float = 0.0
    """Of the ten seconds, in which there was an engine to watch."""
    minute_s: float = 0.0
    """Likewise of the last minute."""
    silent_s: float | None = None
    """Since any process of the engine was heard; None where none ever was."""
    ranks: int = 1
    infos: tuple[EngineInfo, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    live_limits: tuple[LiveLimits, ...] = ()
    """Of engines whose limits may be changed while they run."""
    verdict: Verdict | None = None
    running: int | None = None
    """Now; likewise the next."""
    waiting: int | None = None
    oldest_wait_s: float | None = None
    kv_usage: float | None = None
    kv_blocks: int | None = None
    block_tokens: int | None = None
    steps: CounterTotals = NOTHING
    steps_minute: CounterTotals = NOTHING
    outcomes: CounterTotals = NOTHING
    """Of the last minute; likewise the next."""
    prompts: Quantiles = field(default_factory=Quantiles)
    ttft_n: int = 0
    """First tokens whose time is explained."""
    ttft_ns: int = 0
    """The TTFTs of all of them added up."""
    spent_ns: Mapping[Cause, int] = field(default_factory=dict)
    """What of that each cause took."""
    slowest: Mapping[Cause, str] = field(default_factory=dict)
    """The request that a cause took most from."""
    mixed: MixedSteps | None = None
    behind: WaitingPrompts | None = None
    stalls: Sequence[Stall] = ()
    """Of the last minute, newest first."""
    waste_share: float | None = None
    """Room in last blocks / room in used ones, 0-1; asked only of a full cache."""
    hit_rate: float | None = None
    """Of the prefix cache over the last minute, 0-1."""
    hit_rate_ever: float | None = None
    """Over the session."""
    reachable_hit_rate: float | None = None
    """What a cache without limit would have hit."""
    slow_start: Quantiles | None = None
    """Of the steps of the first minute, while that goes on."""
    longest_s: float | None = None
    """Step of late, likewise."""
    lost_ns: tuple[int, ...] = ()
    """When engines were lost, in the last ten minutes."""
    lost_why: str = ""
    around: Around = field(default_factory=Around)

    @property
    def source(self) -> str:
        """The engine's; of several engines, that of the first."""
        return self.infos[0].source if self.infos else ""

    @property
    def limits(self) -> Limits | None:
        """What the hardware allows, where it is known."""
        return self.around.limits

    @property
    def works(self) -> bool:
        return bool(self.running or self.waiting)

    def bound_share(self, *bounds: BoundBy) -> float:
        """Of the ten seconds, that in which these held the head of the queue back."""
        whole_s = self.covered_s * self.ranks
        spent_ns = sum(self.steps.sums.get(f"{each}_ns", 0) for each in bounds)
        return min(spent_ns / NS_PER_S / whole_s, 1.0) if whole_s else 0.0

    def busy_share(self) -> float:
        """Share of the ten seconds in which steps were under way."""
        return self.bound_share(*BoundBy)

    def ttft_share(self, *causes: Cause) -> float | None:
        """Of the time to first tokens, what these took; None where nothing is known."""
        if not self.ttft_ns:
            return None
        return sum(self.spent_ns.get(each, 0) for each in causes) / self.ttft_ns

    def ttft_s(self, *causes: Cause) -> float | None:
        """What these took of a TTFT, mean."""
        if not self.ttft_n:
            return None
        spent_ns = sum(self.spent_ns.get(each, 0) for each in causes)
        return spent_ns / self.ttft_n / NS_PER_S

    def share(self, part: str, of: str) -> float | None:
        """One count of the window's steps as a share of another."""
        whole = self.steps.sums.get(of, 0)
        return self.steps.sums.get(part, 0) / whole if whole else None

    @property
    def step_s(self) -> float | None:
        spent_ns = sum(self.steps.sums.get(f"{each}_ns", 0) for each in BoundBy)
        return spent_ns / NS_PER_S / self.steps.rows if self.steps.rows else None

    @property
    def gap_share(self) -> float | None:
        """Share of the time with work in which no step was under way."""
        gap_ns = self.steps.sums.get("gap_ns", 0)
        spent_ns = sum(self.steps.sums.get(f"{each}_ns", 0) for each in BoundBy)
        return gap_ns / (gap_ns + spent_ns) if gap_ns + spent_ns else None

    @property
    def host(self) -> HostState | None:
        """That on which the engine runs: the one that has its process; else ours."""
        pids = {info.pid for info in self.infos}
        for host in self.around.hosts:
            if pids & {each.pid for each in host.processes}:
                return host
        return None

    @property
    def gpus(self) -> tuple[GpuState, ...]:
        """The GPUs on which it runs; all there are where it does not tell."""
        told = {uuid for info in self.infos for uuid in info.gpus}
        there = self.around.gpus
        return tuple(g for g in there if g.info.uuid in told) if told else there

    def told(self, name: str) -> Setting:
        """What the engine is set to, as it told; None where it did not."""
        if name in self.settings:
            return self.settings[name]
        place = TOLD_BY_INFO.get(name)
        if place is None or not self.infos:
            return None
        told = {getattr(info, place) for info in self.infos}
        found: Setting = told.pop() if len(told) == 1 else None
        return found

    def live(self, name: str) -> tuple[int, int] | None:
        """A limit that may be changed while they run: now, and as they were started.

        None where it may not, or not on all of them.
        """
        told = self.live_limits
        if name not in LABELS or not told or len(told) < len(self.infos):
            return None
        if any(name in each.fixed for each in told):
            return None
        start = max(getattr(each, f"start_{name}") for each in told)
        return min(getattr(each, name) for each in told), start

    def limit_text(self, name: str) -> str:
        """A limit in a sentence, empty where it was not told."""
        now, start = self.live(name) or (0, 0)
        if now < start:
            return f"{now:,} (a live limit, {start:,} at start)"
        limit = self.told(name)
        return f"{limit:,}" if isinstance(limit, int) else ""

    def flag(
        self,
        name: str,
        text: str,
        expected: str,
        *effort: Effort,
        also: str = "",
        lower: bool = False,
    ) -> Knob:
        """A knob that is a flag of vLLM, with what it is set to now.

        ``lower``: down is the way to turn it. What may be turned while the engine runs
        needs no restart, as long as that is not above what it was started with.
        """
        live = self.live(name)
        present = as_told(self.told(name))
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


def as_told(value: Setting) -> str | None:
    """As an operator would read it."""
    match value:
        case None:
            return None
        case bool():
            return "on" if value else "off"
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def now(text: str, expected: str) -> Knob:
    """What can be done without a restart."""
    return Knob(text=text, expected=expected, effort=(Effort.NOW,))
