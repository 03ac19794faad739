"""Lock files that say which sessions are being recorded.

A PID is meaningful only in its own namespace, but containers share recordings on
volumes. So the recorder of a session locks a small file, such as
``inferwatch.db-s12.lock``, which the kernel unlocks when the process dies: everybody on
the volume can check it. If the file system has no locks, the file still names the PID's
namespace.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Self

from collectors.contract.clock import boot_id
from collectors.contract.liveness import birth, in_the_way, pid_namespace

LOCKED, UNLOCKED = "locked", "unlocked"
MOST_BYTES = 256


def lock_path(database: Path, session: int) -> Path:
    """Path of the file that is locked while a session is recorded."""
    whole = database.resolve()
    return whole.with_name(f"{whole.name}-s{session}.lock")


class RecordingLock:
    """Held by the process that records a session, until the session ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, database: Path, session: int) -> Self | None:
        """Lock a session that no other process knows of yet.

        None if the folder does not allow it: then only the PID identifies the recorder.
        """
        path = lock_path(database, session)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            path.unlink(missing_ok=True)  # left by another file of this name
            descriptor = os.open(path, flags, 0o600)
        except OSError:
            return None
        state = UNLOCKED
        with suppress(OSError):  # not every file system supports locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            state = LOCKED
        with suppress(OSError):
            os.write(descriptor, f"{state} {pid_namespace() or ''}\n".encode())
            # whoever may read the recording may check whether it continues
            os.fchmod(descriptor, database.stat().st_mode & 0o666)
        return cls(path, descriptor)

    def release(self, *, ended: bool) -> None:
        """Unlock; remove the file only if the recording says that the session ended.

        Otherwise the unlocked file says that the session is not being recorded any
        more.
        """
        if self._descriptor < 0:
            return
        with suppress(OSError):
            mine = os.path.samestat(os.fstat(self._descriptor), self._path.stat())
            if ended and mine:
                self._path.unlink()
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)
        self._descriptor = -1


def still_recorded(
    database: Path, session: int, *, boot: object, pid: object, born: object
) -> bool | None:
    """Whether a session without an end is still being recorded.

    By its lock; else by the process in its row, whose death is only proven if its PID
    is in our namespace. None: unknown.
    """
    locked, namespace = _lock_and_namespace(lock_path(database, session))
    if locked is not None:
        return locked
    if boot != boot_id():
        return None
    if isinstance(pid, int) and birth(pid) == born is not None:
        return True
    return False if namespace and namespace == pid_namespace() else None


def forget_lock(database: Path, session: int) -> None:
    """Remove the lock file of a dead recorder."""
    with suppress(OSError):
        lock_path(database, session).unlink()


def _lock_and_namespace(path: Path) -> tuple[bool | None, str]:
    """Whether the lock is held, and the namespace of its holder's PID, if known."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return None, ""
    try:
        text = os.read(descriptor, MOST_BYTES).decode("utf-8", "replace")
        state, _, namespace = text.strip().partition(" ")
        locked = in_the_way(descriptor, fcntl.LOCK_SH) if state == LOCKED else None
    except OSError:
        return None, ""
    finally:
        os.close(descriptor)
    return locked, namespace
