"""Stories of requests as screens are given them: one for each way to be slow."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from collectors.contract.readings import BoundBy
from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.requests.request_row import RequestRow, RequestState
from inferwatch.metrics.story.story import (
    Companion,
    RequestStory,
    SpanKind,
    Spike,
    StorySpan,
    StoryStep,
)

MS = 1_000_000
S = 1_000 * MS
ARRIVED_NS = 140 * S
LONG_ID = "chatcmpl-" + "0123456789abcdef" * 12
WIDE_ID = "chatcmpl-größe-大模型-🙂-推理-42"


def row(key: str, **facts: object) -> RequestRow:
    made = RequestRow(
        key=key,
        request_id=f"chatcmpl-{key}-0-9f2c",
        external_id=f"chatcmpl-{key}-0",
        ordinal=7,
        state=RequestState.FINISHED,
        arrived_ns=ARRIVED_NS,
        added_ns=ARRIVED_NS + 2 * MS,
        prompt_tokens=231,
        cached_tokens=64,
        max_tokens=128,
        temperature=0.7,
        reason="stop",
    )
    return replace(made, **facts)  # type: ignore[arg-type]


def spans(*told: tuple[SpanKind, int, Cause | None, int | None]) -> list[StorySpan]:
    """One after the other: kind, nanoseconds, cause, tokens."""
    made: list[StorySpan] = []
    at_ns = ARRIVED_NS
    if told[0][0] is SpanKind.NETWORK:
        at_ns -= told[0][1]
    for index, (kind, length_ns, cause, tokens) in enumerate(told):
        step = 4_000 + index if kind is SpanKind.CHUNK else None
        made.append(
            StorySpan(
                kind=kind,
                start_ns=at_ns,
                end_ns=at_ns + length_ns,
                cause=cause,
                tokens=tokens,
                step=step,
            )
        )
        at_ns += length_ns
    return made


def steps_of(
    ends_ns: Sequence[int], *, batch: int = 17, tokens: int = 17, prefill: int = 0
) -> tuple[StoryStep, ...]:
    return tuple(
        StoryStep(
            index=4_100 + place,
            start_ns=end_ns - 7 * MS,
            end_ns=end_ns,
            duration_ns=7 * MS + (place % 5) * 300_000,
            scheduled=1,
            produced=1,
            requests=batch + place % 3,
            tokens=tokens + place % 3 + (prefill if place % 11 == 5 else 0),
            prefill_tokens=prefill if place % 11 == 5 else 0,
            bound_by=BoundBy.KV if place % 11 == 5 else BoundBy.NOTHING,
            running=batch + place % 3,
            waiting=place % 4,
        )
        for place, end_ns in enumerate(ends_ns)
    )


def tokens(start_ns: int, count: int, gap_ns: int = 8 * MS) -> list[int]:
    """With a little unrest, as engines have it."""
    ends, at_ns = [start_ns], start_ns
    for place in range(count - 1):
        at_ns += gap_ns + (place * 7_919 % 13 - 6) * gap_ns // 60
        ends.append(at_ns)
    return ends


def story(
    key: str,
    told: Sequence[StorySpan],
    ends_ns: Sequence[int],
    parts: Sequence[tuple[Cause, float]],
    *,
    send_ns: int = 1 * MS,
    facts: dict[str, object] | None = None,
) -> RequestStory:
    """With the decode and the send behind what is told."""
    ttft_s = sum(seconds for _, seconds in parts)
    first_ns = told[-1].end_ns
    end_ns = ends_ns[-1] if ends_ns else first_ns
    after: list[StorySpan] = []
    if len(ends_ns) > 1:
        after.append(
            StorySpan(
                kind=SpanKind.DECODE,
                start_ns=first_ns,
                end_ns=end_ns,
                tokens=len(ends_ns) - 1,
            )
        )
    after.append(
        StorySpan(kind=SpanKind.SEND, start_ns=end_ns, end_ns=end_ns + send_ns)
    )
    gaps = sorted(b - a for a, b in pairwise(ends_ns))
    made = row(key, output_tokens=len(ends_ns), ttft_s=ttft_s, **(facts or {}))
    if gaps:
        made = replace(
            made,
            tpot_s=sum(gaps) / len(gaps) / S,
            itl_max_s=gaps[-1] / S,
            e2el_s=(end_ns + send_ns - ARRIVED_NS) / S,
        )
    return RequestStory(
        row=made,
        end_ns=end_ns + send_ns,
        spans=(*told, *after),
        ttft_parts=tuple(parts),
        steps=steps_of(ends_ns[-2_000:]),
        steps_total=len(ends_ns) + len(told) - 2,
        token_ns=tuple(ends_ns),
        gap_p50_ns=gaps[len(gaps) // 2] if gaps else None,
        gap_p99_ns=gaps[len(gaps) * 99 // 100] if gaps else None,
        cached_tokens=64,
        kv_blocks=tuple(
            (each.end_ns, 6 + place * 8) for place, each in enumerate(told[-2:])
        )
        + tuple((end, 15 + place) for place, end in enumerate(ends_ns[::16])),
        kv_peak_blocks=15 + len(ends_ns) // 16,
    )


def quick() -> RequestStory:
    """As it should be."""
    told = spans(
        (SpanKind.TOKENISE, 2 * MS, Cause.API, None),
        (SpanKind.QUEUE, 3 * MS, Cause.QUEUE_STEP, None),
        (SpanKind.CHUNK, 21 * MS, None, 167),
    )
    parts = [
        (Cause.API, 0.002),
        (Cause.QUEUE_STEP, 0.003),
        (Cause.PREFILL, 0.014),
        (Cause.PREFILL_SHARED, 0.007),
        (Cause.SEND, 0.001),
    ]
    made = story("quick", told, tokens(told[-1].end_ns, 96), parts)
    return replace(
        made,
        companions=(
            Companion(key="demo:3", name="chatcmpl-3-0", prefill_tokens=84, steps=1),
        ),
    )


def queued() -> RequestStory:
    """It waited for KV blocks, was prefilled in chunks, and left out in between."""
    told = spans(
        (SpanKind.NETWORK, 1 * MS, None, None),
        (SpanKind.TOKENISE, 6 * MS, Cause.API, None),
        (SpanKind.HANDOVER, 1 * MS, Cause.API, None),
        (SpanKind.QUEUE, 31 * MS, Cause.QUEUE_STEP, None),
        (SpanKind.QUEUE, 210 * MS, Cause.QUEUE_SEQS, None),
        (SpanKind.QUEUE, 1_190 * MS, Cause.QUEUE_KV, None),
        (SpanKind.QUEUE, 120 * MS, Cause.QUEUE_TOKENS, None),
        (SpanKind.CHUNK, 88 * MS, None, 2_048),
        (SpanKind.CHUNK, 92 * MS, None, 2_048),
        (SpanKind.LEFT_OUT, 61 * MS, Cause.PREFILL_DELAYED, None),
        (SpanKind.CHUNK, 47 * MS, None, 904),
    )
    parts = [
        (Cause.API, 0.008),
        (Cause.QUEUE_STEP, 0.031),
        (Cause.QUEUE_SEQS, 0.210),
        (Cause.QUEUE_KV, 1.190),
        (Cause.QUEUE_TOKENS, 0.120),
        (Cause.PREFILL, 0.160),
        (Cause.PREFILL_SHARED, 0.067),
        (Cause.PREFILL_DELAYED, 0.061),
        (Cause.SEND, 0.002),
    ]
    ends = tokens(told[-1].end_ns, 212)
    facts: dict[str, object] = {
        "prompt_tokens": 5_000,
        "queue_s": 1.551,
        "prefill_s": 0.288,
        "max_tokens": 256,
    }
    made = story("queued", told, ends, parts, facts=facts)
    return replace(
        made,
        client=(
            (Cause.CLIENT, 0.0002),
            (Cause.NETWORK, 0.0011),
            (Cause.RETURN, 0.0007),
        ),
        companions=tuple(
            Companion(
                key=f"demo:{place}",
                name=f"chatcmpl-{place}-0",
                prefill_tokens=2_048 // (place + 1),
                steps=3 - place % 3,
            )
            for place in range(9)
        ),
    )


def preempted() -> RequestStory:
    """It lost its blocks in the middle and had to be computed again."""
    told = spans(
        (SpanKind.TOKENISE, 2 * MS, Cause.API, None),
        (SpanKind.QUEUE, 9 * MS, Cause.QUEUE_STEP, None),
        (SpanKind.CHUNK, 34 * MS, None, 231),
    )
    parts = [(Cause.API, 0.002), (Cause.QUEUE_STEP, 0.009), (Cause.PREFILL, 0.034)]
    before = tokens(told[-1].end_ns, 60)
    lost_ns, back_ns = before[-1] + 8 * MS, before[-1] + 640 * MS
    after = tokens(back_ns + 41 * MS, 40)
    made = story("preempted", told, [*before, *after], parts, facts={"preemptions": 1})
    decode = StorySpan(
        kind=SpanKind.DECODE, start_ns=before[0], end_ns=lost_ns, tokens=59
    )
    lives = (
        *told,
        decode,
        StorySpan(
            kind=SpanKind.PREEMPTED,
            start_ns=lost_ns,
            end_ns=back_ns,
            cause=Cause.RECOMPUTE,
        ),
        StorySpan(
            kind=SpanKind.RECOMPUTE,
            start_ns=back_ns,
            end_ns=after[0],
            tokens=291,
            step=4_190,
        ),
        StorySpan(kind=SpanKind.DECODE, start_ns=after[0], end_ns=after[-1], tokens=39),
        StorySpan(kind=SpanKind.SEND, start_ns=after[-1], end_ns=after[-1] + MS),
    )
    late = Spike(
        t_ns=after[0],
        gap_ns=after[0] - before[-1],
        cause=Cause.RECOMPUTE,
        evidence="preempted for 632 ms, then 291 tokens computed again in step #4,190",
        step=4_190,
    )
    blocks = (
        (told[-1].start_ns, 15),
        (before[20], 17),
        (before[50], 19),
        (lost_ns, 0),
        (back_ns, 19),
        (after[20], 21),
        (after[-1], 0),
    )
    return replace(
        made, spans=lives, spikes=(late,), kv_blocks=blocks, kv_peak_blocks=21
    )


def spiky() -> RequestStory:
    """Tokens came late for every reason there is, on a GPU that tells of itself."""
    told = spans(
        (SpanKind.TOKENISE, 2 * MS, Cause.API, None),
        (SpanKind.QUEUE, 4 * MS, Cause.QUEUE_STEP, None),
        (SpanKind.CHUNK, 30 * MS, None, 167),
    )
    parts = [(Cause.API, 0.002), (Cause.QUEUE_STEP, 0.004), (Cause.PREFILL, 0.030)]
    even = tokens(told[-1].end_ns, 900)
    late = {
        80: (212, Cause.LONG_PREFILL, "chatcmpl-771-0 had 2,048 of 2,071 tokens"),
        210: (96, Cause.HOST_STALL, "no step for 88 ms, though 17 were running"),
        211: (61, Cause.UNKNOWN, "no reading tells why"),
        400: (140, Cause.SLOW_STEP, "the step took 139 ms, 18× its like"),
        640: (118, Cause.CLOCK_DROP, "SM clock at 705 of 1,980 MHz: power cap"),
        700: (44, Cause.MERGED, "the client got 5 tokens at once"),
        820: (205, Cause.LONG_PREFILL, "chatcmpl-902-0 had 2,048 of 2,066 tokens"),
    }
    ends, lost_ns = [even[0]], 0
    for place, end_ns in enumerate(even[1:]):
        if place in late:
            lost_ns += late[place][0] * MS - 8 * MS
        ends.append(end_ns + lost_ns)
    spikes = tuple(
        Spike(
            t_ns=ends[place + 1],
            gap_ns=ends[place + 1] - ends[place],
            cause=cause,
            evidence=evidence,
            step=4_100 + place,
            blamed="demo:3" if cause is Cause.LONG_PREFILL else None,
        )
        for place, (_, cause, evidence) in late.items()
    )
    facts: dict[str, object] = {"max_tokens": 1_024}
    made = story("spiky", told, ends, parts, facts=facts)
    samples = tuple(
        (
            ARRIVED_NS + place * 100 * MS,
            0.62 + (place % 7) * 0.02,
            0.81 if place % 5 else None,
            705.0 if 52 < place < 58 else 1_980.0,
        )
        for place in range(86)
    )
    return replace(
        made,
        spikes=spikes,
        gpu=samples,
        drafted_tokens=1_800,
        accepted_tokens=620,
        steps=steps_of(ends, prefill=2_048),
    )


def live() -> RequestStory:
    """It waits still."""
    told = spans(
        (SpanKind.TOKENISE, 2 * MS, Cause.API, None),
        (SpanKind.QUEUE, 40 * MS, Cause.QUEUE_STEP, None),
        (SpanKind.QUEUE, 3_120 * MS, Cause.QUEUE_SEQS, None),
    )
    made = row(
        "live",
        state=RequestState.QUEUED,
        cached_tokens=None,
        output_tokens=0,
        reason=None,
    )
    return RequestStory(
        row=made,
        end_ns=told[-1].end_ns,
        spans=tuple(told),
        missing=("It has been in no step yet.",),
    )


def unknown() -> RequestStory:
    """Its first steps were before the probe was heard, and the client is not ours."""
    told = spans(
        (SpanKind.QUEUE, 700 * MS, None, None), (SpanKind.CHUNK, 80 * MS, None, 231)
    )
    parts = [(Cause.PREFILL, 0.08), (Cause.UNKNOWN, 0.72)]
    made = story("unknown", told, tokens(told[-1].end_ns, 12), parts)
    return replace(
        made,
        row=replace(made.row, external_id=LONG_ID, cached_tokens=None),
        cached_tokens=None,
        kv_blocks=(),
        kv_peak_blocks=None,
        steps=(),
        steps_total=0,
        missing=(
            "Why it queued is not known: 41 readings of that time were lost.",
            "Its blocks are not known: how many tokens a block holds was not said.",
            "What its client met is not known: it is not ours.",
        ),
    )


def long() -> RequestStory:
    """A hundred thousand tokens, an id of two hundred characters."""
    told = spans(
        (SpanKind.TOKENISE, 180 * MS, Cause.API, None),
        (SpanKind.QUEUE, 9 * MS, Cause.QUEUE_STEP, None),
        *[(SpanKind.CHUNK, 95 * MS, None, 2_048)] * 40,
    )
    parts = [(Cause.API, 0.180), (Cause.QUEUE_STEP, 0.009), (Cause.PREFILL, 3.800)]
    even = tokens(told[-1].end_ns, 100_000)
    late_from = 61_000
    ends = [*even[:late_from], *(end + 900 * MS for end in even[late_from:])]
    spike = Spike(
        t_ns=ends[late_from],
        gap_ns=ends[late_from] - ends[late_from - 1],
        cause=Cause.HOST_STALL,
        evidence="no step for 901 ms, though 17 were running",
        step=65_100,
    )
    facts: dict[str, object] = {"prompt_tokens": 81_920, "max_tokens": 100_000}
    made = story("long", told, ends, parts, facts=facts)
    return replace(
        made,
        row=replace(made.row, external_id=LONG_ID),
        spikes=(spike,),
        companions=(
            Companion(key="demo:3", name=WIDE_ID, prefill_tokens=84, steps=1),
            Companion(key="demo:4", name=LONG_ID, prefill_tokens=12, steps=1),
        ),
    )


STORIES = {
    "quick": quick,
    "queued": queued,
    "preempted": preempted,
    "spiky": spiky,
    "live": live,
    "unknown": unknown,
    "long": long,
}
