"""Progress of one load run: target, counts, failures, state."""

from typing import Self

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    ClientSample,
    LoadEvent,
    LoadKind,
    Phase,
    RequestRecord,
)
from inferwatch.metrics.load.book import BY_US, per_second, told_sum
from inferwatch.metrics.load.client_verdict import ClientJudge, SavedSeconds
from inferwatch.metrics.load.plan import PlanFacts
from inferwatch.metrics.load.view import FailureCount, LoadRun, RunState

SILENT_NS = 5 * NS_PER_S
"""A running generator reports every second; after this it counts as silent."""


MOST_KINDS = 50


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a run's requests at one moment; each has ended or is in flight."""

    sent: int = 0
    begun: int = 0
    """Requests that set out; of conversations only first turns that ended."""
    in_flight: int | None = None
    succeeded: int = 0
    failed: int = 0
    aborted: int = 0
    output_tokens: int | None = 0
    """Of successful requests; None where one of them was not counted."""


class EndedRequests(msgspec.Struct):
    """Counts of a run's requests as they end; those of the warm-up are separate."""

    sent: int = 0
    succeeded: int = 0
    failed: int = 0
    aborted: int = 0
    warmup: int = 0
    begun: int = 0
    """First turns that have ended."""
    in_turns: bool = False
    """Whether requests are turns of conversations."""
    flown: int = 0
    """Requests sent in any phase."""
    output_tokens: int | None = 0
    """Of successful requests; None where one of them was not counted."""
    first_due_ns: int | None = None
    last_end_ns: int | None = None
    by_kind: dict[str, FailureCount] = {}
    """Failed requests by kind of failure."""

    def take(self, record: RequestRecord) -> None:
        sent = record.sent_ns is not None
        self.flown += sent
        if record.phase is Phase.WARMUP:
            self.warmup += 1
            return
        self.sent += 1
        self.begun += record.turn in {None, 1}
        self.in_turns |= record.turn is not None
        due_ns = record.intended_ns
        self.first_due_ns = min(due_ns, self.first_due_ns or due_ns)
        end_ns = record.end_ns or due_ns
        self.last_end_ns = max(end_ns, self.last_end_ns or end_ns)
        if record.failure is None:
            self.succeeded += 1
            self.output_tokens = told_sum((self.output_tokens, record.output_tokens))
        elif record.failure in BY_US:
            self.aborted += 1
        else:
            self.failed += 1
            self._failed(record.failure, record.detail or "")

    def tally(
        self, in_flight: int | None, *, warming_up: bool = False
    ) -> RequestCounts:
        """Return the present counts, without requests in flight in a warm-up."""
        flying = 0 if warming_up else in_flight or 0
        return RequestCounts(
            sent=self.sent + flying,
            begun=self.begun + (0 if self.in_turns else flying),
            in_flight=in_flight,
            succeeded=self.succeeded,
            failed=self.failed,
            aborted=self.aborted,
            output_tokens=self.output_tokens,
        )

    def failures(self) -> tuple[FailureCount, ...]:
        """Return failures by kind, most frequent first."""
        return tuple(
            sorted(self.by_kind.values(), key=lambda each: (-each.count, each.kind))
        )

    def _failed(self, kind: str, message: str) -> None:
        before = self.by_kind.get(kind)
        if before is None and len(self.by_kind) >= MOST_KINDS:
            return
        self.by_kind[kind] = FailureCount(
            kind=kind,
            count=1 if before is None else before.count + 1,
            first=message if before is None else before.first,
        )


class AskedRate(msgspec.Struct, array_like=True):
    """The present target rate or users, and the previous one."""

    rate_per_s: float | None = None
    users: int | None = None
    before: float | None = None
    changed_ns: int | None = None

    def take(self, event: LoadEvent) -> None:
        old = self.rate_per_s if self.users is None else self.users
        self.rate_per_s, self.users = event.rate_per_s, event.users
        new = self.rate_per_s if self.users is None else self.users
        if old is not None and new != old:
            self.before, self.changed_ns = old, event.t_ns


