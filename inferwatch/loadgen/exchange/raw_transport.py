"""Plain HTTP/1.1 on our own sockets, which adds only microseconds to a request.

All sockets are in one epoll, which the event loop watches: one turn of the loop serves
every ready socket.
"""

import asyncio
import select
import socket
from contextlib import suppress
from errno import EINPROGRESS
from os import strerror
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from collectors.contract.clock import NS_PER_S, monotonic_ns
from inferwatch.loadgen.exchange.call import (
    Call,
    ErrorResponse,
    Failure,
    UnreachableError,
)
from inferwatch.loadgen.exchange.receive_stamps import (
    ANCILLARY_BYTES,
    ReceiveStamps,
    ask_for_stamps,
)
from inferwatch.loadgen.exchange.reply import NotAnEventError
from inferwatch.loadgen.exchange.request import plain_http
from inferwatch.loadgen.exchange.response import HttpResponse, NotHttpError
from inferwatch.loadgen.exchange.sse import SseError
from inferwatch.loadgen.plan.plan import LoadPlan, TransportKind

READ_BYTES = 16 << 10
MOST_READS = 32
"""Reads per turn while the buffer is full: a buffer that is not emptied stalls its
sender for 40 ms at a time, and one that never empties must not delay the others."""


class Address(NamedTuple):
    """A server's address, as for ``socket.connect``."""

    family: int
    where: Any


class CarriedExchange(Protocol):
    """Callbacks of a connection to the exchange it carries."""

    request: bytes

    def sends(self, at_ns: int) -> None:
        """Called before bytes are sent; the last call completes the request."""
        ...

    def came(self, data: bytes, at_ns: int, *, by_kernel: bool) -> None: ...

    def closed(self, why: str) -> None:
        """The peer closed the connection; ``why`` is empty after a clean close."""
        ...

    def refused(self, why: str) -> None:
        """The connection could not be established."""
        ...


class Connection:
    """A non-blocking socket in a poller, whose owner calls :meth:`handle`."""

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
        """Send an exchange's request now, or once connected."""
        self._carried = exchange
        if self._why_not:
            exchange.refused(self._why_not)
            return
        self._unsent = memoryview(exchange.request)
        if self.connected:
            self._write()

    def rest(self) -> None:
        """Mark the connection as idle after an exchange."""
        self._carried = None
        if self._unsent:
            self.close()  # the response came before the request was complete
        self.idle_since_ns = monotonic_ns()

    def close(self) -> None:
        if self.open:
            self.open = False
            self._carried = None
            self._poller.unregister(self.fileno)
            self._socket.close()

    def handle(self, events: int) -> None:
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
                pass  # the poller reports when there is space
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
        """Read once; True if more may be available at once."""
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
    """Whether a socket is connected, as local ones are at once."""
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


KEEPALIVE_NS = 2 * NS_PER_S
"""Below the 5 s after which uvicorn closes idle connections: a connection closed by
both sides at once would fail a request through no fault of the server."""

SWEEP_S = 0.05
"""Interval of checks for deadlines and idle connections."""
MAX_EVENTS = 64
"""Sockets served before the loop may send requests that are due."""
CONNECT_S = 5.0


class RawTransport:
    """Sends requests over plain sockets, all served by one epoll."""

    kind = TransportKind.RAW

    def __init__(self, plan: LoadPlan) -> None:
        self.receive_stamps = ReceiveStamps()
        self._plan = plan
        self._timeout_ns = int(plan.request_timeout_s * NS_PER_S)
        self._address = Address(socket.AF_UNIX, plan.uds or "")
        self._poller = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._idle: list[Connection] = []
        self._deadlines: dict[RawExchange, int] = {}
        """Deadline of each exchange, in ascending order."""
        self._sweeping: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Find an address that answers and connect to it once."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._poller.fileno(), self._poll)
        self._sweep()
        if self._plan.uds is None:
            self._address = await _answering(self._plan.url)
        self.ensure(1)

    def prepare(self, call: Call) -> "RawExchange":
        return RawExchange(self, call, plain_http(self._plan, call))

    def ensure(self, connections: int) -> bool:
        """Open connections in advance; True once all are open or have failed."""
        with suppress(OSError):  # out of sockets: the exchanges that need one report it
            for _ in range(connections - len(self._idle)):
                self._rest(self._connect())
        return all(each.connected or not each.open for each in self._idle)

    async def aclose(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self._connections.values()):
            connection.close()
        asyncio.get_running_loop().remove_reader(self._poller.fileno())
        self._poller.close()

    # Called by exchanges.

    def take_connection(self, exchange: "RawExchange") -> Connection:
        """A connection for the exchange: an idle one, else a new one.

        Raises:
            OSError: no socket is available.
        """
        connection = self._live_one() or self._connect()
        self._deadlines[exchange] = monotonic_ns() + self._timeout_ns
        return connection

    def release(self, exchange: "RawExchange", connection: Connection) -> None:
        """Return the connection of an ended exchange for reuse."""
        self._deadlines.pop(exchange, None)
        if exchange.response.finished and exchange.response.reusable:
            self._rest(connection)
        else:
            self._close(connection)

    # Connections.

    def _live_one(self) -> Connection | None:
        """The connection used last, most likely alive; None if none is idle."""
        while self._idle:
            connection = self._idle.pop()
            if connection.open and not _expired(connection):
                return connection
            self._close(connection)
        return None

    def _connect(self) -> Connection:
        connection = Connection(self._address, self._poller, self.receive_stamps)
        if connection.open:
            self._connections[connection.fileno] = connection
        return connection

    def _rest(self, connection: Connection) -> None:
        if connection.open:
            connection.rest()
            self._idle.append(connection)

    def _close(self, connection: Connection) -> None:
        if self._connections.get(connection.fileno) is connection:
            del self._connections[connection.fileno]
        connection.close()

    def _poll(self) -> None:
        for fileno, events in self._poller.poll(0, MAX_EVENTS):
            connection = self._connections.get(fileno)
            if connection is not None:
                connection.handle(events)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeping = loop.call_later(SWEEP_S, self._sweep)
        now_ns = monotonic_ns()
        self.receive_stamps.anchor()
        for exchange, by_ns in list(self._deadlines.items()):
            if exchange.call.reply.looks_done() and exchange.end_if_done():
                continue
            if by_ns < now_ns:
                exchange.time_out(self._plan.request_timeout_s)
        while self._idle and (_expired(self._idle[0]) or not self._idle[0].open):
            self._close(self._idle.pop(0))


