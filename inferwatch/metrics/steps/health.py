"""The verdict: the state of the engine in one line, and since when."""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import BoundBy, EngineInfo, Note, NoteKind, Step
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.steps.engines import Engines
from inferwatch.metrics.steps.flow import Flow, SchedulerState


class Health(StrEnum):
    """The verdict in one word, worst last."""

    STARTING = "starting"
    IDLE = "idle"
    HEALTHY = "healthy"
    QUEUEING = "queueing"
    STALLED = "stalled"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The state of the engine, as shown to users."""

    health: Health
    sentence: str
    """For an engine that died, the end of its log follows on further lines."""
    since_ns: int | None = None

    @property
    def headline(self) -> str:
        """The first line of the verdict's sentence, without log lines."""
        return self.sentence.partition("\n")[0]


QUEUE_PERSISTS_NS = NS_PER_S
BOUND_SPAN_NS = 3 * NS_PER_S
"""The limit that bound most of this time is what binds now."""
STALL_LEAST_NS = 2 * NS_PER_S
STALL_STEPS = 10
"""Number of usual step times without a step that mean stalled."""


class SavedHealth(msgspec.Struct, array_like=True):
    """A HealthTracker as checkpoints keep it, without engines and requests."""

    stage: Note | None
    lost: Note | None
    up_ns: int | None
    last_work_ns: int | None
    durations_ns: list[int]
    bounds: list[tuple[int, int, BoundBy]]
    """End, duration and limit of recent steps."""


class HealthTracker:
    """Gives the verdict on the engine, by its latest stage, steps and losses."""

    def __init__(self, engines: Engines, requests: RequestIndex) -> None:
        self._engines = engines
        self._requests = requests
        self._stage: Note | None = None
        self._lost: Note | None = None
        self._up_ns: int | None = None
        self._last_work_ns: int | None = None
        self._durations_ns: deque[int] = deque(maxlen=128)
        self._bounds: deque[tuple[int, int, BoundBy]] = deque(maxlen=2048)

    def info(self, info: EngineInfo) -> None:
        self._lost = None
        self._up(info.t_ns)

    def step(self, step: Step) -> None:
        if self._up_ns is None:
            self._up(step.start_ns)
        self.worked(step.end_ns)
        self._durations_ns.append(step.duration_ns)
        if step.bound_by is not BoundBy.NOTHING:
            self._bounds.append((step.end_ns, step.duration_ns, step.bound_by))

    def worked(self, t_ns: int) -> None:
        if self._last_work_ns is None or t_ns > self._last_work_ns:
            self._last_work_ns = t_ns

    def note(self, note: Note) -> None:
        """Record a stage of starting, or the start or loss of an engine."""
        if note.kind is NoteKind.STAGE:
            self._stage = note
        elif note.kind is NoteKind.LOST:
            self._lost, self._up_ns, self._stage = note, None, None
        elif note.kind in {NoteKind.STARTED, NoteKind.RESTARTED}:
            self._lost = None

    @property
    def lost_ns(self) -> int | None:
        """When the engine was lost; None while it is not."""
        return None if self._lost is None else self._lost.t_ns

    def saved(self) -> SavedHealth:
        """Return the state for a checkpoint, without engines and requests."""
        return SavedHealth(
            stage=self._stage,
            lost=self._lost,
            up_ns=self._up_ns,
            last_work_ns=self._last_work_ns,
            durations_ns=list(self._durations_ns),
            bounds=list(self._bounds),
        )

    def restore(self, saved: SavedHealth) -> None:
        self._stage = saved.stage
        self._lost = saved.lost
        self._up_ns = saved.up_ns
        self._last_work_ns = saved.last_work_ns
        self._durations_ns.extend(saved.durations_ns)
        self._bounds.extend(saved.bounds)

    def verdict(
        self,
        now_ns: int,
        work: SchedulerState,
        flow: Flow,
        loaded_ns: int | None = None,
        seen_ns: int | None = None,
    ) -> Verdict:
        """Return the verdict at a moment.

        ``loaded_ns`` is when a load run of ours began, ``seen_ns`` when hardware of
        another host was first seen: either may be all that is watched.
        """
        if self._lost is not None:
            return _verdict(Health.LOST, self._lost.text, self._lost.t_ns)
        if self._up_ns is None:
            return self._starting(loaded_ns, seen_ns)
        if not work.any:
            since_ns = self._last_work_ns or self._up_ns
            return _verdict(Health.IDLE, "nothing running, nothing waiting", since_ns)
        return (
            self._stalled(now_ns, work)
            or self._queueing(now_ns, work, flow)
            or self._healthy(work)
        )

    def _up(self, t_ns: int) -> None:
        self._up_ns = t_ns
        self._durations_ns.clear()
        self._bounds.clear()

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
        """Return the verdict if there is work but no step ends; else None."""
        ends = [rank.last_end_ns for rank in self._engines.ranks.values()]
        begins = [*ends, self._requests.busy_since_ns, self._up_ns]
        quiet_since_ns = max(t_ns for t_ns in begins if t_ns is not None)
        usual_ns = median(self._durations_ns) if self._durations_ns else 0
        quiet_ns = now_ns - quiet_since_ns
        if quiet_ns <= max(STALL_LEAST_NS, STALL_STEPS * usual_ns):
            return None
        usual = f", while a step usually takes {_short(usual_ns)}" if usual_ns else ""
        text = f"{_work(work)}: no step for {_short(quiet_ns)}{usual}"
        return _verdict(Health.STALLED, text, quiet_since_ns)

    def _queueing(
        self, now_ns: int, work: SchedulerState, flow: Flow
    ) -> Verdict | None:
        """Return the verdict if requests have waited for a while; else None."""
        ranks = self._engines.ranks.values()
        since = [r.waiting_since_ns for r in ranks if r.waiting_since_ns is not None]
        if not work.waiting or not since:
            return None
        if now_ns - min(since) < QUEUE_PERSISTS_NS:
            return None
        text = f"{work.waiting:,} waiting"
        if work.oldest_wait_s is not None:
            text += f", oldest {work.oldest_wait_s:.1f} s"
        text += self._bound(now_ns, flow)
        return _verdict(Health.QUEUEING, text, min(since))

    def _bound(self, now_ns: int, flow: Flow) -> str:
        match self._longest_bound(now_ns):
            case None:
                return ""
            case BoundBy.KV:
                usage = flow.kv_usage
                used = f" ({usage:.0%} used, too few free)" if usage else ""
                return f": bound by KV blocks{used}"
            case BoundBy.SEQS:
                return f": bound by max_num_seqs{self._limit('max_num_seqs')}"
            case BoundBy.TOKENS:
                limit = self._limit("max_num_batched_tokens")
                return f": bound by max_num_batched_tokens{limit}"
            case BoundBy.DEFERRED:
                return ": deferred, for a grammar, a KV transfer, a LoRA slot or such"
            case _:
                return ": held back by the scheduler"

    def _longest_bound(self, now_ns: int) -> BoundBy | None:
        """Return the limit that bound for the longest time recently."""
        since_ns = now_ns - BOUND_SPAN_NS
        spent_ns: dict[BoundBy, int] = {}
        for end_ns, duration_ns, cause in self._bounds:
            if end_ns > since_ns:
                inside_ns = min(duration_ns, end_ns - since_ns)
                spent_ns[cause] = spent_ns.get(cause, 0) + inside_ns
        if spent_ns:
            return max(spent_ns, key=lambda cause: spent_ns[cause])
        latest = self._engines.latest_step
        if latest is None or latest.bound_by is BoundBy.NOTHING:
            return None
        return latest.bound_by

    def _limit(self, name: str) -> str:
        """Return a limit of the engine as text; empty where unknown."""
        limits = {getattr(info, name) for info in self._engines.infos}
        if len(limits) != 1 or None in limits:
            return ""
        now = limits.pop()
        starts = {getattr(e, f"start_{name}") for e in self._engines.live_limits}
        start = max(starts, default=now)
        return f" {now:,}" + (f" ({start:,} at start)" if now < start else "")

    def _healthy(self, work: SchedulerState) -> Verdict:
        calm = [rank.calm_since_ns for rank in self._engines.ranks.values()]
        since = [*calm, self._requests.busy_since_ns, self._up_ns]
        text = _work(work)
        if work.tokens_per_s is not None:
            text += f", {work.tokens_per_s:,.0f} tok/s"
        since_ns = max(t_ns for t_ns in since if t_ns is not None)
        return _verdict(Health.HEALTHY, text, since_ns)


