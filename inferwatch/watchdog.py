"""Ends this process if it does not end by itself, after the record is written."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from time import sleep

LEAVES_S = 3.0
"""How long leaving the screen and closing the files may take."""
ENDS_ENGINE_S = 8.0
"""How long stopping a load (3 s at most) and then an engine (5 s) may take."""
WRITES_S = 10.0
"""How long the last acts, such as writing the record, may take after that."""
STATUS = 129
"""The status with which a shell reports a process that SIGHUP ended."""

_last_acts: list[Callable[[], object]] = []
_patience: list[float] = [LEAVES_S]


def before_the_end(act: Callable[[], object]) -> None:
    """Call ``act`` before the process is killed: on any thread, maybe twice."""
    _last_acts.append(act)


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """While the context lasts, ending the process may take this long."""
    _patience.append(seconds)
    try:
        yield
    finally:
        _patience.remove(seconds)


def end_within(seconds: float | None = None) -> None:
    """End the process after so long, whatever hangs, waits or spins.

    The default is the longest patience at present. Engines that must not outlive the
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
