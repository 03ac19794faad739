"""What one subscriber makes of probes' messages: no gap, no duplicate, no I/O."""

import secrets
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from collectors.contract.readings import AnyReading, Note, NoteKind
from collectors.contract.wire import (
    Envelope,
    LossCounter,
    known_readings,
    open_envelope,
)
from collectors.probe.hello import HELLO, LIVE, RING, Hello, decode_hello, speaker_of

HELD_LIMIT = 2_000
"""Live messages that wait for the ring: more than a minute of them."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a stream was heard."""

    seq: int
    """The number of the envelope that is next."""
    accounted: int
    """Readings emitted or dropped before it."""


def position_after(envelope: Envelope) -> Position:
    """How far a stream was heard whose last envelope this is."""
    return Position(envelope.seq + 1, envelope.emitted + envelope.dropped)


@dataclass(frozen=True, slots=True)
class ProbeMessage:
    """What one message of a probe makes known; encoded until somebody reads it."""

    sent_ns: int
    """By the sender's clock; 0 for what held before the oldest envelope."""
    preface: list[AnyReading]
    """What is known without the envelope, and comes before its readings."""
    envelope: Envelope | None = None

    @property
    def size(self) -> int:
        """How many readings there are in it."""
        return len(self.preface) + len(self.envelope.readings if self.envelope else ())

    def readings(self) -> list[AnyReading]:
        """Its readings, in raw times."""
        known = known_readings(self.envelope) if self.envelope else []
        return [*self.preface, *known]


class Reception:
    """Puts hello, ring and live messages into the one order they were emitted in.

    Of a stream that was heard before, by its position, only what is new is told.
    """

    def __init__(
        self,
        *,
        backfill: bool,
        positions: Mapping[str, Position] | None = None,
        topic: bytes | None = None,
        prefix: bytes = b"",
    ) -> None:
        """``prefix`` is how the topics begin of who speaks."""
        self.hello: Hello | None = None
        self.position = Position(0, 0)
        """How far it was heard."""
        self._prefix = prefix
        self._live_topic = prefix + LIVE
        self._topic = topic or answer_topic(backfill=backfill, prefix=prefix)
        self._backfill = backfill
        self._positions = positions or {}
        self._losses = LossCounter()
        self.caught_up = False
        """The past is through; from now on only live messages come."""
        self._held: list[bytes] = []

    def renewed(self, frames: list[bytes]) -> "Reception":
        """Another that goes on from here, where the probe greets us once more.

        It does when the line was down: what it sent meanwhile is in its ring.
        """
        hello = self.hello
        if (
            hello is None
            or len(frames) < 2
            or frames[0] == self._live_topic
            or speaker_of(frames[1]).pid is None
        ):
            return self
        heard = {hello.stream: self.position}
        return Reception(
            backfill=self._backfill,
            positions=heard,
            topic=self._topic,
            prefix=self._prefix,
        )

    @property
    def topics(self) -> tuple[bytes, bytes]:
        """What to subscribe to, in this order: nothing may fall between the two."""
        return self._live_topic, self._topic

    def hear(self, frames: list[bytes]) -> list[ProbeMessage]:
        """What this message makes known, or makes the turn of.

        Raises:
            WireVersionError: the probe speaks another major version.
        """
        if len(frames) < 2:
            return []  # no probe says so little
        if frames[0] == self._live_topic:
            return self._live(frames[1])
        if self.hello is None:
            return self._greeted(decode_hello(frames[1]))
        return self._past(frames[1:])

    def _greeted(self, hello: Hello) -> list[ProbeMessage]:
        self.hello = hello
        past = self._backfill and hello.ring_seq < hello.seq
        began = (
            Position(hello.ring_seq, hello.ring_accounted)
            if past
            else Position(hello.seq, hello.accounted)
        )
        holds = hello.before(began.seq)
        if (heard := self._positions.get(hello.stream)) is not None:
            began, holds = heard, []
        self.position = began
        self.caught_up = not past or began.seq >= hello.seq
        self._losses.start(hello.stream, began.accounted)
        return [ProbeMessage(0, [hello.anchor, *holds])]

    def _past(self, envelopes: list[bytes]) -> list[ProbeMessage]:
        if self.hello is None or self.caught_up:
            return []
        messages = []
        for message in envelopes:
            envelope = open_envelope(message)
            if envelope.seq >= self.position.seq:
                messages.append(self._take(envelope))
            self.caught_up = envelope.seq == self.hello.seq - 1
        return messages + (self._release() if self.caught_up else [])

    def _live(self, message: bytes) -> list[ProbeMessage]:
        if self.hello is None:
            return []  # sent before the hello: the ring has it
        if self.caught_up:
            return [self._take(open_envelope(message))]
        self._held.append(message)
        return self._release() if len(self._held) > HELD_LIMIT else []

    def _release(self) -> list[ProbeMessage]:
        """The ring is through, or a piece of it is lost: then the count says so."""
        self.caught_up = True
        held, self._held = self._held, []
        return [self._take(open_envelope(message)) for message in held]

    def _take(self, envelope: Envelope) -> ProbeMessage:
        lost = self._losses.saw(envelope)
        noted = self._noted(lost, envelope.sent_ns)
        self.position = position_after(envelope)
        return ProbeMessage(envelope.sent_ns, noted, envelope)

    def _noted(self, lost: int, t_ns: int) -> list[AnyReading]:
        if not lost or self.hello is None:
            return []
        return [
            Note(
                t_ns=t_ns,
                kind=NoteKind.DROPPED,
                text=f"{lost:,} readings of {self.hello.role} {self.hello.pid} "
                "were lost",
                count=lost,
            )
        ]


def answer_topic(*, backfill: bool, prefix: bytes = b"") -> bytes:
    """A topic on which nobody else hears the answer."""
    return prefix + (RING if backfill else HELLO) + secrets.token_hex(8).encode()


class SendingOrder:
    """Holds messages back while another process may yet tell of something earlier.

    A newcomer gets each process's ring as fast as it comes: taken like that, the front
    end would be half an hour ahead of its EngineCore.
    """

    def __init__(self) -> None:
        self.awaited: set[int] = set()
        """Processes, by pid, whose past is not through."""
        self._held: dict[int, deque[ProbeMessage]] = {}

    def expect(self, pids: Iterable[int]) -> None:
        """Await the past of these processes."""
        self.awaited.update(pids)

    def take(
        self, pid: int, messages: Iterable[ProbeMessage], *, caught_up: bool
    ) -> None:
        """Take what a process told, and whether its past is through."""
        self._held.setdefault(pid, deque()).extend(messages)
        if caught_up:
            self.awaited.discard(pid)

    def forget(self, pid: int) -> None:
        """A process turns out to be none of ours."""
        self._held.pop(pid, None)
        self.awaited.discard(pid)

    def give_up(self, pids: Iterable[int]) -> None:
        """Wait for these processes no longer."""
        self.awaited.difference_update(pids)

    def released(self, most: int) -> list[ProbeMessage]:
        """The next messages whose turn has come, with about so many readings."""
        held = self._held
        turns = [(queue[0].sent_ns, pid) for pid, queue in held.items() if queue]
        heapify(turns)
        messages: list[ProbeMessage] = []
        size = 0
        while turns and size < most and all(map(held.get, self.awaited)):
            pid = turns[0][1]
            messages.append(held[pid].popleft())
            size += messages[-1].size
            if held[pid]:
                heapreplace(turns, (held[pid][0].sent_ns, pid))
            else:
                heappop(turns)
        return messages
