"""What one subscriber makes of one probe's messages: no gap, no duplicate, no I/O."""

import secrets

from collectors.clock import monotonic_ns
from collectors.hello import HELLO, LIVE, RING, Hello, decode_hello
from collectors.readings import AnyReading, Note, NoteKind
from collectors.wire import LossCounter, unpack

HELD_LIMIT = 2_000
"""Live messages that wait for the ring: more than a minute of them."""


class Reception:
    """Puts hello, ring and live messages into the one order they were emitted in."""

    def __init__(self, *, backfill: bool) -> None:
        self.hello: Hello | None = None
        kind = RING if backfill else HELLO
        self._topic = kind + secrets.token_hex(8).encode()
        self._backfill = backfill
        self._losses = LossCounter()
        self._caught_up = False
        self._held: list[bytes] = []

    @property
    def topics(self) -> tuple[bytes, bytes]:
        """What to subscribe to, in this order: nothing may fall between the two."""
        return LIVE, self._topic

    def hear(self, frames: list[bytes]) -> list[AnyReading]:
        """The readings this message makes known, in raw times.

        Raises:
            WireVersionError: the probe speaks another major version.
        """
        if frames[0] == LIVE:
            return self._live(frames[1])
        if self.hello is None:
            return self._greeted(decode_hello(frames[1]))
        return self._past(frames[1:])

    def _greeted(self, hello: Hello) -> list[AnyReading]:
        self.hello = hello
        past = self._backfill and hello.ring_seq < hello.seq
        self._caught_up = not past
        self._losses.start(
            hello.stream, hello.ring_accounted if past else hello.accounted
        )
        first_seq = hello.ring_seq if past else hello.seq
        return [hello.anchor, *hello.before(first_seq)]

    def _past(self, envelopes: list[bytes]) -> list[AnyReading]:
        if self.hello is None or self._caught_up:
            return []
        readings = []
        for message in envelopes:
            seq, known = self._take(message)
            readings += known
            self._caught_up = seq == self.hello.seq - 1
        return readings + (self._release() if self._caught_up else [])

    def _live(self, message: bytes) -> list[AnyReading]:
        if self.hello is None:
            return []  # sent before the hello: the ring has it
        if self._caught_up:
            return self._take(message)[1]
        self._held.append(message)
        return self._release() if len(self._held) > HELD_LIMIT else []

    def _release(self) -> list[AnyReading]:
        """The ring is through, or a piece of it is lost: then the count says so."""
        self._caught_up = True
        held, self._held = self._held, []
        return [reading for message in held for reading in self._take(message)[1]]

    def _take(self, message: bytes) -> tuple[int, list[AnyReading]]:
        envelope, readings = unpack(message)
        lost = self._losses.saw(envelope)
        return envelope.seq, [*self._noted(lost), *readings]

    def _noted(self, lost: int) -> list[Note]:
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
