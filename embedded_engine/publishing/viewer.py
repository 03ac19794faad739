"""One viewer of a relay, whose bytes pass through our hands.

ZeroMQ keeps whatever its peers subscribe to, and counts what waits for them in
messages, not bytes: who asks and does not read could make a server's process grow.
So a viewer gets a socket of ZeroMQ for itself, and we move bytes between that and the
network: few from the viewer, and to it only as fast as it takes them.
"""

import os
import select
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import zmq

from collectors.contract.clock import NS_PER_S, monotonic_ns
from collectors.contract.runtime_dir import socket_dir
from collectors.contract.wire import UNREADABLE
from collectors.http.guests import TokenBucket
from collectors.probe.hello import LIVE, speaker_of

HIGH_WATER = 8
"""Messages that ZeroMQ keeps for one viewer; what more there are wait here, counted."""
LONGEST_REQUEST = 1_024
"""Of a viewer; what he may say is which topics he wants."""
MOST_TOPICS = 8
"""That one viewer wants at a time; ours want four."""
SAID_BYTES, SAID_BYTES_PER_S = 4_096, 64
"""What a viewer may say at once, and in the long run: ours say a kilobyte in all."""
KERNEL_BYTES = 1 << 20
"""That the system keeps for it, beyond what we do: for links of 10 MB/s and more."""
MOVED_BYTES = 1 << 16
MOVES = 16
"""Times as many are moved before others have their turn."""
STALLED_NS = 10 * NS_PER_S
"""Who takes less than we move at once in so long, or asks for nothing, is let go."""
HANDSHAKE_MS = 5_000
CLOSED_MS = 1_000
"""ZeroMQ closes in well under a millisecond."""

_numbers = count()


