"""Copies to read instead of a file that is not ours to change; gone when we end."""

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp


@dataclass(frozen=True, slots=True)
class Stamp:
    """Identifies a file as it is at a moment: once it changes, its stamp is another."""

    path: Path
    facts: tuple[tuple[int, int, int] | None, ...]

    @classmethod
    def of(cls, path: Path) -> "Stamp":
        """The stamp of a file as it is now, its write-ahead log included."""
        return cls(path.resolve(), tuple(map(_facts, (path, log_of(path)))))


def log_of(path: Path) -> Path:
    """The write-ahead log beside a file that is open, or was when its writer died."""
    return path.with_name(path.name + "-wal")


def copy_of(path: Path) -> Path:
    """A copy that nobody else has, its log too.

    Raises:
        OSError: there is no room, or the file cannot be read.
    """
    folder = Path(mkdtemp(dir=_folder().name))
    copy = folder / path.name
    shutil.copyfile(path, copy)
    if log_of(path).exists():
        shutil.copyfile(log_of(path), log_of(copy))
    return copy


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="inferwatch-", ignore_cleanup_errors=True)


def _facts(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
