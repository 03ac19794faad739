"""Receives traces by OTLP over HTTP: one span per finished request.

A server started with ``--otlp-traces-endpoint http://HOST:4318/v1/traces`` and
``OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf`` sends a span for every request it
finishes, whoever sent it. Input is bounded in size and time, and answered as OTLP
requires: the exporter resends what may be retried and drops the rest.

Any local process may send anything, and the UI and recorder share our thread. So posts
are parsed one at a time, in slices that leave most of the time to others, and requests
are limited to what can be recorded beside an engine's steps. Refusals are counted and
explained in a note.
"""

import asyncio
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import h11
from google.protobuf.json_format import MessageToJson, Parse, ParseError
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceResponse,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from collectors.contract.clock import (
    NS_PER_S,
    SessionClock,
    monotonic_ns,
    wall_offset_ns,
)
from collectors.contract.collector import CollectorError
from collectors.contract.readings import AnyReading, Note, NoteKind, RequestSpan
from collectors.http.bounded_get import Unpacker
from collectors.http.guests import AT_THE_DOOR, ConnectionLimit, TokenBucket
from collectors.http.server import Server
from collectors.servers.request_spans import (
    NoSpansError,
    OtlpPart,
    SpanReader,
    SpanSender,
    TracedServers,
    parts_of_json,
    parts_of_protobuf,
    plain_address,
    sender_of,
)

PORT = 4318
"""The default port of OTLP over HTTP."""
PATH = "/v1/traces"
PROTOBUF = "application/x-protobuf"
JSON = "application/json"
MOST_SENT_BYTES = 4 << 20
MOST_BYTES = 8 << 20
"""Decompressed size: about ten thousand spans."""
MOST_JSON_BYTES = 1 << 19
"""Smaller, because JSON is slow to parse."""
MOST_HELD_BYTES = 16 << 20
"""Total size of request bodies not parsed yet."""
MOST_RESOURCES = 1_024
MOST_PARTS = 20_000
"""Resources and spans of a post; a collector sends 8,192 at a time."""
MOST_SPAN_BYTES = 1 << 16
MOST_JSON_SPAN_BYTES = 1 << 13
"""Size of a span or resource; several times what vLLM sends."""
SPANS_AT_ONCE = 100
SLICE_S = 0.004
"""Longest stretch of parsing without yielding."""
REST_S = 0.012
"""Length of the pause after a slice: three quarters of the time are left to others."""
MOST_PER_S = 5_000
"""Sustained rate of requests; the recorder writes ten times as many readings."""
MOST_WAITING = 20_000
"""Requests accepted in a burst, and requests waiting to be taken."""
PASSED_ON_AT_ONCE = 200
MOST_CONNECTIONS = 64
IDLE_S = 60.0
"""Exporters keep a connection open and send every 5 s."""
REQUEST_S = 10.0
RETRY_S = "5"
READ_BYTES = 1 << 16
MOST_NOTES = 20
GRPC_BEGINS = b"PRI"
"""How HTTP/2 looks when parsed as HTTP/1."""


TOO_MANY = "too many spans at once"
LATER = "later, please"
ADVICE = {
    TOO_MANY: "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=512 at the server makes its posts small",
    LATER: (
        f"more than {MOST_PER_S:,} requests a second cannot be recorded; "
        "OTEL_TRACES_SAMPLER=traceidratio at the server sends a part of them"
    ),
}
"""Remedies for refusals, as text for users."""
TOLD = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.SERVICE_UNAVAILABLE,
}
"""Refusals that are reported to the user."""