class RawExchange:
    """A call over this transport."""

    def __init__(self, transport: RawTransport, call: Call, request: bytes) -> None:
        self.call = call
        self.request = request
        self.response = HttpResponse(self._take)
        self._transport = transport
        self._refusal = ErrorResponse()
        self._connection: Connection | None = None
        self._ended = asyncio.get_running_loop().create_future()

    def begin(self) -> asyncio.Future[None]:
        self._ended.add_done_callback(self._abort)
        try:
            self._connection = self._transport.take_connection(self)
        except OSError as error:
            self.refused(error.strerror or type(error).__name__)
        else:
            self._connection.carry(self)
        return self._ended

    def time_out(self, after_s: float) -> None:
        """Fail the call because it took too long."""
        self._fail(Failure.TIMEOUT, f"after {after_s:g} s: {self._progress()}")

    def end_if_done(self) -> bool:
        """End the exchange if the response continues after ``[DONE]``."""
        done_ns = self.call.reply.done_ns
        if done_ns is not None:
            self.response.reusable = False
            self.call.answered = True
            self._end(done_ns)
        return done_ns is not None

    # Callbacks of the connection.

    def sends(self, at_ns: int) -> None:
        self.call.sent_ns = at_ns

    def came(self, data: bytes, at_ns: int, *, by_kernel: bool) -> None:
        if not by_kernel:
            self.call.reply.by_kernel = False
        try:
            self.response.feed(data, at_ns)
        except (NotHttpError, SseError, NotAnEventError) as error:
            self._fail(Failure.BROKEN_STREAM, str(error), at_ns)
            return
        response = self.response
        if response.finished or (response.status != 200 and self._refusal.complete):
            self._finish(at_ns)
        elif self.call.heard_enough:
            response.reusable = False  # close it instead of keeping it
            self.call.hang_up()
            self._end(self.call.end_ns or at_ns)

    def closed(self, why: str) -> None:
        if self.response.end():
            self._finish(monotonic_ns())
        elif self.response.status is None:
            self._fail(Failure.BROKEN_STREAM, f"disconnected before a response {why}")
        else:
            self._fail(Failure.BROKEN_STREAM, f"incomplete: {self._progress()} {why}")

    def refused(self, why: str) -> None:
        self._fail(Failure.REFUSED, why)

    # Endings.

    def _take(self, data: bytes, at_ns: int) -> None:
        if self.response.status == 200:
            self.call.reply.read(data, at_ns)
        else:
            self._refusal.read(data)

    def _finish(self, at_ns: int) -> None:
        status = self.response.status or 0
        if status == 200:
            kind = self.response.headers.get(b"content-type", b"")
            self.call.reply.content_type = kind.decode("latin-1")
            self.call.answered = True
        else:
            self._refusal.tell(self.call, status, self.response.headers)
        self._end(at_ns)

    def _fail(self, failure: Failure, detail: str, at_ns: int | None = None) -> None:
        self.response.reusable = False
        self.call.cut(failure, detail.strip())
        self._end(at_ns or monotonic_ns())

    def _end(self, at_ns: int) -> None:
        self.call.end_ns = at_ns
        if self._connection is not None:
            self._transport.release(self, self._connection)
        if not self._ended.done():
            self._ended.set_result(None)

    def _abort(self, ended: asyncio.Future[None]) -> None:
        if ended.cancelled() and self.call.end_ns is None:
            self._fail(Failure.ABORTED, "")

    def _progress(self) -> str:
        if self.response.status is None:
            return "no head of a response"
        return f"{len(self.call.reply.stamps_ns)} chunks with tokens"


def _expired(connection: Connection) -> bool:
    return monotonic_ns() - connection.idle_since_ns > KEEPALIVE_NS


async def _answering(url: str) -> Address:
    """The first address of the host that accepts a connection, else its first one."""
    where = urlsplit(url)
    host, port = where.hostname or "localhost", where.port or 80
    loop = asyncio.get_running_loop()
    try:
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise UnreachableError(f"{host}: {error.strerror}") from error
    addresses = [Address(family, at) for family, _, _, _, at in infos]
    for address in addresses:
        with suppress(OSError, TimeoutError):
            await asyncio.wait_for(_try(address), CONNECT_S)
            return address
    return addresses[0]


async def _try(address: Address) -> None:
    with socket.socket(address.family, socket.SOCK_STREAM) as sock:
        sock.settimeout(0)
        await asyncio.get_running_loop().sock_connect(sock, address.where)
