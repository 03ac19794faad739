"""Splits a request's time from arrival to end by cause, in whole nanoseconds."""

from inferwatch.metrics.causes.cause import (
    DECODE_CAUSES,
    E2EL_CAUSES,
    TTFT_CAUSES,
    Cause,
)
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.requests.request_row import RequestState

PLACE = {cause: place for place, cause in enumerate(E2EL_CAUSES)}
FROM_TTFT = tuple(
    (place, PLACE[cause])
    for place, cause in enumerate(TTFT_CAUSES)
    if cause not in {Cause.SEND, Cause.UNKNOWN}
)
"""Places in lists by ``TTFT_CAUSES`` and by ``E2EL_CAUSES``."""
FROM_DECODE = tuple(
    (place, PLACE[cause])
    for place, cause in enumerate(DECODE_CAUSES)
    if cause is not Cause.UNKNOWN
)
API, TOKENISE, SEND = PLACE[Cause.API], PLACE[Cause.TOKENISE], PLACE[Cause.SEND]
PREEMPTED, UNKNOWN = PLACE[Cause.RECOMPUTE], PLACE[Cause.UNKNOWN]


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
    spent_ns = [0] * len(E2EL_CAUSES)
    _before_first(request, spent_ns)
    _after_first(request, spent_ns, end_ns)
    left_ns = end_ns - begin_ns - sum(spent_ns)
    if left_ns < 0:
        left_ns = _cut(spent_ns, -left_ns)
    spent_ns[UNKNOWN] += left_ns
    return spent_ns


def _before_first(request: Request, spent_ns: list[int]) -> None:
    """Add the time up to the first token, as the engine made it."""
    tokenised_ns, took_ns = request.tokenised_ns, 0
    if tokenised_ns is not None and request.arrived_ns is not None:
        took_ns = tokenised_ns - request.arrived_ns - sum(request.media_ns)
    ttft_ns = request.ttft_spent_ns
    if ttft_ns is None and request.wait is not None:
        ttft_ns = request.beside_api(request.wait.spent_ns)
    if ttft_ns is None:  # it never reached the engine, or that was not seen
        spent_ns[TOKENISE] = max(0, took_ns)
        return
    if min(ttft_ns) < 0:
        return
    for place, here in FROM_TTFT:
        spent_ns[here] = ttft_ns[place]
    took_ns = max(0, min(took_ns, spent_ns[API]))
    spent_ns[API] -= took_ns
    spent_ns[TOKENISE] = took_ns


def _after_first(request: Request, spent_ns: list[int], end_ns: int) -> None:
    """Add the time from the first token to the last, and from there to the end."""
    decode_ns = request.decode_spent_ns
    if decode_ns is None:
        return
    for place, here in FROM_DECODE:
        spent_ns[here] += decode_ns[place]
    if request.last_ns is None or end_ns <= request.last_ns:
        return
    if request.outcome is RequestState.FINISHED:
        spent_ns[SEND] = end_ns - request.last_ns
    elif request.stage is RequestState.PREEMPTED:
        spent_ns[PREEMPTED] += end_ns - request.last_ns


def _cut(spent_ns: list[int], over_ns: int) -> int:
    """Take away what the engine did after the end, the latest first; return 0.

    It goes on for a step or two when a stop string or its client ends a request.
    """
    for place in range(len(spent_ns) - 1, -1, -1):
        taken_ns = min(over_ns, spent_ns[place])
        spent_ns[place] -= taken_ns
        over_ns -= taken_ns
    return 0
