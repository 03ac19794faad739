"""Where the record lies and how much disk it leaves to others."""

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from platformdirs import user_data_path


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Under the temporary directory, until the end of the context."""
    folder = TemporaryDirectory(prefix=f"inferwatch-{purpose}-")
    try:
        with folder:
            yield Path(folder.name)
    finally:
        folder.cleanup()  # Ctrl-C may have cut off the first removal


FREE_FLOOR_BYTES = 500_000_000
"""Recording pauses when less than this is free; a full disk hurts everyone."""


def default_database() -> Path:
    """The one file for all sessions; ``INFERWATCH_DB`` chooses another."""
    if chosen := os.environ.get("INFERWATCH_DB"):
        return Path(chosen).expanduser()
    return user_data_path("inferwatch") / "inferwatch.db"


def db_option(path: Path) -> str:
    """What a printed command needs after it to mean that file; empty for the usual."""
    same = path.absolute() == default_database().absolute()
    return "" if same else f" --db {shlex.quote(str(path))}"


def free_floor_bytes() -> int:
    """``INFERWATCH_MIN_FREE_MB`` sets it; nonsense there leaves the default."""
    chosen = os.environ.get("INFERWATCH_MIN_FREE_MB", "")
    return int(chosen) * 1_000_000 if chosen.isdecimal() else FREE_FLOOR_BYTES


def too_little_room(path: Path, floor_bytes: int) -> str | None:
    """Why the disk is too full to record, None when it is not."""
    free_bytes = shutil.disk_usage(path.parent).free
    if free_bytes >= floor_bytes:
        return None
    return (
        f"{path}: only {free_bytes // 1_000_000} MB of disk are free, "
        f"{floor_bytes // 1_000_000} MB are kept free for other programs: free "
        "some space, "
        "or lower INFERWATCH_MIN_FREE_MB"
    )
