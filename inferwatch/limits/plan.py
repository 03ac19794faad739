"""Upper bounds on what a model can do on some GPUs, without running an engine.

They follow from the shape, the device and the workload at full peaks, so no server is
faster. Communication between GPUs is left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil

from inferwatch.limits.cache import kv_bytes, kv_shards, max_requests
from inferwatch.limits.communication import (
    CALL_S,
    Communication,
    Interconnect,
    Parallelism,
    communication,
    interconnect_of,
)
from inferwatch.limits.devices import COPIED, Device
from inferwatch.limits.parameters import (
    Parameters,
    gpu_weight_bytes,
    parameters,
    weight_bytes,
)
from inferwatch.limits.roofline import compute_bound_batch, knee_batch, ridge_point
from inferwatch.limits.shape import ModelShape
from inferwatch.limits.speculation import Drafting, most_helped
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


MOST_CHUNKS = 10_000


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
    """Most tokens per step (``--max-num-batched-tokens``)."""
    drafting: Drafting | None = None
    """Speculative decoding: each step verifies drafted tokens, too."""

    @property
    def rows(self) -> int:
        """Tokens of each decoding request in a step."""
        return 1 if self.drafting is None else self.drafting.drafts + 1


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
    for the requests one stage has at a time. With speculation, that verifies."""
    communication: Communication
    """Of a decode step, while its tokens pass all stages."""
    communication_s: float | None
    """Estimate of its time; no part of a floor. None if the link is not known."""
    experts_touched: float | None
    """Share of the routed experts that this step reads; None without experts."""
    prefill: StepWork
    """A prompt alone, in one step."""
    prefill_binds: str | None
    chunk_compute_bound_from: int | None
    """The least chunk of a prompt that is bound by compute, in tokens."""
    chunk_itl_floor_s: float | None
    """Time between tokens while a step also computes a full chunk of a prompt; None
    where decode leaves no room for one."""
    binds: str | None
    ridge: float | None
    compute_bound_from: int | None
    batch_limit: BatchLimit
    tpot_floor_s: float | None
    """Mean over a response, whose context grows from its prompt on. With speculation,
    of an expected token: drafts and verification are shared by a pass's tokens."""
    most_helped: int | None
    """The largest batch at which speculation lowers that floor, of up to `MOST_HELPED`;
    None if that is not known."""
    ttft_floor_s: float | None
    chunked_ttft_floor_s: float | None
    """The same in chunks, each of which reads the weights again."""
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

    @property
    def tpot_estimate_s(self) -> float | None:
        """TPOT with communication: estimated, and no floor."""
        if self.tpot_floor_s is None or self.communication_s is None:
            return None
        drafting = self.workload.drafting
        tokens = 1.0 if drafting is None else drafting.tokens_per_pass
        return self.tpot_floor_s + self.communication_s / tokens

    @property
    def load_copied_s(self) -> float | None:
        """Estimate of loading over PCIe at the rate that copies reach."""
        return None if self.load_pcie_s is None else self.load_pcie_s / COPIED

    def cost(self, tokens_per_s: float | None) -> float | None:
        """Price of a million tokens from a replica that is always busy."""
        if self.machine.gpu_hour is None or not tokens_per_s:
            return None
        return cost_per_million(self.machine.gpu_hour, self.machine.gpus, tokens_per_s)


def plan_for(shape: ModelShape, machine: GpuSetup, workload: Workload) -> CapacityPlan:
    return _Planner(shape, machine, workload).plan()


def knee_for(shape: ModelShape, machine: GpuSetup, workload: Workload) -> int | None:
    """Batch size from which weights no longer set the pace of decode, whatever fits."""
    return _Planner(shape, machine, workload).knee()


def step_estimate_s(
    shape: ModelShape, machine: GpuSetup, sums: StepSums
) -> float | None:
    """Floor of a step on all stages, and the estimated communication of its tokens."""
    device, link = machine.device, machine.link
    costs = StepCosts.of(shape, machine.tensor_parallel, machine.data_parallel)
    flops = device.flops_at(shape.compute_dtype)
    least_s = floor_s(costs.work(sums), device.bytes_per_s, flops)
    sent = communication(shape, machine.ways, sums.tokens)
    if least_s is None or (link is None and sent.calls):
        return None
    return least_s + (sent.time_s(link) if link is not None else 0.0)


def overhead_estimate(
    shape: ModelShape, workload: Workload, tensor_parallel: int
) -> float:
    """Estimated bytes of GPU memory used by neither weights nor KV cache.

    The process, activations, and logits of the batch; an engine's own profile is exact.
    """
    logits = workload.batch * workload.rows * logits_bytes(shape)
    return PROCESS_BYTES + activation_bytes(shape, workload, tensor_parallel) + logits


