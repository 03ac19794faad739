"""What a table must know: a kind of reading as rows, both ways round."""

import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from typing import Protocol, TypeVar

import msgspec

from collectors.readings import AnyReading
from inferwatch.errors import StorageError
from inferwatch.storage.file.faults import RECOVER
from inferwatch.storage.place import START, Place
from inferwatch.storage.tables.batch import Batch, Key
from inferwatch.storage.tables.columns import Columns, insert_sql, select_sql

Numbered = tuple[int, AnyReading]
"""A reading with its ordinal."""
KEY = ("session", "ordinal", "source")
Kind_contra = TypeVar("Kind_contra", contravariant=True)


class Table(Protocol[Kind_contra]):
    """Where the readings of one kind are kept."""

    def add(self, batch: Batch, key: Key, reading: Kind_contra) -> None:
        """Turn a reading into rows, now or when the batch is complete."""
        ...

    def complete(self, batch: Batch) -> None:
        """The batch has no more readings: add the rows that waited for that."""
        ...

    def read(
        self,
        connection: sqlite3.Connection,
        session: int,
        sources: Mapping[int, str],
        place: Place = START,
    ) -> Iterator[Numbered]:
        """A session's readings after a place, in order of receipt."""
        ...


UNREADABLE = (
    msgspec.MsgspecError,
    zlib.error,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What making a reading of a row may end in whose bytes have changed."""


class SourceNames(dict[int, str]):
    """The sources of a session by number; one whose name is lost is unknown."""

    def __missing__(self, number: int) -> str:
        """As it is called in what is saved of a damaged file."""
        return f"unknown-{number}"


def readable(rows: Iterator[Numbered]) -> Iterator[Numbered]:
    """The same readings, up to the first that makes no sense.

    Raises:
        StorageError: it has come to that.
    """
    ordinal = None
    try:
        for ordinal, reading in rows:
            yield ordinal, reading
    except UNREADABLE as error:
        place = "the first reading" if ordinal is None else f"reading {ordinal:,}"
        raise StorageError(
            f"the record is damaged: what comes after {place} makes no sense; {RECOVER}"
        ) from error


class PlainTable:
    """A reading is a row, a field is a column."""

    def __init__(
        self,
        name: str,
        kind: type[AnyReading],
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        self._kind = kind
        self._columns = Columns(kind, renamed=renamed)
        self._insert = insert_sql(name, (*KEY, *self._columns.names))
        self._select = select_sql(name, ("source", *self._columns.names))

    def add(self, batch: Batch, key: Key, reading: AnyReading) -> None:
        """One row."""
        batch.add(self._insert, key + self._columns.values(reading))

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
        rows = connection.execute(self._select, (session, place.ordinal))
        for ordinal, source, *values in rows:
            fields = self._columns.restore(values)
            yield ordinal, self._kind(source=sources[source], **fields)
