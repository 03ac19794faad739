"""Lowers two limits of a running scheduler, and restores them.

Only attributes that ``schedule()`` reads anew each time are set, at its entry and on
the engine's thread. At its end vLLM asserts that no more requests run than allowed, and
that no more tokens were scheduled than the budget; both hold whatever is changed.

- Running requests: if more are running already, none is preempted and none admitted.
  Paused streaming sessions occupy places, but do not count towards a lowered limit, as
  they could shut out all others for good.
- Tokens per step: running requests come first. A budget below one token for each, with
  its speculative ones, would starve the last ones, so a step has at least as many.
  Where a model or setting needs a minimum step size (``BUDGET_RULES``), the budget
  cannot be changed.

While nothing is lowered there is no hook, so a step costs nothing extra. A change is
reported with the first step under it, or at once while the engine is idle.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import attrgetter

from msgspec.structs import replace

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import LimitChange, LiveLimits
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.hooks import Given, Hook, owner_of
from embedded_engine.probe.vllm_names import AttributeReader, Vllm

OURSELVES = "the probe"
LONGEST_REASON = 200
"""Characters of the reason for the end, which is part of a one-line response."""
SEQS, TOKENS = "max_num_seqs", "max_num_batched_tokens"


class SchedulerLimits:
    """The limits of one scheduler; changed from a single other thread."""

    def __init__(
        self,
        scheduler: Vllm,
        rank: int,
        hook: Hook,
        tell: Callable[[LiveLimits], None],
        tell_later: Callable[[deque[LiveLimits]], None],
        missing: Callable[[str], None],
    ) -> None:
        """``hook`` is the one on ``schedule()``; limits in force are reported.

        ``tell`` is for the engine's thread and keeps the order of steps. ``tell_later``
        is for any other thread and reports soon, unless a step does so first.
        """
        self._scheduler: weakref.ref[Vllm] = weakref.ref(scheduler)
        self._hook = hook
        self._tell, self._tell_later = tell, tell_later
        self._pending: deque[LiveLimits] = deque()
        self._state = AttributeReader("Scheduler", names.RUNNING, missing)
        self._queues = AttributeReader("Scheduler", names.QUEUES, missing)
        fixed = _fixed(scheduler)
        self._start_seqs = _start(scheduler, SEQS) or 0
        self._start_tokens = _start(scheduler, TOKENS) or 0
        self._start = {
            _name(scheduler, flag): value
            for flag, value in ((SEQS, self._start_seqs), (TOKENS, self._start_tokens))
            if flag not in fixed
        }
        self._seqs, self._budget = _name(scheduler, SEQS), _name(scheduler, TOKENS)
        self._each = 1 + (_value(scheduler, names.SPECULATED) or 0)
        self._running = self._sessions = 0
        """Running requests and paused sessions when the attributes were last set."""
        self.ended: str | None = None
        """Why the limits can no longer be changed."""
        self.wanted = self._applied = self._latest = LiveLimits(
            t_ns=monotonic_ns(),
            rank=rank,
            version=0,
            change=LimitChange.START,
            max_num_seqs=self._start_seqs,
            max_num_batched_tokens=self._start_tokens,
            start_max_num_seqs=self._start_seqs,
            start_max_num_batched_tokens=self._start_tokens,
            fixed=fixed,
        )
        """The limits from the next step on."""

    @property
    def least_tokens(self) -> int:
        """Smallest token budget with which one request makes progress."""
        return self._each

    def turn(
        self,
        change: LimitChange,
        seqs: int,
        tokens: int,
        *,
        by: str | None = None,
        kept: bool = False,
    ) -> LiveLimits:
        """Apply limits from the next step on; the caller has validated them."""
        if self.ended is None:
            self.wanted = replace(
                self.wanted,
                t_ns=monotonic_ns(),
                version=self.wanted.version + 1,
                change=change,
                max_num_seqs=seqs,
                max_num_batched_tokens=tokens,
                by=by,
                kept=kept,
            )
            self._hook.before = self._enter
            if self._rests():
                self._say_later(self.wanted)
        return self.wanted

    def back(self, change: LimitChange, by: str | None = None) -> LiveLimits:
        return self.turn(change, self._start_seqs, self._start_tokens, by=by)

    def end(self, why: str) -> None:
        """Restore the start-up values at once and for good, on any thread.

        This is safe even during a step, since the start-up values are never lower.
        """
        if self.ended is not None:
            return
        # the caller may be the engine, which must not see errors of ours
        with suppress(Exception):
            self.back(LimitChange.RESET, by=OURSELVES)
        self.ended = why[:LONGEST_REASON]
        self._restore()
        if self._latest.in_force:
            self._say_later(self.wanted)

    def _rests(self) -> bool:
        """Whether nothing is running or waiting, so no step may follow for long."""
        scheduler = self._scheduler()
        return scheduler is not None and not any(map(len, self._queues.read(scheduler)))

    def _say_later(self, limits: LiveLimits) -> None:
        self._latest = limits
        self._pending.append(limits)
        self._tell_later(self._pending)

    def _enter(self, scheduler: Vllm, _: Given, entered: int) -> None:
        """Before ``schedule()``: set the limits, and report new ones."""
        read, wanted = self._state.read, self.wanted
        running, sessions = read(scheduler)
        here = len(running)
        if (
            here == self._running
            and sessions == self._sessions
            and wanted is self._applied
        ):
            # The usual case, kept short: each microsecond counts with cold caches.
            return
        if scheduler is not self._scheduler():
            return
        if self.ended is not None:
            self._hook.before = None
            return
        self._running, self._sessions = here, sessions
        if wanted.max_num_seqs < self._start_seqs:
            seqs = max(wanted.max_num_seqs + sessions, here)
            setattr(scheduler, self._seqs, min(seqs, self._start_seqs))
        if wanted.max_num_batched_tokens < self._start_tokens:
            tokens = max(wanted.max_num_batched_tokens, max(here, 1) * self._each)
            setattr(scheduler, self._budget, min(tokens, self._start_tokens))
        if wanted is not self._applied:
            self._begin(scheduler, wanted, entered)
        if self.ended is not None:  # it ended in the meantime
            self._restore()

    def _begin(self, scheduler: Vllm, wanted: LiveLimits, entered: int) -> None:
        """Report new limits as in force from the step that is about to begin."""
        self._applied = wanted
        now = {
            self._seqs: wanted.max_num_seqs,
            self._budget: wanted.max_num_batched_tokens,
        }
        for name, value in self._start.items():
            if now[name] == value:
                setattr(scheduler, name, value)
        for earlier in taken(self._pending):
            self._tell(earlier)
        if self._latest is not wanted:
            self._latest = wanted
            self._tell(replace(wanted, t_ns=entered))
        if not wanted.in_force:
            self._hook.before = None
            if self.wanted is not wanted:  # changed again before the hook was removed
                self._hook.before = self._enter

    def _restore(self) -> None:
        scheduler = self._scheduler()
        for name, value in self._start.items():
            with suppress(Exception):
                setattr(scheduler, name, value)


def taken(pending: deque[LiveLimits]) -> Iterator[LiveLimits]:
    """Remove and yield the changes that were not reported yet."""
    with suppress(IndexError):
        while True:
            yield pending.popleft()


def _name(scheduler: Vllm, flag: str) -> str:
    """The attribute of the scheduler that holds a limit."""
    named = names.LIVE_LIMITS[flag].split("|")
    return next((name for name in named if hasattr(scheduler, name)), named[0])


def _start(scheduler: Vllm, flag: str) -> int | None:
    """The start-up value of a limit, be it fixed or not; None if unknown."""
    value = _value(scheduler, _name(scheduler, flag))
    return _value(scheduler, f"scheduler_config.{flag}") if value is None else value


def _value(scheduler: Vllm, path: str) -> int | None:
    """An integer or boolean attribute; None if there is none."""
    try:
        value = attrgetter(path)(scheduler)
    except AttributeError:
        return None
    return int(value) if isinstance(value, int) else None


def _fixed(scheduler: Vllm) -> dict[str, str]:
    """The reason for each limit that cannot, or might not, be changeable."""
    schedule = names.ENGINE_METHODS["schedule"]
    owner, kind = owner_of(schedule), type(scheduler)
    if (
        owner is None
        or getattr(kind, schedule.name, None) is not vars(owner).get(schedule.name)
        or _package(kind) != _package(owner)
    ):
        return dict.fromkeys((SEQS, TOKENS), "its scheduler has rules of its own")
    fixed = {
        flag: "this vLLM keeps it elsewhere"
        for flag in (SEQS, TOKENS)
        if (_value(scheduler, _name(scheduler, flag)) or 0) < 1
    }
    if TOKENS not in fixed and (why := _why_budget_stays(scheduler)) is not None:
        fixed[TOKENS] = why
    return fixed


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _why_budget_stays(scheduler: Vllm) -> str | None:
    if not _value(scheduler, names.CHUNKED):
        return "without chunked prefill a prompt above it would wait for ever"
    if _value(scheduler, names.SPECULATED) is None:
        return "this vLLM does not say how many tokens are speculated"
    for rule in names.BUDGET_RULES:
        value = _value(scheduler, rule.path)
        if value is None and not rule.is_newer:
            return f"this vLLM does not say whether {rule.why}"
        if value is not None and value > rule.most:
            return rule.why
    return None
