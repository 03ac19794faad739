"""Steps that servers publish: bytes of SGLang's classes, and a hostile publisher."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from collectors.contract.clock import SessionClock
from collectors.contract.readings import AnyReading, BoundBy, Note, NoteKind, Step
from collectors.http.server import Server
from collectors.servers import server_steps
from collectors.servers.families.family import SELDOM_S, Publishers
from collectors.servers.families.sglang import SGLANG as FAMILY
from collectors.servers.families.sglang import WITHOUT_NAME
from collectors.servers.kv_events import KvEventStream
from collectors.servers.published import PublishedStream
from collectors.servers.server_steps import StepStream
from tests.collectors.http_server import as_json, serving

HERE = Path(__file__).parent
SGLANG = [
    bytes.fromhex(line)
    for line in (HERE / "published" / "sglang_0.5.23_steps.hex").read_text().split()
]
PREFILL, DECODE, MIXED, ALIVE = SGLANG
MS = 1_000_000


def decode_step(**changed: Any) -> bytes:
    """The decode step with other fields."""
    return msgspec.msgpack.encode(msgspec.msgpack.decode(DECODE) | changed)


class Publisher:
    """Publishes numbered messages at an address of its own."""

    def __init__(self) -> None:
        self.context = zmq.asyncio.Context()
        self.pub = self.context.socket(zmq.XPUB)
        self.pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self.port = self.pub.bind_to_random_port("tcp://127.0.0.1")
        self.stream = StepStream(
            SessionClock(),
            Server(url="127.0.0.1:1", name="chat"),
            lambda: True,
            given=[f"tcp://127.0.0.1:{self.port}"],
        )
        self.readings: list[AnyReading] = []
        self._more = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._listening = asyncio.create_task(self._listen())
        async with asyncio.timeout(30):
            assert await self.pub.recv() == b"\x01"

    async def _listen(self) -> None:
        async for batch in self.stream.batches():
            self.readings += batch
            self._more.set()

    async def publish(self, number: int, payload: bytes) -> None:
        await self.pub.send_multipart([b"", number.to_bytes(8, "big"), payload])

    async def until(self, enough: Callable[[list[AnyReading]], bool]) -> None:
        async with asyncio.timeout(30):
            while not enough(self.readings):
                self._more.clear()
                await self._more.wait()

    async def steps(self, count: int) -> list[Step]:
        await self.until(lambda told: sum(isinstance(e, Step) for e in told) >= count)
        return [each for each in self.readings if isinstance(each, Step)]

    @property
    def notes(self) -> list[Note]:
        return [each for each in self.readings if isinstance(each, Note)]

    async def stop(self) -> None:
        await self.stream.close()
        if self._listening is not None:
            await self._listening
        self.context.destroy(linger=0)


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    published = Publisher()
    await published.start()
    yield published
    await published.stop()


async def test_the_messages_of_sglang_are_steps_without_members(
    publisher: Publisher,
) -> None:
    for number, payload in enumerate(SGLANG):
        await publisher.publish(number, payload)
    await publisher.publish(4, DECODE)
    prefill, decode, mixed, last = await publisher.steps(4)
    assert [each.index for each in (prefill, decode, mixed, last)] == [0, 1, 2, 4]
    assert (prefill.prefill_requests, prefill.prefill_tokens) == (2, 900)
    assert (prefill.waiting, prefill.bound_by) == (3, BoundBy.OTHER)
    assert (prefill.duration_ns, prefill.context_tokens) == (125 * MS, 100)
    assert (decode.decode_requests, decode.decode_tokens) == (5, 5)
    assert (decode.waiting, decode.context_tokens) == (2, 2_005)
    assert (mixed.prefill_requests, mixed.decode_requests) == (1, 4)
    assert (mixed.running, mixed.bound_by) == (5, BoundBy.NOTHING)
    assert all(each.memberless and not each.members for each in (prefill, mixed))
    assert mixed.end_ns - mixed.start_ns == mixed.duration_ns
    assert mixed.kv_used_blocks is None
    assert not publisher.notes


async def test_steps_that_were_missed_are_counted_and_a_late_joiner_missed_none(
    publisher: Publisher,
) -> None:
    await publisher.publish(70, DECODE)
    await publisher.publish(75, DECODE)
    await publisher.steps(2)
    (note,) = publisher.notes
    assert (note.kind, note.count, note.source) == (NoteKind.DROPPED, 4, "chat")


async def test_numbers_that_begin_anew_are_a_restart_and_no_loss(
    publisher: Publisher,
) -> None:
    for number in (70, 3, 4):
        await publisher.publish(number, DECODE)
    assert [each.index for each in await publisher.steps(3)] == [70, 3, 4]
    assert not publisher.notes


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc1" * 100, id="rubbish"),
        pytest.param(b"\x91" * 50_000, id="nested"),
        pytest.param(msgspec.msgpack.encode(["1", 2, 3]), id="an array"),
        pytest.param(decode_step(wall_time=float("nan")), id="no number"),
        pytest.param(decode_step(wall_time=float("inf")), id="for ever"),
        pytest.param(decode_step(wall_time=-1.0), id="back in time"),
        pytest.param(decode_step(wall_time=1e6), id="eleven days"),
        pytest.param(decode_step(dp_rank=-1), id="a rank below"),
        pytest.param(decode_step(dp_rank=1 << 20), id="a rank beyond"),
        pytest.param(
            decode_step(scheduled_requests={"num_decode_requests": -5}), id="negative"
        ),
        pytest.param(
            decode_step(scheduled_requests={"num_decode_requests": 1 << 60}), id="vast"
        ),
        pytest.param(decode_step(filler="x" * (1 << 17)), id="long"),
    ],
)
async def test_what_cannot_be_is_no_step_and_does_no_harm(
    publisher: Publisher, payload: bytes
) -> None:
    await publisher.pub.send_multipart([b"", b"short", DECODE])
    await publisher.publish(0, payload)
    await publisher.publish(1, decode_step(later_field={"a": [1]}))
    (step,) = await publisher.steps(1)
    assert step.index == 1


async def test_a_message_of_100_mb_is_never_held(publisher: Publisher) -> None:
    await publisher.publish(0, DECODE)
    await publisher.steps(1)
    tracemalloc.start()
    await publisher.publish(1, bytes(100 << 20))
    async with asyncio.timeout(30):
        assert await publisher.pub.recv() == b"\x00"  # it was cut off
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 1_000_000
    assert len(publisher.readings) == 1


async def test_steps_are_heard_again_after_a_message_that_was_too_long(
    publisher: Publisher,
) -> None:
    await publisher.publish(0, DECODE)
    await publisher.steps(1)
    await publisher.publish(1, bytes(9 << 20))
    async with asyncio.timeout(30):
        assert await publisher.pub.recv() == b"\x00"  # it was cut off
        assert await publisher.pub.recv() == b"\x01"
    await publisher.publish(2, DECODE)
    assert [each.index for each in await publisher.steps(2)] == [0, 2]
    (note,) = publisher.notes
    assert note.text == "chat sent more than 8 MiB of steps at once, which is not read"


async def test_another_version_is_said_once_and_not_read(publisher: Publisher) -> None:
    for number in range(3):
        await publisher.publish(number, decode_step(version=2, wall_time="long"))
    await publisher.publish(3, DECODE)
    await publisher.steps(1)
    (note,) = publisher.notes
    assert "version 2" in note.text


async def test_a_step_ends_when_it_was_heard_whatever_the_wall_clock_says(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.contract.clock.wall_offset_ns", lambda: 1 << 60)
    await publisher.publish(0, DECODE)
    await publisher.publish(1, DECODE)
    first, second = await publisher.steps(2)
    assert 0 < first.end_ns <= second.end_ns < 60_000 * MS


def test_versions_are_said_once_each_and_only_a_few() -> None:
    rank = server_steps.RankSteps(SessionClock(), "chat")
    versions = [2, 3, 2, 3, *range(4, 100)]
    notes = [
        each
        for number, version in enumerate(versions)
        for each in rank.take(number, decode_step(version=version), live=True)
    ]
    assert len(notes) == server_steps.MOST_VERSIONS


def test_missed_steps_fit_into_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = [0]
    clock = SessionClock()
    monkeypatch.setattr(clock, "now_ns", lambda: now_ns[0])
    rank = server_steps.RankSteps(clock, "chat")
    notes: list[AnyReading] = []
    for turn in range(6):
        now_ns[0] = 60_000 * MS * (turn // 5)  # the last one is a minute later
        for number in (0, (1 << 62) - 1):
            notes += rank.take(number, DECODE, live=True)
    counts = [each.count for each in notes if isinstance(each, Note)]
    assert counts == [server_steps.MOST] * 2


def test_missed_steps_are_told_now_and_then() -> None:
    clock = SessionClock()
    rank = server_steps.RankSteps(clock, "chat")
    told = [
        each
        for number in range(0, 40, 2)
        for each in rank.take(number, DECODE, live=True)
        if isinstance(each, Note)
    ]
    assert [each.count for each in told] == [1]


SERVER_INFO = {
    "dp_size": 2,
    "version": "0.5.23",
    "enable_forward_pass_metrics": True,
    "forward_pass_metrics_ipc_name": "ipc:///tmp/steps",
    "kv_events": {
        "publisher": "zmq",
        "endpoint_host": "0.0.0.0",
        "endpoint_port_base": 5557,
        "topic": "",
        "block_size": 16,
        "dp_size": 2,
        "replay_endpoint_port_base": 5600,
    },
}


async def anext_batch(stream: PublishedStream) -> None:
    async for _ in stream.batches():
        break


def steps_in(server_info: object) -> Publishers:
    assert FAMILY.steps is not None
    return FAMILY.steps.read(server_info)


def kv_events_in(server_info: object) -> Publishers:
    assert FAMILY.kv_events is not None
    return FAMILY.kv_events.read(server_info)


def test_sglang_says_where_its_ranks_publish() -> None:
    steps, kv = steps_in(SERVER_INFO), kv_events_in(SERVER_INFO)
    assert [steps[rank].endpoint for rank in (0, 1)] == [
        "ipc:///tmp/steps.0",
        "ipc:///tmp/steps.1",
    ]
    assert [kv[rank].endpoint for rank in (0, 1)] == ["tcp://*:5557", "tcp://*:5558"]
    assert kv[1].replay_endpoint == "tcp://*:5601"


def test_a_place_that_sglang_chose_itself_cannot_be_known() -> None:
    told = SERVER_INFO | {"forward_pass_metrics_ipc_name": None}
    assert steps_in(told)[0].unheard == WITHOUT_NAME


async def test_an_sglang_is_seldom_asked_for_all_of_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: asyncio.Queue[float] = asyncio.Queue()

    async def sleep(pause_s: float) -> None:
        await pauses.put(pause_s)
        await asyncio.Event().wait()

    async with serving({"/server_info": as_json('{"version":"0.5.23"}')}) as server:
        chat = Server(url=server.url, name="chat")
        streams = [
            each(SessionClock(), chat, lambda: True)
            for each in (StepStream, KvEventStream)
        ]
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "sleep", sleep)
            async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
                for stream in streams:
                    tasks.create_task(anext_batch(stream))
                asked = [await pauses.get() for _ in streams]
                for stream in streams:
                    await stream.close()
    assert asked == [SELDOM_S, SELDOM_S]
    assert server.asked.count("/server_info") == len(streams)


def test_an_sglang_that_publishes_nothing_lists_nothing() -> None:
    told: dict[str, Any] = {"version": "0.5.23", "kv_events": None}
    assert steps_in(told) == kv_events_in(told) == {}
