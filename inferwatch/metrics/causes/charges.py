"""Whom the wait of a queued request is charged to: whoever held what bound the queue.

As with causes of waits, nothing is kept per waiting request and step: a rank adds up
its time by holder, and the difference of two such accounts is what a wait is charged
to. Holders are tenants, by their code; time that nobody held is nobody's. An array has
a place for each code, so a step costs the same however many tenants there are.
"""

from collections.abc import Mapping
from typing import Any, Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Number = TypeVar("Number", int, float)
NO_TENANT = -1
"""The code of requests whose tenant is not known yet: the last place of an array."""
MOST_TENANTS = 64
"""Largest number of tenants that are told apart."""
CODES = MOST_TENANTS + 2
"""Length of an array by code: these, all others, and ``NO_TENANT``."""


class WaitCharge(msgspec.Struct, array_like=True):
    """What a waiting request needs to know to be charged for when it starts."""

    since: bytes
    """Floats: the rank's account at the first step that passed it over, less what each
    held from when it was queued to that step."""
    since_ns: int
    """The same of ``held_ns``."""


class Charged(msgspec.Struct, array_like=True):
    """A wait that is over: how much of it was held, and by whom."""

    held_ns: int
    weights: bytes
    """Floats by code, of which only the proportions count."""


class SavedCharges(msgspec.Struct, array_like=True):
    """A ChargeAccount as checkpoints keep it."""

    spent: dict[int, float]
    held_ns: int
    start_ns: int | None
    end_ns: int
    index: int
    waited: bool
    weights: dict[int, int]
    to_next: bool


def divided(totals: Ints, weights: Floats) -> Ints:
    """Divide each total by its row of weights, in whole numbers that add up to it.

    What rounding leaves goes to the largest remainders. Zeros without weights.

    >>> divided(np.array([10, 5]), np.array([[1.0, 1.0, 1.0], [0.0] * 3])).tolist()
    [[4, 3, 3], [0, 0, 0]]
    """
    weights = np.maximum(weights, 0.0)
    whole = weights.sum(axis=1)
    totals = np.where(whole > 0, np.maximum(totals, 0), 0)
    shares = weights * (totals / np.where(whole > 0, whole, 1.0))[:, None]
    parts: Ints = shares.astype(np.int64)
    left = totals - parts.sum(axis=1)
    order = np.argsort(parts - shares, axis=1, kind="stable")
    places = np.arange(weights.shape[1])
    np.put_along_axis(
        parts, order, np.take_along_axis(parts, order, 1) + (places < left[:, None]), 1
    )
    for row in np.flatnonzero(left < 0):  # shares that were rounded up to a whole one
        parts[row, parts[row].argmax()] += left[row]
    return parts


def as_array(values: Mapping[int, Number], kind: type[Number]) -> Any:  # noqa: ANN401
    """Return values by code as an array."""
    found = np.zeros(CODES, np.int64 if kind is int else np.float64)
    for code, value in values.items():
        found[code] = value
    return found


def by_code(values: npt.NDArray[Any]) -> dict[int, Any]:
    """Return the values of an array that are not 0 by their code."""
    places = np.flatnonzero(values)
    codes = (places - CODES * (places == CODES - 1)).tolist()
    return dict(zip(codes, values[places].tolist(), strict=True))


