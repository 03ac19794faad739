"""What a model on some GPUs could do at best, without any engine.

All of it follows from the shape, the device and the workload: floors at full peaks, so
no server is faster. Communication between GPUs is left out.
"""

from dataclasses import dataclass
from enum import StrEnum

from inferwatch.limits.cache import kv_bytes, kv_shards, max_requests
from inferwatch.limits.devices import Device
from inferwatch.limits.latency import e2el_s, load_floor_s, ttft_floor_s
from inferwatch.limits.parameters import Parameters, parameters, weight_bytes
from inferwatch.limits.price import cost_per_million
from inferwatch.limits.roofline import compute_bound_batch, ridge_point
from inferwatch.limits.shape import ModelShape
from inferwatch.limits.step import StepCosts, StepSums, StepWork, binding, floor_s

GIB = 2**30
PROCESS_BYTES = 1.5 * GIB
"""CUDA context, libraries, communication buffers and graphs of a GPU: an estimate."""


class BatchLimit(StrEnum):
    """What keeps the batch from growing, or from being worth it."""

    WEIGHTS = "weights"
    """There is no room for a single request beside them."""
    MEMORY = "KV memory"
    COMPUTE = "compute"
    """More requests fit, but add no tokens/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What requests are like."""

    batch: int
    """Requests that decode together."""
    prompt: int
    output: int
    context: int
    """Tokens that each has room for in the cache: what fits is asked of these."""
    block_tokens: int = 16
    chunk: int = 8192
    """Most tokens of a step: what activations are estimated for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """On how many of which GPUs, and how much of them an engine may use."""

    device: Device
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    memory_share: float = 0.92
    """``--gpu-memory-utilization`` of vLLM."""
    overhead_bytes: float | None = None
    """Beside weights and KV, of one GPU; estimated where it is ``None``."""
    storage_bytes_per_s: float | None = None
    gpu_hour: float | None = None
    """Price."""

    @property
    def gpus(self) -> int:
        """All that serve one replica."""
        return self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What could be at best; bytes are of one GPU unless they say otherwise."""

    machine: Machine
    shape: ModelShape
    workload: Workload
    counted: Parameters
    total_weight_bytes: int
    request_kv_bytes: int
    """Of all GPUs together."""
    allowed_bytes: float
    weight_bytes: float
    overhead_bytes: float
    overhead_is_estimate: bool
    kv_bytes: float
    """Of the whole batch."""
    left_bytes: float
    """Below zero: so much is missing."""
    max_requests: int
    max_kv_tokens: int
    """Contexts of all of them, together."""
    decode: StepWork
    """The mean step of an answer, of one tensor-parallel rank: all pipeline stages
    together, for the requests that one of them has at a time."""
    binds: str | None
    ridge: float | None
    compute_bound_from: int | None
    batch_limit: BatchLimit
    tpot_floor_s: float | None
    """Mean over an answer, whose context grows from its prompt on."""
    ttft_floor_s: float | None
    e2el_floor_s: float | None
    tokens_per_s: float | None
    """Of decode alone, at this batch: a ceiling; ``None`` where it does not fit."""
    most_tokens_per_s: float | None
    """Likewise, of as many requests as fit."""
    served_tokens_per_s: float | None
    """Output tokens where the prompts are computed beside: a ceiling."""
    load_pcie_s: float | None
    load_storage_s: float | None

    @property
    def fits(self) -> bool:
        """The batch fits, whole."""
        return self.left_bytes >= 0

    def cost(self, tokens_per_s: float | None) -> float | None:
        """Of a million tokens; of a replica that makes so many, and no pause."""
        if self.machine.gpu_hour is None or not tokens_per_s:
            return None
        return cost_per_million(self.machine.gpu_hour, self.machine.gpus, tokens_per_s)


def plan_for(shape: ModelShape, machine: Machine, workload: Workload) -> Plan:
    """Work it out."""
    return _Planner(shape, machine, workload).plan()


def overhead_estimate(
    shape: ModelShape, workload: Workload, tensor_parallel: int
) -> float:
    """What a GPU needs beside weights and KV: an estimate, an engine's profile is true.

    The process, activations, and logits of the batch.
    """
    logits = workload.batch * logits_bytes(shape)
    return PROCESS_BYTES + activation_bytes(shape, workload, tensor_parallel) + logits


def logits_bytes(shape: ModelShape) -> int:
    """Of one request, in FP32, twice, as samplers copy them."""
    return shape.vocab * 4 * 2


def activation_bytes(
    shape: ModelShape, workload: Workload, tensor_parallel: int
) -> float:
    """Of the widest layer of a full step."""
    experts = shape.experts
    ffn = max(shape.ffn, (experts.per_token * experts.ffn) if experts else 0)
    attention = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    widest = 3 * shape.hidden + (attention + 3 * ffn) / tensor_parallel
    return workload.chunk * widest * shape.other_bits / 8