def _verdict(health: Health, sentence: str, since_ns: int | None) -> Verdict:
    return Verdict(health=health, sentence=sentence, since_ns=since_ns)


def _work(work: SchedulerState) -> str:
    waiting = f"{work.waiting:,} waiting" if work.waiting else "none waiting"
    return f"{work.running:,} running, {waiting}"


def _short(duration_ns: float) -> str:
    if duration_ns < NS_PER_S:
        return f"{duration_ns / 1e6:.1f} ms"
    return f"{duration_ns / 1e9:.1f} s"


# Whether readings are still of the past: a probe connected late sends these first.
#
# Half an hour of them comes as fast as it can be read. Meanwhile the latest known step
# is minutes old, and a working engine would seem stalled.

LATE_NS = STALL_LEAST_NS
"""Delay from which a reading counts as late, as it would look like a stall."""
PATIENCE_NS = 10 * NS_PER_S
"""Time without readings after which catching up ends."""

CATCHING_UP = Verdict(
    health=Health.STARTING, sentence="reading what the probe remembers of the past"
)


class CatchUp(msgspec.Struct, array_like=True):
    """Detects readings of the past: compares their times with ticks; saved as it is."""

    tick_ns: int | None = None
    """The latest tick."""
    late_ns: int | None = None
    """The tick after which the last late reading came."""
    heard_now: bool = True
    """Whether a reading in time has come since then."""
    goes_on: bool = False
    """Whether readings of the past are still coming."""

    def take(self, t_ns: int) -> None:
        """Record the time of a reading of a kind that is reported at once when live."""
        if self.tick_ns is None:
            return
        late = self.tick_ns - t_ns > LATE_NS
        self.heard_now = not late
        if late:
            self.goes_on, self.late_ns = True, self.tick_ns

    def tick(self, now_ns: int) -> None:
        """Stop catching up after a second with readings, none of which was late."""
        before_ns, self.tick_ns = self.tick_ns, now_ns
        if before_ns is None or self.late_ns is None:
            return
        waits = not self.heard_now and now_ns - self.late_ns < PATIENCE_NS
        self.goes_on = self.late_ns >= before_ns or waits
