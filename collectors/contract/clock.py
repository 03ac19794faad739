"""Clocks: monotonic time for intervals, one wall-clock anchor, and session time.

A clock domain is one boot of a host. Within it, monotonic times of all processes can be
subtracted directly on Linux, so the probe's timestamps and ours need no synchronising.
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
"""Drift of the wall clock that calls for a new anchor: wall times show seconds."""


def monotonic_ns() -> int:
    """Monotonic time in nanoseconds since boot."""
    return time.monotonic_ns()


def boot_id() -> str:
    """Id of this boot of the host; equal ids mean comparable monotonic times."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return "unknown"


def anchor() -> ClockAnchor:
    """Read the wall and monotonic clocks together; the tightest of five tries."""
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
    """Unix time minus monotonic time, accurate to about a microsecond."""
    return time.time_ns() - time.monotonic_ns()


class WallClockAnchors:
    """Wall-clock anchors of a session; a new one whenever the two clocks diverge.

    They diverge when the host is suspended, since the monotonic clock stops then, and
    when the wall clock is set.
    """

    def __init__(self) -> None:
        self.first = anchor()
        self._anchors = [self.first]

    def parted(self) -> ClockAnchor | None:
        """A new anchor if the clocks have drifted apart since the last; else None."""
        last = self._anchors[-1]
        known_ns = last.wall_ns - last.t_ns
        if abs(wall_offset_ns() - known_ns) < PARTED_NS:
            return None
        fresh = anchor()
        if abs(fresh.wall_ns - fresh.t_ns - known_ns) < PARTED_NS:
            return None  # we were interrupted between the two reads
        self._anchors.append(fresh)
        return fresh

    def wall_ns(self, t_ns: int) -> int:
        """Unix time of a monotonic time, by the last anchor taken before that time."""
        at = bisect_right(self._anchors, t_ns, key=lambda each: each.t_ns)
        then = self._anchors[max(at - 1, 0)]
        return then.wall_ns + t_ns - then.t_ns


class ClockRelation:
    """Offset of another host's monotonic clock from ours, within proven bounds.

    A clock that was read between our request and its response lies between the two.
    Inside these bounds the hosts' wall clocks decide; outside they must be wrong. Once
    used, the offset is frozen, so times already reported do not move.
    """

    def __init__(self) -> None:
        self._boot_id = ""
        self._least: int | None = None
        self._most = 0
        """Bounds of our clock minus theirs, in nanoseconds."""
        self._by_wall = 0
        self._used: int | None = None

    def answered(self, theirs: ClockAnchor, asked_ns: int, heard_ns: int) -> None:
        """Narrow the bounds by the other host's clock, read between our two times."""
        # it rebooted: its monotonic clock began anew
        if theirs.boot_id != self._boot_id:
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
        """Our clock minus the other host's; 0 between processes of one host."""
        if self._used is not None:
            return self._used
        if self._least is None:
            return 0
        return min(max(self._by_wall, self._least), self._most)

    @property
    def bound_ns(self) -> int:
        """The largest possible error of the offset, in nanoseconds."""
        if self._least is None:
            return 0
        return max(abs(self.offset_ns - end) for end in (self._least, self._most))

    def theirs(self, clock: "SessionClock") -> "SessionClock":
        """A clock that converts the other host's timestamps to session time."""
        if self._least is None:
            return clock
        self._used = self.offset_ns
        return SessionClock(clock.start_ns - self._used)


DATE_NS = 2 * NS_PER_S
"""Resolution of a Date header, doubled: some servers refresh it once a second."""


class DistantClock:
    """Offset of another host's wall clock, from the Date headers it sends.

    Each date was written between our request and its response; together they narrow the
    bounds.
    """

    def __init__(self) -> None:
        self._bounds = deque[tuple[int, int]](maxlen=60)

    def hear(self, date: str | None, asked_ns: int, answered_ns: int) -> None:
        """Narrow the bounds by a response's Date header and our times around it."""
        try:
            told_ns = int(parsedate_to_datetime(date or "").timestamp()) * NS_PER_S
        except (ValueError, OverflowError):
            return
        offset_ns = told_ns - wall_offset_ns()
        bounds = offset_ns - answered_ns, offset_ns + DATE_NS - asked_ns
        if bounds[0] > self._high or bounds[1] < self._low:
            self._bounds.clear()  # somebody set a clock
        self._bounds.append(bounds)

    @property
    def _low(self) -> float:
        return max((low for low, _ in self._bounds), default=-inf)

    @property
    def _high(self) -> float:
        return min((high for _, high in self._bounds), default=inf)

    def apart(self) -> str | None:
        """The offset as text for users; None if it may be below one second."""
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
        return monotonic_ns() - self.start_ns

    def rebase(self, reading: AnyReading, source: str = "") -> AnyReading:
        """Return a reading in session time, with its source filled in."""
        moved: dict[str, object] = {"source": source or reading.source}
        for field in reading.INSTANTS:
            value = getattr(reading, field)
            if value is not None:
                moved[field] = value - self.start_ns
        return msgspec.structs.replace(reading, **moved)