class RunMoments(msgspec.Struct, array_like=True):
    """When a run began, sent, drained, ended, and last reported."""

    began_ns: int | None = None
    sending_ns: int | None = None
    draining_ns: int | None = None
    ended_ns: int | None = None
    heard_ns: int | None = None

    @property
    def sending(self) -> bool:
        over = self.draining_ns is not None or self.ended_ns is not None
        return self.sending_ns is not None and not over

    def state(self, now_ns: int, *, warms_up: bool) -> RunState:
        if self.ended_ns is not None:
            return RunState.ENDED
        if self.heard_ns is not None and now_ns - self.heard_ns > SILENT_NS:
            return RunState.SILENT
        if self.draining_ns is not None:
            return RunState.DRAINING
        if self.sending_ns is not None:
            return RunState.SENDING
        return RunState.WARMING_UP if warms_up else RunState.STARTING

    def elapsed_s(self, now_ns: int) -> float | None:
        if self.sending_ns is None:
            return None
        ends = (self.draining_ns, self.ended_ns, now_ns)
        end_ns = next(each for each in ends if each is not None)
        return max(end_ns - self.sending_ns, 0) / NS_PER_S


class SavedRun(msgspec.Struct, array_like=True):
    """A RunProgress as checkpoints keep it."""

    run_id: str
    plan: tuple[PlanFacts, str] | None
    latest: SavedSeconds
    asked: AskedRate
    counts: EndedRequests
    moments: RunMoments
    told: tuple[ClientSample, RequestCounts, int] | None
    sends: int
    held_back: int | None
    said: str


