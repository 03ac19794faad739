"""The causes that can delay a request, and statistics of the slowest requests.

The parts of a TTFT are measured by the clocks of API server and EngineCore on one host
and add up to it; what no reading explains is *unknown*.
"""

from enum import StrEnum
from typing import Annotated

from collectors.contract.readings import Deferral, Vantage
from inferwatch.metrics.number import Better, Number, Unit, piece


class Cause(StrEnum):
    """Where a part of a request's time went, or why one of its tokens was late."""

    # Parts of a TTFT, in order.
    API = "api"
    """Tokenising and handing over to the engine, without waiting for a running step."""
    MEDIA = "media"
    """Fetching and decoding images, sounds and videos."""
    PREPROCESS = "preprocessing"
    """Of media, by the model's multimodal processor."""
    QUEUE_STEP = "running step"
    """Until the running step ended: engines take requests between two steps."""
    QUEUE_SEQS = "queue: max_num_seqs"
    """Queued because as many requests were running as may."""
    QUEUE_KV = "queue: KV blocks"
    QUEUE_TOKENS = "queue: max_num_batched_tokens"
    """Queued because the step's tokens were used up."""
    QUEUE_GRAMMAR = "queue: grammar"
    """Deferred while the grammar of a structured output was compiled."""
    QUEUE_TRANSFER = "queue: KV transfer"
    """Deferred while a KV connector loaded blocks."""
    QUEUE_ADAPTER = "queue: adapter"
    """Deferred because as many LoRA adapters as may be were in the batch."""
    QUEUE_ENCODER = "queue: encoder"
    """Deferred for the encoder of images or sounds."""
    QUEUE_STREAMING = "queue: streaming input"
    """Deferred until the client sends the rest of its input."""
    QUEUE_HELD = "queue: held prefill"
    """Held back, with room in the batch, for a step that computes prompts."""
    QUEUE_DEFERRED = "queue: deferred"
    """Deferred for a reason that is not known, as in older recordings."""
    QUEUE_OTHER = "queue: other"
    PREFILL = "prefill"
    """Its share, by scheduled tokens, of the time of the steps it was in for prefill.

    An estimate, as is the next.
    """
    PREFILL_SHARED = "prefill: others"
    """The rest of these steps, spent on other requests."""
    PREFILL_DELAYED = "prefill: left out"
    """Between two of its chunks, in steps that had no room for it."""
    PREFILL_HELD = "prefill: held"
    """Between two of its chunks, in steps that were to compute no prompts."""
    RECOMPUTE = "preempted"
    """From a preemption until the discarded tokens are recomputed."""
    SEND = "send"
    """From the engine's first token to the front end's: detokenising and sending."""

    # Parts of an E2EL beside those of the TTFT.
    TOKENISE = "tokenise"
    """From the arrival to the tokenised request, without media; in a TTFT a part of
    ``API``."""
    DECODE = "decode"
    """Of the steps that gave it tokens, what a usual decode-only step takes."""
    DECODE_PROMPTS = "decode: others' prompts"
    """What steps that gave it tokens took beyond that, as they computed prompts, too.

    An estimate, as is the one before in such steps.
    """
    DECODE_LEFT_OUT = "decode: left out"
    """Between two of its tokens, in steps that it was not in."""

    # Causes of a late token.
    LONG_PREFILL = "long prefill"
    """Other requests' prompts were computed in the same step."""
    SLOW_STEP = "slow step"
    """A step of usual size was slow for all requests in it."""
    CLOCK_DROP = "clock drop"
    """A step was slow while the GPU's clocks were throttled."""
    COMPILATION = "compilation"
    """The engine compiled a kernel or recorded a CUDA graph."""
    HOST_STALL = "host stall"
    """No step ran though there was work: the engine's host was late."""
    MERGED = "merged"
    """The client got several tokens at once, though the engine made them in time."""

    # Parts that only a client of ours measures.
    CLIENT = "client"
    """From the intended send to the actual send."""
    NETWORK = "network"
    """From the send to the arrival at the front end."""
    RETURN = "way back"
    """From the front end's first token to the client's."""

    UNKNOWN = "unknown"


