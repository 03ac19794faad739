"""The breakdown: where the time of all ended requests went."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Vantage
from inferwatch.formatting import about, counted, duration_text, format_share
from inferwatch.metrics.causes.cause import (
    ESTIMATES,
    MEDIA_CAUSES,
    PREFILL_CAUSES,
    QUEUE_CAUSES,
    SPOKEN,
    Cause,
)
from inferwatch.metrics.number import Better, Number, Unit, piece
from inferwatch.metrics.requests.request_groups import GroupBy
from inferwatch.metrics.series.window import Quantiles


class BreakdownPhase(StrEnum):
    """What the parts of an E2EL are told by, in order."""

    TOKENISE = "tokenise"
    API = "API"
    MEDIA = "media"
    QUEUE = "queue"
    PREFILL = "prefill"
    PREEMPTED = "preempted"
    DECODE = "decode"
    PROMPTS = "others' prompts"
    """What prompts of others added to the steps it decoded in."""
    STALLS = "stalls"
    """While it decoded: no step ran, or none that it was in."""
    SEND = "send"
    UNKNOWN = "unknown"


CAUSES_OF: Mapping[BreakdownPhase, tuple[Cause, ...]] = {
    BreakdownPhase.TOKENISE: (Cause.TOKENISE,),
    BreakdownPhase.API: (Cause.API,),
    BreakdownPhase.MEDIA: MEDIA_CAUSES,
    BreakdownPhase.QUEUE: QUEUE_CAUSES,
    BreakdownPhase.PREFILL: tuple(
        each for each in PREFILL_CAUSES if each is not Cause.RECOMPUTE
    ),
    BreakdownPhase.PREEMPTED: (Cause.RECOMPUTE,),
    BreakdownPhase.DECODE: (Cause.DECODE,),
    BreakdownPhase.PROMPTS: (Cause.DECODE_PROMPTS,),
    BreakdownPhase.STALLS: (Cause.HOST_STALL, Cause.DECODE_LEFT_OUT),
    BreakdownPhase.SEND: (Cause.SEND,),
    BreakdownPhase.UNKNOWN: (Cause.UNKNOWN,),
}
"""Each of ``E2EL_CAUSES`` is in one."""
ESTIMATED_PHASES = {BreakdownPhase.DECODE, BreakdownPhase.PROMPTS}
"""The two are shares of the same steps; together they are measured."""
SPOKEN_PHASES = {
    **{phase: phase.value for phase in BreakdownPhase},
    BreakdownPhase.TOKENISE: "tokenising",
    BreakdownPhase.API: "the API server before the queue",
    BreakdownPhase.QUEUE: "queueing",
    BreakdownPhase.PREEMPTED: "preemption and recompute",
    BreakdownPhase.PROMPTS: "others' prompts in decode steps",
    BreakdownPhase.STALLS: "stalls while they decoded",
    BreakdownPhase.SEND: "the API server after the last token",
}
"""Names of phases in sentences."""
MOST_SAID = 4
"""Phases that the sentence names at most."""
LEAST_SAID = 0.01
"""The least share that the sentence names."""
DIMENSIONS = (
    *(GroupBy.LENGTH, GroupBy.OUTPUT, GroupBy.CLASS, GroupBy.MODEL),
    *(GroupBy.HEADER, GroupBy.PRIORITY, GroupBy.TIME),
)
"""By what requests are put into buckets."""


@piece("part", Vantage.ENGINE)
class BreakdownPart:
    """What one phase, or one cause of it, took of all requests together."""

    phase: Annotated[
        BreakdownPhase, Number("phase", "Phase", "Which part of the requests' time.")
    ]
    cause: Annotated[
        Cause | None,
        Number("cause", "Cause", "Why, where the phase has several causes."),
    ]
    """None for the phase as a whole."""
    total_ns: Annotated[
        int,
        Number(
            "total",
            "Total",
            "What it took of all requests together; the phases add up to their E2EL.",
            unit=Unit.NANOSECONDS,
            better=Better.LOWER,
        ),
    ]
    share: Annotated[
        float,
        Number(
            "share",
            "Share",
            "Of the E2EL of all requests together.",
            unit=Unit.SHARE,
        ),
    ]
    took_s: Annotated[
        Quantiles | None,
        Number(
            "took",
            "Of one request",
            "Exact percentiles over the requests of which it is known, those without "
            "it included; not those that the engine never told of. Of single causes "
            "they are known over the rolling windows only.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ]

    @property
    def is_estimate(self) -> bool:
        """Whether it is told as a share of steps, to be marked with ``~``."""
        if self.cause is None:
            return self.phase in ESTIMATED_PHASES
        return self.cause in ESTIMATES

    @property
    def share_text(self) -> str:
        text = format_share(self.share)
        return (about(text) if self.is_estimate else text).strip()


@piece("bucket", Vantage.ENGINE)
class BreakdownBucket:
    """What requests that are alike spent their time on."""

    dimension: Annotated[
        GroupBy, Number("by", "By", "What its requests have in common.", here=True)
    ]
    name: Annotated[
        str,
        Number(
            "bucket",
            "Bucket",
            "The value its requests share. Beyond 64 values the rest is one bucket, "
            "others; of times, the latest 1,008 have their own (a week of ten minutes "
            "each), and all before is one, earlier.",
            here=True,
        ),
    ]
    since_ns: Annotated[
        int | None,
        Number(
            "since",
            "Since",
            "When a bucket of time begins, in session time.",
            unit=Unit.NANOSECONDS,
            here=True,
        ),
    ]
    """None in other dimensions, and of the times before those told apart."""
    requests: Annotated[
        int,
        Number(
            "n",
            "Requests of the bucket",
            "How many ended in the window.",
            unit=Unit.REQUESTS,
        ),
    ]
    total_ns: Annotated[
        int,
        Number(
            "total",
            "E2EL together",
            "Their E2EL added up; the buckets of one dimension add up to that of all.",
            unit=Unit.NANOSECONDS,
            better=Better.LOWER,
        ),
    ]
    e2el_s: Annotated[
        Quantiles | None,
        Number(
            "E2EL",
            "E2EL of its requests",
            "Exact percentiles, over the rolling windows only.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ]
    parts: Annotated[
        tuple[tuple[BreakdownPhase, int], ...],
        Number(
            "of which",
            "Its phases",
            "What each phase took of all its requests together; adds up to their E2EL.",
            unit=Unit.NANOSECONDS,
        ),
    ]
    """Without zeros."""


@piece("breakdown", Vantage.ENGINE)
class Breakdown:
    """Where the time of all requests went that ended in the window.

    Each request counts from its arrival at the front end to its last token there, as
    its E2EL does; those that were aborted or failed up to their end. Where only the
    engine reports, from its queue to its end.
    """

    requests: Annotated[
        int,
        Number(
            "requests",
            "Ended requests",
            "How many ended in the window, those that failed or were aborted included.",
            unit=Unit.REQUESTS,
        ),
    ]
    total_ns: Annotated[
        int,
        Number(
            "E2EL",
            "E2EL together",
            "From arrival to end, of all of them added up.",
            unit=Unit.NANOSECONDS,
            better=Better.LOWER,
        ),
    ]
    left_out: Annotated[
        int,
        Number(
            "left out",
            "Requests left out",
            "Ended requests of this session whose arrival was not seen.",
            unit=Unit.REQUESTS,
            span="session",
        ),
    ]
    detokenised_s: Annotated[
        Quantiles | None,
        Number(
            "detokenising",
            "Detokenising and handing over",
            "After the E2EL, so no part of it: from when the last outputs reached the "
            "front end until it had detokenised them and put them into the answer. "
            "Told by a probe, of requests that were not aborted.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ]
    """None where nobody told."""
    phases: Annotated[
        tuple[BreakdownPart, ...],
        Number("by phase", "By phase", "What each phase took, in order."),
    ]
    """Each phase that took time; adds up to ``total_ns``."""
    causes: Annotated[
        tuple[BreakdownPart, ...],
        Number(
            "by cause",
            "By cause",
            "The same by cause, of the phases with several of them.",
        ),
    ]
    buckets: Annotated[
        tuple[BreakdownBucket, ...],
        Number(
            "by bucket",
            "By bucket",
            "The same of requests that are alike, in one dimension after the other.",
        ),
    ]
    """Of each dimension in which requests differ or a value is known."""

    def of(self, dimension: GroupBy) -> tuple[BreakdownBucket, ...]:
        """Return the buckets of one dimension."""
        return tuple(each for each in self.buckets if each.dimension is dimension)

    def causes_of(self, phase: BreakdownPhase) -> tuple[BreakdownPart, ...]:
        """Return the causes of a phase that has several."""
        return tuple(each for each in self.causes if each.phase is phase)

    @property
    def sentence(
        self,
    ) -> Annotated[
        str,
        Number(
            "most",
            "What took most",
            "The phases that took most of the requests' time, as a sentence.",
        ),
    ]:
        """The largest phases, such as "Of 218 s …, ~40% was decode, 22% queueing"."""
        took = duration_text(self.total_ns / NS_PER_S)
        largest = sorted(self.phases, key=lambda each: -each.share)[:MOST_SAID]
        told = [each for each in largest if each.share >= LEAST_SAID]
        if not told:
            return ""
        first, *rest = (self._said(each) for each in told)
        words = ", ".join(
            [
                f"{told[0].share_text} was {first}",
                *(
                    f"{each.share_text} {text}"
                    for each, text in zip(told[1:], rest, strict=True)
                ),
            ]
        )
        return f"Of {took} that {counted(self.requests, 'request')} took, {words}"

    def _said(self, part: BreakdownPart) -> str:
        """Return a phase in words, with the cause that took most of it."""
        name = SPOKEN_PHASES[part.phase]
        causes = self.causes_of(part.phase)
        if not causes:
            return name
        most = max(causes, key=lambda each: each.total_ns)
        how = "most of it" if 2 * most.total_ns > part.total_ns else "above all"
        cause = SPOKEN[most.cause or Cause.UNKNOWN]
        return f"{name} ({how} {cause}, {most.share_text})"
