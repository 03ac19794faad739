"""Ends this process when the one that started the engine is gone.

Only an embedded engine has such a parent. Linux's parent death signal is no use,
because it fires when the parent *thread* ends.
"""

import os
import signal
import threading
import time

from collectors.contract.liveness import birth

POLL_S = 0.5
GRACE_S = 3.0
THREAD_NAME = "inferwatch-parent"


def watch_parent() -> None:
    """Watch ``INFERWATCH_PARENT_PID``, started at ``INFERWATCH_PARENT_START``.

    Called by the worker at start and again by the probe; one thread serves both.
    """
    pid = os.environ.get("INFERWATCH_PARENT_PID")
    watched = any(thread.name == THREAD_NAME for thread in threading.enumerate())
    if pid and not watched:
        born = os.environ.get("INFERWATCH_PARENT_START")
        threading.Thread(
            target=_watch, args=(int(pid), born), name=THREAD_NAME, daemon=True
        ).start()


def _watch(pid: int, born: str | None) -> None:
    while _lives(pid, born):
        time.sleep(POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _lives(pid: int, born: str | None) -> bool:
    now = birth(pid)
    return now is not None and born in {None, str(now)}
