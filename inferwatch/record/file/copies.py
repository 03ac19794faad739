"""Temporary copies of files that we may not change, removed at exit."""

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Identifies the content of a file at a time: it changes whenever the file does."""

    path: Path
    facts: tuple[tuple[int, int, int] | None, ...]

    @classmethod
    def of(cls, path: Path) -> "FileStamp":
        """The stamp of a file and its write-ahead log, as they are now."""
        return cls(path.resolve(), tuple(map(_facts, (path, log_of(path)))))


def log_of(path: Path) -> Path:
    """The write-ahead log of a file that is open, or whose writer died."""
    return path.with_name(path.name + "-wal")


def copy_of(path: Path) -> Path:
    """A private copy of a file and its log.

    Raises:
        OSError: there is no space, or the file cannot be read.
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
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
