"""Converts readings to rows and back, over all tables."""

import sqlite3
from collections.abc import Iterable, Iterator
from heapq import merge
from operator import itemgetter
from typing import Any

import msgspec

from collectors.contract.readings import Endpoint, EngineInfo, LoadPlanned, ServerInfo
from inferwatch.metrics.load.plan import plan_facts
from inferwatch.record.checkpoints.checkpoints import Checkpoint
from inferwatch.record.file.sqlite import START, Cursor
from inferwatch.record.tables.reading_tables import every_table
from inferwatch.record.tables.requests import RequestReadingTable
from inferwatch.record.tables.table import (
    Numbered,
    ReadingTable,
    RowBatch,
    SourceNames,
    readable,
)

Queued = Numbered | tuple[int, Checkpoint]
"""An item to be written: a reading or a Model, by ordinal."""
UNWRITABLE = (msgspec.MsgspecError, TypeError, ValueError, OverflowError)
"""Errors of converting a reading that does not fit into a row."""
INSERT_SOURCE = "INSERT INTO sources (session, source, name) VALUES (?, ?, ?)"
SELECT_SOURCES = "SELECT source, name FROM sources WHERE session = ?"


class ReadingEncoder:
    """Converts the readings of one session to rows, keeping state between batches."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._sources: dict[str, int] = {}
        self._tables = every_table()
        self._by_kind = {table.kind: table for table in self._tables}
        self._other = self._by_kind[None]
        self._requests = _requests(self._tables)

    def batch(self, readings: Iterable[Queued]) -> RowBatch:
        batch = RowBatch()
        for ordinal, reading in readings:
            if isinstance(reading, Checkpoint):
                batch.checkpoints.append((reading, self._requests.open_requests()))
                continue
            key = (self._session, ordinal, self._source(batch, reading.source))
            table = self._by_kind.get(type(reading), self._other)
            try:
                table.add(batch, key, reading)
            except UNWRITABLE:
                batch.lost += 1
                continue
            batch.readings += 1
            if isinstance(reading, EngineInfo | Endpoint):
                batch.model = reading.model
            elif isinstance(reading, ServerInfo) and reading.models:
                batch.model = reading.models[0]
            elif isinstance(reading, LoadPlanned) and (plan := plan_facts(reading)):
                batch.model = plan.model or batch.model
        for table in self._tables:
            table.complete(batch)
        return batch

    def _source(self, batch: RowBatch, name: str) -> int:
        number = self._sources.get(name)
        if number is None:
            number = self._sources[name] = len(self._sources)
            batch.add(INSERT_SOURCE, (self._session, number, name))
        return number


class ReadingDecoder:
    """The readings of a session after a cursor, in order of receipt.

    Memory is bounded. The caller holds a transaction open, so that all tables are at
    the same state. A corrupt row raises StorageError.
    """

    def __init__(
        self, connection: sqlite3.Connection, session: int, after: Cursor = START
    ) -> None:
        sources = SourceNames(connection.execute(SELECT_SOURCES, (session,)).fetchall())
        tables = every_table()
        self._requests = _requests(tables)
        self._readings = merge(
            *(
                readable(table.read(connection, session, sources, after))
                for table in tables
            ),
            key=itemgetter(0),
        )

    def __iter__(self) -> Iterator[Numbered]:
        """The readings; can be iterated once."""
        return self._readings

    def cursor(self, ordinal: int, *, growing: bool = False) -> Cursor:
        """The cursor after the last reading taken; ``growing``: more may follow."""
        unread = self._requests.unread
        return Cursor(ordinal, unread.open_after(ordinal, growing=growing))


def recorded(
    connection: sqlite3.Connection, session: int, after: Cursor = START
) -> Iterator[Numbered]:
    """The readings of a session, as from :class:`ReadingDecoder`."""
    return iter(ReadingDecoder(connection, session, after))


def _requests(tables: Iterable[ReadingTable[Any]]) -> RequestReadingTable:
    return next(table for table in tables if isinstance(table, RequestReadingTable))
