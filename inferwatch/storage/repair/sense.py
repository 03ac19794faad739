"""Whether a row from a damaged file means something: bytes may be torn within a row."""

import sqlite3
import zlib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from collectors.readings import AnyReading, BoundBy, LoadKind, NoteKind, Phase
from inferwatch.storage.sessions.session_state import SessionState
from inferwatch.storage.tables.steps import unpack

_any_reading = msgspec.msgpack.Decoder(AnyReading)


def _gaps(blob: bytes) -> object:
    return msgspec.json.decode(zlib.decompress(blob), type=list[int])


READERS: Mapping[tuple[str, str], Callable[..., object]] = {
    ("sessions", "state"): SessionState,
    ("steps", "bound_by"): BoundBy,
    ("step_members", "members"): unpack,
    ("client_requests", "phase"): Phase,
    ("token_times", "gaps_ns"): _gaps,
    ("load_events", "kind"): LoadKind,
    ("notes", "kind"): NoteKind,
    ("other_readings", "reading"): _any_reading.decode,
}
"""By table and column, what reads the value and fails where it makes no sense."""


QUICK: Mapping[tuple[str, str], Callable[..., object]] = {
    ("step_members", "members"): zlib.decompress,
    ("token_times", "gaps_ns"): zlib.decompress,
}
"""What finds a changed byte sooner than reading the value does: a checksum."""


def first_nonsense(connection: sqlite3.Connection) -> str | None:
    """A value that cannot be read, as its table and column; None when all can be.

    Raises:
        sqlite3.DatabaseError: the file is too damaged to tell.
    """
    for (table, column), reader in READERS.items():
        distinct = "DISTINCT " if isinstance(reader, type) else ""
        values = connection.execute(
            f"SELECT {distinct}{column} FROM {table} WHERE {column} IS NOT NULL"  # noqa: S608  our own names
        )
        quick = QUICK.get((table, column), reader)
        if not all(_reads(quick, value) for (value,) in values):
            return f"{table}.{column}"
    return None


Checks = Sequence[tuple[int, Callable[..., object]]]
"""Places in a row, and what reads the values there."""


def checks_of(table: str, columns: Sequence[str]) -> Checks:
    """Of a table's rows, as they are selected."""
    return [
        (place, READERS[table, name])
        for place, name in enumerate(columns)
        if (table, name) in READERS
    ]


def makes_sense(checks: Checks, values: Sequence[object]) -> bool:
    """Every value of the row that can be checked."""
    return all(
        values[place] is None or _reads(reader, values[place])
        for place, reader in checks
    )


def _reads(reader: Callable[..., object], value: object) -> bool:
    try:
        reader(value)
    except (ValueError, TypeError, KeyError, zlib.error, msgspec.MsgspecError):
        return False
    return True
