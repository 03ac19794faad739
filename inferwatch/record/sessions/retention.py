"""Chooses sessions to prune, and prunes in the background if configured.

While recording, nobody can confirm a deletion. So automatic pruning uses the bin:
sessions over the limits are put there, and deleted permanently after a week.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from collectors.contract.clock import NS_PER_S, anchor
from inferwatch.errors import StorageError, UsageError
from inferwatch.quantities import in_seconds, quantity, size_bytes
from inferwatch.record.sessions.erasing import erase, vacuum
from inferwatch.record.sessions.housekeeping import KEEP, put_away
from inferwatch.record.sessions.sessions import SessionRow, list_sessions
from inferwatch.record.sessions.sizes import SessionSizes, sizes_in
from inferwatch.record.tables.session_state import SessionState

DAY_S = 86_400.0
AGES = ("h", "d", "w")
"""Units: none stands for an age and for a size, so ``500M`` means neither."""
AGE_FORMS = "36h, 30d or 4w"
SIZE_FORMS = "500MB or 5GB"
SETTING = "INFERWATCH_RETENTION"
IN_BIN_S = 7 * DAY_S
"""How long automatically pruned sessions can be restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """The age and size up to which sessions are kept; None is no limit."""

    older_than_s: float | None = None
    max_bytes: int | None = None


DEFAULT = RetentionLimits(older_than_s=7 * DAY_S, max_bytes=5_000_000_000)
"""Limits of a requested prune; nothing is pruned by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionToPrune:
    """A session over the limits, and why."""

    row: SessionRow
    size_bytes: int
    why: str


def age_s(text: str) -> float | None:
    """Seconds of an age such as ``36h``, ``30d`` or ``4w``; None if malformed.

    >>> age_s("30d")
    2592000.0
    """
    amount = quantity(text)
    return in_seconds(*amount) if amount and amount[1] in AGES else None


def limits_of(setting: str) -> RetentionLimits | None:
    """Parse limits such as ``30d``, ``5GB`` or ``30d,5GB``; None if malformed.

    >>> limits_of("30d,5GB")
    RetentionLimits(older_than_s=2592000.0, max_bytes=5000000000)
    """
    parts = setting.split(",")
    ages = [age for part in parts if (age := age_s(part)) is not None]
    sizes = [size for part in parts if (size := size_bytes(part)) is not None]
    if len(ages) + len(sizes) < len(parts) or len(ages) > 1 or len(sizes) > 1:
        return None
    return RetentionLimits(
        older_than_s=ages[0] if ages else None, max_bytes=sizes[0] if sizes else None
    )


def choose(
    rows: Iterable[SessionRow],
    sizes: SessionSizes,
    limits: RetentionLimits,
    now_ns: int,
) -> list[SessionToPrune]:
    """The sessions to prune, oldest first.

    Those that are too old; then, until the rest is small enough, those in the bin and
    after them the oldest. Sessions that are, or may be, being recorded stay, as do
    those tagged ``keep``.
    """
    may_go = [row for row in rows if _may_go(row)]
    may_go.sort(key=lambda row: (row.deleted_ns is None, row.started_ns, row.session))
    going = {
        row.session: SessionToPrune(
            row=row, size_bytes=sizes.of.get(row.session, 0), why=why
        )
        for row in may_go
        if (why := _too_old(row, limits, now_ns))
    }
    left = sizes.used_bytes - sum(each.size_bytes for each in going.values())
    for row in may_go:
        if limits.max_bytes is None or left <= limits.max_bytes:
            break
        if row.session not in going:
            size = sizes.of.get(row.session, 0)
            left -= size
            going[row.session] = SessionToPrune(row=row, size_bytes=size, why="size")
    return sorted(going.values(), key=lambda each: each.row.session)


def _may_go(row: SessionRow) -> bool:
    going_on = row.state in {SessionState.RECORDING, SessionState.UNKNOWN}
    return not going_on and KEEP not in row.tags.split()


def _too_old(row: SessionRow, limits: RetentionLimits, now_ns: int) -> str | None:
    """``age`` if a session ended too long ago; None if not, or if that is unknown."""
    if limits.older_than_s is None or row.started_ns <= 0:
        return None
    ended_ns = row.ended_ns
    if ended_ns is None:
        ended_ns = row.started_ns + row.duration_ns
    return "age" if (now_ns - ended_ns) / NS_PER_S > limits.older_than_s else None


def to_go(path: Path, limits: RetentionLimits) -> list[SessionToPrune]:
    """The sessions of a file to be pruned under these limits.

    Raises:
        StorageError: the file cannot be read.
    """
    rows = list_sessions(path, bin_too=True)
    return choose(rows, sizes_in(path), limits, anchor().wall_ns)


def set_limits() -> RetentionLimits | None:
    """Limits set in the environment; None: no automatic pruning.

    Raises:
        UsageError: the setting is malformed.
    """
    setting = os.environ.get(SETTING, "")
    if not setting:
        return None
    limits = limits_of(setting)
    if limits is None:
        raise UsageError(
            f"{SETTING}={setting!r} is not understood: write an age "
            f"({AGE_FORMS}), a size "
            f"({SIZE_FORMS}) or both, such as 30d,5GB"
        )
    return limits


def prune_beside(path: Path, limits: RetentionLimits) -> Thread:
    """Prune in a background thread; what remains is left to the next start."""
    thread = Thread(target=_prune, args=(path, limits), name="pruning", daemon=True)
    thread.start()
    return thread


def _prune(path: Path, limits: RetentionLimits) -> None:
    with suppress(StorageError, OSError):  # the recorder reports the problem
        going = to_go(path, limits)
        if listed := [e.row.session for e in going if e.row.deleted_ns is None]:
            put_away(path, listed)
        if expired := [e.row.session for e in going if _long_in_bin(e.row)]:
            erase(path, expired)
            vacuum(path)


def _long_in_bin(row: SessionRow) -> bool:
    if row.deleted_ns is None:
        return False
    return anchor().wall_ns - row.deleted_ns > IN_BIN_S * NS_PER_S
