"""Clocks: monotonic for intervals, the wall once per session, session time for all.

A clock domain is a host boot. Within one, monotonic times of all processes subtract
directly on Linux, so the probe's stamps and ours need no synchronising.
"""

import time
from bisect import bisect_right
from pathlib import Path

import msgspec

from collectors.readings import AnyReading, ClockAnchor

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
