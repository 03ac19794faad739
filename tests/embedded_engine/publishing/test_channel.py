"""A channel and its subscribers, over real sockets.

Run as a program this file is a probe that emits some notes and waits to be killed.
"""

import asyncio
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import zmq

from collectors.contract.clock import SessionClock, monotonic_ns
from collectors.contract.collector import SourceLostError
from collectors.contract.readings import AnyReading, BlockMap, Note, NoteKind, Totals
from collectors.contract.runtime_dir import probe_sockets, socket_path
from collectors.probe import stream as probe_stream
from collectors.probe.reception import ProbeMessage, Reception
from collectors.probe.stream import ProbeStream
from embedded_engine.publishing import channel as channel_module
from embedded_engine.publishing.channel import Channel
from tests.embedded_engine.channel_owners import PatientOwner

pytestmark = pytest.mark.process

DEADLINE_S = 60.0


def note(number: int) -> list[AnyReading]:
    return [note_of(number)]


def note_of(number: int) -> Note:
    return Note(t_ns=monotonic_ns(), kind=NoteKind.BOOKMARK, text=str(number))


def open_channel(herald: PatientOwner, ring_bytes: int = 1 << 24) -> Channel:
    channel = Channel(socket_path("e", os.getpid()), "e", herald, ring_bytes)
    channel.open()
    return channel


def main() -> None:
    channel = open_channel(PatientOwner())
    end, begin = int(sys.argv[1]), int(sys.argv[2])
    for number in range(begin, end):
        channel.put(note, number)
    sys.stdin.read()


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def herald() -> PatientOwner:
    return PatientOwner()


@pytest.fixture
def channel(herald: PatientOwner) -> Iterator[Channel]:
    channel = open_channel(herald)
    yield channel
    channel.close()
    assert not channel.path.exists()


@asynccontextmanager
async def watching(*, backfill: bool = True) -> AsyncIterator["Watcher"]:
    stream = ProbeStream(SessionClock(), "e", backfill=backfill)
    watcher = Watcher(stream)
    try:
        yield watcher
    finally:
        await stream.close()