class ChargeAccount:
    """The time of one rank in which requests waited, by holder.

    Shares of a step are not rounded here: each request's charge is, and adds up.
    """

    def __init__(self) -> None:
        self._spent: Floats = np.zeros(CODES)
        """Nanoseconds up to the start of the latest step."""
        self._held_ns = 0
        """All of them together."""
        self._start_ns: int | None = None
        """Start of the latest step, as are the fields below."""
        self._end_ns = self._index = 0
        self.waited = False
        """Whether it left requests waiting."""
        self._weights: Ints = np.zeros(CODES, np.int64)
        """Who held what bound it, and how much of it."""
        self._whole: int | None = 0
        """Their sum; None until it is needed."""
        self._to_next = True
        """Whether they hold it until the next step begins, not only while it runs."""

    def hold(self, span: tuple[int, int], index: int, *, waited: bool) -> None:
        """Begin the time of a step, before who holds what is known."""
        self._start_ns, self._end_ns = span
        self._index, self.waited = index, waited
        self._whole = 0

    def held_by(self, weights: Ints, *, to_next: bool) -> None:
        """Take over who holds what bound the latest step."""
        self._weights, self._whole = weights, None
        self._to_next = to_next

    def close(self, start_ns: int, index: int) -> None:
        """Add the time of the latest step up to the start of the next one."""
        if self._start_ns is None or index != self._index + 1:
            return
        held_ns = self._held(self._start_ns, start_ns)
        if held_ns:
            self._spent += self._weights * (held_ns / self.whole)
            self._held_ns += held_ns

    def begun(self, added_ns: int, start_ns: int) -> WaitCharge:
        """Return the charge of a request that the step at ``start_ns`` passed over.

        The time before that step is added to the account already.
        """
        since, first_ns = self._spent, self._held(added_ns, start_ns)
        if first_ns:
            since = since - self._weights * (first_ns / self.whole)
        return WaitCharge(since.tobytes(), self._held_ns - first_ns)

    def charged(self, charge: WaitCharge | None, added_ns: int, t_ns: int) -> Charged:
        """Return what a request waited from when it was queued to ``t_ns``.

        No more than that altogether; what is left of it is nobody's.
        """
        held_ns = lately_ns = self._held(added_ns, t_ns)
        if charge is None:
            return Charged(lately_ns, self._weights.astype(np.float64).tobytes())
        spent = self._spent - np.frombuffer(charge.since)
        held_ns += self._held_ns - charge.since_ns
        if lately_ns:
            spent += self._weights * (lately_ns / self.whole)
        return Charged(min(held_ns, t_ns - added_ns), spent.tobytes())

    @property
    def whole(self) -> int:
        """The sum of what is held."""
        if self._whole is None:
            self._whole = int(self._weights.sum())
        return self._whole

    def saved(self) -> SavedCharges:
        return SavedCharges(
            spent=by_code(self._spent),
            held_ns=self._held_ns,
            start_ns=self._start_ns,
            end_ns=self._end_ns,
            index=self._index,
            waited=self.waited,
            weights=by_code(self._weights),
            to_next=self._to_next,
        )

    @classmethod
    def restored(cls, saved: SavedCharges) -> Self:
        account = cls()
        account._spent = as_array(saved.spent, float)
        account._held_ns = saved.held_ns
        account._start_ns, account._end_ns = saved.start_ns, saved.end_ns
        account._index, account.waited = saved.index, saved.waited
        account.held_by(as_array(saved.weights, int), to_next=saved.to_next)
        return account

    def _held(self, from_ns: int, to_ns: int) -> int:
        """Return how much of a span since the latest step began somebody held."""
        if self._start_ns is None or not self.whole:
            return 0
        if not self._to_next:
            to_ns = min(to_ns, self._end_ns)
        return max(0, to_ns - max(from_ns, self._start_ns))


class RunShares:
    """The requests of a decode run by tenant: how many, and what they hold.

    Nothing changes with a step: each holds one token more, as do all in the run.
    """

    def __init__(self) -> None:
        self._counts = [0] * CODES
        self._held = [0] * CODES
        """Tokens in the KV cache, less the steps of the run for each request."""
        self._arrays: tuple[Ints, Ints] | None = None
        """Both, until a request joins or leaves: to count in lists costs less."""

    def join(self, tenant: int, base: int) -> None:
        """Add a request; ``base``: what it holds, less the steps of the run so far."""
        self._counts[tenant] += 1
        self._held[tenant] += base
        self._arrays = None

    def leave(self, tenant: int, base: int) -> None:
        """Remove a request, with what it joined with."""
        self._counts[tenant] -= 1
        self._held[tenant] -= base
        self._arrays = None

    @property
    def counts(self) -> Ints:
        """The number of requests by tenant; not to be changed."""
        return self._both[0]

    def held(self, steps: int) -> Ints:
        """Return the tokens held by tenant after so many steps of the run."""
        counts, held = self._both
        return held + counts * steps

    @property
    def _both(self) -> tuple[Ints, Ints]:
        if self._arrays is None:
            self._arrays = np.array(self._counts), np.array(self._held)
        return self._arrays
