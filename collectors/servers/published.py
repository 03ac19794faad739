"""Receives what servers publish over ZeroMQ, rank by rank.

A message has a topic, a number and a payload. Messages are numbered from 0 without
gaps, so losses are known.

Only the watched server's host is ever connected to, whatever host an endpoint names. A
loopback address without a wildcard is one vLLM connects *to*, so we bind it, provided
the server's process is on this host. The end of a tunnel does not qualify: whoever is
behind it could choose what we bind and connect to here.
"""

import asyncio
import ipaddress
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Protocol
from urllib.parse import urlsplit

import httpx
import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from collectors.contract.clock import SessionClock
from collectors.contract.readings import AnyReading, Note, NoteKind
from collectors.http.bounded_get import OK, NoAnswerError, get
from collectors.http.http_client import ProxyError, goes_direct
from collectors.http.server import Server, ServerError
from collectors.probe.discover import addresses_here
from collectors.servers.families.family import (
    MOST_RANKS,
    SELDOM_S,
    FindPublishers,
    Publisher,
    Publishers,
)

ASK_S = 5.0
MOST_ANSWER_BYTES = 1 << 18
MOST_NUMBER = 1 << 62
MOST_MESSAGE_BYTES = 8 << 20
MOST_WAITING = 20_000
"""Messages buffered by a socket; further ones are lost, and counted."""
REPLAY_S = 3.0
"""Timeout of a replay; a server usually starts within a tenth of it."""
REPLAYS = 3
"""Attempts per replay: a long one may lose messages, too."""
QUEUE_BATCHES = 1_000
CONNECTION = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_CONNECTED
"""What is watched of a connection."""
RETRY_S = 1.0
"""How long libzmq has to connect anew by itself: it never does after a message that it
did not take."""
AT_ONCE = 200
"""Messages decoded without yielding to the event loop."""
END_NUMBER = (1 << 64) - 1
"""Number of the message that ends a replay: -1, unsigned."""
NONSENSE = (msgspec.MsgspecError, ValueError, RecursionError)
"""Errors of decoding; invalid UTF-8 is a ValueError."""


class RankReader(Protocol):
    """Orders the messages of one rank, and makes readings of them."""

    expected: int
    """Number of the next message."""
    interrupted: bool
    """The connection was lost; the next number shows whether the server restarted."""

    def begins_anew(self, number: int) -> None:
        """Detect a restart of the server by the number of a live message."""

    def take(self, number: int, payload: bytes, *, live: bool) -> list[AnyReading]:
        """Readings of a message; empty if it is a repetition or invalid."""
        ...

    def nothing_yet(self) -> list[AnyReading]:
        """What it means that a replay from 0 on brought nothing."""
        ...


class UnusableEndpointError(Exception):
    """Something is published where we cannot connect; the message is for users."""


