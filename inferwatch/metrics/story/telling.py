"""Makes the story of one request from its readings, the same live and in replay."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import ceil
from statistics import fmean

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    Deferral,
    EventKind,
    GpuSample,
    NoteKind,
    Step,
    Vantage,
)
from inferwatch.formatting import counted, format_duration
from inferwatch.metrics.causes.cause import Cause, Parts
from inferwatch.metrics.causes.queue import QueueAccount, cause_before, cause_of
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.requests.request_row import RequestRow, RequestState
from inferwatch.metrics.requests.request_tracker import RequestTracker
from inferwatch.metrics.story.request_readings import (
    Name,
    ReadingLookup,
    RequestReadings,
    gather,
)
from inferwatch.metrics.story.request_walk import OwnStep, RequestWalk, walk
from inferwatch.metrics.story.spikes import (
    LateToken,
    late_tokens,
    merged_tokens,
    named,
    prefilling,
)
from inferwatch.metrics.story.story import (
    Companion,
    RequestStory,
    SpanKind,
    Spike,
    StorySpan,
    StoryStep,
)


@dataclass(slots=True)
class Stretches:
    """Builds consecutive spans: each starts where the one before ended."""

    at_ns: int
    made: list[StorySpan] = field(default_factory=list)

    def up_to(
        self,
        kind: SpanKind,
        end_ns: int | None,
        cause: Cause | None = None,
        tokens: int | None = None,
        step: int | None = None,
    ) -> None:
        """Add a span up to ``end_ns``, unless that is unknown or past."""
        if end_ns is None or end_ns <= self.at_ns:
            return
        last = self.made[-1] if self.made else None
        if last and step is None and (last.kind, last.cause) == (kind, cause):
            self.made.pop()
            self.at_ns, tokens = last.start_ns, tokens or last.tokens
        self.made.append(
            StorySpan(
                kind=kind,
                start_ns=self.at_ns,
                end_ns=end_ns,
                cause=cause,
                tokens=tokens,
                step=step,
            )
        )
        self.at_ns = end_ns


def waterfall(readings: RequestReadings, walked: RequestWalk) -> tuple[StorySpan, ...]:
    """Return the request's spans, from the client's send if known to its end."""
    arrived_ns = readings.moment(EventKind.ARRIVED, Vantage.FRONTEND)
    added_ns = readings.moment(EventKind.ADDED, Vantage.ENGINE)
    times_ns = (each.tokenised_ns for each in readings.events)
    tokenised_ns = next((each for each in times_ns if each is not None), None)
    sent_ns = readings.record.sent_ns if readings.record else None
    begun = [arrived_ns, added_ns, readings.events[0].t_ns]
    begin_ns = next(each for each in begun if each is not None)
    if arrived_ns is None or sent_ns is None or sent_ns > arrived_ns:
        sent_ns = None
    spans = Stretches(begin_ns if sent_ns is None else sent_ns)
    spans.up_to(SpanKind.NETWORK, arrived_ns)
    if arrived_ns is not None:
        stage_ns = added_ns or readings.end_ns
        _media(spans, readings, stage_ns)
        if tokenised_ns is not None:
            spans.up_to(SpanKind.TOKENISE, min(tokenised_ns, stage_ns), Cause.API)
            spans.up_to(SpanKind.HANDOVER, stage_ns, Cause.API)
        else:
            spans.up_to(SpanKind.TOKENISE, stage_ns, Cause.API)
    if added_ns is not None or walked.own:
        _in_engine(spans, readings, walked, added_ns)
    front_ns = readings.moment(EventKind.FINISHED, Vantage.FRONTEND)
    if not readings.live and front_ns is not None:
        spans.up_to(SpanKind.SEND, front_ns, Cause.SEND)
    return tuple(spans.made)


def _media(spans: Stretches, readings: RequestReadings, stage_ns: int) -> None:
    """Add what the request's media took; the rest of that time is tokenising."""
    for kind, name, cause in (
        (SpanKind.MEDIA, "fetch", Cause.MEDIA),
        (SpanKind.PREPROCESS, "preprocess", Cause.PREPROCESS),
    ):
        start_ns = _first_value(readings, f"{name}_start_ns")
        end_ns = _first_value(readings, f"{name}_end_ns")
        if start_ns is not None and end_ns is not None:
            spans.up_to(SpanKind.TOKENISE, min(start_ns, stage_ns), Cause.API)
            spans.up_to(kind, min(end_ns, stage_ns), cause)


