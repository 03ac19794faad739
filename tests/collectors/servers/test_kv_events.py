"""What a server's prefix cache tells: by the wire, from a publisher as vLLM's is."""

import asyncio
import json
import socket
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from collectors.contract.clock import SessionClock, wall_offset_ns
from collectors.contract.readings import AnyReading, KvCacheEvents, Note
from collectors.http.server import Server
from collectors.servers import published
from collectors.servers.kv_events import KvEventStream
from collectors.servers.published import (
    UnusableEndpointError,
    reachable,
)
from tests.collectors.http_server import TWICE, packed_twice, serving, whole

MS = 1_000_000
END = (-1).to_bytes(8, "big", signed=True)


def stored(*hashes: int | bytes, parent: int | bytes | None = None, **more: Any) -> Any:
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": [7_654_321] * 16 * len(hashes),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "kv_cache_spec_kind": "full_attention",
        **more,
    }


def removed(*hashes: int | bytes, **more: Any) -> Any:
    return {
        "type": "BlockRemoved",
        "block_hashes": list(hashes),
        "medium": "GPU",
        **more,
    }


CLEARED = {"type": "AllBlocksCleared"}


class Publisher:
    """Publishes as vLLM does, and answers HTTP where it says where."""

    def __init__(self, *, replays: bool = True) -> None:
        self.context = zmq.asyncio.Context()
        self.pub = self.context.socket(zmq.XPUB)
        self.pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self.port = self.pub.bind_to_random_port("tcp://127.0.0.1")
        self.replay = self.context.socket(zmq.ROUTER)
        self.replay_port = self.replay.bind_to_random_port("tcp://127.0.0.1")
        self.kept: list[tuple[int, bytes]] = []
        self.asked: list[int] = []
        self.sources: Any = {
            "0": {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": f"tcp://*:{self.port}",
                "replay_endpoint": f"tcp://*:{self.replay_port}" if replays else None,
                "buffer_steps": 10_000,
            }
        }
        self.http: asyncio.Server | None = None
        self._replaying: asyncio.Task[None] | None = None

    async def start(self) -> Server:
        self._replaying = asyncio.create_task(self._serve_replays())
        self.http = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        port = self.http.sockets[0].getsockname()[1]
        return Server(url=f"127.0.0.1:{port}", name="chat")

    async def stop(self) -> None:
        if self._replaying is not None and self.http is not None:
            self._replaying.cancel()
            await asyncio.gather(self._replaying, return_exceptions=True)
            self.http.close()
        self.context.destroy(linger=0)

    def keep(self, number: int, *events: Any, rank: int | None = 0) -> bytes:
        """A batch as it is sent, kept for a replay."""
        now_s = (asyncio.get_running_loop().time() * 1e9 + wall_offset_ns()) / 1e9
        payload = msgspec.msgpack.encode([now_s, list(events), rank])
        self.kept.append((number, payload))
        return payload

    async def publish(self, number: int, *events: Any) -> None:
        payload = self.keep(number, *events)
        await self.pub.send_multipart([b"kv", number.to_bytes(8, "big"), payload])

    async def subscribed(self) -> None:
        async with asyncio.timeout(30):
            assert await self.pub.recv() == b"\x01"

    async def _serve_replays(self) -> None:
        while True:
            client, _, start = await self.replay.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            for number, payload in self.kept:
                if number >= self.asked[-1]:
                    told = number.to_bytes(8, "big")
                    await self.replay.send_multipart(
                        [client, b"", b"kv", told, payload]
                    )
            await self.replay.send_multipart([client, b"", b"", END, b""])

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(self.sources).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        writer.close()


class Heard:
    def __init__(self, stream: KvEventStream) -> None:
        self.readings: list[AnyReading] = []
        self._stream = stream
        self._more = asyncio.Event()
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for batch in self._stream.batches():
            self.readings.extend(batch)
            self._more.set()

    async def some(self, count: int) -> list[Any]:
        """The first so many, and nothing more came before them."""
        async with asyncio.timeout(30):
            while len(self.readings) < count:
                self._more.clear()
                await self._more.wait()
        assert len(self.readings) == count
        return self.readings

    async def close(self) -> None:
        await self._stream.close()
        async with asyncio.timeout(30):
            await self._task


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    made = Publisher()
    yield made
    await made.stop()


