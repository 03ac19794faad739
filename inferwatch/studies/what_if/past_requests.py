"""The requests of one engine as they were recorded, with their latencies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import LoadEvent, LoadKind
from inferwatch.studies.what_if.heard import ObservedRequest
from inferwatch.studies.what_if.recorded_steps import FlatMembers, RecordedSteps

Ints = npt.NDArray[np.int64]
BEFORE_NS = 5 * NS_PER_S
"""Requests added earlier than this before the first recorded step are not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRequest:
    """A request as it was recorded."""

    ordinal: int
    due_ns: int
    """When it had left the front end, so that the engine could take it."""
    api_ns: int = 0
    """From its arrival at the front end to ``due_ns``."""
    send_ns: int = 0
    """From the engine's first token to the front end's."""
    end_send_ns: int = 0
    """From the engine's last token to the front end's."""
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    priority: int = 0
    given: int | None = None
    """The priority it is asked about, if it is another."""
    names: tuple[str, ...] = ()
    """Its class, its header's value and its adapter, as far as known."""
    patience_ns: int | None = None
    """How long after it was added it was aborted without any token; None if it was
    not."""
    by_front_end: bool = True
    """Whether its arrival at the front end is known; else latencies count from
    ``added_ns``."""
    counts: bool = True
    """Whether it is measured: it was recorded from arrival to end, and not during
    warm-up.
    """
    run_id: str | None = None
    """The run whose closed loop sent it, so that its arrival depends on other
    answers."""
    # Measured values.
    added_ns: int = 0
    """When the engine added it to its queue."""
    first_ns: int | None = None
    last_ns: int | None = None
    queue_ns: int | None = None

    @property
    def asked_priority(self) -> int:
        """The priority with which other settings are asked about it."""
        return self.priority if self.given is None else self.given

    @property
    def arrived_ns(self) -> int:
        """When the request reached the front end, or the engine if that is unknown."""
        return self.due_ns - self.api_ns if self.by_front_end else self.added_ns


@dataclass(frozen=True, slots=True)
class OutputSpan:
    """The times of a request's first and last output, and its output tokens."""

    first_ns: int
    last_ns: int
    tokens: int


def output_spans(flat: FlatMembers, end_ns: Ints) -> dict[int, OutputSpan]:
    """The first and last output times of each request, by its ordinal."""
    made = flat.produced > 0
    if not made.any():
        return {}
    member, step, produced = flat.member[made], flat.step[made], flat.produced[made]
    order = np.lexsort((step, member))
    member, step, produced = member[order], step[order], produced[order]
    starts = np.flatnonzero(np.r_[True, member[1:] != member[:-1]])
    ends = np.r_[starts[1:], len(member)] - 1
    spans = zip(
        member[starts].tolist(),
        end_ns[step[starts]].tolist(),
        end_ns[step[ends]].tolist(),
        np.add.reduceat(produced, starts).tolist(),
        strict=True,
    )
    return {ordinal: OutputSpan(*walk) for ordinal, *walk in spans}


def transit_ns(mine: Mapping[int, ObservedRequest], steps: RecordedSteps) -> int:
    """Median time from front end to engine, of requests that found the engine idle."""
    idle = steps.gap_ns < 0
    since, until = steps.end_ns[idle], np.append(steps.start_ns[1:], 1 << 62)[idle]
    times_ns = []
    for request in mine.values():
        if request.tokenised_ns is None or request.added_ns is None:
            continue
        place = int(np.searchsorted(since, request.tokenised_ns)) - 1
        if place >= 0 and request.added_ns <= until[place]:
            times_ns.append(request.added_ns - request.tokenised_ns)
    return int(median(times_ns)) if times_ns else 0


