"""Sealed blocks of a Model's rows, stored once, and histograms of many of them.

The session's percentiles count every row since its start. So histograms are stored as
well: after every sixteenth block one of the latest sixteen, after every thirty-second
one of thirty-two, and so on. A few of those and fewer than sixteen blocks give the
counts as of any block.
"""

import sqlite3
import zlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from inferwatch.metrics.series.quantiles import CellCounts, Ints, counts_of
from inferwatch.metrics.series.samples import Block

BYTES = 8
"""Bytes of an integer."""
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
ZLIB_LEVEL = 6
TIMED = 3
"""Rows of time, duration and weight, where the duration is often the time's step."""


def compress(content: bytes) -> bytes:
    """Compress with zlib: LZMA is a tenth smaller, but expands five times as slowly."""
    return zlib.compress(content, ZLIB_LEVEL)


def decompress(packed: bytes) -> bytes:
    """Decompress what :func:`compress` returned.

    Raises:
        ValueError: the data is corrupt.
    """
    try:
        return zlib.decompress(packed)
    except zlib.error as error:
        raise ValueError(str(error)) from error


def pack(columns: Ints) -> bytes:
    """Compress columns: what changes between rows, without bytes that are all zero."""
    steps = np.diff(columns, axis=1, prepend=0)
    if len(columns) == TIMED:
        steps[1] = columns[1] - steps[0]
    planes = _planes((steps << 1) ^ (steps >> 63))  # the sign last: small stay small
    found = (planes != 0).max(axis=2, initial=False)
    found[:, 0] = True  # so that the number of rows is known
    used = BYTES - np.argmax(found[:, ::-1], axis=1)
    kept = (planes[place, :number] for place, number in enumerate(used))
    data = used.astype(np.uint8).tobytes() + b"".join(each.tobytes() for each in kept)
    return compress(data)


def unpack(packed: bytes, width: int) -> Ints:
    """Decompress columns that ``pack`` returned.

    Raises:
        ValueError: the data is corrupt.
    """
    data = np.frombuffer(decompress(packed), np.uint8)
    used, kept = data[:width].astype(int), data[width:]
    if (
        len(used) < width
        or used.min() < 1
        or used.max() > BYTES
        or len(kept) % used.sum()
    ):
        raise ValueError("not columns as we pack them")
    rows = kept.reshape(used.sum(), -1)
    planes = np.zeros((width, BYTES, rows.shape[1]), np.uint8)
    planes[np.arange(BYTES) < used[:, None]] = rows
    signed = _joined(planes).view("<u8")
    return _summed((signed >> 1).view("<i8") ^ -(signed & 1).view("<i8"))


def _planes(steps: Ints) -> Bytes:
    """The bytes of each column, those of the same significance side by side."""
    wide = np.ascontiguousarray(steps, "<i8").view(np.uint8)
    return wide.reshape(len(steps), -1, BYTES).transpose(0, 2, 1)


def _joined(planes: Bytes) -> Ints:
    steps: Ints = np.ascontiguousarray(planes.transpose(0, 2, 1)).view("<i8")[:, :, 0]
    return steps


def _summed(steps: Ints) -> Ints:
    columns: Ints = np.cumsum(steps, axis=1)
    if len(steps) == TIMED:
        columns[1] = steps[1] + steps[0]
    return columns


SHIFT = 40
UNIT = 16
"""Blocks per stored histogram."""
INSERT_BLOCK = "INSERT OR IGNORE INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?)"
INSERT_COUNTS = "INSERT OR IGNORE INTO counts VALUES (?, ?, ?, ?)"
SELECT_BLOCKS = (
    "SELECT place, rows, first_ns, last_ns, sums, maxima FROM blocks "
    "WHERE place >= ? AND place < ? ORDER BY place"
)
SELECT_COLUMNS = "SELECT columns FROM blocks WHERE place = ?"
SELECT_COUNTS = "SELECT total, maximum, cells FROM counts WHERE place = ?"


