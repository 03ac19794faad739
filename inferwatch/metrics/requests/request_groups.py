"""Groups requests by what they have in common: length, model, cause."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Annotated, TypeVar

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Vantage
from inferwatch.formatting import model_name
from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.number import Better, Number, Unit, piece
from inferwatch.metrics.requests.group_names import told_name
from inferwatch.metrics.requests.outcomes import CUT
from inferwatch.metrics.requests.request_row import RequestRow, RequestState
from inferwatch.metrics.series.quantiles import PERCENTS, ranks, weak_percentiles
from inferwatch.metrics.series.window import Quantiles

Told = TypeVar("Told")
LENGTH_BOUNDS = (1, 128, 512, 2_048, 8_192, 32_768, 131_072)
"""Tokens at which each bucket but the first begins, which is of answers without any."""
LENGTHS = (
    *("0", "1–127", "128–511", "512–2k"),
    *("2k–8k", "8k–32k", "32k–128k", "128k and more"),
)
"""Labels of the buckets."""
SLOT_MIN = 10
"""Length of a bucket of time."""
SLOT_NS = SLOT_MIN * 60 * NS_PER_S


class GroupBy(StrEnum):
    """The property by which requests are grouped, in the order people go through."""

    LENGTH = "prompt length"
    OUTPUT = "output length"
    MODEL = "model/LoRA"
    CLASS = "class"
    HEADER = "header"
    PRIORITY = "priority"
    CAUSE = "cause"
    SAMPLING = "sampling"
    TIME = "time"
    """When they arrived; of a breakdown: when they ended."""


OF_THE_LIST = "the requests listed"
"""What a group covers if it is not the window."""


@piece("group", Vantage.ENGINE, span=OF_THE_LIST)
class RequestGroup:
    """Statistics of a group's requests: of those listed, not of the window's."""

    name: Annotated[
        str, Number("group", "Group", "What its requests have in common.", here=True)
    ]
    requests: Annotated[
        int,
        Number(
            "n",
            "Requests of the group",
            "How many of the requests listed are in the group.",
            unit=Unit.REQUESTS,
            here=True,
        ),
    ]
    live: Annotated[
        int,
        Number(
            "live",
            "Live requests of the group",
            "How many of them have not ended.",
            unit=Unit.REQUESTS,
            here=True,
        ),
    ]
    failed: Annotated[
        int,
        Number(
            "failed",
            "Failed requests of the group",
            "How many of them failed or were aborted.",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
            here=True,
        ),
    ]
    ttft_s: Annotated[
        Quantiles,
        Number(
            "TTFT",
            "Time to first token of the group",
            "Exact percentiles of those that have had a first token.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            vantage=Vantage.FRONTEND,
        ),
    ]
    tpot_p50_s: Annotated[
        float | None,
        Number(
            "TPOT p50",
            "Time per output token of the group",
            "The median of those that have had two tokens.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ]
    itl_max_s: Annotated[
        float | None,
        Number(
            "ITL max",
            "Longest gap of the group",
            "The longest gap between two tokens of any of them.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ]
    cached_share: Annotated[
        float | None,
        Number(
            "cached",
            "Cached share of the group",
            "Of their prompt tokens, those found in the prefix cache.",
            unit=Unit.SHARE,
            better=Better.HIGHER,
        ),
    ]
    """Only of requests whose prompt and cached tokens are both known."""
    output_tokens: Annotated[
        Quantiles,
        Number(
            "out",
            "Output length of the group",
            "Output tokens of those that have ended.",
            unit=Unit.TOKENS,
        ),
    ]
    cut_share: Annotated[
        float | None,
        Number(
            "cut off",
            "Share cut off of the group",
            "Of those that ended normally, those that did at max_tokens or the end of "
            "the context: length.",
            unit=Unit.SHARE,
            better=Better.LOWER,
        ),
    ]
    thinking_share: Annotated[
        float | None,
        Number(
            "thinking",
            "Thinking share of the group",
            "Of the output tokens of those that thought, the ones before the answer.",
            unit=Unit.SHARE,
        ),
    ]
    cause: Annotated[
        Cause | None,
        Number(
            "main cause",
            "Main cause of the group",
            "What took most of their TTFTs, all together.",
        ),
    ]


Models = Mapping[str, str]
"""The model of each source."""
Contexts = Mapping[str, int]
"""The longest context of each source, ``max_model_len``."""


def group_of(
    row: RequestRow, by: GroupBy, models: Models, contexts: Contexts | None = None
) -> str | None:
    """Return the group of a request; None where the property is unknown."""
    return _tell(by, contexts)(row, models)


def group_requests(
    rows: Iterable[RequestRow],
    by: GroupBy,
    models: Models | None = None,
    contexts: Contexts | None = None,
) -> tuple[RequestGroup, ...]:
    """Return all groups: prompt lengths in order, other groups by their size.

    Requests whose property is unknown are left out.
    """
    tell, models_of = _tell(by, contexts), models or {}
    members: dict[str, list[RequestRow]] = {}
    for row in rows:
        name = tell(row, models_of)
        if name is not None:
            members.setdefault(name, []).append(row)
    names = sorted(members)
    if by in {GroupBy.LENGTH, GroupBy.OUTPUT}:
        names.sort(key=LENGTHS.index)
    elif by is GroupBy.TIME:
        names.sort(key=lambda name: int(name.partition("–")[0]))
    else:
        names.sort(key=lambda name: -len(members[name]))
    return tuple(_group(told_name(name), members[name]) for name in names)


def length_bucket(tokens: int) -> str:
    """Return the bucket of a length.

    >>> length_bucket(127), length_bucket(128), length_bucket(2_047), length_bucket(1)
    ('1–127', '128–511', '512–2k', '1–127')
    >>> length_bucket(100_000), length_bucket(10**7), length_bucket(0)
    ('32k–128k', '128k and more', '0')
    """
    return LENGTHS[bisect_right(LENGTH_BOUNDS, tokens)]


def time_bucket(slot: int) -> str:
    """Return the name of a ten-minute slot of the session, counted from 0.

    >>> time_bucket(0), time_bucket(7)
    ('0–10 min', '70–80 min')
    """
    return f"{slot * SLOT_MIN}–{(slot + 1) * SLOT_MIN} min"


def _length(row: RequestRow, models: Models) -> str | None:
    del models
    return None if row.prompt_tokens is None else length_bucket(row.prompt_tokens)


def _output(row: RequestRow, models: Models) -> str | None:
    del models
    return None if row.output_tokens is None else length_bucket(row.output_tokens)


def _time(row: RequestRow, models: Models) -> str | None:
    del models
    return time_bucket(row.arrived_ns // SLOT_NS)


def _model(row: RequestRow, models: Models) -> str | None:
    model = row.lora or model_of(row, models)
    return None if model is None else model_name(model)


def model_of(row: RequestRow, models: Models) -> str | None:
    """Return the model that served a request, by the source in its key."""
    return _of_source(row, models)


def _of_source(row: RequestRow, told: Mapping[str, Told]) -> Told | None:
    """Return what is told of the source in a request's key."""
    if len(told) == 1:
        return next(iter(told.values()))
    sources = (each for each in told if row.key.startswith(f"{each}/"))
    source = max(sources, key=len, default=None)
    return None if source is None else told[source]


