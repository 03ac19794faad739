"""Tracks of requests: queue, prefill and decode inside the whole request."""

import heapq
from dataclasses import dataclass, field

from collectors.contract.readings import EventKind, RequestEvent, Step, Vantage
from inferwatch.metrics.requests.request_row import request_name
from inferwatch.printing.export.perfetto.trace_format import Slots, Trace, TrackOrder


@dataclass(slots=True, kw_only=True)
class TracedRequest:
    """A request, written to the trace some time after its end was reported."""

    request_id: str
    first_ns: int
    last_ns: int
    ordinal: int | None = None
    phases: list[tuple[str, int, int]] = field(default_factory=list)
    phase: tuple[str, int] | None = None
    """The current phase and when it began."""
    stepped: bool = False
    """Whether it was seen in a recorded step."""
    marks: list[tuple[str, int]] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    seen: set[Vantage] = field(default_factory=set)
    """The vantages that report the request; it has ended when all of them say so."""
    ended: set[Vantage] = field(default_factory=set)

    def enter(self, phase: str | None, t_ns: int) -> None:
        """End the current phase and begin another, or none if ``phase`` is None."""
        if self.phase is not None:
            name, since_ns = self.phase
            t_ns = max(t_ns, since_ns)
            self.phases.append((name, since_ns, t_ns))
        self.phase = None if phase is None else (phase, t_ns)
        self.reach(t_ns)

    def reach(self, t_ns: int) -> None:
        self.first_ns = min(self.first_ns, t_ns)
        self.last_ns = max(self.last_ns, t_ns)


QUEUE, PREFILL, DECODE = "queue", "prefill", "decode"
PREEMPTED, AGAIN = "preempted", "prefill again"
UNSEEN = "running, not observed"
NEXT = {PREFILL: DECODE, AGAIN: DECODE, UNSEEN: DECODE}
FACTS = (
    "external_id",
    "prompt_tokens",
    "cached_tokens",
    "max_tokens",
    "temperature",
    "output_tokens",
    "preemptions",
    "reason",
)


LINGER_NS = 2_000_000_000
"""Front end and engine are separate streams, so one may report the end before the other
begins.
"""


class RequestTracks:
    """Follows requests, and writes each into a slot some time after it has ended."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._requests: dict[tuple[str, str], TracedRequest] = {}
        self._members: dict[tuple[str, int], TracedRequest] = {}
        self._ended: list[tuple[int, tuple[str, str]]] = []
        """Known ends of requests, as a heap."""
        self._slots: dict[str, Slots] = {}
        """Slots of each engine."""

    def event(self, event: RequestEvent) -> None:
        key = (event.source, event.request_id)
        request = self._requests.get(key)
        if request is None:
            if event.kind is EventKind.FINISHED:
                return  # it was written already, or began before the recording
            request = TracedRequest(
                request_id=event.request_id, first_ns=event.t_ns, last_ns=event.t_ns
            )
            self._requests[key] = request
        self._learn(request, event)
        request.reach(event.t_ns)
        self._move(request, event)
        if request.ended >= request.seen:
            heapq.heappush(self._ended, (request.last_ns, key))
        self._write_ended(event.t_ns - LINGER_NS)

    def step(self, step: Step) -> None:
        """Update the phases of a step's members and of the requests it preempted."""
        for ordinal in step.preempted:
            request = self._members.get((step.source, ordinal))
            if request is not None and request.phase is not None:
                request.enter(PREEMPTED, step.start_ns)
                request.marks.append((PREEMPTED, request.last_ns))
        for ordinal, produced in zip(step.members, step.produced, strict=True):
            request = self._members.get((step.source, ordinal))
            if request is None or request.phase is None:
                continue
            request.reach(step.end_ns)
            if not request.stepped and request.phase[0] == PREFILL:
                name, since_ns = request.phase
                seen = since_ns == step.start_ns  # else its first steps were missed
                request.phase = (name if seen else UNSEEN, since_ns)
            request.stepped = True
            if request.phase[0] == PREEMPTED:
                request.enter(AGAIN, step.start_ns)
            if produced and request.phase[0] in NEXT:
                request.enter(NEXT[request.phase[0]], step.end_ns)

    def cut(self, source: str | None = None) -> None:
        """End the requests of a lost engine, or all of them at the end."""
        for key, request in self._requests.items():
            if source in {None, key[0]} and not request.ended >= request.seen:
                request.facts["unfinished"] = True
                request.ended |= request.seen
                heapq.heappush(self._ended, (request.last_ns, key))
        self._write_ended(None)

    def _write_ended(self, until_ns: int | None) -> None:
        """Write the requests that ended by ``until_ns``, in order of their end.

        Without ``until_ns``, all ended ones. A request that ended later than first
        reported goes back into the heap.
        """
        while self._ended and (until_ns is None or self._ended[0][0] <= until_ns):
            ended_ns, key = heapq.heappop(self._ended)
            request = self._requests.get(key)
            if request is None or not request.ended >= request.seen:
                continue
            if request.last_ns > ended_ns:
                heapq.heappush(self._ended, (request.last_ns, key))
            else:
                self._end(key)

    def _learn(self, request: TracedRequest, event: RequestEvent) -> None:
        request.seen.add(event.vantage)
        for name in FACTS:
            value = getattr(event, name)
            if value is not None:
                request.facts[name] = value
        if event.ordinal is not None and request.ordinal is None:
            request.ordinal = event.ordinal
            self._members[event.source, event.ordinal] = request

    @staticmethod
    def _move(request: TracedRequest, event: RequestEvent) -> None:
        match event.kind:
            case EventKind.ADDED:
                request.enter(QUEUE, event.t_ns)
            case EventKind.SCHEDULED:
                request.enter(PREFILL, event.t_ns)
            case EventKind.FIRST_TOKEN:
                request.marks.append(("first token at the API server", event.t_ns))
            case EventKind.FINISHED:
                request.ended.add(event.vantage)
                if event.vantage is Vantage.ENGINE:
                    request.enter(None, event.t_ns)

    def _end(self, key: tuple[str, str]) -> None:
        source, _ = key
        request = self._requests.pop(key)
        if request.ordinal is not None:
            self._members.pop((source, request.ordinal), None)
        if request.phase is not None:
            request.enter(None, request.last_ns)
        if self._trace.shows(request.first_ns, request.last_ns):
            self._write(source, request)

    def _write(self, source: str, request: TracedRequest) -> None:
        slots = self._slots.get(source)
        if slots is None:
            group = f"requests of {source}"
            slots = self._slots[source] = Slots(self._trace, group, TrackOrder.REQUESTS)
        sent_as = request.facts.get("external_id")
        name = request_name(request.request_id, str(sent_as) if sent_as else None)
        whole = (request.first_ns, request.last_ns)
        track = slots.take(*whole)
        facts = {"request_id": request.request_id, **request.facts}
        self._trace.slice(track, name, whole, facts)
        for phase, start_ns, end_ns in request.phases:
            self._trace.slice(track, phase, (start_ns, end_ns), {})
        for mark, t_ns in sorted(request.marks, key=lambda each: each[1]):
            self._trace.instant(track, mark, t_ns, {})
