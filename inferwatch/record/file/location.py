"""Location of the recording file, and the disk space to leave free."""

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
    """A folder in the temporary directory, until the end of the context."""
    folder = TemporaryDirectory(prefix=f"inferwatch-{purpose}-")
    try:
        with folder:
            yield Path(folder.name)
    finally:
        folder.cleanup()  # Ctrl-C may have interrupted the first removal


FREE_FLOOR_BYTES = 500_000_000
"""Recording pauses below this much free space: a full disk affects everyone."""


def default_database() -> Path:
    """The file for all sessions; ``INFERWATCH_DB`` overrides it."""
    if chosen := os.environ.get("INFERWATCH_DB"):
        return Path(chosen).expanduser()
    return user_data_path("inferwatch") / "inferwatch.db"


def db_option(path: Path) -> str:
    """Option that makes a printed command use this file; empty for the default."""
    same = path.absolute() == default_database().absolute()
    return "" if same else f" --db {shlex.quote(str(path))}"


def free_floor_bytes() -> int:
    """Disk space to leave free; ``INFERWATCH_MIN_FREE_MB`` overrides it if valid."""
    chosen = os.environ.get("INFERWATCH_MIN_FREE_MB", "")
    return int(chosen) * 1_000_000 if chosen.isdecimal() else FREE_FLOOR_BYTES


def too_little_room(path: Path, floor_bytes: int) -> str | None:
    """Why the disk is too full to record; None if it is not."""
    free_bytes = shutil.disk_usage(path.parent).free
    if free_bytes >= floor_bytes:
        return None
    return (
        f"{path}: only {free_bytes // 1_000_000} MB of disk are free, "
        f"{floor_bytes // 1_000_000} MB are kept free for other programs: free "
        "some space, "
        "or lower INFERWATCH_MIN_FREE_MB"
    )
