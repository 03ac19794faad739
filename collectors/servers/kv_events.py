"""Receives vLLM's KV cache events: blocks stored in and removed from a prefix cache.

vLLM publishes them over ZeroMQ with ``--kv-events-config``, and lists the endpoints at
``/kv_event_sources``. Batches are numbered from 0 without gaps, so losses are known; a
server with a ``replay_endpoint`` resends them, including those before we joined. Token
ids in the events are skipped.

Only the watched server's host is ever connected to, whatever host an endpoint names. A
loopback address without a wildcard is one vLLM connects *to*, so we bind it, provided
the server's process is on this host. The end of a tunnel does not qualify: whoever is
behind it could choose what we bind and connect to here.
"""

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated
from urllib.parse import urlsplit

import httpx
import msgspec
import zmq
import zmq.asyncio
from msgspec.structs import replace

from collectors.contract.clock import NS_PER_S, SessionClock, wall_offset_ns
from collectors.contract.readings import AnyReading, KvCacheEvents, Note, NoteKind
from collectors.http.bounded_get import OK, NoAnswerError, get
from collectors.http.http_client import ProxyError, goes_direct
from collectors.http.server import Server, ServerError
from collectors.probe.discover import addresses_here

PATH = "/kv_event_sources"
LOOK_S = 10.0
"""Pause between queries for endpoints: a restarted server may have new ones."""
SELDOM_S = 60.0
"""Pause between queries where the server does not know the path."""
ASK_S = 5.0
MOST_ANSWER_BYTES = 1 << 18
MOST_RANKS = 256
MOST_TOKENS = 1 << 20
"""Tokens of a block."""
MOST_NUMBER = 1 << 62
MOST_MESSAGE_BYTES = 8 << 20
MOST_EVENTS = 50_000
"""Events of one batch: a step removes no more blocks than it computes, and decoding
millions would block the thread."""
MOST_WAITING = 20_000
"""Batches buffered by a socket; further ones are lost, and counted."""
REPLAY_S = 3.0
"""Timeout of a replay; a server usually starts within a tenth of it."""
REPLAYS = 3
"""Attempts per replay: a long one may lose batches, too."""
QUEUE_BATCHES = 1_000
AT_ONCE = 200
"""Batches decoded without yielding to the event loop."""
LONGEST_NS = 7 * 24 * 3600 * NS_PER_S
MASK = (1 << 64) - 1
ARRAYS = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
"""First bytes of an array in MessagePack."""
LATEST_S = 1e11
END_NUMBER = MASK
"""Number of the message that ends a replay: -1, unsigned."""

NONSENSE = (msgspec.MsgspecError, ValueError, RecursionError)
"""Errors of decoding; invalid UTF-8 is a ValueError."""

Hash = int | bytes
Hashes = Annotated[list[Hash], msgspec.Meta(max_length=MOST_EVENTS)]


class KvSource(msgspec.Struct, frozen=True):
    """Endpoints of one data-parallel rank, as the server lists them."""

    endpoint: str
    publisher: str = "zmq"
    replay_endpoint: str | None = None


# vLLM sends events as maps since 0.24 and as arrays before. Fields not named here, such
# as token ids, are skipped.


class Stored(msgspec.Struct, tag="BlockStored", gc=False):
    """A chain of blocks was stored in the cache."""

    block_hashes: Hashes
    parent_block_hash: Hash | None = None
    block_size: int | None = None
    medium: str | None = None
    group_idx: int | None = None


class Removed(msgspec.Struct, tag="BlockRemoved", gc=False):
    """Blocks were removed from the cache."""

    block_hashes: Hashes
    medium: str | None = None
    group_idx: int | None = None


class Cleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    """All blocks were removed from the cache."""


class OldStored(msgspec.Struct, tag="BlockStored", array_like=True, gc=False):
    """The array form of Stored."""

    block_hashes: Hashes
    parent_block_hash: Hash | None
    token_ids: msgspec.Raw
    block_size: int | None = None
    lora_id: msgspec.Raw = msgspec.Raw(b"\xc0")
    medium: str | None = None
    group_idx: None = None


class OldRemoved(msgspec.Struct, tag="BlockRemoved", array_like=True, gc=False):
    """The array form of Removed."""

    block_hashes: Hashes
    medium: str | None = None
    group_idx: None = None


class OldCleared(msgspec.Struct, tag="AllBlocksCleared", array_like=True, gc=False):
    """The array form of Cleared."""


class Batch(msgspec.Struct, array_like=True, gc=False):
    """Events of one engine step."""

    ts: float
    """Unix time on the server's clock."""
    events: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MOST_EVENTS)]
    data_parallel_rank: int | None = None


Event = Stored | Removed | Cleared | OldStored | OldRemoved | OldCleared
_batch = msgspec.msgpack.Decoder(Batch)
_map = msgspec.msgpack.Decoder(Stored | Removed | Cleared)
_array = msgspec.msgpack.Decoder(OldStored | OldRemoved | OldCleared)


