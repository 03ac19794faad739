"""Chunk arrivals of client requests: the gaps as a compressed JSON list."""

import sqlite3
import zlib
from collections.abc import Iterator, Mapping

import msgspec

from collectors.readings import TokenTimes
from inferwatch.storage.place import START, Place
from inferwatch.storage.tables.batch import Batch, Key
from inferwatch.storage.tables.columns import Columns, insert_sql, select_sql
from inferwatch.storage.tables.table import KEY, Numbered

_columns = Columns(TokenTimes, without=("gaps_ns",))

INSERT = insert_sql("token_times", (*KEY, *_columns.names, "gaps", "gaps_ns"))
SELECT = select_sql("token_times", ("source", "gaps_ns", *_columns.names))


class TokenTimesTable:
    """One row and one blob a request."""

    def add(self, batch: Batch, key: Key, reading: TokenTimes) -> None:
        """The row."""
        blob = zlib.compress(msgspec.json.encode(reading.gaps_ns))
        values = _columns.values(reading)
        batch.add(INSERT, (*key, *values, len(reading.gaps_ns), blob))

    def complete(self, batch: Batch) -> None:
        """Nothing waits."""

    def read(
        self,
        connection: sqlite3.Connection,
        session: int,
        sources: Mapping[int, str],
        place: Place = START,
    ) -> Iterator[Numbered]:
        """One reading a row."""
        rows = connection.execute(SELECT, (session, place.ordinal))
        for ordinal, source, blob, *values in rows:
            gaps_ns = msgspec.json.decode(zlib.decompress(blob))
            fields = _columns.restore(values)
            yield (
                ordinal,
                TokenTimes(source=sources[source], gaps_ns=gaps_ns, **fields),
            )
