"""Declarations of tables: a kind of reading as rows, in both directions.

Recording, replay, export, integrity checks and recovery rely on these declarations and
on the schema; nothing else names the tables.
"""

import sqlite3
import zlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cache
from operator import attrgetter
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec

from collectors.contract.readings import AnyReading
from inferwatch.errors import StorageError
from inferwatch.record.checkpoints.checkpoints import Checkpoint
from inferwatch.record.file.sqlite import RECOVER, START, Cursor

Key = tuple[int, int, int]
"""Session, ordinal and source: the first columns of most tables."""
Row = tuple[object, ...]

UNSTORABLE = (
    OverflowError,
    UnicodeEncodeError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)
"""Errors caused by the row itself, so retrying cannot help."""


class RowBatch:
    """The rows of one transaction by INSERT statement, with counts."""

    def __init__(self) -> None:
        self.readings = 0
        """Readings that became rows."""
        self.lost = 0
        """Readings that could not become rows."""
        self.steps = 0
        self.requests = 0
        self.model: str | None = None
        self.checkpoints: list[tuple[Checkpoint, tuple[int, ...]]] = []
        """With the requests open at that time; see :class:`Cursor`."""
        self._rows: defaultdict[str, list[Row]] = defaultdict(list)

    def add(self, statement: str, row: Row) -> None:
        self._rows[statement].append(row)

    def insert(self, connection: sqlite3.Connection) -> None:
        """Insert all rows within the caller's transaction."""
        for statement, rows in self._rows.items():
            connection.executemany(statement, rows)

    def insert_what_can_be(self, connection: sqlite3.Connection) -> int:
        """Insert the rows one by one; returns how many could not be stored."""
        return sum(
            not _inserted(connection, statement, row)
            for statement, rows in self._rows.items()
            for row in rows
        )


def _inserted(connection: sqlite3.Connection, statement: str, row: Row) -> bool:
    try:
        connection.execute(statement, row)
    except UNSTORABLE:
        return False
    return True


