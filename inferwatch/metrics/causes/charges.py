"""Whom the wait of a queued request is charged to: whoever held what bound the queue.

As with causes of waits, nothing is kept per waiting request and step: a rank adds up
its time by holder, and the difference of two such accounts is what a wait is charged
to. Holders are tenants, by their code; time that nobody held is nobody's.
"""

from collections.abc import Mapping

import msgspec

NO_TENANT = -1
"""The code of requests whose tenant is not known yet."""


class WaitCharge(msgspec.Struct, array_like=True):
    """What a waiting request needs to know to be charged for when it starts."""

    before: dict[int, int]
    """The rank's account at the first step that passed it over."""
    first: dict[int, int]
    """From when it was queued to that step."""


def divided(total: int, weights: Mapping[int, int]) -> dict[int, int]:
    """Divide a total by weights, in whole numbers that add up to it.

    What rounding leaves goes to the largest remainders. Nothing without weights.

    >>> divided(10, {0: 1, 1: 1, 2: 1}), divided(5, {3: 0})
    ({0: 4, 1: 3, 2: 3}, {})
    """
    whole = sum(weights.values())
    if whole <= 0 or total <= 0:
        return {}
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


class ChargeAccount(msgspec.Struct, array_like=True):
    """The time of one rank in which requests waited, by holder; saved as it is."""

    spent_ns: dict[int, int] = msgspec.field(default_factory=dict)
    """Up to the start of the latest step."""
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
        for code, ns in self.between(self.start_ns, start_ns).items():
            self.spent_ns[code] = self.spent_ns.get(code, 0) + ns

    def between(self, from_ns: int, to_ns: int) -> dict[int, int]:
        """Return who held a span since the latest step began; the rest is nobody's."""
        if self.start_ns is None:
            return {}
        if not self.to_next:
            to_ns = min(to_ns, self.end_ns)
        return divided(to_ns - max(from_ns, self.start_ns), self.weights)

    def begun(self, added_ns: int, start_ns: int) -> WaitCharge:
        """Return the charge of a request that the step at ``start_ns`` passed over.

        The time before that step is added to the account already.
        """
        return WaitCharge(dict(self.spent_ns), self.between(added_ns, start_ns))

    def charged(
        self, charge: WaitCharge | None, added_ns: int, t_ns: int
    ) -> dict[int, int]:
        """Return by holder what a request waited from when it was queued to ``t_ns``.

        No more than that altogether; what is left of it is nobody's.
        """
        lately = self.between(added_ns, t_ns)
        if charge is not None:
            for code, ns in self.spent_ns.items():
                more_ns = ns - charge.before.get(code, 0) + charge.first.get(code, 0)
                lately[code] = lately.get(code, 0) + more_ns
            for code in charge.first.keys() - self.spent_ns.keys():
                lately[code] = lately.get(code, 0) + charge.first[code]
        held = {code: ns for code, ns in lately.items() if ns > 0}
        return fitted(held, t_ns - added_ns)


def fitted(held_ns: dict[int, int], most_ns: int) -> dict[int, int]:
    """Return parts that add up to no more than ``most_ns``."""
    if sum(held_ns.values()) <= most_ns:
        return held_ns
    return divided(most_ns, held_ns)


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
