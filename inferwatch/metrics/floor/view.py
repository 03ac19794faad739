"""The limits of hardware and steps as screens show them."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from collectors.contract.readings import Vantage
from inferwatch.limits.shape import ModelShape
from inferwatch.metrics.floor.curve import FloorCurve
from inferwatch.metrics.number import NOW, Better, Number, Unit, piece

LEFT_OUT = (
    "all-reduce and other communication, activations and sampling are left out, so "
    "that it is a floor"
)


class Bound(StrEnum):
    """What bounds a step: memory or compute sets its floor; overhead is all else."""

    MEMORY = "memory"
    COMPUTE = "compute"
    OVERHEAD = "overhead"
    """Most of the step is beyond its floor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePeak:
    """Combined peak of an engine's devices, and where the numbers come from."""

    bytes_per_s: float | None = None
    flops: float | None = None
    """FLOP/s at the dtype in which the model computes."""
    dtype: str | None = None
    device: str | None = None
    devices: int = 1
    read_from: str | None = None
    """One of: data sheet, clock and bus width, measured here, you."""

    @property
    def ridge(self) -> float | None:
        """FLOP per byte from which on a step is compute-bound; None where unknown."""
        if not self.bytes_per_s or self.flops is None:
            return None
        return self.flops / self.bytes_per_s


