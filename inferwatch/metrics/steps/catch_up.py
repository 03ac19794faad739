"""Whether what is told is still the past: a probe that is heard late tells that first.

Its memory of half an hour comes as fast as it can be read. Meanwhile the latest step
that is known lies minutes back, and an engine that works would seem to stand still.
"""

import msgspec

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.steps.health import STALL_LEAST_NS, Health, Verdict

LATE_NS = STALL_LEAST_NS
"""What comes later than that after it happened would look like a stall."""
PATIENCE_NS = 10 * NS_PER_S
"""When nothing more came for so long, nothing more of the past is awaited."""

CATCHING_UP = Verdict(
    health=Health.STARTING, sentence="reading what the probe remembers of the past"
)


class CatchUp(msgspec.Struct, array_like=True):
    """Compares the moments of readings with the ticks between which they come.

    All of it is saved as it is.
    """

    tick_ns: int | None = None
    """The latest tick."""
    late_ns: int | None = None
    """The tick after which a late reading came last."""
    heard_now: bool = True
    """One that was not late has come since then."""
    goes_on: bool = False
    """The present is not reached."""

    def take(self, t_ns: int) -> None:
        """Something came that happened then, and is told at once while it is live."""
        if self.tick_ns is None:
            return
        late = self.tick_ns - t_ns > LATE_NS
        self.heard_now = not late
        if late:
            self.goes_on, self.late_ns = True, self.tick_ns

    def tick(self, now_ns: int) -> None:
        """The past is through once a second brought something, and nothing late."""
        before_ns, self.tick_ns = self.tick_ns, now_ns
        if before_ns is None or self.late_ns is None:
            return
        waits = not self.heard_now and now_ns - self.late_ns < PATIENCE_NS
        self.goes_on = self.late_ns >= before_ns or waits
