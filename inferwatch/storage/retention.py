"""Which sessions go when the record is to be smaller: arithmetic, it deletes none."""

from collections.abc import Iterable
from dataclasses import dataclass

from collectors.clock import NS_PER_S
from inferwatch.storage.housekeeping import KEEP
from inferwatch.storage.session_state import SessionState
from inferwatch.storage.sessions import SessionRow
from inferwatch.storage.sizes import Sizes

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is kept; None sets no limit."""

    older_than_s: float | None = None
    max_bytes: int | None = None


DEFAULT = Limits(older_than_s=7 * DAY_S, max_bytes=5_000_000_000)
"""What pruning keeps unless told; nothing is pruned without being asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Going:
    """A session that is to go, and why."""

    row: SessionRow
    size_bytes: int
    why: str


def choose(
    rows: Iterable[SessionRow], sizes: Sizes, limits: Limits, now_ns: int
) -> list[Going]:
    """The sessions that must go, oldest first.

    Those over age, then the oldest until the rest is small enough, the bin's first.
    What is being recorded, or tagged ``keep``, stays.
    """
    may_go = [row for row in rows if _may_go(row)]
    may_go.sort(key=lambda row: (row.deleted_ns is None, row.started_ns, row.session))
    going = {
        row.session: Going(row=row, size_bytes=sizes.of.get(row.session, 0), why=why)
        for row in may_go
        if (why := _too_old(row, limits, now_ns))
    }
    left = sizes.used_bytes - sum(each.size_bytes for each in going.values())
    for row in may_go:
        if limits.max_bytes is None or left <= limits.max_bytes:
            break
        if row.session not in going:
            size_bytes = sizes.of.get(row.session, 0)
            left -= size_bytes
            going[row.session] = Going(row=row, size_bytes=size_bytes, why="size")
    return sorted(going.values(), key=lambda each: each.row.session)


def _may_go(row: SessionRow) -> bool:
    return row.state is not SessionState.RECORDING and KEEP not in row.tags.split()


def _too_old(row: SessionRow, limits: Limits, now_ns: int) -> str | None:
    """By its end: a session is as old as what was last seen in it."""
    if limits.older_than_s is None:
        return None
    ended_ns = row.started_ns + row.duration_ns
    age_s = (now_ns - ended_ns) / NS_PER_S
    return "age" if age_s > limits.older_than_s else None
