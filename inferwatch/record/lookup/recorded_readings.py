"""A recorded session as a source: the same readings, in the same order."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from pathlib import Path
from threading import Lock

from collectors.contract.readings import AnyReading
from inferwatch.record.connections import open_for_reading
from inferwatch.record.sessions.sessions import find
from inferwatch.record.tables.codec import recorded

READINGS_AT_ONCE = 1_000


class RecordedReadings:
    """A recorded session as a collector: gives what its recorder was given.

    A session that is still being recorded is replayed as of the first batch.
    """

    def __init__(self, path: Path, session_id: str) -> None:
        """Find the session, by anything :func:`find` understands.

        Raises:
            StorageError: no such file or no such session.
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
            with self._reading:  # a cancelled wait leaves its thread reading on
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
