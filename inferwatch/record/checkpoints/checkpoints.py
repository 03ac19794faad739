"""Checkpoints: saved states of the Model at points of a session.

Written by whoever reads a session from its start: the recorder, or a replay of a
session without any.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Self

import msgspec

from inferwatch.metrics.model.model import Model, SavedModel
from inferwatch.metrics.series.quantiles import DeferredCounts
from inferwatch.metrics.series.samples import Block, SavedRows
from inferwatch.record.checkpoints.blocks import BlockStore, compress, decompress
from inferwatch.record.checkpoints.file import checkpoint_path, open_checkpoints
from inferwatch.record.file.sqlite import Cursor, transaction

SWEEP = 32
"""Checkpoints examined per write, so that thinning never takes long."""
SPARE = 32
"""One in so many pages of the file stays free while it is thinned."""
FEWEST_SPARE = 16
INSERT = "INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)"
INSERT_PART = "INSERT INTO parts (content) VALUES (?)"
SELECT_LAST = (
    "SELECT ordinal, number, reach, parts FROM checkpoints "
    "ORDER BY ordinal DESC LIMIT 1"
)
SELECT = "SELECT ordinal, t_ns, open_requests, state, parts FROM checkpoints "
BY_TIME = SELECT + "WHERE t_ns <= ? ORDER BY t_ns DESC LIMIT 1"
BY_ORDINAL = SELECT + "WHERE ordinal <= ? ORDER BY ordinal DESC LIMIT 1"
SELECT_NEXT = (
    "SELECT ordinal, number, reach, parts FROM checkpoints WHERE ordinal >= ? "
    "ORDER BY ordinal LIMIT ?"
)
DELETE_BLOCKS = "DELETE FROM blocks WHERE place >= ? AND place < ?"
Row = tuple[int, int, bytes, bytes, bytes]
Link = tuple[int, int, bytes, bytes]
"""Ordinal, number, reach and parts of a checkpoint."""
Reach = dict[str, tuple[int, int]]
"""By name of rows: the range of blocks a checkpoint needs."""
REFUSALS = (sqlite3.Error, msgspec.MsgspecError, ValueError, KeyError)
"""Errors of a corrupt file."""
UNSAVABLE = (msgspec.MsgspecError, ValueError, OverflowError)
"""Errors of saving a Model with values no file can hold."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A saved Model, and the last reading it includes."""

    ordinal: int
    t_ns: int
    """When that reading was received, see
    :mod:`inferwatch.metrics.load.receipt_clock`."""
    saved: SavedModel


KeptCheckpoint = tuple[Checkpoint, tuple[int, ...]]
"""A checkpoint, and the requests open at that time."""