def logits_bytes(shape: ModelShape) -> int:
    """Bytes of a token's logits in FP32, twice, because samplers copy them."""
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
        self.prompt = self.chunk(workload.prompt)
        self.alone = self._alone()
        self.bandwidth = machine.device.bytes_per_s
        self.flops = machine.device.flops_at(shape.compute_dtype)
        self.drafting = workload.drafting
        self.draft, self.draft_ways = self._drafter(machine.tensor_parallel)

    def _drafter(self, ways: int) -> tuple[ModelShape | None, int]:
        """The drafting model, and how many GPUs share its layers."""
        model = self.drafting.model if self.drafting is not None else None
        if model is None:
            return None, 1
        # both have one cache, in one format
        shared = replace(model, kv_bits=self.shape.kv_bits)
        return shared, 1 if model.heads % ways else ways

    def _alone(self) -> StepCosts:
        """Costs of a rank whose fellows idle: they compute its share of the experts."""
        shape, machine, costs = self.shape, self.machine, self.costs
        experts, ranks = shape.experts, machine.data_parallel
        if experts is None or ranks == 1:
            return costs
        routed = 2 * parameters(shape).active_experts / machine.tensor_parallel
        return replace(
            costs,
            token_flops=costs.token_flops - routed * (1 - 1 / ranks),
            untouched=1 - experts.per_token / experts.count,
        )

    def plan(self) -> CapacityPlan:
        shape, machine, load = self.shape, self.machine, self.workload
        total = weight_bytes(shape)
        weights = gpu_weight_bytes(
            shape,
            machine.tensor_parallel,
            machine.pipeline_parallel,
            machine.data_parallel,
        )
        stored = total
        if self.draft is not None:
            weights += gpu_weight_bytes(self.draft, self.draft_ways)
            stored += weight_bytes(self.draft)
        allowed = machine.device.memory_bytes * machine.memory_share
        overhead = machine.overhead_bytes
        if overhead is None:
            batch = ceil(load.batch / machine.data_parallel)
            overhead = overhead_estimate(
                shape, replace(load, batch=batch), machine.tensor_parallel
            )
        request, share = self.request_kv()
        # each further request has logits, too, so its overhead is part of its size
        logits = load.rows * logits_bytes(shape) / machine.data_parallel
        logits = 0 if machine.overhead_bytes is not None else logits
        most = max_requests(
            allowed, weights, overhead - load.batch * logits, share + logits
        )
        sent = self.communication(load.batch)
        link = machine.link
        decode = self.decode(load.batch)
        compute_from = compute_bound_batch(self.decode, self.bandwidth, self.flops)
        tpot, ttft = self.tpot(load.batch), self.ttft([self.prompt])
        prefill = self.alone.work(self.prompt)
        left = allowed - weights - overhead - load.batch * share
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
            kv_bytes=load.batch * share,
            left_bytes=left,
            max_requests=most,
            max_kv_tokens=most * load.context,
            decode=decode,
            communication=sent,
            communication_s=sent.time_s(link) if link is not None else None,
            experts_touched=self.costs.touched(load.rows * self.tokens(load.batch))
            if shape.experts
            else None,
            prefill=prefill,
            prefill_binds=binding(prefill, self.bandwidth, self.flops),
            chunk_compute_bound_from=compute_bound_batch(
                lambda tokens: self.alone.work(self.chunk(tokens)),
                self.bandwidth,
                self.flops,
            ),
            chunk_itl_floor_s=self.chunk_itl(load.batch),
            binds=binding(decode, self.bandwidth, self.flops),
            ridge=ridge_point(self.flops, self.bandwidth),
            compute_bound_from=compute_from,
            batch_limit=_limit(most, compute_from),
            tpot_floor_s=tpot,
            most_helped=self.most_helped(),
            ttft_floor_s=ttft,
            chunked_ttft_floor_s=self.chunked_ttft(),
            e2el_floor_s=self.e2el(ttft, tpot),
            tokens_per_s=load.batch / tpot if tpot and left >= 0 else None,
            most_tokens_per_s=self.most_tokens_per_s(most),
            served_tokens_per_s=self.served_tokens_per_s() if left >= 0 else None,
            load_pcie_s=load_floor_s(weights, None, machine.device.pcie_bytes_per_s),
            load_storage_s=load_floor_s(stored, machine.storage_bytes_per_s, None),
        )

    def request_kv(self) -> tuple[int, float]:
        """Bytes of a request's KV cache: over all GPUs, and its share on one."""
        load, machine, shape = self.workload, self.machine, self.shape
        whole = kv_bytes(shape, load.context, load.block_tokens)
        stages = machine.pipeline_parallel * machine.data_parallel
        share = whole / (kv_shards(shape, machine.tensor_parallel) * stages)
        if self.draft is None:
            return whole, share
        more = kv_bytes(self.draft, load.context, load.block_tokens)
        # its layers are all on the last stage
        shards = kv_shards(self.draft, self.draft_ways) * machine.data_parallel
        return whole + more, share + more / shards

    def decode(self, batch: int) -> StepWork:
        """The work of a mean step; speculation verifies drafted tokens in it."""
        return self.costs.work(self.answering(batch, self.shape, self.workload.rows))

    def knee(self) -> int | None:
        """Batch size from which weights no longer set the pace of decode."""

        def traffic(batch: int) -> tuple[float, float]:
            sums = self.answering(batch, self.shape, self.workload.rows)
            kv = self.costs.kv_traffic(sums)
            return self.costs.work(sums).bytes_read - kv, kv

        compute_from = compute_bound_batch(self.decode, self.bandwidth, self.flops)
        return knee_batch(traffic, compute_from)

    def answering(self, batch: int, shape: ModelShape, rows: int = 1) -> StepSums:
        """Sums of a mean decode step; pipeline stages share the batch evenly."""
        sums = StepSums.answering(
            self.tokens(batch),
            (self.workload.prompt, self.workload.output),
            shape.window,
            chunked=shape.chunked,
        )
        return sums.verifying(rows - 1)

    def tokens(self, batch: int) -> float:
        """Requests that one stage of one data-parallel rank has at a time."""
        return batch / self.machine.data_parallel / self.stages(batch)

    def stages(self, batch: int) -> int:
        """Number of pipeline stages at work: each works on different requests."""
        return min(batch, self.machine.pipeline_parallel)

    def tpot(self, batch: int) -> float | None:
        """Floor of TPOT: a token passes all pipeline stages in turn.

        With speculation, of a pass and its k drafts, divided by its expected tokens:
        Leviathan et al., arXiv 2211.17192, theorem 3.8.
        """
        step_s = floor_s(self.decode(batch), self.bandwidth, self.flops)
        if self.drafting is None or step_s is None:
            return step_s
        draft_s = self.draft_s(batch) or 0.0
        return (step_s + self.drafting.drafts * draft_s) / self.drafting.tokens_per_pass

    def most_helped(self) -> int | None:
        """The largest batch at which speculation helps: until compute binds."""
        known = self.drafting is not None and self.flops is not None
        return most_helped(self.tpot, self.plain_s) if known else None

    def plain_s(self, batch: int) -> float | None:
        """The same without speculation."""
        work = self.costs.work(self.answering(batch, self.shape))
        return floor_s(work, self.bandwidth, self.flops)

    def draft_s(self, batch: int) -> float | None:
        """Floor of drafting one token for each request."""
        if self.draft is None:
            share = self.drafting.cost_share if self.drafting is not None else 0.0
            return share * (self.plain_s(batch) or 0.0)
        costs = StepCosts.of(self.draft, self.draft_ways)
        work = costs.work(self.answering(batch, self.draft))
        flops = self.machine.device.flops_at(self.draft.compute_dtype)
        return floor_s(work, self.bandwidth, flops)

    def chunk(self, tokens: int, before: int = 0) -> StepSums:
        shape = self.shape
        return StepSums.prefilling(tokens, before, shape.window, chunked=shape.chunked)

    def chunked_ttft(self) -> float | None:
        """The floor of TTFT in chunks; None of more than can be added up quickly."""
        prompt, size = self.workload.prompt, self.workload.chunk
        if prompt > MOST_CHUNKS * size:
            return None
        return self.ttft(
            self.chunk(min(size, prompt - before), before)
            for before in range(0, prompt, size)
        )

    def chunk_itl(self, batch: int) -> float | None:
        """Floor of a step in which a batch decodes and a prompt gets the other tokens.

        Agrawal et al., *Sarathi-Serve*, arXiv 2403.02310, section 4.
        """
        decoding = self.answering(batch, self.shape, self.workload.rows)
        room = int(self.workload.chunk - decoding.tokens)
        if room < 1:
            return None
        both = zip(decoding, self.chunk(room), strict=True)
        work = self.alone.work(StepSums(*map(sum, both)))
        return floor_s(work, self.bandwidth, self.flops)

    def communication(self, batch: int) -> Communication:
        """Of a step and, where a model drafts, of its steps before."""
        load, ways = self.workload, self.machine.ways
        sent = communication(self.shape, ways, load.rows * self.tokens(batch))
        if self.drafting is None or self.draft is None:
            return sent
        alike = Parallelism(tensor_parallel=self.draft_ways)
        one = communication(self.draft, alike, self.tokens(batch))
        steps = self.drafting.drafts
        return Communication(
            sent.sent_bytes + steps * one.sent_bytes, sent.calls + steps * one.calls
        )

    def ttft(self, steps: Iterable[StepSums]) -> float | None:
        """Floor of a single prompt's TTFT; its chunks are spread over all stages."""
        floor = ttft_floor_s(self.alone, steps, self.bandwidth, self.flops)
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
        passes = 1 if self.drafting is None else 1 / self.drafting.tokens_per_pass
        flops += self.stages(load.batch) * passes * step.flops
        compute_s = flops / self.machine.pipeline_parallel / self.flops
        return load.batch / max(compute_s, decode_s)


def _limit(most: int, compute_from: int | None) -> BatchLimit:
    if not most:
        return BatchLimit.WEIGHTS
    if compute_from is not None and compute_from <= most:
        return BatchLimit.COMPUTE
    return BatchLimit.MEMORY
