"""What would make a set-up fit that is short of memory.

Each remedy changes one thing, as little as it takes: it is a plan that fits, while the
same with one more request, one more block, fewer GPUs or a smaller GPU does not.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from inferwatch.limits.devices import DEVICES, Device
from inferwatch.limits.plan import CapacityPlan, GpuSetup, Workload, plan_for
from inferwatch.limits.roofline import largest
from inferwatch.limits.shape import ModelShape

FP8_BITS = 8.0
FOUR_BITS = 4.25
"""Bits per weight with a one-byte scale for 32 weights, as MXFP4; AWQ is similar."""
EIGHT_BIT = ("float8", "int8")
"""What 4-bit weights are not multiplied in: servers make 16 bits of them."""
MOST_OF_A_HOST = 8
"""GPUs that all-reduce over NVLink; more are in another host, mostly."""
MOST_STAGES = 16
MOST_FORMATS = 2
ABOUT_AS_FEW = 0.9
"""Bits that save less than a tenth, such as scales of another size, are no remedy."""
LEAST_CONTEXT = 8
"""A context of less than an eighth is of another use, and no remedy."""


class RemedyKind(StrEnum):
    """What a remedy changes; at the same price, the first ones change least."""

    FORMAT = "format"
    BATCH = "batch"
    CONTEXT = "context"
    GPU = "gpu"
    """Another GPU with more memory, which is no slower in anything."""
    MORE_GPUS = "more_gpus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change that makes a set-up fit."""

    kind: RemedyKind
    plan: CapacityPlan
    """Of the set-up with it."""
    added_gpus: int = 0


def remedies(plan: CapacityPlan) -> tuple[Remedy, ...]:
    """Return what makes the set-up fit, fewest GPUs first; empty if it does or none.

    The ways that guides name: fewer bits, fewer requests or shorter ones, more GPUs,
    and GPUs with more memory (Kwon et al., arXiv 2309.06180, on what limits a batch;
    Dettmers et al., *LLM.int8()*, arXiv 2208.07339, on weights).
    """
    if plan.fits:
        return ()
    found = [
        *_formats(plan),
        *_single(RemedyKind.BATCH, _smaller_batch(plan)),
        *_single(RemedyKind.CONTEXT, _shorter_context(plan)),
        *_single(RemedyKind.GPU, _other_gpu(plan)),
        *_single(RemedyKind.MORE_GPUS, _more_gpus(plan)),
    ]
    gpus = plan.machine.gpus
    return tuple(replace(e, added_gpus=e.plan.machine.gpus - gpus) for e in found)


def lighter(
    shape: ModelShape, weight_bits: float | None, kv_bits: float | None = None
) -> ModelShape | None:
    """Return the shape with fewer bits per weight or cached value; None if none fall.

    Bits that are about as few already stay.
    """
    result = shape
    if weight_bits is not None:
        experts = shape.expert_bits
        result = replace(
            shape,
            weight_bits=_fewer(shape.weight_bits, weight_bits),
            expert_bits=None if experts is None else _fewer(experts, weight_bits),
        )
    if kv_bits is not None:
        result = replace(result, kv_bits=_fewer(shape.kv_bits, kv_bits))
    return None if result == shape else result


def _fewer(present: float, bits: float) -> float:
    return bits if bits < ABOUT_AS_FEW * present else present


def _again(
    plan: CapacityPlan,
    shape: ModelShape | None = None,
    machine: GpuSetup | None = None,
    load: Workload | None = None,
) -> CapacityPlan:
    """The plan with something else about it."""
    return plan_for(shape or plan.shape, machine or plan.machine, load or plan.workload)


def _single(kind: RemedyKind, plan: CapacityPlan | None) -> Iterator[Remedy]:
    if plan is not None:
        yield Remedy(kind=kind, plan=plan)


