"""Listens for the traces of servers: OTLP over HTTP, a request a span.

A server started with ``--otlp-traces-endpoint http://HOST:4318/v1/traces`` and
``OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf`` tells of every request that it
finished, whoever sent it. Whatever else comes in is bounded in size and in time, and
answered as OTLP has it: a sender keeps what it may send again and drops the rest.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import h11
from google.protobuf.json_format import MessageToJson, Parse, ParseError
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from collectors.clock import SessionClock, monotonic_ns, wall_offset_ns
from collectors.collector import CollectorError
from collectors.readings import AnyReading, Note, NoteKind, RequestSpan
from collectors.request_spans import (
    Sender,
    SpanReader,
    TracedServers,
    plain_address,
    sender_of,
)
from collectors.server import Server

PORT = 4318
"""The one OTLP over HTTP is known by."""
PATH = "/v1/traces"
PROTOBUF = "application/x-protobuf"
JSON = "application/json"
MOST_SENT_BYTES = 4 << 20
MOST_BYTES = 8 << 20
"""Once unpacked: some ten thousand spans."""
MOST_JSON_BYTES = 1 << 19
"""It takes long to understand, on the thread that draws the screen."""
MOST_RESOURCES = 1_024
MOST_CONNECTIONS = 64
IDLE_S = 60.0
"""Exporters keep a connection and send every 5 s."""
REQUEST_S = 10.0
QUEUE_BATCHES = 100
RETRY_S = "5"
READ_BYTES = 1 << 16
MOST_NOTES = 20
GRPC_BEGINS = b"PRI"
"""HTTP/2, as a request of HTTP/1."""


class Refused(Exception):  # noqa: N818 - it is an answer
    """A request is not taken; the message is for its sender."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    """What a sender is told."""

    status: HTTPStatus
    message: Message
    kind: str = PROTOBUF

    @property
    def body(self) -> bytes:
        """In the encoding the request came in."""
        if self.kind == JSON:
            return str(MessageToJson(self.message, indent=None)).encode()
        return bytes(self.message.SerializeToString())


@dataclass(slots=True)
class Post:
    """What was posted to us, once all of it has come."""

    headers: dict[bytes, bytes]
    body: bytes
    kind: str

    def spans(self) -> ExportTraceServiceRequest:
        """What it brings.

        Raises:
            Refused: it is no such thing, or too much.
        """
        found = ExportTraceServiceRequest()
        data = unpacked(self.body, self.headers.get(b"content-encoding", b""))
        if self.kind == JSON and len(data) > MOST_JSON_BYTES:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{PROTOBUF}, please")
        try:
            if self.kind == JSON:
                Parse(data, found, ignore_unknown_fields=True)
            else:
                found.ParseFromString(data)
        except (DecodeError, ParseError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(HTTPStatus.BAD_REQUEST, "no spans of OTLP") from error
        if len(found.resource_spans) > MOST_RESOURCES:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too many resources")
        return found


def unpacked(body: bytes, encoding: bytes) -> bytes:
    """A body as it was before it was packed, if that is of a bearable size.

    Raises:
        Refused: it is broken, too large, or packed by other means.
    """
    if encoding in {b"", b"identity"}:
        return body
    if encoding not in {b"gzip", b"deflate"}:
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "gzip or nothing, please")
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)  # of either kind
    try:
        data = inflater.decompress(body, MOST_BYTES)
    except zlib.error as error:
        raise Refused(HTTPStatus.BAD_REQUEST, "broken gzip") from error
    if inflater.unconsumed_tail:
        raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too many spans at once")
    if not inflater.eof:
        raise Refused(HTTPStatus.BAD_REQUEST, "half of a gzip")
    return data


class SpanReceiver:
    """All requests of the servers that send their traces here: a collector."""

    def __init__(
        self,
        clock: SessionClock,
        host: str = "127.0.0.1",
        port: int = PORT,
        *,
        servers: Sequence[Server] = (),
        asked: bool = True,
    ) -> None:
        """``servers`` are those watched: others' requests are not taken.

        Nobody is told that it cannot listen where nobody asked it to.
        """
        self._clock = clock
        self._host, self._port = host, port
        self._servers = TracedServers(servers)
        self._asked = asked
        self._reader = SpanReader()
        self._listener: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._queue: asyncio.Queue[list[AnyReading]] = asyncio.Queue()
        self._noted: set[str] = set()
        self._closed = False

    @property
    def address(self) -> str:
        """Where it listens, or will: ``host:port``."""
        port = self._port
        if self._listener is not None and self._listener.sockets:
            port = self._listener.sockets[0].getsockname()[1]
        return f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"

    async def listen(self) -> None:
        """Begin to listen, before anybody asks for readings.

        Raises:
            CollectorError: that is not possible there.
        """
        if self._listener is not None or self._closed:
            return
        try:
            self._listener = await asyncio.start_server(
                self._accept, self._host, self._port, limit=READ_BYTES
            )
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise CollectorError(
                f"cannot listen for traces on {self.address}: {why}; "
                "--otlp-listen HOST:PORT chooses another place"
            ) from error

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Requests as they are told of, until closed.

        Raises:
            CollectorError: it cannot listen.
        """
        try:
            await self.listen()
        except CollectorError:
            if self._asked:
                raise
            return
        while not (self._closed and self._queue.empty()):
            if batch := await self._queue.get():
                yield batch

    async def close(self) -> None:
        """Listen no more; what was heard is still yielded. Safe to call twice."""
        self._closed = True
        if self._listener is not None:
            self._listener.close()
        links = tuple(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)
        if self._queue.empty():
            self._queue.put_nowait([])  # wakes batches()

    async def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        gone = writer.get_extra_info("peername") is None
        full = self._closed or len(self._links) >= MOST_CONNECTIONS
        if task is None or gone or full:
            writer.transport.abort()
            return
        self._links.add(task)
        try:
            await Link(reader, writer, self).serve()
        except (OSError, TimeoutError, h11.ProtocolError, asyncio.CancelledError):
            pass  # gone, or too slow, or makes no sense, or we close
        finally:
            self._links.discard(task)
            writer.transport.abort()

    async def take(self, post: Post, peer: str, *, same_host: bool) -> Message:
        """Make readings of what was posted; what its sender is told.

        Raises:
            Refused: it is not taken.
        """
        found = post.spans()
        if self._closed or self._queue.qsize() >= QUEUE_BATCHES:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "later, please")
        now_ns = monotonic_ns()
        wall_ns = now_ns + wall_offset_ns()
        nonsense = 0
        batch: list[tuple[RequestSpan, str]] = []
        for each in found.resource_spans:
            sender = sender_of(each, peer, same_host=same_host)
            source = await self._source(sender)
            if source is None:
                continue
            requests, wrong = self._reader.read(each, sender, wall_ns)
            nonsense += wrong
            batch += [(request, source) for request in requests]
            await asyncio.sleep(0)  # the screen is drawn on the same thread
        batch.sort(key=lambda each: each[0].end_ns)
        self._pass_on(batch, now_ns - wall_ns)
        answer = ExportTraceServiceResponse()
        if nonsense:
            answer.partial_success.rejected_spans = nonsense
            answer.partial_success.error_message = "requests without sensible times"
        return answer

    def note(self, text: str) -> None:
        """Say something once."""
        if text in self._noted or len(self._noted) >= MOST_NOTES:
            return
        self._noted.add(text)
        now_ns = self._clock.now_ns()
        self._queue.put_nowait([Note(t_ns=now_ns, kind=NoteKind.PROBE, text=text)])

    async def _source(self, sender: Sender) -> str | None:
        if self._servers.known(sender):
            return self._servers.source(sender)
        source = await asyncio.to_thread(self._servers.source, sender)
        if source is None:
            self.note(
                f"traces come from {sender.label}, which is none of the servers "
                "watched; if it is one, start it with OTEL_SERVICE_NAME as its name "
                "here"
            )
        return source

    def _pass_on(
        self, batch: Sequence[tuple[RequestSpan, str]], to_monotonic_ns: int
    ) -> None:
        """In session time, from Unix time."""
        shift_ns = to_monotonic_ns - self._clock.start_ns
        readings: list[AnyReading] = [
            replace(
                each,
                source=source,
                arrived_ns=each.arrived_ns + shift_ns,
                end_ns=each.end_ns + shift_ns,
            )
            for each, source in batch
        ]
        if readings:
            self._queue.put_nowait(readings)


