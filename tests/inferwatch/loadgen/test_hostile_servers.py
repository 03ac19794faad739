"""Whatever a server does, each request ends in one named failure, and soon."""

import asyncio
import errno
import socket
import struct
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import ClientSample, Phase, RequestRecord
from inferwatch.loadgen.exchange import raw_transport as raw
from inferwatch.loadgen.exchange.call import Call, Failure
from inferwatch.loadgen.exchange.raw_transport import Connection
from inferwatch.loadgen.exchange.transport import transport_for
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan, TransportKind
from inferwatch.loadgen.prompts.prompts import Prompt

Behave = Callable[[Reader, Writer], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"text":"a"}]}\n\n'
LAST = b'data: {"choices":[{"text":"a","finish_reason":"length"}]}\n\n'
MEGABYTE = b"x" * (1 << 20)
GIGABYTE = 1 << 10
PATIENCE_S = 0.4
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(LAST), LAST)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@asynccontextmanager
async def serving(behave: Behave) -> AsyncIterator[Any]:
    """A server that does the same to all; it counts requests and who made them."""
    told = SimpleNamespace(requests=0, connections=0, url="")

    async def met(reader: Reader, writer: Writer) -> None:
        meetings.append(asyncio.current_task())
        first = True
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while not writer.is_closing():
                    if not await asked(reader):
                        break
                    told.requests += 1
                    told.connections += first
                    first = False
                    await behave(reader, writer)
                    await writer.drain()
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    meetings: list[Any] = []
    server = await asyncio.start_server(met, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    told.url = f"http://{host}:{port}"
    try:
        yield told
    finally:
        server.close()
        for meeting in meetings:
            meeting.cancel()
        await asyncio.gather(*meetings, return_exceptions=True)


async def asked(reader: Reader) -> bool:
    """Whether it was for a completion; looking whether we are there is not."""
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"POST "):
        return False
    length = head.lower().partition(b"content-length: ")[2].split()[0]
    await reader.readexactly(int(length))
    return True


def new_call(tokens: int = 3) -> Call:
    prompt = Prompt(token_ids=[300] * tokens, max_tokens=4, kv_tokens=7)
    return Call(
        index=0,
        external_id="hostile-0",
        phase=Phase.STEADY,
        intended_ns=monotonic_ns(),
        prompt=prompt,
    )


@pytest.fixture(params=[TransportKind.RAW, TransportKind.HTTPX])
def ask(request: pytest.FixtureRequest) -> Callable[..., Awaitable[list[Call]]]:
    """Send so many requests, one after the other."""

    async def send(url: str, times: int = 1, **changes: Any) -> list[Call]:
        plan = LoadPlan(
            run_id="hostile",
            model="m",
            url=url,
            transport=request.param,
            request_timeout_s=changes.pop("patience_s", 20.0),
        )
        calls = [new_call(**changes) for _ in range(times)]
        async with aclosing(transport_for(plan)) as transport:
            await transport.open()
            for call in calls:
                await transport.prepare(call).begin()
        return calls

    return send


async def pour(writer: Writer, head: bytes) -> None:
    """A gigabyte of junk, or as much as anyone takes."""
    writer.write(head)
    for _ in range(GIGABYTE):
        writer.write(MEGABYTE)
        await writer.drain()


async def slow_head(_: Reader, writer: Writer) -> None:
    for byte in OK * 10:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(PATIENCE_S / 20)


async def silence(reader: Reader, _: Writer) -> None:
    await reader.read()


async def no_head(_: Reader, writer: Writer) -> None:
    writer.close()


async def half_a_head(_: Reader, writer: Writer) -> None:
    writer.write(OK[:20])
    writer.close()


async def junk_head(_: Reader, writer: Writer) -> None:
    await pour(writer, b"")


async def endless_head(_: Reader, writer: Writer) -> None:
    await pour(writer, b"HTTP/1.1 200 OK\r\nA: ")


async def junk_body(_: Reader, writer: Writer) -> None:
    await pour(writer, b"HTTP/1.1 200 OK\r\nContent-Length: 2147483648\r\n\r\n")


async def junk_refusal(_: Reader, writer: Writer) -> None:
    await pour(writer, b"HTTP/1.1 500 No\r\nContent-Length: 2147483648\r\n\r\n")


async def reset(_: Reader, writer: Writer) -> None:
    writer.write(OK + chunk(TOKEN) + chunk(TOKEN))
    await writer.drain()
    await asyncio.sleep(0.05)
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def redirect(_: Reader, writer: Writer) -> None:
    head = "HTTP/1.1 307 Away\r\nLocation: /v1/completions\r\nContent-Length: 0\r\n\r\n"
    writer.write(head.encode())