def sampling_name(
    temperature: float | None, top_p: float | None, limit: str | None
) -> str:
    """Return how requests were sampled, as far as known, as text.

    >>> sampling_name(0.7, 0.95, "4,096"), sampling_name(0.0, None, limit_range(130))
    ('temp 0.7, top-p 0.95, max 4,096', 'temp 0, max 129–256')
    """
    parts = []
    if temperature is not None:
        parts.append(f"temp {temperature:g}")
    if top_p is not None:
        parts.append(f"top-p {top_p:g}")
    if limit is not None:
        parts.append(f"max {limit}")
    return ", ".join(parts)


TO_THE_END = "to the context's end"
"""A limit that is all the context leaves, as where a client gave none."""


def limit_range(max_tokens: int) -> str:
    """Return the powers of two that max_tokens is between: some clients vary it.

    >>> limit_range(1), limit_range(256), limit_range(257)
    ('1', '129–256', '257–512')
    """
    most = 1 << (max_tokens - 1).bit_length() if max_tokens > 1 else 1
    return f"{most // 2 + 1:,}–{most:,}" if most > 2 else f"{most}"


def _sampling(row: RequestRow, models: Models, contexts: Contexts) -> str | None:
    del models
    context, most, prompt = (
        _of_source(row, contexts),
        row.max_tokens,
        row.prompt_tokens,
    )
    limit = None if most is None else limit_range(most)
    if context and most is not None and prompt and prompt + most >= context:
        limit = TO_THE_END
    return sampling_name(row.temperature, row.top_p, limit) or None


