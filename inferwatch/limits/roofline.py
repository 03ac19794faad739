"""Position of steps under the roofline, and detection of impossible measurements.

Williams, Waterman and Patterson, *Roofline: an insightful visual performance model for
multicore architectures*, CACM 52/4, 2009.
"""

from collections.abc import Callable

from inferwatch.limits.step import StepWork

MOST_REQUESTS = 1 << 24
CHECK = "check clocks, dtype, speculative decoding or the measurement"
IMPOSSIBLE = f"impossible: {CHECK}"
"""Message for a number below its floor."""
MEASURE_AGAIN = (
    "measure the peak again while little else runs: inferwatch doctor --measure-peak"
)
"""Instead of the check where the peak was measured: a busy host measures too little."""


def ridge_point(flops: float | None, bytes_per_s: float | None) -> float | None:
    """FLOP per byte from which on work is compute-bound: F / BW."""
    if flops is None or not bytes_per_s:
        return None
    return flops / bytes_per_s


def mbu(bytes_moved: float, time_s: float, bytes_per_s: float) -> float:
    """Memory bandwidth utilisation: achieved bytes/s ÷ peak.

    Databricks, *LLM inference performance engineering: best practices*, 2023.
    """
    return bytes_moved / time_s / bytes_per_s


def mfu(flops_done: float, time_s: float, flops: float) -> float:
    """Model FLOPs utilisation: achieved FLOP/s ÷ peak.

    Chowdhery et al., *PaLM*, arXiv 2204.02311, appendix B.
    """
    return flops_done / time_s / flops


def is_possible(
    measured: float | None, least: float | None, tolerance: float = 0.0
) -> bool | None:
    """Whether a measurement is not below its lower bound; None if either is unknown.

    The tolerance covers data sheets, which round bandwidths by up to 2.5 %.
    """
    if measured is None or least is None:
        return None
    return measured >= least * (1 - tolerance)


def compute_bound_batch(
    work: Callable[[int], StepWork], bytes_per_s: float | None, flops: float | None
) -> int | None:
    """Batch size from which decode is compute-bound; None if it never is.

    ``work`` gives the work of a step for a batch size. FLOP per byte grow with the
    batch (Pope et al., arXiv 2211.05102, section 2.1) up to that of a single request's
    attention, which batching does not change.
    """
    ridge = ridge_point(flops, bytes_per_s)
    if ridge is None:
        return None

    def is_bound(batch: int) -> bool:
        step = work(batch)
        return step.flops >= ridge * step.bytes_read

    return least_batch(is_bound)


def least_batch(holds: Callable[[int], bool]) -> int | None:
    """Return the least batch size from which on ``holds``; None if it never does."""
    if not holds(MOST_REQUESTS):
        return None
    return largest(lambda batch: not holds(batch), MOST_REQUESTS - 1) + 1


def largest(holds: Callable[[int], bool], most: int, least: int = 0) -> int:
    """Return the largest number up to ``most`` that holds, as smaller ones do.

    ``least`` is taken to hold.

    >>> largest(lambda n: n * n < 50, 100), largest(lambda n: False, 3)
    (7, 0)
    """
    low, high = least, most + 1  # low holds, high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def knee_batch(
    traffic: Callable[[int], tuple[float, float]], compute_from: int | None
) -> int | None:
    """Batch size from which weights no longer set the pace; None if they always do.

    ``traffic`` gives the bytes of weights and of KV cache that a step moves. Below the
    knee most of a step reads weights, which all requests share, so a further one costs
    little; beyond it most is KV cache, which each request has its own of (Pope et al.,
    arXiv 2211.05102, section 2.1). While memory binds, tokens/s are half of what ever
    more requests could reach there, and TPOT of a dense model is twice that of a
    request alone. Where compute binds before that, the knee is there.
    """

    def outgrown(batch: int) -> bool:
        weights, kv = traffic(batch)
        return kv >= weights

    by_memory = least_batch(outgrown)
    return min(
        (each for each in (by_memory, compute_from) if each is not None), default=None
    )
