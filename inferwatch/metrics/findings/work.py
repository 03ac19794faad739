"""Diagnoses of the work itself: memory-bound, compute-bound, mixed steps."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from inferwatch.formatting import duration_text
from inferwatch.limits.cache import kv_bytes, kv_shards
from inferwatch.limits.devices import Device, device_named
from inferwatch.limits.parameters import gpu_weight_bytes
from inferwatch.limits.plan import PROCESS_BYTES, GpuSetup, step_estimate_s
from inferwatch.limits.roofline import CHECK
from inferwatch.limits.shape import ModelShape
from inferwatch.limits.step import StepSums
from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.findings.diagnosis import Diagnosis, FindingCost
from inferwatch.metrics.findings.facts import Facts, FlagValue, now
from inferwatch.metrics.findings.finding import Effort, Evidence, Knob, Subject
from inferwatch.metrics.findings.flag_values import more_seqs
from inferwatch.metrics.findings.queue import shed
from inferwatch.metrics.floor.view import Bound, EnginePeak

ITL = ("itl_s", "tpot_s", "e2el_s")


class PrefillStalls(Diagnosis):
    """Output tokens come late because long prompts are computed in the same steps."""

    NAME, TITLE = "prefill_stalls_decode", "prefill stalls decode"
    SUBJECT = Subject.ENGINE
    MANY = "let tokens come late while prompts are computed"
    MISSES = ITL
    SHARE = 0.25
    """Share of the time between tokens that mixed steps add, 0-1."""
    LONGER = 4
    """Ratio of a mixed step to one that only decodes."""
    MISSED_SHARE = 0.1

    def holds(self, facts: Facts) -> FindingCost | None:
        mixed = facts.mixed
        if mixed is None or mixed.mean_s < self.LONGER * mixed.usual_s:
            return None
        least = self.MISSED_SHARE if facts.around.slo is not None else self.SHARE
        if mixed.delay_share < least:
            return None
        return FindingCost(
            mixed.delay_share, f"{mixed.delay_share:.0%} of the time between tokens"
        )

    def sentence(self, facts: Facts) -> str:
        mixed = facts.mixed
        if mixed is None:
            return ""
        return (
            f"Steps with prompts make those in decode wait {mixed.mean_s * 1e3:,.0f} "
            "ms "
            f"for a token instead of {mixed.usual_s * 1e3:,.1f} ms"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        mixed = facts.mixed
        if mixed is None:
            return ()
        text = (
            f"a step of {mixed.worst_s * 1e3:,.0f} ms with {mixed.worst_tokens:,} "
            "prompt "
            f"tokens, the longest of {mixed.steps:,} in 10 s"
        )
        return (Evidence(text=text, page="steps", t_ns=mixed.worst_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (
            now(
                "Send long prompts to a server of their own",
                "ITL spikes end here",
            ),
            facts.flag(
                "max_num_batched_tokens",
                "Lower the tokens that a step may compute",
                "ITL spikes shrink in proportion; TTFT of long prompts rises",
                lower=True,
            ),
            facts.flag(
                "long_prefill_token_threshold",
                "Cap what a long prompt gets of a step",
                "ITL spikes shrink; TTFT of long prompts rises",
            ),
        )


class MemoryBound(Diagnosis):
    """Decode uses most of the memory bandwidth, and requests still wait."""

    NAME, TITLE = "memory_bound", "memory-bound decode"
    SUBJECT = Subject.ENGINE
    MANY = "decode as fast as their memory allows"
    MISSES = ITL
    FULL = 0.6

    def holds(self, facts: Facts) -> FindingCost | None:
        mbu = self._mbu(facts)
        if mbu is None or mbu < self.FULL or not matters(facts):
            return None
        return FindingCost(mbu / 2, f"decode at {mbu:.0%} of the memory's bandwidth")

    def sentence(self, facts: Facts) -> str:
        return (
            f"Decode moves {self._mbu(facts) or 0:.0%} of what memory can, and "
            "requests "
            "wait: more batch or fewer bytes a token, not more compute"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        limits = facts.limits
        point = limits.decode if limits else None
        floor_s = point.floor_s if point else None
        text = "decode under the memory roof"
        if point is not None and floor_s is not None:
            text = f"steps of {point.step_s * 1e3:.1f} ms, floor {floor_s * 1e3:.1f} ms"
        return (Evidence(text=text, page="limits", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (
            shed(facts),
            facts.flag(
                "max_num_seqs",
                "Let more decode together: weights are read once for all",
                "tokens/s rise, ITL rises a little",
                value=more_seqs(facts),
            ),
            facts.flag(
                "quantization",
                "Load weights of fewer bits",
                "fewer bytes a step; ITL falls",
                Effort.RESTART,
                Effort.OUTPUT,
            ),
            facts.flag(
                "kv_cache_dtype",
                "Keep the KV cache in FP8",
                "fewer bytes for long contexts",
                Effort.RESTART,
                Effort.OUTPUT,
                also=" fp8",
            ),
            *self._speculative(facts),
        )

    def _speculative(self, facts: Facts) -> tuple[Knob, ...]:
        """Return the flag for speculative decoding, unless it is already on."""
        if facts.speculates:
            return ()
        return (
            Knob(
                text="Decode speculatively",
                flag="--speculative-config",
                expected="several tokens for one reading of the weights",
                effort=(Effort.RESTART,),
            ),
        )

    def _mbu(self, facts: Facts) -> float | None:
        limits = facts.limits
        if limits is None or limits.decode is None:
            return None
        if limits.decode.bound is not Bound.MEMORY:
            return None
        values = [limits.measured_mbu, limits.decode.mbu]
        return next((each for each in values if each is not None), None)


class ComputeBound(Diagnosis):
    """Prefill uses most of the compute, and requests still wait."""

    NAME, TITLE = "compute_bound", "compute-bound"
    SUBJECT = Subject.ENGINE
    EXPLAINS = (Cause.PREFILL, Cause.PREFILL_SHARED)
    MANY = "compute as fast as they can"
    MISSES = ("ttft_s", "tpot_s", "itl_s", "e2el_s")
    FULL, IMPOSSIBLE = 0.5, 1.1
    """Shares of the peak: above the second the peak is wrong, and nothing follows."""

    def holds(self, facts: Facts) -> FindingCost | None:
        mfu = self._mfu(facts)
        if mfu is None or not self.FULL <= mfu <= self.IMPOSSIBLE:
            return None
        if not matters(facts):
            return None
        mfu = min(mfu, 1.0)
        busy = facts.busy_share()
        return FindingCost(mfu * busy, f"{mfu:.0%} of the peak, {busy:.0%} of the time")

    def sentence(self, facts: Facts) -> str:
        return (
            f"Steps with prompts reach {min(self._mfu(facts) or 0, 1):.0%} of the peak "
            "FLOP/s, and requests wait: only faster or more hardware computes more"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        done = facts.steps.sums.get("prefill_tokens", 0)
        text = f"{done:,} prompt tokens computed in the last 10 s"
        return (Evidence(text=text, page="limits", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        if facts.on_cpu:
            return (shed(facts),)
        return (
            shed(facts),
            facts.flag(
                "quantization",
                "Compute in FP8 where the GPU can",
                "up to twice the FLOP/s",
                Effort.RESTART,
                Effort.OUTPUT,
            ),
            facts.flag(
                "tensor_parallel_size",
                "Spread the model over more GPUs",
                "TTFT falls, less than in proportion",
            ),
        )

    def _mfu(self, facts: Facts) -> float | None:
        limits = facts.limits
        if limits is None or limits.prefill is None:
            return None
        if limits.prefill.bound is not Bound.COMPUTE:
            return None
        return limits.prefill.mfu


@dataclass(frozen=True, slots=True)
class _Halved:
    """A decode step on the engine's GPUs and on half of them, both estimated."""

    gpus: int
    batch: int
    now_s: float
    half_s: float


