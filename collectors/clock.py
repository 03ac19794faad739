"""Clocks: monotonic for intervals, the wall once per session, session time for all.

A clock domain is a host boot. Within one, monotonic times of all processes subtract
directly on Linux, so the probe's stamps and ours need no synchronising.
"""

import time
from pathlib import Path

import msgspec

from collectors.readings import AnyReading, ClockAnchor

NS_PER_S = 1_000_000_000


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
