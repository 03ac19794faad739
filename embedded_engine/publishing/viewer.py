"""One viewer of a relay, with its bytes passed through our own code.

ZeroMQ keeps every subscription of a peer, and bounds what is waiting by messages, not
bytes: a peer that subscribes and never reads could make a server's process grow. So
each viewer gets its own ZeroMQ socket, and we copy bytes between it and the network:
few from the viewer, and to it only as fast as it reads.
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
"""Messages ZeroMQ buffers per viewer; further ones are kept here, where bytes are
counted."""
LONGEST_REQUEST = 1_024
"""Bytes of a viewer's message, which can only be a subscription."""
MOST_TOPICS = 8
"""Subscriptions of a viewer at a time; ours use four."""
SAID_BYTES, SAID_BYTES_PER_S = 4_096, 64
"""Bytes a viewer may send in a burst, and per second; ours send a kilobyte in all."""
KERNEL_BYTES = 1 << 20
"""Send buffer of the kernel: enough for links of 10 MB/s and more."""
MOVED_BYTES = 1 << 16
MOVES = 16
"""Blocks of MOVED_BYTES copied before other viewers are served."""
STALLED_NS = 10 * NS_PER_S
"""A viewer that reads or subscribes to nothing for so long is disconnected."""
HANDSHAKE_MS = 5_000
CLOSED_MS = 1_000
"""Upper bound; ZeroMQ closes in well under a millisecond."""

_numbers = count()


class Viewer:
    """A TCP connection to a viewer, with the messages waiting for it."""

    def __init__(
        self,
        connection: socket.socket,
        context: zmq.Context[zmq.Socket[bytes]],
        prepare: Callable[[zmq.Socket[bytes]], None],
    ) -> None:
        """``prepare`` sets the keys of the viewer's ZeroMQ socket.

        Raises:
            OSError, zmq.ZMQError: there are no resources for another viewer.
        """
        self.topics: set[bytes] = set()
        """Its subscriptions: prefixes of topics."""
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
        """Connect to our own ZeroMQ socket, which then takes no other connection."""
        self._socket.linger = 0
        self._socket.set_hwm(HIGH_WATER)
        self._socket.maxmsgsize = LONGEST_REQUEST
        # so that a returning subscriber is seen
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        # so that a full socket raises Again
        self._socket.setsockopt(zmq.XPUB_NODROP, 1)
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
        """Disconnect; what was sent last, such as a refusal, still arrives."""
        with suppress(OSError):
            self._outside.shutdown(socket.SHUT_WR)
            # unread input would make close() discard what we sent
            self._outside.recv(MOVED_BYTES)
        self._socket.close()
        self._wait_for_its_end()
        self._inside.close()
        self._outside.close()
        self._waiting.clear()
        self.waiting_bytes = 0

    def _wait_for_its_end(self) -> None:
        """Wait until ZeroMQ has closed the other end of our inner connection.

        If our end were closed just before that, in the middle of a message, libzmq
        would abort the process (libzmq 4.3.5, session_base.cpp: clean_pipes).
        """
        end = select.poll()
        end.register(self._inside, select.POLLRDHUP)
        end.poll(CLOSED_MS)

    @property
    def waits_for(self) -> Iterator[tuple[Any, int]]:
        """The viewer's sockets to poll, and for which events."""
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
        """Whether the viewer does not read, or never subscribed."""
        now_ns = monotonic_ns()
        if self._to_viewer:
            return now_ns - self._moving_ns > STALLED_NS
        return not self.topics and now_ns - self._came_ns > STALLED_NS

    def wants(self, topic: bytes) -> bool:
        return any(topic.startswith(each) for each in self.topics)

    def requests(self) -> Iterator[bytes]:
        """The viewer's new subscriptions and unsubscriptions."""
        with suppress(zmq.Again):
            while True:
                yield self._socket.recv(zmq.NOBLOCK)

    def tell(self, frames: Sequence[Any]) -> None:
        """Queue a message for the viewer."""
        size = sum(map(len, frames))
        self._waiting.append((size, frames))
        self.waiting_bytes += size

    def drop_oldest(self, most_bytes: int) -> int:
        """Drop the oldest messages until no more bytes are waiting; returns how many.

        Hellos are kept: without one, nothing after it can be understood.
        """
        dropped = 0
        messages: list[tuple[int, Sequence[Any]]] = []
        while self._waiting and self.waiting_bytes > most_bytes:
            size, frames = self._waiting.popleft()
            if _is_hello(frames):
                messages.append((size, frames))
            else:
                self.waiting_bytes -= size
                dropped += 1
        self._waiting.extendleft(reversed(messages))
        return dropped

    def move(self) -> bool:
        """Copy as many bytes as possible in both directions; False if disconnected."""
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
                data = self._outside.recv(allowed)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._may_say.take(len(data))
            self._to_socket = memoryview(data)
        if self._to_socket:
            # closed on that side, but a last message may be readable
            with suppress(OSError):
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