def _priority(row: RequestRow, models: Models) -> str | None:
    del models
    return None if row.priority is None else str(row.priority)


def _class(row: RequestRow, models: Models) -> str | None:
    del models
    return row.class_name


def _header(row: RequestRow, models: Models) -> str | None:
    del models
    return row.header


def _cause(row: RequestRow, models: Models) -> str | None:
    del models
    return None if row.cause is None else row.cause.value


TELLS: Mapping[GroupBy, Callable[[RequestRow, Models], str | None]] = {
    GroupBy.LENGTH: _length,
    GroupBy.OUTPUT: _output,
    GroupBy.MODEL: _model,
    GroupBy.PRIORITY: _priority,
    GroupBy.CLASS: _class,
    GroupBy.HEADER: _header,
    GroupBy.CAUSE: _cause,
    GroupBy.TIME: _time,
}


def _tell(
    by: GroupBy, contexts: Contexts | None
) -> Callable[[RequestRow, Models], str | None]:
    if by is GroupBy.SAMPLING:
        return partial(_sampling, contexts=contexts or {})
    return TELLS[by]


def _group(name: str, rows: Sequence[RequestRow]) -> RequestGroup:
    states = Counter(row.state for row in rows)
    lost = states[RequestState.FAILED] + states[RequestState.ABORTED]
    return RequestGroup(
        name=name,
        requests=len(rows),
        live=sum(row.state.live for row in rows),
        failed=lost,
        ttft_s=quantiles_of([row.ttft_s for row in rows]),
        tpot_p50_s=quantiles_of([row.tpot_s for row in rows]).p50,
        itl_max_s=quantiles_of([row.itl_max_s for row in rows]).max,
        cached_share=_cached_share(rows),
        output_tokens=quantiles_of(
            each.output_tokens for each in rows if not each.state.live
        ),
        cut_share=_cut_share(rows),
        thinking_share=_thinking_share(rows),
        cause=_main_cause(rows),
    )


def quantiles_of(values: Iterable[float | None]) -> Quantiles:
    """Return exact quantiles of the values that are not None.

    >>> quantiles_of([0.3, None, 0.1, 0.2]).p50, quantiles_of([None]).n
    (0.2, 0)
    """
    known = sorted(value for value in values if value is not None)
    n = len(known)
    if not n:
        return Quantiles()
    picked = {
        name: known[rank - 1] for name, rank in zip(PERCENTS, ranks(n), strict=True)
    }
    return Quantiles(
        n=n, mean=sum(known) / n, max=known[-1], weak=weak_percentiles(n), **picked
    )


def _cached_share(rows: Iterable[RequestRow]) -> float | None:
    cached = prompt = 0
    for row in rows:
        if row.cached_tokens is not None and row.prompt_tokens is not None:
            cached += row.cached_tokens
            prompt += row.prompt_tokens
    return cached / prompt if prompt else None


def _cut_share(rows: Iterable[RequestRow]) -> float | None:
    reasons = [row.reason for row in rows if row.state is RequestState.FINISHED]
    ended = sum(reason is not None for reason in reasons)
    return reasons.count(CUT) / ended if ended else None


def _thinking_share(rows: Iterable[RequestRow]) -> float | None:
    thinking = output = 0
    for row in rows:
        if row.thinking_tokens is not None and row.output_tokens:
            thinking += row.thinking_tokens
            output += row.output_tokens
    return thinking / output if output else None


def _main_cause(rows: Iterable[RequestRow]) -> Cause | None:
    """Return the cause of most TTFT; without parts, the most frequent cause."""
    spent_s: dict[Cause, float] = {}
    named: dict[Cause, float] = {}
    for row in rows:
        for cause, seconds in row.ttft_parts:
            spent_s[cause] = spent_s.get(cause, 0.0) + seconds
        if row.cause is not None:
            named[row.cause] = named.get(row.cause, 0.0) + 1
    counted = spent_s or named
    return max(counted, key=counted.__getitem__, default=None)
