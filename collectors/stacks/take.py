"""Takes the stacks of a process: from outside where that is allowed, else by itself."""

import os
import pwd
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from collectors.contract.clock import monotonic_ns
from collectors.contract.liveness import birth
from collectors.contract.readings import Stacks, StackSource
from collectors.stacks.dump_file import is_stopped, read_by_itself
from collectors.stacks.frames import GONE, StacksError
from collectors.stacks.py_spy import NAME, OLDEST, read_by_py_spy, tool

NO_TOOL = (
    f"{NAME} {OLDEST} or newer is not installed (pip install 'inferwatch[stacks]')"
)
STILL = "while it is stopped, it cannot write them down"

ONLY_OURS = "only this user's processes are read"


def take_stacks(pid: int, process: str, stalled_ns: int) -> Stacks:
    """Read the stacks of a process of this user; takes 10 s at most.

    Times are raw ones. Where nothing can be read, the reading says why.
    """
    taken = Stacks(
        t_ns=monotonic_ns(),
        pid=pid,
        process=process,
        stalled_ns=stalled_ns,
        stopped=is_stopped(pid),
    )
    if birth(pid) is None:
        return replace(taken, why=GONE)
    if other := _other_user(pid):
        return replace(taken, why=f"it belongs to {other}; {ONLY_OURS}")
    try:
        return _from_outside(taken)
    except StacksError as error:
        why = str(error)
        taken = replace(taken, paused_ns=error.paused_ns)
    if taken.stopped:
        return replace(taken, why=f"{why}; {STILL}")
    try:
        threads = read_by_itself(pid)
    except StacksError as error:
        return replace(taken, why=f"{why}; {error}")
    return replace(taken, taken_by=StackSource.FAULTHANDLER, threads=threads, why=why)


def _from_outside(taken: Stacks) -> Stacks:
    command = tool()
    if command is None:
        raise StacksError(NO_TOOL)
    threads, paused_ns = read_by_py_spy(command, taken.pid)
    by = StackSource.PY_SPY
    return replace(taken, taken_by=by, threads=threads, paused_ns=paused_ns)


def _other_user(pid: int) -> str | None:
    """Return the name of another user whom a process belongs to."""
    with suppress(OSError):
        uid = Path(f"/proc/{pid}").stat().st_uid
        if uid != os.geteuid():
            with suppress(KeyError):
                return pwd.getpwuid(uid).pw_name
            return f"user {uid}"
    return None