class Watcher:
    """Collects what a stream yields."""

    def __init__(self, stream: ProbeStream) -> None:
        self.stream = stream
        self.readings: list[AnyReading] = []
        self._batches = stream.batches()

    async def until(self, numbers: list[int]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.numbers != numbers:
                self.readings += await anext(self._batches)
                assert len(self.numbers) <= len(numbers)

    async def until_accounted(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.numbers) + self.lost < count:
                self.readings += await anext(self._batches)
        assert len(self.numbers) + self.lost == count

    async def until_noted(self, words: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not any(words in text for text in self.texts(NoteKind.PROBE)):
                self.readings += await anext(self._batches)

    async def until_lost(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                self.readings += await anext(self._batches)

    @property
    def numbers(self) -> list[int]:
        notes = [r for r in self.readings if isinstance(r, Note)]
        return [int(n.text) for n in notes if n.kind is NoteKind.BOOKMARK]

    def texts(self, kind: NoteKind) -> list[str]:
        notes = [r for r in self.readings if isinstance(r, Note)]
        return [n.text for n in notes if n.kind is kind]

    @property
    def lost(self) -> int:
        notes = [r for r in self.readings if isinstance(r, Note)]
        return sum(n.count or 0 for n in notes if n.kind is NoteKind.DROPPED)


def emit(channel: Channel, numbers: range) -> list[int]:
    for number in numbers:
        channel.put(note, number)
    return list(numbers)


async def test_who_comes_late_gets_everything_once(channel: Channel) -> None:
    past = emit(channel, range(500))

    async with watching() as watcher:
        await watcher.until(past)
        await watcher.until(past + emit(channel, range(500, 600)))

    assert watcher.lost == 0
    assert all(reading.source == "e" for reading in watcher.readings)


async def test_block_maps_are_for_those_who_listen_and_counted_for_all(
    channel: Channel,
) -> None:
    async with watching() as watcher:
        await watcher.until(emit(channel, range(10)))
        channel.put(lambda: [*note(10), block_map(), *note(11)])
        await watcher.until(list(range(12)))
        assert [type(r) for r in watcher.readings].count(BlockMap) == 1

    async with watching() as late:
        await late.until(list(range(12)))
        await late.until(list(range(12)) + emit(channel, range(12, 20)))
        assert BlockMap not in {type(r) for r in late.readings}
    assert watcher.lost == late.lost == 0
    assert channel.newcomers == 2


def block_map() -> BlockMap:
    return BlockMap(t_ns=monotonic_ns(), sequence=0, whole=True, num_blocks=9)


async def test_who_leaves_and_returns_gets_everything_again(channel: Channel) -> None:
    past = emit(channel, range(100))
    async with watching() as watcher:
        await watcher.until(past)

    past += emit(channel, range(100, 200))

    async with watching() as watcher:
        await watcher.until(past)
    assert watcher.lost == 0


async def test_the_pasts_of_two_processes_come_in_the_order_of_time(
    channel: Channel,
) -> None:
    emit(channel, range(10))
    await _until(lambda: channel._sender.seq > 0)
    program = [sys.executable, __file__, "20", "10"]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as other:
        async with watching() as watcher:
            await watcher.until(list(range(20)))
        before = channel._sender.seq
        emit(channel, range(20, 30))
        await _until(lambda: channel._sender.seq > before)

        async with watching() as watcher:
            await watcher.until(list(range(30)))
            assert len(watcher.stream.hellos) == 2
        other.kill()


async def test_a_process_that_does_not_answer_holds_nobody_up_for_long(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_stream, "PATIENCE_S", 0.5)
    past = emit(channel, range(10))
    with mute() as pid:
        assert pid in {found.pid for found in probe_sockets("e")}
        async with watching() as watcher:
            await watcher.until(past)
            await watcher.until(past + emit(channel, range(10, 20)))


async def test_what_waits_for_a_mute_process_is_told_at_the_close(
    channel: Channel,
) -> None:
    past = emit(channel, range(10))
    with mute():
        stream = ProbeStream(SessionClock(), "e")
        taken = asyncio.create_task(_everything(stream))
        await _until(lambda: bool(stream.hellos))
        await _until(lambda: not stream._order.awaited >= {os.getpid()})
        await stream.close()
        readings = await taken

    notes = [each for each in readings if isinstance(each, Note)]
    assert [int(note.text) for note in notes] == past


async def test_two_watchers_do_not_disturb_each_other(channel: Channel) -> None:
    past = emit(channel, range(100))

    async with watching() as first:
        await first.until(past)
        async with watching() as second:
            await second.until(past)
            past += emit(channel, range(100, 200))
            await second.until(past)
        await first.until(past)


async def test_without_backfill_only_the_new_and_what_still_holds(
    channel: Channel,
) -> None:
    channel.put(_kept, channel, 7)
    emit(channel, range(100))
    async with watching() as watcher:
        await watcher.until([7, *range(100)])

    async with watching(backfill=False) as watcher:
        await watcher.until([7])
        await watcher.until([7, *emit(channel, range(100, 110))])


async def test_a_big_ring_comes_in_pieces(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "RECORDS_AT_ONCE", 10)
    monkeypatch.setattr(channel_module, "PIECE_ENVELOPES", 7)
    past = emit(channel, range(1000))

    async with watching() as watcher:
        await watcher.until(past)

    assert watcher.lost == 0


async def test_a_ring_of_no_bytes_keeps_nothing(herald: PatientOwner) -> None:
    channel = open_channel(herald, ring_bytes=0)
    emit(channel, range(100))
    await _until(lambda: not channel._records)

    async with watching() as watcher:
        watched = asyncio.create_task(watcher.until([100]))
        await _until(lambda: bool(watcher.stream.hellos))
        emit(channel, range(100, 101))
        await watched

    channel.close()


async def test_too_many_records_are_dropped_and_counted(
    herald: PatientOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "MOST_RECORDS", 5)
    monkeypatch.setattr(channel_module, "FLUSH_S", 0.2)
    channel = open_channel(herald)

    async with watching() as watcher:
        watched = asyncio.create_task(watcher.until_accounted(1000))
        await _until(lambda: bool(watcher.stream.hellos))
        emit(channel, range(1000))
        await watched

    channel.close()
    assert watcher.lost > 0
    assert watcher.numbers[-5:] == [995, 996, 997, 998, 999]


async def test_a_record_that_cannot_be_read_hurts_no_other(
    channel: Channel, herald: PatientOwner
) -> None:
    async with watching() as watcher:
        channel.put(_broken)
        await watcher.until(emit(channel, range(1)))

    assert [str(error) for error in herald.errors] == ["broken"]


@pytest.mark.parametrize("message", [b"", b"\2", b"\xff" * 9])
async def test_what_is_no_subscription_silences_nobody(
    channel: Channel, herald: PatientOwner, message: bytes
) -> None:
    with zmq.Context() as context, context.socket(zmq.XSUB) as stranger:
        stranger.linger = 0
        stranger.connect(f"ipc://{channel.path}")
        stranger.send(message)
        stranger.send(b"\1live")
        await _until(lambda: channel.watched)  # all of it was heard
        async with watching() as watcher:
            await watcher.until(emit(channel, range(3)))

    assert herald.errors == []
    assert herald.reports == []


async def test_a_fault_of_the_sender_is_said_and_it_goes_on(
    channel: Channel, herald: PatientOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [OSError("no room"), OSError("no room")]
    real = channel._send_pieces

    def send() -> None:
        if faults:
            raise faults.pop()
        real()

    monkeypatch.setattr(channel, "_send_pieces", send)
    async with watching() as watcher:
        await watcher.until(emit(channel, range(3)))

    (said,) = herald.reports
    assert said == "telling viewers failed and goes on: OSError('no room')"
    assert herald.errors == []


async def test_a_sender_that_only_fails_gives_up_and_says_so(
    channel: Channel, herald: PatientOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "MOST_FAULTS", 3)

    def fail() -> None:
        raise OSError("gone")

    monkeypatch.setattr(channel, "_listen", fail)
    await _until(lambda: bool(herald.errors))

    assert len(herald.reports) == 1
    assert [str(error) for error in herald.errors] == ["gone"]


@pytest.mark.parametrize("off_s", [1_000_000, -1_000_000_000])
async def test_what_happened_at_no_time_that_can_be_is_a_loss(
    channel: Channel, off_s: int
) -> None:
    then_ns = monotonic_ns() + off_s * 10**9

    async with watching() as watcher:
        channel.put(lambda: [Totals(t_ns=then_ns), *note(0)])
        await watcher.until([0])

    assert Totals(t_ns=then_ns) not in watcher.readings
    assert not [each for each in watcher.readings if isinstance(each, Totals)]
    assert watcher.texts(NoteKind.DROPPED) == [
        "1 readings of e are of times that cannot be"
    ]


async def test_a_fault_in_listening_is_said_and_loses_nothing(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_stream, "AGAIN_S", 0.0)
    real, heard = Reception.hear, []

    def hear(reception: Reception, frames: list[bytes]) -> list[ProbeMessage]:
        heard.append(frames)
        if len(heard) == 4:
            raise IndexError("a frame too few")
        return real(reception, frames)

    monkeypatch.setattr(Reception, "hear", hear)
    async with watching() as watcher:
        for number in range(6):
            emit(channel, range(number, number + 1))
            await watcher.until(list(range(number + 1)))

    (said,) = watcher.texts(NoteKind.PROBE)
    assert "begins anew: IndexError: a frame too few" in said
    assert watcher.numbers == list(range(6))


async def test_a_process_that_lives_and_says_nothing_is_noted(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching() as watcher:
        await watcher.until(emit(channel, range(1)))
        monkeypatch.setattr(probe_stream, "SILENT_NS", 200_000_000)
        with monkeypatch.context() as mute:
            mute.setattr(channel, "_publish", lambda _: None)
            await watcher.until_noted("has told nothing")
        await watcher.until_noted("is heard again")


def test_a_slow_subscriber_loses_and_the_next_message_says_so(
    herald: PatientOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "SEND_HIGH_WATER", 2)
    monkeypatch.setattr(channel_module, "RECORDS_AT_ONCE", 1)
    channel = open_channel(herald)
    reception, got = Reception(backfill=False), 0
    with zmq.Context() as context, context.socket(zmq.SUB) as slow:
        slow.setsockopt(zmq.RCVHWM, 2)
        slow.connect(f"ipc://{channel.path}")
        for topic in reception.topics:
            slow.subscribe(topic)
        reception.hear(slow.recv_multipart())

        emit(channel, range(20_000))  # and nobody reads

        lost = 0
        deadline_s = time.monotonic() + DEADLINE_S
        while got + lost < 20_000:
            assert time.monotonic() < deadline_s
            if slow.poll(100):
                passages = reception.hear(slow.recv_multipart())
                notes = [each for passage in passages for each in passage.readings()]
                got += sum(isinstance(n, Note) and n.count is None for n in notes)
                lost += sum(n.count or 0 for n in notes if isinstance(n, Note))
    channel.close()

    assert lost > 0
    assert got + lost == 20_000


async def test_a_dead_process_is_lost_after_all_it_said(tmp_path: Path) -> None:
    program = [sys.executable, __file__, "50", "0"]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as probe:
        async with watching() as watcher:
            await watcher.until(list(range(50)))
            assert [h.pid for h in watcher.stream.hellos.values()] == [probe.pid]

            probe.kill()

            with pytest.raises(SourceLostError, match=str(probe.pid)):
                await watcher.until_lost()


async def test_no_newcomer_is_let_in_while_descriptors_run_out(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching() as watcher:
        await watcher.until(emit(channel, range(10)))
        now, high = resource.getrlimit(resource.RLIMIT_NOFILE)
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 2, high))
            await _until(lambda: not channel.path.exists())
            await watcher.until([*range(10), *emit(channel, range(10, 20))])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (now, high))
            for each in held:
                os.close(each)
        await _until(channel.path.exists)

    async with watching() as late:
        await late.until(list(range(20)))


def _kept(channel: Channel, number: int) -> list[AnyReading]:
    reading = note_of(number)
    channel.keep("key", reading)
    return [reading]


def _broken() -> list[AnyReading]:
    raise LookupError("broken")


@contextmanager
def mute() -> Iterator[int]:
    """A process of the engine that says nothing, such as one that was stopped."""
    program = (
        "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind("
        "sys.argv[1].format(__import__('os').getpid())); s.listen(); time.sleep(60)"
    )
    path = str(socket_path("e", 1)).replace(".1.sock", ".{}.sock")
    with subprocess.Popen([sys.executable, "-c", program, path]) as process:
        deadline_s = time.monotonic() + DEADLINE_S
        while not socket_path("e", process.pid).is_socket():
            assert time.monotonic() < deadline_s
        yield process.pid
        process.kill()


async def _everything(stream: ProbeStream) -> list[AnyReading]:
    return [each async for batch in stream.batches() for each in batch]


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110 - another thread makes it hold
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    main()
