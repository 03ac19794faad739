"""Where a session's checkpoints are: a file beside the record, free to be deleted.

It holds nothing that the record does not tell, only sooner. Another inferwatch, or one
that computes or saves anything differently, does not know it by its name and makes its
own.
"""

import sqlite3
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from inferwatch import __version__
from inferwatch.record.file.sqlite import connect

FOLDER_END = "-replay"
MOST_BYTES = 2_000_000_000
"""Of all sessions' checkpoints in one place; the ones not used for longest go."""
MOST_FILE_BYTES = MOST_BYTES // 2
"""Of one session's. When that is reached, some checkpoints go, evenly: a longer session
has them further apart."""
PAGE_BYTES = 65536
"""Blobs of a few kilobytes leave little of such a page empty."""
SOURCES = (("inferwatch", "metrics"), ("collectors", "contract/readings.py"))
"""What decides how a Model is made of readings, and how it is saved."""
WORDING = "catalog"
"""In there numbers are only named and explained."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS rows (       -- the Model's rows, by name
  number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE IF NOT EXISTS blocks (     -- sealed blocks of them
  place INTEGER PRIMARY KEY,            -- number of the rows * 2**40 + of the block
  rows INTEGER NOT NULL, first_ns INTEGER NOT NULL, last_ns INTEGER NOT NULL,
  sums BLOB NOT NULL, maxima BLOB NOT NULL, columns BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS counts (     -- values of many blocks, by cell
  place INTEGER PRIMARY KEY,            -- as above, of the block after the last of them
  total INTEGER NOT NULL, maximum INTEGER NOT NULL, cells BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS parts (      -- of checkpoints, shared where equal
  part INTEGER PRIMARY KEY, content BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS checkpoints (
  ordinal INTEGER PRIMARY KEY,          -- of the last reading in it
  number INTEGER NOT NULL,              -- of those that were made, also if they went
  t_ns INTEGER NOT NULL,                -- when that was there
  reach BLOB NOT NULL,                  -- which blocks it needs
  open_requests BLOB NOT NULL,          -- see Cursor
  state BLOB NOT NULL, parts BLOB NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS checkpoints_by_time ON checkpoints (t_ns);
"""


def checkpoint_path(database: Path, session: int, started_ns: int) -> Path:
    """Where a session's checkpoints are, if there are any."""
    named = f"{session} {started_ns} {__version__} {_arithmetic()} {SCHEMA}"
    name = blake2b(named.encode(), digest_size=6).hexdigest()
    return checkpoint_folder(database) / f"s{session}-{name}.db"


def checkpoint_folder(database: Path) -> Path:
    """Where the checkpoints of all sessions in a file are."""
    return database.with_name(database.name + FOLDER_END)


def _mode_of_record(folder: Path) -> int:
    """Who may read the record may read what stands beside it, and nobody else."""
    record = folder.with_name(folder.name.removesuffix(FOLDER_END))
    return record.stat().st_mode & 0o666 if record.is_file() else 0o600


def open_checkpoints(path: Path, *, to_write: bool) -> sqlite3.Connection:
    """A connection.

    Raises:
        OSError, sqlite3.Error: there is none, or it is no such file.
    """
    if to_write:
        path.parent.mkdir(exist_ok=True)
        make_room(path.parent)
        path.touch(_mode_of_record(path.parent))
    connection = connect(path, "rwc" if to_write else "ro")
    if to_write:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")  # it can be made again
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA max_page_count = {MOST_FILE_BYTES // page_bytes}")
        connection.executescript(SCHEMA)
    return connection


def settle_checkpoints(path: Path) -> None:
    """Leave one plain file, if nobody else has it: its last user could only read."""
    if path.with_name(path.name + "-wal").exists():
        with suppress(OSError, sqlite3.Error):
            open_checkpoints(path, to_write=True).close()


def forget_checkpoints(database: Path, session: int) -> None:
    """Delete the checkpoints of a session that is deleted."""
    for path in checkpoint_folder(database).glob(f"s{session}-*"):
        with suppress(OSError):  # then it goes when there is too much of it
            path.unlink()


def checkpoint_sizes(database: Path) -> dict[int, int]:
    """What the checkpoints of sessions take, of those that are gone too; in bytes."""
    sizes: dict[int, int] = {}
    for path in checkpoint_folder(database).glob("s*-*"):
        with suppress(OSError, ValueError):
            number = int(path.name[1:].partition("-")[0])
            sizes[number] = sizes.get(number, 0) + path.stat().st_size
    return sizes


def make_room(folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """Delete the oldest files while all of them take too much."""
    with suppress(OSError):
        known = [(each.stat(), each) for each in folder.glob("s*.db")]
        known.sort(key=lambda each: each[0].st_mtime)
        left = sum(stat.st_size for stat, _ in known)
        for stat, path in known:
            if left <= most_bytes:
                return
            for end in ("-wal", "-shm", ""):  # a log that stays would be another's
                path.with_name(path.name + end).unlink(missing_ok=True)
            left -= stat.st_size


@cache
def _arithmetic() -> str:
    return digest_of(*(files(package) / name for package, name in SOURCES))


def digest_of(*sources: Traversable) -> str:
    """Of all modules in them but the wording: another one for another arithmetic."""
    digest = blake2b(digest_size=8)
    for source in sources:
        for module in _modules(source):
            digest.update(module.read_bytes())
    return digest.hexdigest()


def _modules(source: Traversable) -> list[Traversable]:
    if source.is_file():
        return [source]
    found = []
    for each in sorted(source.iterdir(), key=lambda each: each.name):
        if each.is_dir():
            found += _modules(each) if each.name != WORDING else []
        elif each.name.endswith(".py"):
            found.append(each)
    return found