def stream_of(
    server: Server, clock: SessionClock | None = None, *, is_here: bool = True
) -> KvEventStream:
    return KvEventStream(clock or SessionClock(), server, lambda: is_here)


async def heard_of(publisher: Publisher) -> Heard:
    """Who has heard what there was to replay, and is subscribed."""
    server = await publisher.start()
    heard = Heard(stream_of(server))
    await publisher.subscribed()
    return heard


async def test_a_late_joiner_hears_the_past_and_goes_on_from_it(
    publisher: Publisher,
) -> None:
    publisher.keep(0, stored(1, 2))
    publisher.keep(1, removed(2), stored(3, 4, parent=1))
    heard = await heard_of(publisher)
    first, second = await heard.some(2)
    assert (first.stored, first.parents, first.block_tokens) == ([1, 2], [None, 1], 16)
    assert (second.removed, second.stored, second.parents) == ([2], [3, 4], [1, 3])
    assert (first.source, first.rank, first.sequence, first.missed) == ("chat", 0, 0, 0)
    await publisher.publish(2, CLEARED)
    assert (await heard.some(3))[2].cleared
    await heard.close()


async def test_times_are_those_of_the_steps(publisher: Publisher) -> None:
    clock = SessionClock()
    long_ago = [(clock.start_ns + wall_offset_ns()) / 1e9 - 5.0, [stored(1)], 0]
    publisher.kept.append((0, msgspec.msgpack.encode(long_ago)))
    stream = stream_of(await publisher.start(), clock)
    heard = Heard(stream)
    (told,) = await heard.some(1)
    assert abs(told.t_ns + 5_000 * MS) < MS
    await heard.close()


@pytest.mark.parametrize("wall_s", [float("nan"), float("inf"), 1e300, -1e300, 0.0])
async def test_a_time_that_cannot_be_is_that_of_receipt(
    publisher: Publisher, wall_s: float
) -> None:
    payload = msgspec.msgpack.encode([wall_s, [stored(1)], 0])
    publisher.kept.append((0, payload))
    heard = await heard_of(publisher)
    (told,) = await heard.some(1)
    assert 0 <= told.t_ns < 60_000 * MS
    await heard.close()


async def test_token_ids_are_in_no_reading(publisher: Publisher) -> None:
    publisher.keep(0, stored(1))
    heard = await heard_of(publisher)
    assert "7654321" not in repr(await heard.some(1))
    await heard.close()


async def test_a_server_that_published_nothing_says_so(publisher: Publisher) -> None:
    heard = await heard_of(publisher)
    (told,) = await heard.some(1)
    assert (told.sequence, told.cleared, told.stored) == (-1, True, [])
    await heard.close()


async def test_a_gap_is_filled_by_a_replay(publisher: Publisher) -> None:
    publisher.keep(0, stored(1))
    heard = await heard_of(publisher)
    await heard.some(1)
    publisher.keep(1, stored(2))
    await publisher.publish(2, stored(3))
    told = await heard.some(3)
    assert [(each.sequence, each.missed) for each in told] == [(0, 0), (1, 0), (2, 0)]
    assert publisher.asked == [0, 1]
    await heard.close()


async def test_a_batch_that_no_replay_mends_is_counted_and_passed_by(
    publisher: Publisher,
) -> None:
    publisher.keep(0, stored(1))
    publisher.kept.append((1, b"\xc1 nonsense"))
    publisher.keep(2, stored(3))
    heard = await heard_of(publisher)
    told = await heard.some(2)
    assert [(each.sequence, each.missed) for each in told] == [(0, 0), (2, 1)]
    await publisher.publish(3, stored(4))
    await heard.some(3)
    assert publisher.asked == [0, 1, 1]
    await heard.close()