class StoredBlock:
    """A sealed block of a Model's rows in a file.

    Its sums are in memory; the rows are read on demand.
    """

    def __init__(self, connection: sqlite3.Connection, row: Sequence[Any]) -> None:
        self._connection = connection
        self._place: int = row[0]
        self.rows: int = row[1]
        self.first_ns: int = row[2]
        self.last_ns: int = row[3]
        self.sums: Ints = np.frombuffer(row[4], np.int64)
        self.maxima: Ints = np.frombuffer(row[5], np.int64)

    @cached_property
    def columns(self) -> Ints:
        """The rows of the block, column by column."""
        parameters = (self._place,)
        (packed,) = self._connection.execute(SELECT_COLUMNS, parameters).fetchone()
        return unpack(packed, len(self.sums) + 1)


class BlockStore:
    """The blocks of one kind of rows in a checkpoint file."""

    def __init__(self, connection: sqlite3.Connection, number: int) -> None:
        self._connection = connection
        self._first = number << SHIFT
        query = "SELECT max(place) FROM blocks WHERE place >= ? AND place < ?"
        parameters = (self._first, self._first + (1 << SHIFT))
        (last,) = connection.execute(query, parameters).fetchone()
        self.count = 0 if last is None else last - self._first + 1

    def between(self, begin: int, end: int) -> list[Block]:
        """The blocks in a range of numbers.

        Raises:
            ValueError: some are missing.
        """
        parameters = (self._first + begin, self._first + end)
        rows = self._connection.execute(SELECT_BLOCKS, parameters).fetchall()
        if len(rows) != end - begin:
            raise ValueError("blocks are missing")
        return [StoredBlock(self._connection, row) for row in rows]

    def needed(self, upto: int, kept: int) -> tuple[int, int]:
        """Range of numbers of the blocks needed to restore the first ``upto`` blocks.

        The latest ``kept`` blocks are needed themselves; of the others only those that
        are not in a histogram yet.
        """
        begin = min(upto - kept, upto // UNIT * UNIT, upto - 1)
        return self._first + max(begin, 0), self._first + upto

    def add(self, blocks: Sequence[Block], cell: int | None) -> None:
        """Add blocks, with histograms of their values if ``cell`` gives a cell size."""
        for block in blocks:
            row = (
                self._first + self.count,
                block.rows,
                block.first_ns,
                block.last_ns,
                block.sums.tobytes(),
                block.maxima.tobytes(),
                pack(block.columns),
            )
            self._connection.execute(INSERT_BLOCK, row)
            self.count += 1
            if cell is not None and self.count % UNIT == 0:
                self._count(cell)

    def counts(self, upto: int, cell: int) -> list[CellCounts]:
        """Histograms of the first ``upto`` blocks, to be added up."""
        units = upto // UNIT
        histograms = [
            counts_of(block.columns[1], block.columns[2], cell)
            for block in self.between(units * UNIT, upto)
        ]
        while units:
            histograms.append(self._counted(units))
            # the lowest set bit is the number of units in that histogram
            units &= units - 1
        return histograms

    def _count(self, cell: int) -> None:
        units, level = self.count // UNIT, 1
        parts = [
            counts_of(block.columns[1], block.columns[2], cell)
            for block in self.between(self.count - UNIT, self.count)
        ]
        while units & level == 0:
            parts.append(self._counted(units - level))
            level <<= 1
        whole = _together(parts)
        cells = pack(np.vstack((whole.cells, whole.counts)))
        place = self._first + self.count
        row = (place, whole.total, whole.maximum, cells)
        self._connection.execute(INSERT_COUNTS, row)

    def _counted(self, units: int) -> CellCounts:
        parameters = (self._first + units * UNIT,)
        row = self._connection.execute(SELECT_COUNTS, parameters).fetchone()
        if row is None:
            raise ValueError("counts are missing")
        cells, counts = unpack(row[2], 2)
        return CellCounts(cells=cells, counts=counts, total=row[0], maximum=row[1])


def _together(parts: Sequence[CellCounts]) -> CellCounts:
    cells = np.concatenate([part.cells for part in parts])
    distinct, which = np.unique(cells, return_inverse=True)
    counts = np.zeros(len(distinct), np.int64)
    np.add.at(counts, which, np.concatenate([part.counts for part in parts]))
    return CellCounts(
        cells=distinct,
        counts=counts,
        total=sum(part.total for part in parts),
        maximum=max(part.maximum for part in parts),
    )