def _in_engine(
    spans: Stretches,
    readings: RequestReadings,
    walked: RequestWalk,
    added_ns: int | None,
) -> None:
    left_ns = readings.moment(EventKind.FINISHED, Vantage.ENGINE)
    until_ns = readings.end_ns if left_ns is None else left_ns
    if added_ns is not None:
        _queue(spans, readings, walked, added_ns, until_ns)
    put_back = {each.own: each.step.start_ns for each in walked.preemptions}
    decoded, first = 0, walked.first
    for number, own in enumerate(walked.own):
        if number in put_back:
            _decoded(spans, put_back[number], decoded)
            spans.up_to(SpanKind.PREEMPTED, _begin_ns(own.step), Cause.RECOMPUTE)
            decoded = 0
        if own.prefills:
            before = walked.own[number - 1].step if number else None
            _chunk(spans, own, before, held=_is_held(readings.steps, own.place))
        decoded += 0 if own is first else own.produced
    if len(walked.own) in put_back:
        _decoded(spans, put_back[len(walked.own)], decoded)
        spans.up_to(SpanKind.PREEMPTED, until_ns, Cause.RECOMPUTE)
    elif walked.first is not None:
        last_ns = walked.own[-1].step.end_ns
        _decoded(spans, readings.end_ns if readings.live else last_ns, decoded)
    elif walked.own:  # between two chunks, or one is under way
        spans.up_to(SpanKind.LEFT_OUT, until_ns, Cause.UNKNOWN)


def _is_held(steps: Sequence[Step], place: int) -> bool:
    """Return whether the step before one was to compute no prompts."""
    return place > 0 and steps[place - 1].deferred_by == Deferral.HELD


def _chunk(spans: Stretches, own: OwnStep, before: Step | None, *, held: bool) -> None:
    if before is not None and own.step.index != before.index + 1:
        cause = Cause.PREFILL_HELD if held else Cause.PREFILL_DELAYED
        spans.up_to(SpanKind.LEFT_OUT, _begin_ns(own.step), cause)
    kind = SpanKind.RECOMPUTE if own.again else SpanKind.CHUNK
    cause = Cause.RECOMPUTE if own.again else Cause.PREFILL
    spans.up_to(kind, own.step.end_ns, cause, own.scheduled, own.step.index)


def _decoded(spans: Stretches, end_ns: int, tokens: int) -> None:
    spans.up_to(SpanKind.DECODE, end_ns, tokens=tokens)


def _told_apart(
    spans: Sequence[StorySpan], readings: RequestReadings, walked: RequestWalk
) -> Iterator[StorySpan]:
    """Yield the spans, with thinking apart from the answer where both are known."""
    until_ns = _thinking_end_ns(readings, walked)
    for span in spans:
        if until_ns is None or span.kind is not SpanKind.DECODE:
            yield span
        elif span.end_ns <= until_ns:
            yield replace(span, kind=SpanKind.THINKING)
        elif span.start_ns >= until_ns:
            yield span
        else:
            tokens = sum(
                each.produced
                for each in walked.with_token
                if span.start_ns < each.step.end_ns <= until_ns
            )
            yield replace(span, kind=SpanKind.THINKING, end_ns=until_ns, tokens=tokens)
            yield replace(
                span, start_ns=until_ns, tokens=(span.tokens or tokens) - tokens
            )


def _thinking_end_ns(readings: RequestReadings, walked: RequestWalk) -> int | None:
    """Return when the last token of thinking was there; None if steps do not tell."""
    thinking = _first_value(readings, "thinking_tokens")
    if thinking is None or walked.tokens != _output_tokens(readings):
        return None
    made = accumulate(each.produced for each in walked.with_token)
    ends_ns = (each.step.end_ns for each in walked.with_token)
    pairs = zip(made, ends_ns, strict=True)
    return next((end_ns for tokens, end_ns in pairs if tokens >= thinking), None)


def _output_tokens(readings: RequestReadings) -> int:
    """Return how many tokens it had, as events tell; 0 where none tells."""
    told = (each.output_tokens for each in readings.events)
    return max((each for each in told if each is not None), default=0)


def _begin_ns(step: Step) -> int:
    """Return when a step began to compute: it may have overlapped the step before."""
    return step.end_ns - step.duration_ns


