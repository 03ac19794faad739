"""The verdict: how the engine has been in the last minute, in one line.

What is so at this moment is its *state*. The verdict is judged at each tick over the
last minute: it begins when something is wrong for long enough, and ends when none of
that is left in the minute, so that no burst turns it on and off or renames its cause.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import BoundBy, EngineInfo, Note, NoteKind, Step
from inferwatch.formatting import bound_text, format_duration
from inferwatch.metrics.causes.cause import SLOW_S
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.steps.engines import Engines
from inferwatch.metrics.steps.flow import SchedulerState
from inferwatch.metrics.steps.lateness import STALL_LEAST_NS, CatchUp


class Health(StrEnum):
    """The verdict in one word, worst last."""

    STARTING = "starting"
    IDLE = "idle"
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    QUEUEING = "queueing"
    STALLED = "stalled"
    LOST = "lost"


TROUBLES = (Health.STALLED, Health.QUEUEING, Health.DEGRADED)
"""Verdicts that are judged over the last minute, the worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The state of the engine, as shown to users."""

    health: Health
    sentence: str
    """For an engine that died, the end of its log follows on further lines."""
    since_ns: int | None = None
    now: Health | None = None
    """How it is at this moment, where that differs."""

    @property
    def headline(self) -> str:
        """The first line of the verdict's sentence, without log lines."""
        return self.sentence.partition("\n")[0]

    @property
    def at_present(self) -> Health:
        """How it is at this moment, whatever the last minute was like."""
        return self.now or self.health


