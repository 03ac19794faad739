"""The floor of decode steps by batch size, for requests with the present context."""

from dataclasses import dataclass
from functools import lru_cache

from inferwatch.limits.roofline import compute_bound_batch, knee_batch
from inferwatch.limits.step import StepWork, floor_s


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorCurve:
    """What a decode step of a rank costs, by the number of its requests.

    It holds costs, and no points: who draws it asks for those that are seen.
    """

    tokens_per_request: float
    """Context of each request, as in the mean of the window."""
    fixed_bytes: float
    """Weights that each step reads, without routed experts."""
    expert_bytes: float
    untouched: float
    request_bytes: float
    """KV cache of a request, and its row of the embedding."""
    request_flops: float
    bytes_per_s: float | None
    flops: float | None

    def traffic(self, batch: float) -> tuple[float, float]:
        """Bytes of weights and of KV cache."""
        experts = self.expert_bytes * (1 - self.untouched**batch)
        return self.fixed_bytes + experts, self.request_bytes * batch

    def work(self, batch: float) -> StepWork:
        """Memory traffic and FLOP of a step."""
        return StepWork(sum(self.traffic(batch)), self.request_flops * batch)

    def floor_s(self, batch: float) -> float | None:
        """The least time of a step; None where no peak is known."""
        return floor_s(self.work(batch), self.bytes_per_s, self.flops)

    @property
    def compute_bound_from(self) -> int | None:
        """Batch size from which on compute binds."""
        return _bends(self)[0]

    @property
    def knee(self) -> int | None:
        """Batch size from which on weights no longer set the pace."""
        return _bends(self)[1]


@lru_cache(maxsize=8)
def _bends(curve: FloorCurve) -> tuple[int | None, int | None]:
    """Where compute begins to bind, and the knee: found anew when the curve differs."""
    compute = compute_bound_batch(curve.work, curve.bytes_per_s, curve.flops)
    return compute, knee_batch(curve.traffic, compute)