async def test_without_a_replay_what_is_missing_is_counted() -> None:
    publisher = Publisher(replays=False)
    heard = await heard_of(publisher)
    await publisher.publish(7, stored(1))
    await publisher.publish(10, stored(2))
    told = await heard.some(2)
    assert [(each.sequence, each.missed) for each in told] == [(7, 7), (10, 2)]
    await heard.close()
    await publisher.stop()


async def test_a_replay_that_begins_late_is_counted_as_missing(
    publisher: Publisher,
) -> None:
    publisher.keep(40, stored(1))
    heard = await heard_of(publisher)
    (told,) = await heard.some(1)
    assert (told.sequence, told.missed) == (40, 40)
    await heard.close()


async def test_numbers_that_begin_anew_are_a_restart(publisher: Publisher) -> None:
    publisher.keep(0, stored(1))
    heard = await heard_of(publisher)
    await publisher.publish(1, stored(2))
    await heard.some(2)
    publisher.kept.clear()
    publisher.keep(0, stored(8))
    await publisher.publish(1, stored(9))
    told = (await heard.some(4))[2:]
    assert [(each.sequence, each.missed) for each in told] == [(0, 0), (1, 0)]
    assert [each.cleared for each in told] == [True, False]
    await heard.close()


async def test_arrays_of_older_servers_say_the_same(publisher: Publisher) -> None:
    publisher.keep(
        0,
        ["BlockStored", [5, 6], 4, [1] * 32, 16, None, "GPU"],
        ["BlockStored", [7], None, [1] * 16, 16, None],
        ["BlockRemoved", [5]],
        rank=None,
    )
    publisher.keep(1, ["AllBlocksCleared"], ["BlockRemoved", [5], "GPU"])
    heard = await heard_of(publisher)
    first, second, third = await heard.some(3)
    assert (first.stored, first.parents) == ([5, 6, 7], [4, 5, None])
    assert second.removed == [5]
    assert (third.cleared, third.removed) == (True, [5])
    await heard.close()


async def test_hashes_in_bytes_are_those_in_numbers(publisher: Publisher) -> None:
    whole = bytes(range(32))
    publisher.keep(0, stored(whole, 3, parent=b"\xff" * 32))
    heard = await heard_of(publisher)
    (told,) = await heard.some(1)
    low = int.from_bytes(whole[-8:], "big")
    assert (told.stored, told.parents) == ([low, 3], [(1 << 64) - 1, low])
    await heard.close()


async def test_events_that_nobody_knows_are_skipped(publisher: Publisher) -> None:
    publisher.keep(
        0,
        {"type": "BlockPolished", "block_hashes": [1]},
        ["BlockPolished", 1],
        {"type": "BlockStored", "block_hashes": "many"},
        msgspec.Raw(msgspec.msgpack.encode(stored(9)).replace(b"GPU", b"\xc2PU")),
        stored(2, medium="CPU"),
        7,
        None,
        {},
        [],
        stored(3, later_field={"a": [1]}, block_size=1 << 63),
    )
    heard = await heard_of(publisher)
    (told, apart) = await heard.some(2)
    assert (told.stored, told.block_tokens, told.medium) == ([3], None, None)
    assert (apart.stored, apart.medium) == ([2], "CPU")
    await heard.close()


async def test_blocks_of_other_tiers_are_told_apart(publisher: Publisher) -> None:
    publisher.keep(
        0,
        stored(1, 2),
        stored(1, 2, parent=None, medium="CPU", locality="LOCAL", ownership="a"),
        stored(2, medium="STORAGE"),
        removed(8, medium="GPU"),
        removed(9, medium="CPU"),
        removed(1, medium="x" * 1_000),
    )
    heard = await heard_of(publisher)
    gpu, cpu, storage, other = await heard.some(4)
    assert (gpu.stored, gpu.removed, gpu.medium) == ([1, 2], [8], None)
    assert {each.sequence for each in (gpu, cpu, storage, other)} == {0}
    assert (cpu.stored, cpu.removed, cpu.medium) == ([1, 2], [9], "CPU")
    assert (storage.stored, storage.medium) == ([2], "STORAGE")
    assert other.medium == "x" * 32
    await heard.close()


