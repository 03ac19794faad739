"""Costs of one rank's steps as constants, from which a step's floor follows.

The arithmetic is that of ``limits.step``, arranged so that a step takes a few products,
whichever its members. Work is that of all tensor-parallel GPUs together: replicated KV
heads count as often as they are read, against the GPUs' combined peak; all-reduce is
left out. Each pipeline stage does its share of a step. While several batches are in
flight, results come as often as the slowest stage allows, so a step's floor is its work
over the combined peak of all stages; for one token the stages add up.
"""

from dataclasses import dataclass
from typing import Self

from collectors.contract.readings import EngineInfo
from inferwatch.limits.cache import kv_bytes_per_token
from inferwatch.limits.parameters import weight_bytes
from inferwatch.limits.shape import ModelShape
from inferwatch.limits.step import StepCosts
from inferwatch.metrics.floor.curve import FloorCurve
from inferwatch.metrics.floor.derived import RankTraffic, StepTraffic
from inferwatch.metrics.floor.view import EnginePeak

NS_PER_S = 1e9
ELEMENT_BYTES = {"float32": 4, "float": 4, "float8_e4m3fn": 1, "fp8": 1}
"""Bytes per element, by dtype; others have two."""
SAME = 0.98
"""Ratio of loaded to derived weights from which on both count as equal."""


@dataclass(slots=True, kw_only=True)
class StepNeeds:
    """Costs of one rank's steps; computed again when anything about it changes."""

    shape: ModelShape | None
    peak: EnginePeak
    fixed_bytes: float
    """Bytes that each step reads: weights without experts, and the LM head."""
    token_bytes: float
    """Bytes of embedding rows per token."""
    context_bytes: float
    """KV bytes per token in layers with full attention."""
    window_bytes: float
    """KV bytes per token in sliding-window layers."""
    expert_bytes: float
    untouched: float
    token_flops: float
    sequence_flops: float
    pair_flops: float
    window_pair_flops: float
    ns_per_byte: float
    """0 where the peak is unknown, so it bounds nothing; likewise ``ns_per_flop``."""
    ns_per_flop: float
    latency: int = 1
    """Number of pipeline stages, which add up for one token."""

    @classmethod
    def of_shape(cls, shape: ModelShape, info: EngineInfo, peak: EnginePeak) -> Self:
        """Return the step costs of a rank whose model shape is known."""
        gpus = info.tensor_parallel or 1
        costs = StepCosts.of(shape, gpus)
        loaded, derived = info.weight_bytes, weight_bytes(shape)
        # Reads are at most what was loaded: the real format may be smaller.
        read = loaded / derived if loaded and loaded < SAME * derived else 1.0
        return cls(
            shape=shape,
            peak=peak,
            fixed_bytes=gpus * read * (costs.weight_bytes + costs.head_bytes),
            token_bytes=gpus * costs.row_bytes,
            context_bytes=gpus * costs.kv_full_bytes,
            window_bytes=gpus * costs.kv_window_bytes,
            expert_bytes=gpus * read * costs.expert_bytes,
            untouched=costs.untouched,
            token_flops=gpus * costs.token_flops,
            sequence_flops=gpus * costs.sequence_flops,
            pair_flops=gpus * costs.pair_flops,
            window_pair_flops=gpus * costs.window_pair_flops,
            ns_per_byte=_ns_per(peak.bytes_per_s),
            ns_per_flop=_ns_per(peak.flops),
            latency=info.pipeline_parallel or 1,
        )

    @classmethod
    def of_sizes(cls, info: EngineInfo, peak: EnginePeak) -> Self | None:
        """Return step costs from the sizes of weights and KV alone; None without them.

        Only memory bounds the floor. FLOP are those of a dense model without attention.
        """
        if info.weight_bytes is None or info.kv_bytes_per_token is None:
            return None
        dtype = (info.dtype or "").removeprefix("torch.")
        weights = info.weight_bytes / ELEMENT_BYTES.get(dtype, 2)
        return cls(
            shape=None,
            peak=peak,
            fixed_bytes=info.weight_bytes,
            token_bytes=0.0,
            context_bytes=info.kv_bytes_per_token,
            window_bytes=0.0,
            expert_bytes=0.0,
            untouched=1.0,
            token_flops=2 * weights,
            sequence_flops=0.0,
            pair_flops=0.0,
            window_pair_flops=0.0,
            ns_per_byte=_ns_per(peak.bytes_per_s),
            ns_per_flop=0.0,
            latency=info.pipeline_parallel or 1,
        )

    def traffic_of(self, step: RankTraffic) -> StepTraffic:
        tokens = step.tokens
        weights = self.fixed_bytes + self.token_bytes * tokens
        if self.expert_bytes:
            weights += self.expert_bytes * (1 - self.untouched**tokens)
        kv = self.context_bytes * step.context
        if self.window_bytes:
            kv += self.window_bytes * (step.window_context + tokens)
        return StepTraffic(weights, kv)

    def curve(self, context: float) -> FloorCurve:
        """Return the floor by batch size of requests with so much context each."""
        window = self.shape.window if self.shape is not None else None
        seen = context if window is None else min(context, window)
        return FloorCurve(
            tokens_per_request=context,
            fixed_bytes=self.fixed_bytes,
            expert_bytes=self.expert_bytes,
            untouched=self.untouched,
            request_bytes=self.token_bytes
            + self.context_bytes * context
            + self.window_bytes * (seen + 1),
            request_flops=self.token_flops
            + self.sequence_flops
            + self.pair_flops * context
            + self.window_pair_flops * seen,
            bytes_per_s=self.peak.bytes_per_s,
            flops=self.peak.flops if self.ns_per_flop else None,
        )

    def flops_of(self, step: RankTraffic, sequences: int) -> float:
        flops = (
            self.token_flops * step.tokens
            + self.sequence_flops * sequences
            + self.pair_flops * step.pairs
        )
        if self.window_pair_flops:
            flops += self.window_pair_flops * step.window_pairs
        return flops


def sizes_of(shape: ModelShape | None, info: EngineInfo) -> tuple[int | None, ...]:
    """Return bytes of weights and of KV per token: as loaded, else from the shape."""
    weights, per_token = info.weight_bytes, info.kv_bytes_per_token
    if shape is not None:
        weights = weight_bytes(shape) if weights is None else weights
        if per_token is None:
            per_token = round(kv_bytes_per_token(shape))
    return weights, per_token


def _ns_per(rate: float | None) -> float:
    return NS_PER_S / rate if rate else 0.0