def _queue(
    spans: Stretches,
    readings: RequestReadings,
    walked: RequestWalk,
    added_ns: int,
    until_ns: int,
) -> None:
    """Add a span of queueing for each cause, by the steps that did not schedule it."""
    spans.at_ns = max(spans.at_ns, added_ns)
    own = walked.own[0] if walked.own else None
    scheduled_ns = readings.moment(EventKind.SCHEDULED, Vantage.ENGINE)
    start_ns = own.step.start_ns if own else scheduled_ns
    end_ns = until_ns if start_ns is None else start_ns
    transferred = any(each.external_tokens for each in readings.events)
    place = own.place if own else len(readings.steps)
    account = QueueAccount()
    passed: Step | None = None
    for step in readings.steps[: place + 1]:
        if step.start_ns > end_ns:
            break
        account.take(step)
        if step.start_ns < added_ns:
            continue
        if passed is None:
            follows, cause = account.is_first_after(added_ns), Cause.QUEUE_STEP
        else:
            follows, cause = step.index == passed.index + 1, cause_of(passed)
        cause, idle = cause if follows else Cause.UNKNOWN, cause_before(step)
        if idle is not None and follows:
            kind = _queue_kind(cause, transferred=transferred)
            spans.up_to(kind, account.before_end_ns, cause)
            cause = idle
        spans.up_to(_queue_kind(cause, transferred=transferred), step.start_ns, cause)
        passed = step
    if spans.at_ns < end_ns:
        cause = Cause.QUEUE_STEP if passed is None else cause_of(passed)
        if passed is None and not readings.live:
            cause = Cause.UNKNOWN
        spans.up_to(_queue_kind(cause, transferred=transferred), end_ns, cause)


def _queue_kind(cause: Cause, *, transferred: bool) -> SpanKind:
    if cause is Cause.QUEUE_TRANSFER:
        return SpanKind.TRANSFER
    deferred = cause is Cause.QUEUE_DEFERRED
    return SpanKind.TRANSFER if deferred and transferred else SpanKind.QUEUE


MOST_STEPS = 5_000
MOST_COMPANIONS = 100
MOST_SAMPLES = 1_000
"""Largest number of GPU samples."""
SAMPLES_APART_NS = NS_PER_S // 10
Names = Callable[[Collection[int]], dict[int, Name]]


def tell(lookup: ReadingLookup, key: str, now_ns: int) -> RequestStory | None:
    """Return a request's story as of a moment; None where nothing is known of it."""
    readings = gather(lookup, key, now_ns)
    if readings is None:
        return None

    def names(ordinals: Collection[int]) -> dict[int, Name]:
        return lookup.names(readings.source, ordinals, readings.now_ns)

    return story_of(readings, names)


def story_of(readings: RequestReadings, names: Names) -> RequestStory:
    """Return the story of these readings; ``names`` looks up other requests."""
    prompt, cached = (
        _first_value(readings, "prompt_tokens"),
        _first_value(readings, "cached_tokens"),
    )
    walked = walk(readings.steps, readings.ordinal, prompt, cached or 0)
    late, companions = (
        late_tokens(readings, walked),
        _companions(walked, readings.ordinal),
    )
    culprits = {each.culprit for each in late if each.culprit is not None}
    names_of = names(culprits | {member for member, *_ in companions})
    spikes = _spikes(late, merged_tokens(readings, walked), names_of)
    gaps = sorted(_gaps(walked))
    class_name = readings.record.class_name if readings.record else None
    row = replace(
        _row(readings, walked), class_name=class_name, itl_cause=_longest(late)
    )
    spans = tuple(_told_apart(waterfall(readings, walked), readings, walked))
    return RequestStory(
        row=row,
        end_ns=spans[-1].end_ns if spans else readings.end_ns,
        spans=spans,
        ttft_parts=row.ttft_parts,
        steps=_steps(walked),
        steps_total=len(walked.own),
        token_ns=tuple(each.step.end_ns for each in walked.with_token),
        gap_p50_ns=_quantile(gaps, 0.5),
        gap_p99_ns=_quantile(gaps, 0.99),
        spikes=spikes,
        companions=tuple(
            Companion(key=key, name=name, prefill_tokens=tokens, steps=steps)
            for member, tokens, steps in companions
            for key, name in [names_of.get(member, ("", "unknown"))]
        ),
        kv_blocks=(blocks := _kv_blocks(readings, walked)),
        kv_peak_blocks=max((count for _, count in blocks), default=None),
        cached_tokens=cached,
        drafted_tokens=walked.drafted,
        accepted_tokens=walked.accepted,
        client=_client(readings),
        gpu=_gpu(readings.gpu_samples),
        missing=_missing(readings, walked),
    )


def _first_value(readings: RequestReadings, name: str) -> int | None:
    """Return the first value that events give for a field; None without any."""
    values = (getattr(each, name) for each in readings.events)
    return next((each for each in values if each is not None), None)


