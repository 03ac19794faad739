"""Follows the ranks of engines, to attribute the waits of requests to causes.

The time of a rank is added up once a step; a request is updated only when something
about it changes, never for being in a step.
"""

from collections import deque
from collections.abc import Collection, Iterable
from math import inf

import msgspec

from collectors.contract.readings import Step, rank_of
from inferwatch.metrics.causes.cause import DECODE_CAUSES, Cause
from inferwatch.metrics.causes.decode import DecodeAccount, SavedDecodeAccount, since
from inferwatch.metrics.causes.late_token import (
    StepFact,
    is_compiling,
    spike_from_ns,
    usual_gap_ns,
    why_late,
)
from inferwatch.metrics.causes.queue import QueueAccount, largest
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.series.union import Span

Key = tuple[str, int]
"""Source and data-parallel rank."""
RECENT_STEPS = 128
NO_SPIKE = inf
"""The threshold while the usual gap is not known."""
USUAL_EVERY = 16
"""Steps between two updates of the usual gap."""
MOST_NEW = 20_000
MOST_DROPS = 64
MOST_SLOW = 512
MOST_COMPILED = 64
LEFT_OUT = DECODE_CAUSES.index(Cause.DECODE_LEFT_OUT)
RECOMPUTE = DECODE_CAUSES.index(Cause.RECOMPUTE)
LOST = DECODE_CAUSES.index(Cause.UNKNOWN)


class SavedRankTimes(msgspec.Struct, array_like=True):
    """A RankTimes as checkpoints keep it, without its new requests."""

    account: QueueAccount
    recent: list[StepFact]
    spike_ns: float
    steps: int
    decode: SavedDecodeAccount


class SavedAttribution(msgspec.Struct, array_like=True):
    """An Attribution as checkpoints keep it; requests save their own waits."""

    ranks: list[tuple[str, int, SavedRankTimes]]
    drops: list[tuple[str, Span]]
    slow: list[tuple[str, int, Span]]
    compiled: list[tuple[str, Span]] = []


class RankTimes:
    """The recent steps of one rank, and why requests had to wait for them."""

    def __init__(self) -> None:
        self.account = QueueAccount()
        self.decode = DecodeAccount()
        self.before_ns = 0
        """The end of the step before the latest."""
        self.new: dict[Request, None] = {}
        """Requests that arrived since the latest step began, in order."""
        self.spike_ns = NO_SPIKE
        """A gap longer than this is a spike."""
        self._recent: deque[StepFact] = deque(maxlen=RECENT_STEPS)
        self._apart_ns: deque[int] = deque(maxlen=RECENT_STEPS)
        """Time between the ends of these steps."""
        self._steps = 0
        self._why: dict[tuple[int, bool], Cause] = {}
        """Causes of late tokens in the latest step, by time of the token before; not
        saved.
        """

    def take(self, step: Step, gap_ns: int) -> None:
        """Add a step; its members follow. No step ran for ``gap_ns`` before it."""
        self.before_ns = self.account.end_ns
        self.decode.take(step, follows=step.index == self.account.index + 1)
        self.account.take(step)
        if self.new:
            self._pass_over(step.start_ns)
        self._recent.append(StepFact.of(step, gap_ns))
        self._apart_ns.append(step.duration_ns + gap_ns)
        self._steps += 1
        if self._steps % USUAL_EVERY == 0 or self._steps < USUAL_EVERY:
            usual_ns = usual_gap_ns(self._apart_ns)
            self.spike_ns = NO_SPIKE if usual_ns is None else spike_from_ns(usual_ns)
        if self._why:
            self._why.clear()

    def add(self, request: Request) -> None:
        """Add a request that entered the queue."""
        self.new[request] = None
        if len(self.new) > MOST_NEW:
            del self.new[next(iter(self.new))]

    def why_late(self, last_ns: int, t_ns: int, *, preempted: bool) -> Cause:
        key = last_ns, preempted
        if key not in self._why:  # the same for all decoding requests
            self._why[key] = self._explain(last_ns, t_ns, preempted=preempted)
        return self._why[key]

    def saved(self) -> SavedRankTimes:
        """Return the state for a checkpoint, without requests."""
        return SavedRankTimes(
            self.account,
            list(self._recent),
            self.spike_ns,
            self._steps,
            self.decode.saved(),
        )

    def restore(self, saved: SavedRankTimes) -> None:
        self.account = saved.account
        self._recent.extend(saved.recent)
        self._apart_ns.extend(each.apart_ns for each in saved.recent)
        self.spike_ns, self._steps = saved.spike_ns, saved.steps
        self.decode.restore(saved.decode)

    def _pass_over(self, start_ns: int) -> None:
        """Mark new requests that the step starting at ``start_ns`` did not schedule."""
        for request in list(self.new):
            waits = request.scheduled_ns != start_ns  # else it is in this step
            if waits and (request.added_ns or 0) <= start_ns:
                del self.new[request]
                if request.wait is not None and request.wait.is_new:
                    request.wait.passed_over(self.account)

    def _explain(self, last_ns: int, t_ns: int, *, preempted: bool) -> Cause:
        since = [each for each in self._recent if each.end_ns > last_ns]
        before = [each for each in self._recent if each.end_ns <= last_ns]
        if not before and len(since) == RECENT_STEPS and not preempted:
            return Cause.UNKNOWN  # too long ago: not all steps are kept
        return why_late(last_ns, t_ns, since, before, preempted=preempted).cause


