"""The wire format: MessagePack envelopes of probes, agents and load generators.

``emitted`` and ``dropped`` are cumulative counts of *readings*, so losses are counted
in readings even when whole messages are lost. Unknown fields and tags are skipped, so
an older inferwatch can watch a newer probe of the same major version. A reading names
its source only if it differs from the envelope's, as a GPU's does in its host's
envelope.
"""

import re
import secrets
from collections.abc import Collection
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

from collectors.contract.clock import monotonic_ns
from collectors.contract.collector import WireVersionError
from collectors.contract.readings import AnyReading, Note, NoteKind

TCP = "tcp://"
"""Prefix of the address of a probe reached over the network."""


def has_host_and_port(address: str) -> bool:
    parts = urlsplit(address)
    try:
        return bool(parts.hostname and parts.port)
    except ValueError:
        return False


VERSION = 1
LARGEST = 1 << 61
"""Bound on counts, sizes and times: 73 years in nanoseconds are less."""
Count = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
ANY_NUMBER = frozenset({"hashes", "plain", "priority", "settings"})
"""Fields that may hold any integer, chosen by users or hash functions."""
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of decoding a foreign message."""
NOTHING = msgspec.Raw(b"\xc0")
"""Replaces a reading that is left out; every decoder skips it."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message of readings, with counts to detect losses."""

    v: int = VERSION
    source: str
    stream: str
    """Random per process start."""
    seq: Count
    sent_ns: Count
    emitted: Count
    """Readings this stream ever put into messages, this one included."""
    dropped: Count
    """Readings this stream discarded before sending."""
    readings: list[msgspec.Raw]


_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(Envelope)
_readings = msgspec.msgpack.Decoder(AnyReading)
_large = re.compile(rb"\xcf[\x20-\xff]|\xd3[\x80-\xdf]")
"""First bytes of a large integer in MessagePack; other bytes may look like it."""


def new_stream() -> str:
    """A stream id unique to this start of a process."""
    return secrets.token_hex(6)


def encode_reading(reading: AnyReading) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(reading))


class EnvelopePacker:
    """Numbers and packs the messages of one stream."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.stream = new_stream()
        self.seq = 0
        self.emitted = 0
        self.dropped = 0

    def pack(self, readings: list[AnyReading]) -> bytes:
        """Encode readings as the next message of the stream."""
        return self.pack_raw([encode_reading(reading) for reading in readings])

    def pack_raw(self, readings: list[msgspec.Raw]) -> bytes:
        """Put encoded readings into the next message of the stream."""
        self.emitted += len(readings)
        envelope = Envelope(
            source=self.source,
            stream=self.stream,
            seq=self.seq,
            sent_ns=monotonic_ns(),
            emitted=self.emitted,
            dropped=self.dropped,
            readings=readings,
        )
        self.seq += 1
        return _encoder.encode(envelope)


def emptied(message: bytes, places: Collection[int]) -> bytes:
    """The message without the readings at some positions, with the same counts."""
    envelope = _envelopes.decode(message)
    left = [
        NOTHING if at in places else reading
        for at, reading in enumerate(envelope.readings)
    ]
    return _encoder.encode(msgspec.structs.replace(envelope, readings=left))


def open_envelope(message: bytes) -> Envelope:
    """The envelope, with its readings still encoded.

    Raises:
        WireVersionError: the sender uses another major version.
    """
    envelope = _envelopes.decode(message)
    if envelope.v != VERSION:
        raise WireVersionError(
            f"{envelope.source} speaks wire version {envelope.v}, this inferwatch "
            f"{VERSION}: install the same inferwatch on both sides"
        )
    return envelope


def known_readings(envelope: Envelope) -> list[AnyReading]:
    """Readings of known kinds and valid values, and a note on how many were invalid."""
    readings: list[AnyReading] = []
    impossible = 0
    for raw in envelope.readings:
        if (reading := _decoded(raw)) is None:
            continue
        if _is_recordable(raw, reading):
            readings.append(reading)
        else:
            impossible += 1
    if impossible:
        text = f"{impossible:,} readings of {envelope.source} hold impossible numbers"
        note = Note(
            t_ns=envelope.sent_ns, kind=NoteKind.DROPPED, text=text, count=impossible
        )
        readings.append(note)
    return readings


def unpack(message: bytes) -> tuple[Envelope, list[AnyReading]]:
    """The envelope and its known readings.

    Raises:
        WireVersionError: the sender uses another major version.
    """
    envelope = open_envelope(message)
    return envelope, known_readings(envelope)


def decode_reading(raw: msgspec.Raw) -> AnyReading | None:
    """The reading; None if its kind is unknown or its values are invalid."""
    reading = _decoded(raw)
    return reading if reading and _is_recordable(raw, reading) else None


def _decoded(raw: msgspec.Raw) -> AnyReading | None:
    try:
        return _readings.decode(raw)  # type: ignore[no-any-return]
    except UNREADABLE:
        return None


def _is_recordable(raw: msgspec.Raw, reading: AnyReading) -> bool:
    """Whether all values are in range; checked only if a large integer may be in it."""
    return _large.search(raw) is None or is_possible(reading)


def is_possible(reading: AnyReading) -> bool:
    """Whether every number is small enough for SQLite and our arithmetic."""
    fields: dict[str, Any] = msgspec.to_builtins(reading)
    return all(_is_bounded(fields[name]) for name in fields.keys() - ANY_NUMBER)


def _is_bounded(value: Any) -> bool:  # noqa: ANN401 - whatever a reading holds
    if isinstance(value, int):
        return -LARGEST <= value <= LARGEST
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return not isinstance(value, list) or all(map(_is_bounded, value))


class LossCounter:
    """Counts, per stream, readings that were emitted but never arrived."""

    def __init__(self) -> None:
        self._missing: dict[str, int] = {}
        self._arrived: dict[str, int] = {}

    def start(self, stream: str, emitted: int) -> None:
        """Start counting: readings emitted before are not losses."""
        self._arrived[stream] = emitted
        self._missing[stream] = 0

    def saw(self, envelope: Envelope) -> int:
        """Readings newly found lost, by the sender or in transit."""
        before = self._arrived.get(
            envelope.stream, envelope.emitted - len(envelope.readings)
        )
        arrived = before + len(envelope.readings)
        missing = envelope.emitted - arrived + envelope.dropped
        fresh = missing - self._missing.get(envelope.stream, 0)
        self._arrived[envelope.stream] = arrived
        self._missing[envelope.stream] = missing
        return max(fresh, 0)

    @property
    def total(self) -> int:
        return sum(self._missing.values())