class PostRefusedError(Exception):
    """A request is refused; the message is sent to the exporter."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class OtlpResponse:
    """A response to the exporter."""

    status: HTTPStatus
    message: Message
    kind: str = PROTOBUF

    @property
    def body(self) -> bytes:
        """The message in the encoding of the request."""
        if self.kind == JSON:
            return str(MessageToJson(self.message, indent=None)).encode()
        return bytes(self.message.SerializeToString())


@dataclass(slots=True)
class TracePost:
    """A complete POST request."""

    headers: dict[bytes, bytes]
    body: bytes
    kind: str

    async def parts(self, breaks: "ParsingPauses") -> list[OtlpPart]:
        """The post's resources and spans, still encoded.

        Raises:
            PostRefusedError: it is malformed or too large.
        """
        data = await unpacked(self.body, self.headers.get(b"content-encoding", b""))
        if self.kind == JSON and len(data) > MOST_JSON_BYTES:
            raise PostRefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{PROTOBUF}, please"
            )
        cut = parts_of_json(data) if self.kind == JSON else parts_of_protobuf(data)
        parts: list[OtlpPart] = []
        try:
            for count, part in enumerate(cut):
                if count >= MOST_PARTS:
                    raise PostRefusedError(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TOO_MANY
                    )
                if part is not None:
                    parts.append(part)
                await breaks.rest()
        except NoSpansError as error:
            raise PostRefusedError(
                HTTPStatus.BAD_REQUEST, "no spans of OTLP"
            ) from error
        if sum(part.is_resource for part in parts) > 2 * MOST_RESOURCES:
            raise PostRefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too many resources"
            )
        return parts

    def understood(self, part: bytes, message: Message) -> bool:
        """Parse one part into ``message``; False if it is malformed or too large."""
        most_bytes = MOST_JSON_SPAN_BYTES if self.kind == JSON else MOST_SPAN_BYTES
        if len(part) > most_bytes:
            return False
        try:
            if self.kind == JSON:
                Parse(part, message, ignore_unknown_fields=True)
            else:
                message.ParseFromString(part)
        except (DecodeError, ParseError, UnicodeDecodeError, RecursionError):
            return False
        return True


class ParsingPauses:
    """Yields to the event loop during long parsing."""

    def __init__(self) -> None:
        self._since_ns = monotonic_ns()

    async def rest(self) -> None:
        """Yield to the event loop if a slice of time is used up."""
        if monotonic_ns() - self._since_ns >= SLICE_S * NS_PER_S:
            await asyncio.sleep(REST_S)
            self._since_ns = monotonic_ns()


async def unpacked(body: bytes, encoding: bytes) -> bytes:
    """Decompress a request body.

    Raises:
        PostRefusedError: it is corrupt, too large, or in an unsupported encoding.
    """
    if encoding in {b"", b"identity"}:
        return body
    if encoding not in {b"gzip", b"deflate"}:
        raise PostRefusedError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "gzip or nothing, please"
        )
    unpacker = Unpacker()
    try:
        data = await unpacker.unpack(body, MOST_BYTES + 1)
    except zlib.error as error:
        raise PostRefusedError(HTTPStatus.BAD_REQUEST, "broken gzip") from error
    if len(data) > MOST_BYTES:
        raise PostRefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TOO_MANY)
    if not unpacker.whole:
        raise PostRefusedError(HTTPStatus.BAD_REQUEST, "half of a gzip")
    return bytes(data)


class SpanReceiver:
    """A collector of requests from the spans servers send here."""

    def __init__(
        self,
        clock: SessionClock,
        host: str = "127.0.0.1",
        port: int = PORT,
        *,
        servers: Sequence[Server] = (),
        asked: bool = True,
    ) -> None:
        """``servers`` are the watched ones; other servers' spans are ignored.

        Without ``asked``, a failure to listen is not reported.
        """
        self._clock = clock
        self._host, self._port = host, port
        self._servers = TracedServers(servers)
        self._asked = asked
        self._reader = SpanReader()
        self._listener: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._guests = ConnectionLimit(MOST_CONNECTIONS, self._say_crowded)
        self._queue: asyncio.Queue[list[AnyReading]] = asyncio.Queue()
        self._waiting = 0
        """Requests in the queue."""
        self._credit = TokenBucket(most=MOST_WAITING, per_s=MOST_PER_S)
        """Requests that may be accepted now."""
        self._reading = asyncio.Lock()
        self.held_bytes = 0
        """Size of request bodies not parsed yet."""
        self._refused: Counter[str] = Counter()
        """Refused posts by message."""
        self._noted: set[str] = set()
        self._closed = False

    @property
    def address(self) -> str:
        """The address, as ``host:port``, that the receiver listens on or will."""
        port = self._port
        if self._listener is not None and self._listener.sockets:
            port = self._listener.sockets[0].getsockname()[1]
        return f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"

    async def listen(self) -> None:
        """Start to listen, before ``batches`` is called.

        Raises:
            CollectorError: the address cannot be bound.
        """
        if self._listener is not None or self._closed:
            return
        try:
            self._listener = await asyncio.start_server(
                self._accept,
                self._host,
                self._port,
                limit=READ_BYTES,
                backlog=AT_THE_DOOR,
            )
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise CollectorError(
                f"cannot listen for traces on {self.address}: {why}; "
                "--otlp-listen HOST:PORT chooses another place"
            ) from error

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Requests as their spans arrive, until closed.

        Raises:
            CollectorError: the address cannot be bound.
        """
        try:
            await self.listen()
        except CollectorError:
            if self._asked:
                raise
            return
        while not (self._closed and self._queue.empty()):
            if batch := await self._queue.get():
                self._waiting -= sum(isinstance(each, RequestSpan) for each in batch)
                yield batch
                await asyncio.sleep(0)  # the next batch may be waiting

    async def close(self) -> None:
        """Stop listening; what was received is still yielded. Safe to call twice."""
        self._closed = True
        if self._listener is not None:
            self._listener.close()
        links = tuple(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)
        if (posts := self._refused.total()) > len(self._refused):
            self.note(f"{posts:,} posts of traces were refused in all")
        if self._queue.empty():
            self._queue.put_nowait([])  # wakes batches()

    async def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        is_gone = writer.get_extra_info("peername") is None
        if task is None or is_gone or self._closed:
            writer.transport.abort()
            return
        self._links.add(task)
        self._guests.came(writer)
        try:
            await OtlpConnection(reader, writer, self, self._guests).serve()
        except (OSError, TimeoutError, h11.ProtocolError, asyncio.CancelledError):
            pass  # closed, timed out, malformed, or we are closing
        finally:
            self._links.discard(task)
            self._guests.left(writer)
            writer.transport.abort()

    async def take(self, post: TracePost, peer: str, *, same_host: bool) -> Message:
        """Turn a post into readings; returns the response message.

        Raises:
            PostRefusedError: it is not accepted.
        """
        now_ns = monotonic_ns()
        wall_ns = now_ns + wall_offset_ns()
        nonsense = 0
        batch: list[tuple[RequestSpan, str]] = []
        async with self._reading:
            credit = self._credit.refill()
            if self._closed or self._waiting >= MOST_WAITING or credit < 1:
                raise PostRefusedError(HTTPStatus.SERVICE_UNAVAILABLE, LATER)
            breaks = ParsingPauses()
            parts = await post.parts(breaks)
            try:
                for head, encoded in _runs(parts):
                    await breaks.rest()
                    resource, spans = Resource(), []
                    if not post.understood(head, resource):
                        nonsense += len(encoded)
                        continue
                    sender = sender_of(resource, peer, same_host=same_host)
                    source = await self._source(sender)
                    if source is None:
                        continue
                    for each in encoded:
                        span = Span()
                        if post.understood(each, span):
                            spans.append(span)
                    requests, wrong = self._reader.read(spans, sender, wall_ns)
                    nonsense += wrong + len(encoded) - len(spans)
                    batch += [(request, source) for request in requests]
            finally:  # even when cancelled, nothing is parsed twice
                self._pass_on(batch, now_ns - wall_ns)
        answer = ExportTraceServiceResponse()
        if nonsense:
            answer.partial_success.rejected_spans = nonsense
            answer.partial_success.error_message = "requests without sensible times"
        return answer

    def refuse(self, refusal: PostRefusedError, peer: str) -> None:
        """Count a refused post, and report the first of each kind."""
        why = str(refusal)
        if refusal.status in TOLD and not self._closed:
            self._refused[why] += 1
            if self._refused[why] == 1:
                advice = f"; {ADVICE[why]}" if why in ADVICE else ""
                self.note(f"traces from {peer} are refused: {why}{advice}")

    def hold(self, size: int) -> None:
        """Reserve memory for part of a body.

        Raises:
            PostRefusedError: there is not enough left.
        """
        if self.held_bytes + size > MOST_HELD_BYTES:
            raise PostRefusedError(HTTPStatus.SERVICE_UNAVAILABLE, LATER)
        self.held_bytes += size

    def _say_crowded(self) -> None:
        self.note(
            f"more than {MOST_CONNECTIONS} are connected to {self.address} at once: "
            "for one more, one that sends no traces is closed"
        )

    def note(self, text: str) -> None:
        """Report a text once."""
        if text in self._noted or len(self._noted) >= MOST_NOTES:
            return
        self._noted.add(text)
        now_ns = self._clock.now_ns()
        self._queue.put_nowait([Note(t_ns=now_ns, kind=NoteKind.PROBE, text=text)])

    async def _source(self, sender: SpanSender) -> str | None:
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
        """Queue requests, converting Unix time to session time."""
        batch = sorted(batch, key=lambda each: each[0].end_ns)
        self._credit.take(len(batch))
        self._waiting += len(batch)
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
        for start in range(0, len(readings), PASSED_ON_AT_ONCE):
            self._queue.put_nowait(readings[start : start + PASSED_ON_AT_ONCE])


