"""What servers tell in traces, by the exporter they use and by hostile senders."""

import asyncio
import gzip
import itertools
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from typing import TypeVar

import httpx
import psutil
import pytest
from google.protobuf.json_format import MessageToJson
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from collectors.contract.clock import SessionClock, monotonic_ns, wall_offset_ns
from collectors.contract.collector import CollectorError
from collectors.contract.readings import AnyReading, Note, RequestSpan
from collectors.http.server import Server
from collectors.servers import otlp
from collectors.servers.otlp import PATH, PROTOBUF, SpanReceiver
from collectors.servers.request_spans import SpanReader, SpanSender, TracedServers

Kind = TypeVar("Kind")
MS = 1_000_000
span_ids = itertools.count(1)
LATENCIES: dict[str, object] = {
    "gen_ai.latency.time_to_first_token": 0.25,
    "gen_ai.latency.e2e": 1.5,
    "gen_ai.latency.time_in_queue": 0.125,
    "gen_ai.latency.time_in_model_prefill": 0.0625,
    "gen_ai.latency.time_in_model_decode": 1.25,
    "gen_ai.latency.time_in_model_inference": 1.3125,
}
COUNTS: dict[str, object] = {
    "gen_ai.usage.prompt_tokens": 40,
    "gen_ai.usage.completion_tokens": 11,
    "gen_ai.request.max_tokens": 16,
}


def wall_ns() -> int:
    return monotonic_ns() + wall_offset_ns()


def traces(
    *attributes: Mapping[str, object],
    began_ns: int | None = None,
    name: str = "llm_request",
    resource: Mapping[str, object] | None = None,
) -> ExportTraceServiceRequest:
    """A span of 2 s each."""
    message = ExportTraceServiceRequest()
    found = message.resource_spans.add()
    set_attributes(found.resource.attributes, resource or {})
    scope = found.scope_spans.add()
    scope.scope.name = "vllm.tracing.otel"
    began_ns = wall_ns() - 2_000 * MS if began_ns is None else began_ns
    for each in attributes:
        span = scope.spans.add()
        span.name = name
        span.trace_id = bytes(15) + bytes([1])
        span.span_id = next(span_ids).to_bytes(8, "big")
        span.start_time_unix_nano = began_ns
        span.end_time_unix_nano = began_ns + 2_000 * MS
        set_attributes(span.attributes, each)
    return message


def set_attributes(into: object, told: Mapping[str, object]) -> None:
    kinds = {int: "int_value", float: "double_value", str: "string_value"}
    for key, value in told.items():
        added = into.add()  # type: ignore[attr-defined]
        added.key = key
        setattr(added.value, kinds[type(value)], value)


def request(request_id: str = "chatcmpl-1", **more: object) -> dict[str, object]:
    return {**LATENCIES, **COUNTS, "gen_ai.request.id": request_id, **more}


class Heard:
    """A receiver that listens, and what it has told."""

    def __init__(self, receiver: SpanReceiver) -> None:
        self.receiver = receiver
        self.readings: list[AnyReading] = []
        self.listening: asyncio.Task[None]
        self._more = asyncio.Event()

    async def listen(self) -> None:
        async for batch in self.receiver.batches():
            self.readings.extend(batch)
            self._more.set()

    async def spans(self, count: int) -> list[RequestSpan]:
        """The first so many, and nothing more came before them."""
        async with asyncio.timeout(30):
            while len(found := self.of(RequestSpan)) < count:
                self._more.clear()
                await self._more.wait()
        assert len(found) == count
        return found

    async def note(self) -> Note:
        async with asyncio.timeout(30):
            while not self.of(Note):
                self._more.clear()
                await self._more.wait()
        return self.of(Note)[0]

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [each for each in self.readings if isinstance(each, kind)]

    async def post(
        self, message: ExportTraceServiceRequest | bytes, **headers: str
    ) -> httpx.Response:
        content = message if isinstance(message, bytes) else message.SerializeToString()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.post(
                f"http://{self.receiver.address}{PATH}",
                content=content,
                headers={"content-type": PROTOBUF} | names,
            )


@pytest.fixture
def clock() -> SessionClock:
    return SessionClock()


async def hearing(receiver: SpanReceiver) -> AsyncIterator[Heard]:
    heard = Heard(receiver)
    await receiver.listen()
    heard.listening = asyncio.create_task(heard.listen())
    yield heard
    await receiver.close()
    async with asyncio.timeout(30):
        await heard.listening


@pytest.fixture
async def heard(clock: SessionClock) -> AsyncIterator[Heard]:
    async for each in hearing(SpanReceiver(clock, port=0)):
        yield each