CAUSE_OF_DEFERRAL: dict[str | None, Cause] = {
    Deferral.GRAMMAR: Cause.QUEUE_GRAMMAR,
    Deferral.TRANSFER: Cause.QUEUE_TRANSFER,
    Deferral.ADAPTER: Cause.QUEUE_ADAPTER,
    Deferral.ENCODER: Cause.QUEUE_ENCODER,
    Deferral.STREAMING: Cause.QUEUE_STREAMING,
    Deferral.HELD: Cause.QUEUE_HELD,
    None: Cause.QUEUE_DEFERRED,
}
DEFERRAL_CAUSES = tuple(CAUSE_OF_DEFERRAL.values())
QUEUE_CAUSES = (
    Cause.QUEUE_STEP,
    Cause.QUEUE_SEQS,
    Cause.QUEUE_KV,
    Cause.QUEUE_TOKENS,
    *DEFERRAL_CAUSES,
    Cause.QUEUE_OTHER,
)
PREFILL_CAUSES = (
    Cause.PREFILL,
    Cause.PREFILL_SHARED,
    Cause.PREFILL_DELAYED,
    Cause.PREFILL_HELD,
    Cause.RECOMPUTE,
)
MEDIA_CAUSES = (Cause.MEDIA, Cause.PREPROCESS)
TTFT_CAUSES = (
    Cause.API,
    *MEDIA_CAUSES,
    *QUEUE_CAUSES,
    *PREFILL_CAUSES,
    Cause.SEND,
    Cause.UNKNOWN,
)
"""The parts of a TTFT."""
DECODE_CAUSES = (
    Cause.DECODE,
    Cause.DECODE_PROMPTS,
    Cause.HOST_STALL,
    Cause.UNKNOWN,
    Cause.DECODE_LEFT_OUT,
    Cause.RECOMPUTE,
)
"""The parts of the time from the first to the last token; an account of a rank has the
first four."""
E2EL_CAUSES = (
    Cause.TOKENISE,
    Cause.API,
    *MEDIA_CAUSES,
    *QUEUE_CAUSES,
    *PREFILL_CAUSES,
    Cause.DECODE,
    Cause.DECODE_PROMPTS,
    Cause.DECODE_LEFT_OUT,
    Cause.HOST_STALL,
    Cause.SEND,
    Cause.UNKNOWN,
)
"""The parts of an E2EL."""
ESTIMATES = frozenset(
    {Cause.PREFILL, Cause.PREFILL_SHARED, Cause.DECODE, Cause.DECODE_PROMPTS}
)
"""Causes that are told as shares of steps, marked with ``~``."""
ITL_CAUSES = (
    Cause.LONG_PREFILL,
    Cause.RECOMPUTE,
    Cause.CLOCK_DROP,
    Cause.COMPILATION,
    Cause.SLOW_STEP,
    Cause.HOST_STALL,
    Cause.MERGED,
    Cause.UNKNOWN,
)
"""Causes of late tokens."""

SPIKE_FACTOR = 3
SPIKE_LEAST_NS = 5_000_000
"""A spike is a gap longer than both this and a multiple of the median."""

Parts = tuple[tuple[Cause, float], ...]
"""Seconds by cause in the order of ``TTFT_CAUSES``, without zeros."""


