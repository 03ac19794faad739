"""Which processes live: a pid and its birth name one process for as long as it does."""

from pathlib import Path

STATE, BIRTH = 0, 19
"""Places in /proc/PID/stat after the command's closing bracket (proc(5): 3 and 22)."""


def birth(pid: int) -> int | None:
    """When it started, in clock ticks of this boot; None once it is dead.

    A zombie is dead: what it held is gone, only its parent has not looked yet.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[STATE] in "ZX" else int(fields[BIRTH])
