"""A collector of a recorded session: the same readings in the same order."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from threading import Lock

from collectors.contract.readings import AnyReading, LoadPlanned
from inferwatch.record.connections import open_for_reading
from inferwatch.record.sessions.sessions import find
from inferwatch.record.tables.codec import SELECT_SOURCES, recorded
from inferwatch.record.tables.load_plans import load_plans
from inferwatch.record.tables.reading_tables import every_table
from inferwatch.record.tables.table import SourceNames, readable


def chosen_readings(
    connection: sqlite3.Connection,
    session: int,
    kinds: Collection[type[AnyReading]],
) -> Iterator[AnyReading]:
    """The readings of these kinds, kind by kind, each in order of receipt.

    The caller holds a transaction open. Readings kept in ``other_readings`` because
    they do not fit their own table come last.

    Raises:
        StorageError: a row is corrupt.
    """
    sources = SourceNames(connection.execute(SELECT_SOURCES, (session,)).fetchall())
    if LoadPlanned in kinds:
        yield from load_plans(connection, session)
    wanted = tuple(kind for kind in kinds if kind is not LoadPlanned)
    for table in every_table():
        if table.kind is not None and table.kind not in wanted:
            continue
        for _, reading in readable(table.read(connection, session, sources)):
            if isinstance(reading, wanted):
                yield reading


READINGS_AT_ONCE = 1_000


class RecordedReadings:
    """A collector that returns what was given to a session's recorder.

    A session that is still being recorded is replayed up to its state at the first
    batch.
    """

    def __init__(self, path: Path, session_id: str) -> None:
        """Find the session by anything :func:`find` understands.

        Raises:
            StorageError: there is no such file or session.
        """
        self.session = find(path, session_id)
        self._path = path
        self._closed = False
        self._reading = Lock()

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """The readings in order of receipt, about a thousand at a time."""
        connection = open_for_reading(self._path)
        try:
            readings = self._readings(connection)
            while batch := await asyncio.to_thread(self._next, readings):
                yield batch
        finally:
            with self._reading:  # after a cancelled wait, its thread is still reading
                connection.close()

    async def close(self) -> None:
        """Stop before the next batch."""
        self._closed = True

    def _readings(self, connection: sqlite3.Connection) -> Iterator[AnyReading]:
        connection.execute("BEGIN")
        for _, reading in recorded(connection, self.session.session):
            yield reading

    def _next(self, readings: Iterator[AnyReading]) -> list[AnyReading]:
        with self._reading:
            return [] if self._closed else list(islice(readings, READINGS_AT_ONCE))
