"""Finds times in which the scheduler stalled, or starved a request.

There are three kinds: no step though there was work; tokens far apart while prompts are
computed; a request that is not scheduled while others are. All thresholds are relative
to the engine's own pace.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice, starmap
from statistics import median

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    EventKind,
    Note,
    RequestEvent,
    Stacks,
    Step,
    Vantage,
)
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.series.union import Span, union_ns
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.steps.efficiency import Stall, StallKind
from inferwatch.metrics.steps.profiles import ProfileLog
from inferwatch.metrics.steps.stacks import StackLog

# Starved requests. In the queue, later ones are scheduled again and again. In
# decode, a running request is left out of many steps: their token budget went to
# others. Each is checked only where it can occur: when a request is scheduled, and in a
# step that holds fewer requests than run.

MS = 1_000_000
MOST_FOLLOWED = 1_000
"""Largest number of queued requests followed for a rank."""
MOST_LOOKED_AT = 64
"""Number of oldest requests to check when another is scheduled."""
LATER_ONES = 10
LEAST_WAIT_NS = NS_PER_S
STEPS_WITHOUT = 10
LEAST_WITHOUT_NS = 200 * MS


class Waiting(msgspec.Struct, array_like=True):
    """A request in the queue."""

    since_ns: int
    overtaken: int = 0
    latest_ns: int = 0
    """When a later request was last scheduled."""
    priority: int | None = None


class Absence(msgspec.Struct, array_like=True):
    """A decoding request that is not in the steps."""

    since_ns: int
    steps: int = 0
    latest_ns: int = 0
    latest_index: int = 0
    batch: int = 0
    """Largest batch of these steps."""


class StarvedRank(msgspec.Struct, array_like=True):
    """Waiting requests of one rank by arrival, and those left out of its steps."""

    waiting: dict[int, Waiting] = {}
    absent: dict[int, Absence] = {}


class Starved:
    """Finds starved requests, and reports each when it ends or while it lasts."""

    def __init__(
        self, requests: RequestIndex, report: Callable[[str, Stall], None]
    ) -> None:
        self._requests = requests
        self._report = report

    def event(self, rank: StarvedRank, event: RequestEvent) -> None:
        """Update the queue when a request arrives, is scheduled, or leaves."""
        ordinal, waiting = event.ordinal, rank.waiting
        if event.vantage is not Vantage.ENGINE or ordinal is None:
            return
        if event.kind is EventKind.ADDED:
            if len(waiting) < MOST_FOLLOWED:
                waiting[ordinal] = Waiting(event.t_ns, priority=event.priority)
            return
        if event.kind is EventKind.SCHEDULED and ordinal in waiting:
            for other in islice(waiting, MOST_LOOKED_AT):
                if other == ordinal:
                    break
                passed = waiting[other]
                passed.overtaken += 1
                passed.latest_ns = event.t_ns
        gone = waiting.pop(ordinal, None)
        if gone is not None and _starves(gone):
            stall = self._queued(event.source, ordinal, gone, event.t_ns)
            self._report(event.source, stall)

    def step(self, rank: StarvedRank, step: Step, before: Step | None) -> None:
        """Track decoding requests that steps leave out; report each once it is back."""
        absent, now = rank.absent, set(step.members)
        for ordinal in list(absent):
            absence = absent[ordinal]
            if ordinal in now or not self._decodes(step, ordinal):
                del absent[ordinal]
                if _stands_still(absence):
                    stall = self._left_out(step.source, ordinal, absence)
                    self._report(step.source, stall)
                continue
            _count(absence, step)
        if before is None or step.running <= len(step.members):
            return
        for ordinal in before.members:
            left = ordinal not in now and ordinal not in absent
            if left and self._decodes(step, ordinal):
                absence = absent[ordinal] = Absence(before.end_ns)
                _count(absence, step)

    def going_on(self, rank: StarvedRank, source: str) -> Iterator[Stall]:
        """Yield the requests that are starved now."""
        for ordinal, waits in islice(rank.waiting.items(), MOST_LOOKED_AT):
            if _starves(waits):
                yield self._queued(source, ordinal, waits, waits.latest_ns)
        for ordinal, absence in rank.absent.items():
            if _stands_still(absence):
                yield self._left_out(source, ordinal, absence)

    def _decodes(self, step: Step, ordinal: int) -> bool:
        request = self._requests.members(step.source).get(ordinal)
        return (
            request is not None
            and not request.ended
            and not request.engine_ended
            and request.output_tokens > 0
            and ordinal not in step.preempted
        )

    def _key(self, source: str, ordinal: int) -> str | None:
        request = self._requests.members(source).get(ordinal)
        return None if request is None else f"{source}/{request.request_id}"

    def _queued(self, source: str, ordinal: int, waits: Waiting, end_ns: int) -> Stall:
        waited_s = (end_ns - waits.since_ns) / NS_PER_S
        evidence = (
            f"it waited {waited_s:.1f} s while {waits.overtaken} later ones were taken"
        )
        if waits.priority is not None:
            evidence += f"; its priority is {waits.priority}"
        return Stall(
            kind=StallKind.STARVED,
            start_ns=waits.since_ns,
            end_ns=end_ns,
            evidence=evidence,
            key=self._key(source, ordinal),
        )

    def _left_out(self, source: str, ordinal: int, absence: Absence) -> Stall:
        lasted_ms = (absence.latest_ns - absence.since_ns) / MS
        return Stall(
            kind=StallKind.STARVED,
            start_ns=absence.since_ns,
            end_ns=absence.latest_ns,
            evidence=(
                f"it got no token for {lasted_ms:,.0f} ms: {absence.steps} steps went "
                f"by without it, with up to {absence.batch} requests each"
            ),
            step=absence.latest_index,
            key=self._key(source, ordinal),
        )


def _count(absence: Absence, step: Step) -> None:
    absence.steps += 1
    absence.latest_ns, absence.latest_index = step.end_ns, step.index
    absence.batch = max(absence.batch, len(step.members))


def _starves(waits: Waiting) -> bool:
    long = waits.latest_ns - waits.since_ns >= LEAST_WAIT_NS
    return long and waits.overtaken >= LATER_ONES


def _stands_still(absence: Absence) -> bool:
    long = absence.latest_ns - absence.since_ns >= LEAST_WITHOUT_NS
    return long and absence.steps >= STEPS_WITHOUT


MOST_KEPT = 200
MOST_COMPILED = 64
MOST_SHOWN = 50
SLICE_NS = 100 * MS
"""Length of slices for decode rates; single steps would be noise."""
USUAL_SLICES = 64
LEAST_SLICES = 10
"""Fewest slices for the usual rate to be known."""
SLOWER = 4
"""Ratio to the usual from which decode is slow, or a gap long."""
LEAST_GAP_NS = 20 * MS
PROFILED = "it was profiled meanwhile, and stands still while traces are written"
APART_NS = 5 * SLICE_NS
"""Slow slices further apart than this are two stalls."""


class Slice(msgspec.Struct, array_like=True):
    """Totals of the steps that ended in a tenth of a second."""

    number: int = -1
    start_ns: int = 0
    end_ns: int = 0
    steps: int = 0
    duration_ns: int = 0
    passes: int = 0
    """Decoding requests, added up over steps."""
    awaited_ns: int = 0
    """Time that these requests waited for the steps, added up."""
    prefill_tokens: int = 0
    worst_ns: int = 0
    worst_index: int = 0


class SlowDecode(msgspec.Struct, array_like=True):
    """Consecutive slices of time in which decode was slowed by prefill."""

    start_ns: int
    end_ns: int
    passes: int
    awaited_ns: int
    usual_ns: int
    prefill_tokens: int
    worst_ns: int
    worst_index: int


class Pace(msgspec.Struct, array_like=True):
    """The usual pace of one rank; saved as it is."""

    now: Slice = msgspec.field(default_factory=Slice)
    apart_ns: list[float] = []
    """Mean time between two tokens of a request, by recent slice."""
    step_ns: list[float] = []
    """Mean step time, by recent slice."""
    usual_step_ns: float | None = None
    decoding: int = 0
    """Decoding requests at present."""
    slow: SlowDecode | None = None
    starved: StarvedRank = msgspec.field(default_factory=StarvedRank)


class SavedStalls(msgspec.Struct, array_like=True):
    """A StallFinder as checkpoints keep it."""

    found: list[tuple[str, Stall]]
    """Each with its engine."""
    ranks: list[tuple[str, int, Pace]]
    compiled: list[tuple[str, Span]] = []
    stacks: list[Stacks] = []
    """Of the latest stall."""
    held: list[tuple[str, int, str]] = []
    """What held an engine in each stall before: source, start, sentence."""


class StallFinder:
    """Finds stalls in steps and events; keeps the latest 200."""

    def __init__(
        self, requests: RequestIndex, profiles: ProfileLog | None = None
    ) -> None:
        """``profiles`` explains stalls, as an engine stands still to write traces."""
        self._profiles = profiles
        self._found: deque[tuple[str, Stall]] = deque(maxlen=MOST_KEPT)
        self._ranks: dict[tuple[str, int], Pace] = {}
        self._starved = Starved(requests, self._report)
        self._compiled: deque[tuple[str, Span]] = deque(maxlen=MOST_COMPILED)
        """When engines compiled while they served."""
        self.stacks = StackLog()

    def compiled(self, note: Note) -> None:
        """Record a compilation, which explains stalls."""
        span = note.t_ns, note.t_ns + (note.duration_ns or 0)
        self._compiled.append((note.source, span))

    def step(self, step: Step, before: Step | None, gap_ns: int) -> None:
        """Add a step, given the one before it and the time without a step between."""
        pace = self._ranks.get((step.source, step.rank))
        if pace is None:
            pace = self._ranks[step.source, step.rank] = Pace()
        end_ns, duration_ns = step.end_ns, step.duration_ns
        now = pace.now
        if end_ns // SLICE_NS != now.number:
            self._close(step.source, pace)
            began_ns = end_ns - duration_ns - gap_ns
            now = pace.now = Slice(number=end_ns // SLICE_NS, start_ns=began_ns)
        if gap_ns > LEAST_GAP_NS and before is not None:
            self._gap(pace, step, before, gap_ns)
        left_out = step.running > len(step.members)
        decoding = step.decode_requests
        if left_out:  # decoding requests stay the same but for those that end
            decoding = max(
                decoding, min(pace.decoding, step.running - step.prefill_requests)
            )
        pace.decoding = decoding
        now.end_ns = end_ns
        now.steps += 1
        now.duration_ns += duration_ns
        now.passes += step.decode_requests
        now.awaited_ns += decoding * (duration_ns + gap_ns)
        now.prefill_tokens += step.prefill_tokens
        if duration_ns > now.worst_ns:
            now.worst_ns, now.worst_index = duration_ns, step.index
        if left_out or pace.starved.absent:
            self._starved.step(pace.starved, step, before)

    def event(self, event: RequestEvent) -> None:
        """Add an event of a request that the engine reported."""
        if event.ordinal is None:
            return
        key = event.source, event.ordinal >> RANK_BITS
        pace = self._ranks.get(key)
        if pace is None:
            pace = self._ranks[key] = Pace()
        self._starved.event(pace.starved, event)

    def forget(self, source: str) -> None:
        """Forget waiting requests and slow decode because readings were lost."""
        for key, pace in self._ranks.items():
            if source in {"", key[0]}:
                self._end(key[0], pace)
                pace.now, pace.decoding = Slice(), 0
                pace.starved = StarvedRank()

    def lost(self, source: str) -> None:
        """Forget how fast the steps of a lost engine usually were."""
        self.forget(source)
        for key in [key for key in self._ranks if source in {"", key[0]}]:
            del self._ranks[key]

    def over(self, now_ns: int, window: Window) -> tuple[Stall, ...]:
        """Return stalls that ended in a window or go on; newest first."""
        since_ns = -1 if window.value is None else now_ns - window.value
        stalls = [each for each in self._all() if each[1].end_ns > since_ns]
        stalls.sort(key=lambda each: (each[1].end_ns, each[1].start_ns), reverse=True)
        return tuple(starmap(self._explained, stalls[:MOST_SHOWN]))

    def saved(self) -> SavedStalls:
        ranks = [(*key, pace) for key, pace in self._ranks.items()]
        return SavedStalls(
            list(self._found), ranks, list(self._compiled), *self.stacks.saved()
        )

    def restore(self, saved: SavedStalls) -> None:
        self._found.extend(saved.found)
        self._compiled.extend(saved.compiled)
        self.stacks.restore(saved.stacks, saved.held)
        self._ranks = {(source, rank): pace for source, rank, pace in saved.ranks}

    def _explained(self, source: str, stall: Stall) -> Stall:
        """Return a stall with more evidence: what held its engine, or was compiled."""
        if stall.kind is StallKind.GAP:
            held = self.stacks.sentence(source, stall.start_ns)
            if held is not None:
                stall = replace(stall, evidence=f"{stall.evidence}; {held}")
        if self._is_profiled(source, stall):
            stall = replace(stall, evidence=f"{stall.evidence}; {PROFILED}")
        during = [
            (start, end)
            for compiler, (start, end) in self._compiled
            if compiler == source and start <= stall.end_ns and stall.start_ns <= end
        ]
        if not during:
            return stall
        took_ns = union_ns(during, stall.start_ns, stall.end_ns)
        took = f", for {short(took_ns)}" if took_ns else ""
        return replace(stall, evidence=f"{stall.evidence}; it compiled meanwhile{took}")

    def _is_profiled(self, source: str, stall: Stall) -> bool:
        """Whether a profile was on in a stall, or its traces were written."""
        every = () if self._profiles is None else self._profiles.every
        return any(
            each.source == source
            and each.began_ns <= stall.end_ns
            and stall.start_ns <= each.last_ns
            for each in every
        )

    def _report(self, source: str, stall: Stall) -> None:
        self._found.append((source, stall))

    def _all(self) -> Iterator[tuple[str, Stall]]:
        """Yield every stall with its engine."""
        yield from self._found
        for (source, _), pace in self._ranks.items():
            if pace.slow is not None:
                yield source, _slowed(pace.slow)
            for stall in self._starved.going_on(pace.starved, source):
                yield source, stall

    def _close(self, source: str, pace: Pace) -> None:
        """End a slice of time, and check whether decode was slower in it than usual."""
        now = pace.now
        if not now.steps:
            return
        pace.step_ns.append(now.duration_ns / now.steps)
        del pace.step_ns[:-USUAL_SLICES]
        pace.usual_step_ns = median(pace.step_ns)
        if not now.awaited_ns:
            self._end(source, pace)
            return
        usual_ns = median(pace.apart_ns) if len(pace.apart_ns) >= LEAST_SLICES else None
        apart_ns = now.awaited_ns / max(now.passes, 1)
        pace.apart_ns.append(apart_ns)
        del pace.apart_ns[:-USUAL_SLICES]
        slow = pace.slow
        if slow is not None and now.start_ns > slow.end_ns + APART_NS:
            self._end(source, pace)
        if usual_ns is None or apart_ns <= SLOWER * usual_ns or not now.prefill_tokens:
            self._end(source, pace)
            return
        self._slow(pace, round(usual_ns))

    def _slow(self, pace: Pace, usual_ns: int) -> None:
        now, slow = pace.now, pace.slow
        if slow is None:
            slow = pace.slow = SlowDecode(now.start_ns, 0, 0, 0, usual_ns, 0, 0, 0)
        slow.end_ns = now.end_ns
        slow.passes += now.passes
        slow.awaited_ns += now.awaited_ns
        slow.prefill_tokens += now.prefill_tokens
        if now.worst_ns > slow.worst_ns:
            slow.worst_ns, slow.worst_index = now.worst_ns, now.worst_index

    def _end(self, source: str, pace: Pace) -> None:
        if pace.slow is not None:
            self._report(source, _slowed(pace.slow))
            pace.slow = None

    def _gap(self, pace: Pace, step: Step, before: Step, gap_ns: int) -> None:
        """Record a gap without a step if it is long."""
        usual_ns = pace.usual_step_ns
        if usual_ns is not None and gap_ns <= SLOWER * usual_ns:
            return
        had = f"{before.running:,} running, {before.waiting:,} waiting"
        usual = "" if usual_ns is None else f"; a step usually takes {short(usual_ns)}"
        self._report(
            step.source,
            Stall(
                kind=StallKind.GAP,
                start_ns=before.end_ns,
                end_ns=step.start_ns,
                evidence=f"no step for {short(gap_ns)} with {had}{usual}",
                step=step.index,
            ),
        )


RANK_BITS = 40
"""Ordinals of requests begin with their rank: see the probe's RequestOrdinals."""


def _slowed(slow: SlowDecode) -> Stall:
    if slow.passes:
        came = f"tokens came {short(slow.awaited_ns / slow.passes)} apart"
    else:
        came = f"no request in decode got a token for {short(slow.awaited_ns)}"
    usual, tokens = short(slow.usual_ns), f"{slow.prefill_tokens:,} prompt tokens"
    return Stall(
        kind=StallKind.DECODE,
        start_ns=slow.start_ns,
        end_ns=slow.end_ns,
        evidence=f"{came}, usually {usual}, while {tokens} were computed",
        step=slow.worst_index,
    )


def short(duration_ns: float) -> str:
    """Return a duration as text.

    >>> short(8_900_000), short(1_590_000_000)
    ('8.9 ms', '1.6 s')
    """
    if duration_ns < NS_PER_S:
        return f"{duration_ns / 1e6:.1f} ms"
    return f"{duration_ns / 1e9:.1f} s"