class _Planner:
    """The parts of a plan, each from those before."""

    def __init__(self, shape: ModelShape, machine: Machine, workload: Workload) -> None:
        self.shape, self.machine, self.workload = shape, machine, workload
        self.costs = StepCosts.of(shape, machine.tensor_parallel)
        self.prompt = StepSums.prefilling(
            workload.prompt, 0, shape.window, chunked=shape.chunked
        )
        self.bandwidth = machine.device.bytes_per_s
        self.flops = machine.device.flops_at(shape.compute_dtype)

    def plan(self) -> Plan:
        shape, machine, load = self.shape, self.machine, self.workload
        total = weight_bytes(shape)
        weights = total / machine.gpus
        allowed = machine.device.memory_bytes * machine.memory_share
        overhead = machine.overhead_bytes
        if overhead is None:
            overhead = overhead_estimate(shape, load, machine.tensor_parallel)
        request = kv_bytes(shape, load.context, load.block_tokens)
        shards = kv_shards(shape, machine.tensor_parallel) * machine.pipeline_parallel
        # a request more has logits more: as many fit as fit with their own overhead
        logits = 0 if machine.overhead_bytes is not None else logits_bytes(shape)
        most = max_requests(
            allowed, weights, overhead - load.batch * logits, request / shards + logits
        )
        decode = self.decode(load.batch)
        compute_from = compute_bound_batch(self.decode, self.bandwidth, self.flops)
        tpot, ttft = self.tpot(load.batch), self.ttft()
        left = allowed - weights - overhead - load.batch * request / shards
        return Plan(
            machine=machine,
            shape=shape,
            workload=load,
            counted=parameters(shape),
            total_weight_bytes=total,
            request_kv_bytes=request,
            allowed_bytes=allowed,
            weight_bytes=weights,
            overhead_bytes=overhead,
            overhead_is_estimate=machine.overhead_bytes is None,
            kv_bytes=load.batch * request / shards,
            left_bytes=left,
            max_requests=most,
            max_kv_tokens=most * load.context,
            decode=decode,
            binds=binding(decode, self.bandwidth, self.flops),
            ridge=ridge_point(self.flops, self.bandwidth),
            compute_bound_from=compute_from,
            batch_limit=_limit(most, compute_from),
            tpot_floor_s=tpot,
            ttft_floor_s=ttft,
            e2el_floor_s=self.e2el(ttft, tpot),
            tokens_per_s=load.batch / tpot if tpot and left >= 0 else None,
            most_tokens_per_s=self.most_tokens_per_s(most),
            served_tokens_per_s=self.served_tokens_per_s() if left >= 0 else None,
            load_pcie_s=load_floor_s(weights, None, machine.device.pcie_bytes_per_s),
            load_storage_s=load_floor_s(total, machine.storage_bytes_per_s, None),
        )

    def decode(self, batch: int) -> StepWork:
        """The mean step of an answer; stages of a pipeline share the batch evenly."""
        load, shape = self.workload, self.shape
        sums = StepSums.answering(
            batch / self.stages(batch),
            (load.prompt, load.output),
            shape.window,
            chunked=shape.chunked,
        )
        return self.costs.work(sums)

    def stages(self, batch: int) -> int:
        """Of a pipeline, that have something to do: each works on other requests."""
        return min(batch, self.machine.pipeline_parallel)

    def tpot(self, batch: int) -> float | None:
        """Stages add up for one token."""
        return floor_s(self.decode(batch), self.bandwidth, self.flops)

    def ttft(self) -> float | None:
        """Of a prompt alone, in one step; stages may work on different chunks of it."""
        floor = ttft_floor_s(self.costs, [self.prompt], self.bandwidth, self.flops)
        return None if floor is None else floor / self.machine.pipeline_parallel

    def e2el(self, ttft: float | None, tpot: float | None) -> float | None:
        if ttft is None or tpot is None:
            return None
        return e2el_s(ttft, tpot, self.workload.output)

    def most_tokens_per_s(self, most: int) -> float | None:
        tpot = self.tpot(most) if most else None
        return most / tpot if tpot else None

    def served_tokens_per_s(self) -> float | None:
        """At best prompts are computed while decode reads: the larger of both sums.

        Decode waits for itself: stages that it leaves idle make it no faster.
        """
        load, step = self.workload, self.decode(self.workload.batch)
        decode_s = self.tpot(load.batch)
        if not decode_s or not self.bandwidth or not self.flops:
            return None
        prompt = self.costs.work(self.prompt)
        # a token of each request, by all stages: its share of the prompts, and its step
        flops = load.batch * prompt.flops / load.output
        flops += self.stages(load.batch) * step.flops
        compute_s = flops / self.machine.pipeline_parallel / self.flops
        return load.batch / max(compute_s, decode_s)


def _limit(most: int, compute_from: int | None) -> BatchLimit:
    if not most:
        return BatchLimit.WEIGHTS
    if compute_from is not None and compute_from <= most:
        return BatchLimit.COMPUTE
    return BatchLimit.MEMORY
