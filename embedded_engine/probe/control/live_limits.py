"""Turns two limits of a living scheduler: down from where they began, and back.

Nothing is set but what ``schedule()`` reads anew each time, and only at its entry, on
the thread of the engine. vLLM asserts at its end that no more ran than may, and that no
more tokens were scheduled than the budget; both hold whatever is turned meanwhile.

- Requests that may run: where more do, none is preempted and none admitted. Sessions
  that wait for their user's next words hold places, but do not count towards a lowered
  limit: it could shut them out for good.
- Tokens of a step: all that run get theirs first. A budget below one token for each,
  and its speculative ones, would starve whoever comes last, so a step has at least as
  many. Steps differ in size all the time; where a model or a setting needs some least
  size of them (``BUDGET_RULES``), the budget stays as it is.

As long as nothing is lowered no hook is set: being ready costs a step nothing. What is
turned is told with the first step that goes by it, and of an engine that rests at once.
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
from embedded_engine.probe.attribute_reader import AttributeReader, Vllm
from embedded_engine.probe.hooks import Given, Hook, owner_of

OURSELVES = "the probe"
LONGEST_REASON = 200
"""Characters of why it ended: an answer is a line."""
SEQS, TOKENS = "max_num_seqs", "max_num_batched_tokens"


class SchedulerLimits:
    """What limits one scheduler; whoever turns it, turns it from one other thread."""

    def __init__(
        self,
        scheduler: Vllm,
        rank: int,
        hook: Hook,
        tell: Callable[[LiveLimits], None],
        tell_later: Callable[[deque[LiveLimits]], None],
        missing: Callable[[str], None],
    ) -> None:
        """``hook`` is that of ``schedule()``; what is in force is told.

        ``tell`` is for the engine's own thread, in order with its steps. ``tell_later``
        is for any other: what it is given is told soon, unless a step comes first.
        """
        self._scheduler: weakref.ref[Vllm] = weakref.ref(scheduler)
        self._hook = hook
        self._tell, self._tell_later = tell, tell_later
        self._untold: deque[LiveLimits] = deque()
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
        self._followed = 0, 0
        """What ran and what was paused when they were set last."""
        self.ended: str | None = None
        """Why nothing can be turned any more."""
        self.wanted = self._applied = self._told = LiveLimits(
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
        """As they are from the next step on."""

    @property
    def least_tokens(self) -> int:
        """With less, not even one request would get on."""
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
        """Go by these from the next step on; whoever asks has checked them."""
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
        """Go by the start-up values."""
        return self.turn(change, self._start_seqs, self._start_tokens, by=by)

    def end(self, why: str) -> None:
        """The start-up values return at once, on any thread, and stay.

        To raise them in the middle of a step is safe: nothing that it has decided
        exceeds them.
        """
        if self.ended is not None:
            return
        with suppress(Exception):  # the engine, which may have called, must not hear
            self.back(LimitChange.RESET, by=OURSELVES)
        self.ended = why[:LONGEST_REASON]
        self._restore()
        if self._told.in_force:
            self._say_later(self.wanted)

    def _rests(self) -> bool:
        """Nothing runs or waits: no step may come for long."""
        scheduler = self._scheduler()
        return scheduler is not None and not any(map(len, self._queues.read(scheduler)))

    def _say_later(self, limits: LiveLimits) -> None:
        self._told = limits
        self._untold.append(limits)
        self._tell_later(self._untold)

    def _enter(self, scheduler: Vllm, _: Given, entered: int) -> None:
        """Before ``schedule()``."""
        if scheduler is not self._scheduler():
            return
        if self.ended is not None:
            self._hook.before = None
            return
        wanted = self.wanted
        running, sessions = self._state.read(scheduler)
        here = len(running)
        counts = here, sessions
        if counts == self._followed and wanted is self._applied:
            return  # In most steps: each microsecond counts, as caches are cold here.
        self._followed = counts
        if wanted.max_num_seqs < self._start_seqs:
            seqs = max(wanted.max_num_seqs + sessions, here)
            setattr(scheduler, self._seqs, min(seqs, self._start_seqs))
        if wanted.max_num_batched_tokens < self._start_tokens:
            tokens = max(wanted.max_num_batched_tokens, max(here, 1) * self._each)
            setattr(scheduler, self._budget, min(tokens, self._start_tokens))
        if wanted is not self._applied:
            self._begin(scheduler, wanted, entered)
        if self.ended is not None:  # while this was set
            self._restore()

    def _begin(self, scheduler: Vllm, wanted: LiveLimits, entered: int) -> None:
        """The first step that goes by them."""
        self._applied = wanted
        now = {
            self._seqs: wanted.max_num_seqs,
            self._budget: wanted.max_num_batched_tokens,
        }
        for name, value in self._start.items():
            if now[name] == value:
                setattr(scheduler, name, value)
        for earlier in taken(self._untold):
            self._tell(earlier)
        if self._told is not wanted:
            self._told = wanted
            self._tell(replace(wanted, t_ns=entered))
        if not wanted.in_force:
            self._hook.before = None
            if self.wanted is not wanted:  # meanwhile, before we stopped looking
                self._hook.before = self._enter

    def _restore(self) -> None:
        scheduler = self._scheduler()
        for name, value in self._start.items():
            with suppress(Exception):
                setattr(scheduler, name, value)


def taken(untold: deque[LiveLimits]) -> Iterator[LiveLimits]:
    """What was not told yet; each goes to one of the threads that take."""
    with suppress(IndexError):
        while True:
            yield untold.popleft()


def _name(scheduler: Vllm, flag: str) -> str:
    """Which attribute has it."""
    named = names.LIVE_LIMITS[flag].split("|")
    return next((name for name in named if hasattr(scheduler, name)), named[0])


def _start(scheduler: Vllm, flag: str) -> int | None:
    """With what it was started; what is fixed may stand elsewhere."""
    value = _value(scheduler, _name(scheduler, flag))
    return _value(scheduler, f"scheduler_config.{flag}") if value is None else value


def _value(scheduler: Vllm, path: str) -> int | None:
    """Of an attribute that is a number or says yes or no; None where there is none."""
    try:
        value = attrgetter(path)(scheduler)
    except AttributeError:
        return None
    return int(value) if isinstance(value, int) else None


def _fixed(scheduler: Vllm) -> dict[str, str]:
    """Which limits stay as they are, and why: what is not certain is not done."""
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