class PublishedStream(ABC):
    """A collector of what one server publishes, rank by rank."""

    WHAT: str
    """What is published, as text for users."""
    FOUND_BY: Sequence[FindPublishers]
    """Ways to find where it is published, best first."""

    def __init__(
        self,
        clock: SessionClock,
        server: Server,
        runs_here: Callable[[], bool],
        given: Sequence[str] = (),
    ) -> None:
        """``runs_here`` tells whether the server is on this host; it may block.

        ``given``: endpoints the user named, by rank; the server is then not asked.
        """
        self._given = dict(enumerate(Publisher(endpoint=each) for each in given))
        self._clock = clock
        self.server = server
        self._runs_here = runs_here
        self._local = False
        self._host = urlsplit(server.url).hostname or ""
        self._context: zmq.asyncio.Context | None = None
        """Created only when a server publishes, because it starts threads."""
        self._queue: asyncio.Queue[list[AnyReading] | BaseException]
        self._queue = asyncio.Queue(QUEUE_BATCHES)
        self._looking: asyncio.Task[None] | None = None
        self._ranks: dict[int, tuple[Publisher, asyncio.Task[None]]] = {}
        self._notes: set[str] = set()
        self._closed = False

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Readings of the messages, until closed."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
            self._looking.add_done_callback(self._ended)
        while not (self._closed and self._queue.empty()):
            batch = await self._queue.get()
            if isinstance(batch, BaseException):
                raise batch
            if batch:
                yield batch

    async def close(self) -> None:
        """Close all sockets; safe to call twice."""
        self._closed = True
        tasks = [task for _, task in self._ranks.values()]
        if self._looking is not None:
            tasks.append(self._looking)
        self._ranks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)
        if self._queue.empty():
            self._queue.put_nowait([])  # wakes batches()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Queue an unexpected error of a task, to be raised in ``batches``."""
        if not task.cancelled() and (error := task.exception()):
            with suppress(asyncio.QueueFull):
                self._queue.put_nowait(error)

    @abstractmethod
    def _reader(self, rank: int, *, same_host: bool) -> RankReader:
        """What makes readings of one rank's messages."""

    async def _look(self) -> None:
        """Query the endpoints repeatedly and follow them."""
        if self._given:
            await self._follow(self._given)
            return
        try:
            asking = self.server.client(timeout_s=ASK_S)
        except (ServerError, ProxyError):
            return  # the scraper reports it
        async with asking as client:
            while True:
                pause_s = SELDOM_S
                for find in self.FOUND_BY:
                    publishers = await self._publishers(client, find)
                    if publishers is not None:
                        await self._follow(publishers)
                        pause_s = find.every_s
                        break
                await asyncio.sleep(pause_s)

    async def _publishers(
        self, client: httpx.AsyncClient, find: FindPublishers
    ) -> Publishers | None:
        """Endpoints by rank; None if the server does not list them there."""
        try:
            answer = await get(
                client, find.path, timeout_s=ASK_S, most_bytes=MOST_ANSWER_BYTES
            )
            publishers = find.read(msgspec.json.decode(answer.body))
        except NoAnswerError as error:
            if error.status == OK:  # it answered, but not usably
                source = self.server.source
                await self._say(f"cannot hear {self.WHAT} of {source}: {error}")
            return None
        except NONSENSE:
            return None
        return {
            rank: each
            for rank, each in sorted(publishers.items())
            if 0 <= rank < MOST_RANKS and each.publisher == "zmq"
        }

    async def _follow(self, sources: dict[int, Publisher]) -> None:
        for rank, (source, task) in list(self._ranks.items()):
            if sources.get(rank) != source or task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                del self._ranks[rank]
        if sources.keys() - self._ranks.keys() and self.server.is_here:
            self._local = await asyncio.to_thread(self._runs_here)
        for rank, source in sources.items():
            if rank not in self._ranks:
                task = asyncio.create_task(self._hear(rank, source))
                task.add_done_callback(self._ended)
                self._ranks[rank] = source, task

    async def _hear(self, rank: int, source: Publisher) -> None:
        """Receive one rank's messages until cancelled or unreachable."""
        if source.unheard:
            await self._say(f"{self.server.source}: {source.unheard}")
            return
        events = self._reader(rank, same_host=self._local)
        socket = self._socket(zmq.SUB)
        monitor = socket.get_monitor_socket(CONNECTION)
        socket.subscribe(b"")
        try:
            place = self._attach(socket, source.endpoint)
            await self._replay(source, events)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch(socket, place, monitor, events))
                tasks.create_task(self._listen(socket, source, events))
        except UnusableEndpointError as error:
            await self._say(str(error))
        finally:
            monitor.close(linger=0)
            socket.close(linger=0)

    async def _watch(
        self,
        socket: "zmq.asyncio.Socket",
        place: str | None,
        monitor: "zmq.asyncio.Socket",
        events: RankReader,
    ) -> None:
        """Mark a rank as interrupted when its connection is lost, and connect anew."""
        while True:
            told = parse_monitor_message(await monitor.recv_multipart())
            if told["event"] != zmq.EVENT_DISCONNECTED:
                continue
            events.interrupted = True
            if place is None or await monitor.poll(RETRY_S * 1_000):
                continue
            await self._say(
                f"{self.server.source} sent more than {MOST_MESSAGE_BYTES >> 20} MiB "
                f"of {self.WHAT} at once, which is not read"
            )
            with suppress(zmq.ZMQError):
                socket.disconnect(place)
            socket.connect(place)

    async def _listen(
        self, socket: "zmq.asyncio.Socket", source: Publisher, events: RankReader
    ) -> None:
        decoded = 0
        while True:
            message = numbered(await socket.recv_multipart())
            if message is None or message[0] == END_NUMBER:
                continue
            number, payload = message
            events.begins_anew(number)
            if number > events.expected:
                await self._replay(source, events)
            await self._pass_on(events.take(number, payload, live=True))
            decoded += 1
            if decoded % AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _replay(self, source: Publisher, events: RankReader) -> None:
        """Request missing batches from the replay endpoint."""
        if source.replay_endpoint is None:
            return
        for tries_left in reversed(range(REPLAYS)):
            again = tries_left > 0
            if await self._ask_again(source.replay_endpoint, events, again=again):
                break

    async def _ask_again(
        self, endpoint: str, events: RankReader, *, again: bool
    ) -> bool:
        """Run one replay; False if batches were lost and it should be repeated."""
        first = True
        with suppress(UnusableEndpointError), self._socket(zmq.DEALER) as socket:
            self._attach(socket, endpoint, bound=True)
            await socket.send_multipart([b"", events.expected.to_bytes(8, "big")])
            while await socket.poll(REPLAY_S * 1_000):
                frames = await socket.recv_multipart()
                message = numbered(frames[1:])
                if message is None:
                    continue
                number, payload = message
                if number == END_NUMBER:
                    break
                if number > events.expected and not first and again:
                    return False
                first = False
                await self._pass_on(events.take(number, payload, live=False))
            else:
                return True
            if events.expected == 0:
                await self._pass_on(events.nothing_yet())
        return True

    def _socket(self, kind: int) -> "zmq.asyncio.Socket":
        if self._context is None:
            self._context = zmq.asyncio.Context()
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.rcvhwm = MOST_WAITING
        socket.setsockopt(zmq.MAXMSGSIZE, MOST_MESSAGE_BYTES)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 5_000)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.IPV6, 1)
        return socket

    def _attach(
        self, socket: "zmq.asyncio.Socket", endpoint: str, *, bound: bool = False
    ) -> str | None:
        """Connect to where the server binds, or bind where it connects.

        Return what was connected to.
        """
        if self._given:
            place, bind = endpoint, False
        else:
            place, bind = reachable(
                endpoint, self._host, local=self._local, bound=bound, what=self.WHAT
            )
        try:
            (socket.bind if bind else socket.connect)(place)
        except zmq.ZMQError as error:
            verb = "bind" if bind else "connect to"
            raise UnusableEndpointError(
                f"cannot hear {self.WHAT} of {self.server.source}: cannot {verb} "
                f"{place}: {error.strerror or error}"
            ) from error
        return None if bind else place

    async def _pass_on(self, readings: Sequence[AnyReading]) -> None:
        if readings:
            await self._queue.put(list(readings))

    async def _say(self, text: str) -> None:
        if text not in self._notes and len(self._notes) < MOST_RANKS:
            self._notes.add(text)
            now_ns, source = self._clock.now_ns(), self.server.source
            note = Note(source=source, t_ns=now_ns, kind=NoteKind.PROBE, text=text)
            await self._pass_on([note])


