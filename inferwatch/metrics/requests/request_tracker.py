"""Joins events and steps into requests, and measures their latencies.

Front end and engine are separate streams, so nothing depends on which reports first. A
duration is counted at the moment it ended, and only when both ends were seen. A request
that a stop string ends is finished for the front end, which then aborts it in the
engine: it has an E2EL and no TPOT.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from collectors.contract.readings import (
    EventKind,
    Note,
    RequestEvent,
    Step,
    Totals,
    Vantage,
)
from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.causes.first_token import Wait
from inferwatch.metrics.requests.attribution import Attribution, Key, RankTimes
from inferwatch.metrics.requests.latencies import VANTAGES
from inferwatch.metrics.requests.outcomes import outcome_of
from inferwatch.metrics.requests.request import DecodeRun, Request, come_first
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.requests.request_row import RequestState
from inferwatch.metrics.requests.slo import Limit
from inferwatch.metrics.requests.slowest import SlowLog
from inferwatch.metrics.series.history import Bins, History, trend
from inferwatch.metrics.series.samples import Samples
from inferwatch.metrics.series.union import Span
from inferwatch.metrics.series.window import Latency, Window

ASKED = {EventKind.ARRIVED, EventKind.ADDED}
"""Events that tell what a client asked for."""


class LatencySamples:
    """Samples of each latency, for the latency table and for charts over time."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.samples = {metric: Samples() for metric in VANTAGES}

    def add(self, metric: str, t_ns: int, value_ns: int, weight: int = 1) -> None:
        self.samples[metric].rows.add((t_ns, value_ns, weight))
        self._history.add_latency(metric, t_ns, value_ns, weight)

    def table(
        self,
        now_ns: int,
        window: Window,
        bins: Bins,
        limits: Mapping[str, Limit] | None = None,
    ) -> tuple[Latency, ...]:
        """Return one row per metric, with trends over the bins of the same window."""
        rows = []
        for metric, vantage in VANTAGES.items():
            samples = self.samples[metric]
            row = Latency(
                metric=metric,
                vantage=vantage,
                quantiles=samples.quantiles(now_ns, window),
                trend=trend(metric, bins),
            )
            if limit := (limits or {}).get(metric):
                share = samples.share_up_to(limit.most_ns, now_ns, window)
                met = None if share is None else (share, share)
                row = replace(row, objective_s=limit.below_s, met=met)
            rows.append(row)
        return tuple(rows)


class LatencySink(Protocol):
    """Receives the latencies that a RequestTracker measures."""

    def add(self, metric: str, t_ns: int, value_ns: int, weight: int = 1) -> None:
        """Add ``weight`` equal samples at ``t_ns``."""


class OutcomeSink(Protocol):
    """Receives arrivals and ends of requests from front end and engine."""

    def arrived(self, request: Request, t_ns: int) -> None:
        """Count a request that arrived."""

    def ended(self, request: Request, state: RequestState, t_ns: int) -> None:
        """Count a request that ended in this state."""


class JudgeSink(Protocol):
    """Receives ended requests, to judge them once everything is reported."""

    def ended(self, request: Request) -> None:
        """Receive a request that ended, again if more is reported about it later."""

    def give_up(self, source: str) -> None:
        """Stop waiting for reports on ended requests of a source."""


class TenantSink(Protocol):
    """Is told what tenants need to know of requests and steps."""

    def named(self, request: Request, event: RequestEvent) -> None:
        """Receive a request of which this event told what was asked."""

    def queued(self, request: Request) -> None:
        """Receive a request that entered the queue of its rank."""

    def scheduled(self, request: Request) -> None:
        """Receive a request that was scheduled for the first time."""

    def gave_up(self, request: Request, t_ns: int) -> None:
        """Receive a request that ended in the engine before it was scheduled."""

    def step(
        self, step: Step, run: DecodeRun, others: Iterable[tuple[Request, int]]
    ) -> None:
        """Receive a step, and its members outside the run with tokens scheduled."""


