"""Clocks: monotonic for intervals, the wall once per session, session time for all.

A clock domain is a host boot. Within one, monotonic times of all processes subtract
directly on Linux, so the probe's stamps and ours need no synchronising.
"""

import time
from bisect import bisect_right
from collections import deque
from email.utils import parsedate_to_datetime
from math import inf
from pathlib import Path

import msgspec

from collectors.contract.readings import AnyReading, ClockAnchor

NS_PER_S = 1_000_000_000
PARTED_NS = NS_PER_S // 4
"""Wall times are shown to the second."""


def monotonic_ns() -> int:
    """Now, in nanoseconds of this boot."""
    return time.monotonic_ns()


def boot_id() -> str:
    """Names this boot of this host: equal ids mean comparable monotonic times."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return "unknown"


def anchor() -> ClockAnchor:
    """Read wall and monotonic clock together; the tightest of five tries."""
    tries = []
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        tries.append((after - before, before, wall))
    width, before, wall = min(tries)
    return ClockAnchor(
        t_ns=before + width // 2,
        wall_ns=wall,
        uncertainty_ns=width // 2 + 1,
        boot_id=boot_id(),
    )


def wall_offset_ns() -> int:
    """Unix time minus monotonic time, now: good to a microsecond, and cheap."""
    return time.time_ns() - time.monotonic_ns()


class Anchors:
    """When wall and monotonic clock were read together: again whenever they part.

    They do when the host was suspended, which the monotonic clock sleeps through, and
    when the wall clock is set.
    """

    def __init__(self) -> None:
        self.first = anchor()
        self._taken = [self.first]

    def parted(self) -> ClockAnchor | None:
        """A new one, if the last one would tell a wrong time by now."""
        last = self._taken[-1]
        known_ns = last.wall_ns - last.t_ns
        if abs(wall_offset_ns() - known_ns) < PARTED_NS:
            return None
        fresh = anchor()
        if abs(fresh.wall_ns - fresh.t_ns - known_ns) < PARTED_NS:
            return None  # we were held up between two readings
        self._taken.append(fresh)
        return fresh

    def wall_ns(self, t_ns: int) -> int:
        """Unix time of a monotonic moment, by the last anchor before it."""
        at = bisect_right(self._taken, t_ns, key=lambda each: each.t_ns)
        then = self._taken[max(at - 1, 0)]
        return then.wall_ns + t_ns - then.t_ns


class ClockRelation:
    """How another host's monotonic clock stands to ours, between bounds that hold.

    A clock that was read after we asked and before we had the answer lies between the
    two. Within these bounds the hosts' wall clocks tell, and outside they are wrong.
    Once it was used the relation stays: times that were told do not move.
    """

    def __init__(self) -> None:
        self._boot_id = ""
        self._least: int | None = None
        self._most = 0
        """Ours minus theirs."""
        self._by_wall = 0
        self._used: int | None = None

    def answered(self, theirs: ClockAnchor, asked_ns: int, heard_ns: int) -> None:
        """The other host read its clocks in an exchange of ours."""
        if theirs.boot_id != self._boot_id:  # its monotonic clock began anew
            self._boot_id = theirs.boot_id
            self._least = self._used = None
        least, most = asked_ns - theirs.t_ns, heard_ns - theirs.t_ns
        self._by_wall = theirs.wall_ns - wall_offset_ns() - theirs.t_ns
        if self._least is None:
            self._least, self._most = least, most
        else:
            self._least, self._most = max(self._least, least), min(self._most, most)

    @property
    def offset_ns(self) -> int:
        """Ours minus theirs; 0 between processes of one host."""
        if self._used is not None:
            return self._used
        if self._least is None:
            return 0
        return min(max(self._by_wall, self._least), self._most)

    @property
    def bound_ns(self) -> int:
        """The offset is at most so far off."""
        if self._least is None:
            return 0
        return max(abs(self.offset_ns - end) for end in (self._least, self._most))

    def theirs(self, clock: "SessionClock") -> "SessionClock":
        """Session time for what the other host stamped."""
        if self._least is None:
            return clock
        self._used = self.offset_ns
        return SessionClock(clock.start_ns - self._used)


DATE_NS = 2 * NS_PER_S
"""A date is cut to a second, and some servers write it but once a second."""


class DistantClock:
    """How far another host's wall clock is from ours, by the dates of its answers.

    Each was written between our question and its answer; together they leave less room.
    """

    def __init__(self) -> None:
        self._bounds = deque[tuple[int, int]](maxlen=60)

    def hear(self, date: str | None, asked_ns: int, answered_ns: int) -> None:
        """Take the date of an answer; our times are monotonic."""
        try:
            told_ns = int(parsedate_to_datetime(date or "").timestamp()) * NS_PER_S
        except (ValueError, OverflowError):
            return
        offset_ns = told_ns - wall_offset_ns()
        bounds = offset_ns - answered_ns, offset_ns + DATE_NS - asked_ns
        if bounds[0] > self._high or bounds[1] < self._low:
            self._bounds.clear()  # somebody has set a clock
        self._bounds.append(bounds)

    @property
    def _low(self) -> float:
        return max((low for low, _ in self._bounds), default=-inf)

    @property
    def _high(self) -> float:
        return min((high for _, high in self._bounds), default=inf)

    def apart(self) -> str | None:
        """How far, fit to show; None where it may be less than a second."""
        low, high = self._low, self._high
        if low <= NS_PER_S and high >= -NS_PER_S:
            return None
        ahead_s, within_s = (low + high) / 2 / NS_PER_S, (high - low) / 2 / NS_PER_S
        way = "ahead of" if ahead_s > 0 else "behind"
        return f"{abs(ahead_s):.0f} s {way} ours, ±{max(within_s, 1):.0f} s"


class SessionClock:
    """Session time: nanoseconds since the session started, on our monotonic clock."""

    def __init__(self, start_ns: int | None = None) -> None:
        self.start_ns = monotonic_ns() if start_ns is None else start_ns

    def now_ns(self) -> int:
        """Session time now."""
        return monotonic_ns() - self.start_ns

    def rebase(self, reading: AnyReading, source: str = "") -> AnyReading:
        """The same reading in session time, with its source filled in."""
        moved: dict[str, object] = {"source": source or reading.source}
        for field in reading.INSTANTS:
            value = getattr(reading, field)
            if value is not None:
                moved[field] = value - self.start_ns
        return msgspec.structs.replace(reading, **moved)
