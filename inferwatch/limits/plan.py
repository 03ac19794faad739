"""What a model on some GPUs could do at best, without any engine.

All of it follows from the shape, the device and the workload: floors at full peaks, so
no server is faster. Communication between GPUs is left out.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from inferwatch.limits.cache import kv_bytes, kv_shards, max_requests
from inferwatch.limits.devices import Device
from inferwatch.limits.latency import e2el_s, load_floor_s, tpot_floor_s, ttft_floor_s
from inferwatch.limits.parameters import Parameters, parameters, weight_bytes
from inferwatch.limits.price import cost_per_million
from inferwatch.limits.roofline import compute_bound_batch, ridge_point
from inferwatch.limits.shape import ModelShape
from inferwatch.limits.step import StepCosts, StepSums, StepWork, binding

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
    """Tokens that each has in the cache while it decodes."""
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
    """A step of one tensor-parallel rank, all pipeline stages together."""
    binds: str | None
    ridge: float | None
    compute_bound_from: int | None
    batch_limit: BatchLimit
    tpot_floor_s: float | None
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

    The process, the widest layer's activations of a full step, and logits in FP32,
    twice, as samplers copy them.
    """
    experts = shape.experts
    ffn = max(shape.ffn, (experts.per_token * experts.ffn) if experts else 0)
    attention = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    widest = 3 * shape.hidden + (attention + 3 * ffn) / tensor_parallel
    activations = workload.chunk * widest * shape.other_bits / 8
    logits = workload.batch * shape.vocab * 4 * 2
    return PROCESS_BYTES + activations + logits


class _Planner:
    """The parts of a plan, each from those before."""

    def __init__(self, shape: ModelShape, machine: Machine, workload: Workload) -> None:
        self.shape, self.machine, self.workload = shape, machine, workload
        self.costs = StepCosts.of(shape, machine.tensor_parallel)
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
        most = max_requests(allowed, weights, overhead, request / shards)
        decode = self.decode(load.batch)
        compute_from = compute_bound_batch(
            self.costs, load.context, self.bandwidth, self.flops, shape.window
        )
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
            e2el_floor_s=self.e2el(ttft),
            tokens_per_s=load.batch / tpot if tpot and left >= 0 else None,
            most_tokens_per_s=self.most_tokens_per_s(most),
            served_tokens_per_s=self.served_tokens_per_s() if left >= 0 else None,
            load_pcie_s=load_floor_s(weights, None, machine.device.pcie_bytes_per_s),
            load_storage_s=load_floor_s(total, machine.storage_bytes_per_s, None),
        )

    def decode(self, batch: int) -> StepWork:
        """A step in which all of a pipeline's stage decode."""
        stage = ceil(batch / self.machine.pipeline_parallel)
        sums = StepSums.decoding(stage, self.workload.context, self.shape.window)
        return self.costs.work(sums)

    def tpot(self, batch: int, context: int | None = None) -> float | None:
        """Stages work on different requests, and add up for one token."""
        return tpot_floor_s(
            self.costs,
            ceil(batch / self.machine.pipeline_parallel),
            self.workload.context if context is None else context,
            self.bandwidth,
            self.flops,
            self.shape.window,
        )

    def ttft(self) -> float | None:
        """Of a prompt alone, in one step; stages may work on different chunks of it."""
        floor = ttft_floor_s(
            self.costs,
            self.workload.prompt,
            self.bandwidth,
            self.flops,
            window=self.shape.window,
        )
        return None if floor is None else floor / self.machine.pipeline_parallel

    def e2el(self, ttft: float | None) -> float | None:
        """Behind the mean context of its output."""
        load = self.workload
        tpot = self.tpot(load.batch, load.prompt + load.output // 2)
        if ttft is None or tpot is None:
            return None
        return e2el_s(ttft, tpot, load.output)

    def most_tokens_per_s(self, most: int) -> float | None:
        tpot = self.tpot(most) if most else None
        return most / tpot if tpot else None

    def served_tokens_per_s(self) -> float | None:
        """At best prompts are computed while decode reads: the larger of both sums."""
        load, machine = self.workload, self.machine
        if not self.bandwidth or not self.flops:
            return None
        prompt = self.costs.work(StepSums.prefilling(load.prompt, 0, self.shape.window))
        token = self.decode(load.batch)
        stage = ceil(load.batch / machine.pipeline_parallel)
        compute_s = (prompt.flops + load.output * token.flops / stage) / self.flops
        memory_s = load.output * token.bytes_read / stage / self.bandwidth
        return machine.pipeline_parallel * load.output / max(compute_s, memory_s)


def _limit(most: int, compute_from: int | None) -> BatchLimit:
    if not most:
        return BatchLimit.WEIGHTS
    if compute_from is not None and compute_from <= most:
        return BatchLimit.COMPUTE
    return BatchLimit.MEMORY