class RequestTracker:
    """Follows each request through events and steps.

    Results go into the request itself, the latencies and the outcomes.
    """

    def __init__(
        self,
        requests: RequestIndex,
        latencies: LatencySink,
        outcomes: OutcomeSink,
        *judges: JudgeSink,
    ) -> None:
        self._requests = requests
        self._latencies = latencies
        self._outcomes = outcomes
        self._judges = judges
        self.causes = Attribution()
        self.slow = SlowLog()
        self.tenants: TenantSink | None = None
        self._ended_early: list[Request] = []
        self._runs: dict[Key, DecodeRun] = {}
        self._on_event = {
            (EventKind.ARRIVED, Vantage.FRONTEND): self._arrived,
            (EventKind.FIRST_TOKEN, Vantage.FRONTEND): self._first_token_sent,
            (EventKind.FINISHED, Vantage.FRONTEND): self._finished_sending,
            (EventKind.ADDED, Vantage.ENGINE): self._added,
            (EventKind.SCHEDULED, Vantage.ENGINE): self._scheduled,
            (EventKind.FINISHED, Vantage.ENGINE): self._finished,
        }

    def event(self, event: RequestEvent) -> None:
        """Apply an event; repeating it changes nothing."""
        handle = self._on_event.get((event.kind, event.vantage))
        if handle is None:
            return
        request = self._requests.named(
            event.source, event.request_id, event.ordinal, event.t_ns
        )
        if event.vantage not in self._requests.tellers.get(event.source, ()):
            self._requests.add_reporter(event.source, event.vantage)
        request.learn(event)
        if event.external_id is not None:
            self._requests.called(request, event.external_id)
        if self.tenants is not None and event.kind in ASKED:
            self.tenants.named(request, event)
        handle(request, event)

    def step(self, step: Step, idle_ns: int = 0) -> None:
        """Add the tokens of a step to its requests, and count the gaps before them.

        No step ran for ``idle_ns`` before this one, though there was work.
        """
        rank = self.causes.step(step, idle_ns)
        requests = self._requests.members(step.source)
        for ordinal in step.preempted:
            self._preempted(requests.get(ordinal), step)
        run = self._runs.get((step.source, step.rank))
        if run is None:
            run = self._runs[step.source, step.rank] = DecodeRun()
        places = self._count_together(run, step, rank.spike_ns)
        if places:
            self._count_others(run, step, places, rank)
        elif run.members:
            self._latencies.add("itl_s", step.end_ns, run.gap_ns, len(run.members))
        if self.tenants is not None:
            self.tenants.step(step, run, self._others(step, places))
        if self._ended_early:
            self._finish_late()
        if step.waiting == 0 and len(step.members) >= step.running:
            # Those of the rank that must have ended unnoticed are forgotten.
            self._requests.reconcile(step.source, step.rank)

    def _others(
        self, step: Step, places: Sequence[int]
    ) -> Iterator[tuple[Request, int]]:
        """Yield the members at these places, with the tokens scheduled for them."""
        requests = self._requests.members(step.source)
        for place in places:
            request = requests.get(step.members[place])
            if request is not None:
                yield request, step.scheduled[place]

    def totals(self, totals: Totals) -> None:
        """Forget requests that seem live when an engine reports that it is idle."""
        if totals.running == totals.waiting == 0:
            self._requests.reconcile(totals.source, totals.rank)

    def dropped(self, note: Note) -> None:
        """Record that readings were lost, so that no gap spans them."""
        self._requests.doubt(note.source)
        self._give_up(note.source)
        self.causes.dropped(note.source)

    def clocks_dropped(self, sources: Collection[str], span: Span) -> None:
        """Record that GPU clocks of these engines were throttled."""
        self._explain(self.causes.clocks_dropped(sources, span), Cause.CLOCK_DROP)

    def compiled(self, note: Note) -> None:
        """Record that an engine compiled while it served."""
        span = note.t_ns, note.t_ns + (note.duration_ns or 0)
        self._explain(self.causes.compiled(note.source, span), Cause.COMPILATION)

    def _explain(self, late: Iterable[tuple[str, int, int]], cause: Cause) -> None:
        """Set why tokens were late that a slow step explained so far."""
        for source, ordinal, gap_ns in late:
            request = self._requests.members(source).get(ordinal)
            if request is not None:
                request.catch_up()
            is_it = request is not None and request.itl_max_ns == gap_ns
            if request and is_it and request.itl_cause is Cause.SLOW_STEP:
                request.itl_cause, request.row = cause, None

    def lost(self, note: Note) -> None:
        """End all requests of a lost engine as failed."""
        for request in self._requests.of(note.source):
            request.front_ended = request.engine_ended = True
            request.reason = "lost"
            if request.end_ns is None:
                request.end_ns = note.t_ns
            self.causes.ended(request)
            self._end(request, RequestState.FAILED, note.t_ns)
        self._give_up(note.source)
        self.causes.lost(note.source)
        for key in [key for key in self._runs if note.source in {"", key[0]}]:
            del self._runs[key]
        self._requests.restart(note.source)

    def release(self) -> None:
        self._on_event = {}

    # Front end.

    def _arrived(self, request: Request, event: RequestEvent) -> None:
        self._outcomes.arrived(request, event.t_ns)
        request.arrived_ns = event.t_ns
        request.tokenised_ns = event.tokenised_ns
        if event.media_items is not None:
            request.take_media(event)
        request.waits_until_ns = 0

    def _first_token_sent(self, request: Request, event: RequestEvent) -> None:
        request.first_sent = True
        if request.arrived_ns is not None and request.ttft_ns is None:
            request.ttft_ns = event.t_ns - request.arrived_ns
            self._latencies.add("ttft_s", event.t_ns, request.ttft_ns)
            request.explain()
            self.slow.add(request, event.t_ns)

    def _finished_sending(self, request: Request, event: RequestEvent) -> None:
        request.front_ended = True
        request.end_ns = event.t_ns
        outcome = outcome_of(event)
        known = request.arrived_ns is not None and request.e2el_ns is None
        if known and outcome is RequestState.FINISHED:
            request.e2el_ns = event.t_ns - (request.arrived_ns or 0)
            self._latencies.add("e2el_s", event.t_ns, request.e2el_ns)
        self._end(request, outcome, event.t_ns)

    # Engine.

    def _added(self, request: Request, event: RequestEvent) -> None:
        self._outcomes.arrived(request, event.t_ns)
        if request.added_ns is not None:
            return
        request.added_ns = event.t_ns
        if not request.output_tokens:
            request.wait = Wait.since(event.t_ns)
            self.causes.queued(request)
            if self.tenants is not None:
                self.tenants.queued(request)
        request.awaits_first = request.output_tokens == 0
        request.advance(RequestState.QUEUED)
        if not request.ended and request not in self._requests.running:
            self._requests.wait(request, event.t_ns)

    def _scheduled(self, request: Request, event: RequestEvent) -> None:
        if request.scheduled_ns is not None:
            return
        request.scheduled_ns = event.t_ns
        request.awaits_first = request.trusted = request.output_tokens == 0
        request.advance(RequestState.PREFILL)
        if not request.ended:
            self._requests.run(request, event.t_ns)
        if request.added_ns is not None:
            request.queue_ns = event.t_ns - request.added_ns
            self._latencies.add("queue_s", event.t_ns, request.queue_ns)
            if self.tenants is not None:
                self.tenants.scheduled(request)

    def _finished(self, request: Request, event: RequestEvent) -> None:
        request.engine_ended = True
        if request.end_ns is None:
            request.end_ns = event.t_ns
        self.causes.ended(request)
        if request.scheduled_ns is None and self.tenants is not None:
            self.tenants.gave_up(request, event.t_ns)
        outcome = outcome_of(event)
        if outcome is RequestState.FINISHED and request.tpot_due_ns is None:
            request.tpot_due_ns = event.t_ns
            self._count_tpot(request)
        if request.ended:  # keep the end that the front end reported
            self._requests.end(request)
            self._ended(request)
        else:
            self._end(request, outcome, event.t_ns)

    # Steps.

    def _count_together(
        self, run: DecodeRun, step: Step, spike_ns: float
    ) -> Sequence[int]:
        """Count the tokens and gaps of the run; return the places of other members.

        A spike is none of its business: each late token has a cause of its own.
        """
        members, produced = step.members, step.produced
        whole = min(len(members), len(step.scheduled), len(produced))
        if whole < len(members) or step.end_ns - run.end_ns > spike_ns:
            run.start(step.end_ns)
            return range(whole)
        held = self._leave(run, members, produced)
        if not run.members:
            run.start(step.end_ns)
            return range(whole)
        run.count(step.end_ns)
        if held:
            return range(held, whole)
        return [at for at, each in enumerate(members) if each not in run.members]

    def _leave(
        self, run: DecodeRun, members: list[int], produced: list[int]
    ) -> int | None:
        """Have all leave the run that did not get one token in this step.

        Returns how many of the first members are those of the run; None where that is
        not known.
        """
        looked_at = len(run.members)
        held: int | None = looked_at
        if not come_first(run.members, members):
            held, looked_at = None, len(members)
            for ordinal in run.members.keys() - members:
                run.members[ordinal].leave_run()
        if produced[:looked_at].count(1) < looked_at:
            held = None
            for ordinal, tokens in zip(members, produced, strict=False):
                if tokens != 1 and ordinal in run.members:
                    run.members[ordinal].leave_run()
        return held

    def _count_others(
        self, run: DecodeRun, step: Step, places: Sequence[int], rank: RankTimes
    ) -> None:
        """Count the tokens and gaps of members that are not in the run."""
        requests = self._requests.members(step.source)
        gaps = {run.gap_ns: len(run.members)} if run.members else {}
        one_each = 4 * step.produced.count(1) >= 3 * len(step.produced)
        for place in places:
            ordinal, produced = step.members[place], step.produced[place]
            request = requests.get(ordinal)
            if request is None or not request.steady or not produced:
                request = self._resume(request, step, rank, place)
            if produced:
                self._count_alone(request, step, place, rank, gaps)
                if produced == 1 and one_each and request.steady:
                    request.join(run, ordinal)
        for gap_ns in sorted(gaps):
            self._latencies.add("itl_s", step.end_ns, gap_ns, gaps[gap_ns])

    def _count_alone(
        self,
        request: Request,
        step: Step,
        place: int,
        rank: RankTimes,
        gaps: dict[int, int],
    ) -> None:
        """Count the tokens that a step produced for one member, and the gap before.

        There is one gap per step and request, as vLLM counts, however many tokens came.
        """
        request.leave_run()
        last_ns, request.last_ns = request.last_ns, step.end_ns
        scheduled = step.scheduled[place]
        request.hold_kv(scheduled, step.start_ns, step.end_ns, produced=True)
        request.output_tokens += step.produced[place]
        request.row = None
        if last_ns is None:
            return
        if last_ns != rank.before_ns:
            self.causes.passed_by(request, rank, last_ns)
        gap_ns = step.end_ns - last_ns
        gaps[gap_ns] = gaps.get(gap_ns, 0) + 1
        request.itl_last_ns = gap_ns
        if gap_ns > request.itl_max_ns:
            request.itl_max_ns, request.itl_cause = gap_ns, None
            if gap_ns > rank.spike_ns:
                ordinal = step.members[place]
                self.causes.late(request, rank, ordinal, last_ns, step.end_ns)

    def _resume(
        self,
        request: Request | None,
        step: Step,
        rank: RankTimes,
        place: int,
    ) -> Request:
        """Update a step member that is new, prefills, or has already ended."""
        ordinal = step.members[place]
        scheduled, produced = step.scheduled[place], step.produced[place]
        if request is None:
            request = self._requests.stranger(step.source, ordinal, step.start_ns)
        request.rank = step.rank
        began_ns = request.scheduled_ns
        if not request.prefilled_tokens and began_ns not in {None, step.start_ns}:
            request.joined_late()
        request.prefilled_tokens += scheduled
        request.hold_kv(scheduled, step.start_ns, step.end_ns, produced=produced > 0)
        request.row = None
        self.causes.computed(request, step, rank, scheduled)
        if produced and request.awaits_first:
            self._first_token(request, step, rank)
        if produced:
            request.stage = RequestState.DECODE
        elif request.stage is not RequestState.DECODE:
            request.stage = RequestState.PREFILL
        if request.ended:
            self._ended_early.append(request)
            return request
        self._requests.run(request, step.start_ns)
        request.steady = produced > 0
        return request

    def _first_token(self, request: Request, step: Step, rank: RankTimes) -> None:
        request.awaits_first = False
        end_ns = request.first_ns = step.end_ns
        self.causes.begins_decode(request, rank)
        if request.scheduled_ns is not None:
            request.prefill_ns = end_ns - request.scheduled_ns
            self._latencies.add("prefill_s", end_ns, request.prefill_ns)
        request.explain()
        if request.ttft_ns is not None:
            self.slow.explain(request)

    def _preempted(self, request: Request | None, step: Step) -> None:
        if request is None or request.ended:
            return
        self.causes.preempted(request, step)
        request.preemptions += 1
        request.stage = RequestState.PREEMPTED
        request.unsettle()
        request.row = None
        self._requests.wait(request, step.start_ns)

    def _finish_late(self) -> None:
        """Finish requests that ended before their latest step was reported."""
        while self._ended_early:
            request = self._ended_early.pop()
            self.causes.ended(request)
            self._count_tpot(request)
            self._ended(request)

    def _count_tpot(self, request: Request) -> None:
        """Count TPOT once the step of the last token was reported."""
        awaited = request.trusted and request.output_tokens < (request.tokens or 0)
        if request.tpot_due_ns is None or request.tpot_counted or awaited:
            return
        request.tpot_counted = True
        tpot_ns = request.tpot_ns
        if tpot_ns is not None:
            self._latencies.add("tpot_s", request.tpot_due_ns, tpot_ns)

    def _end(self, request: Request, outcome: RequestState, t_ns: int) -> None:
        self._outcomes.ended(request, outcome, t_ns)
        request.outcome = outcome
        self._requests.end(request)
        self._ended(request)

    def _ended(self, request: Request) -> None:
        for judge in self._judges:
            judge.ended(request)

    def _give_up(self, source: str) -> None:
        """Judge ended requests of a source by what is known so far."""
        for judge in self._judges:
            judge.give_up(source)