@piece("operating_point", Vantage.ENGINE)
class OperatingPoint:
    """A point of the roofline: means over some steps of the window."""

    steps: Annotated[
        int,
        Number("steps", "Steps", "How many steps of this kind ended.", unit=Unit.STEPS),
    ]
    intensity: Annotated[
        float,
        Number(
            "FLOP/B",
            "Arithmetic intensity",
            "FLOP for each byte moved: below the ridge memory binds, above it compute.",
        ),
    ]
    """Sum of FLOP / sum of bytes."""
    flops: Annotated[
        float,
        Number(
            "FLOP/s",
            "FLOP/s achieved",
            "What the model had to compute for these batches, over the time of these "
            "steps; derived, not measured.",
            unit=Unit.PER_SECOND,
            better=Better.HIGHER,
        ),
    ]
    bytes_per_s: Annotated[
        float,
        Number(
            "GB/s",
            "Bytes a second, derived",
            "Weights and KV cache that these batches had to read, over the time of "
            "these steps; derived, not measured.",
            unit=Unit.GIGABYTES_PER_SECOND,
            better=Better.HIGHER,
        ),
    ]
    bound: Annotated[
        Bound | None,
        Number(
            "bound by",
            "Bound by",
            "Which of memory and compute makes the larger part of their floors; "
            "overhead where more than half of the time is beyond the floors: kernels, "
            "launches, communication, sampling and the host. Then a faster memory or "
            "more FLOP/s help little, larger batches and CUDA graphs do.",
        ),
    ] = None
    floor_s: Annotated[
        float | None,
        Number(
            "floor",
            "Floor of a step",
            f"The least time for such a step, mean; {LEFT_OUT}.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = None
    step_s: Annotated[
        float,
        Number(
            "step",
            "Time of a step",
            "What such a step took, mean, the gap before it left out.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ]
    mbu: Annotated[
        float | None,
        Number(
            "MBU",
            "Memory bandwidth used",
            "Bytes a second of these steps as a share of the peak; derived.",
            unit=Unit.SHARE,
            better=Better.HIGHER,
        ),
    ] = None
    mfu: Annotated[
        float | None,
        Number(
            "MFU",
            "FLOP used",
            "FLOP/s of these steps as a share of the peak; derived.",
            unit=Unit.SHARE,
            better=Better.HIGHER,
        ),
    ] = None


@piece("time_split", Vantage.ENGINE)
class TimeSplit:
    """Where the time with work went, as shares that sum to 1; None where unknown."""

    memory_floor: Annotated[
        float | None,
        Number(
            "memory",
            "Bound by memory",
            "Share of the time with work that steps bound by memory need at the least.",
            unit=Unit.SHARE,
        ),
    ] = None
    compute_floor: Annotated[
        float | None,
        Number(
            "compute",
            "Bound by compute",
            "Share of the time with work that steps bound by compute need at the "
            "least.",
            unit=Unit.SHARE,
        ),
    ] = None
    inefficiency: Annotated[
        float | None,
        Number(
            "overhead",
            "Overhead",
            "Share of the time with work in which a step was under way for longer "
            "than its floor: kernels, launches, communication, sampling, and the host "
            "where it is within a step.",
            unit=Unit.SHARE,
            better=Better.LOWER,
        ),
    ] = None
    host_gap: Annotated[
        float | None,
        Number(
            "host gap",
            "Gap between steps",
            "Share of the time with work in which no step was under way: the host "
            "prepared or sent something.",
            unit=Unit.SHARE,
            better=Better.LOWER,
        ),
    ] = None
    idle_share: Annotated[
        float | None,
        Number(
            "idle",
            "Without work",
            "Share of the window without any work, mean over ranks; no part of the "
            "sum.",
            unit=Unit.SHARE,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """A part of a device's memory."""

    name: str
    """One of: weights, KV cache, activations, graphs, workspace, other, free."""
    n_bytes: int
    read_from: str
    is_estimate: bool = False


@piece("device_memory", Vantage.ENGINE, span=NOW)
class DeviceMemory:
    """The memory budget of one worker's device."""

    rank: Annotated[
        int, Number("rank", "Rank", "The data-parallel rank of the worker.")
    ]
    worker: Annotated[
        int,
        Number(
            "worker",
            "Worker",
            "Its place among the tensor- and pipeline-parallel workers of the rank.",
        ),
    ]
    gpu: Annotated[
        str | None, Number("GPU", "GPU of a worker", "The UUID of its device.")
    ] = None
    total_bytes: Annotated[
        int | None,
        Number(
            "total", "Memory of the device", "What the device has.", unit=Unit.BYTES
        ),
    ] = None
    allowed_bytes: Annotated[
        int | None,
        Number(
            "allowed",
            "Memory allowed",
            "What the engine may use of it: gpu_memory_utilization.",
            unit=Unit.BYTES,
        ),
    ] = None
    parts: Annotated[
        tuple[MemoryPart, ...],
        Number(
            "parts",
            "Parts of the memory",
            "Weights, KV cache, activations, graphs and workspace as the engine "
            "profiled them, each with where it was read; other is what the driver "
            "counts besides, other processes included, and free what it has left.",
            unit=Unit.BYTES,
        ),
    ] = ()
    load_s: Annotated[
        float | None,
        Number(
            "loaded in",
            "Loading of the weights",
            "What loading its weights took the engine when it started.",
            unit=Unit.SECONDS,
        ),
    ] = None
    load_floor_s: Annotated[
        float | None,
        Number(
            "load floor",
            "Floor of loading",
            "What the weights need over the GPU's PCIe at the least. What the storage "
            "allows is not known here: inferwatch plan --storage-gbps reckons with it.",
            unit=Unit.SECONDS,
        ),
    ] = None


@piece("saving", Vantage.ENGINE)
class Saving:
    """What another format would free, and whether memory is what limits the engine."""

    name: Annotated[
        str,
        Number(
            "format",
            "Another format",
            "What would be kept in fewer bits; it may change the output.",
        ),
    ]
    """One of: FP8 weights, 4-bit weights, FP8 KV cache."""
    freed_bytes: Annotated[
        int,
        Number(
            "frees",
            "Memory freed",
            "How much less the same weights, or as many cached tokens, take.",
            unit=Unit.BYTES,
            better=Better.HIGHER,
        ),
    ]
    more_requests: Annotated[
        float | None,
        Number(
            "more",
            "More requests",
            "How many more requests of the present mix would fit with it.",
            unit=Unit.REQUESTS,
            better=Better.HIGHER,
        ),
    ] = None
    floor_s: Annotated[
        float | None,
        Number(
            "floor then",
            "Floor with it",
            "Mean floor of a step that decodes, with it.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = None
    helps: Annotated[
        bool | None,
        Number(
            "helps",
            "Whether it helps",
            "It eases what binds: requests wait for KV blocks or were preempted, or "
            "decode uses over half of the bandwidth and would have a floor shorter by "
            "over 5%; judged over five minutes or the window, whichever is longer.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Impossible:
    """Steps faster than their floor, which means that some number is wrong."""

    steps: int
    worst_ratio: float
    """Floor / duration of the worst step, above 1."""
    t_ns: int
    step: int


@piece("limits", Vantage.ENGINE)
class Limits:
    """What the hardware allows and what steps reach, over the window."""

    peak: Annotated[
        EnginePeak,
        Number(
            "peak",
            "Peaks of the hardware",
            "What the devices of one rank can do together: bytes a second of their "
            "memory and FLOP/s at the dtype the model computes in; of GPUs by data "
            "sheet, clock and bus width or --peak-gbps and --peak-tflops, of a CPU as "
            "doctor --measure-peak measured it.",
            span=NOW,
        ),
    ] = field(default_factory=EnginePeak)
    shape: Annotated[
        ModelShape | None,
        Number(
            "shape",
            "Shape of the model",
            "Layers, heads, sizes and bits, as the engine's own configuration says.",
            span=NOW,
        ),
    ] = None
    parameters: Annotated[
        int | None,
        Number(
            "params",
            "Parameters",
            "How many numbers the model was trained to.",
            span=NOW,
        ),
    ] = None
    active_parameters: Annotated[
        int | None,
        Number(
            "active",
            "Active parameters",
            "Parameters that one token passes: all, but the experts that it is not "
            "routed to.",
            span=NOW,
        ),
    ] = None
    weight_bytes: Annotated[
        int | None,
        Number(
            "weights",
            "Weights",
            "What the weights take, all parts of a rank together: as loaded, else as "
            "the shape says.",
            unit=Unit.BYTES,
            better=Better.LOWER,
            span=NOW,
        ),
    ] = None
    kv_bytes_per_token: Annotated[
        int | None,
        Number(
            "KV/token",
            "KV cache of a token",
            "What keys and values of one token take, in all layers.",
            unit=Unit.BYTES,
            better=Better.LOWER,
            span=NOW,
        ),
    ] = None
    decode: Annotated[
        OperatingPoint | None,
        Number(
            "decode",
            "Steps that decode",
            "Where steps that decode alone stand under the roofline, together.",
        ),
    ] = None
    prefill: Annotated[
        OperatingPoint | None,
        Number(
            "prefill",
            "Steps with prompts",
            "Where steps with prompt tokens stand under the roofline, together.",
        ),
    ] = None
    measured_mbu: Annotated[
        float | None,
        Number(
            "MBU",
            "Memory bandwidth used, measured",
            "Share of the engine's memory bandwidth that its GPUs measured, idle time "
            "included.",
            unit=Unit.SHARE,
            better=Better.HIGHER,
            vantage=Vantage.GPU,
        ),
    ] = None
    """From GPM or DCGM."""
    measured_mfu: Annotated[
        float | None,
        Number(
            "tensor",
            "Tensor pipes active",
            "Share of the cycles in which tensor pipes were in use, idle time "
            "included: MFU is at most that.",
            unit=Unit.SHARE,
            better=Better.HIGHER,
            vantage=Vantage.GPU,
        ),
    ] = None
    split: Annotated[
        TimeSplit | None,
        Number(
            "split",
            "Where the time went",
            "The time with work: the floors of its steps, what they took beyond, and "
            "the gaps between them.",
        ),
    ] = None
    tpot_floor_s: Annotated[
        float | None,
        Number(
            "TPOT floor",
            "TPOT floor",
            "The least time for a token at the batches that were run: mean floor of "
            f"the steps that decode; {LEFT_OUT}, and pipeline stages add up.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = None
    curve: Annotated[
        FloorCurve | None,
        Number(
            "floor by batch",
            "Floor by batch",
            "The least time of a step that decodes so many requests, each with the "
            "mean context of the window. From the knee on a step reads more KV cache "
            "than weights, or compute binds: more requests add ever fewer tokens a "
            f"second and make everybody slower; {LEFT_OUT}.",
        ),
    ] = None
    memory: Annotated[
        tuple[DeviceMemory, ...],
        Number(
            "memory",
            "Memory budget",
            "Who has the memory of each worker's device.",
            span=NOW,
        ),
    ] = ()
    max_requests: Annotated[
        float | None,
        Number(
            "B_max",
            "Requests that fit",
            "How many requests with the context of the present mix fit into the KV "
            "cache of all ranks together, the last block of each half full.",
            unit=Unit.REQUESTS,
            better=Better.HIGHER,
        ),
    ] = None
    tokens_per_request: Annotated[
        float | None,
        Number(
            "context",
            "Context of a request",
            "Tokens in the cache of a request in decode, mean over steps.",
            unit=Unit.TOKENS,
        ),
    ] = None
    savings: Annotated[
        tuple[Saving, ...],
        Number(
            "savings",
            "What other formats free",
            "What FP8 weights, 4-bit weights or an FP8 cache would free and speed up, "
            "of those that the model does not have; all may change its output.",
        ),
    ] = ()
    impossible: Annotated[
        Impossible | None,
        Number(
            "impossible",
            "Faster than possible",
            "Steps whose result was there sooner than their floor allows, by over 1%: "
            "check clocks, dtype, speculative decoding, the peaks or the measurement; "
            "a prefix that requests share, or experts that tokens prefer, can explain "
            "a little.",
            better=Better.LOWER,
        ),
    ] = None
    missing: Annotated[
        tuple[str, ...],
        Number(
            "missing",
            "What is missing",
            "Why not more is known of the limits, and what would tell.",
            span=NOW,
        ),
    ] = ()
    """One sentence each."""
