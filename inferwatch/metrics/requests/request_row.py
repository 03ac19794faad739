"""One request as screens show it."""

from enum import StrEnum
from typing import Annotated

from collectors.contract.readings import Vantage
from inferwatch.metrics.causes.cause import Cause, Parts
from inferwatch.metrics.number import Better, Number, Unit, piece


def sequence_of(request_id: str, external_id: str | None) -> int | None:
    """Return the number of a sequence in its reply; None if it is the only one.

    vLLM puts the number before its own id, which begins with that of the client.

    >>> sequence_of("2_cmpl-7f3a-0-9b1c", "cmpl-7f3a-0"), sequence_of("2_a-9b1c", "2_a")
    (2, None)
    """
    number, _, rest = request_id.partition("_")
    if external_id and number.isdecimal() and rest.startswith(external_id):
        return int(number)
    return None


def sent_id(request_id: str, external_id: str | None) -> str:
    """Return an id that is the same for all sequences of one request.

    >>> sent_id("2_cmpl-7f3a-0-9b1c", "cmpl-7f3a-0"), sent_id("cmpl-7f3a-0-9b1c", None)
    ('cmpl-7f3a-0-9b1c', 'cmpl-7f3a-0-9b1c')
    """
    is_only = sequence_of(request_id, external_id) is None
    return request_id if is_only else request_id.partition("_")[2]


def request_name(request_id: str, external_id: str | None) -> str:
    """Return the client's request id, with the sequence's number if it is of several.

    >>> request_name("2_cmpl-7f3a-0-9b1c", "cmpl-7f3a-0"), request_name("r7", None)
    ('cmpl-7f3a-0[2]', 'r7')
    """
    number = sequence_of(request_id, external_id)
    name = external_id or request_id
    return name if number is None else f"{name}[{number}]"


class RequestState(StrEnum):
    """How far a request has come, or how it ended."""

    ARRIVED = "arrived"
    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"

    @property
    def live(self) -> bool:
        return self not in {
            RequestState.FINISHED,
            RequestState.ABORTED,
            RequestState.FAILED,
        }


