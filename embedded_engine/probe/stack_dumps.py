"""Lets this process write down its own stacks when a signal asks for them.

faulthandler needs neither the GIL nor a thread of ours for that. Until the signal comes
it costs nothing.
"""

import atexit
import faulthandler
import fcntl
import os
import signal
from contextlib import suppress
from pathlib import Path

from collectors.contract.liveness import is_held
from collectors.stacks.dump_file import caught_signals, dump_files, dump_path
from embedded_engine.probe_settings import STACKS

SIGNALS = range(signal.SIGRTMIN + 9, signal.SIGRTMIN + 14)
"""Nobody is known to use these; the first that is free here is taken."""
STALE_S = 60


class StackDump:
    """The signal and the dump file of this process, and of each that it forks."""

    def __init__(self, engine_id: str) -> None:
        self._engine_id = engine_id
        self._number: int | None = None
        self._descriptor: int | None = None

    def register(self) -> None:
        """Open the file and register the signal, unless that was switched off."""
        if os.environ.get(STACKS) == "0":
            return
        os.register_at_fork(after_in_child=self._register)
        self._register()

    def _register(self) -> None:
        """Register this process; without a free signal or a file it is not."""
        if self._number is None:
            caught = caught_signals(os.getpid())
            free = (each for each in SIGNALS if not caught >> (each - 1) & 1)
            self._number = next(free, None)
        if self._number is None:
            return
        before = self._descriptor
        with suppress(OSError, ValueError):
            path = dump_path(self._engine_id, os.getpid(), self._number)
            path.unlink(missing_ok=True)  # of a process that had this PID before
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            faulthandler.register(self._number, file=descriptor, all_threads=True)
            self._descriptor = descriptor
            atexit.register(_remove, path, os.getpid())
            _remove_stale(os.fstat(descriptor).st_mtime)
            if before is not None:
                os.close(before)  # of the parent


def _remove(path: Path, pid: int) -> None:
    """Remove the file of this process; a forked child leaves its parent's."""
    if os.getpid() == pid:
        with suppress(OSError):
            path.unlink()


def _remove_stale(now_s: float) -> None:
    """Remove the files of processes that were killed; they held them locked."""
    for path, status in dump_files():
        if now_s - status.st_mtime > STALE_S and not is_held(path):
            with suppress(OSError):
                path.unlink()
