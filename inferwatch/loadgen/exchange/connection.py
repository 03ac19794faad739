"""A socket that carries one exchange after the other, and never blocks."""

import select
import socket
from errno import EINPROGRESS
from os import strerror
from typing import Any, NamedTuple, Protocol

from collectors.contract.clock import monotonic_ns
from inferwatch.loadgen.exchange.receive_stamps import (
    ANCILLARY_BYTES,
    ReceiveStamps,
    ask_for_stamps,
)

READ_BYTES = 16 << 10
MOST_READS = 32
"""In one turn, while the buffer is full: one that is not emptied stalls its sender for
40 ms at a time, and one that is never empty should not hold up the others."""


class Address(NamedTuple):
    """The address of a server's socket, as ``socket.connect`` takes it."""

    family: int
    where: Any


class CarriedExchange(Protocol):
    """The exchange that a connection carries, and what the connection tells it."""

    request: bytes

    def sends(self, at_ns: int) -> None:
        """Bytes are sent now; the last call is when the request is complete."""
        ...

    def came(self, data: bytes, at_ns: int, *, by_kernel: bool) -> None:
        """Bytes have arrived."""
        ...

    def closed(self, why: str) -> None:
        """The other side closed; ``why`` is empty when it did so in good order."""
        ...

    def refused(self, why: str) -> None:
        """The connection could not be made."""
        ...


class Connection:
    """A non-blocking socket, registered with a poller that calls :meth:`handle`."""

    def __init__(
        self, address: Address, poller: select.epoll, receive_stamps: ReceiveStamps
    ) -> None:
        self.idle_since_ns = monotonic_ns()
        self.open = True
        self._poller = poller
        self._receive_stamps = receive_stamps
        self._carried: CarriedExchange | None = None
        self._unsent = memoryview(b"")
        self.connected = False
        self._watched = select.EPOLLIN | select.EPOLLOUT
        self._why_not = ""
        self._socket = _socket(address)
        self._recvmsg = self._socket.recvmsg
        self.fileno = self._socket.fileno()
        poller.register(self.fileno, self._watched)
        error = self._socket.connect_ex(address.where)
        if error not in {0, EINPROGRESS}:
            self._refuse(error)
        elif _established(self._socket):
            self.connected = True
            self._watch(select.EPOLLIN)

    def carry(self, exchange: CarriedExchange) -> None:
        """Send its request now, or as soon as the connection is there."""
        self._carried = exchange
        if self._why_not:
            exchange.refused(self._why_not)
            return
        self._unsent = memoryview(exchange.request)
        if self.connected:
            self._write()

    def rest(self) -> None:
        """The exchange has ended; another may come."""
        self._carried = None
        if self._unsent:
            self.close()  # answered before it was asked in full
        self.idle_since_ns = monotonic_ns()

    def close(self) -> None:
        """Close the socket."""
        if self.open:
            self.open = False
            self._carried = None
            self._poller.unregister(self.fileno)
            self._socket.close()

    def handle(self, events: int) -> None:
        """React to the events that the poller has seen."""
        if not self.connected:
            self._connect()
        elif events & select.EPOLLOUT:
            self._write()
        if self.open and events & ~select.EPOLLOUT:
            for _ in range(MOST_READS):
                if not self._read():
                    return

    def _connect(self) -> None:
        error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._refuse(error)
            return
        self.connected = True
        self._write()

    def _refuse(self, error: int) -> None:
        self._why_not = strerror(error)
        carried = self._carried
        self.close()
        if carried is not None:
            carried.refused(self._why_not)

    def _write(self) -> None:
        if self._unsent and self._carried is not None:
            self._carried.sends(monotonic_ns())
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except (BlockingIOError, InterruptedError):
                pass  # the poller tells when there is room
            except OSError as error:
                self._unsent = memoryview(b"")
                self._broke(error)
                return
        self._watch(
            select.EPOLLIN | select.EPOLLOUT if self._unsent else select.EPOLLIN
        )

    def _watch(self, events: int) -> None:
        if events != self._watched:
            self._watched = events
            self._poller.modify(self.fileno, events)

    def _read(self) -> bool:
        """Read once; returns whether there may be more to read at once."""
        try:
            data, ancillary, _, _ = self._recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._broke(error)
            return False
        carried = self._carried
        if not data or carried is None:
            self._gone(carried, "")
            return False
        stamp_ns = self._receive_stamps.by_kernel(ancillary)
        if stamp_ns is None:
            carried.came(data, monotonic_ns(), by_kernel=False)
        else:
            carried.came(data, stamp_ns, by_kernel=True)
        return len(data) == READ_BYTES and self.open

    def _broke(self, error: OSError) -> None:
        self._gone(self._carried, error.strerror or type(error).__name__)

    def _gone(self, carried: CarriedExchange | None, why: str) -> None:
        self.close()
        if carried is not None:
            carried.closed(why)


def _established(sock: socket.socket) -> bool:
    """Whether the connection is made: on this host that takes no waiting."""
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


def _socket(address: Address) -> socket.socket:
    sock = socket.socket(address.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    if address.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask_for_stamps(sock)
    return sock
