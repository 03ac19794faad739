"""Lower bounds of user-visible latencies: sums of the floors of their steps.

Communication between GPUs, host overhead and queueing come on top.
"""

from collections.abc import Iterable

from inferwatch.limits.parameters import parameters
from inferwatch.limits.shape import ModelShape
from inferwatch.limits.step import StepCosts, StepSums, floor_s


def prefill_flops(shape: ModelShape, tokens: int, *, causal: bool = False) -> float:
    """FLOP to prefill a prompt, by the usual formula: 2·P·T + 4·L·T²·d of attention.

    Kaplan et al., arXiv 2001.08361, table 1. This is the full square, of which causal
    kernels compute half. ``StepCosts.work`` leaves out the input embedding, and counts
    the head for one token.
    """
    square = tokens * tokens * (0.5 if causal else 1.0)
    attended = 4 * shape.layers * square * shape.heads * shape.head_dim
    return 2 * parameters(shape).active * tokens + attended


def decode_flops(shape: ModelShape, context: int) -> float:
    """FLOP to generate a token after a context, by the usual formula: 2·P + 4·L·S·d."""
    attended = 4 * shape.layers * context * shape.heads * shape.head_dim
    return 2 * parameters(shape).active + attended


def ttft_floor_s(
    costs: StepCosts,
    steps: Iterable[StepSums],
    bytes_per_s: float | None,
    flops: float | None,
) -> float | None:
    """Lower bound of the time to first token of a prompt that does not queue.

    In one step, or in chunks, each of which reads the weights again (Agrawal et al.,
    *Sarathi-Serve*, arXiv 2403.02310, section 3).
    """
    least = 0.0
    for each in steps:
        step_s = floor_s(costs.work(each), bytes_per_s, flops)
        if step_s is None:
            return None
        least += step_s
    return least


def e2el_s(ttft_s: float, tpot_s: float, output_tokens: int) -> float:
    """End-to-end latency: TTFT + (N − 1) · TPOT, as the first token is in TTFT.

    As MLPerf Inference and vLLM's benchmarks define TPOT.
    """
    return ttft_s + max(0, output_tokens - 1) * tpot_s


def load_floor_s(
    weight_bytes: float,
    storage_bytes_per_s: float | None,
    pcie_bytes_per_s: float | None,
) -> float | None:
    """Lower bound of the time to load weights from storage to a GPU: the slower link.

    Both transfers can overlap entirely (Fu et al., *ServerlessLLM*, arXiv 2401.14351,
    section 4).
    """
    known = [each for each in (storage_bytes_per_s, pcie_bytes_per_s) if each]
    return weight_bytes / min(known) if known else None
