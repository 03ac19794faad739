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
    CODES,
    MOST_TENANTS,
    NO_TENANT,
    ChargeAccount,
    Charged,
    Floats,
    SavedCharges,
    as_array,
    by_code,
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

MINUTE_NS = 60 * NS_PER_S
MOST_MINUTES = 180
"""Minutes whose fairness is kept."""
Key = tuple[str, int]
COUNTED = ("requests", "prompt", "output", "engine", "kv", "queue")
"""Columns of an ended request after its end and its tenant; 1 for the request, and
another one if the engine told of it."""
JUDGED_NS = 10 * NS_PER_S
"""How often a noisy tenant is looked for."""
MOST_ALIKE = 512
"""Kinds of steps that are divided at once."""
MOST_CHARGED = 256
"""Requests whose charges are divided at once."""
HELD = {BoundBy.SEQS, BoundBy.KV, BoundBy.TOKENS}
"""What requests hold until the next step."""
NOBODYS = {BoundBy.DEFERRED, BoundBy.OTHER}
"""What no request holds."""
LEAST_VICTIMS = 10
"""Fewest requests of others from which a tenant can be called noisy."""
PLACE_OF_NONE = CODES - 1
CODE_OF: Ints = np.array([*range(PLACE_OF_NONE), NO_TENANT])
"""The codes of tenants by their place in arrays."""
ALONE = [row.tobytes() for row in np.eye(CODES)]
"""The weights of a wait that one tenant is charged for, by its code."""
PARTS = ("requests", "charges", "steps")
"""The kinds of rows that are kept."""


class SavedShares(msgspec.Struct, array_like=True):
    """A StepShares as checkpoints keep it."""

    spent: dict[int, float]
    tokens: dict[int, int]
    took_ns: int
    alike: list[tuple[int, int, bytes]]
    alone: tuple[int, int]


