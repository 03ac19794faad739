"""How far readings are behind: those of the past, and those we read late."""

import msgspec

from collectors.contract.clock import NS_PER_S

STALL_LEAST_NS = 2 * NS_PER_S
"""Shortest time without a step that can be a stall."""
LATE_NS = STALL_LEAST_NS
"""Delay from which a reading counts as late, as it would look like a stall."""
PATIENCE_NS = 10 * NS_PER_S
"""Time without readings after which catching up ends."""
TICK_NS = NS_PER_S
"""Time from one tick to the next, if we are not late."""


class CatchUp(msgspec.Struct, array_like=True):
    """Compares the times of readings with ticks; saved as it is.

    A probe connected late sends readings of the past first: half an hour of them comes
    as fast as it can be read, and a working engine would seem stalled meanwhile. The
    same is so for a moment when our own process was kept from running.
    """

    tick_ns: int | None = None
    """The latest tick."""
    late_ns: int | None = None
    """The tick after which the last late reading came."""
    heard_now: bool = True
    """Whether a reading in time has come since then."""
    goes_on: bool = False
    """Whether readings of the past are still coming."""
    late_by_ns: int = 0
    """How late we were lately, until a reading of an engine comes in time.

    A quarter is made up for with each tick, as one that is silent reports nothing.
    """

    def take(self, t_ns: int, *, of_core: bool = True) -> None:
        """Record the time of a reading of a kind that is reported at once when live."""
        if self.tick_ns is None:
            return
        age_ns = self.tick_ns - t_ns
        late = age_ns > LATE_NS + 2 * self.late_by_ns
        self.heard_now = not late
        if late:
            self.goes_on, self.late_ns = True, self.tick_ns
        elif of_core and age_ns <= TICK_NS:
            self.late_by_ns = 0

    def tick(self, now_ns: int) -> None:
        """Stop catching up after a second with readings, none of which was late."""
        self.late_by_ns = 3 * self.late_by_ns // 4 + self.overdue_ns(now_ns)
        before_ns, self.tick_ns = self.tick_ns, now_ns
        if before_ns is None or self.late_ns is None:
            return
        waits = not self.heard_now and now_ns - self.late_ns < PATIENCE_NS
        self.goes_on = self.late_ns >= before_ns or waits

    def overdue_ns(self, now_ns: int) -> int:
        """Return how late a tick is that comes now."""
        return 0 if self.tick_ns is None else max(now_ns - self.tick_ns - TICK_NS, 0)

    def behind_ns(self, now_ns: int) -> int:
        """Return how late we are, or were and have not made up for."""
        return self.late_by_ns + self.overdue_ns(now_ns)
