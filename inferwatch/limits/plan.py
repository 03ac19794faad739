"""Upper bounds on what a model can do on some GPUs, without running an engine.

They follow from the shape, the device and the workload at full peaks, so no server is
faster. Communication between GPUs is left out.
"""

from dataclasses import dataclass
from enum import StrEnum

from inferwatch.limits.cache import kv_bytes, kv_shards, max_requests
from inferwatch.limits.communication import (
    CALL_S,
    Communication,
    Interconnect,
    Parallelism,
    communication,
    interconnect_of,
)
from inferwatch.limits.devices import Device
from inferwatch.limits.parameters import (
    Parameters,
    gpu_weight_bytes,
    parameters,
    weight_bytes,
)
from inferwatch.limits.roofline import compute_bound_batch, ridge_point
from inferwatch.limits.shape import ModelShape
from inferwatch.limits.step import (
    StepCosts,
    StepSums,
    StepWork,
    binding,
    e2el_s,
    floor_s,
    load_floor_s,
    ttft_floor_s,
)


def cost_per_million(gpu_hour: float, gpus: int, tokens_per_s: float) -> float:
    """Price of a million tokens: hour price · GPUs / 3600 · 10⁶ / (tokens/s).

    The usual unit of providers' price lists: Pope et al., arXiv 2211.05102, figure 1,
    in chip-seconds per token.
    """
    return gpu_hour * gpus / 3600 * 1e6 / tokens_per_s


def joules_per_token(joules: float, tokens: int) -> float | None:
    """Energy of a window divided by its tokens; None without tokens.

    As in Samsi et al., *From words to watts*, arXiv 2310.03003.
    """
    return joules / tokens if tokens else None


GIB = 2**30
PROCESS_BYTES = 1.5 * GIB
"""Estimate for CUDA context, libraries, communication buffers and graphs of a GPU."""