def _longest(late: Sequence[LateToken]) -> Cause | None:
    spikes = (each.spike for each in late)
    longest = max(spikes, key=lambda each: each.gap_ns, default=None)
    return longest.cause if longest else None


def _spikes(
    late: Sequence[LateToken], merged: Sequence[LateToken], names: dict[int, Name]
) -> tuple[Spike, ...]:
    every = [
        named(each, None if each.culprit is None else names.get(each.culprit))
        for each in (*late, *merged)
    ]
    return tuple(sorted(every, key=lambda each: each.t_ns))


class DiscardedResults:
    """Discards latencies and outcomes, which only the row of a request needs."""

    def add(self, metric: str, t_ns: int, value_ns: int, weight: int = 1) -> None:
        """Discard a latency."""

    def arrived(self, request: Request, t_ns: int) -> None:
        """Discard the arrival of a request."""

    def ended(self, request: Request, state: RequestState, t_ns: int) -> None:
        """Discard the end of a request."""


def _row(readings: RequestReadings, walked: RequestWalk) -> RequestRow:
    """Return the row that a Model with only these readings would have."""
    index, nowhere = RequestIndex(), DiscardedResults()
    tracker = RequestTracker(index, nowhere, nowhere)
    _follow(tracker, index, readings, walked)
    lost = [each for each in readings.notes if each.kind is NoteKind.LOST]
    for note in lost:
        if not readings.live and note.t_ns == readings.end_ns:
            tracker.lost(note)
    (row,) = [each for each in index.rows() if each.key == readings.key]
    return row


def _follow(
    tracker: RequestTracker,
    index: RequestIndex,
    readings: RequestReadings,
    walked: RequestWalk,
) -> None:
    """Feed the request's events and steps to a tracker, by time.

    Up to its first token it gets all steps of the rank, which made the request wait.
    """
    events, request = deque(readings.events), None
    put_back = {each.place for each in walked.preemptions}
    own = {each.place: each for each in walked.own}
    waited = len(readings.steps) if walked.first is None else walked.first.place
    ordinal = readings.ordinal or 0
    for place in [*range(waited), *sorted(p for p in {*own, *put_back} if p >= waited)]:
        step, here = readings.steps[place], own.get(place)
        while events and events[0].t_ns <= step.end_ns:
            tracker.event(events.popleft())
            request = None
        if request is not None and here is not None and place not in put_back:
            _decode(request, here)
            continue
        tracker.step(_without_others(step, ordinal, here, put_back=place in put_back))
        request = index.members(readings.source).get(ordinal)
        if request is not None and not request.steady:
            request = None
    for event in events:
        tracker.event(event)
    tracker.causes.refresh(index.live)


def _without_others(
    step: Step, ordinal: int, own: OwnStep | None, *, put_back: bool
) -> Step:
    """Return the step with this request as its only member."""
    return msgspec.structs.replace(
        step,
        members=[] if own is None else [ordinal],
        scheduled=[] if own is None else [own.scheduled],
        produced=[] if own is None else [own.produced],
        preempted=[ordinal] if put_back else [],
        waiting=1,
    )


def _decode(request: Request, own: OwnStep) -> None:
    """Update a decoding request as the tracker would, but faster."""
    if not own.produced:
        return
    request.leave_run()
    end_ns = own.step.end_ns
    if request.last_ns is not None:
        request.itl_last_ns = end_ns - request.last_ns
        request.itl_max_ns = max(request.itl_max_ns, request.itl_last_ns)
    request.last_ns = end_ns
    request.output_tokens += own.produced
    request.row = None


def _steps(walked: RequestWalk) -> tuple[StoryStep, ...]:
    return tuple(
        StoryStep(
            index=each.step.index,
            start_ns=each.step.start_ns,
            end_ns=each.step.end_ns,
            duration_ns=each.step.duration_ns,
            scheduled=each.scheduled,
            produced=each.produced,
            requests=len(each.step.members),
            tokens=each.step.prefill_tokens + each.step.decode_tokens,
            prefill_tokens=each.step.prefill_tokens,
            bound_by=each.step.bound_by,
            running=each.step.running,
            waiting=each.step.waiting,
            deferred_by=each.step.deferred_by,
        )
        for each in walked.own[-MOST_STEPS:]
    )


def _gaps(walked: RequestWalk) -> list[int]:
    came = [each.step.end_ns for each in walked.with_token]
    return [after - before for before, after in pairwise(came)]


