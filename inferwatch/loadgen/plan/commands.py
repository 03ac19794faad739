"""Commands to a running generator: a JSON object per line, after the plan's."""

import msgspec

from inferwatch.loadgen.plan.option import RATE, USERS, Bounds
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan

BURST = Bounds(1, 10_000)
"""Requests of a burst at once."""


class Change(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag=True,
):
    """A command that changes the rate or the number of users, or sends a burst."""

    rate_per_s: float | None = None
    """For an open loop; replaces a rate that varies over time."""
    concurrency: int | None = None
    """Users of a closed loop; surplus users stop after their current request."""
    burst: int | None = None
    """Requests of an open loop to send at once, beside its rate."""

    def refusal(self, plan: LoadPlan) -> str | None:
        """Why the change is impossible in a run of that plan; None if it is not."""
        closed = plan.arrivals is Arrivals.CLOSED
        faults = [
            (
                plan.arrivals is Arrivals.TRACE,
                "a trace keeps its own times: start it again with another speed",
            ),
            (
                (self.rate_per_s, self.concurrency, self.burst) == (None, None, None),
                "say a rate, a number of users or of requests to send at once",
            ),
            (
                closed and self.rate_per_s is not None,
                "a closed loop has no rate: change its users",
            ),
            (
                not closed and self.concurrency is not None,
                "an open loop has no users: change its rate",
            ),
            (
                closed and self.burst is not None,
                "a closed loop sends no bursts: give it more users",
            ),
            (
                not BURST.hold(self.burst),
                f"the requests of a burst must be {BURST}",
            ),
            (
                not RATE.hold(self.rate_per_s),
                f"the rate must be {RATE}: to send nothing, stop the run",
            ),
            (
                not USERS.hold(self.concurrency),
                f"users must be {USERS}: to send nothing, stop the run",
            ),
        ]
        return next((why for broken, why in faults if broken), None)

    def applied(self, plan: LoadPlan) -> LoadPlan:
        """The plan as followed after the change."""
        if self.concurrency is not None:
            return msgspec.structs.replace(plan, concurrency=self.concurrency)
        if self.rate_per_s is None:
            return plan
        return msgspec.structs.replace(plan, rates=None, rate_per_s=self.rate_per_s)


def read_command(line: bytes) -> Change:
    """Parse a command.

    Raises:
        msgspec.MsgspecError: it is malformed or unknown.
    """
    return msgspec.json.decode(line, type=Change)
