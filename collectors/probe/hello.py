"""The hello a probe or agent sends to new subscribers, and the topics in use.

A subscriber first subscribes to ``LIVE``, then to ``HELLO`` or ``RING`` followed by a
nonce. The reply is published on exactly that topic, so nobody else receives it: a
``Hello``, and after ``RING`` also the envelopes of the ring, several to a message.
Envelopes are numbered per stream: those before ``Hello.seq`` are in the past (the ring
has them from ``Hello.ring_seq`` on), and those from ``Hello.seq`` on arrive live.

An agent's topics are the same with the prefix ``AGENT``. It may forward the probes of
several servers, with the prefix ``FRONTED``, so subscribers can tell them apart.
"""

from enum import StrEnum

import msgspec

from collectors.contract.collector import WireVersionError
from collectors.contract.readings import AnyReading, ClockAnchor, EngineInfo, Totals
from collectors.contract.wire import VERSION, Count, decode_reading, is_possible

LIVE = b"live"
HELLO = b"hello."
RING = b"ring."
AGENT = b"agent."
"""Prefix of an agent's topics."""
FRONTED = b"probes."
"""Prefix of the topics of probes that an agent forwards."""


class Role(StrEnum):
    """The kind of process a probe is in, or an agent."""

    API = "api"
    CORE = "core"
    WORKER = "worker"
    AGENT = "agent"


class Standing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A reading that is still valid, such as the arrival of a running request."""

    seq: Count
    """Number of the envelope it was first sent in."""
    reading: msgspec.Raw


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The sender's identity and everything a new subscriber must know."""

    v: int = VERSION
    source: str
    stream: str
    seq: Count
    """Number of the next live envelope."""
    ring_seq: Count
    """Number of the ring's oldest envelope; equals ``seq`` if the ring is empty."""
    ring_bytes: Count
    ring_accounted: Count
    """Readings emitted or dropped before the ring's oldest envelope."""
    accounted: Count
    """Readings emitted or dropped before the next live envelope."""
    role: Role
    pid: Count
    listens: list[str] = []
    """Addresses its process listens on: ``host:port``, or a Unix socket path."""
    engine: EngineInfo | None = None
    orphaned: bool = False
    """The process that started it, and took its requests, has ended."""
    anchor: ClockAnchor
    totals: Totals
    standing: list[Standing]
    """Engine info, notes and events of running requests, oldest first."""

    def before(self, seq: int) -> list[AnyReading]:
        """Standing readings (repeated in hellos) sent before envelope ``seq``."""
        known = (decode_reading(s.reading) for s in self.standing if s.seq < seq)
        return [reading for reading in known if reading is not None]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Hello)


def encode_hello(hello: Hello) -> bytes:
    return _encoder.encode(hello)


def decode_hello(message: bytes) -> Hello:
    """Deserialise a hello.

    Raises:
        WireVersionError: the sender uses another major version.
    """
    version = msgspec.msgpack.decode(message, type=_Version).v
    if version != VERSION:
        raise WireVersionError(
            f"the other side speaks wire version {version}, this inferwatch {VERSION}: "
            "install the same inferwatch on both sides"
        )
    hello = _decoder.decode(message)
    if not is_possible(hello.anchor):
        raise msgspec.ValidationError("its clock tells no time that can be")
    return hello


class Speaker(msgspec.Struct):
    """The sender of a message; only a hello holds its PID."""

    stream: str
    source: str = ""
    pid: int | None = None


_speakers = msgspec.msgpack.Decoder(Speaker)


def speaker_of(message: bytes) -> Speaker:
    """The sender of a hello or an envelope."""
    return _speakers.decode(message)


class _Version(msgspec.Struct):
    """The version field, readable in messages of any version."""

    v: int
