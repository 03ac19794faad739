"""Whether a row from a damaged file means something: bytes may be torn within a row."""

import zlib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from collectors.readings import AnyReading, BoundBy, LoadKind, NoteKind, Phase
from inferwatch.storage.session_state import SessionState
from inferwatch.storage.steps import unpack

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


def makes_sense(table: str, columns: Sequence[str], values: Sequence[object]) -> bool:
    """Every value of the row that can be checked."""
    readers = ((READERS.get((table, name)), name) for name in columns)
    return all(
        reader is None or value is None or _reads(reader, value)
        for (reader, _), value in zip(readers, values, strict=True)
    )


def _reads(reader: Callable[..., object], value: object) -> bool:
    try:
        reader(value)
    except (ValueError, TypeError, KeyError, zlib.error, msgspec.MsgspecError):
        return False
    return True