async def too_many(_: Reader, writer: Writer) -> None:
    body = b'{"error":{"message":"slow down","prompt":"a secret"}}'
    head = b"HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % len(body) + body)


async def endless_comments(_: Reader, writer: Writer) -> None:
    writer.write(OK)
    for _n in range(10_000):
        writer.write(chunk(b": still here\n\n"))
        await writer.drain()
        await asyncio.sleep(0.01)


async def error_then_silence(reader: Reader, writer: Writer) -> None:
    writer.write(OK + chunk(TOKEN) + chunk(b'data: {"error":{"message":"gone"}}\n\n'))
    await writer.drain()
    await reader.read()


@pytest.mark.parametrize(
    ("behave", "failure", "detail"),
    [
        (slow_head, Failure.TIMEOUT, "after 0.4 s"),
        (silence, Failure.TIMEOUT, "after 0.4 s"),
        (endless_comments, Failure.TIMEOUT, "after 0.4 s"),
        (error_then_silence, Failure.SERVER_ERROR_EVENT, "gone"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_who_keeps_us_waiting_is_left(
    ask: Any, behave: Behave, failure: Failure, detail: str
) -> None:
    async with serving(behave) as server:
        (call,) = await ask(server.url, patience_s=PATIENCE_S)

    record = call.record()
    assert record.failure == failure
    assert detail in record.detail
    assert (record.end_ns - record.sent_ns) / 1e9 < PATIENCE_S + 2


@pytest.mark.parametrize(
    ("behave", "failure"),
    [
        (no_head, Failure.BROKEN_STREAM),
        (half_a_head, Failure.BROKEN_STREAM),
        (junk_head, Failure.BROKEN_STREAM),
        (endless_head, Failure.BROKEN_STREAM),
        (junk_body, Failure.BROKEN_STREAM),
        (junk_refusal, Failure.HTTP_5XX),
        (redirect, Failure.HTTP_3XX),
        (too_many, Failure.HTTP_4XX),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_each_request_is_asked_once_and_fails_by_name(
    ask: Any, behave: Behave, failure: Failure
) -> None:
    async with serving(behave) as server:
        calls = await ask(server.url, times=3)

    assert [call.record().failure for call in calls] == [failure] * 3
    assert server.requests == 3


async def test_a_reset_in_the_middle_keeps_the_tokens_before(ask: Any) -> None:
    async with serving(reset) as server:
        (call,) = await ask(server.url)

    assert call.record().failure == Failure.BROKEN_STREAM
    assert len(call.reply.stamps_ns) == 2


async def test_how_long_to_wait_is_kept_with_the_refusal(ask: Any) -> None:
    async with serving(too_many) as server:
        (call,) = await ask(server.url)

    assert call.record().detail == "429 slow down (retry-after: 7)"


async def test_where_it_was_sent_is_kept_with_the_redirect(ask: Any) -> None:
    async with serving(redirect) as server:
        (call,) = await ask(server.url)

    detail = "307 Temporary Redirect (location: /v1/completions)"
    assert call.record().detail == detail


SECRET = "a secret"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 No\r\nContent-Length: 8\r\n\r\na secret",
        b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\na secret",
        OK + chunk(b"data: a secret\n\n") + chunk(b""),
        OK + chunk(TOKEN) + b"a secret\r\n",
        b"a secret" * 9,
        b"HTTP/1.1 200 OK\r\nContent-Length: a secret\r\n\r\n",
        b"HTTP/1.1 a secret\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na secret\r\n\r\n",
    ],
    ids=["500", "body", "event", "chunk", "junk", "length", "status", "header"],
)
async def test_no_part_of_an_answer_is_kept_with_a_failure(
    ask: Any, answer: bytes
) -> None:
    async def tell(_: Reader, writer: Writer) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with serving(tell) as server:
        (call,) = await ask(server.url)

    record = call.record()
    assert record.failure is not None
    assert SECRET not in (record.detail or "")


@pytest.mark.parametrize(
    ("kind", "body", "failure", "detail"),
    [
        (
            b"application/json",
            b'{"error":{"message":"model overloaded"}}',
            Failure.SERVER_ERROR_EVENT,
            "model overloaded",
        ),
        (
            b"text/html",
            b"<html>Welcome</html>",
            Failure.BROKEN_STREAM,
            "not a stream of events but a body of text/html",
        ),
    ],
    ids=["error", "page"],
)
async def test_an_answer_that_is_no_stream_says_what_it_is(
    ask: Any, kind: bytes, body: bytes, failure: Failure, detail: str
) -> None:
    async def tell(_: Reader, writer: Writer) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (kind, len(body)) + body)

    async with serving(tell) as server:
        (call,) = await ask(server.url)

    record = call.record()
    assert (record.failure, record.detail) == (failure, detail)


DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("cut", [9, len(DONE)])
async def test_an_answer_that_is_done_ends_though_the_connection_stays_open(
    ask: Any, cut: int
) -> None:
    async def linger(reader: Reader, writer: Writer) -> None:
        writer.write(OK)
        for piece in filter(None, (LAST + DONE[:cut], DONE[cut:])):
            writer.write(chunk(piece))
            await writer.drain()
        await reader.read()

    async with serving(linger) as server:
        began_ns = monotonic_ns()
        (call,) = await ask(server.url, patience_s=15.0)

    record = call.record()
    assert record.failure is None
    assert (monotonic_ns() - began_ns) / 1e9 < 10, "it did not wait for the time-out"
    assert record.end_ns >= record.last_token_ns


async def test_an_answer_that_is_done_stays_so_when_the_connection_breaks(
    ask: Any,
) -> None:
    async def leave(_: Reader, writer: Writer) -> None:
        writer.write(OK + chunk(LAST + DONE))
        await writer.drain()
        writer.close()

    async with serving(leave) as server:
        (call,) = await ask(server.url)

    assert call.record().failure is None


async def test_a_refused_connection_is_used_again(ask: Any) -> None:
    async with serving(too_many) as server:
        await ask(server.url, times=5)

    assert server.connections == 1


async def test_a_connection_closed_after_its_answer_is_not_used_again(ask: Any) -> None:
    async def close_soon(_: Reader, writer: Writer) -> None:
        writer.write(GOOD.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"))
        await writer.drain()
        writer.close()

    async with serving(close_soon) as server:
        calls = await ask(server.url, times=3)

    assert [call.record().failure for call in calls] == [None] * 3
    assert server.connections == 3


async def test_a_prompt_larger_than_the_sockets_buffers_leaves_whole(ask: Any) -> None:
    async def answer(_: Reader, writer: Writer) -> None:
        writer.write(GOOD)

    async with serving(answer) as server:
        began_ns = monotonic_ns()
        (call,) = await ask(server.url, tokens=3_000_000)

    assert call.record().failure is None
    assert call.sent_ns > began_ns


async def test_without_a_socket_to_be_had_each_request_fails_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(*_: object) -> Connection:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(raw, "Connection", none)
    plan = LoadPlan(run_id="none", model="m", url="http://127.0.0.1:9")
    calls = [new_call(), new_call()]
    async with aclosing(raw.RawTransport(plan)) as transport:
        await transport.open()
        for call in calls:
            await transport.prepare(call).begin()

    assert [call.record().failure for call in calls] == [Failure.REFUSED] * 2
    assert calls[0].record().detail == "Too many open files"


ODD_EVENTS = [
    b'{"choices":[{"text":"\xff\xfe"}]}',
    b'{"x":' + b"[" * 1_000 + b"]" * 1_000 + b"}",
    b'{"choices":[],"usage":{"completion_tokens":10000000000000000000000000}}',
    b'{"choices":[],"usage":{"completion_tokens":-5}}',
    b'{"choices":[],"usage":{"prompt_tokens":1},"metrics":{"queue_time_ms":1e308}}',
]


CLOSED = {"arrivals": Arrivals.CLOSED, "concurrency": 3}


@pytest.mark.parametrize(
    "loop", [CLOSED, {"rate_per_s": 200.0}], ids=["closed", "open"]
)
async def test_events_that_cannot_be_read_cost_no_request_its_outcome(
    run_plan: Callable[[LoadPlan], Awaitable[list[Any]]], loop: dict[str, Any]
) -> None:
    """Each third request is told nonsense; all are asked, and all have a record."""
    turn = count()

    async def tell(_: Reader, writer: Writer) -> None:
        number = next(turn)
        odd = ODD_EVENTS[number // 3 % len(ODD_EVENTS)]
        event = LAST if number % 3 else b"data: " + odd + b"\n\n"
        writer.write(OK + chunk(TOKEN) + chunk(event) + chunk(b""))

    async with serving(tell) as server:
        readings = await run_plan(
            LoadPlan(
                **loop,
                run_id="odd",
                model="m",
                url=server.url,
                requests=30,
                warmup_s=0.0,
                transport=TransportKind.RAW,
            )
        )

    records = [each for each in readings if isinstance(each, RequestRecord)]
    assert len({each.index for each in records}) == len(records) == 30
    assert sum(each.failure is None for each in records) == 22
    (sample,) = [s for s in readings if isinstance(s, ClientSample) and s.final]
    assert sample.sends == 30
