"""The stretches of a request's time, one after the other, and what its TTFT went to."""

from dataclasses import dataclass, field

from collectors.contract.readings import BoundBy, EventKind, Step, Vantage
from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.causes.queue import CAUSE_OF_BOUND, QueueAccount
from inferwatch.metrics.story.request_readings import RequestReadings
from inferwatch.metrics.story.request_walk import OwnStep, RequestWalk
from inferwatch.metrics.story.story import SpanKind, StorySpan


@dataclass(slots=True)
class Stretches:
    """Spans without overlap: each goes on from where the one before ended."""

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
        """Add one that ends there; none where that is unknown or past."""
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
    """From the client's send, where that is known, to the front end's end."""
    arrived_ns = readings.moment(EventKind.ARRIVED, Vantage.FRONTEND)
    added_ns = readings.moment(EventKind.ADDED, Vantage.ENGINE)
    told = (each.tokenised_ns for each in readings.events)
    tokenised_ns = next((each for each in told if each is not None), None)
    sent_ns = readings.record.sent_ns if readings.record else None
    begun = [arrived_ns, added_ns, readings.events[0].t_ns]
    begin_ns = next(each for each in begun if each is not None)
    if arrived_ns is None or sent_ns is None or sent_ns > arrived_ns:
        sent_ns = None
    spans = Stretches(begin_ns if sent_ns is None else sent_ns)
    spans.up_to(SpanKind.NETWORK, arrived_ns)
    if arrived_ns is not None:
        stage_ns = added_ns or readings.end_ns
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
            _chunk(spans, own, walked.own[number - 1].step if number else None)
        decoded += 0 if own is first else own.produced
    if len(walked.own) in put_back:
        _decoded(spans, put_back[len(walked.own)], decoded)
        spans.up_to(SpanKind.PREEMPTED, until_ns, Cause.RECOMPUTE)
    elif walked.first is not None:
        last_ns = walked.own[-1].step.end_ns
        _decoded(spans, readings.end_ns if readings.live else last_ns, decoded)
    elif walked.own:  # between two chunks, or one is under way
        spans.up_to(SpanKind.LEFT_OUT, until_ns, Cause.UNKNOWN)


def _chunk(spans: Stretches, own: OwnStep, before: Step | None) -> None:
    if before is not None and own.step.index != before.index + 1:
        spans.up_to(SpanKind.LEFT_OUT, _begin_ns(own.step), Cause.PREFILL_DELAYED)
    kind = SpanKind.RECOMPUTE if own.again else SpanKind.CHUNK
    cause = Cause.RECOMPUTE if own.again else Cause.PREFILL
    spans.up_to(kind, own.step.end_ns, cause, own.scheduled, own.step.index)


def _decoded(spans: Stretches, end_ns: int, tokens: int) -> None:
    spans.up_to(SpanKind.DECODE, end_ns, tokens=tokens)


def _begin_ns(step: Step) -> int:
    """When it began for itself: the step before may still have been under way."""
    return step.end_ns - step.duration_ns


def _queue(
    spans: Stretches,
    readings: RequestReadings,
    walked: RequestWalk,
    added_ns: int,
    until_ns: int,
) -> None:
    """A stretch for each reason, by the steps that passed it over."""
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
            cause = Cause.QUEUE_STEP
            if not account.is_first_after(added_ns):
                cause = Cause.UNKNOWN
        else:
            follows = step.index == passed.index + 1
            cause = CAUSE_OF_BOUND[passed.bound_by] if follows else Cause.UNKNOWN
        spans.up_to(_queue_kind(cause, transferred=transferred), step.start_ns, cause)
        passed = step
    if spans.at_ns < end_ns:
        cause = Cause.QUEUE_STEP if passed is None else CAUSE_OF_BOUND[passed.bound_by]
        if passed is None and not readings.live:
            cause = Cause.UNKNOWN
        spans.up_to(_queue_kind(cause, transferred=transferred), end_ns, cause)


def _queue_kind(cause: Cause, *, transferred: bool) -> SpanKind:
    deferred = cause is CAUSE_OF_BOUND[BoundBy.DEFERRED]
    return SpanKind.TRANSFER if deferred and transferred else SpanKind.QUEUE