async def test_a_request_is_told_with_its_exact_phases(
    heard: Heard, clock: SessionClock
) -> None:
    arrived_ns = wall_ns() - 2_000 * MS
    answer = await heard.post(traces(request(), began_ns=arrived_ns))
    assert answer.status_code == 200
    assert ExportTraceServiceResponse.FromString(answer.content) == (
        ExportTraceServiceResponse()
    )
    (span,) = await heard.spans(1)
    in_session_ns = arrived_ns - wall_offset_ns() - clock.start_ns
    assert abs(span.arrived_ns - in_session_ns) < MS
    assert span.uncertainty_ns == 0
    assert span.end_ns - span.arrived_ns == span.e2el_ns == 1_500 * MS
    told = (span.ttft_ns, span.queue_ns, span.prefill_ns, span.decode_ns)
    assert told == (250 * MS, 125 * MS, 62_500_000, 1_250 * MS)
    assert (span.prompt_tokens, span.output_tokens, span.max_tokens) == (40, 11, 16)
    assert span.request_id == "chatcmpl-1"


async def test_newer_names_of_token_counts_are_understood(heard: Heard) -> None:
    told = {"gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 3}
    await heard.post(traces({**LATENCIES, **told}))
    (span,) = await heard.spans(1)
    assert (span.prompt_tokens, span.output_tokens) == (7, 3)


async def test_what_cannot_be_so_is_unknown(heard: Heard) -> None:
    wrong = {
        "gen_ai.latency.time_to_first_token": float("nan"),
        "gen_ai.latency.time_in_queue": -0.5,
        "gen_ai.latency.time_in_model_prefill": "soon",
        "gen_ai.latency.time_in_model_decode": float("inf"),
        "gen_ai.usage.prompt_tokens": -3,
        "gen_ai.usage.completion_tokens": 1 << 62,
    }
    await heard.post(traces(wrong))
    (span,) = await heard.spans(1)
    assert span.ttft_ns is span.queue_ns is span.prefill_ns is span.decode_ns is None
    assert span.prompt_tokens is span.output_tokens is None


async def test_a_request_without_a_token_has_no_first_one(heard: Heard) -> None:
    told = {
        "gen_ai.latency.time_to_first_token": 0.0,
        "gen_ai.usage.completion_tokens": 0,
    }
    await heard.post(traces(request() | told))
    (span,) = await heard.spans(1)
    assert span.ttft_ns is span.prefill_ns is span.decode_ns is None
    assert span.queue_ns is not None


async def test_prompts_in_attributes_are_not_kept(heard: Heard) -> None:
    secret = {"gen_ai.prompt": "my secret", "gen_ai.completion.0.content": "my secret"}
    await heard.post(traces(request() | secret))
    await heard.spans(1)
    assert "my secret" not in repr(heard.readings)


async def test_other_spans_are_not_requests(heard: Heard) -> None:
    answer = await heard.post(traces(request(), name="Load model"))
    assert answer.status_code == 200
    await heard.post(traces(request("the one")))
    (span,) = await heard.spans(1)
    assert span.request_id == "the one"


async def test_spans_that_are_sent_again_count_once(heard: Heard) -> None:
    message = traces(request("a"), request("a"))
    await heard.post(message)
    await heard.post(message)
    await heard.post(traces(request("b")))
    spans = await heard.spans(3)
    assert [span.request_id for span in spans] == ["a", "a", "b"]


async def test_requests_without_sensible_times_are_rejected_by_number(
    heard: Heard,
) -> None:
    message = traces(request("good"), request("never"), request("long ago"))
    spans = message.resource_spans[0].scope_spans[0].spans
    spans[1].start_time_unix_nano = 0
    spans[2].start_time_unix_nano = 1
    answer = await heard.post(message)
    assert answer.status_code == 200
    told = ExportTraceServiceResponse.FromString(answer.content).partial_success
    assert told.rejected_spans == 2
    assert (await heard.spans(1))[0].request_id == "good"


async def test_packed_spans_are_unpacked(heard: Heard) -> None:
    packed = gzip.compress(traces(request()).SerializeToString())
    answer = await heard.post(packed, content_encoding="gzip")
    assert answer.status_code == 200
    await heard.spans(1)


async def test_json_is_understood_and_answered_in_json(heard: Heard) -> None:
    began_ns = wall_ns() - 2_000 * MS
    span = {
        "name": "llm_request",
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": "eee19b7ec3c1b174",
        "kind": 2,
        "startTimeUnixNano": str(began_ns),
        "endTimeUnixNano": str(began_ns + 1),
        "attributes": [
            {"key": "gen_ai.request.id", "value": {"stringValue": "in JSON"}},
            {"key": "gen_ai.latency.e2e", "value": {"doubleValue": 0.5}},
            {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "12"}},
        ],
        "whatever": 1,
    }
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    answer = await heard.post(
        json.dumps(body).encode(), content_type="application/json; charset=utf-8"
    )
    assert answer.json() == {}
    (told,) = await heard.spans(1)
    assert (told.request_id, told.e2el_ns, told.prompt_tokens) == (
        "in JSON",
        500 * MS,
        12,
    )