async def test_a_block_of_two_groups_of_layers_is_two(publisher: Publisher) -> None:
    publisher.keep(0, stored(1, group_idx=0), stored(1, group_idx=1))
    heard = await heard_of(publisher)
    (told,) = await heard.some(1)
    assert len(set(told.stored)) == 2
    assert told.stored[0] == 1
    await heard.close()


@pytest.mark.parametrize(
    "frames",
    [
        [b"kv"],
        [b"kv", b"\x00", b""],
        [b"kv", b"\xff" * 8, b""],
        [b"kv", b"\xff" * 7 + b"\x00", b""],
        [b"kv", (1).to_bytes(8, "big"), b"\xc1 nonsense"],
        [b"kv", (1).to_bytes(8, "big"), msgspec.msgpack.encode([1.0])],
        [b"kv", (1).to_bytes(8, "big"), b"\x91" * 5_000],
        [b"kv", (1).to_bytes(8, "big"), b"\xdd\xff\xff\xff\xff"],
    ],
)
async def test_nonsense_counts_as_missing_and_does_no_harm(
    publisher: Publisher, frames: list[bytes]
) -> None:
    publisher.keep(0, stored(1))
    heard = await heard_of(publisher)
    await heard.some(1)
    await publisher.pub.send_multipart(frames)
    await publisher.publish(2, stored(3))
    told = await heard.some(2)
    assert (told[1].sequence, told[1].missed) == (2, 1)
    await heard.close()


