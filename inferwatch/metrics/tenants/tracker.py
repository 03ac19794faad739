"""Adds up what tenants asked for, got, and made each other wait.

A step costs something by tenant, never by member; with one tenant alone, nothing but an
addition.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

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
    divided,
)
from inferwatch.metrics.requests.request import DecodeRun, Request
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.series.quantiles import Ints
from inferwatch.metrics.series.samples import Block, RecentRows, SavedRows
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.tenants.view import (
    NOT_KNOWN,
    OTHERS,
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
COUNTED = ("requests", "prompt", "output", "kv", "queue")
"""Columns of an ended request after its end and its tenant."""
HELD = {BoundBy.SEQS, BoundBy.KV, BoundBy.TOKENS}
"""What requests hold until the next step."""
NOBODYS = {BoundBy.DEFERRED, BoundBy.OTHER}
"""What no request holds."""
LEAST_VICTIMS = 10
"""Fewest requests of others from which a tenant can be called noisy."""
PARTS = ("requests", "charges", "steps")
"""The kinds of rows that are kept."""


class AlikeSteps(msgspec.Struct, array_like=True):
    """The latest steps, as far as their tokens by tenant were the same."""

    tokens: dict[int, int] = {}
    steps: int = 0
    took_ns: int = 0

    def divided_ns(self) -> dict[int, int]:
        """Return what they took by tenant, by the tokens of each."""
        if not self.took_ns:
            return {}
        return divided(self.took_ns, self.tokens) or {NO_TENANT: self.took_ns}


class SavedMinute(msgspec.Struct, array_like=True):
    """What tenants were served in a minute, and what they wanted."""

    since_ns: int
    served: dict[int, int]
    wanted: dict[int, int]


class SavedTenants(msgspec.Struct, array_like=True):
    """A TenantTracker as checkpoints keep it, without its rows."""

    names: list[str]
    ended: dict[int, list[int]]
    """Sums of ``COUNTED`` by tenant."""
    charges: list[tuple[int, int, int]]
    """Holder, who waited, and nanoseconds."""
    steps: dict[int, list[int]]
    """Time of steps and tokens by tenant."""
    ranks: list[tuple[str, int, ChargeAccount]]
    queued: list[str]
    """Keys of requests that no step passed over yet."""
    lately_ns: dict[int, int]
    lately_tokens: dict[int, int]
    alike: AlikeSteps
    alone: tuple[int, int]
    """Time and tokens."""
    minute: SavedMinute | None
    minutes: list[SavedMinute]


class TenantTracker:
    """Follows who holds what, and counts each request once, when it is reported."""

    def __init__(
        self, requests: RequestIndex, model_of: Callable[[str], str | None]
    ) -> None:
        """``model_of`` tells the model that a source serves."""
        self._requests = requests
        self._model_of = model_of
        self._codes: dict[str, int] = {}
        self.rows = {
            "requests": RecentRows(2 + len(COUNTED), self._count_ended),
            "charges": RecentRows(4, self._count_charges),
            "steps": RecentRows(4, self._count_steps),
        }
        self._ended: dict[int, Ints] = {}
        self._charges: dict[tuple[int, int], int] = {}
        self._steps: dict[int, Ints] = {}
        self._ranks: dict[Key, ChargeAccount] = {}
        self._queued: dict[Key, dict[Request, None]] = {}
        """Requests that no step passed over yet."""
        self._lately_ns: dict[int, int] = {}
        """Time of steps since the latest tick, by tenant, as is the next."""
        self._lately_tokens: dict[int, int] = {}
        self._alike = AlikeSteps()
        self._alone_ns = self._alone_tokens = 0
        """Since the latest tick, of steps while one tenant at most was known."""
        self._minute: SavedMinute | None = None
        self._minutes: deque[SavedMinute] = deque(maxlen=MOST_MINUTES)

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
        if request.ordinal is None or request.added_ns is None:
            return
        t_ns = request.scheduled_ns
        if len(self._codes) < 2:
            request.charged_ns = {request.tenant: (t_ns or 0) - request.added_ns}
            return
        key = request.source, rank_of(request.ordinal)
        self._queued.get(key, {}).pop(request, None)
        account = self._ranks.get(key)
        if account is not None and t_ns is not None:
            request.charged_ns = account.charged(request.charge, request.added_ns, t_ns)
        request.charge = None

    def logged(self, request: Request, end_ns: int) -> None:
        """Count an ended request, of which all is reported."""
        self._name(request)
        queue_ns = max(request.queue_ns or 0, 0)
        counts = (1, request.prompt_tokens or 0, request.tokens or 0)
        held = request.kv_token_ns, queue_ns
        self.rows["requests"].add((end_ns, request.tenant, *counts, *held))
        for holder, ns in (request.charged_ns or {}).items():
            self.rows["charges"].add((end_ns, holder, request.tenant, ns))
        if request.ordinal is not None and not request.scheduled_ns:
            key = request.source, rank_of(request.ordinal)
            self._queued.get(key, {}).pop(request, None)

    def _name(self, request: Request) -> None:
        name = request.header or request.lora or self._model_of(request.source)
        code = self._code(name or NOT_KNOWN)
        if code != request.tenant:
            request.leave_run()  # which counts its members by tenant
            request.tenant = code

    def _code(self, name: str) -> int:
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
        for code, ns in alike.divided_ns().items():
            self._lately_ns[code] = self._lately_ns.get(code, 0) + ns
        for code, count in alike.tokens.items():
            tokens = self._lately_tokens.get(code, 0) + count * alike.steps
            self._lately_tokens[code] = tokens
        alike.steps = alike.took_ns = 0

    def _settle(self) -> None:
        """Put down to tenants what steps took since the latest tick."""
        self._divide()
        if self._alone_ns:
            code = 0 if self._codes else NO_TENANT
            self._lately_ns[code] = self._lately_ns.get(code, 0) + self._alone_ns
            tokens = self._lately_tokens.get(code, 0) + self._alone_tokens
            self._lately_tokens[code] = tokens
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
        account.weights = {} if bound in NOBODYS else weights
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
        steps = self.rows["steps"]
        for code, ns in self._lately_ns.items():
            tokens = self._lately_tokens.get(code, 0)
            steps.add((t_ns, code, ns, tokens))
        self._fair(t_ns)
        self._lately_ns.clear()
        self._lately_tokens.clear()

    def _fair(self, t_ns: int) -> None:
        """Add the tokens of the latest second to its minute."""
        since_ns = t_ns // MINUTE_NS * MINUTE_NS
        minute = self._minute
        if minute is not None and minute.since_ns != since_ns:
            self._end_minute(minute)
            minute = None
        if minute is None:
            minute = self._minute = SavedMinute(since_ns, {}, {})
        for code, tokens in self._lately_tokens.items():
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
        _add_by(self._ended, columns)

    def _count_steps(self, columns: Ints) -> None:
        _add_by(self._steps, columns)

    def _count_charges(self, columns: Ints) -> None:
        for pair, ns in _by_pair(columns).items():
            self._charges[pair] = self._charges.get(pair, 0) + ns

    # Views.

    def shown(
        self, now_ns: int, window: Window, block_tokens: int | None
    ) -> Tenants | None:
        """Return the tenants of a window; None where no request ended in it."""
        for each in self.rows.values():
            each.flush()
        ended, charges, steps = self._ended, self._charges, self._steps
        if window.value is not None:
            ended, charges, steps = self._recent(now_ns - window.value)
        if not ended:
            return None
        steps = self._with_lately(steps)
        gpu_ns = sum(int(each[0]) for each in steps.values())
        queue_ns = sum(int(each[4]) for each in ended.values())
        queues = {code: int(each[4]) for code, each in ended.items()}
        found = [
            self._tenant(code, ended[code], charges, queues, (steps.get(code), gpu_ns))
            for code in sorted(ended)
        ]
        found.sort(key=lambda each: (-each.caused_ns, -each.gpu_ns, each.name))
        return Tenants(
            requests=sum(each.requests for each in found),
            queue_ns=queue_ns,
            gpu_ns=gpu_ns,
            block_tokens=block_tokens,
            tenants=tuple(found),
            fairness=tuple(map(_fair_minute, self._minutes)),
        )

    def _with_lately(self, steps: Mapping[int, Ints]) -> dict[int, Ints]:
        """Return the time of steps with that since the latest tick."""
        whole = dict(steps)
        alone = {0 if self._codes else NO_TENANT: self._alone_ns}
        for part in (self._lately_ns, self._alike.divided_ns(), alone):
            for code, ns in part.items():
                if ns:
                    lately = np.array([ns, 0], np.int64)
                    whole[code] = lately + whole.get(code, 0)
        return whole

    def _recent(
        self, since_ns: int
    ) -> tuple[dict[int, Ints], dict[tuple[int, int], int], dict[int, Ints]]:
        ended: dict[int, Ints] = {}
        steps: dict[int, Ints] = {}
        _add_by(ended, self.rows["requests"].later_than(since_ns))
        _add_by(steps, self.rows["steps"].later_than(since_ns))
        return ended, _by_pair(self.rows["charges"].later_than(since_ns)), steps

    def _tenant(
        self,
        code: int,
        counts: Ints,
        charges: Mapping[tuple[int, int], int],
        queues: Mapping[int, int],
        steps: tuple[Ints | None, int],
    ) -> Tenant:
        requests, prompt, output, kv_ns, queue_ns = counts.tolist()
        mine, whole_ns = steps
        gpu_ns = 0 if mine is None else int(mine[0])
        pairs = charges.items()
        caused_ns = sum(ns for (by, of), ns in pairs if by == code != of)
        theirs_ns = sum(queues.values()) - queues[code]
        return Tenant(
            name=self.name(code),
            requests=requests,
            prompt_tokens=prompt,
            output_tokens=output,
            kv_token_ns=kv_ns,
            queue_ns=queue_ns,
            by_others_ns=sum(
                ns for (by, of), ns in pairs if of == code and by not in {of, NO_TENANT}
            ),
            by_itself_ns=charges.get((code, code), 0),
            caused_ns=caused_ns,
            caused_share=caused_ns / theirs_ns if theirs_ns else None,
            gpu_ns=gpu_ns,
            cost_share=gpu_ns / whole_ns if whole_ns else None,
            served=tuple(_served(code, each) for each in self._minutes),
        )

    def name(self, code: int) -> str:
        """Return the name of a tenant."""
        if code == NO_TENANT:
            return NOT_KNOWN
        names = [*self._codes]
        return names[code] if code < len(names) else OTHERS

    def noisy(self, now_ns: int) -> NoisyTenant | None:
        """Return who made others queue most in the last minute; None if nobody did."""
        if len(self._codes) < 2:
            return None
        ended, charges, _ = self._recent(now_ns - MINUTE_NS)
        caused: dict[int, int] = {}
        for (by, of), ns in charges.items():
            if by not in {of, NO_TENANT}:
                caused[by] = caused.get(by, 0) + ns
        worst = max(caused, key=lambda code: caused[code], default=None)
        if worst is None or worst not in ended:
            return None
        sums: Ints = np.sum([*ended.values()], axis=0)
        mine = ended[worst]
        victims, theirs_ns = int(sums[0] - mine[0]), int(sums[4] - mine[4])
        if victims < LEAST_VICTIMS or theirs_ns <= 0:
            return None
        return NoisyTenant(
            name=self.name(worst),
            share=caused[worst] / theirs_ns,
            caused_s=caused[worst] / NS_PER_S,
            victims=victims,
            requests_share=int(mine[0]) / int(sums[0]),
            token_share=int(mine[1]) / max(int(sums[1]), 1),
            prompt_tokens=round(int(mine[1]) / int(mine[0])),
        )

    # Checkpoints.

    def saved(self) -> SavedTenants:
        """Return the state for a checkpoint, without rows."""
        for each in self.rows.values():
            each.flush()
        return SavedTenants(
            names=[*self._codes],
            ended={code: sums.tolist() for code, sums in self._ended.items()},
            charges=[(by, of, ns) for (by, of), ns in self._charges.items()],
            steps={code: sums.tolist() for code, sums in self._steps.items()},
            ranks=[(*key, account) for key, account in self._ranks.items()],
            queued=[r.key for every in self._queued.values() for r in every],
            lately_ns=self._lately_ns,
            lately_tokens=self._lately_tokens,
            alike=self._alike,
            alone=(self._alone_ns, self._alone_tokens),
            minute=self._minute,
            minutes=[*self._minutes],
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
        self._ended = _arrays(saved.ended)
        self._steps = _arrays(saved.steps)
        self._charges = {(by, of): ns for by, of, ns in saved.charges}
        self._ranks = {(source, rank): each for source, rank, each in saved.ranks}
        named = {each.key: each for each in self._requests.live}
        for key in saved.queued:
            if (request := named.get(key)) is not None:
                self.queued(request)
        self._lately_ns = saved.lately_ns
        self._lately_tokens = saved.lately_tokens
        self._alike = saved.alike
        self._alone_ns, self._alone_tokens = saved.alone
        self._minute = saved.minute
        self._minutes.extend(saved.minutes)


def _add_by(sums: dict[int, Ints], columns: Ints) -> None:
    """Add rows to sums by their code, which is the second column."""
    codes = columns[1]
    for code in np.unique(codes).tolist():
        fresh = columns[2:, codes == code].sum(axis=1)
        known = sums.get(code)
        sums[code] = fresh if known is None else known + fresh


def _by_pair(columns: Ints) -> dict[tuple[int, int], int]:
    """Return nanoseconds by holder and by who waited."""
    found: dict[tuple[int, int], int] = {}
    for by, of, ns in columns[1:].T.tolist():
        found[by, of] = found.get((by, of), 0) + ns
    return found


def _arrays(sums: Mapping[int, Sequence[int]]) -> dict[int, Ints]:
    return {code: np.array(each, np.int64) for code, each in sums.items()}


def _served(code: int, minute: SavedMinute) -> float | None:
    wanted = minute.wanted.get(code)
    return minute.served.get(code, 0) / wanted if wanted else None


def _fair_minute(minute: SavedMinute) -> FairMinute:
    shares = [_served(code, minute) or 0.0 for code in minute.wanted]
    return FairMinute(since_ns=minute.since_ns, index=jain(shares))
