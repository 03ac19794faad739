"""What a profile comes to: the steps of each rank by class of kernel or operator.

Durations are nanoseconds, moments are session time. On a GPU the time is that of
kernels, in the order in which the GPU executed them; on a CPU it is that of operators,
each without those it called.
"""

from enum import StrEnum

import msgspec

VERSION = 1
"""Of the format; a report of another version is made again from its traces."""


class KernelClass(StrEnum):
    """What a kernel or operator is for."""

    ATTENTION = "attention"
    GEMM = "GEMM"
    MOE = "MoE"
    NORM = "norm, activation"
    SAMPLING = "sampling"
    COMMUNICATION = "communication"
    COPY = "copy"
    KV_WRITE = "KV write"
    OTHER = "other"


class ExecutedOn(StrEnum):
    """Where what was timed was executed."""

    CPU = "CPU"
    GPU = "GPU"


class StepPhase(StrEnum):
    """Kinds of steps that are told apart."""

    DECODE = "decode"
    """Every request of the step decodes."""
    PREFILL = "prefill"
    """At least one request is prefilled; others may decode beside it."""
    TRACED = "traced"
    """Of which a trace tells neither requests nor tokens: another program's steps, or
    the whole of a trace without any. ``RankProfile.steps`` has none of them."""


class ProfiledStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step: its time is that of its classes and ``host_ns``, exactly."""

    index: int | None = None
    """The engine's index of the step; None if the trace alone tells of it."""
    phase: StepPhase
    begin_ns: int
    duration_ns: int
    prefill_tokens: int = 0
    decode_tokens: int = 0
    requests: int = 0
    times_ns: dict[KernelClass, int]
    host_ns: int
    """In which nothing of the step was executed: Python, waiting, launching. Of a GPU,
    its idle time."""
    launches: int = 0
    """Kernels launched one by one, or operators called by Python."""
    graph_launches: int = 0
    """CUDA graphs launched, each with many kernels."""
    launching_ns: int = 0
    """Time in which the GPU was idle and the host in its runtime or in an operator."""


class ClassTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A class in the mean step of a phase."""

    kernel_class: KernelClass
    time_ns: float
    """In a mean step."""
    count: float
    """Kernels or operators in a mean step."""
    floor_ns: float | None = None
    """Least time the hardware allows for its work; None where none is known."""

    @property
    def excess_ns(self) -> float:
        """Time above the floor; all of it where no floor is known."""
        return max(self.time_ns - (self.floor_ns or 0), 0)


class PhaseTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The mean step of a phase."""

    phase: StepPhase
    steps: int
    duration_ns: float
    host_ns: float
    classes: list[ClassTime]
    """The largest first; classes without any time are left out."""
    is_launch_bound: bool | None = None
    """Whether the GPU mostly waits for launches; None where that cannot be told."""
    farthest: KernelClass | None = None
    """The class with most time above its floor; None if the host has more."""


class KernelTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All executions of one kernel or operator in a rank's profiled steps."""

    name: str
    kernel_class: KernelClass
    count: int
    time_ns: int
    shortest_ns: int
    longest_ns: int
    decode_ns: int = 0
    """Of ``time_ns``, that in steps that only decode."""


class Occurrence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One execution of a kernel or operator."""

    name: str
    step: int | None = None
    """Position in ``RankProfile.steps``; None between steps."""
    begin_ns: int
    duration_ns: int


class Gap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A time in which nothing was executed, and what the host did meanwhile."""

    step: int | None = None
    """Position in ``RankProfile.steps``."""
    begin_ns: int
    duration_ns: int
    doing: str
    """The host's operator, runtime call or Python frame; ``not recorded`` if none."""


class RankProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the trace of one worker tells."""

    rank: int | None = None
    """Of the worker, as its trace says; None if it does not."""
    engine_rank: int | None = None
    """Data-parallel rank, where the engine has several."""
    device: ExecutedOn
    file: str
    """Name of the trace."""
    trace_bytes: int
    """Uncompressed."""
    events: int
    skipped: int = 0
    """Events that could not be read."""
    steps: list[ProfiledStep]
    phases: list[PhaseTimes]
    kernels: list[KernelTime]
    """The largest first."""
    other_kernels: int = 0
    """Further ones that are in the classes, but not listed."""
    occurrences: list[Occurrence]
    """The longest of each listed kernel."""
    gaps: list[Gap]
    """The longest."""
    alignment_ns: int | None = None
    """How far annotated steps stick out of the engine's steps at most; None if no step
    was found in both."""

    @property
    def label(self) -> str:
        """What it is called beside others."""
        name = "rank ?" if self.rank is None else f"rank {self.rank}"
        return name if self.engine_rank is None else f"dp{self.engine_rank} {name}"

    @property
    def mean_step_ns(self) -> float:
        """Mean time of a step, of whatever phase; 0 without any."""
        steps = sum(each.steps for each in self.phases)
        total_ns = sum(each.duration_ns * each.steps for each in self.phases)
        return total_ns / steps if steps else 0.0


class ProfileReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A whole profile: one part per worker, by rank."""

    version: int = VERSION
    ranks: list[RankProfile]
    problems: list[str] = []
    """What could not be read or joined, as text for users."""
    is_partial: bool = False
    """Whether reading a trace failed that may be read another time: not to be kept."""

    @property
    def slowest(self) -> RankProfile | None:
        """The rank with the longest steps, for which others wait; None without any."""
        return max(self.ranks, key=lambda each: each.mean_step_ns, default=None)


class StepSpan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step as the engine's probe told it, to which a trace is joined."""

    index: int
    rank: int = 0
    """Data-parallel rank."""
    start_ns: int
    end_ns: int
    duration_ns: int
    prefill_tokens: int
    decode_tokens: int
    requests: int
    decode_only: bool


class ClassCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of a rank's steps as constants, from which floors of classes follow.

    As in ``metrics.floor.rank.StepNeeds``, with experts apart from other weights.
    """

    linear_bytes: float
    """Weights that each step reads, without routed experts."""
    expert_bytes: float
    untouched: float
    """Probability that a token does not use a given expert."""
    kv_token_bytes: float
    """KV bytes per token of context, over all layers with full attention."""
    linear_flops: float
    """FLOP per token, without routed experts and the head."""
    expert_flops: float
    """FLOP per token in routed experts."""
    sequence_flops: float
    """FLOP of the head per request."""
    pair_flops: float
    """FLOP per pair of a query and a key."""
    ns_per_byte: float
    """0 where the peak is unknown, so it bounds nothing; likewise ``ns_per_flop``."""
    ns_per_flop: float


class ReportJob(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True
):
    """What the process that reads traces is asked for."""

    files: list[str]
    """Traces of one profile, by absolute path."""
    engine_ranks: dict[str, int] = {}
    """Data-parallel rank by trace, where the engine has several."""
    realtime_offset_ns: int | None = None
    """What to take from the wall clock for session time; None if not known."""
    steps: list[StepSpan] = []
    costs: ClassCosts | None = None
    """None where the model or the hardware is not known."""
