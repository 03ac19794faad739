"""Checkpoints: the Model as of some places of a session, to go on from.

Written by whoever folds a session from its start: the recorder while it is recorded, or
a replay of one that has none.
"""

import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Self

import msgspec

from inferwatch.metrics.count_table import Owed
from inferwatch.metrics.model import Model
from inferwatch.metrics.pieces import cell_of
from inferwatch.metrics.recent import Block, SavedRows
from inferwatch.metrics.saved import SavedModel
from inferwatch.storage.checkpoint_blocks import BlockShelf
from inferwatch.storage.checkpoint_file import open_checkpoints
from inferwatch.storage.place import Place
from inferwatch.storage.transaction import transaction

LEVEL = 6
INSERT = "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?)"
INSERT_PART = "INSERT OR IGNORE INTO parts VALUES (?, ?)"
SELECT = "SELECT ordinal, t_ns, open_requests, state, parts FROM checkpoints "
BY_TIME = SELECT + "WHERE t_ns <= ? ORDER BY t_ns DESC LIMIT 1"
BY_ORDINAL = SELECT + "WHERE ordinal <= ? ORDER BY ordinal DESC LIMIT 1"
Row = tuple[int, int, bytes, bytes, bytes]
REFUSALS = (sqlite3.Error, msgspec.MsgspecError, zlib.error, ValueError, KeyError)
"""What a file that is not as we wrote it may end in."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A Model that was saved, and after which reading."""

    ordinal: int
    t_ns: int
    """When that reading was there, see :mod:`inferwatch.metrics.receipts`."""
    saved: SavedModel


class Checkpoints:
    """Those of one session, in an open file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._shelves: dict[str, BlockShelf] = {}
        self._known: set[int] = set()

    @classmethod
    def open(cls, path: Path, *, to_write: bool) -> Self:
        """Open them.

        Raises:
            OSError, sqlite3.Error: there are none.
        """
        return cls(open_checkpoints(path, to_write=to_write))

    def close(self) -> None:
        """Let go of the file, one plain file if nobody else has it."""
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA journal_mode = DELETE")
        self._connection.close()

    @property
    def last(self) -> tuple[int, int] | None:
        """Ordinal and moment of the last one."""
        query = "SELECT ordinal, t_ns FROM checkpoints ORDER BY ordinal DESC LIMIT 1"
        row = self._connection.execute(query).fetchone()
        return None if row is None else (row[0], row[1])

    def keep(self, checkpoint: Checkpoint, open_requests: Sequence[int]) -> None:
        """Write one; they come in order.

        Raises:
            sqlite3.Error: it cannot be written.
            ValueError: too much happened since the last one.
        """
        saved = checkpoint.saved
        with transaction(self._connection):
            for name, (sealed, blocks) in saved.blocks.items():
                self._keep_blocks(name, sealed, blocks)
            parts = [self._keep_part(content) for content in saved.parts]
            row = (
                *(checkpoint.ordinal, checkpoint.t_ns),
                msgspec.msgpack.encode(list(open_requests)),
                zlib.compress(saved.state, LEVEL),
                msgspec.msgpack.encode(parts),
            )
            self._connection.execute(INSERT, row)
        self._known = set(parts)

    def row_before(
        self, *, t_ns: int | None = None, ordinal: int | None = None
    ) -> Row | None:
        """The last checkpoint up to a moment or a reading."""
        query, asked = (BY_TIME, t_ns) if ordinal is None else (BY_ORDINAL, ordinal)
        row: Row | None = self._connection.execute(query, (asked,)).fetchone()
        return row

    def restore(self, row: Row) -> tuple[Model, Place]:
        """The Model as it was.

        Raises:
            REFUSALS: the file is not as we wrote it.
        """
        ordinal, _, begun, state, parts = row
        numbers = msgspec.msgpack.decode(parts, type=list[int])
        model = Model.restored(
            zlib.decompress(state),
            self._parts(numbers),
            self._blocks_of,
            self._owed_of,
        )
        open_requests = msgspec.msgpack.decode(begun, type=tuple[int, ...])
        return model, Place(ordinal, open_requests)

    def _keep_blocks(self, name: str, sealed: int, blocks: Sequence[Block]) -> None:
        shelf = self._shelf(name)
        fresh = sealed - shelf.count
        if fresh > len(blocks):
            raise ValueError("blocks were forgotten before they were kept")
        if fresh > 0:
            shelf.add(blocks[-fresh:], cell_of(name))

    def _keep_part(self, content: bytes) -> int:
        digest = blake2b(content, digest_size=8).digest()
        number = int.from_bytes(digest, "big", signed=True)
        if number not in self._known:
            row = (number, zlib.compress(content, LEVEL))
            self._connection.execute(INSERT_PART, row)
        return number

    def _parts(self, numbers: Sequence[int]) -> list[bytes]:
        marks = ", ".join("?" * len(numbers))
        query = f"SELECT part, content FROM parts WHERE part IN ({marks})"  # noqa: S608
        held = dict(self._connection.execute(query, numbers).fetchall())
        return [zlib.decompress(held[number]) for number in numbers]

    def _blocks_of(self, name: str, rows: SavedRows) -> list[Block]:
        return self._shelf(name).between(rows.sealed - rows.kept, rows.sealed)

    def _owed_of(self, name: str, rows: SavedRows) -> Owed:
        shelf, cell = self._shelf(name), cell_of(name)
        return lambda: shelf.counts(rows.sealed, cell or 1)

    def _shelf(self, name: str) -> BlockShelf:
        shelf = self._shelves.get(name)
        if shelf is None:
            shelf = self._shelves[name] = BlockShelf(self._connection, self._row(name))
        return shelf

    def _row(self, name: str) -> int:
        query = "SELECT number FROM rows WHERE name = ?"
        row = self._connection.execute(query, (name,)).fetchone()
        if row is None:
            insert = "INSERT INTO rows (name) VALUES (?)"
            return int(self._connection.execute(insert, (name,)).lastrowid or 0)
        return int(row[0])
