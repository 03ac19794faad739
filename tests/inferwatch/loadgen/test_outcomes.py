"""Whatever comes back, each request has one outcome that can be told and recorded."""

import asyncio
import json
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from collectors.contract.clock import SessionClock, monotonic_ns
from collectors.contract.readings import AnyReading, Phase, RequestRecord
from collectors.contract.wire import decode_reading, encode_reading
from inferwatch.loadgen.exchange.call import Call
from inferwatch.loadgen.exchange.raw_transport import RawExchange
from inferwatch.loadgen.exchange.receive_stamps import ReceiveStamps
from inferwatch.loadgen.plan.plan import TransportKind
from inferwatch.loadgen.prompts.prompts import Prompt, Turn
from inferwatch.loadgen.sending.closed_loop import ClosedLoop
from inferwatch.loadgen.sending.in_flight import InFlight
from inferwatch.loadgen.sending.sampler import Sampler
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.load.result import load_result
from inferwatch.printing.summary.load import load_text, summarise_load

OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
INT64 = 1 << 63
ODD: list[Any] = [
    *(10**25, -(10**25), 1e308, -1e308, -1, 0, 1 << 63, 0.5, "\ud800", "\x1b[2J"),
    *(None, [], {}, "[DONE]", [[[[]]]], True),
]
numbers = st.one_of(*[st.integers(0, 9)] * 4, st.sampled_from(ODD))
words = st.one_of(*[st.text(max_size=5)] * 4, st.sampled_from(ODD))


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with any of these fields, or something else in its place."""
    whole = st.fixed_dictionaries({}, optional=fields)
    return st.one_of(*[whole] * 15, st.sampled_from(ODD))


deltas = some(role=words, content=words, reasoning=words, tool_calls=words)
choices = some(
    text=words, delta=deltas, finish_reason=words, token_ids=st.lists(numbers)
)
events = some(
    choices=st.one_of(st.lists(choices, max_size=2), numbers),
    usage=some(prompt_tokens=numbers, completion_tokens=numbers),
    metrics=some(queue_time_ms=numbers, generation_time_ms=numbers),
    error=some(message=words, code=numbers),
)
GOOD = b'data: {"choices":[{"text":"a"}]}\n\n'
LAST = b'data: {"choices":[{"text":"a","finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"completion_tokens":2}}\n\n'
DEEP = b'data: {"choices":[],"x":' + b"[" * 3_000 + b"]" * 3_000 + b"}\n\n"
parts = st.one_of(
    st.sampled_from([GOOD, GOOD, LAST, USAGE, DEEP, b"data: [DONE]\n\n", b": hm\n\n"]),
    events.map(lambda event: b"data: %s\n\n" % json.dumps(event).encode()),
    st.binary(max_size=20),
    st.binary(max_size=9).map(lambda data: b'data: {"choices":[%s]}\n\n' % data),
)
streams = st.builds(
    lambda odd, at: b"".join([GOOD] * at + odd + [GOOD, LAST, USAGE]),
    st.lists(parts, max_size=2),
    st.integers(0, 2),
)
bodies = st.one_of(streams, streams, st.lists(parts, max_size=6).map(b"".join))


def chunked(body: bytes) -> bytes:
    return OK + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if body else OK


def sized(body: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


answers = st.one_of(
    *[bodies.map(chunked), bodies.map(sized)] * 3,
    st.builds(sized, bodies, st.sampled_from([204, 302, 404, 422, 500, 799])),
    bodies.map(lambda body: OK + body),
    bodies.map(lambda body: sized(body).replace(b": ", b": 9" * 2_000)),
    st.binary(max_size=60),
)


class Server:
    """In place of the sockets: gives each exchange its bytes, then hangs up or not."""

    def __init__(self, pieces: list[bytes], *, hangs_up: bool) -> None:
        self._pieces = pieces
        self._hangs_up = hangs_up
        self._busy = True

    def take_connection(self, _: RawExchange) -> "Server":
        return self

    def release(self, *_: object) -> None:
        self._busy = False

    def carry(self, exchange: RawExchange) -> None:
        exchange.sends(monotonic_ns())
        asyncio.get_running_loop().call_soon(self._answer, exchange)

    def _answer(self, exchange: RawExchange) -> None:
        for piece in self._pieces:
            if self._busy:
                exchange.came(piece, monotonic_ns(), by_kernel=True)
        if self._busy:
            self._leave(exchange)

    def _leave(self, exchange: RawExchange) -> None:
        if self._hangs_up:
            exchange.closed("")
        else:
            exchange.time_out(1.0)


class Readings:
    """In place of the outbox."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def put(self, *readings: AnyReading) -> None:
        self.taken.extend(readings)


class Prepares:
    """In place of the transport: each request has a server of its own."""

    def __init__(self, servers: list[Server]) -> None:
        self._servers = iter(servers)

    def prepare(self, call: Any) -> RawExchange:
        server: Any = next(self._servers)
        return RawExchange(server, call, b"")


