"""Readings that have no row of their own elsewhere, whole, so that none is lost."""

import sqlite3
from collections.abc import Iterator, Mapping
from typing import get_args

import msgspec

from collectors.readings import AnyReading
from inferwatch.storage.place import START, Place
from inferwatch.storage.tables.batch import Batch, Key
from inferwatch.storage.tables.columns import insert_sql, select_sql
from inferwatch.storage.tables.table import KEY, Numbered

INSERT = insert_sql("other_readings", (*KEY, "kind", "reading"))
SELECT = select_sql("other_readings", ("source", "kind", "reading"))
KNOWN = {kind.__name__ for kind in get_args(AnyReading)}
"""Others were written by an inferwatch that knows more kinds than this one."""

_decoder = msgspec.msgpack.Decoder(AnyReading)


class OtherTable:
    """Takes anything, as it stands on the wire."""

    def add(self, batch: Batch, key: Key, reading: AnyReading) -> None:
        """One row."""
        bare = msgspec.structs.replace(reading, source="")
        row = (*key, type(reading).__name__, msgspec.msgpack.encode(bare))
        batch.add(INSERT, row)

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
        for ordinal, source, kind, blob in rows:
            if kind not in KNOWN:
                continue
            bare = _decoder.decode(blob)
            yield ordinal, msgspec.structs.replace(bare, source=sources[source])