@piece("request", Vantage.ENGINE)
class RequestRow:
    """One request, as far as it is known."""

    key: Annotated[
        str, Number("key", "Key", "The request's name within this session.", here=True)
    ]
    """Source and internal id; does not change within a session."""
    request_id: Annotated[
        str,
        Number("id", "Internal id", "The engine's own id for the request.", here=True),
    ]
    external_id: Annotated[
        str | None,
        Number(
            "client id",
            "External id",
            "The id that clients and the server's log use.",
            vantage=Vantage.FRONTEND,
        ),
    ] = None
    sequence: Annotated[
        int | None,
        Number(
            "sequence",
            "Sequence",
            "Which answer of several it is, as the reply counts its choices: a "
            "request with n=4 is four sequences, 0 to 3, with a row each.",
            here=True,
        ),
    ] = None
    """None if it is the only one."""
    ordinal: Annotated[
        int | None, Number("#", "Ordinal", "The number that steps use for the request.")
    ] = None
    state: Annotated[
        RequestState,
        Number(
            "state",
            "State",
            "Where the request is: arrived, queued, prefill, decode, preempted, "
            "finished, aborted or failed.",
            here=True,
        ),
    ] = RequestState.ARRIVED
    arrived_ns: Annotated[
        int,
        Number(
            "arrived",
            "Arrival",
            "Session time at which it arrived at the API server; where that is "
            "unknown, in the engine.",
            unit=Unit.NANOSECONDS,
            vantage=Vantage.FRONTEND,
        ),
    ] = 0
    added_ns: Annotated[
        int | None,
        Number(
            "added",
            "Added to the queue",
            "Session time since which it has been in the engine's queue.",
            unit=Unit.NANOSECONDS,
        ),
    ] = None
    prompt_tokens: Annotated[
        int | None,
        Number("prompt", "Prompt tokens", "Length of its prompt.", unit=Unit.TOKENS),
    ] = None
    cached_tokens: Annotated[
        int | None,
        Number(
            "cached",
            "Cached tokens",
            "Prompt tokens that were found in the prefix cache.",
            unit=Unit.TOKENS,
            better=Better.HIGHER,
        ),
    ] = None
    output_tokens: Annotated[
        int | None,
        Number(
            "out", "Output tokens", "Tokens produced for it so far.", unit=Unit.TOKENS
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        Number(
            "max",
            "Token limit",
            "The most output tokens that it may have.",
            unit=Unit.TOKENS,
        ),
    ] = None
    temperature: Annotated[
        float | None,
        Number("temp", "Temperature", "The sampling temperature it asked for."),
    ] = None
    top_p: Annotated[
        float | None,
        Number("top-p", "Nucleus sampling", "The top_p that it asked for."),
    ] = None
    queue_s: Annotated[
        float | None,
        Number(
            "queue",
            "Queue time",
            "How long it waited in the engine until it was first scheduled.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = None
    prefill_s: Annotated[
        float | None,
        Number(
            "prefill",
            "Prefill time",
            "From when it was first scheduled to the end of the step that gave its "
            "first token.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = None
    ttft_s: Annotated[
        float | None,
        Number(
            "TTFT",
            "Time to first token",
            "From its arrival at the API server to its first token.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            vantage=Vantage.FRONTEND,
        ),
    ] = None
    tpot_s: Annotated[
        float | None,
        Number(
            "TPOT",
            "Time per output token",
            "Mean time per token after the first, so far; unknown below two tokens.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = None
    itl_last_s: Annotated[
        float | None,
        Number(
            "ITL last",
            "Last gap",
            "The gap before its latest token.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = None
    itl_max_s: Annotated[
        float | None,
        Number(
            "ITL max",
            "Longest gap",
            "The longest gap between two of its tokens.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = None
    decode_s: Annotated[
        float | None,
        Number(
            "decode",
            "Decode time",
            "From its first token to its latest.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = None
    e2el_s: Annotated[
        float | None,
        Number(
            "E2EL",
            "End-to-end latency",
            "From its arrival at the API server to its last token, if it finished.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            vantage=Vantage.FRONTEND,
        ),
    ] = None
    preemptions: Annotated[
        int,
        Number(
            "pre",
            "Preemptions",
            "How often it was put back into the queue to free its blocks.",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
        ),
    ] = 0
    reason: Annotated[
        str | None,
        Number(
            "reason",
            "Finish reason",
            "Why it ended: stop, length, repetition, abort, error or lost.",
            vantage=Vantage.FRONTEND,
        ),
    ] = None
    cause: Annotated[
        Cause | None,
        Number(
            "cause",
            "Main cause",
            "What took the largest part of its TTFT, or of its wait so far.",
        ),
    ] = None
    ttft_parts: Annotated[
        Parts,
        Number(
            "TTFT parts",
            "Parts of the TTFT",
            "Its TTFT by cause: the API, each reason why it waited in the queue, its "
            "own prefill and that of others; what nothing explains is unknown.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = ()
    """The parts add up to TTFT; empty until it is known."""
    itl_cause: Annotated[
        Cause | None,
        Number(
            "late by",
            "Cause of the longest gap",
            "Why its longest gap came late, if it is above 5 ms and three times the "
            "median of its gaps.",
        ),
    ] = None
    """None if its longest gap was not a spike."""
    thinking_tokens: Annotated[
        int | None,
        Number(
            "thinking",
            "Thinking tokens",
            "Output tokens of a reasoning model before its answer, as its reasoning "
            "parser tells them apart.",
            unit=Unit.TOKENS,
        ),
    ] = None
    """None without a reasoning parser, before the end, and where it did not think."""
    media_items: Annotated[
        int | None,
        Number(
            "media",
            "Media",
            "Images, sounds and videos of its prompt; unknown for text alone.",
            vantage=Vantage.FRONTEND,
        ),
    ] = None
    media_cached: Annotated[
        int | None,
        Number(
            "media cached",
            "Media in the multimodal cache",
            "Of its media, those that had been preprocessed for an earlier request.",
            better=Better.HIGHER,
            vantage=Vantage.FRONTEND,
        ),
    ] = None
    lora: Annotated[
        str | None,
        Number(
            "model/LoRA",
            "LoRA adapter",
            "The LoRA adapter that it asked for; where there is none, screens name "
            "the model.",
        ),
    ] = None
    priority: Annotated[
        int | None,
        Number(
            "priority",
            "Priority",
            "Lower goes first; unknown where all requests have the same.",
            vantage=Vantage.FRONTEND,
        ),
    ] = None
    header: Annotated[
        str | None,
        Number(
            "header",
            "Header",
            "What it said in the one header that was chosen to group by.",
            vantage=Vantage.FRONTEND,
        ),
    ] = None
    class_name: Annotated[
        str | None,
        Number(
            "class",
            "Class",
            "Its class, where our load generator sends a mix of classes.",
            vantage=Vantage.CLIENT,
        ),
    ] = None
    missed: Annotated[
        tuple[str, ...] | None,
        Number(
            "slo",
            "Objectives missed",
            "Which objectives it missed; nothing where it held all, unknown where "
            "nobody can tell.",
            here=True,
        ),
    ] = None
    """None if it was not judged."""

    @property
    def name(self) -> str:
        """The client's request id, with the sequence's number if there are several."""
        return request_name(self.request_id, self.external_id)

    @property
    def sent_key(self) -> str:
        """Key shared by all sequences of one request."""
        if self.sequence is None:
            return self.key
        source = self.key.removesuffix(self.request_id)
        return f"{source}{sent_id(self.request_id, self.external_id)}"
