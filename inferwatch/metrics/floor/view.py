"""What screens know of limits: a frozen picture over the window."""

from dataclasses import dataclass, field
from enum import StrEnum

from inferwatch.limits.shape import ModelShape


class Bound(StrEnum):
    """What the floor of a step is made of."""

    MEMORY = "memory"
    COMPUTE = "compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What the devices of an engine can do together, and who says so."""

    bytes_per_s: float | None = None
    flops: float | None = None
    """At the dtype that the model computes in."""
    dtype: str | None = None
    device: str | None = None
    devices: int = 1
    read_from: str | None = None
    """data sheet, clock and bus width, measured here, or you."""

    @property
    def ridge(self) -> float | None:
        """FLOP a byte from which on a step is bound by compute."""
        if not self.bytes_per_s or self.flops is None:
            return None
        return self.flops / self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """Where some steps of the window stand under the roofline; means over them."""

    steps: int
    intensity: float
    """FLOP a byte: sums over sums."""
    flops: float
    """FLOP/s achieved: FLOP / time of these steps."""
    bytes_per_s: float
    """Derived, not measured."""
    bound: Bound | None = None
    """By which of both the larger part of their floor is bound."""
    floor_s: float | None = None
    """Mean floor of a step."""
    step_s: float
    """Mean time of a step."""
    mbu: float | None = None
    """derived: bytes_per_s / peak, 0-1."""
    mfu: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSplit:
    """Where the window went, shares of the time with work, sum 1; unknown is None."""

    memory_floor: float | None = None
    """The part of the steps' floors that memory binds."""
    compute_floor: float | None = None
    inefficiency: float | None = None
    """Time of steps beyond their floors."""
    host_gap: float | None = None
    """Between two steps, with work in the engine."""
    idle_share: float | None = None
    """Of the window, that without any work; beside the sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """A part of a device's memory."""

    name: str
    """weights, KV cache, activations, graphs, workspace, other, free."""
    n_bytes: int
    read_from: str
    is_estimate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """The budget of one worker's device."""

    rank: int
    worker: int
    gpu: str | None = None
    total_bytes: int | None = None
    allowed_bytes: int | None = None
    parts: tuple[MemoryPart, ...] = ()
    load_s: float | None = None
    """What loading its weights took."""
    load_floor_s: float | None = None
    """What its weights need over the GPU's PCIe, at the least; not its storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What another format would free, and whether that is what binds."""

    name: str
    """FP8 weights, 4-bit weights, FP8 KV cache."""
    freed_bytes: int
    more_requests: float | None = None
    """Of the present mix that would fit besides."""
    floor_s: float | None = None
    """Mean floor of a decode step with it."""
    helps: bool | None = None
    """What it eases is what binds now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Impossible:
    """Steps that were faster than their floor: a mistake somewhere."""

    steps: int
    worst_ratio: float
    """Floor / time of the worst, above 1."""
    t_ns: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What hardware allows and what steps reach, over the window."""

    peak: Peak = field(default_factory=Peak)
    shape: ModelShape | None = None
    parameters: int | None = None
    active_parameters: int | None = None
    weight_bytes: int | None = None
    kv_bytes_per_token: int | None = None
    decode: OperatingPoint | None = None
    """Steps that only decode."""
    prefill: OperatingPoint | None = None
    """Steps with prompt tokens."""
    measured_mbu: float | None = None
    """gpu: HBM bandwidth by GPM or DCGM over the window, 0-1."""
    measured_mfu: float | None = None
    """gpu: tensor cores active, 0-1: an upper bound of MFU."""
    split: TimeSplit | None = None
    tpot_floor_s: float | None = None
    """Mean floor of the steps that decode."""
    memory: tuple[DeviceMemory, ...] = ()
    max_requests: float | None = None
    """Of the present mix that fit into the KV cache together: B_max."""
    tokens_per_request: float | None = None
    """Context of the present mix, mean."""
    savings: tuple[Saving, ...] = ()
    impossible: Impossible | None = None
    missing: tuple[str, ...] = ()
    """Why not more is known, each with what would tell, in a sentence."""
