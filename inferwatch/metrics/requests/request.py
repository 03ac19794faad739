"""The state of one request, joined from the reports of front end and engine.

The two are separate streams, and either may be behind. Counters are updated as soon as
a report comes. A row waits, so that it never contradicts itself:

- progress and the number of tokens are what the engine reported;
- a request has ended once the front end said so, and finished normally once the engine
  has also reported the last token;
- TTFT and E2EL, known to the front end alone, are in the row once its state says that
  there was a token, or an end.

Where only one of the two reports, its reports decide.
"""

from bisect import bisect_left
from collections.abc import Collection
from copy import copy, deepcopy
from operator import attrgetter
from typing import Any, Self

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import EventKind, RequestEvent, Vantage
from inferwatch.metrics.causes.cause import MEDIA_CAUSES, Cause, Parts
from inferwatch.metrics.causes.charges import NO_TENANT, Charged, RunShares, WaitCharge
from inferwatch.metrics.causes.decode import DecodeMark
from inferwatch.metrics.causes.first_token import Wait, parts_of, ttft_spent, wait_ns
from inferwatch.metrics.causes.queue import NO_STEP, PLACE, largest
from inferwatch.metrics.requests.request_row import (
    RequestRow,
    RequestState,
    sequence_of,
)

ORDER = {
    RequestState.ARRIVED: 0,
    RequestState.QUEUED: 1,
    RequestState.PREFILL: 2,
    RequestState.DECODE: 3,
}
"""Order of the stages of a live request; reports of two processes may cross."""


MOST_LONGEST = 256
"""Gaps that a run keeps at most, each shorter than the one before it."""


def seconds(duration_ns: int | None) -> float | None:
    """Convert nanoseconds to seconds; None stays None."""
    return None if duration_ns is None else duration_ns / NS_PER_S


def come_first(known: Collection[int], members: list[int]) -> bool:
    """Return whether the first members of a step are the known ones, in their order.

    Mostly they are, as vLLM appends new members, and then none has to be looked up.
    """
    return list(known) == members[: len(known)]


class DecodeRun:
    """Requests of a rank that got one token each in every step since they joined.

    Whoever got a token in two steps alike waited equally long for the second one. So
    their gap is counted once a step, with a weight; a request takes over what the run
    counted when someone reads it (``Request.catch_up``).
    """

    def __init__(self) -> None:
        self.members: dict[int, Request] = {}
        """By ordinal."""
        self.steps = 0
        self.end_ns = 0
        """The end of the latest step."""
        self.gap_ns = 0
        """Between the ends of the latest two steps."""
        self.weighted_ns = 0
        """Sum over the steps of their number times the gap before their end, from which
        follows how long each member held how many tokens."""
        self.shares = RunShares()
        self._longest: list[tuple[int, int]] = []
        """Number and gap of each step that no later one had a longer gap than."""

    def start(self, end_ns: int) -> None:
        """Begin anew at the end of a step, without members."""
        for request in list(self.members.values()):
            request.leave_run()
        self._longest.clear()
        self.end_ns = end_ns

    def count(self, end_ns: int) -> None:
        """Count a token of each member at the end of a step."""
        self.gap_ns, self.end_ns = end_ns - self.end_ns, end_ns
        self.steps += 1
        self.weighted_ns += self.steps * self.gap_ns
        longest = self._longest
        while longest and longest[-1][1] <= self.gap_ns:
            longest.pop()
        longest.append((self.steps, self.gap_ns))
        if len(longest) > MOST_LONGEST:
            for request in self.members.values():
                request.catch_up()
            longest.clear()

    def longest_ns(self, steps: int) -> int:
        """Return the longest gap of all steps but the first ``steps``."""
        return self._longest[bisect_left(self._longest, (steps + 1,))][1]