Numbered = tuple[int, AnyReading]
"""A reading with its ordinal."""
Reader = Callable[..., object]
"""Reads a column's value, and fails if it is invalid."""
KEY = ("session", "ordinal", "source")
Kind = TypeVar("Kind")
STORED = (str, int, float, NoneType)
"""Types written into columns; bools are stored as integers."""
UNREADABLE = (
    msgspec.MsgspecError,
    zlib.error,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""Errors of reading a row whose bytes are damaged."""


class SessionPart(StrEnum):
    """A part of a session that can be exported."""

    REQUESTS = "requests"
    STEPS = "steps"
    CAUSES = "causes"
    """Why requests were late: computed by the Model, not stored in a table."""
    GPU = "gpu"
    """GPUs and the host's processes."""
    NOTES = "notes"
    CLIENT = "client"
    """The load generator's own readings."""
    ALL = "all"
    """Tables of no other part are exported only with the whole session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobColumn:
    """A column of values opaque to SQL, and how to read them."""

    table: str
    column: str
    reader: Reader
    quick: Reader | None = None
    """Detects a damaged byte faster than reading the value: a checksum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRows:
    """What a table keeps in blobs, as rows for export."""

    name: str
    columns: tuple[str, ...]
    """Columns after the ordinal and the source."""
    rows: Callable[[Any], Iterator[Row]]
    """The rows of one reading."""
    moment: str | None = None
    """The field of the reading with its time; None: it is always exported."""
    on_request: bool = True
    """Exported only with ``--token-times``, as there are many rows."""


class ReadingTable(ABC, Generic[Kind]):
    """Stores the readings of one kind; declares how they are exported and checked."""

    name: str
    """Name in SQL."""
    kind: type[AnyReading] | None = None
    """The reading stored as a row; None takes any."""
    part: SessionPart = SessionPart.ALL
    with_it: tuple[str, ...] = ()
    """Other tables of the same part."""
    moment: str = "t_ns"
    """SQL expression for the time of a row."""
    readings: str = "count(*)"
    """SQL expression for the number of readings in its rows."""
    enums: Mapping[str, type[Enum]] = {}
    """Columns that hold values of an enumeration."""
    blobs: tuple[BlobColumn, ...] = ()
    unpacked: ExportedRows | None = None
    mend: tuple[str, ...] = ()
    """Statements that delete rows made useless by lost ones; ``:session`` is the
    session."""

    @abstractmethod
    def add(self, batch: RowBatch, key: Key, reading: Kind) -> None:
        """Turn a reading into rows, now or when the batch is complete."""

    def complete(self, batch: RowBatch) -> None:
        """Add rows that were deferred to the end of the batch."""

    @abstractmethod
    def read(
        self,
        connection: sqlite3.Connection,
        session: int,
        sources: Mapping[int, str],
        after: Cursor = START,
    ) -> Iterator[Numbered]:
        """A session's readings after a cursor, in order of receipt."""


class PlainTable(ReadingTable[AnyReading]):
    """Stores a reading as a row, each field in a column."""

    def __init__(
        self,
        name: str,
        kind: type[AnyReading],
        *,
        part: SessionPart = SessionPart.ALL,
        moment: str = "t_ns",
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.kind, self.moment = name, kind, moment
        self.part = part
        self._make = kind
        self._columns = StructColumns(kind, renamed=renamed)
        self.enums = self._columns.enums
        self.blobs = tuple(
            BlobColumn(table=name, column=column, reader=msgspec.json.decode)
            for column in self._columns.json
        )
        self._insert = insert_sql(name, (*KEY, *self._columns.names))
        self._select = select_sql(name, ("source", *self._columns.names))

    def add(self, batch: RowBatch, key: Key, reading: AnyReading) -> None:
        batch.add(self._insert, key + self._columns.values(reading))

    def read(
        self,
        connection: sqlite3.Connection,
        session: int,
        sources: Mapping[int, str],
        after: Cursor = START,
    ) -> Iterator[Numbered]:
        rows = connection.execute(self._select, (session, after.ordinal))
        for ordinal, source, *values in rows:
            fields = self._columns.restore(values)
            yield ordinal, self._make(source=sources[source], **fields)


_fields = cache(msgspec.structs.fields)
"""Looked up in the annotations anew, they would take 5 ms of each seek."""


class StructColumns:
    """The columns of a Struct's fields, in order.

    Lists and dictionaries are stored as JSON.
    """

    def __init__(
        self,
        kind: type[msgspec.Struct],
        *,
        without: Collection[str] = (),
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        fields = [
            field
            for field in _fields(kind)
            if field.name != "source" and field.name not in without
        ]
        renamed = renamed or {}
        self.fields = tuple(field.name for field in fields)
        self.names = tuple(renamed.get(name, name) for name in self.fields)
        self._get = attrgetter(*self.fields)
        self._restorers = [
            (field.name, restorer)
            for field in fields
            if (restorer := _restorer(field.type)) is not None
        ]
        self.enums = {
            renamed.get(name, name): restorer
            for name, restorer in self._restorers
            if issubclass(restorer, Enum)
        }
        """Columns that hold values of an enumeration."""
        self._json = {
            place: msgspec.json.Decoder(field.type)
            for place, field in enumerate(fields)
            if _is_json(field.type)
        }
        self.json = tuple(self.names[place] for place in self._json)
        """Columns that hold JSON."""
        self._allowed = [_stored_as(field.type) for field in fields]
        self._valid_types: set[tuple[type, ...]] = set()
        """Combinations of types that were found valid; there are few."""

    def values(self, struct: object) -> tuple[Any, ...]:
        values: tuple[Any, ...] = self._get(struct)
        if self._json:
            texts = [*values]
            for place in self._json:
                texts[place] = msgspec.json.encode(texts[place]).decode()
            return tuple(texts)
        return values if len(self.fields) > 1 else (values,)

    def restore(self, values: Sequence[object]) -> dict[str, Any]:
        """A reading's fields, from the columns' values.

        Raises:
            TypeError: a column holds a value of a type never written.
        """
        kinds = tuple(map(type, values))
        if kinds not in self._valid_types:
            self._check(kinds)
            self._valid_types.add(kinds)
        fields: dict[str, Any] = dict(zip(self.fields, values, strict=True))
        for name, restorer in self._restorers:
            if fields[name] is not None:
                fields[name] = restorer(fields[name])
        for place, decoder in self._json.items():
            name = self.fields[place]
            fields[name] = decoder.decode(fields[name])
        return fields

    def _check(self, kinds: tuple[type, ...]) -> None:
        for name, kind, allowed in zip(self.names, kinds, self._allowed, strict=True):
            if kind not in allowed:
                raise TypeError(f"column {name} holds {kind.__name__}")


def _is_json(annotation: object) -> bool:
    return get_origin(annotation) in {list, dict}


def _stored_as(annotation: object) -> frozenset[type]:
    """SQLite types a field may have; NULL occurs in recordings older than the field."""
    if _is_json(annotation):
        return frozenset({str, NoneType})
    types: set[type] = {NoneType}
    for kind in get_args(annotation) or (annotation,):
        types.add(next(each for each in STORED if issubclass(kind, each)))
    return frozenset(types | ({int} if float in types else set()))


def _restorer(annotation: object) -> type[Any] | None:
    """The enum or bool to restore, as SQLite has neither."""
    if _is_json(annotation):
        return None
    (kind,) = {*(get_args(annotation) or (annotation,))} - {NoneType}
    return kind if kind is bool or issubclass(kind, Enum) else None


def insert_sql(table: str, names: Sequence[str], verb: str = "INSERT") -> str:
    """The statement that inserts one row into those columns."""
    marks = ", ".join("?" * len(names))
    return f"{verb} INTO {table} ({', '.join(names)}) VALUES ({marks})"


def select_sql(table: str, names: Sequence[str]) -> str:
    """The query for a session's rows after an ordinal, in order, ordinal first."""
    return (
        f"SELECT ordinal, {', '.join(names)} FROM {table} "  # noqa: S608  our own names
        "WHERE session = ? AND ordinal > ? ORDER BY ordinal"
    )


class SourceNames(dict[int, str]):
    """The sources of a session by number; ``unknown-N`` if the name is lost."""

    def __missing__(self, number: int) -> str:
        """The name of a source whose name is lost in a damaged file."""
        return f"unknown-{number}"


def readable(rows: Iterator[Numbered]) -> Iterator[Numbered]:
    """The readings, up to the first that is unreadable.

    Raises:
        StorageError: a row is unreadable.
    """
    ordinal = None
    try:
        for ordinal, reading in rows:
            yield ordinal, reading
    except UNREADABLE as error:
        place = "the first reading" if ordinal is None else f"reading {ordinal:,}"
        raise StorageError(
            f"the record is damaged: what comes after {place} is unreadable; {RECOVER}"
        ) from error