def _formats(plan: CapacityPlan) -> list[Remedy]:
    """The first formats that fit, without those that another one makes needless.

    Where experts are quantised, servers leave the other weights as they are.
    """
    found: list[Remedy] = []
    for weights, kv in (
        (None, FP8_BITS),
        (FP8_BITS, None),
        (FP8_BITS, FP8_BITS),
        (FOUR_BITS, None),
        (FOUR_BITS, FP8_BITS),
    ):
        shape = lighter(plan.shape, weights, kv)
        is_needless = bool(weights and kv and found)
        is_fixed = weights is not None and plan.shape.expert_bits is not None
        if shape is None or is_needless or is_fixed:
            continue
        if shape.weight_bits == FP8_BITS != plan.shape.weight_bits:
            shape = replace(shape, compute_dtype="float8")
        elif shape.weight_bits == FOUR_BITS and shape.compute_dtype in EIGHT_BIT:
            shape = replace(shape, compute_dtype="bfloat16")
        other = _again(plan, shape)
        if other.fits:
            found.append(Remedy(kind=RemedyKind.FORMAT, plan=other))
    return found[:MOST_FORMATS]


def _smaller_batch(plan: CapacityPlan) -> CapacityPlan | None:
    most = plan.max_requests
    if not most:
        return None
    return _again(plan, load=replace(plan.workload, batch=most))


def _shorter_context(plan: CapacityPlan) -> CapacityPlan | None:
    """The plan with as many whole blocks of context as fit, most of them prompt."""
    load = plan.workload
    block = load.block_tokens

    def of(blocks: int) -> CapacityPlan:
        context = blocks * block
        output = min(load.output, max(context // 2, 1))
        prompt = max(1, min(load.prompt, context - output))
        less = replace(load, context=context, output=output, prompt=prompt)
        return _again(plan, load=less)

    blocks = largest(lambda each: of(each).fits, (load.context - 1) // block)
    return of(blocks) if blocks * block * LEAST_CONTEXT >= load.context else None


def _more_gpus(plan: CapacityPlan) -> CapacityPlan | None:
    """The plan with the fewest further GPUs.

    Of tensor parallelism and a pipeline with as many, the one that its link suits.
    """
    machine, shape = plan.machine, plan.shape
    ways = _first_fitting(
        plan,
        (
            replace(machine, tensor_parallel=n)
            for n in range(machine.tensor_parallel + 1, MOST_OF_A_HOST + 1)
            if _divides(shape, n)
        ),
    )
    stages = _first_fitting(
        plan,
        (
            replace(machine, pipeline_parallel=n)
            for n in range(
                machine.pipeline_parallel + 1, min(shape.layers, MOST_STAGES) + 1
            )
        ),
    )
    fast = machine.device.nvlink_bytes_per_s is not None
    ordered = (ways, stages) if fast else (stages, ways)
    found = [each for each in ordered if each is not None]
    return min(found, key=lambda each: each.machine.gpus, default=None)


def _divides(shape: ModelShape, ways: int) -> bool:
    """Whether so many GPUs can share each layer, as vLLM asks of heads."""
    kv = shape.kv_heads
    shared = shape.mla is not None or not (kv % ways and ways % kv)
    return not shape.heads % ways and shared


def _other_gpu(plan: CapacityPlan) -> CapacityPlan | None:
    """The plan on the GPU with the least memory on which it fits."""
    present, dtype = plan.machine.device, plan.shape.compute_dtype
    larger = sorted(
        (each for each in DEVICES if _replaces(each, present, dtype)),
        key=lambda each: (each.memory_bytes, -(each.bytes_per_s or 0)),
    )
    return _first_fitting(
        plan, (replace(plan.machine, device=each, gpu_hour=None) for each in larger)
    )


def _replaces(other: Device, present: Device, dtype: str) -> bool:
    """Whether a GPU has more memory, and is no slower: in memory, compute or links.

    GPUs that are only sold within other computers (Grace) are left out.
    """
    pairs = (
        (other.bytes_per_s, present.bytes_per_s),
        (other.flops_at(dtype), present.flops_at(dtype)),
        (other.nvlink_bytes_per_s, present.nvlink_bytes_per_s),
    )
    return (
        other.memory_bytes > present.memory_bytes
        and other.nvlink_bytes_per_s is not None
        and not other.name.startswith(("GB", "GH"))
        and all((new or 0) >= (old or 0) for new, old in pairs)
    )


def _first_fitting(
    plan: CapacityPlan, machines: Iterable[GpuSetup]
) -> CapacityPlan | None:
    plans = (_again(plan, machine=each) for each in machines)
    return next((each for each in plans if each.fits), None)