def _runs(parts: Sequence[OtlpPart]) -> Iterator[tuple[bytes, list[bytes]]]:
    """Groups of encoded spans with their resource, each parsed in one slice of time."""
    resource, spans, size = b"", list[bytes](), 0
    for part in parts:
        enough = len(spans) >= SPANS_AT_ONCE or size >= MOST_SPAN_BYTES
        if spans and (part.is_resource or enough):
            yield resource, spans
            spans, size = [], 0
        if part.is_resource:
            resource = part.encoded
        else:
            spans.append(part.encoded)
            size += len(part.encoded)
    if spans:
        yield resource, spans


class OtlpConnection:
    """One HTTP/1.1 connection, serving one request after the other."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        receiver: SpanReceiver,
        guests: ConnectionLimit,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._receiver, self._guests = receiver, guests
        self._http = h11.Connection(h11.SERVER)
        peer, here = (writer.get_extra_info(name) for name in ("peername", "sockname"))
        self._peer = plain_address(str(peer[0]))
        self._same_host = peer[0] == here[0]  # loopback included

    async def serve(self) -> None:
        """Serve requests until the client disconnects, times out or sends garbage."""
        while self._http.our_state is h11.IDLE:
            try:
                async with asyncio.timeout(IDLE_S):
                    request = await self._event()
                if not isinstance(request, h11.Request):
                    return
                self._guests.asked(self._writer)
                async with asyncio.timeout(REQUEST_S):
                    answer = await self._answer(request)
            except h11.RemoteProtocolError as error:
                await self._reject(error)
                return
            await self._send(answer)
            if self._http.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
                return  # the body was not read completely, or the client is done
            self._http.start_next_cycle()
            self._guests.answered(self._writer)

    async def _event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                self._write(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(await self._reader.read(READ_BYTES))

    async def _answer(self, request: h11.Request) -> OtlpResponse:
        kind = PROTOBUF
        if request.method == GRPC_BEGINS:
            self._receiver.note(
                f"gRPC came to {self._receiver.address}, where HTTP is spoken: start "
                "the server with OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"
            )
        body = bytearray()
        try:
            kind = _kind(request)
            await self._fill(body)
            post = TracePost(dict(request.headers), bytes(body), kind)
            message = await self._receiver.take(
                post, self._peer, same_host=self._same_host
            )
        except PostRefusedError as refusal:
            self._receiver.refuse(refusal, self._peer)
            return OtlpResponse(refusal.status, Status(message=str(refusal)), kind)
        finally:
            self._receiver.held_bytes -= len(body)
        return OtlpResponse(HTTPStatus.OK, message, kind)

    async def _fill(self, body: bytearray) -> None:
        """Read the request body, as far as memory allows."""
        while isinstance(data := await self._event(), h11.Data):
            self._receiver.hold(len(data.data))
            body += data.data
            if len(body) > MOST_SENT_BYTES:
                raise PostRefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TOO_MANY)

    async def _send(self, answer: OtlpResponse) -> None:
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
        """Respond that this is not HTTP/1."""
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            status = HTTPStatus(error.error_status_hint)
            await self._send(OtlpResponse(status, Status(message=str(error))))


def _kind(request: h11.Request) -> str:
    """The encoding of a request's body."""
    if request.target.partition(b"?")[0].rstrip(b"/") != PATH.encode():
        raise PostRefusedError(HTTPStatus.NOT_FOUND, f"spans go to {PATH}")
    if request.method != b"POST":
        raise PostRefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "spans are posted")
    content_type = dict(request.headers).get(b"content-type", b"").decode("latin-1")
    kind = content_type.partition(";")[0].strip().lower()
    # web pages cannot send either type without permission
    if kind not in {PROTOBUF, JSON}:
        raise PostRefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"{PROTOBUF}, please")
    return kind
