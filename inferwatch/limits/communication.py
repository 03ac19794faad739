"""Communication between the GPUs of a step: an estimate, and no part of a floor.

A floor leaves it out: implementations overlap it with products, or reduce within the
switch. What is estimated here is the usual way, one call after the other.
"""

from dataclasses import dataclass
from typing import NamedTuple

from inferwatch.limits.devices import PCIE, Device
from inferwatch.limits.shape import ModelShape

CALL_S = 10e-6
"""Estimated latency of a collective call between GPUs of a host, as NCCL has it; of a
custom kernel within a CUDA graph it may be half of that."""
ACTIVATION_BYTES = 2
"""Of a value that GPUs send each other: activations have 16 bits."""
HANDED_OVER = 2
"""Tensors between pipeline stages: hidden states and residuals (vLLM)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """The link of a GPU to its fellows."""

    name: str
    """NVLink, or PCIe with its generation."""
    bytes_per_s: float
    """One way."""
    call_s: float = CALL_S


def interconnect_of(device: Device, call_s: float = CALL_S) -> Interconnect | None:
    """The fastest link on the device's data sheet; None where it has none.

    It holds within a host, or within the domain of its switches.
    """
    nvlink, pcie = device.nvlink_bytes_per_s, device.pcie_bytes_per_s
    if nvlink is not None:
        return Interconnect(name="NVLink", bytes_per_s=nvlink, call_s=call_s)
    if pcie is not None:
        name = f"PCIe {PCIE.get(pcie, '')}".strip()
        return Interconnect(name=name, bytes_per_s=pcie, call_s=call_s)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How a replica's GPUs share the model."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False


class Communication(NamedTuple):
    """What each GPU sends while tokens pass all layers."""

    sent_bytes: float
    calls: float

    def time_s(self, link: Interconnect) -> float:
        """Seconds at the link's rate, plus the latency of each call."""
        return self.sent_bytes / link.bytes_per_s + self.calls * link.call_s


def communication(shape: ModelShape, ways: Parallelism, tokens: float) -> Communication:
    """What a GPU sends in one pass of ``tokens`` tokens of its data-parallel rank.

    Tensor parallel: an all-reduce after attention and one after the FFN of each layer
    (Shoeybi et al., *Megatron-LM*, arXiv 1909.08053, section 3), of 2·(n − 1)/n times
    batch × width each on a ring (Patarasuk and Yuan, *Bandwidth optimal all-reduce*,
    JPDC 69/2, 2009). Pipeline parallel: hidden states and residuals to the next stage.
    Experts over several GPUs: see `_exchange`. Embedding and logits are left out.
    """
    n = ways.tensor_parallel
    row = tokens * shape.hidden * ACTIVATION_BYTES
    expert_layers = shape.experts.layers if shape.experts is not None else 0
    exchanges = ways.expert_parallel or ways.data_parallel > 1
    exchanged = expert_layers if exchanges else 0
    reduces = (2 * shape.layers - exchanged) if n > 1 else 0
    sent, calls = reduces * 2 * (n - 1) / n * row, float(reduces)
    if exchanged and n * ways.data_parallel > 1:
        sent += exchanged * 2 * _exchange(shape, ways, row)
        calls += exchanged * 2
    hand_overs = ways.pipeline_parallel - 1
    return Communication(sent + hand_overs * HANDED_OVER * row / n, calls + hand_overs)


def _exchange(shape: ModelShape, ways: Parallelism, row_bytes: float) -> float:
    """Bytes that a GPU sends to bring tokens to experts; back it is as many.

    Expert parallel: all-to-all, each token once to each GPU that has one of its k
    experts, (n − 1)·(1 − (1 − 1/n)^k) others if it is routed evenly (DeepSeek-V3, arXiv
    2412.19437, 3.2.2). Else every GPU has a slice of every expert, and all tokens of
    all ranks: all-gather, then reduce-scatter.
    """
    n = ways.tensor_parallel * ways.data_parallel
    if not ways.expert_parallel or shape.experts is None:
        return row_bytes * ways.data_parallel * (n - 1) / n
    others = (n - 1) * (1 - (1 - 1 / n) ** shape.experts.per_token)
    return row_bytes / ways.tensor_parallel * others