def why(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, Status.FromString(answer.content).message


async def test_a_bomb_is_not_unpacked(heard: Heard) -> None:
    bomb = gzip.compress(bytes(20 << 20), compresslevel=9)
    assert len(bomb) < otlp.MOST_SENT_BYTES
    answer = await heard.post(bomb, content_encoding="gzip")
    assert why(answer) == (413, "too many spans at once")


class Turns:
    """Counts how often others have their turn on this thread."""

    def __init__(self) -> None:
        self.count = 0
        self._task = asyncio.create_task(self._go_round())

    async def _go_round(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1

    def stop(self) -> None:
        self._task.cancel()


@pytest.mark.parametrize("kind", [PROTOBUF, otlp.JSON])
async def test_a_post_of_one_sender_gives_others_their_turns(
    heard: Heard, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(otlp, "SLICE_S", 0.0, raising=False)
    monkeypatch.setattr(otlp, "REST_S", 0.0, raising=False)
    message = traces(*[request()] * 500)
    body = message.SerializeToString()
    if kind == otlp.JSON:
        body = MessageToJson(message, indent=None).encode()
    post = otlp.TracePost({}, body, kind)
    turns = Turns()
    await asyncio.sleep(0)
    await heard.receiver.take(post, "127.0.0.1", same_host=True)
    turns.stop()
    assert turns.count > 500


async def test_spans_of_two_bytes_are_refused_before_they_are_made(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    real = Span

    def counted() -> Span:
        nonlocal made
        made += 1
        return real()

    monkeypatch.setattr(otlp, "Span", counted, raising=False)
    spans = sized(1, sized(2, b"\x12\x00" * 2_000_000))
    packed = gzip.compress(spans)
    assert len(packed) < 10_000
    for _ in range(3):
        answer = await heard.post(packed, content_encoding="gzip")
        assert why(answer) == (413, otlp.TOO_MANY)
    assert made == 0
    assert (
        "traces from 127.0.0.1 are refused: too many spans" in (await heard.note()).text
    )
    await heard.receiver.close()
    async with asyncio.timeout(30):
        await heard.listening
    first, last = (note.text for note in heard.of(Note))
    assert "OTEL_BSP_MAX_EXPORT_BATCH_SIZE" in first
    assert last == "3 posts of traces were refused in all"


def sized(number: int, content: bytes) -> bytes:
    """A field of protobuf that holds others."""
    size, length = b"", len(content)
    while length > 0x7F:
        size, length = size + bytes([length & 0x7F | 0x80]), length >> 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + content


async def test_a_span_of_more_than_any_server_tells_is_left_out(heard: Heard) -> None:
    message = traces(request("good"), request(long="x" * otlp.MOST_SPAN_BYTES))
    many = traces({f"attribute {number}": number for number in range(1_001)})
    for posted in (message, many):
        answer = await heard.post(posted)
        told = ExportTraceServiceResponse.FromString(answer.content).partial_success
        assert told.rejected_spans == 1
    assert (await heard.spans(1))[0].request_id == "good"


async def test_more_requests_than_can_be_recorded_are_sent_again_later(
    clock: SessionClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "MOST_WAITING", 3)
    monkeypatch.setattr(otlp, "MOST_PER_S", 0)
    async for heard in hearing(SpanReceiver(clock, port=0)):
        taken = await heard.post(traces(*[request()] * 5))
        await heard.spans(5)
        later = await heard.post(traces(request()))
        assert (taken.status_code, later.status_code) == (200, 503)
        assert "OTEL_TRACES_SAMPLER" in (await heard.note()).text


async def test_bodies_that_wait_to_be_read_are_bounded_together(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "MOST_HELD_BYTES", 1_000, raising=False)
    assert (await heard.post(bytes(1_001))).status_code == 503
    assert (await heard.post(traces(request()))).status_code == 200
    await heard.spans(1)
    assert heard.receiver.held_bytes == 0


async def test_a_body_beyond_bounds_is_refused(heard: Heard) -> None:
    answer = await heard.post(bytes(otlp.MOST_SENT_BYTES + 1))
    assert why(answer) == (413, otlp.TOO_MANY)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"\xff" * 100, {}, 400),
        (b"\x0a\x05" * 20_000, {}, 400),
        (b"\x0a\x00" * 2_049, {}, 413),
        (b" " * (otlp.MOST_JSON_BYTES + 1), {"content_type": "application/json"}, 413),
        (b"{", {"content_type": "application/json"}, 400),
        (b'{"resourceSpans": 3}', {"content_type": "application/json"}, 400),
        (b"[" * 100_000, {"content_type": "application/json"}, 400),
        (b"\xff\xfe", {"content_type": "application/json"}, 400),
        (b"no gzip", {"content_encoding": "gzip"}, 400),
        (gzip.compress(b"x" * 999, mtime=0)[:-12], {"content_encoding": "gzip"}, 400),
        (b"", {"content_encoding": "br"}, 415),
        (b"", {"content_type": "text/plain"}, 415),
    ],
)
async def test_nonsense_is_refused_and_the_next_one_is_taken(
    heard: Heard, body: bytes, headers: dict[str, str], status: int
) -> None:
    assert (await heard.post(body, **headers)).status_code == status
    await heard.post(traces(request()))
    await heard.spans(1)


async def test_only_posts_of_traces_are_taken(heard: Heard) -> None:
    url = f"http://{heard.receiver.address}"
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(url + PATH)).status_code == 405
        assert (await client.post(url + "/v1/metrics")).status_code == 404