class Viewer:
    """Somebody at the other end of a TCP connection, and what waits for it."""

    def __init__(
        self,
        connection: socket.socket,
        context: zmq.Context[zmq.Socket[bytes]],
        prepare: Callable[[zmq.Socket[bytes]], None],
    ) -> None:
        """``prepare`` sets the keys of its socket.

        Raises:
            OSError, zmq.ZMQError: there is no room for another.
        """
        self.topics: set[bytes] = set()
        """What it wants to hear, by how that begins."""
        self.waiting_bytes = 0
        self._waiting: deque[tuple[int, Sequence[Any]]] = deque()
        self._outside = connection
        self._inside = socket.socket(socket.AF_UNIX)
        self._socket = context.socket(zmq.XPUB)
        self._to_viewer = self._to_socket = memoryview(b"")
        self._may_say = TokenBucket(most=SAID_BYTES, per_s=SAID_BYTES_PER_S)
        self._came_ns = self._moving_ns = monotonic_ns()
        try:
            prepare(self._socket)
            self._join()
        except BaseException:
            self.close()
            raise

    def _join(self) -> None:
        """Connect to our own socket of ZeroMQ, which nobody else can do after that."""
        self._socket.linger = 0
        self._socket.set_hwm(HIGH_WATER)
        self._socket.maxmsgsize = LONGEST_REQUEST
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # who comes back asks again
        self._socket.setsockopt(zmq.XPUB_NODROP, 1)  # what is full is said to be so
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        name = f"{os.getpid()}.{next(_numbers)}.viewer"
        path = socket_dir(len(name)) / name
        path.unlink(missing_ok=True)
        self._socket.bind(f"ipc://{path}")
        self._inside.connect(str(path))
        path.unlink()
        self._outside.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        self._inside.settimeout(0)
        self._outside.settimeout(0)

    def close(self) -> None:
        """Let go of it; what was sent to it last, such as a refusal, still arrives."""
        with suppress(OSError):
            self._outside.shutdown(socket.SHUT_WR)
            self._outside.recv(MOVED_BYTES)  # unread, it would take back what we sent
        self._socket.close()
        self._wait_for_its_end()
        self._inside.close()
        self._outside.close()
        self._waiting.clear()
        self.waiting_bytes = 0

    def _wait_for_its_end(self) -> None:
        """Until ZeroMQ has let go of the other end of what we have inside.

        Were our end closed while it is about to, in the middle of a message, it would
        end the process (libzmq 4.3.5, session_base.cpp: clean_pipes).
        """
        end = select.poll()
        end.register(self._inside, select.POLLRDHUP)
        end.poll(CLOSED_MS)

    @property
    def waits_for(self) -> Iterator[tuple[Any, int]]:
        """Sockets, and what has to become possible there before there is work."""
        yield self._socket, zmq.POLLIN
        to_viewer, to_socket = bool(self._to_viewer), bool(self._to_socket)
        listens = not to_socket and self._may_say.left >= 1
        yield self._outside.fileno(), listens * zmq.POLLIN | to_viewer * zmq.POLLOUT
        yield (
            self._inside.fileno(),
            (not to_viewer) * zmq.POLLIN | (to_socket * zmq.POLLOUT),
        )

    @property
    def is_stalled(self) -> bool:
        """It takes nothing that it asked for, or never asked."""
        now_ns = monotonic_ns()
        if self._to_viewer:
            return now_ns - self._moving_ns > STALLED_NS
        return not self.topics and now_ns - self._came_ns > STALLED_NS

    def wants(self, topic: bytes) -> bool:
        """It is to hear what is told on that topic."""
        return any(topic.startswith(each) for each in self.topics)

    def requests(self) -> Iterator[bytes]:
        """What it said it wants to hear from now on, or no longer."""
        with suppress(zmq.Again):
            while True:
                yield self._socket.recv(zmq.NOBLOCK)

    def tell(self, frames: Sequence[Any]) -> None:
        """Let a message wait for it."""
        size = sum(map(len, frames))
        self._waiting.append((size, frames))
        self.waiting_bytes += size

    def drop_oldest(self, most_bytes: int) -> int:
        """Drop messages until no more waits than that; how many there were.

        A hello is kept: without it nothing is understood of what follows.
        """
        dropped = 0
        kept: list[tuple[int, Sequence[Any]]] = []
        while self._waiting and self.waiting_bytes > most_bytes:
            size, frames = self._waiting.popleft()
            if _is_hello(frames):
                kept.append((size, frames))
            else:
                self.waiting_bytes -= size
                dropped += 1
        self._waiting.extendleft(reversed(kept))
        return dropped

    def move(self) -> bool:
        """Move what can be moved now, both ways; False: the connection is gone."""
        try:
            return self._send() and self._listen()
        except OSError:
            return False

    def _send(self) -> bool:
        for _ in range(MOVES):
            with suppress(zmq.Again):
                while self._waiting:
                    size, frames = self._waiting[0]
                    self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
                    self._waiting.popleft()
                    self.waiting_bytes -= size
            if not self._to_viewer:
                try:
                    data = self._inside.recv(MOVED_BYTES)
                except BlockingIOError:
                    return True
                if not data:
                    return False
                self._to_viewer, self._moving_ns = memoryview(data), monotonic_ns()
            try:
                sent = self._outside.send(self._to_viewer, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return True
            self._to_viewer = self._to_viewer[sent:]
        return True

    def _listen(self) -> bool:
        allowed = int(self._may_say.refill())
        if not self._to_socket and allowed:
            try:
                said = self._outside.recv(allowed)
            except BlockingIOError:
                return True
            if not said:
                return False
            self._may_say.take(len(said))
            self._to_socket = memoryview(said)
        if self._to_socket:
            with suppress(OSError):  # closed there, it may have left a last word
                sent = self._inside.send(self._to_socket, socket.MSG_NOSIGNAL)
                self._to_socket = self._to_socket[sent:]
        return True


def _is_hello(frames: Sequence[Any]) -> bool:
    if bytes(frames[0]).endswith(LIVE) or len(frames) < 2:
        return False
    try:
        return speaker_of(bytes(frames[1])).pid is not None
    except UNREADABLE:
        return False
