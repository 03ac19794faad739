"""A bounded publisher: records enter on a hot thread, envelopes leave on ours.

Putting a record costs one append. Turning records into readings, encoding, the ring and
ZeroMQ all happen on a daemon thread that never blocks and that nothing waits for.
"""

import os
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, Protocol

import zmq

from collectors.contract.clock import NS_PER_S, anchor, monotonic_ns
from collectors.contract.liveness import listened_to
from collectors.contract.readings import (
    AnyReading,
    BlockMap,
    EngineInfo,
    PromptBlocks,
    Totals,
)
from collectors.contract.runtime_dir import hand_over
from collectors.contract.wire import EnvelopePacker, emptied, encode_reading
from collectors.http.guests import TokenBucket
from collectors.probe.hello import (
    HELLO,
    LIVE,
    RING,
    Hello,
    Role,
    Standing,
    encode_hello,
)

Record = tuple[Any, ...]
"""A ticket, a function that makes readings, and its arguments."""

MOST_RECORDS = 50_000
"""Records buffered; a step is one record, so this is a minute or more."""
RECORDS_AT_ONCE = 1_000
FLUSH_S = 0.1
"""Seconds between sends: cheap, and still perceived as live."""
JOIN_S = 0.005
"""Seconds between pieces of the ring sent to new subscribers."""
LISTEN_TURNS = 2
"""New subscribers are looked for every so many flushes, since waking up is what
costs."""
PIECE_BYTES = 250_000
PIECE_ENVELOPES = 500
TURN_BYTES = 1_000_000
"""Bytes of pieces per turn, over all new subscribers."""
MOST_JOINING = 64
"""Subscribers that receive the ring at the same time; further ones get none."""
SEND_HIGH_WATER = 200
"""Messages buffered per subscriber: 50 MB of pieces, or 20 s of live envelopes."""
ANSWERS_PER_S = 50
"""Sustained rate of hellos, each of which costs the engine up to a millisecond."""
ANSWERS_AT_ONCE = 16
HEARD_AT_ONCE = 1_000
"""Subscriptions read in one turn, valid or not."""
LONGEST_REQUEST = 1_024
"""Bytes of a subscription, which is a topic."""
UNSUBSCRIBE, SUBSCRIBE = b"\0", b"\1"
MOST_FAULTS = 20
"""Consecutive failed turns, about two seconds, after which the channel gives up."""
PASSING = {BlockMap, PromptBlocks}
"""Useless to late subscribers, so the ring leaves them out."""
HALF_HOUR_NS = 1_800 * NS_PER_S