def _quantile(ordered: Sequence[int], share: float) -> int | None:
    """Return the nearest-rank quantile; None without values."""
    return ordered[ceil(share * len(ordered)) - 1] if ordered else None


def _companions(walked: RequestWalk, ordinal: int | None) -> list[tuple[int, int, int]]:
    """Return other requests whose prefill shared steps with this one.

    Each as ordinal, prompt tokens and number of shared steps.
    """
    tokens: dict[int, int] = {}
    steps: dict[int, int] = {}
    for own in walked.own:
        if own.step.prefill_requests > own.prefills:
            for member, scheduled in prefilling(own.step):
                tokens[member] = tokens.get(member, 0) + scheduled
                steps[member] = steps.get(member, 0) + 1
    if ordinal is not None:
        tokens.pop(ordinal, None)
    ranked = sorted(tokens, key=lambda member: (-tokens[member], member))
    return [
        (member, tokens[member], steps[member]) for member in ranked[:MOST_COMPANIONS]
    ]


def _kv_blocks(
    readings: RequestReadings, walked: RequestWalk
) -> tuple[tuple[int, int], ...]:
    size = readings.engine.kv_block_tokens if readings.engine else None
    if not size:
        return ()
    counts: list[tuple[int, int]] = []
    for t_ns, computed in walked.computed:
        blocks = -(-computed // size)
        if not counts or counts[-1][1] != blocks:
            counts.append((t_ns, blocks))
    left_ns = readings.moment(EventKind.FINISHED, Vantage.ENGINE)
    if counts and not readings.live:
        counts.append((left_ns or readings.end_ns, 0))
    return tuple(counts)


def _client(readings: RequestReadings) -> Parts:
    record = readings.record
    if record is None:
        return ()
    arrived_ns = readings.moment(EventKind.ARRIVED, Vantage.FRONTEND)
    first_ns = readings.moment(EventKind.FIRST_TOKEN, Vantage.FRONTEND)
    parts = (
        (Cause.CLIENT, _between(record.intended_ns, record.sent_ns)),
        (Cause.NETWORK, _between(record.sent_ns, arrived_ns)),
        (Cause.RETURN, _between(first_ns, record.first_token_ns)),
    )
    return tuple((cause, part_s) for cause, part_s in parts if part_s is not None)


def _between(start_ns: int | None, end_ns: int | None) -> float | None:
    if start_ns is None or end_ns is None or end_ns < start_ns:
        return None
    return (end_ns - start_ns) / NS_PER_S


GpuMoment = tuple[int, float | None, float | None, float | None]


def _gpu(samples: Sequence[GpuSample]) -> tuple[GpuMoment, ...]:
    """Return GPU samples averaged over short spans, few enough to be drawn."""
    if not samples:
        return ()
    span_ns = samples[-1].t_ns - samples[0].t_ns
    apart_ns = max(SAMPLES_APART_NS, span_ns // MOST_SAMPLES + 1)
    columns: dict[int, list[GpuSample]] = {}
    for each in samples:
        columns.setdefault(each.t_ns // apart_ns, []).append(each)
    return tuple(
        (
            here[-1].t_ns,
            _mean(each.dram_active for each in here),
            _mean(each.sm_active for each in here),
            _mean(each.sm_clock_mhz for each in here),
        )
        for here in columns.values()
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return fmean(known) if known else None


def _missing(readings: RequestReadings, walked: RequestWalk) -> tuple[str, ...]:
    reasons = []
    start_ns = readings.events[0].t_ns
    if readings.since_ns is not None and readings.since_ns > start_ns:
        ago_ns = readings.now_ns - readings.since_ns
        ago = format_duration(ago_ns / NS_PER_S).strip()
        reasons.append(
            f"Steps longer ago than {ago} are not remembered, and nothing is recorded."
        )
    if readings.moment(EventKind.ARRIVED, Vantage.FRONTEND) is None:
        reasons.append(
            "No API server told of its arrival: only the engine's part is told."
        )
    if readings.moment(EventKind.ADDED, Vantage.ENGINE) is None:
        reasons.append("The engine did not tell when it came: its queue is not known.")
    lost = sum(
        each.count or 1
        for each in readings.notes
        if each.kind is NoteKind.DROPPED and each.t_ns <= readings.end_ns
    )
    if lost:
        reasons.append(f"{counted(lost, 'reading')} were lost while it lived.")
    output = _output_tokens(readings)
    if output > walked.tokens:
        reasons.append(
            f"Of its {counted(output, 'token')}, steps tell of {walked.tokens:,}."
        )
    return tuple(reasons)
