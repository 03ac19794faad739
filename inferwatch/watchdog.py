"""Ends this process when it does not end by itself; the record is written first."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from time import sleep

LEAVES_S = 3.0
"""To leave what is shown and let go of its files."""
ENDS_ENGINE_S = 8.0
"""To end a load (3 s at most), then an engine (5 s)."""
WRITES_S = 10.0
"""For what is still to be written when that was not enough."""
STATUS = 129
"""As a shell tells of a process that a hang-up ended."""

_last_acts: list[Callable[[], object]] = []
_patience: list[float] = [LEAVES_S]


def before_the_end(act: Callable[[], object]) -> None:
    """Do this even when the process has to be ended; from any thread, perhaps twice."""
    _last_acts.append(act)


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """As long as this lasts, there is so much to end before the process does."""
    _patience.append(seconds)
    try:
        yield
    finally:
        _patience.remove(seconds)


def end_within(seconds: float | None = None) -> None:
    """Whatever hangs, waits or spins: after so long there is no such process.

    Unsaid, it is as long as ending takes at most. Engines that must not outlive the
    process notice its end by themselves.
    """
    patience_s = max(_patience) if seconds is None else seconds
    Thread(target=_end, args=(patience_s,), name="watchdog", daemon=True).start()


def _end(seconds: float) -> None:
    sleep(seconds)
    acts = [Thread(target=act, daemon=True) for act in _last_acts]
    for act in acts:
        act.start()
    for act in acts:
        act.join(WRITES_S)
    os._exit(STATUS)
