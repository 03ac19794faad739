"""Reports faults of inferwatch in a sentence, and keeps their traceback in a file."""

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from inferwatch import __version__

if TYPE_CHECKING:
    from pathlib import Path

STATUS = 70
"""``EX_SOFTWARE``: different from every status by which a command reports its
result."""
SWITCH = "INFERWATCH_TRACEBACK"
"""If set, exceptions pass; our tests set it, so that no fault is hidden from them."""
KEPT = 20


def let_through() -> bool:
    """Return whether the traceback itself is wanted."""
    return bool(os.environ.get(SWITCH))


def fault_text(error: BaseException) -> str:
    """Return the sentence to show for an unexpected error, and keep a report."""
    what = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    where = _keep_report(error)
    if where is None:
        return f"a fault in inferwatch: {what}. {SWITCH}=1 shows where"
    return (
        f"a fault in inferwatch: {what}. The full report is in {where}: please send "
        "it to us"
    )


def _keep_report(error: BaseException) -> "Path | None":
    """Write the report to a file that only the user can read; None if that fails."""
    # Only a fault needs these, and every start would wait for them.
    from datetime import UTC, datetime  # noqa: PLC0415

    from platformdirs import user_log_path  # noqa: PLC0415

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
    """Return the report, without command-line arguments: a header may be an API key."""
    import traceback  # noqa: PLC0415 - as above

    host = os.uname()
    system = f"Python {sys.version.split()[0]}, {host.sysname} {host.release}"
    system += f" {host.machine}"
    return f"inferwatch {__version__}, {system}\n\n" + "".join(
        traceback.format_exception(error)
    )