async def test_sources_appear_when_a_server_is_restarted_with_them(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_by = [each._replace(every_s=0.01) for each in KvEventStream.FOUND_BY]
    monkeypatch.setattr(KvEventStream, "FOUND_BY", found_by)
    monkeypatch.setattr(published, "SELDOM_S", 0.01)
    told, publisher.sources = publisher.sources, {}
    publisher.keep(0, stored(1))
    heard = Heard(stream_of(await publisher.start()))
    await asyncio.sleep(0)
    publisher.sources = "nonsense"
    await asyncio.sleep(0)
    publisher.sources = told
    await heard.some(1)
    await heard.close()


async def test_where_the_server_connects_to_we_bind(publisher: Publisher) -> None:
    connects = publisher.context.socket(zmq.PUB)
    probe = publisher.context.socket(zmq.SUB)
    port = probe.bind_to_random_port("tcp://127.0.0.1")
    probe.close(linger=0)
    publisher.sources["0"]["endpoint"] = f"tcp://127.0.0.1:{port}"
    heard = Heard(stream_of(await publisher.start()))
    await heard.some(1)  # nothing yet
    connects.connect(f"tcp://127.0.0.1:{port}")
    async with asyncio.timeout(30):
        number = 0
        while len(heard.readings) < 2:
            payload = publisher.keep(number, stored(number))
            told = number.to_bytes(8, "big")
            await connects.send_multipart([b"", told, payload])
            number += 1
            await asyncio.sleep(0.01)
    assert isinstance(heard.readings[1], KvCacheEvents)
    connects.close(linger=0)
    await heard.close()


async def test_a_place_that_another_program_listens_at_is_told_in_a_note(
    publisher: Publisher,
) -> None:
    publisher.sources["0"]["endpoint"] = f"tcp://127.0.0.1:{publisher.port}"
    heard = Heard(stream_of(await publisher.start()))
    (note,) = await heard.some(1)
    assert isinstance(note, Note)
    assert f"cannot bind tcp://127.0.0.1:{publisher.port}" in note.text
    await heard.close()


@pytest.mark.parametrize("told", ["tcp://127.0.0.1:{port}", "ipc://{path}"])
async def test_behind_a_tunnel_nobody_chooses_what_we_bind_or_open(
    publisher: Publisher, told: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = tmp_path / "kv"
    endpoint = told.format(port=port, path=path)
    publisher.sources["0"] = {"endpoint": endpoint, "replay_endpoint": endpoint}
    heard = Heard(stream_of(await publisher.start(), is_here=False))

    (note,) = await heard.some(1)

    assert f"KV events are published at {endpoint}" in note.text
    with socket.create_server(("127.0.0.1", port)):
        await heard.close()


def test_an_address_of_this_host_is_gone_to_as_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(published, "addresses_here", {"10.9.8.7": {"x"}}.get)
    place = ("tcp://10.9.8.7:5558", False)
    assert reachable("tcp://10.9.8.7:5558", "localhost", local=True) == place


@pytest.mark.parametrize(
    ("told", "bound", "place"),
    [
        ("tcp://*:5557", False, ("tcp://far:5557", False)),
        ("tcp://[::]:5557", False, ("tcp://far:5557", False)),
        ("tcp://10.9.8.7:5557", False, ("tcp://far:5557", False)),
        ("tcp://*:5558", True, ("tcp://far:5558", False)),
    ],
)
def test_a_remote_server_is_the_only_host_ever_connected_to(
    told: str, bound: bool, place: tuple[str, bool]
) -> None:
    assert reachable(told, "far", local=False, bound=bound) == place


@pytest.mark.parametrize(
    ("told", "bound", "place"),
    [
        ("tcp://*:5557", False, ("tcp://127.0.0.1:5557", False)),
        ("tcp://127.0.0.1:5557", False, ("tcp://127.0.0.1:5557", True)),
        ("tcp://127.0.0.1:5558", True, ("tcp://127.0.0.1:5558", False)),
        ("tcp://10.9.8.7:5557", False, ("tcp://127.0.0.1:5557", False)),
        ("tcp://internal-db:6379", True, ("tcp://127.0.0.1:6379", False)),
        ("tcp://127.0.0.1.evil.example:1", False, ("tcp://127.0.0.1:1", False)),
        ("ipc:///run/kv", False, ("ipc:///run/kv", False)),
    ],
)
def test_a_local_server_is_connected_to_or_bound_for(
    told: str, bound: bool, place: tuple[str, bool]
) -> None:
    assert reachable(told, "localhost", local=True, bound=bound) == place


@pytest.mark.parametrize(
    "told", ["tcp://127.0.0.1:5557", "ipc:///run/kv", "inproc://x", "tcp://*", "x", ""]
)
def test_what_no_other_host_can_hear_is_said(told: str) -> None:
    with pytest.raises(UnusableEndpointError):
        reachable(told, "far", local=False)


async def test_a_bomb_in_place_of_the_sources_is_refused_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(published, "SELDOM_S", 0.01)
    often, packed = asyncio.Event(), whole(packed_twice(), headers=TWICE)

    async def bomb(writer: asyncio.StreamWriter) -> None:
        writer.write(packed)
        if len(server.asked) == 3:
            often.set()

    async with serving({"/kv_event_sources": bomb}) as server:
        tracemalloc.start()
        heard = Heard(stream_of(Server(url=server.url, name="chat")))
        async with asyncio.timeout(30):
            await often.wait()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        await heard.close()
    (note,) = heard.readings
    assert isinstance(note, Note)
    assert note.text.startswith("cannot hear KV events of chat: it is packed as")
    assert most < 5_000_000


async def test_a_batch_of_more_events_than_a_step_can_have_is_not_decoded() -> None:
    publisher = Publisher(replays=False)
    heard = Heard(stream_of(await publisher.start()))
    await publisher.subscribed()
    tracemalloc.start()
    await publisher.publish(0, *[0] * 1_000_000)
    await publisher.publish(1, stored(*[0] * 100_000), stored(5))
    (found,) = await heard.some(1)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await heard.close()
    await publisher.stop()
    assert (found.missed, found.stored) == (1, [5])
    assert most < 60_000_000