def past_requests(
    mine: Mapping[int, ObservedRequest],
    steps: RecordedSteps,
    load: Sequence[LoadEvent],
    closed_runs: Sequence[str],
) -> list[PastRequest]:
    """The requests whose arrival was seen, in the order of ``due_ns``."""
    spans = output_spans(steps.flat, steps.end_ns)
    passing_ns = transit_ns(mine, steps)
    warm = warm_ups(load)
    begin_ns = int(steps.start_ns[0]) - BEFORE_NS
    requests = []
    for ordinal, request in mine.items():
        if request.added_ns is None or request.prompt_tokens is None:
            continue
        came_ns = request.arrived_ns or request.added_ns
        inside = request.added_ns >= begin_ns
        warming = any(low <= came_ns < high for low, high in warm)
        name = request.external_id or ""
        past = _past(
            request,
            spans.get(ordinal),
            steps,
            passing_ns,
            counts=inside and not warming,
            run_id=next((run for run in closed_runs if run and run in name), None),
        )
        if past is not None:
            requests.append(past)
    return sorted(requests, key=lambda past: past.due_ns)


def _past(
    request: ObservedRequest,
    span: OutputSpan | None,
    steps: RecordedSteps,
    passing_ns: int,
    *,
    counts: bool,
    run_id: str | None,
) -> PastRequest | None:
    added_ns = request.added_ns or 0
    if request.tokenised_ns is not None:
        due_ns = min(request.tokenised_ns + passing_ns, added_ns)
    else:
        due_ns = _middle(added_ns, steps)
    ended_ns = request.engine_finished_ns or request.finished_ns
    tokens, patience_ns = (span.tokens, None) if span else (0, None)
    if ended_ns is None:
        tokens = max(request.max_tokens or 0, tokens)
    elif span is None:
        patience_ns = max(ended_ns - added_ns, 0)
    by_front_end = request.arrived_ns is not None
    came_ns = due_ns if request.arrived_ns is None else request.arrived_ns
    due_ns = max(due_ns, came_ns)
    first_ns, last_ns = (span.first_ns, span.last_ns) if span else (None, None)
    return PastRequest(
        ordinal=request.ordinal or 0,
        due_ns=due_ns,
        api_ns=due_ns - came_ns,
        send_ns=_after(first_ns, request.sent_ns) if by_front_end else 0,
        end_send_ns=_after(last_ns, request.finished_ns) if by_front_end else 0,
        prompt_tokens=max(request.prompt_tokens or 1, 1),
        output_tokens=tokens,
        cached_tokens=request.cached_tokens or 0,
        priority=request.priority or 0,
        names=tuple(filter(None, (request.class_name, request.header, request.lora))),
        patience_ns=patience_ns,
        by_front_end=by_front_end,
        counts=counts and ended_ns is not None and span is not None,
        run_id=run_id,
        first_ns=first_ns,
        last_ns=last_ns,
        added_ns=added_ns,
        queue_ns=None
        if request.scheduled_ns is None
        else request.scheduled_ns - added_ns,
    )


def _middle(added_ns: int, steps: RecordedSteps) -> int:
    """The middle of the step during which the request arrived.

    An idle engine added it at once; otherwise it was added after that step.
    """
    place = int(np.searchsorted(steps.end_ns, added_ns, side="right")) - 1
    if place < 0 or steps.gap_ns[place] < 0:
        return added_ns
    return (int(steps.start_ns[place]) + added_ns) // 2


def _after(then_ns: int | None, sent_ns: int | None) -> int:
    if then_ns is None or sent_ns is None:
        return 0
    return max(sent_ns - then_ns, 0)


def warm_ups(load: Sequence[LoadEvent]) -> list[tuple[int, int]]:
    """The spans of session time in which a load warmed up."""
    spans, begun_ns = [], None
    for event in load:
        if event.kind is LoadKind.STARTED:
            begun_ns = event.t_ns
        elif event.kind is LoadKind.WARMUP_ENDED and begun_ns is not None:
            spans.append((begun_ns, event.t_ns))
            begun_ns = None
    return spans