async def talk(heard: Heard, data: bytes) -> bytes:
    """Say something, and hear all that comes until they close."""
    host, _, port = heard.receiver.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    return answer


async def test_who_speaks_grpc_is_told_of_in_a_note(heard: Heard) -> None:
    await talk(heard, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    note = await heard.note()
    assert "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf" in note.text


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff\x16\x03\x01\r\n\r\n",
        b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000,
        (
            b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
            b"content-type: application/x-protobuf\r\n\r\nzzz\r\n"
        ),
    ],
)
async def test_what_is_no_http_is_cut_off(heard: Heard, data: bytes) -> None:
    assert b" 4" in (await talk(heard, data))[:14]
    await heard.post(traces(request()))
    await heard.spans(1)


async def test_who_never_ends_a_request_is_cut_off(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "REQUEST_S", 0.05)
    monkeypatch.setattr(otlp, "IDLE_S", 0.05)
    head = b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n"
    assert await talk(heard, head) == b""
    typed = b"content-type: application/x-protobuf\r\n\r\n1234"
    assert await talk(heard, head + typed) == b""


async def test_those_that_only_wait_keep_no_sender_out(
    clock: SessionClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "MOST_CONNECTIONS", 2)
    async for heard in hearing(SpanReceiver(clock, port=0)):
        host, _, port = heard.receiver.address.rpartition(":")
        waiting = [await asyncio.open_connection(host, int(port)) for _ in range(5)]
        assert (await heard.post(traces(request()))).status_code == 200
        await heard.spans(1)
        async with asyncio.timeout(30):
            assert await waiting[0][0].read() == b""
        assert "more than 2 are connected" in (await heard.note()).text
        for _, writer in waiting:
            writer.close()


async def test_a_sender_waits_when_nobody_takes_what_it_sends(
    clock: SessionClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "MOST_WAITING", 1)
    monkeypatch.setattr(otlp, "MOST_PER_S", 1e9)
    heard = Heard(SpanReceiver(clock, port=0))
    await heard.receiver.listen()
    again = traces(request("later"))
    assert (await heard.post(traces(request("first")))).status_code == 200
    answer = await heard.post(again)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    listening = asyncio.create_task(heard.listen())
    await heard.spans(1)
    assert (await heard.post(again)).status_code == 200
    await heard.spans(2)
    await heard.receiver.close()
    await listening


async def test_one_connection_carries_many_posts(heard: Heard) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        for number in range(3):
            await client.post(
                f"http://{heard.receiver.address}{PATH}",
                content=traces(request(str(number))).SerializeToString(),
                headers={"content-type": PROTOBUF},
            )
    assert len(await heard.spans(3)) == 3


async def test_a_taken_port_is_a_clear_error(heard: Heard, clock: SessionClock) -> None:
    port = int(heard.receiver.address.rpartition(":")[2])
    with pytest.raises(CollectorError, match=r"127.0.0.1:\d+.*--otlp-listen"):
        await anext(SpanReceiver(clock, port=port).batches())


