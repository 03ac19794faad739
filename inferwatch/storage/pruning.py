"""Prunes while a session is recorded, where a setting asks for it."""

import os
from contextlib import suppress
from pathlib import Path
from threading import Thread

from collectors.clock import anchor
from inferwatch.errors import StorageError, UsageError
from inferwatch.storage.erasing import erase, vacuum
from inferwatch.storage.retention import Going, Limits, choose, limits_of
from inferwatch.storage.sessions import list_sessions
from inferwatch.storage.sizes import sizes_in

SETTING = "INFERWATCH_RETENTION"


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
        raise UsageError(f"{SETTING}={setting!r} means nothing: try 30d,5GB")
    return limits


def prune_beside(path: Path, limits: Limits) -> Thread:
    """Prune in a thread of its own; what it does not finish, the next one will."""
    thread = Thread(target=_prune, args=(path, limits), name="pruning", daemon=True)
    thread.start()
    return thread


def _prune(path: Path, limits: Limits) -> None:
    with suppress(StorageError, OSError):  # the recorder says what is wrong
        if going := to_go(path, limits):
            erase(path, [each.row.session for each in going])
            vacuum(path)
