"""Orders the messages of probes for one subscriber, without gaps, duplicates or I/O."""

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
"""Live messages held back until the ring has arrived: more than a minute's."""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """How far a stream has been received."""

    seq: int
    """Number of the next envelope."""
    accounted: int
    """Readings emitted or dropped before it."""


def position_after(envelope: Envelope) -> StreamPosition:
    """The position right after an envelope."""
    return StreamPosition(envelope.seq + 1, envelope.emitted + envelope.dropped)


@dataclass(frozen=True, slots=True)
class ProbeMessage:
    """The content of one message of a probe, decoded on demand."""

    sent_ns: int
    """On the sender's clock; 0 for readings valid before the oldest envelope."""
    preface: list[AnyReading]
    """Readings that precede those of the envelope."""
    envelope: Envelope | None = None

    @property
    def size(self) -> int:
        """Number of readings in the message."""
        return len(self.preface) + len(self.envelope.readings if self.envelope else ())

    def readings(self) -> list[AnyReading]:
        """The message's readings, in the sender's monotonic time."""
        known = known_readings(self.envelope) if self.envelope else []
        return [*self.preface, *known]


class Reception:
    """Merges hello, ring and live messages into the order they were emitted in.

    Of a stream received before, only what follows its position is returned.
    """

    def __init__(
        self,
        *,
        backfill: bool,
        positions: Mapping[str, StreamPosition] | None = None,
        topic: bytes | None = None,
        prefix: bytes = b"",
    ) -> None:
        """``prefix`` is what the sender's topics begin with."""
        self.hello: Hello | None = None
        self.position = StreamPosition(0, 0)
        """How far the stream has been received."""
        self._prefix = prefix
        self._live_topic = prefix + LIVE
        self._topic = topic or answer_topic(backfill=backfill, prefix=prefix)
        self._backfill = backfill
        self._positions = positions or {}
        self._losses = LossCounter()
        self.caught_up = False
        """The ring is complete; only live messages follow."""
        self._held: list[bytes] = []

    def renewed(self, frames: list[bytes]) -> "Reception":
        """A reception that continues where this one is, after another hello.

        The probe sends it after a lost connection; its ring holds what it sent
        meanwhile.
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
        """Topics to subscribe to, in this order, so that no message is missed."""
        return self._live_topic, self._topic

    def hear(self, frames: list[bytes]) -> list[ProbeMessage]:
        """The messages that can be processed after these frames arrived.

        Raises:
            WireVersionError: the probe uses another major version.
        """
        if len(frames) < 2:
            return []  # malformed
        if frames[0] == self._live_topic:
            return self._live(frames[1])
        if self.hello is None:
            return self._greeted(decode_hello(frames[1]))
        return self._past(frames[1:])

    def _greeted(self, hello: Hello) -> list[ProbeMessage]:
        self.hello = hello
        past = self._backfill and hello.ring_seq < hello.seq
        began = (
            StreamPosition(hello.ring_seq, hello.ring_accounted)
            if past
            else StreamPosition(hello.seq, hello.accounted)
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
            return []  # sent before the hello, so it is in the ring
        if self.caught_up:
            return [self._take(open_envelope(message))]
        self._held.append(message)
        return self._release() if len(self._held) > HELD_LIMIT else []

    def _release(self) -> list[ProbeMessage]:
        """Release the live messages held back until the ring was complete or lost."""
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
    """A topic for a hello or ring, with a nonce so that nobody else gets the reply."""
    return prefix + (RING if backfill else HELLO) + secrets.token_hex(8).encode()


class SendingOrder:
    """Merges the messages of several processes in the order they were sent.

    A new subscriber receives each process's ring at its own pace: without this, the
    front end could be half an hour ahead of its EngineCore.
    """

    def __init__(self) -> None:
        self.awaited: set[int] = set()
        """PIDs whose ring is not complete."""
        self._held: dict[int, deque[ProbeMessage]] = {}

    def expect(self, pids: Iterable[int]) -> None:
        """Wait for the rings of these processes."""
        self.awaited.update(pids)

    def take(
        self, pid: int, messages: Iterable[ProbeMessage], *, caught_up: bool
    ) -> None:
        """Add messages of a process; ``caught_up``: its ring is complete."""
        self._held.setdefault(pid, deque()).extend(messages)
        if caught_up:
            self.awaited.discard(pid)

    def forget(self, pid: int) -> None:
        """Drop a process that belongs to another server."""
        self._held.pop(pid, None)
        self.awaited.discard(pid)

    def give_up(self, pids: Iterable[int]) -> None:
        """Stop waiting for the rings of these processes."""
        self.awaited.difference_update(pids)

    def released(self, most: int) -> list[ProbeMessage]:
        """The next messages in order, with about ``most`` readings."""
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