class Attribution:
    """Attributes the delays of requests to causes, for all ranks of all engines."""

    def __init__(self) -> None:
        self._ranks: dict[Key, RankTimes] = {}
        self._drops: deque[tuple[str, Span]] = deque(maxlen=MOST_DROPS)
        """When the clocks of an engine's GPUs were throttled."""
        self._slow: deque[tuple[str, int, Span]] = deque(maxlen=MOST_SLOW)
        """Tokens late because of a slow step: source, ordinal, and gap.

        Kept because clock drops, and compilations in other processes, are reported
        later.
        """
        self._compiled: deque[tuple[str, Span]] = deque(maxlen=MOST_COMPILED)
        """When engines compiled."""

    def step(self, step: Step, gap_ns: int) -> RankTimes:
        """Add a step, before what it did to its members is recorded."""
        rank = self._rank(step.source, step.rank)
        rank.take(step, gap_ns)
        return rank

    def queued(self, request: Request) -> None:
        """Add a request that entered the queue of its rank."""
        if request.wait is not None and request.ordinal is not None:
            self._rank(request.source, rank_of(request.ordinal)).add(request)

    def computed(
        self, request: Request, step: Step, rank: RankTimes, tokens: int
    ) -> None:
        """Record that a step of the rank computed tokens of a request's prompt."""
        wait = request.wait
        if wait is None:
            return
        if wait.step is None:
            self._leave_new(request)
            if not request.awaits_first or request.scheduled_ns != step.start_ns:
                wait.freeze()
                return
            wait.taken(rank.account, request.cached_tokens or 0)
        if request.awaits_first:
            wait.chunk(step, tokens, held=rank.account.before_holds)

    def preempted(self, request: Request, step: Step) -> None:
        request.preempted_ns = step.end_ns
        request.free_kv(step.start_ns)
        self._settle(request)
        if request.wait is not None and request.awaits_first:
            request.wait.preempted(step)

    def begins_decode(self, request: Request, rank: RankTimes) -> None:
        """Record that the latest step gave a request its first token."""
        request.decode_mark = rank.decode.marks[-1]
        request.decode_spent_ns = [0] * len(DECODE_CAUSES)

    def passed_by(self, request: Request, rank: RankTimes, last_ns: int) -> None:
        """Record that a request was not in all steps since its token before this."""
        spent_ns, marks = request.decode_spent_ns, rank.decode.marks
        if spent_ns is None:
            return
        self._settle(request, last_ns)
        if (request.preempted_ns or 0) > last_ns:
            spent_ns[RECOMPUTE] += marks[-1][0] - last_ns
            request.decode_mark = marks[-1]
        elif len(marks) > 1 and marks[-2][0] >= last_ns:
            spent_ns[LEFT_OUT] += marks[-2][0] - last_ns
            request.decode_mark = marks[-2]

    def ended(self, request: Request) -> None:
        """Record that a request ended in the engine.

        The step with its last tokens may still be reported later.
        """
        self._settle(request)
        if request.awaits_first and request.reported_tokens:
            return
        if request.wait is not None and request.ordinal is not None:
            self._leave_new(request)
            rank = self._ranks.get((request.source, rank_of(request.ordinal)))
            request.wait.freeze(None if rank is None else rank.account)

    def late(
        self, request: Request, rank: RankTimes, ordinal: int, last_ns: int, t_ns: int
    ) -> None:
        """Record the cause of a request's longest gap so far, which is a spike."""
        preempted = (request.preempted_ns or last_ns) > last_ns
        cause = rank.why_late(last_ns, t_ns, preempted=preempted)
        spans = (each for s, each in self._compiled if s == request.source)
        if not preempted and is_compiling(spans, last_ns, t_ns):
            cause = Cause.COMPILATION
        if cause is Cause.SLOW_STEP:
            span = last_ns, t_ns
            self._slow.append((request.source, ordinal, span))
            if any(s == request.source and _meet(span, d) for s, d in self._drops):
                cause = Cause.CLOCK_DROP
        request.itl_cause = cause

    def clocks_dropped(
        self, sources: Collection[str], drop: Span
    ) -> Iterable[tuple[str, int, int]]:
        """Yield the tokens that were late while the clocks of GPUs were throttled.

        Each as source, ordinal and gap in nanoseconds.
        """
        self._drops.extend((source, drop) for source in sorted(sources))
        for source, ordinal, span in self._slow:
            if source in sources and _meet(span, drop):
                yield source, ordinal, span[1] - span[0]

    def compiled(self, source: str, span: Span) -> Iterable[tuple[str, int, int]]:
        """Yield the tokens that were late because an engine compiled, likewise."""
        before = [each for other, each in self._compiled if other == source]
        self._compiled.append((source, span))
        for each, ordinal, gap in self._slow:
            if each != source or is_compiling(before, *gap):
                continue  # another engine's, or explained by those before
            if is_compiling([*before, span], *gap):
                yield source, ordinal, gap[1] - gap[0]

    def refresh(self, live: Iterable[Request]) -> None:
        """Update the cause for which each queued request has waited longest."""
        now: dict[Key, tuple[list[int], int]] = {}
        for request in live:
            wait = request.wait
            if wait is None or wait.account is None or request.ordinal is None:
                continue
            key = request.source, rank_of(request.ordinal)
            times = now.get(key)
            if times is None:
                account = self._rank(*key).account
                times = now[key] = account.up_to_now(), account.end_ns
            if times[1] < request.waits_until_ns:
                continue
            spent_ns = request.beside_api(wait.so_far(times[0]))
            cause = largest(spent_ns)
            most, second = sorted(spent_ns)[:-3:-1]
            # No other cause can become the largest before that.
            request.waits_until_ns = times[1] + most - second
            if cause is not request.waits_for:
                request.waits_for, request.row = cause, None

    def dropped(self, source: str) -> None:
        """Forget running waits because readings, perhaps steps, were lost."""
        for (each, _), rank in self._ranks.items():
            if source in {"", each}:
                rank.account.forget()

    def lost(self, source: str) -> None:
        """Forget the ranks of a lost engine; a restarted one counts steps anew."""
        for key in [key for key in self._ranks if source in {"", key[0]}]:
            del self._ranks[key]

    def saved(self) -> SavedAttribution:
        """Return the state for a checkpoint, without requests."""
        return SavedAttribution(
            ranks=[(*key, rank.saved()) for key, rank in self._ranks.items()],
            drops=list(self._drops),
            slow=list(self._slow),
            compiled=list(self._compiled),
        )

    def restore(self, saved: SavedAttribution, requests: Iterable[Request]) -> None:
        """Restore a saved state, given the restored requests."""
        for source, number, rank in saved.ranks:
            self._rank(source, number).restore(rank)
        self._drops.extend(saved.drops)
        self._slow.extend(saved.slow)
        self._compiled.extend(saved.compiled)
        for request in requests:
            if request.wait is not None and request.wait.is_new:
                self.queued(request)

    def _rank(self, source: str, number: int) -> RankTimes:
        rank = self._ranks.get((source, number))
        if rank is None:
            rank = self._ranks[source, number] = RankTimes()
        return rank

    def _settle(self, request: Request, last_ns: int | None = None) -> None:
        """Attribute the time up to a request's latest token.

        That is unknown as a whole where its steps are too long ago.
        """
        if request.run is not None:
            request.catch_up()
        mark, spent_ns = request.decode_mark, request.decode_spent_ns
        last_ns = request.last_ns if last_ns is None else last_ns
        if mark is None or spent_ns is None or last_ns is None:
            return
        if last_ns <= mark[0]:
            return
        number = rank_of(request.ordinal or 0)
        rank = self._ranks.get((request.source, number))
        now = None if rank is None else rank.decode.at(last_ns)
        if now is None:
            spent_ns[LOST] += last_ns - mark[0]
            request.decode_mark = None
            return
        decode, prompts, stall, unknown = since(now, mark)
        spent_ns[0] += decode
        spent_ns[1] += prompts
        spent_ns[2] += stall
        spent_ns[3] += unknown
        request.decode_mark = now

    def _leave_new(self, request: Request) -> None:
        rank = self._ranks.get((request.source, rank_of(request.ordinal or 0)))
        if rank is not None:
            rank.new.pop(request, None)


def _meet(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]
