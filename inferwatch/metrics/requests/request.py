"""One request's life, joined from what front end and engine report.

The two are separate streams, and either may be behind. What is counted is counted as
soon as it is heard. A row waits, so that it never contradicts itself:

- how far a request has come, and how many tokens it has, is what the engine told;
- that it ended is true once the front end said so, and a proper end once the engine
  has told of the last token, too;
- what the front end alone knows, TTFT and E2EL, stands in the row as soon as the
  state says that there was a token, or an end.

Where only one of the two tells anything, it has the word.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Self

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import RequestEvent, Vantage
from inferwatch.metrics.causes.cause import Cause, Parts
from inferwatch.metrics.causes.first_token import Wait, held_up, parts_of, ttft_spent
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
"""How far a live request has come; reports of two processes may cross."""


LEARNT = (
    "prompt_tokens",
    "cached_tokens",
    "max_tokens",
    "temperature",
    "lora",
    "priority",
    "header",
)
"""What events say of a request, under the same name."""


def seconds(duration_ns: int | None) -> float | None:
    """Nanoseconds as seconds; unknown stays unknown."""
    return None if duration_ns is None else duration_ns / NS_PER_S


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """All that is known of one request; mutable, and compared by identity."""

    source: str
    seen_ns: int
    request_id: str | None = None
    external_id: str | None = None
    ordinal: int | None = None
    rank: int | None = None
    stage: RequestState = RequestState.ARRIVED
    """How far it has come in the engine."""
    ended: bool = False
    outcome: RequestState | None = None
    """How it ended, as far as is known."""
    front_ended: bool = False
    engine_ended: bool = False
    awaited: bool = True
    """What both may tell of it can still come: nothing of it was lost."""
    reason: str | None = None

    arrived_ns: int | None = None
    """At the front end, as the next; the moments below are the engine's."""
    tokenised_ns: int | None = None
    added_ns: int | None = None
    waiting_since_ns: int | None = None
    scheduled_ns: int | None = None
    first_ns: int | None = None
    last_ns: int | None = None

    first_sent: bool = False
    """Whether the front end has sent its first token."""
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
    prefilled_tokens: int = 0
    """Scheduled in steps without output and in the first with it."""
    output_tokens: int = 0
    """Tokens that were seen in steps."""
    reported_tokens: int | None = None
    preemptions: int = 0
    preempted_ns: int | None = None
    """When the step ended that last began with putting it back into the queue."""
    lora: str | None = None
    priority: int | None = None
    header: str | None = None
    class_name: str | None = None
    """As its client names it."""

    wait: Wait | None = None
    """In the engine for its first token; None where that was not heard of, and once
    all of its TTFT is told."""
    ttft_spent_ns: list[int] | None = None
    """By place of TTFT_CAUSES, once front end and engine told of its first token."""
    itl_cause: Cause | None = None
    """Of its longest gap, where that is a spike."""

    awaits_first: bool = False
    """The next token we see is its first."""
    trusted: bool = True
    """No token of it can have escaped us."""
    steady: bool = False
    """Decoding, and its last token was seen: the next one needs no thought."""
    tpot_due_ns: int | None = None
    """When it finished properly."""
    tpot_counted: bool = False
    end_ns: int | None = None
    """As the front end has it, else the engine."""
    judged: bool = False
    """By the objectives, or found that nobody can."""
    judged_by: str | None = None
    """The clause; empty: that of all."""
    missed: list[str] | None = None
    """Which objectives; None where that is not known, or not yet."""
    arrival_counted: bool = False
    prompt_counted: bool = False
    counted_as: RequestState | None = None
    counted_ns: int = 0
    row: RequestRow | None = None
    """As screens show it, until something changes; not saved, as all below."""
    waits_for: Cause | None = None
    """In the queue, by the latest step of its rank."""
    waits_until_ns: int = 0
    """Before a step that ends then nothing else can hold it up for longer."""

    @classmethod
    def restored(cls, saved: Any) -> Self:  # noqa: ANN401  made by defstruct
        """A request as a checkpoint has it."""
        return cls(**msgspec.structs.asdict(saved))

    def learn(self, event: RequestEvent) -> None:
        """Take over what an event says about the request itself."""
        self.request_id = event.request_id
        if self.ordinal is None:
            self.ordinal = event.ordinal
        self.external_id = event.external_id or self.external_id
        for name in LEARNT:
            told = getattr(event, name)
            if told is not None:
                setattr(self, name, told)
        if event.output_tokens is not None:
            self.reported_tokens = max(self.reported_tokens or 0, event.output_tokens)
        self.preemptions = max(self.preemptions, event.preemptions or 0)
        self.reason = event.reason or self.reason
        self.row = None

    @property
    def sequence(self) -> int | None:
        """Its place among the answers to one request; None: there is no other."""
        return sequence_of(self.request_id or "", self.external_id)

    def advance(self, stage: RequestState) -> None:
        """Go on to a stage, unless it is further already."""
        if ORDER[stage] > ORDER.get(self.stage, len(ORDER)):
            self.stage = stage

    def joined_late(self) -> None:
        """The first step we see it in is not the one that first scheduled it.

        So the next token we see need not be its first.
        """
        self.awaits_first = False
        self.trusted = False

    def doubt(self) -> None:
        """Readings were lost: the next token starts anew."""
        self.steady = False
        self.last_ns = None
        self.awaits_first = False
        self.trusted = False
        self.await_nobody()

    def await_nobody(self) -> None:
        """What one of the two told must do: the other's word may be lost."""
        self.awaited = False
        self.row = None

    @property
    def key(self) -> str:
        """Stable while the session lasts."""
        return f"{self.source}/{self.request_id}"

    def beside_api(self, spent_ns: list[int]) -> list[int]:
        """What it spent in the engine, and before, as far as that is known."""
        spent_ns = spent_ns.copy()
        if self.wait is not None and self.arrived_ns is not None:
            held_ns = held_up(self.wait, self.tokenised_ns)
            spent_ns[PLACE[Cause.QUEUE_STEP]] += held_ns
            spent_ns[PLACE[Cause.API]] = self.wait.added_ns - self.arrived_ns - held_ns
        return spent_ns

    def explain(self) -> None:
        """Front end or engine told of its first token; once both did, all is told."""
        known = self.ttft_ns is not None and self.first_ns is not None
        if known and self.ttft_spent_ns is None:
            self.ttft_spent_ns, self.wait = self.spent_ns, None
            self.row = None

    @property
    def spent_ns(self) -> list[int] | None:
        """Its TTFT by cause, as far as is told; None before its first token."""
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
        )

    @property
    def waited_for(self) -> Cause | None:
        """What it has waited for longest, as long as its TTFT is not known."""
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
        """Neither front end nor engine has more to tell."""
        return self.front_ended and self.engine_ended

    @property
    def tokens(self) -> int | None:
        """Output tokens so far, None when some may have escaped us."""
        if self.trusted:
            return max(self.output_tokens, self.reported_tokens or 0)
        return self.reported_tokens

    @property
    def decode_ns(self) -> int | None:
        if self.first_ns is None or self.last_ns is None:
            return None
        return self.last_ns - self.first_ns

    @property
    def tpot_ns(self) -> int | None:
        """Time per output token after the first, None below two tokens."""
        return self._tpot_ns(self.tokens)

    def _tpot_ns(self, tokens: int | None) -> int | None:
        decode_ns = self.decode_ns
        if decode_ns is None or tokens is None or tokens < 2:
            return None
        return round(decode_ns / (tokens - 1))

    @property
    def _engine_told_all(self) -> bool:
        """Its end, and the step with its last token, which is reported later."""
        return self.engine_ended and not (
            self.trusted and self.output_tokens < (self.reported_tokens or 0)
        )

    def _state(self, tellers: Collection[Vantage]) -> RequestState:
        """How far it has come, as all have told who tell of it."""
        by_engine = Vantage.ENGINE in tellers
        if self.outcome is not None and not self.must_wait(tellers):
            return self.outcome
        if by_engine:
            return self.stage
        return RequestState.DECODE if self.first_sent else self.stage

    def must_wait(self, tellers: Collection[Vantage]) -> bool:
        """One has told of its end, and the other is behind."""
        if not self.awaited:
            return False
        if Vantage.FRONTEND in tellers and not self.front_ended:
            return True
        proper = self.outcome is RequestState.FINISHED
        return proper and Vantage.ENGINE in tellers and not self._engine_told_all

    def _tokens_of_row(self, state: RequestState, *, by_engine: bool) -> int | None:
        """As many as belong to the state; None while nobody counts them."""
        if not state.live:
            return max(self.output_tokens, self.reported_tokens or 0)
        counted = by_engine and (self.trusted or self.output_tokens > 0)
        return self.output_tokens if counted else None

    def as_row(self, tellers: Collection[Vantage]) -> RequestRow:
        """As screens show it, given who tells; made anew only after a change."""
        if self.row is None:
            self.row = self._make_row(tellers)
        return self.row

    def _make_row(self, tellers: Collection[Vantage]) -> RequestRow:
        known = (self.arrived_ns, self.added_ns, self.seen_ns)
        state, by_engine = self._state(tellers), Vantage.ENGINE in tellers
        tokens = self._tokens_of_row(state, by_engine=by_engine)
        exact = tokens if self.trusted or not state.live else None
        has_token = tokens != 0
        cause, parts = self._cause(told=by_engine and has_token)
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
            queue_s=seconds(self.queue_ns),
            prefill_s=seconds(self.prefill_ns),
            ttft_s=seconds(self.ttft_ns) if has_token else None,
            tpot_s=seconds(self._tpot_ns(exact)),
            itl_last_s=seconds(self.itl_last_ns),
            itl_max_s=None if self.itl_max_ns < 0 else seconds(self.itl_max_ns),
            decode_s=seconds(self.decode_ns),
            e2el_s=None if state.live else seconds(self.e2el_ns),
            preemptions=self.preemptions,
            reason=None if state.live else self.reason,
            cause=cause if by_engine else None,
            ttft_parts=parts,
            itl_cause=self.itl_cause,
            lora=self.lora,
            priority=self.priority,
            header=self.header,
            class_name=self.class_name,
            missed=None if state.live or self.missed is None else tuple(self.missed),
        )

    def _cause(self, *, told: bool) -> tuple[Cause | None, Parts]:
        """The largest part of its TTFT, or of its wait so far, and the parts.

        Only front end and engine together know them: where the engine tells nothing,
        there are none, and where the front end does not, no TTFT to split.
        """
        spent_ns = self.spent_ns if told else None
        if spent_ns is None:
            return self.waited_for, ()
        return largest(spent_ns), parts_of(spent_ns)


UNSAVED = {"row", "waits_for", "waits_until_ns"}
SAVED = [(each.name, each.type) for each in fields(Request) if each.name not in UNSAVED]
SavedRequest = msgspec.defstruct("SavedRequest", SAVED, array_like=True, gc=False)
"""All fields of a Request but what follows from the others."""
as_saved = attrgetter(*(name for name, _ in SAVED))
"""What is saved of a request, in the order of SavedRequest."""
