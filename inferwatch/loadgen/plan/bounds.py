"""How far each number of a plan may go: beyond, it is a slip or ends in grief.

What is no number at all (``nan``, ``inf``) is within no bounds.
"""

from collections.abc import Iterator
from typing import NamedTuple

from inferwatch.loadgen.plan.fields import PlanFields

MOST_S = 1e8
"""Three years."""
MOST_PER_S = 1e6
MOST_CONNECTIONS = 65_535
"""There are no more ports to one server."""
MOST_REQUESTS = 10_000_000
"""Their times are drawn beforehand; for more, a plan has a duration."""


class Bounds(NamedTuple):
    """Of a number."""

    low: float
    high: float
    above: bool = False
    """More than ``low``."""

    def hold(self, value: float | None) -> bool:
        """What is not given breaks none."""
        if value is None:
            return True
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def __str__(self) -> str:
        """As people say it."""
        if self.above:
            return f"above {self.low:g}, at most {self.high:,.0f}"
        return f"from {self.low:g} to {self.high:,.0f}"


ABOVE_0_S = Bounds(0, MOST_S, above=True)
FROM_0_S = Bounds(0, MOST_S)
USERS = Bounds(1, MOST_CONNECTIONS)
RATE = Bounds(0, MOST_PER_S, above=True)
BOUNDS = {
    "seed": Bounds(0, 1 << 62),
    "rate_per_s": RATE,
    "rate_fraction": Bounds(0, 100, above=True),
    "burstiness": Bounds(0, 1e6, above=True),
    "concurrency": USERS,
    "warmup_streams": USERS,
    "max_in_flight": Bounds(1, 1 << 30),
    "think_s": FROM_0_S,
    "speed": Bounds(0.1, 10),
    "warmup_s": FROM_0_S,
    "duration_s": ABOVE_0_S,
    "drain_s": FROM_0_S,
    "request_timeout_s": ABOVE_0_S,
    "requests": Bounds(1, MOST_REQUESTS),
    "burst_every_s": Bounds(0.01, MOST_S),
    "burst_tokens": Bounds(0, 1 << 40),
    "temperature": Bounds(0, 100),
}
"""By field."""


def beyond(plan: PlanFields) -> Iterator[str]:
    """Each number of the plan that goes too far, fit to show."""
    for name, bounds in BOUNDS.items():
        if not bounds.hold(getattr(plan, name)):
            yield f"{name} must be {bounds}"
    for each in plan.classes:
        if not Bounds(0, 1e9, above=True).hold(each.share):
            yield "the share of a class must be above 0"
    shared = plan.shared_prefixes
    if not (0 <= shared.groups <= MOST_CONNECTIONS and shared.tokens >= 0):
        yield f"shared_prefixes has from 0 to {MOST_CONNECTIONS:,} groups of tokens"
