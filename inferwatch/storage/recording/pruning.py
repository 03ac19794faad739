"""Prunes while a session is recorded, where a setting asks for it.

Nobody is there to confirm it, so it goes through the bin: what is over the limits is
put there, and deleted for good only once it has lain there for a week.
"""

import os
from contextlib import suppress
from pathlib import Path
from threading import Thread

from collectors.clock import NS_PER_S, anchor
from inferwatch.errors import StorageError, UsageError
from inferwatch.storage.sessions.erasing import erase, vacuum
from inferwatch.storage.sessions.housekeeping import put_away
from inferwatch.storage.sessions.retention import (
    AGE_FORMS,
    DAY_S,
    SIZE_FORMS,
    Going,
    Limits,
    choose,
    limits_of,
)
from inferwatch.storage.sessions.sessions import SessionRow, list_sessions
from inferwatch.storage.sessions.sizes import sizes_in

SETTING = "INFERWATCH_RETENTION"
IN_BIN_S = 7 * DAY_S
"""So long what was pruned by itself can be restored."""


def to_go(path: Path, limits: Limits) -> list[Going]:
    """The sessions of a file that are over the limits.

    Raises:
        StorageError: the file cannot be read.
    """
    rows = list_sessions(path, bin_too=True)
    return choose(rows, sizes_in(path), limits, anchor().wall_ns)


def set_limits() -> Limits | None:
    """What the environment sets; None without it: nothing is pruned by itself.

    Raises:
        UsageError: it sets something that means nothing.
    """
    setting = os.environ.get(SETTING, "")
    if not setting:
        return None
    limits = limits_of(setting)
    if limits is None:
        raise UsageError(
            f"{SETTING}={setting!r} means nothing: it is an age ({AGE_FORMS}), a size "
            f"({SIZE_FORMS}) or both, as 30d,5GB"
        )
    return limits


def prune_beside(path: Path, limits: Limits) -> Thread:
    """Prune in a thread of its own; what it does not finish, the next one will."""
    thread = Thread(target=_prune, args=(path, limits), name="pruning", daemon=True)
    thread.start()
    return thread


def _prune(path: Path, limits: Limits) -> None:
    with suppress(StorageError, OSError):  # the recorder says what is wrong
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