class TensorParallelTooHigh(Diagnosis):
    """Two replicas on the same GPUs would decode as fast: sharing layers costs more."""

    NAME, TITLE = "tensor_parallel_too_high", "TP too high for this batch"
    SUBJECT = Subject.ENGINE
    MANY = "share layers among more GPUs than help"
    COST = 0.05
    """Small, so that it stands below what makes requests slow."""

    def holds(self, facts: Facts) -> FindingCost | None:
        halved = _halved(facts)
        if halved is None:
            return None
        return FindingCost(self.COST, "what its GPUs send each other")

    def sentence(self, facts: Facts) -> str:
        halved = _halved(facts)
        if halved is None:
            return ""
        return (
            f"Two replicas on its {halved.gpus} GPUs would share batches of "
            f"{halved.batch:,} and decode as fast: what GPUs send each other takes "
            "what sharing saves"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        halved = _halved(facts)
        if halved is None:
            return ()
        text = (
            f"a step takes ~{duration_text(halved.now_s)} on {halved.gpus} GPUs, and "
            f"with half the batch ~{duration_text(halved.half_s)} on "
            f"{halved.gpus // 2}: floors and an estimate of communication"
        )
        return (Evidence(text=text, page="limits", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        halved = _halved(facts)
        if halved is None:
            return ()
        half = halved.gpus // 2
        why = f"its weights and half of the KV in use fit on {half}"
        return (
            facts.flag(
                "tensor_parallel_size",
                "Share layers among half the GPUs and start a replica on the others",
                "tokens as fast or faster, and a smaller failure when one stops",
                Effort.RESTART,
                value=FlagValue(half, why),
            ),
        )


def _halved(facts: Facts) -> _Halved | None:
    """The decode step of one of two replicas; None if slower, too big, or unknown."""
    info, limits = (facts.infos[0] if facts.infos else None), facts.limits
    if info is None or limits is None or limits.shape is None or facts.speculates:
        return None
    gpus, device = info.tensor_parallel or 1, _device(limits.peak)
    context, rows = limits.tokens_per_request, facts.steps.rows
    whole = facts.steps.sums.get("batch", 0)
    if gpus % 2 or device is None or not context or not whole:
        return None
    shape, ranks = limits.shape, info.data_parallel or 1
    if shape.experts is not None and ranks > 1:
        return None
    batch = max(round(whole / rows), 1)
    now = GpuSetup(
        device=device,
        tensor_parallel=gpus,
        pipeline_parallel=info.pipeline_parallel or 1,
    )
    share = facts.setting("gpu_memory_utilization")
    if isinstance(share, float):
        now = replace(now, memory_share=share)
    held = ceil(((facts.running or 0) + (facts.waiting or 0)) / facts.ranks)
    return _compared(shape, now, (batch, max(held, batch)), ceil(context))


@lru_cache(maxsize=16)
def _compared(
    shape: ModelShape, now: GpuSetup, requests: tuple[int, int], context: int
) -> _Halved | None:
    """The same, for requests that decode in a step and that are there at a time."""
    batch, held = requests
    half = replace(now, tensor_parallel=now.tensor_parallel // 2)
    now_s, half_s = (
        step_estimate_s(shape, machine, _decoding(shape, n, context))
        for machine, n in ((now, batch), (half, ceil(batch / 2)))
    )
    if now_s is None or half_s is None or half_s > now_s:
        return None
    if not _fits(shape, half, ceil(held / 2), context):
        return None
    return _Halved(now.tensor_parallel, batch, now_s, half_s)


def _decoding(shape: ModelShape, requests: int, context: int) -> StepSums:
    return StepSums.decoding(requests, context, shape.window, chunked=shape.chunked)


def _fits(shape: ModelShape, half: GpuSetup, requests: int, context: int) -> bool:
    """Whether weights and KV of so many requests fit, beside what a process takes."""
    ways, stages = half.tensor_parallel, half.pipeline_parallel
    kv = requests * kv_bytes(shape, context) / kv_shards(shape, ways) / stages
    used = gpu_weight_bytes(shape, ways, stages) + kv + PROCESS_BYTES
    return used <= half.device.memory_bytes * half.memory_share


def _device(peak: EnginePeak) -> Device | None:
    """One of the engine's GPUs with its share of their peak; None if unknown."""
    device = device_named(peak.device or "")
    if device is None or peak.bytes_per_s is None:
        return None
    flops = device.flops
    if peak.flops is not None and peak.dtype is not None:
        flops = {peak.dtype: peak.flops / peak.devices}
    return replace(device, bytes_per_s=peak.bytes_per_s / peak.devices, flops=flops)


class FasterThanFloor(Diagnosis):
    """Steps were faster than the hardware allows, so a number is wrong."""

    NAME, TITLE = "impossible", "faster than possible"
    SUBJECT = Subject.MEASURING
    MANY = "are faster than their hardware allows"
    LEAST = 0.1
    """Share of the steps, 0-1."""

    def holds(self, facts: Facts) -> FindingCost | None:
        limits = facts.limits
        wrong = limits.impossible if limits else None
        if wrong is None or wrong.steps < self.LEAST * max(facts.steps.rows, 1):
            return None
        return FindingCost(0.01, "nothing but trust in the numbers")

    def sentence(self, facts: Facts) -> str:
        wrong = facts.limits.impossible if facts.limits else None
        ratio = wrong.worst_ratio if wrong else 0.0
        return f"Steps were up to {ratio:.1f} times faster than their floor: {CHECK}"

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        wrong = facts.limits.impossible if facts.limits else None
        t_ns = wrong.t_ns if wrong else facts.now_ns
        n = wrong.steps if wrong else 0
        text = f"{n:,} steps below their floor"
        return (Evidence(text=text, page="limits", t_ns=t_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        del facts
        return ()


def matters(facts: Facts) -> bool:
    """Return whether requests wait or an objective is missed."""
    slo = facts.around.slo
    if slo is not None and slo.judged:
        return slo.met is False
    return bool(facts.waiting) and (facts.oldest_wait_s or 0.0) >= 1.0
