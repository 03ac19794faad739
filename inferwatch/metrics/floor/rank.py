"""What one rank's steps must do at least, as numbers that a step is multiplied with.

The arithmetic is that of ``limits.step``: here it is laid out so that a step costs a
few products, whoever its members are. Work is that of all tensor-parallel GPUs
together, so that KV heads of which each has a copy count as often as they are read,
against what these can do together; all-reduce is left out.

Of pipeline stages each does its share of a step. While several batches are under way,
results come as often as the slowest stage allows, hence the floor of a step is its work
over all stages' peaks together; for one token the stages add up.
"""

from dataclasses import dataclass
from typing import Self

from collectors.contract.readings import EngineInfo
from inferwatch.limits.cache import kv_bytes_per_token
from inferwatch.limits.parameters import weight_bytes
from inferwatch.limits.shape import ModelShape
from inferwatch.limits.step import StepCosts
from inferwatch.metrics.floor.derived import RankTraffic, StepTraffic
from inferwatch.metrics.floor.view import EnginePeak

NS_PER_S = 1e9
ELEMENT_BYTES = {"float32": 4, "float": 4, "float8_e4m3fn": 1, "fp8": 1}
"""Of dtypes that have not two."""
SAME = 0.98
"""As loaded, the weights are as large as their shape says."""


@dataclass(slots=True, kw_only=True)
class StepNeeds:
    """What steps of one rank need: constants, made anew when anything is learned."""

    shape: ModelShape | None
    peak: EnginePeak
    fixed_bytes: float
    """Of each step: weights but experts, and the head."""
    token_bytes: float
    """Rows of tables."""
    context_bytes: float
    """KV of a token, in the layers that see all."""
    window_bytes: float
    """KV of a token, in the layers with a window."""
    expert_bytes: float
    untouched: float
    token_flops: float
    sequence_flops: float
    pair_flops: float
    window_pair_flops: float
    ns_per_byte: float
    """0 where no peak is known: it bounds nothing; likewise below."""
    ns_per_flop: float
    latency: int = 1
    """Pipeline stages: for one token they add up."""

    @classmethod
    def of_shape(cls, shape: ModelShape, info: EngineInfo, peak: EnginePeak) -> Self:
        """What steps need where all is known of the model's shape."""
        gpus = info.tensor_parallel or 1
        costs = StepCosts.of(shape, gpus)
        loaded, told = info.weight_bytes, weight_bytes(shape)
        # Read is no more than was loaded: its format may be smaller than was told.
        read = loaded / told if loaded and loaded < SAME * told else 1.0
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
        """Only how large it is: a floor by memory, FLOP as of a plain dense model."""
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
    """Bytes of weights and of a token's KV: as loaded, else as the shape says."""
    weights, per_token = info.weight_bytes, info.kv_bytes_per_token
    if shape is not None:
        weights = weight_bytes(shape) if weights is None else weights
        if per_token is None:
            per_token = round(kv_bytes_per_token(shape))
    return weights, per_token


def _ns_per(rate: float | None) -> float:
    return NS_PER_S / rate if rate else 0.0
