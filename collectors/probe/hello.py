"""What a probe or an agent answers to a new subscriber, and the topics all use.

A subscriber first subscribes to ``LIVE``, then to ``HELLO`` or ``RING`` followed by a
nonce of its own; the answer comes on exactly that topic, so nobody else hears it: a
``Hello``, and after ``RING`` also the envelopes of the ring, several to a message.
Envelopes are numbered per stream: everything before ``Hello.seq`` is in the past (the
ring has it from ``Hello.ring_seq`` on), everything from ``Hello.seq`` on comes live.

An agent has topics of its own, the same behind ``AGENT``. It may pass on what probes
of several servers say, behind ``FRONTED``: who asks for one server's can tell.
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
"""How an agent's topics begin."""
FRONTED = b"probes."
"""How those of probes begin that an agent passes on."""


class Role(StrEnum):
    """What a process is in its server, or that it is an agent."""

    API = "api"
    CORE = "core"
    WORKER = "worker"
    AGENT = "agent"


class Standing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A reading that still holds, such as the arrival of a live request."""

    seq: Count
    """The envelope it was first sent in."""
    reading: msgspec.Raw


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Who speaks, and what a newcomer must know of the past."""

    v: int = VERSION
    source: str
    stream: str
    seq: Count
    """The number of the next live envelope."""
    ring_seq: Count
    """The number of the oldest envelope the ring holds; equals seq when it is empty."""
    ring_bytes: Count
    ring_accounted: Count
    """Readings emitted or dropped before the ring's oldest envelope."""
    accounted: Count
    """Readings emitted or dropped before the next live envelope."""
    role: Role
    pid: Count
    listens: list[str] = []
    """Addresses at which it takes connections: ``host:port``, or a Unix socket's."""
    engine: EngineInfo | None = None
    anchor: ClockAnchor
    totals: Totals
    standing: list[Standing]
    """Engine info, notes and the events of live requests, oldest first."""

    def before(self, seq: int) -> list[AnyReading]:
        """What still holds and was sent before that envelope."""
        known = (decode_reading(s.reading) for s in self.standing if s.seq < seq)
        return [reading for reading in known if reading is not None]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Hello)


def encode_hello(hello: Hello) -> bytes:
    """The hello as it goes over the wire."""
    return _encoder.encode(hello)


def decode_hello(message: bytes) -> Hello:
    """The hello as it came over the wire.

    Raises:
        WireVersionError: the sender speaks another major version.
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
    """Who sent a message; its pid is in a hello only."""

    stream: str
    source: str = ""
    pid: int | None = None


_speakers = msgspec.msgpack.Decoder(Speaker)


def speaker_of(message: bytes) -> Speaker:
    """Who sent a hello or an envelope."""
    return _speakers.decode(message)


class _Version(msgspec.Struct):
    """What of a message of another version can be read."""

    v: int
