"""Files of checkpoints, beside the recording; they can be deleted at any time.

They hold nothing that is not in the recording. The name contains the version and a
digest of the code, so that another inferwatch, or changed arithmetic, creates its own.
"""

import re
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
"""Total size of checkpoints of one recording file; the least recently used are
deleted."""
MOST_FILE_BYTES = MOST_BYTES * 3 // 4
"""Size of one session's checkpoints. When reached, they are thinned evenly, so that
those of longer sessions are further apart."""
PAGE_BYTES = 65536
"""Suits blobs of a few kilobytes."""
SOURCES = (("inferwatch", "metrics"), ("collectors", "contract/readings.py"))
"""What decides how a Model is made of readings, and how it is saved."""
NUMBER = re.compile(rb"\bNumber\(")
"""A declaration of a number; its arguments are labels and help texts."""
BRACKET = re.compile(
    rb"""[()]|#[^\n]*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""",
)
"""A bracket, or a comment or string, whose brackets do not count."""
DOCSTRING = re.compile(rb'^ *"""(?:[^"\\]|\\.|"(?!""))*"""$', re.MULTILINE)
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
    """Path of a session's checkpoints, whether they exist or not."""
    named = f"{session} {started_ns} {__version__} {_arithmetic()} {SCHEMA}"
    name = blake2b(named.encode(), digest_size=6).hexdigest()
    return checkpoint_folder(database) / f"s{session}-{name}.db"


def checkpoint_folder(database: Path) -> Path:
    """Folder with the checkpoints of all sessions in a recording file."""
    return database.with_name(database.name + FOLDER_END)


def _mode_of_record(folder: Path) -> int:
    """Permissions of the recording, which apply to files beside it."""
    record = folder.with_name(folder.name.removesuffix(FOLDER_END))
    return record.stat().st_mode & 0o666 if record.is_file() else 0o600


def open_checkpoints(path: Path, *, to_write: bool) -> sqlite3.Connection:
    """Open a checkpoint file.

    Raises:
        OSError, sqlite3.Error: there is none, or it is corrupt.
    """
    if to_write:
        path.parent.mkdir(exist_ok=True)
        make_room(path.parent)
        path.touch(_mode_of_record(path.parent))
    connection = connect(path, "rwc" if to_write else "ro")
    if to_write:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")  # it can be created again
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA max_page_count = {MOST_FILE_BYTES // page_bytes}")
        connection.executescript(SCHEMA)
    return connection


def settle_checkpoints(path: Path) -> None:
    """Fold in a write-ahead log left by a reader, if nobody else has the file open."""
    if path.with_name(path.name + "-wal").exists():
        with suppress(OSError, sqlite3.Error):
            open_checkpoints(path, to_write=True).close()


def forget_checkpoints(database: Path, session: int) -> None:
    for path in checkpoint_folder(database).glob(f"s{session}-*"):
        with suppress(OSError):  # it is deleted later, when space is needed
            path.unlink()


def checkpoint_sizes(database: Path) -> dict[int, int]:
    """Bytes of checkpoints by session, deleted sessions included."""
    sizes: dict[int, int] = {}
    for path in checkpoint_folder(database).glob("s*-*"):
        with suppress(OSError, ValueError):
            number = int(path.name[1:].partition("-")[0])
            sizes[number] = sizes.get(number, 0) + path.stat().st_size
    return sizes


def make_room(folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """Delete the oldest files while their total is too large."""
    with suppress(OSError):
        stats = [(each.stat(), each) for each in folder.glob("s*.db")]
        stats.sort(key=lambda each: each[0].st_mtime)
        left = sum(stat.st_size for stat, _ in stats)
        for stat, path in stats:
            if left <= most_bytes:
                return
            # a log left behind would be used with another file
            for end in ("-wal", "-shm", ""):
                path.with_name(path.name + end).unlink(missing_ok=True)
            left -= stat.st_size


@cache
def _arithmetic() -> str:
    return digest_of(*(files(package) / name for package, name in SOURCES))


def digest_of(*sources: Traversable) -> str:
    """Digest of modules without their wording: it changes with the arithmetic only."""
    digest = blake2b(digest_size=8)
    for source in sources:
        for module in _modules(source):
            digest.update(_without_wording(module.read_bytes()))
    return digest.hexdigest()


def _modules(source: Traversable) -> list[Traversable]:
    if source.is_file():
        return [source]
    modules = []
    for each in sorted(source.iterdir(), key=lambda each: each.name):
        if each.is_dir():
            modules += _modules(each)
        elif each.name.endswith(".py"):
            modules.append(each)
    return modules


def _without_wording(code: bytes) -> bytes:
    """Return the code without docstrings and without the arguments of each ``Number``.

    By patterns, in a few milliseconds: to parse all modules takes half a second.
    """
    pieces, at = [], 0
    for number in NUMBER.finditer(code):
        if number.start() >= at:
            pieces.append(code[at : number.end()])
            at = _closing(code, number.end())
    return DOCSTRING.sub(b"", b"".join((*pieces, code[at:])))


def _closing(code: bytes, at: int) -> int:
    """Return where the bracket that was opened just before a position is closed."""
    depth = 1
    for bracket in BRACKET.finditer(code, at):
        depth += (bracket[0] == b"(") - (bracket[0] == b")")
        if not depth:
            return bracket.start()
    return at
