"""Where an export goes: a file, a folder or stdout.

Files are written completely or not at all.
"""

import gzip
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import IO, cast

from inferwatch.errors import UsageError

STDOUT = "-"
SQLITE = b"SQLite format 3\0"
"""The first bytes of an SQLite file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """The file, folder or stdout that the user gave with ``-o``."""

    path: Path
    """Path of the file or folder; ``-`` is stdout."""
    force: bool = False

    @property
    def is_stdout(self) -> bool:
        return str(self.path) == STDOUT

    @contextmanager
    def file(self) -> Iterator[IO[bytes]]:
        """A file to write to, compressed if it ends with ``.gz``.

        If writing fails, an existing file remains as it was.

        Raises:
            UsageError: the destination exists already or cannot be written.
        """
        if self.is_stdout:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
            return
        self.refuse_existing()
        # A random name cannot have been prepared by an attacker.
        part = self.path.with_name(f".{self.path.name}.{token_hex(8)}.part")
        try:
            with open_for_bytes(part, zipped=self.path.suffix == ".gz") as out:
                yield out
            part.replace(self.path)
        except OSError as error:
            raise UsageError(f"{self.path}: {error.strerror or error}") from error
        finally:
            part.unlink(missing_ok=True)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder for several files, created if it does not exist.

        Raises:
            UsageError: the destination exists already or cannot be written.
        """
        if not self.path.is_dir() or any(self.path.iterdir()):
            self.refuse_existing()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            yield self.path
        except OSError as error:
            raise UsageError(f"{self.path}: {error.strerror or error}") from error

    def refuse_existing(self) -> None:
        """Refuse to overwrite without ``--force``, and databases in any case.

        Raises:
            UsageError: the destination exists already.
        """
        if not self.path.exists():
            return
        if is_database(self.path):
            raise UsageError(
                f"{self.path} is a database: choose another file, or delete it first"
            )
        if not self.force:
            raise UsageError(f"{self.path} already exists: add --force to overwrite it")


def page_at(path: Path | None, *, force: bool, alone: bool) -> Destination | None:
    """Return the destination of ``--html``, after checks that need no result.

    Raises:
        UsageError: the file exists, or stdout would get two outputs.
    """
    if path is None:
        if force:
            raise UsageError("--force is for --html: give a file")
        return None
    destination = Destination(path=path, force=force)
    if destination.is_stdout and not alone:
        raise UsageError("--html - is the only output: leave out any other form")
    if not destination.is_stdout:
        destination.refuse_existing()
    return destination


def is_database(path: Path) -> bool:
    """Whether it is an SQLite file, whatever it is called."""
    if not path.is_file():
        return False
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE
    return False


@contextmanager
def open_for_bytes(path: Path, *, zipped: bool) -> Iterator[IO[bytes]]:
    """Create a file, compressed if ``zipped``."""
    with path.open("xb") as plain:
        if not zipped:
            yield plain
            return
        with gzip.GzipFile(filename="", fileobj=plain, mode="wb", mtime=0) as packed:
            yield cast("IO[bytes]", packed)