def key_of(block_hash: Hash, group: int | None = None) -> int:
    """Key of a block: 64 bits of its hash, combined with its KV cache group."""
    if isinstance(block_hash, bytes):
        block_hash = int.from_bytes(block_hash[-8:], "big")
    return (block_hash ^ (group or 0) * 0x9E3779B97F4A7C15) & MASK


def events_of(batch: Batch) -> Iterator[Event]:
    """Known events of a batch that concern the GPU's cache."""
    for raw in batch.events:
        is_array = memoryview(raw)[0] in ARRAYS
        try:
            event: Event = (_array if is_array else _map).decode(raw)
        except NONSENSE:
            continue
        if getattr(event, "medium", None) in {None, "GPU"}:
            yield event


class KvReadingBuilder:
    """Collects events into readings, each applied as cleared, removed, then stored."""

    def __init__(self, empty: KvCacheEvents) -> None:
        self._empty = empty
        """A reading without events, with all other fields set."""
        self._readings: list[KvCacheEvents] = []
        self._block_tokens: int | None = None
        self._begin()

    def take(self, event: Event) -> None:
        """Add an event, starting a new reading if it reverses an earlier one."""
        if isinstance(event, Cleared | OldCleared):
            self._flush()
            self._cleared = True
            return
        keys = [key_of(each, event.group_idx) for each in event.block_hashes]
        if isinstance(event, Removed | OldRemoved):
            if not self._stored.keys().isdisjoint(keys):
                self._flush()
            self._removed += keys
            return
        parent = event.parent_block_hash
        before = None if parent is None else key_of(parent, event.group_idx)
        for key in keys:
            self._stored.setdefault(key, before)
            before = key
        if event.block_size is not None and 0 < event.block_size < MOST_TOKENS:
            self._block_tokens = event.block_size

    def readings(self) -> list[KvCacheEvents]:
        """The readings, at least one: the batch number matters even without events."""
        self._flush(last=True)
        return self._readings

    def _begin(self) -> None:
        self._cleared = False
        self._removed: list[int] = []
        self._stored: dict[int, int | None] = {}

    def _flush(self, *, last: bool = False) -> None:
        something = self._cleared or self._removed or self._stored
        if not something and not (last and not self._readings):
            return
        self._readings.append(
            replace(
                self._empty,
                stored=list(self._stored),
                parents=list(self._stored.values()),
                removed=self._removed,
                cleared=self._cleared,
                block_tokens=self._block_tokens,
            )
        )
        self._empty = replace(self._empty, missed=0)
        self._begin()


class RankEvents:
    """Orders the batches of one rank, drops repeated ones and counts missing ones."""

    def __init__(
        self, clock: SessionClock, source: str, rank: int, *, same_host: bool
    ) -> None:
        self.expected = 0
        """Number of the next batch."""
        self.interrupted = False
        """The connection was lost; the next number shows whether the server
        restarted."""
        self._clock = clock
        self._source = source
        self._rank = rank
        self._same_host = same_host
        self._last_live = -1
        self._cleared = False

    def begins_anew(self, number: int) -> None:
        """Detect a restart of the server by a live batch number that does not rise."""
        restarted = number <= self._last_live
        if self.interrupted and number != self.expected:
            restarted = True
        self.interrupted = False
        self._last_live = number
        if restarted:
            self.expected = 0
            self._cleared = True

    def take(self, number: int, payload: bytes, *, live: bool) -> list[KvCacheEvents]:
        """Readings of a batch; empty if it is a repetition or invalid."""
        if number < self.expected:
            return []
        try:
            batch = _batch.decode(payload)
        except NONSENSE:
            return []  # the next batch will show that this one is missing
        change = KvReadingBuilder(
            KvCacheEvents(
                source=self._source,
                t_ns=self._t_ns(batch.ts, live=live),
                rank=self._rank,
                sequence=number,
                missed=number - self.expected,
            )
        )
        if self._cleared:
            change.take(Cleared())
        for event in events_of(batch):
            change.take(event)
        self.expected, self._cleared = number + 1, False
        return change.readings()

    def nothing_yet(self) -> KvCacheEvents:
        """A reading that says the server has published nothing since its start."""
        return KvCacheEvents(
            source=self._source,
            t_ns=self._clock.now_ns(),
            rank=self._rank,
            sequence=-1,
            cleared=True,
        )

    def _t_ns(self, wall_s: float, *, live: bool) -> int:
        """Session time of a batch; another host's clock is trusted for replays only."""
        now_ns = self._clock.now_ns()
        sensible = 0 < wall_s < LATEST_S  # False for NaN
        if not sensible or (live and not self._same_host):
            return now_ns
        t_ns = round(wall_s * NS_PER_S) - wall_offset_ns() - self._clock.start_ns
        return t_ns if now_ns - LONGEST_NS < t_ns <= now_ns else now_ns


class UnreachableEventsError(Exception):
    """Events are published where we cannot connect; the message is for users."""


