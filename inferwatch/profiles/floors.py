"""Floors of the classes of a step: the least time the hardware allows for their work.

As in :mod:`inferwatch.limits.step`, part by part: the linear layers and the head, the
routed experts, and attention. They add up to no less than the floor of the step, in
which memory and compute may take turns.
"""

import re
from typing import NamedTuple

from inferwatch.limits.shape import ModelShape
from inferwatch.metrics.floor.rank import StepNeeds
from inferwatch.profiles.report import ClassCosts, KernelClass

_SUMS = r"\(sq(\d{1,18})sk(\d{1,18})sqsq(\d{1,18})sqsk(\d{1,18})\)"
_COUNT = r"(\d{1,18})"
"""Digits of 64 bits: what has more is no number of vLLM's."""
DETAILED = re.compile(
    rf"execute_{_COUNT}_context_{_COUNT}{_SUMS}_generation_{_COUNT}{_SUMS}"
)
"""vLLM's name of a step with ``detailed_trace_annotation`` (``gpu_worker.py``)."""
PLAIN = re.compile(
    rf"execute_context_{_COUNT}\({_COUNT}\)_generation_{_COUNT}\({_COUNT}\)"
)


class StepShape(NamedTuple):
    """A step as vLLM's annotation has it."""

    prefill_requests: int
    prefill_tokens: int
    decode_requests: int
    decode_tokens: int
    read_tokens: int | None = None
    """Sum of the sequences' lengths, those scheduled included; None if not told."""
    pairs: float | None = None
    """Pairs of a query and a key at or before it."""

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decode_tokens

    @property
    def requests(self) -> int:
        return self.prefill_requests + self.decode_requests


def step_shape(name: str) -> StepShape | None:
    """Return what an annotation tells of a step; None if it is of something else.

    A query at place ``i`` of ``q`` new ones after ``k - q`` others sees ``k - q + i``
    keys, so that there are ``q k - q (q - 1) / 2`` pairs.

    >>> step_shape("execute_context_1(39)_generation_5(5)").tokens
    44
    """
    if (found := DETAILED.fullmatch(name)) is not None:
        _, prefills, *prefill, decodes, new, length, squares, products = map(
            int, found.groups()
        )
        tokens, lengths, prefill_squares, prefill_products = prefill
        pairs = prefill_products - (prefill_squares - tokens) / 2
        pairs += products - (squares - new) / 2
        return StepShape(prefills, tokens, decodes, new, lengths + length, pairs)
    if (found := PLAIN.fullmatch(name)) is not None:
        return StepShape(*map(int, found.groups()))
    return None


def class_floors(
    shape: StepShape, costs: ClassCosts | None
) -> dict[KernelClass, float]:
    """Return the floors of a step's classes in nanoseconds, as far as known."""
    if costs is None:
        return {}
    tokens = shape.tokens

    def floor_ns(n_bytes: float, flops: float) -> float:
        return max(n_bytes * costs.ns_per_byte, flops * costs.ns_per_flop)

    head = costs.sequence_flops * shape.requests
    floors = {
        KernelClass.GEMM: floor_ns(
            costs.linear_bytes, costs.linear_flops * tokens + head
        )
    }
    if costs.expert_bytes:
        used = costs.expert_bytes * (1 - costs.untouched**tokens)
        floors[KernelClass.MOE] = floor_ns(used, costs.expert_flops * tokens)
    if shape.read_tokens is not None and shape.pairs is not None:
        floors[KernelClass.ATTENTION] = floor_ns(
            costs.kv_token_bytes * shape.read_tokens, costs.pair_flops * shape.pairs
        )
    return {kind: each for kind, each in floors.items() if each}


def class_costs(needs: StepNeeds | None) -> ClassCosts | None:
    """Return the costs of a rank's classes; None where its model is not known.

    With sliding windows, how much each layer reads is not told by a trace: attention
    then has no floor.
    """
    if needs is None or needs.shape is None:
        return None
    has_windows = bool(needs.window_bytes)
    expert_flops = _expert_flops(needs.shape)
    return ClassCosts(
        linear_bytes=needs.fixed_bytes,
        expert_bytes=needs.expert_bytes,
        untouched=needs.untouched,
        kv_token_bytes=0.0 if has_windows else needs.context_bytes,
        linear_flops=max(needs.token_flops - expert_flops, 0.0),
        expert_flops=expert_flops,
        sequence_flops=needs.sequence_flops,
        pair_flops=0.0 if has_windows else needs.pair_flops,
        ns_per_byte=needs.ns_per_byte,
        ns_per_flop=needs.ns_per_flop,
    )


def _expert_flops(shape: ModelShape) -> float:
    """FLOP of a token in routed experts: two per parameter of those it uses."""
    experts = shape.experts
    if experts is None:
        return 0.0
    matrices = 3 if shape.gated else 2
    one = matrices * shape.hidden * experts.ffn
    return 2.0 * one * experts.per_token * experts.layers
