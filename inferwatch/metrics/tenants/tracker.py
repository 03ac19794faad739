"""Adds up what tenants asked for, got, and made each other wait.

A step costs something by tenant, never by member; with one tenant alone, nothing but an
addition.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    BoundBy,
    EventKind,
    RequestEvent,
    Step,
    Vantage,
    rank_of,
)
from inferwatch.metrics.causes.charges import (
    NO_TENANT,
    ChargeAccount,
    add_shares,
    divided,
)
from inferwatch.metrics.requests.group_names import OTHERS, told_name
from inferwatch.metrics.requests.request import DecodeRun, Request
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.series.quantiles import Ints
from inferwatch.metrics.series.samples import Block, RecentRows, SavedRows
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.tenants.view import (
    FairMinute,
    NoisyTenant,
    Tenant,
    Tenants,
    jain,
)

MOST_TENANTS = 64
"""Largest number of tenants that are told apart."""
MINUTE_NS = 60 * NS_PER_S
MOST_MINUTES = 180
"""Minutes whose fairness is kept."""
Key = tuple[str, int]
COUNTED = ("requests", "prompt", "output", "engine", "kv", "queue")
"""Columns of an ended request after its end and its tenant; 1 for the request, and
another one if the engine told of it."""
CODES = MOST_TENANTS + 2
"""Codes of tenants, with that of all others and ``NO_TENANT``, which is -1."""
JUDGED_NS = 10 * NS_PER_S
"""How often a noisy tenant is looked for."""
FEW = 4
"""Rows that are added faster one by one."""
HELD = {BoundBy.SEQS, BoundBy.KV, BoundBy.TOKENS}
"""What requests hold until the next step."""
NOBODYS = {BoundBy.DEFERRED, BoundBy.OTHER}
"""What no request holds."""
LEAST_VICTIMS = 10
"""Fewest requests of others from which a tenant can be called noisy."""
PARTS = ("requests", "charges", "steps")
"""The kinds of rows that are kept."""


class StepShares(msgspec.Struct, array_like=True):
    """What steps took by tenant; rounded only when they are added up."""

    spent: dict[int, float] = msgspec.field(default_factory=dict)
    tokens: dict[int, int] = msgspec.field(default_factory=dict)
    took_ns: int = 0

    def add(self, took_ns: int, tokens: Mapping[int, int], steps: int) -> None:
        """Add steps that took so long, each with these tokens."""
        self.took_ns += took_ns
        if any(tokens.values()):
            add_shares(self.spent, took_ns, tokens)
        else:
            self.spent[NO_TENANT] = self.spent.get(NO_TENANT, 0.0) + took_ns
        for code, count in tokens.items():
            self.tokens[code] = self.tokens.get(code, 0) + count * steps

    def divided_ns(self) -> dict[int, int]:
        """Return what they took by tenant, in nanoseconds that add up."""
        return divided(self.took_ns, {code: round(n) for code, n in self.spent.items()})


class AlikeSteps(msgspec.Struct, array_like=True):
    """The latest steps, as far as their tokens by tenant were the same."""

    tokens: dict[int, int] = msgspec.field(default_factory=dict)
    steps: int = 0
    took_ns: int = 0


class SavedMinute(msgspec.Struct, array_like=True):
    """What tenants were served in a minute, and what they wanted."""

    since_ns: int
    served: dict[int, int]
    wanted: dict[int, int]


class SavedTenants(msgspec.Struct, array_like=True):
    """A TenantTracker as checkpoints keep it, without its rows."""

    names: list[str | None]
    """None for requests that name no tenant."""
    ended: dict[int, list[int]]
    """Sums of ``COUNTED`` by tenant."""
    charges: list[tuple[int, int, int]]
    """Holder, who waited, and nanoseconds."""
    steps: dict[int, list[int]]
    """Time of steps and tokens by tenant."""
    ranks: list[tuple[str, int, ChargeAccount]]
    queued: list[str]
    """Keys of requests that no step passed over yet."""
    lately: StepShares
    alike: AlikeSteps
    alone: tuple[int, int]
    """Time and tokens."""
    minute: SavedMinute | None
    minutes: list[SavedMinute]
    judged: tuple[int, NoisyTenant | None] | None


@dataclass(frozen=True, slots=True, eq=False)
class WindowSums:
    """What is counted in a window, by tenant."""

    ended: Ints
    charges: Ints
    gpu_ns: int | None
    """Of all steps; None without any."""
    by_engine: bool
    """Whether an engine told of anything."""


class TenantTracker:
    """Follows who holds what, and counts each request once, when it is reported."""

    def __init__(
        self, requests: RequestIndex, model_of: Callable[[str], str | None]
    ) -> None:
        """``model_of`` tells the model that a source serves."""
        self._requests = requests
        self._model_of = model_of
        self._codes: dict[str | None, int] = {}
        self.rows = {
            "requests": RecentRows(2 + len(COUNTED), self._count_ended),
            "charges": RecentRows(4, self._count_charges),
            "steps": RecentRows(4, self._count_steps),
        }
        self._ended: Ints = np.zeros((len(COUNTED), CODES), np.int64)
        """By what is counted and by tenant."""
        self._charges: Ints = np.zeros((CODES, CODES), np.int64)
        """By holder and by who waited."""
        self._steps: Ints = np.zeros((2, CODES), np.int64)
        """Time and tokens, by tenant."""
        self._ranks: dict[Key, ChargeAccount] = {}
        self._queued: dict[Key, dict[Request, None]] = {}
        """Requests that no step passed over yet."""
        self._lately = StepShares()
        """Steps since the latest tick, without those alike."""
        self._alike = AlikeSteps()
        self._alone_ns = self._alone_tokens = 0
        """Since the latest tick, of steps while one tenant at most was known."""
        self._minute: SavedMinute | None = None
        self._minutes: deque[SavedMinute] = deque(maxlen=MOST_MINUTES)
        self._judged: tuple[int, NoisyTenant | None] | None = None
        """The latest time a noisy tenant was looked for, and who it was."""

    # Requests.

    def named(self, request: Request, event: RequestEvent) -> None:
        """Find the tenant of a request, once what names it is told."""
        if event.kind is EventKind.ADDED and request.arrived_ns is None:
            tellers = self._requests.tellers.get(request.source, ())
            if Vantage.FRONTEND in tellers:
                return  # its header comes with its arrival
        self._name(request)

    def queued(self, request: Request) -> None:
        """Remember who is to be charged for once a step passes it over."""
        if request.ordinal is not None and len(self._codes) > 1:
            key = request.source, rank_of(request.ordinal)
            self._queued.setdefault(key, {})[request] = None

    def scheduled(self, request: Request) -> None:
        """Charge the wait of a request to whoever held what bound the queue."""
        if request.scheduled_ns is not None:
            self._charge(request, request.scheduled_ns)

    def gave_up(self, request: Request, t_ns: int) -> None:
        """Charge the wait of a request that ended in the queue, or before its end."""
        if (
            request.scheduled_ns is None
            and request.added_ns is not None
            and request.left_ns is None
            and request.trusted
            and not request.prefilled_tokens
            and not request.tokens
        ):
            request.left_ns = t_ns
            self._charge(request, t_ns)

    def _charge(self, request: Request, t_ns: int) -> None:
        if request.ordinal is None or request.added_ns is None:
            return
        if len(self._codes) < 2:
            waited_ns = max(t_ns - request.added_ns, 0)
            request.charged_ns = {request.tenant: waited_ns}
            return
        key = request.source, rank_of(request.ordinal)
        self._queued.get(key, {}).pop(request, None)
        account = self._ranks.get(key)
        if account is not None:
            request.charged_ns = account.charged(request.charge, request.added_ns, t_ns)
        request.charge = None

    def logged(self, request: Request, end_ns: int) -> None:
        """Count an ended request, of which all is reported."""
        self._name(request)
        self.gave_up(request, end_ns)
        queue_ns = request.queue_ns
        if queue_ns is None and request.left_ns is not None:
            queue_ns = request.left_ns - (request.added_ns or 0)
        counts = (1, request.prompt_tokens or 0, request.tokens or 0)
        by_engine = int(request.added_ns is not None)
        held = by_engine, request.kv_token_ns, max(queue_ns or 0, 0)
        self.rows["requests"].add((end_ns, request.tenant, *counts, *held))
        charged, charges = request.charged_ns or {}, self.rows["charges"]
        if len(charged) > FEW:
            columns = np.empty((4, len(charged)), np.int64)
            columns[0], columns[2] = end_ns, request.tenant
            columns[1], columns[3] = [*charged], [*charged.values()]
            charges.extend(columns)
            return
        for holder, ns in charged.items():
            charges.add((end_ns, holder, request.tenant, ns))

    def _name(self, request: Request) -> None:
        name = request.header or request.lora or self._model_of(request.source)
        code = self._code(name or None)
        if code != request.tenant:
            request.leave_run()  # which counts its members by tenant
            request.tenant = code

    def _code(self, name: str | None) -> int:
        code = self._codes.get(name)
        if code is None:
            code = min(len(self._codes), MOST_TENANTS)
            if code < MOST_TENANTS:
                self._codes[name] = code
        return code

    # Steps.

    def step(
        self, step: Step, run: DecodeRun, others: Iterable[tuple[Request, int]]
    ) -> None:
        """Divide the time of a step, and see who holds what until the next one."""
        if len(self._codes) < 2:
            self._alone_ns += step.duration_ns
            self._alone_tokens += step.prefill_tokens + step.decode_tokens
            return
        counts, bound = run.shares.counts.copy(), step.bound_by
        tokens, held = counts.copy(), dict[int, int]()
        if bound is BoundBy.KV:
            held = run.shares.held(run.steps)
        for request, scheduled in others:
            code = request.tenant
            if request.run is run:  # it has joined with this step
                tokens[code] = tokens.get(code, 0) + scheduled - 1
                continue
            counts[code] = counts.get(code, 0) + 1
            tokens[code] = tokens.get(code, 0) + scheduled
            held[code] = held.get(code, 0) + request.kv_tokens
        if tokens != self._alike.tokens:
            self._divide()
            self._alike.tokens = tokens
        self._alike.steps += 1
        self._alike.took_ns += step.duration_ns
        if bound is BoundBy.SEQS:
            self._hold(step, counts)
        else:
            self._hold(step, held if bound is BoundBy.KV else tokens)

    def _divide(self) -> None:
        """Divide the time of the latest steps, whose tokens were alike."""
        alike = self._alike
        if alike.steps:
            self._lately.add(alike.took_ns, alike.tokens, alike.steps)
            alike.steps = alike.took_ns = 0

    def _settle(self) -> None:
        """Put down to tenants what steps took since the latest tick."""
        self._divide()
        if self._alone_ns:
            code = 0 if self._codes else NO_TENANT
            self._lately.add(self._alone_ns, {code: 1}, 0)
            self._lately.tokens[code] += self._alone_tokens
            self._alone_ns = self._alone_tokens = 0

    def _hold(self, step: Step, weights: dict[int, int]) -> None:
        key, bound = (step.source, step.rank), step.bound_by
        account = self._ranks.get(key)
        if account is None:
            account = self._ranks[key] = ChargeAccount()
        if account.waited:
            account.close(step.start_ns, step.index)
        if queued := self._queued.get(key):
            self._pass_over(account, queued, step.start_ns)
        account.start_ns, account.end_ns = step.start_ns, step.end_ns
        account.index, account.waited = step.index, step.waiting > 0
        holds = bound not in NOBODYS and any(weights.values())
        account.weights = weights if holds else {}
        account.to_next = bound in HELD

    def _pass_over(
        self, account: ChargeAccount, queued: dict[Request, None], start_ns: int
    ) -> None:
        """Begin the charge of requests that the step at ``start_ns`` left waiting."""
        for request in [*queued]:
            if (request.added_ns or 0) <= start_ns:
                del queued[request]
                if not request.ended and request.scheduled_ns is None:
                    request.charge = account.begun(request.added_ns or 0, start_ns)

    def lost(self, source: str) -> None:
        """Forget the ranks of a lost engine."""
        for key in [each for each in self._ranks if source in {"", each[0]}]:
            del self._ranks[key]
            self._queued.pop(key, None)

    # Ticks.

    def tick(self, t_ns: int) -> None:
        """Keep what steps since the latest tick took, by tenant."""
        self._settle()
        steps, lately = self.rows["steps"], self._lately
        for code, ns in lately.divided_ns().items():
            steps.add((t_ns, code, ns, lately.tokens.get(code, 0)))
        self._fair(t_ns)
        self._lately = StepShares()

    def _fair(self, t_ns: int) -> None:
        """Add the tokens of the latest second to its minute."""
        since_ns = t_ns // MINUTE_NS * MINUTE_NS
        minute = self._minute
        if minute is not None and minute.since_ns != since_ns:
            self._end_minute(minute)
            minute = None
        if minute is None:
            minute = self._minute = SavedMinute(since_ns, {}, {})
        for code, tokens in self._lately.tokens.items():
            minute.served[code] = minute.served.get(code, 0) + tokens

    def _end_minute(self, minute: SavedMinute) -> None:
        """Add the prompts that still wait to what was wanted in a minute."""
        if len(self._codes) < 2:
            return
        minute.wanted = dict(minute.served)
        for request in self._requests.waiting:
            code, tokens = request.tenant, request.prompt_tokens or 0
            minute.wanted[code] = minute.wanted.get(code, 0) + tokens
        minute.wanted = {code: n for code, n in minute.wanted.items() if n}
        if len(minute.wanted) > 1:
            self._minutes.append(minute)

    # Sums of the session.

    def _count_ended(self, columns: Ints) -> None:
        self._ended += _by_tenant(columns)

    def _count_steps(self, columns: Ints) -> None:
        self._steps += _by_tenant(columns)

    def _count_charges(self, columns: Ints) -> None:
        self._charges += _by_pair(columns)

    # Views.

    def shown(
        self, now_ns: int, window: Window, block_tokens: int | None
    ) -> Tenants | None:
        """Return the tenants of a window.

        None where no request ended and no step ran in it.
        """
        for each in self.rows.values():
            each.flush()
        ended, charges, steps = self._ended, self._charges, self._steps
        if window.value is not None:
            ended, charges, steps = self._recent(now_ns - window.value)
        steps = self._with_lately(steps)
        seen = ended[0] + steps[0] + charges.sum(axis=0) + charges.sum(axis=1)
        places = np.flatnonzero(seen).tolist()
        if not places:
            return None
        gpu_ns = int(steps[0].sum()) or None
        by_engine = gpu_ns is not None or bool(ended[3].any())
        sums = WindowSums(ended, charges, gpu_ns, by_engine)
        names = self._names()
        found = [
            self._tenant(place, names[place], sums, int(steps[0, place]))
            for place in places
        ]
        found.sort(
            key=lambda each: (-(each.caused_ns or 0), -(each.gpu_ns or 0), each.name)
        )
        return Tenants(
            requests=int(ended[0].sum()),
            queue_ns=int(ended[5].sum()) if by_engine else None,
            gpu_ns=gpu_ns,
            block_tokens=block_tokens,
            tenants=tuple(found),
            fairness=tuple(map(_fair_minute, self._minutes)),
        )

    def _with_lately(self, steps: Ints) -> Ints:
        """Return the time of steps with that since the latest tick."""
        whole, alike = steps.copy(), StepShares()
        alike.add(self._alike.took_ns, self._alike.tokens, 0)
        alone = {0 if self._codes else NO_TENANT: self._alone_ns}
        for part in (self._lately.divided_ns(), alike.divided_ns(), alone):
            for code, ns in part.items():
                whole[0, code + 1] += ns
        return whole

    def _recent(self, since_ns: int) -> tuple[Ints, Ints, Ints]:
        """Return sums of what ended later, of its charges, and of later steps."""
        requests, charges, steps = (
            self.rows[name].later_than(since_ns) for name in PARTS
        )
        return _by_tenant(requests), _by_pair(charges), _by_tenant(steps)

    def _tenant(self, place: int, name: str, sums: WindowSums, gpu_ns: int) -> Tenant:
        """Return a tenant; ``place`` is its code plus 1."""
        counts = sums.ended[:, place].tolist()
        requests, prompt, output, told, kv_ns, queue_ns = counts
        by, of = sums.charges[place], sums.charges[:, place]
        own_ns = int(by[place])
        caused_ns = int(by.sum()) - own_ns
        if not place:  # nobody is known to have been another one
            caused_ns = 0
        theirs_ns = int(sums.ended[5].sum()) - queue_ns
        known = sums.by_engine and (told > 0 or not requests)
        return Tenant(
            name=name,
            requests=requests,
            prompt_tokens=prompt,
            output_tokens=output,
            kv_token_ns=kv_ns if known else None,
            queue_ns=queue_ns if known else None,
            by_others_ns=int(of[1:].sum()) - (own_ns if place else 0)
            if known
            else None,
            by_itself_ns=own_ns if known else None,
            caused_ns=caused_ns if sums.by_engine else None,
            caused_share=caused_ns / theirs_ns if theirs_ns else None,
            gpu_ns=None if sums.gpu_ns is None else gpu_ns,
            cost_share=gpu_ns / sums.gpu_ns if sums.gpu_ns else None,
            served=tuple(_served(place - 1, each) for each in self._minutes),
        )

    def _names(self) -> list[str]:
        """Return the names of tenants by code plus 1."""
        names = [told_name(None), *map(told_name, self._codes)]
        return [*names, *[OTHERS] * (CODES - len(names))]

    def noisy(self, now_ns: int) -> NoisyTenant | None:
        """Return who made others queue most in a minute; None if nobody did.

        That is the minute before the latest ten seconds began.
        """
        if len(self._codes) < 2:
            return None
        slot = now_ns // JUDGED_NS
        if self._judged is None or self._judged[0] != slot:
            self._judged = slot, self._noisy(now_ns)
        return self._judged[1]

    def _noisy(self, now_ns: int) -> NoisyTenant | None:
        since_ns = now_ns - MINUTE_NS
        caused = _by_pair(self.rows["charges"].later_than(since_ns))
        np.fill_diagonal(caused, 0)
        caused_ns = caused[1:].sum(axis=1)
        code = int(caused_ns.argmax())
        worst_ns = int(caused_ns[code])
        if not worst_ns:
            return None
        ended = _by_tenant(self.rows["requests"].later_than(since_ns))
        requests, prompt, _, _, _, queue_ns = ended.sum(axis=1).tolist()
        mine, my_prompt, _, _, _, my_queue_ns = ended[:, code + 1].tolist()
        victims, theirs_ns = requests - mine, queue_ns - my_queue_ns
        if victims < LEAST_VICTIMS or theirs_ns <= 0:
            return None
        return NoisyTenant(
            name=self._names()[code + 1],
            share=worst_ns / theirs_ns,
            caused_s=worst_ns / NS_PER_S,
            victims=victims,
            requests_share=mine / requests,
            token_share=my_prompt / max(prompt, 1),
            prompt_tokens=round(my_prompt / mine) if mine else None,
        )

    # Checkpoints.

    def saved(self) -> SavedTenants:
        """Return the state for a checkpoint, without rows."""
        for each in self.rows.values():
            each.flush()
        return SavedTenants(
            names=[*self._codes],
            ended=_columns(self._ended),
            charges=[
                (by - 1, of - 1, int(self._charges[by, of]))
                for by, of in np.argwhere(self._charges).tolist()
            ],
            steps=_columns(self._steps),
            ranks=[(*key, account) for key, account in self._ranks.items()],
            queued=[r.key for every in self._queued.values() for r in every],
            lately=self._lately,
            alike=self._alike,
            alone=(self._alone_ns, self._alone_tokens),
            minute=self._minute,
            minutes=[*self._minutes],
            judged=self._judged,
        )

    def restore(
        self,
        saved: SavedTenants,
        rows: Mapping[str, tuple[SavedRows, Sequence[Block]]],
    ) -> None:
        """Restore a saved state after the requests."""
        for name, each in self.rows.items():
            each.restore(*rows[name])
        self._codes = {name: code for code, name in enumerate(saved.names)}
        for sums, kept in ((self._ended, saved.ended), (self._steps, saved.steps)):
            for code, counts in kept.items():
                sums[:, code + 1] = counts
        for by, of, ns in saved.charges:
            self._charges[by + 1, of + 1] = ns
        self._ranks = {(source, rank): each for source, rank, each in saved.ranks}
        named = {each.key: each for each in self._requests.live}
        for key in saved.queued:
            if (request := named.get(key)) is not None:
                self.queued(request)
        self._lately = saved.lately
        self._alike = saved.alike
        self._alone_ns, self._alone_tokens = saved.alone
        self._minute = saved.minute
        self._minutes.extend(saved.minutes)
        self._judged = saved.judged


def _by_tenant(columns: Ints) -> Ints:
    """Return sums of rows by their code, which is the second column, plus 1."""
    places, counts = columns[1] + 1, columns[2:]
    sums = np.zeros((len(counts), CODES), np.int64)
    for each, values in zip(sums, counts, strict=True):
        np.add.at(each, places, values)
    return sums


def _by_pair(columns: Ints) -> Ints:
    """Return nanoseconds by holder and by who waited, each code plus 1."""
    _, by, of, ns = columns
    sums = np.zeros(CODES * CODES, np.int64)
    np.add.at(sums, (by + 1) * CODES + of + 1, ns)
    return sums.reshape(CODES, CODES)


def _columns(sums: Ints) -> dict[int, list[int]]:
    """Return the sums of each tenant that has any, by its code."""
    places = np.flatnonzero(sums.any(axis=0)).tolist()
    return {place - 1: sums[:, place].tolist() for place in places}


def _served(code: int, minute: SavedMinute) -> float | None:
    wanted = minute.wanted.get(code)
    return minute.served.get(code, 0) / wanted if wanted else None


def _fair_minute(minute: SavedMinute) -> FairMinute:
    shares = [_served(code, minute) or 0.0 for code in minute.wanted]
    return FairMinute(since_ns=minute.since_ns, index=jain(shares))
