import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import zmq

from collectors.contract.clock import SessionClock
from collectors.contract.collector import WireVersionError
from collectors.contract.readings import AnyReading, LoadEvent, LoadKind, Note, NoteKind
from collectors.contract.wire import EnvelopePacker
from collectors.load.load_stream import LoadStream

START_NS = 1_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "load"


@pytest.fixture
async def stream(path: Path) -> LoadStream:
    return LoadStream(SessionClock(START_NS), "run", path)


@contextmanager
def pushing(path: Path) -> Iterator["zmq.Socket[bytes]"]:
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.linger = 1_000
        socket.connect(f"ipc://{path}")
        yield socket


def event(t_ns: int) -> LoadEvent:
    return LoadEvent(t_ns=t_ns, kind=LoadKind.RATE, rate_per_s=3.5)


async def take(stream: LoadStream, count: int) -> list[AnyReading]:
    """The first readings, then the end."""
    taken: list[AnyReading] = []
    async with asyncio.timeout(30):
        async for batch in stream.batches():
            taken.extend(batch)
            if len(taken) >= count:
                break
    await stream.close()
    return taken


async def test_readings_come_in_session_time_with_the_run_as_source(
    stream: LoadStream, path: Path
) -> None:
    with pushing(path) as socket:
        socket.send(EnvelopePacker("whoever").pack([event(START_NS + 5)]))

        taken = await take(stream, 1)

    assert taken == [msgspec.structs.replace(event(5), source="run")]


@pytest.mark.parametrize("message", [b"", b"\xc1" * 9, b"\x80"])
async def test_what_no_generator_says_ends_nothing(
    stream: LoadStream, path: Path, message: bytes
) -> None:
    with pushing(path) as socket:
        socket.send(message)
        socket.send(EnvelopePacker("run").pack([event(START_NS + 5)]))

        note, last = await take(stream, 2)

    assert isinstance(note, Note)
    assert "something came that no load generator says" in note.text
    assert last == msgspec.structs.replace(event(5), source="run")


async def test_what_has_come_is_given_out_before_the_end(
    stream: LoadStream, path: Path
) -> None:
    with pushing(path) as socket:
        sender = EnvelopePacker("run")
        for t_ns in range(100):
            socket.send(sender.pack([event(START_NS + t_ns)]))

        taken: list[int] = []
        reading = asyncio.create_task(read(stream, taken))
        await asyncio.sleep(0)
        await asyncio.wait_for(stream.close(), 30)
        await reading

    assert taken == list(range(100))


async def read(stream: LoadStream, into: list[int]) -> None:
    async for batch in stream.batches():
        into.extend(each.t_ns for each in batch if isinstance(each, LoadEvent))


async def test_a_lost_message_is_counted_in_readings(
    stream: LoadStream, path: Path
) -> None:
    sender = EnvelopePacker("run")
    sender.pack([event(1), event(2)])
    with pushing(path) as socket:
        socket.send(sender.pack([event(3)]))

        taken = await take(stream, 2)

    note = taken[-1]
    assert isinstance(note, Note)
    assert (note.kind, note.count, note.source) == (NoteKind.DROPPED, 2, "run")


async def test_nothing_lost_is_nothing_said(stream: LoadStream, path: Path) -> None:
    sender = EnvelopePacker("run")
    with pushing(path) as socket:
        for _ in range(3):
            socket.send(sender.pack([event(1)]))

        taken = await take(stream, 3)

    assert not [each for each in taken if isinstance(each, Note)]


async def test_another_major_version_is_refused(stream: LoadStream, path: Path) -> None:
    newer = msgspec.msgpack.decode(EnvelopePacker("run").pack([])) | {"v": 2}
    with pushing(path) as socket:
        socket.send(msgspec.msgpack.encode(newer))

        with pytest.raises(WireVersionError):
            await take(stream, 1)
    await stream.close()


async def test_it_binds_in_the_private_directory_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path))

    stream = LoadStream(SessionClock(), "run")

    assert stream.address == f"ipc://{tmp_path}/run.{os.getpid()}.load"
    await stream.close()


async def test_closing_removes_the_socket_and_may_be_repeated(
    stream: LoadStream, path: Path
) -> None:
    assert path.exists()

    await stream.close()
    await stream.close()

    assert not path.exists()


async def test_sockets_of_the_dead_are_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path))
    dead, living = tmp_path / "a.4194305.load", tmp_path / f"b.{os.getppid()}.load"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(dead))  # its file stays when it is closed
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(str(living))
        held.listen()

        stream = LoadStream(SessionClock(), "run")

        assert not dead.exists()
        assert living.exists()
        await stream.close()
