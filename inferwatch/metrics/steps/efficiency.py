"""What batch sizes cost and bring, and where the scheduler stood still."""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPoint:
    """Steps of one batch size, over the window; only those that decode alone."""

    batch: int
    """Requests in the step: this many at least, and fewer than the next point's."""
    steps: int
    step_mean_s: float
    output_tokens_per_s: float
    """Tokens out of these steps / the time they took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCurve:
    """How step time and throughput grow with the batch: the engine's efficiency."""

    points: tuple[BatchPoint, ...] = ()
    """By batch, rising."""
    now_batch: float | None = None
    """Where the engine works: mean of the last seconds."""
    prefill_steps: int = 0
    """Steps of the window that prefilled too, which are left out."""


class StallKind(StrEnum):
    """How the scheduler failed somebody."""

    GAP = "gap"
    """No step was under way though work waited."""
    DECODE = "decode slowed"
    """Fewer tokens than a quarter of the running median while prefills ran."""
    STARVED = "starved"
    """A request waited while later ones were taken, or stood still in decode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A stretch in which that happened."""

    kind: StallKind
    start_ns: int
    end_ns: int
    evidence: str
    """One sentence with its numbers."""
    step: int | None = None
    """Index of the step after a gap, or of the worst one in it."""
    key: str | None = None
    """Of the request that starved."""
