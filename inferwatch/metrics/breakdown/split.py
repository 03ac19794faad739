"""Splits a request's time from arrival to end by cause, in whole nanoseconds."""

from collections.abc import Mapping

from inferwatch.metrics.breakdown.view import BreakdownPhase
from inferwatch.metrics.causes.cause import (
    E2EL_CAUSES,
    TTFT_CAUSES,
    Cause,
)
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.requests.request_row import RequestState

PLACE = {cause: place for place, cause in enumerate(E2EL_CAUSES)}
NOTHING_ELSE = (0,) * (len(TTFT_CAUSES) - 2)
"""``E2EL_CAUSES`` are, in order: tokenising, the ``TTFT_CAUSES`` but sending and
unknown, and what follows the first token."""
AFTER_FIRST = (0,) * 6
"""Decode, others' prompts, left out, stall, sending and unknown, the last of
``E2EL_CAUSES``."""
PREEMPTED, UNKNOWN = PLACE[Cause.RECOMPUTE], PLACE[Cause.UNKNOWN]

ARRIVAL, TOKENISED, WAIT, DECODE = 1, 2, 4, 8
"""What was told of a request, as bits of a number: that it arrived and was tokenised,
what the engine did until its first token, and from then on."""
KNOWN_BY: Mapping[BreakdownPhase, int] = {
    BreakdownPhase.TOKENISE: ARRIVAL | TOKENISED,
    BreakdownPhase.API: ARRIVAL | WAIT,
    BreakdownPhase.MEDIA: ARRIVAL,
    BreakdownPhase.QUEUE: WAIT,
    BreakdownPhase.PREFILL: WAIT,
    BreakdownPhase.PREEMPTED: WAIT | DECODE,
    BreakdownPhase.DECODE: DECODE,
    BreakdownPhase.PROMPTS: DECODE,
    BreakdownPhase.STALLS: DECODE,
    BreakdownPhase.SEND: DECODE,
    BreakdownPhase.UNKNOWN: 0,
}
"""What must have been told for it to be known what a phase took."""


def known_of(request: Request) -> int:
    """Return what was told of an ended request, as such a number.

    A phase that it did not come to took no time, and that is known.
    """
    told = 0
    if request.arrived_ns is not None:
        told = ARRIVAL
    if request.tokenised_ns is not None:
        told |= TOKENISED
    spent_ns = request.ttft_spent_ns
    waited = request.wait is not None if spent_ns is None else any(spent_ns[:-1])
    if waited:
        told |= WAIT
    if request.decode_spent_ns is not None or (waited and not request.tokens):
        told |= DECODE
    return told


def span_of(request: Request) -> tuple[int, int] | None:
    """Return when an ended request began and ended; None where either is not known.

    By the front end, else by the engine.
    """
    begin_ns = request.arrived_ns
    if begin_ns is None:
        begin_ns = request.added_ns
    end_ns = request.end_ns
    if begin_ns is None or end_ns is None or end_ns < begin_ns:
        return None
    return begin_ns, end_ns


def e2el_spent(request: Request, begin_ns: int, end_ns: int) -> list[int]:
    """Return the time of an ended request by place of ``E2EL_CAUSES``.

    The parts add up to ``end_ns - begin_ns``. What no reading explains is unknown.
    """
    spent_ns = [*_before_first(request), *_after_first(request, end_ns)]
    if request.decode_spent_ns is not None:
        spent_ns[PREEMPTED] += request.decode_spent_ns[-1]
        if request.stage is RequestState.PREEMPTED and request.last_ns is not None:
            spent_ns[PREEMPTED] += max(0, end_ns - request.last_ns)
    left_ns = end_ns - begin_ns - sum(spent_ns)
    if left_ns < 0:
        _cut(spent_ns, -left_ns)
    else:
        spent_ns[UNKNOWN] += left_ns
    return spent_ns


def _before_first(request: Request) -> list[int]:
    """Return the time up to the first token, as the engine made it."""
    tokenised_ns, took_ns = request.tokenised_ns, 0
    if tokenised_ns is not None and request.arrived_ns is not None:
        fetched_ns, preprocessed_ns = request.media_ns
        took_ns = tokenised_ns - request.arrived_ns - fetched_ns - preprocessed_ns
    ttft_ns = request.ttft_spent_ns
    if ttft_ns is None:
        if request.wait is None:  # it never reached the engine, or that was not seen
            return [max(0, took_ns), *NOTHING_ELSE]
        ttft_ns = request.beside_api(request.wait.spent_ns)
        if min(ttft_ns) < 0:
            return [0, *NOTHING_ELSE]
    api_ns = ttft_ns[0]
    if not 0 < took_ns <= api_ns:
        took_ns = 0 if took_ns <= 0 else api_ns
    return [took_ns, api_ns - took_ns, *ttft_ns[1:-2]]


def _after_first(request: Request, end_ns: int) -> tuple[int, ...]:
    """Return the time from the first token to the last, and from there to the end.

    Without what preemptions took.
    """
    if request.decode_spent_ns is None:
        return AFTER_FIRST
    decode, prompts, stall, _, left_out, _ = request.decode_spent_ns
    last_ns, send = request.last_ns, 0
    finished = request.outcome is RequestState.FINISHED
    if finished and last_ns is not None and end_ns > last_ns:
        send = end_ns - last_ns
    return decode, prompts, left_out, stall, send, 0


def _cut(spent_ns: list[int], over_ns: int) -> None:
    """Take away what the engine did after the end, the latest first.

    It goes on for a step or two when a stop string or its client ends a request.
    """
    for place in range(len(spent_ns) - 1, -1, -1):
        taken_ns = min(over_ns, spent_ns[place])
        spent_ns[place] -= taken_ns
        over_ns -= taken_ns