class KvEventStream:
    """A collector of one server's KV cache events, rank by rank."""

    def __init__(
        self, clock: SessionClock, server: Server, runs_here: Callable[[], bool]
    ) -> None:
        """``runs_here`` tells whether the server is on this host; it may block."""
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
        self._ranks: dict[int, tuple[KvSource, asyncio.Task[None]]] = {}
        self._notes: set[str] = set()
        self._closed = False

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Changes of the server's KV cache, until closed."""
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

    async def _look(self) -> None:
        """Query the endpoints repeatedly and follow them."""
        try:
            asking = self.server.client(timeout_s=ASK_S)
        except (ServerError, ProxyError):
            return  # the scraper reports it
        async with asking as client:
            while True:
                sources = await self._sources(client)
                if sources is not None:
                    await self._follow(sources)
                await asyncio.sleep(SELDOM_S if sources is None else LOOK_S)

    async def _sources(self, client: httpx.AsyncClient) -> dict[int, KvSource] | None:
        """Endpoints by rank; None if the server does not list them."""
        try:
            answer = await get(
                client, PATH, timeout_s=ASK_S, most_bytes=MOST_ANSWER_BYTES
            )
            sources = msgspec.json.decode(answer.body, type=dict[int, KvSource])
        except NoAnswerError as error:
            if error.status == OK:  # it answered, but not usably
                source = self.server.source
                await self._say(f"cannot hear KV events of {source}: {error}")
            return None
        except NONSENSE:
            return None
        usable = {rank: sources[rank] for rank in range(MOST_RANKS) if rank in sources}
        return {rank: each for rank, each in usable.items() if each.publisher == "zmq"}

    async def _follow(self, sources: dict[int, KvSource]) -> None:
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

    async def _hear(self, rank: int, source: KvSource) -> None:
        """Receive one rank's events until cancelled or unreachable."""
        events = RankEvents(
            self._clock, self.server.source, rank, same_host=self._local
        )
        socket = self._socket(zmq.SUB)
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        socket.subscribe(b"")
        try:
            self._attach(socket, source.endpoint)
            await self._replay(source, events)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_watch(monitor, events))
                tasks.create_task(self._listen(socket, source, events))
        except UnreachableEventsError as error:
            await self._say(str(error))
        finally:
            monitor.close(linger=0)
            socket.close(linger=0)

    async def _listen(
        self, socket: "zmq.asyncio.Socket", source: KvSource, events: RankEvents
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

    async def _replay(self, source: KvSource, events: RankEvents) -> None:
        """Request missing batches from the replay endpoint."""
        if source.replay_endpoint is None:
            return
        for tries_left in reversed(range(REPLAYS)):
            again = tries_left > 0
            if await self._ask_again(source.replay_endpoint, events, again=again):
                break

    async def _ask_again(
        self, endpoint: str, events: RankEvents, *, again: bool
    ) -> bool:
        """Run one replay; False if batches were lost and it should be repeated."""
        first = True
        with suppress(UnreachableEventsError), self._socket(zmq.DEALER) as socket:
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
                await self._pass_on([events.nothing_yet()])
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
    ) -> None:
        """Connect to where the server binds, or bind where it connects."""
        place, bind = reachable(endpoint, self._host, local=self._local, bound=bound)
        try:
            (socket.bind if bind else socket.connect)(place)
        except zmq.ZMQError as error:
            verb = "bind" if bind else "connect to"
            raise UnreachableEventsError(
                f"cannot hear KV events of {self.server.source}: cannot {verb} "
                f"{place}: {error.strerror or error}"
            ) from error

    async def _pass_on(self, readings: Sequence[AnyReading]) -> None:
        if readings:
            await self._queue.put(list(readings))

    async def _say(self, text: str) -> None:
        if text not in self._notes and len(self._notes) < MOST_RANKS:
            self._notes.add(text)
            now_ns, source = self._clock.now_ns(), self.server.source
            note = Note(source=source, t_ns=now_ns, kind=NoteKind.PROBE, text=text)
            await self._pass_on([note])


async def _watch(monitor: "zmq.asyncio.Socket", events: RankEvents) -> None:
    """Mark the rank as interrupted whenever its connection is lost."""
    while True:
        await monitor.recv_multipart()
        events.interrupted = True


def numbered(frames: Sequence[bytes]) -> tuple[int, bytes] | None:
    """Number and payload of a message of three frames; None if malformed."""
    if len(frames) != 3 or len(frames[1]) != 8:
        return None
    number = int.from_bytes(frames[1], "big")
    return (number, frames[2]) if number < MOST_NUMBER or number == END_NUMBER else None


def reachable(
    endpoint: str, host: str, *, local: bool, bound: bool = False
) -> tuple[str, bool]:
    """Address to use for an endpoint listed by a server at ``host``; True: bind it.

    Raises:
        UnreachableEventsError: the endpoint cannot be used.

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
        raise UnreachableEventsError(
            f"KV events are published at {endpoint}: no way to hear them"
        )
    loopback = goes_direct(f"http://{name or '*'}:{port}") and not wildcard
    if loopback and not local:
        raise UnreachableEventsError(
            f"KV events are published at {endpoint}, for its own host alone: "
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