LEAVING = (Health.STALLED, Health.QUEUEING)
"""Verdicts whose findings end a little later than they do."""
LEFT_NS = 20 * NS_PER_S
"""How much longer the word stays for these, so that it need not change twice."""
DATED_NS = 20 * NS_PER_S
"""How far a word that follows a good one is dated back: as long as findings need."""
WELL = (Health.HEALTHY, Health.IDLE)
MINUTE_NS = 60 * NS_PER_S
QUEUE_PERSISTS_NS = NS_PER_S
QUEUE_SHARE = 0.05
"""Share of the minute with a lasting queue from which it counts, 0-1."""
MANY_WAITING = 5
"""Waiting requests that count at once, if they last."""
MANY_PREEMPTIONS = 3
IDLE_AFTER_NS = 20 * NS_PER_S
"""Time without work after which work that went well is over."""
STALL_STEPS = 10
"""Number of usual step times without a step that mean stalled."""
LONGEST_TICK_NS = 2 * NS_PER_S
"""Longest time that one tick may stand for."""
FRESH_NS = 3 * NS_PER_S
"""How long what was judged at a tick is shown."""
LEAST_SHARE = 0.005
"""Share of the minute that would be 0% as text, 0-1."""
SECOND_SHARE = 0.2
"""Share of the queued time from which a second limit is named, 0-1."""
MOSTLY = 1.5
"""How much more one limit must take than another, to be what is mostly queued for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A finding on the engine or its traffic, as far as the verdict depends on it."""

    text: str
    since_ns: int
    queues: bool = False
    """Whether it explains why requests queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMinute:
    """What the verdict is judged by, besides the state of the engine."""

    covered_ns: int = 0
    """How much of the minute an engine was watched."""
    ranks: int = 1
    bound_ns: dict[BoundBy, int] = field(default_factory=dict)
    """Time of steps by the limit that held the head of the queue back."""
    slow_shares: dict[BoundBy, float] = field(default_factory=dict)
    """Share of the slowest TTFTs spent queueing for each limit, 0-1."""
    deferral: str | None = None
    """Why requests were deferred for most of the time they were, if that is known."""
    p99_ttft_s: float | None = None
    worst_ttft_s: float | None = None
    preemptions: int = 0
    problems: Sequence[Problem] = ()
    """The costliest first."""


class MinuteSpans(msgspec.Struct, array_like=True):
    """Spans of the last minute in which something was so; saved as they are."""

    spans: list[tuple[int, int]] = []

    def take(self, start_ns: int, end_ns: int) -> None:
        """Add a span that ends last of all."""
        while self.spans and start_ns <= self.spans[-1][1]:
            start_ns = min(self.spans.pop()[0], start_ns)
        self.spans.append((start_ns, end_ns))

    def within(self, now_ns: int) -> list[int]:
        """Return the lengths of the parts within the last minute."""
        since_ns = now_ns - MINUTE_NS
        self.spans = [each for each in self.spans if each[1] > since_ns]
        return [end - max(start, since_ns) for start, end in self.spans]


class TickVerdict(msgspec.Struct, array_like=True):
    """The verdict as of a tick."""

    tick_ns: int
    health: Health
    since_ns: int | None
    sentence: str
    first: str
    """What is named first."""
    over: bool = False
    """Whether only findings are left of a stall or a queue."""


class Quiet(msgspec.Struct, array_like=True):
    """A time without a step though there was work, until a step tells how long."""

    since_ns: int
    until_ns: int
    before: TickVerdict | None
    """The verdict before it."""
    worse_ns: int | None
    told: bool = False
    """Whether it was called a stall."""


class SavedHealth(msgspec.Struct, array_like=True):
    """A HealthTracker as checkpoints keep it, without engines and requests."""

    stage: Note | None
    lost: Note | None
    up_ns: int | None
    last_work_ns: int | None
    durations_ns: list[int]
    queued: MinuteSpans
    stalled: MinuteSpans
    degraded: MinuteSpans
    judged: TickVerdict | None
    tick_ns: int | None
    worse_ns: int | None = None
    quiet: Quiet | None = None
    asleep: dict[str, Note] = {}


class HealthTracker:
    """Gives the verdict on the engine, by its latest stage, steps and losses."""

    def __init__(self, engines: Engines, requests: RequestIndex) -> None:
        self._engines = engines
        self._requests = requests
        self._stage: Note | None = None
        self._lost: Note | None = None
        self._asleep: dict[str, Note] = {}
        """Notes of engines that sleep, by source."""
        self._up_ns: int | None = None
        self._last_work_ns: int | None = None
        self._durations_ns: deque[int] = deque(maxlen=128)
        self._queued = MinuteSpans()
        self._stalled_in = MinuteSpans()
        self._degraded = MinuteSpans()
        self._judged: TickVerdict | None = None
        self._tick_ns: int | None = None
        self._worse_ns: int | None = None
        """The latest tick with a stall or a queue in the minute before it."""
        self._quiet: Quiet | None = None
        self.catch_up = CatchUp()

    def info(self, info: EngineInfo) -> None:
        self._lost = None
        self._asleep.pop(info.source, None)
        self._up(info.t_ns)

    def step(self, step: Step) -> bool:
        """Take a step, and return whether it shows that a stall was none."""
        if self._up_ns is None:
            self._up(step.start_ns)
        self.worked(step.end_ns)
        asleep = self._asleep.get(step.source)
        if asleep is not None and step.start_ns > asleep.t_ns:  # nobody told it awoke
            del self._asleep[step.source]
        untrue = self._end_quiet(step)
        self._durations_ns.append(step.duration_ns)
        return untrue

    def worked(self, t_ns: int) -> None:
        if self._last_work_ns is None or t_ns > self._last_work_ns:
            self._last_work_ns = t_ns

    def note(self, note: Note) -> None:
        """Record a stage of starting, or the start or loss of an engine."""
        if note.kind is NoteKind.STAGE:
            self._stage = note
        elif note.kind is NoteKind.LOST:
            self._lost, self._up_ns, self._stage = note, None, None
            self._queued, self._stalled_in = MinuteSpans(), MinuteSpans()
            self._degraded = MinuteSpans()
            self._judged = self._worse_ns = self._quiet = None
            self._asleep.pop(note.source, None)
        elif note.kind is NoteKind.DROPPED:
            self._quiet = None  # steps of that time may be among what was lost
        elif note.kind in {NoteKind.STARTED, NoteKind.RESTARTED}:
            self._lost = None
            self._asleep.pop(note.source, None)
        elif note.kind in {NoteKind.ASLEEP, NoteKind.AWAKE}:
            self._quiet = None
            if note.kind is NoteKind.ASLEEP:
                self._asleep[note.source] = note
            else:
                self._asleep.pop(note.source, None)

    @property
    def lost_ns(self) -> int | None:
        """When the engine was lost; None while it is not."""
        return None if self._lost is None else self._lost.t_ns

    def stalled_since_ns(self, now_ns: int) -> int | None:
        """Return since when it is stalled, as of a tick a moment ago; else None."""
        quiet = self._quiet
        if quiet is None or not quiet.told or now_ns - quiet.until_ns > FRESH_NS:
            return None
        return quiet.since_ns

    @property
    def asleep(self) -> Note | None:
        """When and how the engines were put to sleep; None while one is awake."""
        if not self._asleep or self._engines.alive - self._asleep.keys():
            return None
        return max(self._asleep.values(), key=lambda each: each.t_ns)

    def saved(self) -> SavedHealth:
        """Return the state for a checkpoint, without engines and requests."""
        return SavedHealth(
            stage=self._stage,
            lost=self._lost,
            up_ns=self._up_ns,
            last_work_ns=self._last_work_ns,
            durations_ns=list(self._durations_ns),
            queued=self._queued,
            stalled=self._stalled_in,
            degraded=self._degraded,
            judged=self._judged,
            tick_ns=self._tick_ns,
            worse_ns=self._worse_ns,
            quiet=self._quiet,
            asleep=dict(self._asleep),
        )

    def restore(self, saved: SavedHealth) -> None:
        self._stage = saved.stage
        self._lost = saved.lost
        self._up_ns = saved.up_ns
        self._last_work_ns = saved.last_work_ns
        self._durations_ns.extend(saved.durations_ns)
        self._queued, self._stalled_in = saved.queued, saved.stalled
        self._degraded = saved.degraded
        self._judged, self._tick_ns = saved.judged, saved.tick_ns
        self._worse_ns, self._quiet = saved.worse_ns, saved.quiet
        self._asleep = dict(saved.asleep)

    def tick(self, now_ns: int, work: SchedulerState, minute: LastMinute) -> None:
        """Judge the last minute as of a tick."""
        before_ns = self._tick_ns
        if before_ns is not None and now_ns <= before_ns:
            return
        self._tick_ns = now_ns
        if self.asleep is not None:
            self._judged = None
            return
        from_ns = max(now_ns - LONGEST_TICK_NS, before_ns or 0)
        state = self.state(now_ns, work)
        if self._up_ns is not None:
            self._note_quiet(now_ns, work, stalled=state.health is Health.STALLED)
        if self._queued_since_ns(now_ns, work) is not None:
            self._queued.take(from_ns, now_ns)
        # What is left of a queue or a stall is told while it is there, and not longer.
        since = [
            each.since_ns
            for each in minute.problems
            if self._worse_ns is None or each.since_ns > self._worse_ns
        ]
        worse_ns = self._worse_ns
        alone = worse_ns is None or now_ns - worse_ns > MINUTE_NS
        if since or (alone and _preempts(minute)):
            start_ns = self._dated(now_ns, min([*since, from_ns]))
            self._degraded.take(start_ns, now_ns)
        if self._up_ns is not None:
            self._judged = self._judge(now_ns, work, minute, state)
            if self._judged.health in LEAVING and not self._judged.over:
                self._worse_ns = now_ns

    def state(
        self,
        now_ns: int,
        work: SchedulerState,
        loaded_ns: int | None = None,
        seen_ns: int | None = None,
    ) -> Verdict:
        """Return how the engine is at a moment: lost, starting, idle, stalled or not.

        ``loaded_ns`` is when a load run of ours began, ``seen_ns`` when hardware of
        another host was first seen: either may be all that is watched.
        """
        if self._lost is not None:
            return _verdict(Health.LOST, self._lost.text, self._lost.t_ns)
        if self._up_ns is None:
            return self._starting(loaded_ns, seen_ns)
        if (asleep := self.asleep) is not None:
            waits = f"; {work.waiting:,} waiting" if work.waiting else ""
            return _verdict(Health.IDLE, f"{asleep.text}{waits}", asleep.t_ns)
        if not work.any:
            since_ns = self._last_work_ns or self._up_ns
            return _verdict(Health.IDLE, "nothing running, nothing waiting", since_ns)
        return self._stalled(now_ns, work) or self._healthy(work)

    def verdict(
        self,
        now_ns: int,
        work: SchedulerState,
        minute: Callable[[], LastMinute] = LastMinute,
        loaded_ns: int | None = None,
        seen_ns: int | None = None,
    ) -> Verdict:
        """Return the verdict at a moment, as judged at the latest tick.

        ``minute`` is asked only where there was no tick lately.
        """
        state = self.state(now_ns, work, loaded_ns, seen_ns)
        if self._up_ns is None or self._lost is not None or self.asleep is not None:
            return state
        judged = self._judged
        if judged is None or now_ns - judged.tick_ns > FRESH_NS:
            judged = self._judge(now_ns, work, minute(), state)
        if state.health is Health.STALLED:
            since_ns = state.since_ns
            if judged.health is Health.STALLED:
                since_ns = judged.since_ns
            return _verdict(Health.STALLED, state.sentence, since_ns)
        if judged.health in TROUBLES:
            return Verdict(
                health=judged.health,
                sentence=judged.sentence,
                since_ns=judged.since_ns,
                now=state.health,
            )
        if judged.health is Health.HEALTHY or state.health is Health.HEALTHY:
            goes_on = judged.health is Health.HEALTHY
            sentence = state.sentence
            if state.health is Health.IDLE and state.since_ns is not None:
                idle_s = max(now_ns - state.since_ns, 0) / NS_PER_S
                sentence = f"idle for {idle_s:.0f} s, all well in the last minute"
            return Verdict(
                health=Health.HEALTHY,
                sentence=sentence,
                since_ns=judged.since_ns if goes_on else state.since_ns,
                now=state.health,
            )
        return state

    def _up(self, t_ns: int) -> None:
        self._up_ns = t_ns
        self._durations_ns.clear()

    def _judge(
        self, now_ns: int, work: SchedulerState, minute: LastMinute, state: Verdict
    ) -> TickVerdict:
        """Return the verdict over the last minute, by what it was before."""
        before = self._judged
        for health, holds in (
            (Health.STALLED, self._is_stalled),
            (Health.QUEUEING, self._is_queueing),
            (Health.DEGRADED, self._is_degraded),
        ):
            since_ns = holds(now_ns, work, minute, state)
            if since_ns is None:
                continue
            if health is Health.DEGRADED and (left := self._left(now_ns, minute)):
                return left
            since_ns = self._dated(now_ns, since_ns)
            if before is not None and before.health is health:
                since_ns = before.since_ns if before.since_ns is not None else since_ns
            return self._says(health, now_ns, work, minute, since_ns)
        health = state.health
        if health is Health.IDLE and not self._is_over(now_ns):
            health = Health.HEALTHY
        goes_on = before is not None and before.health is health
        since = before.since_ns if before is not None and goes_on else state.since_ns
        return TickVerdict(now_ns, health, since, "", "")

    def _left(self, now_ns: int, minute: LastMinute) -> TickVerdict | None:
        """Return the verdict while findings outlast a stall or a queue for a moment."""
        before, worse_ns = self._judged, self._worse_ns
        if before is None or before.health not in LEAVING or worse_ns is None:
            return None
        began_ns = [each.since_ns for each in minute.problems]
        if now_ns - worse_ns > LEFT_NS or max(began_ns, default=now_ns) > worse_ns:
            return None
        ended_s = (MINUTE_NS + now_ns - worse_ns) / NS_PER_S
        left = minute.problems[0].text
        return TickVerdict(
            now_ns,
            before.health,
            before.since_ns,
            f"ended {ended_s:.0f} s ago; left of it: {left}",
            before.first,
            over=True,
        )

    def _is_over(self, now_ns: int) -> bool:
        """Return whether there was no work for so long that the engine is idle."""
        before = self._judged
        if before is None or before.health is Health.IDLE:
            return True
        return now_ns - (self._last_work_ns or now_ns) >= IDLE_AFTER_NS

    def _dated(self, now_ns: int, since_ns: int) -> int:
        """Return since when a trouble counts, as far as the word before allows it."""
        before = self._judged
        if before is None or before.health not in {*WELL, Health.DEGRADED}:
            return since_ns
        well = before.health in WELL
        longest_ns = now_ns - DATED_NS if well else 0
        return max(since_ns, longest_ns, before.since_ns or 0)

    def _was(self, health: Health) -> bool:
        return self._judged is not None and self._judged.health is health

    def _is_stalled(
        self, now_ns: int, work: SchedulerState, minute: LastMinute, state: Verdict
    ) -> int | None:
        """Return since when it is stalled, or stalled now and then; None if not."""
        del work, minute
        if state.health is Health.STALLED:
            return state.since_ns
        if not self._stall_lengths(now_ns):
            return None
        began_ns = [start_ns for start_ns, _ in self._stalled_in.spans]
        if not began_ns and self._quiet is not None:
            return self._quiet.since_ns
        return min(began_ns)

    def _is_queueing(
        self, now_ns: int, work: SchedulerState, minute: LastMinute, state: Verdict
    ) -> int | None:
        """Return since when requests queue, now or now and then; None if not."""
        del state
        waits_since_ns = self._queued_since_ns(now_ns, work)
        queued_ns = self._queued_ns(now_ns, work)
        if waits_since_ns is not None:
            many = (work.waiting or 0) >= MANY_WAITING
            if many or queued_ns >= QUEUE_SHARE * MINUTE_NS:
                return waits_since_ns
        if self._queued_share(now_ns, work, minute) >= LEAST_SHARE:
            told = [each.since_ns for each in minute.problems if each.queues]
            if told:
                return min(told)
            if _preempts(minute):
                return now_ns
        return now_ns if self._was(Health.QUEUEING) and queued_ns else None

    def _is_degraded(
        self, now_ns: int, work: SchedulerState, minute: LastMinute, state: Verdict
    ) -> int | None:
        """Return since when something else is wrong, now or now and then."""
        del work, state
        if minute.problems:
            return min(each.since_ns for each in minute.problems)
        if _preempts(minute):
            return now_ns
        goes_on = self._was(Health.DEGRADED) and self._degraded.within(now_ns)
        return now_ns if goes_on else None

    def _queued_share(
        self, now_ns: int, work: SchedulerState, minute: LastMinute
    ) -> float:
        """Return the share of the watched minute in which requests queued, 0-1."""
        held_ns = sum(minute.bound_ns.values()) / minute.ranks
        queued_ns = max(held_ns, self._queued_ns(now_ns, work))
        return queued_ns / _covered_ns(minute)

    def _queued_ns(self, now_ns: int, work: SchedulerState) -> int:
        """Return for how much of the last minute there was a lasting queue."""
        since_ns = self._queued_since_ns(now_ns, work)
        lasts_ns = 0 if since_ns is None else min(now_ns - since_ns, MINUTE_NS)
        return max(sum(self._queued.within(now_ns)), lasts_ns)

    def _queued_since_ns(self, now_ns: int, work: SchedulerState) -> int | None:
        """Return since when requests have waited, if that is a while; else None."""
        ranks = self._engines.ranks.values()
        since = [r.waiting_since_ns for r in ranks if r.waiting_since_ns is not None]
        if not work.waiting or not since or now_ns - min(since) < QUEUE_PERSISTS_NS:
            return None
        return min(since)

    def _says(
        self,
        health: Health,
        now_ns: int,
        work: SchedulerState,
        minute: LastMinute,
        since_ns: int,
    ) -> TickVerdict:
        """Return a verdict with its sentence, and what it names first."""
        before = self._judged if self._was(health) else None
        was = before.first if before is not None else ""
        whole_ns = _covered_ns(minute)
        first = ""
        if health is Health.STALLED:
            lengths = self._stall_lengths(now_ns)
            share = sum(lengths) / whole_ns
            longest = _short(max(lengths, default=0))
            said = f"{of_last(share, whole_ns)}: no step for up to {longest}"
        elif health is Health.QUEUEING:
            share = self._queued_share(now_ns, work, minute)
            causes = self._limits_named(minute)
            said = of_last(share, whole_ns)
            said += f", {causes}" if causes else ""
        else:
            since = (each.since_ns for each in minute.problems)
            goes_on_ns = now_ns - max(min(since, default=now_ns), since_ns)
            degraded_ns = max(sum(self._degraded.within(now_ns)), goes_on_ns)
            said = of_last(degraded_ns / whole_ns, whole_ns)
            texts = [each.text for each in minute.problems]
            if not texts and _preempts(minute):
                texts = ["preemptions"]
            first = was if was in texts or not texts else texts[0]
            said += f", {first}" if first else ""
        sentence = f"{said}{_worst(work, minute)}"
        return TickVerdict(now_ns, health, since_ns, sentence, first)

    def _limits_named(self, minute: LastMinute) -> str:
        """Return the limits that requests queued for, as flags.

        By the slowest requests' time where it is known, so that it is what their table
        of causes says. Two that took about as much are named in a fixed order.
        """
        spent: dict[BoundBy, float] = {**minute.slow_shares}
        if sum(spent.values()) < QUEUE_SHARE:
            spent = {**minute.bound_ns}
        whole = sum(spent.values())
        ranked = sorted(
            (each for each, n in spent.items() if n > 0), key=lambda each: -spent[each]
        )
        names = {each: self._limit_text(each, minute.deferral) for each in ranked}
        first, second = [*ranked, None, None][:2]
        if first is None:
            return ""
        if second is None or spent[second] < SECOND_SHARE * whole:
            return f"mostly {names[first]}"
        if spent[first] >= MOSTLY * spent[second]:
            return f"mostly {names[first]}, then {names[second]}"
        one, other = (names[each] for each in BoundBy if each in {first, second})
        return f"by {one} and {other} alike"

    def _limit_text(self, bound: BoundBy, deferral: str | None) -> str:
        """Return what binds; a lowered live limit with its values."""
        name = bound_text(bound, deferral)
        for each in self._engines.live_limits:
            now, start = getattr(each, name, 0), getattr(each, f"start_{name}", 0)
            if now < start:
                return f"{name} {now:,} ({start:,} at start)"
        return name

    def _starting(self, loaded_ns: int | None, seen_ns: int | None) -> Verdict:
        if self._stage is not None:
            return _verdict(Health.STARTING, self._stage.text, self._stage.t_ns)
        if loaded_ns is not None:
            return _verdict(Health.IDLE, "no engine is watched, only a load", loaded_ns)
        if seen_ns is not None:
            text = "no engine is watched, only hardware"
            return _verdict(Health.IDLE, text, seen_ns)
        return _verdict(Health.STARTING, "waiting for an engine", None)

    def _stalled(self, now_ns: int, work: SchedulerState) -> Verdict | None:
        """Return the verdict if there is work but no step ends; else None.

        Silence counts only beyond our own lateness and the time to make up for it: the
        steps may be there, unread. Totals are sent after the steps before them.
        """
        since_ns, usual_ns = self._quiet_since_ns(work), self._usual_ns()
        quiet_ns = now_ns - since_ns
        told = (rank.totals for rank in self._engines.ranks.values())
        told_ns = max((each.t_ns for each in told if each is not None), default=0)
        unread_ns = now_ns - 2 * self.catch_up.behind_ns(now_ns)
        if max(unread_ns, told_ns) - since_ns <= _stall_ns(usual_ns):
            return None
        usual = f", while a step usually takes {_short(usual_ns)}" if usual_ns else ""
        text = f"{_work(work)}: no step for {_short(quiet_ns)}{usual}"
        return _verdict(Health.STALLED, text, since_ns)

    def _quiet_since_ns(self, work: SchedulerState) -> int:
        """Return since when no step has ended, or there has been work."""
        ends = [rank.last_end_ns for rank in self._engines.ranks.values()]
        begins = [*ends, self._requests.busy_since_ns, self._up_ns]
        begins.append(work.untaken_since_ns)
        return max(t_ns for t_ns in begins if t_ns is not None)

    def _usual_ns(self) -> float:
        return median(self._durations_ns) if self._durations_ns else 0

    def _note_quiet(self, now_ns: int, work: SchedulerState, *, stalled: bool) -> None:
        """Record that no step has ended for long, whether it is called a stall or not.

        The next step tells whether none ran, or they were only read late.
        """
        since_ns, quiet = self._quiet_since_ns(work), self._quiet
        long = work.any and now_ns - since_ns > _stall_ns(self._usual_ns())
        if quiet is not None and (not long or quiet.since_ns != since_ns):
            if quiet.told:  # its requests went away without a step
                self._stalled_in.take(quiet.since_ns, quiet.until_ns)
            quiet = None
        if long:
            quiet = quiet or Quiet(since_ns, now_ns, self._judged, self._worse_ns)
            quiet.until_ns, quiet.told = now_ns, quiet.told or stalled
        self._quiet = quiet

    def _end_quiet(self, step: Step) -> bool:
        """Judge by a step's end whether the time before it was a stall.

        Return whether one that was told was none.
        """
        quiet = self._quiet
        if quiet is None or step.end_ns <= quiet.since_ns:
            return False
        since_ns, quiet.since_ns = quiet.since_ns, step.end_ns
        long = step.end_ns - since_ns > _stall_ns(self._usual_ns())
        stalled = long and step.deferred_before is None
        if stalled:
            self._stalled_in.take(since_ns, step.end_ns)
        untrue = quiet.told and not stalled
        if untrue:
            self._judged, self._worse_ns = quiet.before, quiet.worse_ns
        quiet.told = False
        return untrue

    def _stall_lengths(self, now_ns: int) -> list[int]:
        """Return the lengths of the stalls within the last minute."""
        lengths, quiet = self._stalled_in.within(now_ns), self._quiet
        since_ns = now_ns - MINUTE_NS
        if quiet is not None and quiet.told and quiet.until_ns > since_ns:
            since_ns = max(quiet.since_ns, since_ns)
            lengths.append(quiet.until_ns - since_ns)
        return lengths

    def _healthy(self, work: SchedulerState) -> Verdict:
        calm = [rank.calm_since_ns for rank in self._engines.ranks.values()]
        since = [*calm, self._requests.busy_since_ns, self._up_ns]
        text = _work(work)
        if work.tokens_per_s is not None:
            text += f", {work.tokens_per_s:,.0f} tok/s"
        since_ns = max(t_ns for t_ns in since if t_ns is not None)
        return _verdict(Health.HEALTHY, text, since_ns)


def _stall_ns(usual_ns: float) -> float:
    """Return how long no step must end for the engine to be stalled."""
    return max(STALL_LEAST_NS, STALL_STEPS * usual_ns)


def _covered_ns(minute: LastMinute) -> int:
    return min(max(minute.covered_ns, NS_PER_S), MINUTE_NS)


def _preempts(minute: LastMinute) -> bool:
    """Return whether preemptions and slow first tokens are in the minute."""
    slow = (minute.p99_ttft_s or 0.0) >= SLOW_S
    return slow and minute.preemptions >= MANY_PREEMPTIONS


def of_last(share: float, whole_ns: int) -> str:
    """Return a share of the last minute, or of the part of it that was watched."""
    return f"{min(share, 1.0):.0%} of the last {whole_ns / NS_PER_S:.0f} s"


def _worst(work: SchedulerState, minute: LastMinute) -> str:
    """Return the worst TTFT, or for how long a request waits if that is longer."""
    ttft_s, waits_s = minute.worst_ttft_s, work.oldest_wait_s
    if waits_s is not None and waits_s > (ttft_s or 0.0):
        return f"; the oldest waits for {format_duration(waits_s).strip()}"
    return "" if ttft_s is None else f"; worst TTFT {format_duration(ttft_s).strip()}"


def _verdict(health: Health, sentence: str, since_ns: int | None) -> Verdict:
    return Verdict(health=health, sentence=sentence, since_ns=since_ns)


def _work(work: SchedulerState) -> str:
    if work.untaken:
        return f"{work.untaken:,} sent to the engine, none taken"
    waiting = f"{work.waiting:,} waiting" if work.waiting else "none waiting"
    return f"{work.running:,} running, {waiting}"


def _short(duration_ns: float) -> str:
    if duration_ns < NS_PER_S:
        return f"{duration_ns / 1e6:.1f} ms"
    return f"{duration_ns / 1e9:.1f} s"


CATCHING_UP = Verdict(
    health=Health.STARTING, sentence="reading what the probe remembers of the past"
)
