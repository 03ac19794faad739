"""A fault of ours is said in a sentence, and its traceback kept in a file."""

import os
import sys
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from inferwatch import __version__

STATUS = 70
"""``EX_SOFTWARE``: none of the statuses by which a command says what it found."""
SWITCH = "INFERWATCH_TRACEBACK"
"""Set, it lets the exception through; our tests set it, so that the net hides none."""
KEPT = 20


def let_through() -> bool:
    """Somebody wants the traceback itself."""
    return bool(os.environ.get(SWITCH))


def told(error: BaseException) -> str:
    """What to say of a fault nobody foresaw; the whole of it goes into a file."""
    what = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    where = _kept(error)
    if where is None:
        return f"a fault in inferwatch: {what}. {SWITCH}=1 shows where"
    return (
        f"a fault in inferwatch: {what}. The full report is in {where}: please send "
        "it to us"
    )


def _kept(error: BaseException) -> Path | None:
    """The file it was written to, private; None where none can be."""
    from platformdirs import user_log_path  # noqa: PLC0415 - only a fault needs it

    with suppress(OSError):
        directory = user_log_path("inferwatch", appauthor=False)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in sorted(directory.glob("fault-*.txt"))[: 1 - KEPT]:
            old.unlink(missing_ok=True)
        stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        path = directory / f"fault-{stamp}-{os.getpid()}.txt"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(_report(error))
        return path
    return None


def _report(error: BaseException) -> str:
    """Without the command's arguments: a header may be a key."""
    host = os.uname()
    system = f"Python {sys.version.split()[0]}, {host.sysname} {host.release}"
    system += f" {host.machine}"
    return f"inferwatch {__version__}, {system}\n\n" + "".join(
        traceback.format_exception(error)
    )
