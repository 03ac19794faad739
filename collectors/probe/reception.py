"""What one subscriber makes of one probe's messages: no gap, no duplicate, no I/O."""

import secrets
from dataclasses import dataclass

from collectors.clock import monotonic_ns
from collectors.probe.hello import HELLO, LIVE, RING, Hello, decode_hello
from collectors.readings import AnyReading, Note, NoteKind
from collectors.wire import Envelope, LossCounter, known_readings, open_envelope

HELD_LIMIT = 2_000
"""Live messages that wait for the ring: more than a minute of them."""


@dataclass(frozen=True, slots=True)
class Passage:
    """What one message makes known; it stays encoded until somebody reads it."""

    sent_ns: int
    """By the sender's clock; 0 for what held before the oldest envelope."""
    preface: list[AnyReading]
    """What is known without the envelope, and comes before its readings."""
    envelope: Envelope | None = None

    @property
    def size(self) -> int:
        """Readings in it."""
        return len(self.preface) + len(self.envelope.readings if self.envelope else ())

    def readings(self) -> list[AnyReading]:
        """In raw times."""
        known = known_readings(self.envelope) if self.envelope else []
        return [*self.preface, *known]


class Reception:
    """Puts hello, ring and live messages into the one order they were emitted in."""

    def __init__(self, *, backfill: bool) -> None:
        self.hello: Hello | None = None
        kind = RING if backfill else HELLO
        self._topic = kind + secrets.token_hex(8).encode()
        self._backfill = backfill
        self._losses = LossCounter()
        self.caught_up = False
        """The past is through; from now on only live messages come."""
        self._held: list[bytes] = []

    @property
    def topics(self) -> tuple[bytes, bytes]:
        """What to subscribe to, in this order: nothing may fall between the two."""
        return LIVE, self._topic

    def hear(self, frames: list[bytes]) -> list[Passage]:
        """What this message makes known, or makes the turn of.

        Raises:
            WireVersionError: the probe speaks another major version.
        """
        if frames[0] == LIVE:
            return self._live(frames[1])
        if self.hello is None:
            return self._greeted(decode_hello(frames[1]))
        return self._past(frames[1:])

    def _greeted(self, hello: Hello) -> list[Passage]:
        self.hello = hello
        past = self._backfill and hello.ring_seq < hello.seq
        self.caught_up = not past
        self._losses.start(
            hello.stream, hello.ring_accounted if past else hello.accounted
        )
        first_seq = hello.ring_seq if past else hello.seq
        return [Passage(0, [hello.anchor, *hello.before(first_seq)])]

    def _past(self, envelopes: list[bytes]) -> list[Passage]:
        if self.hello is None or self.caught_up:
            return []
        passages = []
        for message in envelopes:
            envelope = open_envelope(message)
            passages.append(self._take(envelope))
            self.caught_up = envelope.seq == self.hello.seq - 1
        return passages + (self._release() if self.caught_up else [])

    def _live(self, message: bytes) -> list[Passage]:
        if self.hello is None:
            return []  # sent before the hello: the ring has it
        if self.caught_up:
            return [self._take(open_envelope(message))]
        self._held.append(message)
        return self._release() if len(self._held) > HELD_LIMIT else []

    def _release(self) -> list[Passage]:
        """The ring is through, or a piece of it is lost: then the count says so."""
        self.caught_up = True
        held, self._held = self._held, []
        return [self._take(open_envelope(message)) for message in held]

    def _take(self, envelope: Envelope) -> Passage:
        lost = self._losses.saw(envelope)
        return Passage(envelope.sent_ns, self._noted(lost), envelope)

    def _noted(self, lost: int) -> list[AnyReading]:
        if not lost or self.hello is None:
            return []
        return [
            Note(
                t_ns=monotonic_ns(),
                kind=NoteKind.DROPPED,
                text=f"{lost} readings of {self.hello.role} {self.hello.pid} were lost",
                count=lost,
            )
        ]
