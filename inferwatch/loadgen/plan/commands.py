"""What a run can be told while it goes on: a JSON object a line, after the plan's."""

import msgspec

from inferwatch.loadgen.plan.option import RATE, USERS
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan


class Change(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag=True,
):
    """A command to a running generator: another rate, or other users, from now on."""

    rate_per_s: float | None = None
    """Of an open loop; a rate by time gives way to it."""
    concurrency: int | None = None
    """Users of a closed loop; who is too many stops after the request he waits for."""

    def refusal(self, plan: LoadPlan) -> str | None:
        """Why a run of that plan cannot be changed so; None when it can."""
        closed = plan.arrivals is Arrivals.CLOSED
        faults = [
            (
                plan.arrivals is Arrivals.TRACE,
                "a trace keeps its own times: start it again with another speed",
            ),
            (
                self.rate_per_s is None and self.concurrency is None,
                "say a rate or a number of users",
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
        """The plan as it is followed from the change on."""
        if self.concurrency is not None:
            return msgspec.structs.replace(plan, concurrency=self.concurrency)
        return msgspec.structs.replace(plan, rates=None, rate_per_s=self.rate_per_s)


def read_command(line: bytes) -> Change:
    """The command that a line gives.

    Raises:
        msgspec.MsgspecError: there is none that we know.
    """
    return msgspec.json.decode(line, type=Change)