def numbered(frames: Sequence[bytes]) -> tuple[int, bytes] | None:
    """Number and payload of a message of three frames; None if malformed."""
    if len(frames) != 3 or len(frames[1]) != 8:
        return None
    number = int.from_bytes(frames[1], "big")
    return (number, frames[2]) if number < MOST_NUMBER or number == END_NUMBER else None


def reachable(
    endpoint: str,
    host: str,
    *,
    local: bool,
    bound: bool = False,
    what: str = "KV events",
) -> tuple[str, bool]:
    """Address to use for an endpoint listed by a server at ``host``; True: bind it.

    Raises:
        UnusableEndpointError: the endpoint cannot be used.

    >>> reachable("tcp://*:5557", "node7", local=False)
    ('tcp://node7:5557', False)
    >>> reachable("tcp://127.0.0.1:5557", "localhost", local=True)
    ('tcp://127.0.0.1:5557', True)
    >>> reachable("tcp://10.1.2.3:5557", "node7", local=False)
    ('tcp://node7:5557', False)
    >>> reachable("tcp://internal-db:6379", "localhost", local=True)
    ('tcp://127.0.0.1:6379', False)
    """
    wildcard = "*" in endpoint or "::" in endpoint
    kind, _, place = endpoint.partition("://")
    if kind == "ipc" and local and not wildcard:
        return endpoint, False
    name, _, port = place.rpartition(":")
    if kind != "tcp" or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UnusableEndpointError(
            f"{what} are published at {endpoint}: no way to hear them"
        )
    loopback = goes_direct(f"http://{name or '*'}:{port}") and not wildcard
    if loopback and not local:
        raise UnusableEndpointError(
            f"{what} are published at {endpoint}, for its own host alone: "
            f'"endpoint": "tcp://*:{port}" lets others hear them'
        )
    if loopback:
        return f"tcp://{name}:{port}", not bound
    if local and not wildcard and _is_own(name):
        return f"tcp://{name}:{port}", False
    host = host if host and not local else "127.0.0.1"
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}", False


def _is_own(name: str) -> bool:
    """Whether a numeric address is this host's; names are not looked up."""
    try:
        address = str(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return False
    return bool(addresses_here(address))