class Request(msgspec.Struct, kw_only=True, eq=False):
    """All that is known of one request; compared by identity."""

    source: str
    seen_ns: int
    request_id: str | None = None
    external_id: str | None = None
    ordinal: int | None = None
    rank: int | None = None
    stage: RequestState = RequestState.ARRIVED
    """The stage that the engine reported last."""
    ended: bool = False
    outcome: RequestState | None = None
    """How it ended, as far as known."""
    front_ended: bool = False
    engine_ended: bool = False
    awaited: bool = True
    """Whether reports of both front end and engine can still come: none were lost."""
    reason: str | None = None

    arrived_ns: int | None = None
    """At the front end, as is the next; later times are the engine's."""
    tokenised_ns: int | None = None
    added_ns: int | None = None
    waiting_since_ns: int | None = None
    scheduled_ns: int | None = None
    first_ns: int | None = None
    last_ns: int | None = None

    first_sent: bool = False
    """Whether the front end has sent the first token."""
    ttft_ns: int | None = None
    e2el_ns: int | None = None
    queue_ns: int | None = None
    prefill_ns: int | None = None
    itl_last_ns: int | None = None
    itl_max_ns: int = -1

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    prefilled_tokens: int = 0
    """Tokens scheduled in steps before the first output, and in that step."""
    output_tokens: int = 0
    """Output tokens counted in steps."""
    reported_tokens: int | None = None
    preemptions: int = 0
    preempted_ns: int | None = None
    """End of the step that last preempted it."""
    thinking_tokens: int | None = None
    media_items: int | None = None
    media_cached: int | None = None
    media_ns: tuple[int, int] = (0, 0)
    """What fetching and preprocessing its media took; 0 where it has none."""
    lora: str | None = None
    priority: int | None = None
    header: str | None = None
    class_name: str | None = None
    """Its class, as named by its client."""
    client_told: bool = False
    """Whether its client told of it, which it does after the end."""

    wait: Wait | None = None
    """Its wait for the first token in the engine.

    None where that was not reported, and once its TTFT is explained.
    """
    ttft_spent_ns: list[int] | None = None
    """TTFT by place of TTFT_CAUSES; None until front end and engine reported the first
    token.
    """
    itl_cause: Cause | None = None
    """Cause of its longest gap, if that was a spike."""
    decode_spent_ns: list[int] | None = None
    """By place of DECODE_CAUSES, from its first token to ``decode_mark``; None until
    its first token was seen."""
    decode_mark: DecodeMark | None = None
    """None if its decode is not followed any more, as steps are missing."""
    kv_tokens: int = 0
    """Tokens it holds in the KV cache; by what was scheduled, as are the next."""
    kv_since_ns: int | None = None
    """Up to when ``kv_token_ns`` is counted; None while it holds none."""
    kv_token_ns: int = 0
    """Tokens held, times how long."""
    kv_resumed_ns: int | None = None
    """Since when it holds tokens again after a preemption, until its next token tells
    how many of them the prefix cache gave back."""
    logged: bool = False
    """Whether it is in the breakdown of all requests."""
    tenant: int = NO_TENANT
    """The code of its tenant."""
    charge: WaitCharge | None = None
    """None until a step passed it over while it was queued."""
    charged: Charged | None = None
    """Its queue time by the tenant that held what bound the queue; the rest is
    nobody's. None until it leaves the queue, where that is not known, and once it is
    counted."""
    left_ns: int | None = None
    """When it ended in the queue, of a request that was never scheduled."""

    awaits_first: bool = False
    """Whether the next token counted is its first."""
    trusted: bool = True
    """Whether all of its tokens were counted."""
    steady: bool = False
    """Whether it decodes and its last token was seen, so a step needs no checks."""
    tpot_due_ns: int | None = None
    """When it finished normally, which is when its TPOT counts."""
    tpot_counted: bool = False
    end_ns: int | None = None
    """As reported by the front end, else by the engine."""
    processed_ns: int | None = None
    """When the front end had detokenised its last outputs, after ``end_ns``."""
    judged: bool = False
    """Whether it was judged by the objectives, or cannot be."""
    judged_by: str | None = None
    """The clause that it was judged by; empty for the one without a class."""
    missed: list[str] | None = None
    """The objectives it missed; None where not known, or not yet."""
    arrival_counted: bool = False
    prompt_counted: bool = False
    counted_as: RequestState | None = None
    counted_ns: int = 0
    counted_cut: bool = False
    """Whether its end was counted as cut."""
    row: RequestRow | None = None
    """Its row for screens until something changes; not saved, as all fields below."""
    run: DecodeRun | None = None
    """What counts its tokens while it decodes, like others, one token a step."""
    run_steps: int = 0
    """The steps of the run that are in its own numbers already."""
    run_weighted_ns: int = 0
    """``weighted_ns`` of the run, likewise."""
    run_base: int = 0
    """Tokens it held when it joined the run, less the steps of the run by then."""
    waits_for: Cause | None = None
    """What it queues for, by the latest step of its rank."""
    waits_until_ns: int = 0
    """Steps that end before this do not change what it waits for."""

    @classmethod
    def restored(cls, saved: Any) -> Self:  # noqa: ANN401  made by defstruct
        return cls(**msgspec.structs.asdict(saved))

    def learn(self, event: RequestEvent) -> None:
        """Take over what an event tells, by what its kind can tell."""
        if self.run is not None:
            self.catch_up()
        self.request_id, self.row = event.request_id, None
        if self.ordinal is None:
            self.ordinal = event.ordinal
        if event.external_id:
            self.external_id = event.external_id
        if event.cached_tokens is not None:
            self.cached_tokens = event.cached_tokens
        kind = event.kind
        if kind is EventKind.ARRIVED or kind is EventKind.ADDED:
            self._learn_asked(event)
        elif kind is EventKind.FINISHED:
            self._learn_end(event)

    def _learn_end(self, event: RequestEvent) -> None:
        """Take over what came of it."""
        tokens, preemptions = event.output_tokens, event.preemptions
        if tokens is not None:
            self.reported_tokens = max(self.reported_tokens or 0, tokens)
        if preemptions is not None and preemptions > self.preemptions:
            self.preemptions = preemptions
        self.reason = event.reason or self.reason
        self.processed_ns = event.processed_ns or self.processed_ns
        self.thinking_tokens = event.thinking_tokens or self.thinking_tokens

    def _learn_asked(self, event: RequestEvent) -> None:
        """Take over what the client asked for."""
        if event.prompt_tokens is not None:
            self.prompt_tokens = event.prompt_tokens
        if event.max_tokens is not None:
            self.max_tokens = event.max_tokens
        if event.temperature is not None:
            self.temperature = event.temperature
        if event.top_p is not None:
            self.top_p = event.top_p
        if event.lora is not None:
            self.lora = event.lora
        if event.priority is not None:
            self.priority = event.priority
        if event.header is not None:
            self.header = event.header

    def take_media(self, event: RequestEvent) -> None:
        """Take over what its media took on their way to the engine."""
        self.media_items, self.media_cached = event.media_items, event.media_cached
        self.media_ns = (
            (event.fetch_end_ns or 0) - (event.fetch_start_ns or 0),
            (event.preprocess_end_ns or 0) - (event.preprocess_start_ns or 0),
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy; its run, which has it among its members, is copied with it.

        Without this, ``deepcopy`` would copy the run's members before there is a copy
        of the request, and so make two.
        """
        made = memo[id(self)] = copy(self)
        for name in self.__struct_fields__:
            setattr(made, name, deepcopy(getattr(self, name), memo))
        return made

    def join(self, run: DecodeRun, ordinal: int) -> None:
        """Let a run count its tokens from the run's next step on."""
        if ordinal == self.ordinal:
            self.run, self.run_steps = run, run.steps
            self.run_weighted_ns = run.weighted_ns
            run.members[ordinal] = self
            self.run_base = self.kv_tokens - run.steps
            run.shares.join(self.tenant, self.run_base)

    def catch_up(self) -> None:
        """Take over what its run counted since it was last asked.

        Whoever reads or changes its tokens, gaps, or row calls this first.
        """
        run = self.run
        if run is None or run.steps == self.run_steps:
            return
        steps = run.steps - self.run_steps
        self.output_tokens += steps
        if self.kv_since_ns is not None:
            # Step i of its own: kv_tokens + i tokens, for the gap before its end.
            held_ns = run.end_ns - self.kv_since_ns
            weighted_ns = run.weighted_ns - self.run_weighted_ns
            self.kv_token_ns += (self.kv_tokens - self.run_steps) * held_ns
            self.kv_token_ns += weighted_ns
            self.kv_since_ns = run.end_ns
        self.kv_tokens += steps
        self.run_weighted_ns = run.weighted_ns
        self.last_ns, self.itl_last_ns = run.end_ns, run.gap_ns
        longest_ns = run.longest_ns(self.run_steps)
        if longest_ns > self.itl_max_ns:
            self.itl_max_ns, self.itl_cause = longest_ns, None
        self.run_steps, self.row = run.steps, None

    def leave_run(self) -> None:
        """Count its own tokens again, from the run's latest step on."""
        if self.run is not None:
            self.catch_up()
            self.run.members.pop(self.ordinal or 0, None)
            self.run.shares.leave(self.tenant, self.run_base)
            self.run = None

    def hold_kv(
        self, tokens: int, since_ns: int, end_ns: int, *, produced: bool
    ) -> None:
        """Count what it held up to the end of a step that scheduled these tokens.

        ``since_ns`` is when the step got room for them. Called before what the step
        ``produced`` is counted.
        """
        if self.kv_since_ns is None:
            self.kv_since_ns = since_ns
            first = self.preempted_ns is None
            self.kv_tokens = (self.cached_tokens or 0) if first else 0
            self.kv_resumed_ns = None if first else since_ns
        if end_ns <= self.kv_since_ns:
            return
        self.kv_tokens += tokens
        self.kv_token_ns += self.kv_tokens * (end_ns - self.kv_since_ns)
        self.kv_since_ns = end_ns
        if produced and self.kv_resumed_ns is not None:
            self._hold_given_back(end_ns)

    def _hold_given_back(self, end_ns: int) -> None:
        """Add what the prefix cache gave back when it resumed.

        Its next token is made of its prompt and all its tokens before.
        """
        resumed_ns, self.kv_resumed_ns = self.kv_resumed_ns, None
        if resumed_ns is None or self.prompt_tokens is None or not self.trusted:
            return
        given_back = self.prompt_tokens + self.output_tokens - self.kv_tokens
        if given_back > 0:
            self.kv_tokens += given_back
            self.kv_token_ns += given_back * (end_ns - resumed_ns)

    def free_kv(self, t_ns: int) -> None:
        """Count what it held up to a preemption."""
        self.catch_up()
        if self.kv_since_ns is not None:
            held_ns = max(0, t_ns - self.kv_since_ns)
            self.kv_token_ns += self.kv_tokens * held_ns
        self.kv_tokens, self.kv_since_ns, self.kv_resumed_ns = 0, None, None

    def unsettle(self) -> None:
        """Have the next step look at it: it may not decode, or readings were lost."""
        self.leave_run()
        self.steady = False

    @property
    def sequence(self) -> int | None:
        """The sequence's number in its API request; None if it is the only one."""
        if not self.external_id:
            return None
        return sequence_of(self.request_id or "", self.external_id)

    def advance(self, stage: RequestState) -> None:
        """Set the stage, unless the present one is later."""
        if ORDER[stage] > ORDER.get(self.stage, len(ORDER)):
            self.stage = stage

    def joined_late(self) -> None:
        """Record that a step was missed, so the next token may not be the first."""
        self.awaits_first = False
        self.trusted = False

    def doubt(self) -> None:
        """Record that readings were lost, so that no gap spans the loss."""
        self.unsettle()
        self.last_ns = None
        self.awaits_first = False
        self.trusted = False
        self.await_nobody()

    def await_nobody(self) -> None:
        """Wait no longer for reports of front end or engine, as they may be lost."""
        self.awaited = False
        self.row = None

    @property
    def key(self) -> str:
        """Identifies the request within the session."""
        return f"{self.source}/{self.request_id}"

    def beside_api(self, spent_ns: list[int]) -> list[int]:
        """Return ``spent_ns`` plus the time before the engine, where that is known."""
        spent_ns = spent_ns.copy()
        if self.wait is not None and self.arrived_ns is not None:
            held_ns = wait_ns(self.wait, self.tokenised_ns)
            spent_ns[PLACE[Cause.QUEUE_STEP]] += held_ns
            api_ns = self.wait.added_ns - self.arrived_ns - held_ns
            for cause, took_ns in zip(MEDIA_CAUSES, self.media_ns, strict=True):
                spent_ns[PLACE[cause]] += took_ns
                api_ns -= took_ns
            spent_ns[PLACE[Cause.API]] = api_ns
        return spent_ns

    def explain(self) -> None:
        """Set the TTFT by cause once front end and engine reported the first token."""
        known = self.ttft_ns is not None and self.first_ns is not None
        if known and self.ttft_spent_ns is None:
            self.ttft_spent_ns, self.wait = self.spent_ns, None
            self.row = None

    @property
    def spent_ns(self) -> list[int] | None:
        """The request's TTFT by cause as far as reported; None before a token."""
        if self.ttft_spent_ns is not None:
            return self.ttft_spent_ns
        if self.ttft_ns is None or self.arrived_ns is None:
            return None
        return ttft_spent(
            self.wait,
            self.arrived_ns,
            self.ttft_ns,
            self.first_ns,
            self.tokenised_ns,
            self.media_ns,
        )

    @property
    def waited_for(self) -> Cause | None:
        """What the request has waited for longest, until its TTFT is known."""
        wait = self.wait
        if wait is None:
            return None if self.arrived_ns is None else Cause.API
        if wait.is_new:
            return Cause.QUEUE_STEP
        if wait.step == NO_STEP and not any(wait.spent_ns):
            return None
        if wait.account is not None and not self.ended:
            return self.waits_for
        return largest(self.beside_api(wait.spent_ns))

    @property
    def ended_by_both(self) -> bool:
        return self.front_ended and self.engine_ended

    @property
    def tokens(self) -> int | None:
        """Output tokens so far; None where some may have been missed."""
        counted, reported = self.output_tokens, self.reported_tokens
        if self.trusted and (reported is None or counted > reported):
            return counted
        return reported

    @property
    def decode_ns(self) -> int | None:
        if self.first_ns is None or self.last_ns is None:
            return None
        return self.last_ns - self.first_ns

    @property
    def tpot_ns(self) -> int | None:
        """Time per output token after the first; None below two tokens."""
        return self._tpot_ns(self.tokens)

    def _tpot_ns(self, tokens: int | None) -> int | None:
        decode_ns = self.decode_ns
        if decode_ns is None or tokens is None or tokens < 2:
            return None
        return round(decode_ns / (tokens - 1))

    @property
    def _engine_reported_all(self) -> bool:
        """Whether the engine reported the end and every token before it."""
        return self.engine_ended and not (
            self.trusted and self.output_tokens < (self.reported_tokens or 0)
        )

    def _state(self, tellers: Collection[Vantage]) -> RequestState:
        """Return the state that all reporting processes agree on."""
        by_engine = Vantage.ENGINE in tellers
        if self.outcome is not None and not self.must_wait(tellers):
            return self.outcome
        if by_engine:
            return self.stage
        return RequestState.DECODE if self.first_sent else self.stage

    def must_wait(self, tellers: Collection[Vantage]) -> bool:
        """Return whether only one of front end and engine has reported the end."""
        if not self.awaited:
            return False
        if Vantage.FRONTEND in tellers and not self.front_ended:
            return True
        proper = self.outcome is RequestState.FINISHED
        return proper and Vantage.ENGINE in tellers and not self._engine_reported_all

    def _tokens_of_row(self, state: RequestState, *, by_engine: bool) -> int | None:
        """Return output tokens as of the state; None where they are not counted."""
        if not state.live:
            return max(self.output_tokens, self.reported_tokens or 0)
        counted = by_engine and (self.trusted or self.output_tokens > 0)
        return self.output_tokens if counted else None

    def as_row(self, tellers: Collection[Vantage]) -> RequestRow:
        """Return the row for screens, given who reports; cached until a change."""
        self.catch_up()
        if self.row is None:
            self.row = self._make_row(tellers)
        return self.row

    def _make_row(self, tellers: Collection[Vantage]) -> RequestRow:
        known = (self.arrived_ns, self.added_ns, self.seen_ns)
        state, by_engine = self._state(tellers), Vantage.ENGINE in tellers
        is_live = state.live
        tokens = self._tokens_of_row(state, by_engine=by_engine)
        exact = tokens if self.trusted or not is_live else None
        has_token = tokens != 0
        cause, parts = self._cause(reported=by_engine and has_token)
        return RequestRow(
            key=self.key,
            request_id=self.request_id or "",
            external_id=self.external_id,
            sequence=self.sequence,
            ordinal=self.ordinal,
            state=state,
            arrived_ns=next(t_ns for t_ns in known if t_ns is not None),
            added_ns=self.added_ns,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=tokens,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            queue_s=seconds(self.queue_ns),
            prefill_s=seconds(self.prefill_ns),
            ttft_s=seconds(self.ttft_ns) if has_token else None,
            tpot_s=seconds(self._tpot_ns(exact)),
            itl_last_s=seconds(self.itl_last_ns),
            itl_max_s=None if self.itl_max_ns < 0 else seconds(self.itl_max_ns),
            decode_s=seconds(self.decode_ns),
            e2el_s=None if is_live else seconds(self.e2el_ns),
            preemptions=self.preemptions,
            reason=None if is_live else self.reason,
            cause=cause if by_engine else None,
            ttft_parts=parts,
            itl_cause=self.itl_cause,
            thinking_tokens=self.thinking_tokens,
            media_items=self.media_items,
            media_cached=self.media_cached,
            lora=self.lora,
            priority=self.priority,
            header=self.header,
            class_name=self.class_name,
            missed=None if is_live or self.missed is None else tuple(self.missed),
        )

    def _cause(self, *, reported: bool) -> tuple[Cause | None, Parts]:
        """Return the main cause of the TTFT, or of the wait so far, and all parts.

        TTFT is split only where both front end and engine report.
        """
        spent_ns = self.spent_ns if reported else None
        if spent_ns is None:
            return self.waited_for, ()
        return largest(spent_ns), parts_of(spent_ns)


UNSAVED = {
    *("row", "run", "run_steps", "run_weighted_ns", "run_base"),
    *("waits_for", "waits_until_ns"),
}
FIELDS = msgspec.structs.fields(Request)
SAVED = [(each.name, each.type) for each in FIELDS if each.name not in UNSAVED]
SavedRequest = msgspec.defstruct("SavedRequest", SAVED, array_like=True, gc=False)
"""The fields of a Request that checkpoints keep; others follow from these."""
as_saved = attrgetter(*(name for name, _ in SAVED))
"""Return the saved fields of a request, in the order of SavedRequest."""