class Link:
    """One connection: posts in, answers out, one after the other."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        receiver: SpanReceiver,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._receiver = receiver
        self._http = h11.Connection(h11.SERVER)
        peer, here = (writer.get_extra_info(name) for name in ("peername", "sockname"))
        self._peer = plain_address(str(peer[0]))
        self._same_host = peer[0] == here[0]  # loopback included

    async def serve(self) -> None:
        """Until the other side goes, takes too long or talks nonsense."""
        while self._http.our_state is h11.IDLE:
            try:
                async with asyncio.timeout(IDLE_S):
                    request = await self._event()
                if not isinstance(request, h11.Request):
                    return
                async with asyncio.timeout(REQUEST_S):
                    answer = await self._answer(request)
            except h11.RemoteProtocolError as error:
                await self._reject(error)
                return
            await self._send(answer)
            if self._http.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
                return  # not all of it was read, or it wants no more
            self._http.start_next_cycle()

    async def _event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                self._write(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(await self._reader.read(READ_BYTES))

    async def _answer(self, request: h11.Request) -> Answer:
        kind = PROTOBUF
        if request.method == GRPC_BEGINS:
            self._receiver.note(
                f"gRPC came to {self._receiver.address}, where HTTP is spoken: start "
                "the server with OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"
            )
        try:
            kind = _kind(request)
            post = Post(dict(request.headers), await self._body(), kind)
            message = await self._receiver.take(
                post, self._peer, same_host=self._same_host
            )
        except Refused as refusal:
            return Answer(refusal.status, Status(message=str(refusal)), kind)
        return Answer(HTTPStatus.OK, message, kind)

    async def _body(self) -> bytes:
        body = bytearray()
        while isinstance(data := await self._event(), h11.Data):
            body += data.data
            if len(body) > MOST_SENT_BYTES:
                raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too many spans")
        return bytes(body)

    async def _send(self, answer: Answer) -> None:
        body = answer.body
        headers = [("content-type", answer.kind), ("content-length", str(len(body)))]
        if answer.status is HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append(("retry-after", RETRY_S))
        self._write(h11.Response(status_code=answer.status, headers=headers))
        self._write(h11.Data(data=body))
        self._write(h11.EndOfMessage())
        async with asyncio.timeout(REQUEST_S):
            await self._writer.drain()

    def _write(self, event: h11.Event) -> None:
        self._writer.write(self._http.send(event) or b"")

    async def _reject(self, error: h11.RemoteProtocolError) -> None:
        """It is no HTTP/1: say so."""
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            status = HTTPStatus(error.error_status_hint)
            await self._send(Answer(status, Status(message=str(error))))


def _kind(request: h11.Request) -> str:
    """The encoding of its body.

    Raises:
        Refused: it is no post of spans.
    """
    if request.target.partition(b"?")[0].rstrip(b"/") != PATH.encode():
        raise Refused(HTTPStatus.NOT_FOUND, f"spans go to {PATH}")
    if request.method != b"POST":
        raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "spans are posted")
    told = dict(request.headers).get(b"content-type", b"").decode("latin-1")
    kind = told.partition(";")[0].strip().lower()
    if kind not in {PROTOBUF, JSON}:  # what a web page may send unasked is neither
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"{PROTOBUF}, please")
    return kind