@piece("slow_group", Vantage.ENGINE)
class SlowGroup:
    """The slowest requests that lost most time to one cause."""

    cause: Annotated[
        Cause,
        Number("cause", "Cause", "What took the time of some of the slowest requests."),
    ]
    requests: Annotated[
        int,
        Number(
            "requests",
            "Requests",
            "How many of the slowest requests it took most from.",
            unit=Unit.REQUESTS,
        ),
    ]
    share: Annotated[
        float,
        Number(
            "share",
            "Share of their time",
            "Of the TTFT of all of the slowest, what this cause took.",
            unit=Unit.SHARE,
        ),
    ]
    worst_key: Annotated[
        str,
        Number(
            "worst",
            "Who lost most to it",
            "The request that this cause took most time from.",
        ),
    ]
    worst_ttft_s: Annotated[
        float,
        Number(
            "its TTFT",
            "TTFT of that request",
            "The TTFT of the request that this cause took most time from.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ]


SLOW_S = 1.0
"""TTFT of the slowest requests from which they are slow without an objective."""


@piece("slowest", Vantage.FRONTEND)
class SlowRequests:
    """The slowest requests of the window by TTFT, and the causes of their delay.

    These are all requests from the window's p99 on if it has a hundred requests, else
    the slowest tenth, at least one. Only the slowest 64 of each second are kept, and of
    requests more than five minutes old the slowest 1,024.
    """

    n: Annotated[
        int,
        Number(
            "slowest",
            "Slowest requests",
            "How many requests are counted as the slowest by TTFT: those from p99 on, "
            "below a hundred the slowest tenth; at most 64 of one second.",
            unit=Unit.REQUESTS,
        ),
    ]
    of: Annotated[
        int,
        Number(
            "of",
            "Requests with a first token",
            "Of how many requests these are the slowest.",
            unit=Unit.REQUESTS,
        ),
    ]
    from_s: Annotated[
        float,
        Number(
            "from",
            "TTFT of the fastest of them",
            "The shortest TTFT among the slowest requests.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ]
    is_p99: Annotated[
        bool,
        Number("p99", "From p99 on", "Whether these are the requests from p99 on."),
    ]
    ttft_s: Annotated[
        float,
        Number(
            "TTFT",
            "Their TTFT together",
            "The TTFT of all of the slowest requests, added up.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ]
    groups: Annotated[
        tuple[SlowGroup, ...],
        Number(
            "by cause",
            "What made them slow",
            "Their time by cause, the largest share first.",
        ),
    ] = ()
    """One for each cause that took any time; the shares add up to 1."""
    worst_key: Annotated[
        str,
        Number("worst", "The slowest request", "The request with the longest TTFT."),
    ] = ""
    worst_ttft_s: Annotated[
        float,
        Number(
            "worst TTFT",
            "TTFT of the slowest request",
            "The longest TTFT of the window.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = 0.0

    @property
    def sentence(
        self,
    ) -> Annotated[
        str,
        Number(
            "slow by",
            "What took most",
            "The cause that took most of their time, as a sentence.",
        ),
    ]:
        """The main cause, such as "61% of p99 TTFT is queueing for KV blocks"."""
        if not self.groups:
            return ""
        first = self.groups[0]
        whose = "p99 TTFT" if self.is_p99 else "the slowest TTFT"
        return f"{first.share:.0%} of {whose} is {SPOKEN[first.cause]}"


SPOKEN = {
    Cause.API: "the API server before the queue",
    Cause.MEDIA: "fetching media",
    Cause.PREPROCESS: "preprocessing of media",
    Cause.QUEUE_STEP: "waiting for the running step",
    Cause.QUEUE_SEQS: "queueing for max_num_seqs",
    Cause.QUEUE_KV: "queueing for KV blocks",
    Cause.QUEUE_TOKENS: "queueing for max_num_batched_tokens",
    Cause.QUEUE_GRAMMAR: "waiting for grammars to be compiled",
    Cause.QUEUE_TRANSFER: "waiting for KV transfers",
    Cause.QUEUE_ADAPTER: "queueing for LoRA adapters (max_loras)",
    Cause.QUEUE_ENCODER: "queueing for the encoder",
    Cause.QUEUE_STREAMING: "waiting for the rest of streaming inputs",
    Cause.QUEUE_HELD: "waiting for a step that computes prompts",
    Cause.QUEUE_DEFERRED: "deferred in the queue",
    Cause.QUEUE_OTHER: "queueing, held back by the scheduler",
    Cause.PREFILL: "prefill of its own prompt",
    Cause.PREFILL_SHARED: "others in the same prefill steps",
    Cause.PREFILL_DELAYED: "prefill chunks left out",
    Cause.PREFILL_HELD: "prefill chunks held back",
    Cause.RECOMPUTE: "preemption and recompute",
    Cause.SEND: "the API server after the first token",
    Cause.TOKENISE: "tokenising",
    Cause.DECODE: "decode",
    Cause.DECODE_PROMPTS: "others' prompts in decode steps",
    Cause.DECODE_LEFT_OUT: "steps without it while it decoded",
    Cause.LONG_PREFILL: "a long prefill in the same step",
    Cause.SLOW_STEP: "a slow step",
    Cause.CLOCK_DROP: "a drop of the GPU's clocks",
    Cause.COMPILATION: "a compilation",
    Cause.HOST_STALL: "a stall of the engine's host",
    Cause.MERGED: "tokens merged on their way to the client",
    Cause.CLIENT: "the client before its send",
    Cause.NETWORK: "the way to the server",
    Cause.RETURN: "the way back to the client",
    Cause.UNKNOWN: "unknown",
}
"""Names of causes in sentences."""