class Checkpoints:
    """The checkpoints of one session, in an open file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._stores: dict[str, BlockStore] = {}
        self._last = -1
        """Ordinal of the last one in the file, as far as known."""
        self._reach: Reach = {}
        """The blocks that one needs."""
        self._number = -1
        """Number of the last one made."""
        self._part_numbers: dict[bytes, int] = {}
        """Parts of that one by digest."""
        self._swept = -1
        """Ordinal up to which thinning is complete."""

    @classmethod
    def open(cls, path: Path, *, to_write: bool) -> Self:
        """Open a file of checkpoints.

        Raises:
            OSError, sqlite3.Error: there is none, or it cannot be opened.
        """
        return cls(open_checkpoints(path, to_write=to_write))

    def close(self) -> None:
        """Close the file, leaving one plain file if nobody else has it open."""
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA journal_mode = DELETE")
        self._connection.close()

    @property
    def last(self) -> tuple[int, int] | None:
        """Ordinal and time of the last checkpoint; None without any."""
        query = "SELECT ordinal, t_ns FROM checkpoints ORDER BY ordinal DESC LIMIT 1"
        row = self._connection.execute(query).fetchone()
        return None if row is None else (row[0], row[1])

    def keep(self, checkpoint: Checkpoint, open_requests: Sequence[int]) -> None:
        """Write a checkpoint, unless it is thinned out; call this in order of time.

        Several processes may write the same ones: existing ones are left alone.

        Raises:
            sqlite3.Error: it cannot be written.
            ValueError: blocks since the last one are missing.
        """
        with transaction(self._connection):
            self._catch_up()
            if checkpoint.ordinal <= self._last:
                return
            self._number += 1
            reach = self._keep_blocks(checkpoint.saved)
            if self._number % self._stride == 0:
                self._insert(checkpoint, reach, open_requests)
            self._thin()

    def _insert(
        self, checkpoint: Checkpoint, reach: Reach, open_requests: Sequence[int]
    ) -> None:
        digests = [_digest(content) for content in checkpoint.saved.parts]
        parts = [
            self._part_numbers.get(digest) or self._insert_part(content)
            for digest, content in zip(digests, checkpoint.saved.parts, strict=True)
        ]
        row = (
            checkpoint.ordinal,
            self._number,
            checkpoint.t_ns,
            msgspec.msgpack.encode(reach),
            msgspec.msgpack.encode(list(open_requests)),
            compress(checkpoint.saved.state),
            msgspec.msgpack.encode(parts),
        )
        self._connection.execute(INSERT, row)
        self._drop_blocks(self._reach, reach)
        self._last, self._reach = checkpoint.ordinal, reach
        self._part_numbers = dict(zip(digests, parts, strict=True))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep checkpoints from being thinned while one is read."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def row_before(
        self, *, t_ns: int | None = None, ordinal: int | None = None
    ) -> Row | None:
        """The last checkpoint up to a time or an ordinal; None if there is none."""
        query, bound = (BY_TIME, t_ns) if ordinal is None else (BY_ORDINAL, ordinal)
        row: Row | None = self._connection.execute(query, (bound,)).fetchone()
        return row

    def restore(self, row: Row) -> tuple[Model, Cursor]:
        """Restore the Model, and the cursor to continue from.

        Raises:
            Exception: one of REFUSALS, as the file is corrupt.
        """
        ordinal, _, begun, state, parts = row
        numbers = msgspec.msgpack.decode(parts, type=list[int])
        model = Model.restored(
            decompress(state),
            self._parts(numbers),
            self._blocks_of,
            self._deferred_of,
        )
        open_requests = msgspec.msgpack.decode(begun, type=tuple[int, ...])
        return model, Cursor(ordinal, open_requests)

    def _catch_up(self) -> None:
        """Continue from the last checkpoint that another writer has added."""
        row = self._connection.execute(SELECT_LAST).fetchone()
        if row is None or row[0] == self._last:
            return
        self._last, self._number = row[0], row[1]
        self._reach = msgspec.msgpack.decode(row[2], type=Reach)
        numbers = msgspec.msgpack.decode(row[3], type=list[int])
        digests = map(_digest, self._parts(numbers))
        self._part_numbers = dict(zip(digests, numbers, strict=True))
        self._stores.clear()

    def _keep_blocks(self, saved: SavedModel) -> Reach:
        reach: Reach = {}
        for name, (sealed, blocks, cell) in saved.blocks.items():
            store = self._store_of(name)
            fresh = sealed - store.count
            if fresh > len(blocks):
                raise ValueError("blocks were forgotten before they were kept")
            if fresh > 0:
                store.add(blocks[-fresh:], cell)
            reach[name] = store.needed(sealed, len(blocks))
        return reach

    def _insert_part(self, content: bytes) -> int:
        packed = (compress(content),)
        return int(self._connection.execute(INSERT_PART, packed).lastrowid or 0)

    @property
    def _stride(self) -> int:
        """The n of "keep only every n-th checkpoint", a power of two."""
        return 1 << self._pragma("user_version")

    def _pragma(self, name: str) -> int:
        (value,) = self._connection.execute(f"PRAGMA {name}").fetchone()
        return int(value)

    def _thin(self) -> None:
        """Delete some checkpoints that are too close; double the stride when full."""
        rows = self._connection.execute(SELECT_NEXT, (self._swept, SWEEP)).fetchall()
        swept_all, stride = len(rows) < SWEEP, self._stride
        # the first stays, and the last, which the next one builds on
        while len(rows) > 2:
            before, here, after = rows[:3]
            if here[1] % stride:
                self._drop(before, here, after)
                del rows[1]
            else:
                del rows[0]
        self._swept = rows[0][0] if rows else -1
        if swept_all and self._is_full() and stride <= self._number:
            self._connection.execute(f"PRAGMA user_version = {stride.bit_length()}")
            self._swept = -1

    def _is_full(self) -> bool:
        most = self._pragma("max_page_count")
        used = self._pragma("page_count") - self._pragma("freelist_count")
        return used > most - max(most // SPARE, FEWEST_SPARE)

    def _drop(self, before: Link, here: Link, after: Link) -> None:
        """Delete the checkpoint between two others, and what only it needs."""
        beside, gone = (
            {part for row in rows for part in msgspec.msgpack.decode(row[3])}
            for rows in ((before, after), (here,))
        )
        self._connection.executemany(
            "DELETE FROM parts WHERE part = ?", [(part,) for part in gone - beside]
        )
        self._connection.execute(
            "DELETE FROM checkpoints WHERE ordinal = ?", (here[0],)
        )
        self._drop_blocks(
            *(msgspec.msgpack.decode(row[2], type=Reach) for row in (before, after))
        )

    def _drop_blocks(self, before: Reach, after: Reach) -> None:
        """Delete blocks that neither of two neighbouring checkpoints needs."""
        # rows of a load run disappear with its samples
        names = before.keys() & after.keys()
        between = [(before[name][1], after[name][0]) for name in names]
        apart = [(begin, end) for begin, end in between if begin < end]
        self._connection.executemany(DELETE_BLOCKS, apart)

    def _parts(self, numbers: Sequence[int]) -> list[bytes]:
        marks = ", ".join("?" * len(numbers))
        query = f"SELECT part, content FROM parts WHERE part IN ({marks})"  # noqa: S608
        contents = dict(self._connection.execute(query, numbers).fetchall())
        return [decompress(contents[number]) for number in numbers]

    def _blocks_of(self, name: str, rows: SavedRows) -> list[Block]:
        return self._store_of(name).between(rows.sealed - rows.kept, rows.sealed)

    def _deferred_of(self, name: str, rows: SavedRows) -> DeferredCounts:
        store, cell = self._store_of(name), rows.cell
        return lambda: store.counts(rows.sealed, cell or 1)

    def _store_of(self, name: str) -> BlockStore:
        store = self._stores.get(name)
        if store is None:
            store = self._stores[name] = BlockStore(self._connection, self._row(name))
        return store

    def _row(self, name: str) -> int:
        query = "SELECT number FROM rows WHERE name = ?"
        row = self._connection.execute(query, (name,)).fetchone()
        if row is None:
            insert = "INSERT INTO rows (name) VALUES (?)"
            return int(self._connection.execute(insert, (name,)).lastrowid or 0)
        return int(row[0])


def no_checkpoints(error: Exception) -> str:
    """Explains to users that there are no checkpoints from here on."""
    reason = f"{error}" or repr(error)
    return f"no checkpoints from here on, so seeking takes longer: {reason}"


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()


class CheckpointWriter:
    """Writes checkpoints while a session is recorded, and reports a failure.

    It opens the file with the first checkpoint and stops after a failure. Nothing is
    lost by that, because a replay creates missing ones.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._checkpoints: Checkpoints | None = None
        self.given_up = False
        """No more checkpoints are written."""
        self.trouble: str | None = None
        """Why no more are written, if that is a failure."""

    def keep(
        self, session: int, started_ns: int, kept: Sequence[KeptCheckpoint]
    ) -> None:
        """Write checkpoints; the readings up to there have been committed."""
        if self.given_up:
            return
        try:
            if self._checkpoints is None:
                path = checkpoint_path(self._database, session, started_ns)
                self._checkpoints = Checkpoints.open(path, to_write=True)
            for checkpoint, open_requests in kept:
                self._checkpoints.keep(checkpoint, open_requests)
        except Exception as error:  # noqa: BLE001  it must not cost the record
            self.give_up(no_checkpoints(error))

    def give_up(self, trouble: str) -> None:
        """Write no more, and give users the reason."""
        if not self.given_up:
            self.trouble = trouble
        self.close()

    def close(self) -> None:
        self.given_up = True
        if self._checkpoints is not None:
            with suppress(sqlite3.Error):
                self._checkpoints.close()
            self._checkpoints = None