def short_of_descriptors() -> bool:
    """Whether 90 % of the file descriptors this process may open are in use."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        lowest = os.dup(0)
    except OSError:
        return True
    os.close(lowest)
    return lowest > limit * 9 // 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RingEntry:
    """An envelope in the ring, as it was sent."""

    seq: int
    t_ns: int
    accounted: int
    """Readings emitted or dropped before this envelope."""
    envelope: bytes


class Ring:
    """Keeps the last half hour of envelopes, up to a size, for late subscribers."""

    def __init__(self, limit_bytes: int, limit_ns: int = HALF_HOUR_NS) -> None:
        self.limit_bytes = limit_bytes
        self.limit_ns = limit_ns
        self.used_bytes = 0
        self._entries: deque[RingEntry] = deque()

    def put(self, entry: RingEntry) -> None:
        """Add an envelope, discarding the oldest ones as needed."""
        self._entries.append(entry)
        self.used_bytes += len(entry.envelope)
        while self._entries and self._too_much(entry.t_ns):
            self.used_bytes -= len(self._entries.popleft().envelope)

    def _too_much(self, now_ns: int) -> bool:
        too_old = now_ns - self._entries[0].t_ns > self.limit_ns
        return too_old or self.used_bytes > self.limit_bytes

    @property
    def oldest(self) -> RingEntry | None:
        """The oldest envelope; None when the ring is empty."""
        return self._entries[0] if self._entries else None

    def envelopes(self) -> deque[bytes]:
        """A copy of all envelopes, oldest first."""
        return deque(entry.envelope for entry in self._entries)


class ChannelOwner(Protocol):
    """The probe or agent a channel publishes for."""

    role: Role
    engine: EngineInfo | None

    def totals(self) -> Totals: ...

    def beat(self) -> Iterable[AnyReading]:
        """Readings to publish besides the records; called once a second."""
        ...

    def report(self, text: str) -> None:
        """Report an error that is not fatal."""
        ...

    def failed(self, error: Exception) -> None:
        """Report that a record cannot become readings, or that nothing can be sent."""
        ...


class Channel:
    """The XPUB socket of one process; it replies to subscribers and never blocks."""

    def __init__(
        self,
        path: Path,
        source: str,
        owner: ChannelOwner,
        ring_bytes: int,
        prefix: bytes = b"",
    ) -> None:
        """``prefix`` precedes all topics; an agent's distinguishes it from probes."""
        self.path = path
        self._live = prefix + LIVE
        self._ring_topic = prefix + RING
        self._questions = prefix + HELLO, self._ring_topic
        self.cpu_ns = 0
        """CPU time of the sending thread."""
        self._owner = owner
        self._sender = EnvelopePacker(source)
        self._ring = Ring(ring_bytes)
        records: deque[Record] = deque(maxlen=MOST_RECORDS)
        self.append: Callable[[Record], None] = records.append
        """Add a record; if too many are waiting, the oldest is dropped and counted."""
        self.ticket: Callable[[], int] = count().__next__
        """Numbers records, so that dropped ones are noticed."""
        self._records = records
        self._later: deque[tuple[Any, ...]] = deque()
        self._count = 0
        self._broken = 0
        self._standing: dict[str, tuple[int, AnyReading]] = {}
        self._joining: dict[bytes, deque[bytes]] = {}
        self._subscribed = self._listens = False
        self.newcomers = 0
        """Number of hellos sent."""
        self._turns = 0
        self._next_beat_ns = monotonic_ns() + NS_PER_S
        self._answers = TokenBucket(most=ANSWERS_AT_ONCE, per_s=ANSWERS_PER_S)
        """Hellos that may be sent now."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="inferwatch", daemon=True
        )

    def open(self) -> None:
        """Bind the socket and start the thread.

        Raises:
            zmq.ZMQError: the path cannot be bound.
        """
        self.path.unlink(missing_ok=True)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, SEND_HIGH_WATER)
        self._socket.setsockopt(zmq.MAXMSGSIZE, LONGEST_REQUEST)
        # so that a returning subscriber is seen
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._listen_for_newcomers()
        self._thread.start()

    def _listen_for_newcomers(self) -> None:
        self._socket.bind(f"ipc://{self.path}")
        hand_over(self.path)
        self._listens = True

    def _mind_descriptors(self) -> None:
        """Refuse new subscribers while the process is short of file descriptors.

        libzmq aborts the process when it has none left for a connection.
        """
        crowded = short_of_descriptors()
        if crowded and self._listens:
            self._listens = False
            self._socket.unbind(f"ipc://{self.path}")
            self.path.unlink(missing_ok=True)
        elif not crowded and not self._listens:
            self._listen_for_newcomers()

    def close(self) -> None:
        """Send what is waiting and stop."""
        self._stopping.set()
        self._thread.join()
        self._socket.close()
        self._context.term()
        self.path.unlink(missing_ok=True)

    @property
    def watched(self) -> bool:
        """Whether there is a subscriber to live envelopes."""
        return self._subscribed

    def put(self, *call: Any) -> None:  # noqa: ANN401 - a call's arguments
        """Add a record; where each microsecond counts, call ``append`` directly."""
        self.append((self.ticket(), *call))

    def put_later(self, *call: Any) -> None:  # noqa: ANN401 - likewise
        """Add a record from another thread, which must not number records itself.

        It is processed after all records that are already waiting.
        """
        self._later.append(call)

    def keep(self, key: str, reading: AnyReading) -> None:
        """Include this reading in hellos until released (sending thread only)."""
        self._standing[key] = (self._sender.seq, reading)

    def let_go(self, key: str) -> None:
        """No longer include this reading in hellos (sending thread only)."""
        self._standing.pop(key, None)

    def _run(self) -> None:
        faults, last = 0, ""
        while faults < MOST_FAULTS and not self._stopping.is_set():
            error = self._fault_of(self._turn)
            if error is None:
                faults = 0
                continue
            faults += 1
            if (text := repr(error)) != last:
                last = text
                self._owner.report(f"telling viewers failed and goes on: {text}")
            if faults == MOST_FAULTS:
                self._owner.failed(error)
            self._stopping.wait(FLUSH_S)
        self._fault_of(self._flush)

    @staticmethod
    def _fault_of(work: Callable[[], None]) -> Exception | None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a probe may never hurt its engine
            return error
        return None

    def _turn(self) -> None:
        self._listen()
        self._flush()
        self._send_pieces()
        self._beat()
        self.cpu_ns = time.thread_time_ns()

    def _listen(self) -> None:
        """Wait for the next flush, then handle new and ended subscriptions."""
        time.sleep(JOIN_S if self._joining else FLUSH_S)
        self._turns += 1
        if self._turns % LISTEN_TURNS == 0 or self._joining:
            self._answers.refill()
            for _ in range(HEARD_AT_ONCE):
                if self._answers.left < 1 or not self._socket.poll(0):
                    return  # the rest is handled in a later turn
                message = self._socket.recv(zmq.NOBLOCK)
                kind, topic = message[:1], message[1:]
                if kind in {SUBSCRIBE, UNSUBSCRIBE}:  # any process may send anything
                    self._heard(joins=kind == SUBSCRIBE, topic=topic)

    def _heard(self, *, joins: bool, topic: bytes) -> None:
        if topic == self._live:
            self._subscribed = joins
        elif not joins:
            self._joining.pop(topic, None)
        elif topic.startswith(self._questions):
            self._answer(topic)

    def _answer(self, topic: bytes) -> None:
        wants_past = topic.startswith(self._ring_topic)
        full = wants_past and len(self._joining) >= MOST_JOINING
        oldest = None if full else self._ring.oldest
        self._socket.send_multipart([topic, encode_hello(self._hello(oldest))])
        self.newcomers += 1
        self._answers.take()
        if wants_past and oldest is not None:
            self._joining[topic] = self._ring.envelopes()

    def _hello(self, oldest: RingEntry | None) -> Hello:
        accounted = self._accounted()
        return Hello(
            source=self._sender.source,
            stream=self._sender.stream,
            seq=self._sender.seq,
            ring_seq=oldest.seq if oldest else self._sender.seq,
            ring_bytes=self._ring.used_bytes,
            ring_accounted=oldest.accounted if oldest else accounted,
            accounted=accounted,
            role=self._owner.role,
            pid=os.getpid(),
            # an engine may be in the process of an application that serves HTTP
            listens=[] if self._owner.role is Role.WORKER else listened_to(),
            engine=self._owner.engine,
            orphaned=_is_orphaned(),
            anchor=anchor(),
            totals=self._owner.totals(),
            standing=[
                Standing(seq=seq, reading=encode_reading(reading))
                for seq, reading in self._standing.values()
            ],
        )

    def _accounted(self) -> int:
        return self._sender.emitted + self._sender.dropped

    def _flush(self) -> None:
        later = [self._later.popleft() for _ in range(len(self._later))]
        while self._records:
            if readings := self._make(min(len(self._records), RECORDS_AT_ONCE)):
                self._publish(readings)
        if later and (
            readings := [each for call in later for each in self._call(*call)]
        ):
            self._publish(readings)

    def _make(self, count: int) -> list[AnyReading]:
        """Turn records into readings; a gap in their numbers counts as dropped."""
        readings: list[AnyReading] = []
        ticket = 0
        for _ in range(count):
            ticket, *call = self._records.popleft()
            readings += self._call(*call)
        self._count += count
        self._sender.dropped = ticket + 1 - self._count + self._broken
        return readings

    def _call(
        self, make: Callable[..., list[AnyReading]], *arguments: object
    ) -> list[AnyReading]:
        try:
            return make(*arguments)
        except Exception as error:  # noqa: BLE001 - a probe may never hurt its engine
            self._broken += 1
            self._owner.failed(error)
            return []

    def _publish(self, readings: list[AnyReading]) -> None:
        seq, accounted = self._sender.seq, self._accounted()
        envelope = self._sender.pack(readings)
        passing = [at for at, each in enumerate(readings) if type(each) in PASSING]
        data = emptied(envelope, passing) if passing else envelope
        self._ring.put(
            RingEntry(seq=seq, t_ns=monotonic_ns(), accounted=accounted, envelope=data)
        )
        self._socket.send_multipart([self._live, envelope])

    def _send_pieces(self) -> None:
        """Send the ring to new subscribers in small pieces, sparing the engine."""
        left = TURN_BYTES
        for topic in list(self._joining):
            if left <= 0:
                return
            rest = self._joining.pop(topic)
            piece: list[bytes] = []
            size = 0
            while rest and size < PIECE_BYTES and len(piece) < PIECE_ENVELOPES:
                piece.append(rest.popleft())
                size += len(piece[-1])
            self._socket.send_multipart([topic, *piece])
            left -= size
            if rest:
                self._joining[topic] = rest  # after those that got nothing in this turn

    def _beat(self) -> None:
        """Publish once a second, even without readings, so that losses are noticed."""
        if monotonic_ns() < self._next_beat_ns:
            return
        self._next_beat_ns = monotonic_ns() + NS_PER_S
        self._mind_descriptors()
        readings = list(self._owner.beat())
        if readings or self._subscribed:
            self._publish(readings)


def _is_orphaned() -> bool:
    parent = parent_process()
    return parent is not None and not parent.is_alive()