def in_flight_to(servers: list[Server]) -> tuple[InFlight, Sampler, Any]:
    outbox: Any = Readings()
    transport: Any = Prepares(servers)
    sampler = Sampler(TransportKind.RAW, ReceiveStamps(), outbox)
    return InFlight("run", transport, outbox, sampler), sampler, outbox


async def outcomes(servers: list[Server]) -> list[Any]:
    """All that is reported of a run that asks each server once."""
    in_flight, sampler, outbox = in_flight_to(servers)
    later = Turn(token_ids=[1], max_tokens=4)
    prompt = Prompt(token_ids=[1], max_tokens=4, kv_tokens=5, later=(later,))
    for _ in servers:
        await asyncio.wait([in_flight.send(in_flight.make(Phase.STEADY, prompt, 0))])
    await in_flight.drain(5)
    sampler.end()
    taken: list[Any] = outbox.taken
    return taken


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """In pieces, as a network would."""
    edges = sorted({0, len(data), *(each % (len(data) + 1) for each in at)})
    return [data[a:b] for a, b in pairwise(edges)]


def told(readings: list[Any]) -> dict[str, Any]:
    """What the summary makes of them, once they have been on the wire."""
    book, clock = LoadBook("run"), SessionClock(0)
    for reading in readings:
        received = decode_reading(encode_reading(reading))
        assert received is not None
        assert received == reading, "it arrives as it was"
        book.fold(clock.rebase(received, "run"))
    summary = summarise_load(load_result(book))
    assert load_text(summary)
    counts: dict[str, Any] = summary["requests"]
    return counts


servers = st.builds(
    lambda answer, at, hangs_up: Server(cut(answer, at), hangs_up=hangs_up),
    answers,
    st.lists(st.integers(0, 1 << 12), max_size=4),
    st.booleans(),
)


@seed(20_261_121)
@settings(max_examples=400, deadline=None, database=None)
@given(st.lists(servers, min_size=1, max_size=4))
def test_every_request_ends_in_one_outcome(asked: list[Server]) -> None:
    readings = asyncio.run(outcomes(asked))

    records = [each for each in readings if isinstance(each, RequestRecord)]
    assert sorted(each.index for each in records) == list(range(len(asked)))
    for record in records:
        numbers = (record.prompt_tokens, record.output_tokens, record.server_queue_ns)
        assert all(n is None or 0 <= n < INT64 for n in numbers)
        assert record.end_ns is not None
        assert record.failure or record.first_token_ns
        assert record.detail is None or record.detail.isprintable()
    counts = told(readings)
    assert counts["sent"] == len(asked)
    ended = counts["succeeded"] + counts["failed"] + counts["aborted"]
    assert (ended, counts["unaccounted"]) == (len(asked), 0)


async def test_a_record_that_is_lost_is_missed_in_the_summary() -> None:
    answer = sized(LAST + USAGE)
    readings = await outcomes([Server([answer], hangs_up=False) for _ in range(5)])
    lost = next(each for each in readings if isinstance(each, RequestRecord))
    readings.remove(lost)

    counts = told(readings)

    assert (counts["sent"], counts["succeeded"], counts["unaccounted"]) == (5, 4, 1)


async def test_a_mistake_of_ours_costs_one_request_and_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the mistake is, those that ended after it are still told."""
    record = Call.record

    def broken(call: Call) -> RequestRecord:
        if call.index == 1:
            raise ZeroDivisionError
        return record(call)

    monkeypatch.setattr(Call, "record", broken)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    answer = sized(LAST + USAGE)

    readings = await outcomes([Server([answer], hangs_up=False) for _ in range(4)])

    counts = told(readings)
    assert (counts["sent"], counts["succeeded"], counts["unaccounted"]) == (4, 3, 1)


async def test_users_that_break_off_break_off_the_run() -> None:
    in_flight, _, _ = in_flight_to([])

    async def users() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(user())

    async def user() -> None:
        raise ZeroDivisionError

    in_flight.spawn(users())
    await in_flight.drain(5)

    with pytest.raises(ZeroDivisionError):
        in_flight.raise_fault()


async def test_a_user_outlives_a_request_that_raises() -> None:
    """Two users and six requests, each of which raises instead of ending."""
    in_flight, sampler, outbox = in_flight_to([])
    asked = [Prompt(token_ids=[1], max_tokens=1, kv_tokens=2)] * 6
    monkey: Any = in_flight
    monkey.ensure = lambda _: True
    monkey._transport = Raises()

    await ClosedLoop(in_flight, {Phase.STEADY: iter(asked)}).run(
        2, lambda: Phase.STEADY
    )
    await in_flight.drain(5)
    sampler.end()

    counts = told(outbox.taken)
    assert (counts["sent"], counts["failed"], counts["unaccounted"]) == (6, 6, 0)


class Raises:
    """In place of a transport with a mistake in it."""

    def prepare(self, call: Call) -> Any:
        async def begin() -> None:
            raise ZeroDivisionError

        return SimpleNamespace(call=call, begin=lambda: asyncio.ensure_future(begin()))