class BatchLimit(StrEnum):
    """What limits the batch size, or its benefit."""

    WEIGHTS = "weights"
    """Not even one request fits beside the weights."""
    MEMORY = "KV memory"
    COMPUTE = "compute"
    """More requests fit, but add no tokens/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The requests to plan for."""

    batch: int
    """Requests that decode concurrently."""
    prompt: int
    output: int
    context: int
    """Tokens of cache reserved per request when asking how many fit."""
    block_tokens: int = 16
    chunk: int = 8192
    """Most tokens per step, which activations are estimated for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSetup:
    """The number and kind of GPUs, and the share of their memory an engine may use."""

    device: Device
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    """Ranks with attention of their own, which share the routed experts."""
    expert_parallel: bool = False
    """Each GPU has whole experts, to which tokens are sent."""
    memory_share: float = 0.92
    """``--gpu-memory-utilization`` of vLLM."""
    overhead_bytes: float | None = None
    """Memory besides weights and KV cache, per GPU; None: estimated."""
    storage_bytes_per_s: float | None = None
    gpu_hour: float | None = None
    """Price per GPU hour."""
    call_s: float = CALL_S
    """Latency of a call between GPUs."""

    @property
    def gpus(self) -> int:
        """Number of GPUs of one replica."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def ways(self) -> Parallelism:
        """How its GPUs share the model."""
        return Parallelism(
            tensor_parallel=self.tensor_parallel,
            pipeline_parallel=self.pipeline_parallel,
            data_parallel=self.data_parallel,
            expert_parallel=self.expert_parallel,
        )

    @property
    def link(self) -> Interconnect | None:
        """The link between its GPUs; None if it is not known."""
        return interconnect_of(self.device, self.call_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """The resulting bounds; bytes are per GPU unless stated otherwise."""

    machine: GpuSetup
    shape: ModelShape
    workload: Workload
    counted: Parameters
    total_weight_bytes: int
    request_kv_bytes: int
    """Over all GPUs."""
    allowed_bytes: float
    weight_bytes: float
    overhead_bytes: float
    overhead_is_estimate: bool
    kv_bytes: float
    """KV cache of the whole batch."""
    left_bytes: float
    """Free memory; negative if memory is missing."""
    max_requests: int
    max_kv_tokens: int
    """KV cache tokens of all those requests."""
    decode: StepWork
    """The mean decode step of one tensor-parallel rank: all pipeline stages together,
    for the requests one stage has at a time."""
    communication: Communication
    """Of a decode step, while its tokens pass all stages."""
    communication_s: float | None
    """Estimate of its time; no part of a floor. None if the link is not known."""
    binds: str | None
    ridge: float | None
    compute_bound_from: int | None
    batch_limit: BatchLimit
    tpot_floor_s: float | None
    """Mean over a response, whose context grows from its prompt on."""
    ttft_floor_s: float | None
    e2el_floor_s: float | None
    tokens_per_s: float | None
    """Upper bound for decode alone at this batch size; None if it does not fit."""
    most_tokens_per_s: float | None
    """The same for the largest batch that fits."""
    served_tokens_per_s: float | None
    """Upper bound of output tokens per second when prompts are computed as well."""
    load_pcie_s: float | None
    load_storage_s: float | None

    @property
    def fits(self) -> bool:
        """Whether the whole batch fits into GPU memory."""
        return self.left_bytes >= 0

    def cost(self, tokens_per_s: float | None) -> float | None:
        """Price of a million tokens from a replica that is always busy."""
        if self.machine.gpu_hour is None or not tokens_per_s:
            return None
        return cost_per_million(self.machine.gpu_hour, self.machine.gpus, tokens_per_s)


def plan_for(shape: ModelShape, machine: GpuSetup, workload: Workload) -> CapacityPlan:
    return _Planner(shape, machine, workload).plan()


def overhead_estimate(
    shape: ModelShape, workload: Workload, tensor_parallel: int
) -> float:
    """Estimated bytes of GPU memory used by neither weights nor KV cache.

    The process, activations, and logits of the batch; an engine's own profile is exact.
    """
    logits = workload.batch * logits_bytes(shape)
    return PROCESS_BYTES + activation_bytes(shape, workload, tensor_parallel) + logits


def logits_bytes(shape: ModelShape) -> int:
    """Bytes of a request's logits in FP32, twice, because samplers copy them."""
    return shape.vocab * 4 * 2


def activation_bytes(
    shape: ModelShape, workload: Workload, tensor_parallel: int
) -> float:
    """Bytes of the activations of the widest layer in a full step."""
    experts = shape.experts
    ffn = max(shape.ffn, (experts.per_token * experts.ffn) if experts else 0)
    attention = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    widest = 3 * shape.hidden + (attention + 3 * ffn) / tensor_parallel
    return workload.chunk * widest * shape.other_bits / 8


class _Planner:
    """Computes the parts of a plan."""

    def __init__(
        self, shape: ModelShape, machine: GpuSetup, workload: Workload
    ) -> None:
        self.shape, self.machine, self.workload = shape, machine, workload
        self.costs = StepCosts.of(shape, machine.tensor_parallel, machine.data_parallel)
        self.prompt = StepSums.prefilling(
            workload.prompt, 0, shape.window, chunked=shape.chunked
        )
        self.bandwidth = machine.device.bytes_per_s
        self.flops = machine.device.flops_at(shape.compute_dtype)

    def plan(self) -> CapacityPlan:
        shape, machine, load = self.shape, self.machine, self.workload
        total = weight_bytes(shape)
        weights = gpu_weight_bytes(
            shape,
            machine.tensor_parallel,
            machine.pipeline_parallel,
            machine.data_parallel,
        )
        allowed = machine.device.memory_bytes * machine.memory_share
        overhead = machine.overhead_bytes
        if overhead is None:
            overhead = overhead_estimate(shape, load, machine.tensor_parallel)
        request = kv_bytes(shape, load.context, load.block_tokens)
        shards = kv_shards(shape, machine.tensor_parallel) * machine.pipeline_parallel
        shards *= machine.data_parallel
        # each further request has logits, too, so its overhead is part of its size
        logits = 0 if machine.overhead_bytes is not None else logits_bytes(shape)
        most = max_requests(
            allowed, weights, overhead - load.batch * logits, request / shards + logits
        )
        sent = communication(shape, machine.ways, self.tokens(load.batch))
        link = machine.link
        decode = self.decode(load.batch)
        compute_from = compute_bound_batch(self.decode, self.bandwidth, self.flops)
        tpot, ttft = self.tpot(load.batch), self.ttft()
        left = allowed - weights - overhead - load.batch * request / shards
        return CapacityPlan(
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
            communication=sent,
            communication_s=sent.time_s(link) if link is not None else None,
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
        """The work of a mean decode step; pipeline stages share the batch evenly."""
        load, shape = self.workload, self.shape
        sums = StepSums.answering(
            self.tokens(batch),
            (load.prompt, load.output),
            shape.window,
            chunked=shape.chunked,
        )
        return self.costs.work(sums)

    def tokens(self, batch: int) -> float:
        """Requests that one stage of one data-parallel rank has at a time."""
        return batch / self.machine.data_parallel / self.stages(batch)

    def stages(self, batch: int) -> int:
        """Number of pipeline stages at work: each works on different requests."""
        return min(batch, self.machine.pipeline_parallel)

    def tpot(self, batch: int) -> float | None:
        """Floor of TPOT: a token passes all pipeline stages in turn."""
        return floor_s(self.decode(batch), self.bandwidth, self.flops)

    def ttft(self) -> float | None:
        """Floor of a single prompt's TTFT; its chunks are spread over all stages."""
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
        """Upper bound of output tokens/s when prompts are computed beside decode.

        Each token takes at least the larger of compute time and decode time. Decode
        depends on its own results, so idle stages do not make it faster.
        """
        load, step = self.workload, self.decode(self.workload.batch)
        decode_s = self.tpot(load.batch)
        if not decode_s or not self.bandwidth or not self.flops:
            return None
        prompt = self.costs.work(self.prompt)
        # per token of each request, over all stages: its share of the prompts, and its
        # step
        flops = load.batch / self.machine.data_parallel * prompt.flops / load.output
        flops += self.stages(load.batch) * step.flops
        compute_s = flops / self.machine.pipeline_parallel / self.flops
        return load.batch / max(compute_s, decode_s)


def _limit(most: int, compute_from: int | None) -> BatchLimit:
    if not most:
        return BatchLimit.WEIGHTS
    if compute_from is not None and compute_from <= most:
        return BatchLimit.COMPUTE
    return BatchLimit.MEMORY