class StepShares:
    """What steps since the latest tick took by tenant, rounded when it is added up."""

    def __init__(self) -> None:
        self._spent: Floats = np.zeros(CODES)
        self._tokens: Ints = np.zeros(CODES, np.int64)
        self._took_ns = 0
        self._alike: list[tuple[int, int, bytes]] = []
        """Later steps: how many had the same tokens, their time, and these tokens."""
        self.alone_ns = self.alone_tokens = 0
        """Of steps while one tenant at most was known."""

    def add(self, took_ns: int, tokens: Ints) -> None:
        """Add a step, with its tokens by tenant."""
        told, alike = tokens.tobytes(), self._alike
        if alike and alike[-1][2] == told:
            steps, before_ns, _ = alike[-1]
            alike[-1] = steps + 1, before_ns + took_ns, told
            return
        if len(alike) >= MOST_ALIKE:
            self._spent, self._tokens, self._took_ns = self._sums()
            alike.clear()
        alike.append((1, took_ns, told))

    def settled(self, alone: int) -> tuple[Ints, Ints]:
        """Return time and tokens by tenant, given who was alone."""
        spent, tokens, whole_ns = self._sums()
        (took_ns,) = divided(np.array([whole_ns]), spent[None])
        tokens = tokens.copy()
        took_ns[alone] += self.alone_ns
        tokens[alone] += self.alone_tokens
        return took_ns, tokens

    def saved(self) -> SavedShares:
        return SavedShares(
            spent=by_code(self._spent),
            tokens=by_code(self._tokens),
            took_ns=self._took_ns,
            alike=self._alike,
            alone=(self.alone_ns, self.alone_tokens),
        )

    def restore(self, saved: SavedShares) -> None:
        self._spent = as_array(saved.spent, float)
        self._tokens = as_array(saved.tokens, int)
        self._took_ns = saved.took_ns
        self._alike = saved.alike
        self.alone_ns, self.alone_tokens = saved.alone

    def _sums(self) -> tuple[Floats, Ints, int]:
        """Return what all took by tenant, their tokens, and the time of all."""
        if not self._alike:
            return self._spent, self._tokens, self._took_ns
        steps, took_ns, told = zip(*self._alike, strict=True)
        tokens = np.frombuffer(b"".join(told), np.int64).reshape(-1, CODES)
        whole = tokens.sum(axis=1)
        rates = np.array(took_ns) / np.maximum(whole, 1)
        spent = self._spent + (tokens * rates[:, None]).sum(axis=0)
        spent[NO_TENANT] += np.array(took_ns)[whole == 0].sum()
        tokens_of_all = self._tokens + (tokens * np.array(steps)[:, None]).sum(axis=0)
        return spent, tokens_of_all, self._took_ns + sum(took_ns)


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
    ranks: list[tuple[str, int, SavedCharges]]
    queued: list[str]
    """Keys of requests that no step passed over yet."""
    lately: SavedShares
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
        self._ended_rows = self.rows["requests"]
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
        self._minute: SavedMinute | None = None
        self._minutes: deque[SavedMinute] = deque(maxlen=MOST_MINUTES)
        self._charged: list[tuple[int, int, Charged]] = []
        """End and tenant of requests whose charges are not rows yet."""
        self._judged: tuple[int, NoisyTenant | None] | None = None
        """The latest time a noisy tenant was looked for, and who it was."""

    # Requests.

    def named(self, request: Request, event: RequestEvent) -> None:
        """Find the tenant of a request, once what names it is told."""
        if event.kind is EventKind.ADDED:
            if request.tenant != NO_TENANT and event.lora is event.header is None:
                return
            if request.arrived_ns is None:
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
            held_ns = t_ns - request.added_ns
            request.charged = Charged(held_ns, ALONE[request.tenant])
            return
        key = request.source, rank_of(request.ordinal)
        self._queued.get(key, {}).pop(request, None)
        account = self._ranks.get(key)
        if account is not None:
            request.charged = account.charged(request.charge, request.added_ns, t_ns)
        request.charge = None

    def logged(self, request: Request, end_ns: int) -> None:
        """Count an ended request, of which all is reported."""
        self._name(request)
        queue_ns, added_ns = request.queue_ns, request.added_ns
        if request.scheduled_ns is None:
            self.gave_up(request, end_ns)
            if queue_ns is None and request.left_ns is not None:
                queue_ns = request.left_ns - (added_ns or 0)
        self._ended_rows.add(
            (
                end_ns,
                request.tenant,
                1,
                request.prompt_tokens or 0,
                request.tokens or 0,
                added_ns is not None,
                request.kv_token_ns,
                queue_ns if queue_ns is not None and queue_ns > 0 else 0,
            )
        )
        charged = request.charged
        if charged is not None:
            self._charged.append((end_ns, request.tenant, charged))
            request.charged = None
            if len(self._charged) >= MOST_CHARGED:
                self._divide_charges()

    def _divide_charges(self) -> None:
        """Make rows of the charges of requests, one for each holder."""
        if not self._charged:
            return
        ends, tenants, charged = zip(*self._charged, strict=True)
        self._charged.clear()
        weights = np.frombuffer(b"".join(each.weights for each in charged))
        totals = np.array([each.held_ns for each in charged])
        parts = divided(totals, weights.reshape(-1, CODES))
        which, places = np.nonzero(parts)
        columns = [np.array(ends)[which], CODE_OF[places], np.array(tenants)[which]]
        self.rows["charges"].extend(np.array([*columns, parts[which, places]]))

    def _flush(self) -> None:
        """Count for the session what is not counted yet."""
        self._divide_charges()
        for each in self.rows.values():
            each.flush()

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
        lately = self._lately
        if len(self._codes) < 2:
            lately.alone_ns += step.duration_ns
            lately.alone_tokens += step.prefill_tokens + step.decode_tokens
            return
        tokens, bound = run.shares.counts.copy(), step.bound_by
        weights = tokens
        if bound is BoundBy.SEQS:
            weights = tokens.copy()
        elif bound is BoundBy.KV:
            weights = run.shares.held(run.steps)
        for request, scheduled in others:
            code = request.tenant
            if request.run is run:  # it has joined with this step
                tokens[code] += scheduled - 1
                continue
            tokens[code] += scheduled
            if bound is BoundBy.SEQS:
                weights[code] += 1
            elif bound is BoundBy.KV:
                weights[code] += request.kv_tokens
        lately.add(step.duration_ns, tokens)
        self._hold(step, weights)

    def _hold(self, step: Step, weights: Ints) -> None:
        key, bound = (step.source, step.rank), step.bound_by
        account = self._ranks.get(key)
        if account is None:
            account = self._ranks[key] = ChargeAccount()
        if account.waited:
            account.close(step.start_ns, step.index)
        if queued := self._queued.get(key):
            self._pass_over(account, queued, step.start_ns)
        span = step.start_ns, step.end_ns
        account.hold(span, step.index, waited=step.waiting > 0)
        if bound not in NOBODYS:
            account.held_by(weights, to_next=bound in HELD)

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
        took_ns, tokens = self._lately.settled(self._alone)
        rows = np.array([np.full(CODES, t_ns), CODE_OF, took_ns, tokens])
        self.rows["steps"].extend(rows[:, took_ns > 0])
        self._fair(t_ns, by_code(tokens))
        self._lately = StepShares()

    @property
    def _alone(self) -> int:
        """The only tenant, while there is no second one."""
        return 0 if self._codes else NO_TENANT

    def _fair(self, t_ns: int, tokens: Mapping[int, int]) -> None:
        """Add the tokens of the latest second to its minute."""
        since_ns = t_ns // MINUTE_NS * MINUTE_NS
        minute = self._minute
        if minute is not None and minute.since_ns != since_ns:
            self._end_minute(minute)
            minute = None
        if minute is None:
            minute = self._minute = SavedMinute(since_ns, {}, {})
        for code, count in tokens.items():
            minute.served[code] = minute.served.get(code, 0) + count

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
        self._flush()
        ended, charges, steps = self._ended, self._charges, self._steps
        if window.value is not None:
            ended, charges, steps = self._recent(now_ns - window.value)
        took_ns = steps[0] + self._lately.settled(self._alone)[0]
        seen = ended[0] + took_ns + charges.sum(axis=0) + charges.sum(axis=1)
        places = np.flatnonzero(seen).tolist()
        if not places:
            return None
        gpu_ns = int(took_ns.sum()) or None
        by_engine = gpu_ns is not None or bool(ended[3].any())
        sums = WindowSums(ended, charges, gpu_ns, by_engine)
        names = self._names()
        found = [
            self._tenant(place, names[place], sums, int(took_ns[place]))
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

    def _recent(self, since_ns: int) -> tuple[Ints, Ints, Ints]:
        """Return sums of what ended later, of its charges, and of later steps."""
        requests, charges, steps = (
            self.rows[name].later_than(since_ns) for name in PARTS
        )
        return _by_tenant(requests), _by_pair(charges), _by_tenant(steps)

    def _tenant(self, place: int, name: str, sums: WindowSums, gpu_ns: int) -> Tenant:
        """Return a tenant, by its place in arrays."""
        counts = sums.ended[:, place].tolist()
        requests, prompt, output, told, kv_ns, queue_ns = counts
        by, of = sums.charges[place], sums.charges[:, place]
        own_ns = int(by[place])
        caused_ns = int(by.sum()) - own_ns
        is_known = place != PLACE_OF_NONE
        if not is_known:  # nobody knows that it was another one
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
            by_others_ns=int(of[:NO_TENANT].sum()) - own_ns * is_known
            if known
            else None,
            by_itself_ns=own_ns if known else None,
            caused_ns=caused_ns if sums.by_engine else None,
            caused_share=caused_ns / theirs_ns if theirs_ns else None,
            gpu_ns=None if sums.gpu_ns is None else gpu_ns,
            cost_share=gpu_ns / sums.gpu_ns if sums.gpu_ns else None,
            served=tuple(_served(int(CODE_OF[place]), each) for each in self._minutes),
        )

    def _names(self) -> list[str]:
        """Return the names of tenants by their place in arrays."""
        names = [*map(told_name, self._codes)]
        others = [OTHERS] * (PLACE_OF_NONE - len(names))
        return [*names, *others, told_name(None)]

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
        self._divide_charges()
        since_ns = now_ns - MINUTE_NS
        caused = _by_pair(self.rows["charges"].later_than(since_ns))
        np.fill_diagonal(caused, 0)
        caused_ns = caused[:NO_TENANT].sum(axis=1)
        code = int(caused_ns.argmax())
        worst_ns = int(caused_ns[code])
        if not worst_ns:
            return None
        ended = _by_tenant(self.rows["requests"].later_than(since_ns))
        requests, prompt, _, _, _, queue_ns = ended.sum(axis=1).tolist()
        mine, my_prompt, _, _, _, my_queue_ns = ended[:, code].tolist()
        victims, theirs_ns = requests - mine, queue_ns - my_queue_ns
        if victims < LEAST_VICTIMS or theirs_ns <= 0:
            return None
        return NoisyTenant(
            name=self._names()[code],
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
        self._flush()
        return SavedTenants(
            names=[*self._codes],
            ended=_columns(self._ended),
            charges=[
                (by, of, ns)
                for by, charges in zip(CODE_OF.tolist(), self._charges, strict=True)
                for of, ns in by_code(charges).items()
            ],
            steps=_columns(self._steps),
            ranks=[(*key, account.saved()) for key, account in self._ranks.items()],
            queued=[r.key for every in self._queued.values() for r in every],
            lately=self._lately.saved(),
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
                sums[:, code] = counts
        for by, of, ns in saved.charges:
            self._charges[by, of] = ns
        self._ranks = {
            (source, rank): ChargeAccount.restored(each)
            for source, rank, each in saved.ranks
        }
        named = {each.key: each for each in self._requests.live}
        for key in saved.queued:
            if (request := named.get(key)) is not None:
                self.queued(request)
        self._lately.restore(saved.lately)
        self._minute = saved.minute
        self._minutes.extend(saved.minutes)
        self._judged = saved.judged


def _by_tenant(columns: Ints) -> Ints:
    """Return sums of rows by their code, which is the second column."""
    codes, counts = columns[1], columns[2:]
    sums = np.zeros((len(counts), CODES), np.int64)
    for each, values in zip(sums, counts, strict=True):
        np.add.at(each, codes, values)
    return sums


def _by_pair(columns: Ints) -> Ints:
    """Return nanoseconds by holder and by who waited."""
    _, by, of, ns = columns
    sums = np.zeros(CODES * CODES, np.int64)
    np.add.at(sums, by % CODES * CODES + of % CODES, ns)
    return sums.reshape(CODES, CODES)


def _columns(sums: Ints) -> dict[int, list[int]]:
    """Return the sums of each tenant that has any, by its code."""
    return {code: sums[:, code].tolist() for code in by_code(abs(sums).sum(axis=0))}


def _served(code: int, minute: SavedMinute) -> float | None:
    wanted = minute.wanted.get(code)
    return minute.served.get(code, 0) / wanted if wanted else None


def _fair_minute(minute: SavedMinute) -> FairMinute:
    shares = [_served(code, minute) or 0.0 for code in minute.wanted]
    return FairMinute(since_ns=minute.since_ns, index=jain(shares))