async def test_one_server_watched_is_the_source_of_all(clock: SessionClock) -> None:
    receiver = SpanReceiver(clock, port=0, servers=[Server(url="localhost:8000")])
    async for heard in hearing(receiver):
        await heard.post(traces(request(), resource={"service.name": "whatever"}))
        assert (await heard.spans(1))[0].source == "localhost:8000"


async def test_service_names_tell_servers_apart(clock: SessionClock) -> None:
    servers = [
        Server(url="localhost:8000", name="chat"),
        Server(url="localhost:8001", name="code"),
    ]
    async for heard in hearing(SpanReceiver(clock, port=0, servers=servers)):
        for name in ("code", "chat"):
            told = {"service.name": name, "vllm.process_id": "1"}
            await heard.post(traces(request(), resource=told))
        spans = await heard.spans(2)
        assert [span.source for span in spans] == ["code", "chat"]


async def test_a_process_is_told_by_the_port_it_listens_at(
    clock: SessionClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["python", "-m", "vllm"]
    monkeypatch.setattr(psutil.Process, "cmdline", lambda _: command)

    async def nobody(*_: object) -> None: ...

    listener = await asyncio.start_server(nobody, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    servers = [Server(url="localhost:1"), Server(url=f"127.0.0.1:{port}")]
    async for heard in hearing(SpanReceiver(clock, port=0, servers=servers)):
        ours = {"vllm.process_id": str(os.getpid()), "service.name": "unknown_service"}
        await heard.post(traces(request(), resource=ours))
        assert (await heard.spans(1))[0].source == f"127.0.0.1:{port}"
    listener.close()


async def test_the_requests_of_a_server_that_is_not_watched_are_left_out(
    clock: SessionClock,
) -> None:
    servers = [Server(url="localhost:1"), Server(url="localhost:2")]
    async for heard in hearing(SpanReceiver(clock, port=0, servers=servers)):
        await heard.post(traces(request(), resource={"service.name": "other"}))
        note = await heard.note()
        assert "other at 127.0.0.1" in note.text
        assert "OTEL_SERVICE_NAME" in note.text
        assert not heard.of(RequestSpan)


def spans_of(message: ExportTraceServiceRequest) -> list[Span]:
    return list(message.resource_spans[0].scope_spans[0].spans)


def from_afar(reader: SpanReader, ended_ns: int, now_ns: int) -> RequestSpan:
    """A request that ended then, by another host's clock, and came now."""
    afar = SpanSender(name="", pid=1, address="10.0.0.2", same_host=False)
    message = traces(request(), began_ns=ended_ns - 1_500 * MS)
    (span,), _ = reader.read(spans_of(message), afar, now_ns)
    return span


def test_another_hosts_clock_is_as_uncertain_as_its_shortest_delay() -> None:
    reader, now_ns = SpanReader(), wall_ns()
    assert from_afar(reader, now_ns - 900 * MS, now_ns).uncertainty_ns == 900 * MS
    assert from_afar(reader, now_ns - 20 * MS, now_ns).uncertainty_ns == 20 * MS
    assert from_afar(reader, now_ns - 500 * MS, now_ns).uncertainty_ns == 20 * MS


def test_nothing_ends_after_it_was_received() -> None:
    reader, now_ns = SpanReader(), wall_ns()
    span = from_afar(reader, now_ns + 3_000 * MS, now_ns)
    assert (span.end_ns, span.uncertainty_ns) == (now_ns, 3_000 * MS)
    assert span.end_ns - span.arrived_ns == span.e2el_ns == 1_500 * MS
    earlier = from_afar(reader, now_ns + 1_000 * MS, now_ns)
    assert earlier.end_ns == now_ns - 2_000 * MS


def test_who_seems_to_be_of_this_host_and_is_ahead_has_another_clock() -> None:
    near = SpanSender(name="", pid=1, address="127.0.0.1", same_host=True)
    now_ns = wall_ns()
    message = traces(request(), began_ns=now_ns + 9_000 * MS)
    (span,), _ = SpanReader().read(spans_of(message), near, now_ns)
    assert (span.end_ns, span.uncertainty_ns) == (now_ns, 10_500 * MS)


def test_a_pid_of_a_container_is_not_taken_for_one_of_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ["/sbin/init"]
    monkeypatch.setattr(psutil.Process, "cmdline", lambda _: command)
    server = Server(url="localhost:1")
    inside = SpanSender(name="", pid=os.getpid(), address="127.0.0.1", same_host=True)
    with socket.create_server(("127.0.0.1", 0)):
        assert TracedServers([server]).source(inside) == "localhost:1"
        command[:] = ["python", "-m", "vllm"]
        assert TracedServers([server]).source(inside) is None
