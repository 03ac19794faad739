"""Whom the wait of a queued request is charged to: whoever held what bound the queue.

As with causes of waits, nothing is kept per waiting request and step: a rank adds up
its time by holder, and the difference of two such accounts is what a wait is charged
to. Holders are tenants, by their code; time that nobody held is nobody's.
"""

from collections.abc import Mapping

import msgspec
import numpy as np

NO_TENANT = -1
"""The code of requests whose tenant is not known yet."""
MANY = 12
"""Weights from which numpy divides faster than a loop."""
MOST_INT = 2**62


class WaitCharge(msgspec.Struct, array_like=True):
    """What a waiting request needs to know to be charged for when it starts."""

    since: dict[int, float]
    """The rank's account at the first step that passed it over, less what each holder
    held from when it was queued to that step."""
    since_ns: int
    """The same of ``held_ns``."""


def divided(total: int, weights: Mapping[int, int]) -> dict[int, int]:
    """Divide a total by weights, in whole numbers that add up to it.

    What rounding leaves goes to the largest remainders. Nothing without weights.

    >>> divided(10, {0: 1, 1: 1, 2: 1}), divided(5, {3: 0})
    ({0: 4, 1: 3, 2: 3}, {})
    """
    whole = sum(weights.values())
    if whole <= 0 or total <= 0:
        return {}
    if len(weights) > MANY and total * max(weights.values()) < MOST_INT:
        return _many_divided(total, weights, whole)
    parts, left, rests = {}, total, list[tuple[int, int]]()
    for code, weight in weights.items():
        parts[code], rest = divmod(total * weight, whole)
        left -= parts[code]
        rests.append((-rest, code))
    if left:
        rests.sort()
        for _, code in rests[:left]:
            parts[code] += 1
    return parts


def _many_divided(
    total: int, weights: Mapping[int, int], whole: int
) -> dict[int, int]:
    """Divide the same with numpy."""
    codes = np.fromiter(weights, np.int64, len(weights))
    products = np.fromiter(weights.values(), np.int64, len(weights)) * total
    parts, rests = np.divmod(products, whole)
    left = total - int(parts.sum())
    if left:
        parts[np.lexsort((codes, -rests))[:left]] += 1
    return dict(zip(weights, parts.tolist(), strict=True))


class ChargeAccount(msgspec.Struct, array_like=True):
    """The time of one rank in which requests waited, by holder; saved as it is.

    Shares of a step are not rounded here, as a step has many holders and is added once
    for all who wait: each request's charge is, and adds up in whole nanoseconds.
    """

    spent: dict[int, float] = msgspec.field(default_factory=dict)
    """Nanoseconds up to the start of the latest step."""
    held_ns: int = 0
    """All of them together."""
    start_ns: int | None = None
    """Start of the latest step, as are the fields below."""
    end_ns: int = 0
    index: int = 0
    waited: bool = False
    """Whether it left requests waiting."""
    weights: dict[int, int] = msgspec.field(default_factory=dict)
    """Who held what bound it, and how much of it."""
    to_next: bool = True
    """Whether they hold it until the next step begins, not only while the step runs."""

    def close(self, start_ns: int, index: int) -> None:
        """Add the time of the latest step up to the start of the next one."""
        if self.start_ns is None or index != self.index + 1:
            return
        held_ns = self._held(self.start_ns, start_ns)
        if held_ns:
            add_shares(self.spent, held_ns, self.weights)
            self.held_ns += held_ns

    def begun(self, added_ns: int, start_ns: int) -> WaitCharge:
        """Return the charge of a request that the step at ``start_ns`` passed over.

        The time before that step is added to the account already.
        """
        since, first_ns = self.spent.copy(), self._held(added_ns, start_ns)
        if first_ns:
            add_shares(since, -first_ns, self.weights)
        return WaitCharge(since, self.held_ns - first_ns)

    def charged(
        self, charge: WaitCharge | None, added_ns: int, t_ns: int
    ) -> dict[int, int]:
        """Return by holder what a request waited from when it was queued to ``t_ns``.

        No more than that altogether; what is left of it is nobody's.
        """
        lately_ns = whole_ns = self._held(added_ns, t_ns)
        spent: dict[int, float] = {}
        if charge is not None:
            since = charge.since
            spent = {code: ns - since.get(code, 0.0) for code, ns in self.spent.items()}
            for code in since.keys() - spent.keys():
                spent[code] = -since[code]
            whole_ns += self.held_ns - charge.since_ns
        if lately_ns:
            add_shares(spent, lately_ns, self.weights)
        held = {code: share for code, ns in spent.items() if (share := round(ns)) > 0}
        return divided(min(whole_ns, t_ns - added_ns), held)

    def _held(self, from_ns: int, to_ns: int) -> int:
        """Return how much of a span since the latest step began somebody held."""
        if self.start_ns is None or not self.weights:
            return 0
        if not self.to_next:
            to_ns = min(to_ns, self.end_ns)
        return max(0, to_ns - max(from_ns, self.start_ns))


def add_shares(spent: dict[int, float], ns: int, weights: Mapping[int, int]) -> None:
    """Add a span to who spent it, by weights whose sum is not 0."""
    rate = ns / sum(weights.values())
    for code, weight in weights.items():
        spent[code] = spent.get(code, 0.0) + weight * rate


class RunShares:
    """The requests of a decode run by tenant: how many, and what they hold.

    Nothing changes with a step: each holds one token more, as do all in the run.
    """

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self._held: dict[int, int] = {}
        """Tokens in the KV cache, less the steps of the run for each request."""

    def join(self, tenant: int, base: int) -> None:
        """Add a request; ``base``: what it holds, less the steps of the run so far."""
        self.counts[tenant] = self.counts.get(tenant, 0) + 1
        self._held[tenant] = self._held.get(tenant, 0) + base

    def leave(self, tenant: int, base: int) -> None:
        """Remove a request, with what it joined with."""
        self.counts[tenant] -= 1
        self._held[tenant] -= base
        if not self.counts[tenant]:
            del self.counts[tenant], self._held[tenant]

    def held(self, steps: int) -> dict[int, int]:
        """Return the tokens held by tenant after so many steps of the run."""
        counts = self.counts
        return {code: held + counts[code] * steps for code, held in self._held.items()}
