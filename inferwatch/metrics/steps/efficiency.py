"""Efficiency by batch size, and stalls of the scheduler, as screens show them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from collectors.contract.readings import Vantage
from inferwatch.metrics.number import Number, Unit, piece


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPoint:
    """Decode-only steps of one batch size over the window."""

    batch: int
    """Smallest batch size of the point; below that of the next one."""
    steps: int
    step_mean_s: float
    output_tokens_per_s: float
    """Output tokens of these steps / their duration."""


@piece("batch_curve", Vantage.ENGINE)
class BatchCurve:
    """How step time and throughput grow with the batch size."""

    points: Annotated[
        tuple[BatchPoint, ...],
        Number(
            "by batch",
            "Batching efficiency",
            "Mean time of a step, and tokens a second while such steps run, by the "
            "requests in it; only steps that decode alone, each from its batch up to "
            "the next one's. Where tokens a second no longer grow, a larger batch "
            "only makes everybody slower.",
        ),
    ] = ()
    """By batch size, rising."""
    now_batch: Annotated[
        float | None,
        Number(
            "now",
            "Batch now",
            "Where on that curve the engine works: requests per step of late.",
            unit=Unit.REQUESTS,
            span="2 s",
        ),
    ] = None
    prefill_steps: Annotated[
        int,
        Number(
            "mixed",
            "Mixed steps",
            "Steps of the window that prefilled too: the curve leaves them out.",
            unit=Unit.STEPS,
        ),
    ] = 0


class StallKind(StrEnum):
    """The kinds of stalls."""

    GAP = "gap"
    """No step ran though there was work."""
    DECODE = "decode slowed"
    """Decode rate below a quarter of the running median while prefills ran."""
    STARVED = "starved"
    """A request waited while later ones were scheduled, or paused in decode."""


@piece("stall", Vantage.ENGINE)
class Stall:
    """A time in which the scheduler stalled or starved requests."""

    kind: Annotated[
        StallKind,
        Number(
            "stall",
            "Stalls",
            "How the scheduler stalled or failed somebody. gap: no step was under "
            "way, though there was work, for over 20 ms and four usual steps. decode "
            "slowed: while prompts were computed, tokens came at under a quarter of "
            "the running median rate, over a tenth of a second. starved: a request "
            "waited over 1 s while ten later ones were taken, or ran and was left out "
            "of ten steps and 200 ms.",
        ),
    ]
    start_ns: Annotated[
        int,
        Number(
            "from",
            "Start of a stall",
            "Session time at which it began.",
            unit=Unit.NANOSECONDS,
        ),
    ]
    end_ns: Annotated[
        int,
        Number(
            "to",
            "End of a stall",
            "Session time at which it was over, or was last seen to go on.",
            unit=Unit.NANOSECONDS,
        ),
    ]
    evidence: Annotated[
        str,
        Number(
            "evidence",
            "Evidence of a stall",
            "The numbers that make it one, in a sentence.",
        ),
    ]
    step: Annotated[
        int | None,
        Number(
            "step", "Step of a stall", "The step after a gap, or the longest one in it."
        ),
    ] = None
    key: Annotated[
        str | None,
        Number("request", "Who starved", "The request that was passed over."),
    ] = None
