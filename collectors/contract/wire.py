"""The wire: one envelope for probe, agent and load generator, MessagePack by msgspec.

``emitted`` and ``dropped`` are cumulative counts of *readings*, so a loss is counted
in readings even when whole messages vanish. Unknown fields and tags are skipped, so
an older inferwatch can watch a newer probe of the same major version. A reading whose
source is not its envelope's says its own, as a GPU's in the envelope of its host.
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
"""How the address of a probe begins that is reached over the network."""


def has_host_and_port(address: str) -> bool:
    """Whether a TCP address says both."""
    parts = urlsplit(address)
    try:
        return bool(parts.hostname and parts.port)
    except ValueError:
        return False


VERSION = 1
LARGEST = 1 << 61
"""No count, size or moment is further from 0: 73 years are less nanoseconds."""
Count = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
ANY_NUMBER = frozenset({"hashes", "priority", "settings"})
"""Fields of readings that hold what people or hash functions choose."""
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding may end in where a message is none of ours."""
NOTHING = msgspec.Raw(b"\xc0")
"""Stands for a reading that is left out; known by nobody, it is skipped by all."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message of readings, and how many were sent before it."""

    v: int = VERSION
    source: str
    stream: str
    """Random per process start."""
    seq: Count
    sent_ns: Count
    emitted: Count
    """Readings ever put into messages by this stream, this message included."""
    dropped: Count
    """Readings this stream had to throw away before sending."""
    readings: list[msgspec.Raw]


_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(Envelope)
_readings = msgspec.msgpack.Decoder(AnyReading)
_large = re.compile(rb"\xcf[\x20-\xff]|\xd3[\x80-\xdf]")
"""How an integer begins in MessagePack that is larger; other bytes may look like it."""


def new_stream() -> str:
    """A name no other process start has."""
    return secrets.token_hex(6)


def encode_reading(reading: AnyReading) -> msgspec.Raw:
    """One reading as it stands in an envelope."""
    return msgspec.Raw(_encoder.encode(reading))


class Sender:
    """Numbers and packs the messages of one stream."""

    def __init__(self, source: str, stream: str | None = None) -> None:
        self.source = source
        self.stream = stream or new_stream()
        self.seq = 0
        self.emitted = 0
        self.dropped = 0

    def pack(self, readings: list[AnyReading]) -> bytes:
        """The next message of the stream."""
        return self.pack_raw([encode_reading(reading) for reading in readings])

    def pack_raw(self, readings: list[msgspec.Raw]) -> bytes:
        """The next message, from readings encoded before."""
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
    """The same message with nothing said at some places: it counts as many readings."""
    envelope = _envelopes.decode(message)
    left = [
        NOTHING if at in places else reading
        for at, reading in enumerate(envelope.readings)
    ]
    return _encoder.encode(msgspec.structs.replace(envelope, readings=left))


def open_envelope(message: bytes) -> Envelope:
    """The envelope, its readings as they came.

    Raises:
        WireVersionError: the sender speaks another major version.
    """
    envelope = _envelopes.decode(message)
    if envelope.v != VERSION:
        raise WireVersionError(
            f"{envelope.source} speaks wire version {envelope.v}, this inferwatch "
            f"{VERSION}: install the same inferwatch on both sides"
        )
    return envelope


def known_readings(envelope: Envelope) -> list[AnyReading]:
    """Those of its readings that we know, and how many say what cannot be."""
    known: list[AnyReading] = []
    impossible = 0
    for raw in envelope.readings:
        if (reading := _decoded(raw)) is None:
            continue
        if _is_recordable(raw, reading):
            known.append(reading)
        else:
            impossible += 1
    if impossible:
        text = f"{impossible:,} readings of {envelope.source} hold impossible numbers"
        note = Note(
            t_ns=envelope.sent_ns, kind=NoteKind.DROPPED, text=text, count=impossible
        )
        known.append(note)
    return known


def unpack(message: bytes) -> tuple[Envelope, list[AnyReading]]:
    """The envelope and those of its readings that we know.

    Raises:
        WireVersionError: the sender speaks another major version.
    """
    envelope = open_envelope(message)
    return envelope, known_readings(envelope)


def decode_reading(raw: msgspec.Raw) -> AnyReading | None:
    """The reading; None where it is from a newer version, or cannot be."""
    reading = _decoded(raw)
    return reading if reading and _is_recordable(raw, reading) else None


def _decoded(raw: msgspec.Raw) -> AnyReading | None:
    try:
        return _readings.decode(raw)  # type: ignore[no-any-return]
    except UNREADABLE:
        return None


def _is_recordable(raw: msgspec.Raw, reading: AnyReading) -> bool:
    """To look at each number would cost more than to decode them: few may be large."""
    return _large.search(raw) is None or is_possible(reading)


def is_possible(reading: AnyReading) -> bool:
    """Each number can be counted on with, and can be recorded."""
    fields: dict[str, Any] = msgspec.to_builtins(reading)
    return all(_is_bounded(fields[name]) for name in fields.keys() - ANY_NUMBER)


def _is_bounded(value: Any) -> bool:  # noqa: ANN401 - whatever a reading holds
    if isinstance(value, int):
        return -LARGEST <= value <= LARGEST
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return not isinstance(value, list) or all(map(_is_bounded, value))


class LossCounter:
    """Counts, per stream, the readings that were emitted but never arrived."""

    def __init__(self) -> None:
        self._missing: dict[str, int] = {}
        self._arrived: dict[str, int] = {}

    def start(self, stream: str, emitted: int) -> None:
        """A subscription begins: what was emitted before is not a loss."""
        self._arrived[stream] = emitted
        self._missing[stream] = 0

    def saw(self, envelope: Envelope) -> int:
        """Readings newly known to be lost, dropped by the sender or on the way."""
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
        """All readings lost so far."""
        return sum(self._missing.values())