class RunProgress:
    """Folds the readings of one load run in bounded memory."""

    def __init__(self, run_id: str, plan: tuple[PlanFacts, str] | None) -> None:
        self.run_id = run_id
        self.plan = plan[0] if plan else None
        self._plan_json = plan[1] if plan else None
        self.judge = ClientJudge(self._most_in_flight)
        self.asked = AskedRate()
        self._counts = EndedRequests()
        self._moments = RunMoments()
        self._last_sample: tuple[ClientSample, RequestCounts, int] | None = None
        """The last sample, the counts at that time, and how many had ended of any
        phase.
        """
        self._sends = 0
        """The generator's own count, reported at its end."""
        self._held_back: int | None = None
        self._message = ""

    def saved(self) -> SavedRun:
        plan = (self.plan, self._plan_json or "") if self.plan else None
        return SavedRun(
            run_id=self.run_id,
            plan=plan,
            latest=self.judge.saved(),
            asked=self.asked,
            counts=self._counts,
            moments=self._moments,
            told=self._last_sample,
            sends=self._sends,
            held_back=self._held_back,
            said=self._message,
        )

    @classmethod
    def restored(cls, saved: SavedRun) -> Self:
        run = cls(saved.run_id, saved.plan)
        run.judge = ClientJudge.restored(saved.latest, run._most_in_flight)
        run.asked, run._counts, run._moments = saved.asked, saved.counts, saved.moments
        run._last_sample, run._message = saved.told, saved.said
        run._sends, run._held_back = saved.sends, saved.held_back
        return run

    @property
    def ended(self) -> bool:
        return self._moments.ended_ns is not None

    @property
    def rate_per_s(self) -> float | None:
        """The present target rate; None while not sending."""
        return self.asked.rate_per_s if self._moments.sending else None

    def event(self, event: LoadEvent) -> None:
        moments = self._moments
        moments.heard_ns = event.t_ns
        moments.began_ns = moments.began_ns or event.t_ns
        self._message = event.text
        if event.kind is LoadKind.RATE:
            self.asked.take(event)
            if moments.sending_ns is None and not self._warms_up:
                moments.sending_ns = event.t_ns
        elif event.kind is LoadKind.WARMUP_ENDED:
            moments.sending_ns = event.t_ns
        elif event.kind is LoadKind.DRAINING:
            moments.draining_ns = event.t_ns
        elif event.kind is LoadKind.STOPPED:
            moments.ended_ns = event.t_ns

    def record(self, record: RequestRecord) -> None:
        self._counts.take(record)
        self.judge.record(record)

    def sample(self, sample: ClientSample) -> tuple[int, int, int] | None:
        """Fold a sample of one second; return its start, end, and requests sent.

        Sent is the increase of requests ended or in flight. None if some of these are
        the warm-up's, or if sending is over.
        """
        since_ns, before = sample.t_ns - sample.span_ns, 0
        if self._last_sample is not None:
            earlier, _, ended = self._last_sample
            since_ns, before = earlier.t_ns, ended + earlier.in_flight
        self._moments.heard_ns = sample.t_ns
        warming_up = self._moments.sending_ns is None and self._warms_up
        self._count_held_back(sample, warming_up=warming_up)
        tally = self._counts.tally(sample.in_flight, warming_up=warming_up)
        self._last_sample = sample, tally, self._counts.flown
        began_ns = self._moments.sending_ns
        until_ns = self._moments.draining_ns or sample.t_ns
        if began_ns is None or (since_ns < began_ns and self._warms_up):
            return None
        if since_ns >= until_ns:
            return None
        flown = self._counts.flown + sample.in_flight - before
        return max(since_ns, began_ns), min(until_ns, sample.t_ns), flown

    @property
    def over_ns(self) -> int | None:
        """When the run ended; if no end was reported, when it had been silent too long.

        None before any report.
        """
        moments = self._moments
        if moments.ended_ns is not None or moments.heard_ns is None:
            return moments.ended_ns
        return moments.heard_ns + SILENT_NS + 1

    def view(self, now_ns: int) -> LoadRun:
        plan, target, tally = self.plan, self.asked, self._tally()
        elapsed_s = self._moments.elapsed_s(now_ns)
        state = self._moments.state(now_ns, warms_up=self._warms_up)
        answered = tally.succeeded + tally.failed + tally.aborted
        flying = 0 if state is RunState.SILENT else tally.sent - answered
        sent = max(tally.sent, self._sends)
        in_flight: int | None = flying
        if tally.in_flight is None or state is RunState.SILENT:
            in_flight = None
        elif state is RunState.WARMING_UP:
            in_flight = tally.in_flight
        span_s = self._span_s()
        return LoadRun(
            run_id=self.run_id,
            state=state,
            plan=self._plan_json,
            began_ns=self._moments.began_ns,
            elapsed_s=elapsed_s,
            duration_s=plan.duration_s if plan else None,
            requests=plan.requests if plan else None,
            share=self._share(elapsed_s, tally),
            sent=sent,
            begun=tally.begun,
            in_turns=self._counts.in_turns,
            in_flight=in_flight,
            unaccounted=sent - answered - flying,
            held_back=self._held_back,
            most_in_flight=self._most_in_flight,
            done_per_s=tally.succeeded / span_s if span_s else None,
            tokens_per_s=per_second(tally.output_tokens, span_s),
            succeeded=tally.succeeded,
            failed=tally.failed,
            aborted=tally.aborted,
            warmup=self._counts.warmup,
            failures=self._counts.failures(),
            rate_per_s=None if self.ended else target.rate_per_s,
            users=None if self.ended else target.users,
            before=target.before,
            changed_ns=target.changed_ns,
            transport=self._last_sample[0].transport if self._last_sample else None,
            said=self._message,
        )

    def _count_held_back(self, sample: ClientSample, *, warming_up: bool) -> None:
        """Count requests that the cap on requests in flight held back.

        Those of the warm-up are not counted.
        """
        if sample.final:
            self._sends = sample.sends
            self._held_back = sample.held_back
        elif sample.held_back is not None and not warming_up:
            self._held_back = (self._held_back or 0) + sample.held_back

    def _span_s(self) -> float | None:
        """Return the time that rates are over: first intended send to last end.

        During sending it ends with the generator's last report, which has the counts.
        None if unknown.
        """
        first_ns, last_ns = self._counts.first_due_ns, self._counts.last_end_ns
        going_on = self._moments.draining_ns is None and not self.ended
        if going_on and self._last_sample is not None:
            last_ns = self._last_sample[0].t_ns
        if first_ns is None or last_ns is None or last_ns <= first_ns:
            return None
        return (last_ns - first_ns) / NS_PER_S

    @property
    def _most_in_flight(self) -> int | None:
        """The cap on requests in flight; None in a closed loop or without a plan."""
        return self.plan.most_in_flight if self.plan else None

    @property
    def _warms_up(self) -> bool:
        if self.plan is not None:
            return self.plan.warmup_s > 0
        return self._counts.warmup > 0

    def _tally(self) -> RequestCounts:
        """Return counts as of the last sample; present ones if sending is over."""
        if self.ended:
            return self._counts.tally(0)
        if self._last_sample is None:
            return self._counts.tally(None)
        sample, tally, ended = self._last_sample
        if self._moments.draining_ns is None:
            return tally
        return self._counts.tally(
            max(sample.in_flight - (self._counts.flown - ended), 0)
        )

    def _share(self, elapsed_s: float | None, tally: RequestCounts) -> float | None:
        plan = self.plan
        if plan is None or (plan.duration_s is None and plan.requests is None):
            return None
        if self._moments.draining_ns is not None:
            return 1.0
        shares = [0.0]
        if plan.duration_s and elapsed_s is not None:
            shares.append(elapsed_s / plan.duration_s)
        if plan.requests:
            shares.append(tally.begun / plan.requests)
        return min(max(shares), 1.0)
