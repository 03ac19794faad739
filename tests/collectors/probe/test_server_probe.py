"""Following the probe of a server that somebody else started, over real sockets.

Run as a program this file is such a server: it listens, has a probe, and tells numbers.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from msgspec.msgpack import encode as msgpack

from collectors.contract import runtime_dir
from collectors.contract.clock import SessionClock, monotonic_ns
from collectors.contract.readings import (
    AnyReading,
    ClockAnchor,
    Contact,
    Endpoint,
    Note,
    NoteKind,
    Step,
)
from collectors.contract.runtime_dir import socket_path
from collectors.http.server import Server
from collectors.probe import discover, server_probe
from collectors.probe import stream as probe_stream
from collectors.probe.discover import AmbiguousProbeError, probe_at
from collectors.probe.hello import AGENT, FRONTED, RING, Role
from collectors.probe.keys import ViewerKeys, add_viewer
from collectors.probe.server_probe import ServerProbe
from embedded_engine.publishing.channel import Channel
from embedded_engine.publishing.relay import KEY_VARIABLE, Relay, relay_probes
from tests.embedded_engine.channel_owners import SilentOwner

pytestmark = pytest.mark.process

DEADLINE_S = 60.0
CONTAINED = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
ELSEWHERE = "http://192.0.2.1:8000"


class ScriptedServer(SilentOwner):
    """An API server with nothing to report but what its channel is given."""

    role = Role.API


def main() -> None:
    engine_id, descriptor, begin, end = sys.argv[1], *map(int, sys.argv[2:5])
    listener = socket.socket(fileno=descriptor)
    listener.listen()
    path = socket_path(engine_id, os.getpid())
    channel = Channel(path, engine_id, ScriptedServer(), 1 << 24)
    channel.open()
    tell(channel, range(begin, end))
    for line in sys.stdin:
        begin, end = map(int, line.split())
        tell(channel, range(begin, end))


def tell(channel: Channel, numbers: range) -> None:
    for number in numbers:
        channel.put(_bookmark, number)


def _bookmark(number: int) -> list[AnyReading]:
    if number:
        return [Note(t_ns=monotonic_ns(), kind=NoteKind.BOOKMARK, text=str(number))]
    long_ago = monotonic_ns() - 90_000_000_000
    return [Step(index=0, start_ns=long_ago, end_ns=long_ago + 1, duration_ns=1)]


@dataclass
class Port:
    """A port of this host, and its socket for one server after the other."""

    socket: socket.socket

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    @contextmanager
    def serving(
        self, engine_id: str, numbers: range, *prefix: str
    ) -> Iterator[subprocess.Popen[str]]:
        descriptor = self.socket.fileno()
        bounds = map(str, (descriptor, numbers.start, numbers.stop))
        with subprocess.Popen(
            [*prefix, sys.executable, __file__, engine_id, *bounds],
            stdin=subprocess.PIPE,
            pass_fds=[descriptor],
            text=True,
        ) as process:
            yield process
            process.kill()


@pytest.fixture(autouse=True)
def quickly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(server_probe, "LOOK_AGAIN_S", 0.05)
    monkeypatch.setattr(discover, "BELIEVED_NS", 0)


@pytest.fixture
def port() -> Iterator[Port]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield Port(bound)


class Watcher:
    """Collects what a server's probe tells."""

    def __init__(self, probe: ServerProbe) -> None:
        self.probe = probe
        self.readings: list[AnyReading] = []

    async def watch(self) -> None:
        async for batch in self.probe.batches():
            self.readings += batch

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():  # noqa: ASYNC110 - the task beside makes it hold
                await asyncio.sleep(0.01)

    async def until_numbers(self, numbers: range) -> None:
        await self.until(lambda: len(self.numbers) >= len(numbers))
        assert self.numbers == list(numbers)

    @property
    def numbers(self) -> list[int]:
        return [int(text) for text in self.notes(NoteKind.BOOKMARK)]

    def notes(self, kind: NoteKind) -> list[str]:
        notes = [each for each in self.readings if isinstance(each, Note)]
        return [note.text for note in notes if note.kind is kind]


@asynccontextmanager
async def watching(url: str, **how: Any) -> AsyncIterator[Watcher]:
    probe = ServerProbe(SessionClock(), Server(url=url, name="mine", **how))
    watcher = Watcher(probe)
    watch = asyncio.create_task(watcher.watch())
    try:
        yield watcher
    finally:
        await probe.close()
        await watch


async def until_found(url: str) -> str:
    async with asyncio.timeout(DEADLINE_S):
        while (found := await asyncio.to_thread(probe_at, url)) is None:
            pass  # each look waits for answers
    return found.engine_id


async def until_both(url: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            await asyncio.to_thread(probe_at, url)


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:1", "tcp://192.0.2.1:1"])
def test_without_keys_only_this_host_may_listen(address: str) -> None:
    said: list[str] = []
    relay_probes(address, "one", said.append).start()

    assert "any address but a loopback one needs keys" in said[0]


async def test_the_probe_is_that_of_the_server_that_listens_there(port: Port) -> None:
    with socket.socket() as other_port:
        other_port.bind(("127.0.0.1", 0))
        with port.serving("one", range(0)), Port(other_port).serving("two", range(0)):
            assert await until_found(port.url) == "one"
            assert await until_found(Port(other_port).url) == "two"
            assert await asyncio.to_thread(probe_at, "http://127.0.0.1:9") is None
            assert await asyncio.to_thread(probe_at, "http://192.0.2.1:80") is None


async def test_what_has_no_address_is_watched_by_the_id_of_its_probe(
    port: Port,
) -> None:
    def answered(watcher: Watcher) -> list[bool]:
        return [each.answers for each in watcher.readings if isinstance(each, Contact)]

    nowhere = {"probe": "app", "only_probe": True}
    async with watching("http://localhost", **nowhere) as watcher:
        await watcher.until(lambda: answered(watcher) == [False])
        with port.serving("app", range(0)):
            await watcher.until(lambda: answered(watcher) == [False, True])
        await watcher.until(lambda: answered(watcher) == [False, True, False])

    assert not [each for each in watcher.readings if isinstance(each, Endpoint)]


async def test_probes_of_two_servers_at_one_address_are_not_guessed_between(
    port: Port,
) -> None:
    with port.serving("one", range(0)), port.serving("two", range(1, 3)):
        with pytest.raises(AmbiguousProbeError, match="--probe one or --probe two"):
            await until_both(port.url)
        async with watching(port.url, probe="two") as watcher:
            await watcher.until_numbers(range(1, 3))


@pytest.mark.parametrize("url", [ELSEWHERE, f"http://{'x' * 70}.example"])
async def test_nobody_looks_here_for_what_is_elsewhere(url: str) -> None:
    probe = ServerProbe(SessionClock(), Server(url=url))
    async with asyncio.timeout(DEADLINE_S):
        assert [batch async for batch in probe.batches()] == []
    assert not probe.is_awaited


async def test_many_who_look_ask_a_probe_once(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    real = discover._asked

    def counted(found: dict[Any, Any]) -> Iterator[Any]:
        asked.extend(found)
        return real(found)

    monkeypatch.setattr(discover, "_asked", counted)
    with port.serving("one", range(0)):
        assert await until_found(port.url) == "one"
        monkeypatch.setattr(discover, "BELIEVED_NS", 60_000_000_000)
        before = len(asked)
        looks = [asyncio.to_thread(probe_at, port.url) for _ in range(20)]
        found = await asyncio.gather(*looks)

    assert {each.engine_id for each in found if each} == {"one"}
    assert len(asked) <= before + 1


async def test_a_restart_is_another_life_under_the_same_name(port: Port) -> None:
    async with watching(port.url) as watcher:
        with port.serving("one", range(1, 100)) as first:
            await watcher.until_numbers(range(1, 100))
            assert watcher.probe.processes() == [(first.pid, "api")]
        await watcher.until(lambda: bool(watcher.notes(NoteKind.LOST)))
        with port.serving("two", range(100, 200)):
            await watcher.until_numbers(range(1, 200))

    assert watcher.notes(NoteKind.LOST) == [
        f"API server (pid {first.pid}) of one is gone"
    ]
    assert {each.source for each in watcher.readings} == {"mine"}


async def test_a_server_in_a_container_is_known_by_the_pid_it_has_here(
    port: Port,
) -> None:
    if not shutil.which(CONTAINED[0]) or subprocess.call([*CONTAINED, "true"]):
        pytest.skip("needs the right to make a container's process namespace")
    async with watching(port.url) as watcher:
        with port.serving("one", range(1, 9), *CONTAINED) as container:
            await watcher.until_numbers(range(1, 9))
            (server,) = psutil.Process(container.pid).children()
            assert watcher.probe.processes() == [(server.pid, "api")]
            assert [hello.pid for hello in watcher.probe.hellos.values()] == [1]
        await watcher.until(lambda: bool(watcher.notes(NoteKind.LOST)))


async def test_who_comes_late_is_told_how_much_was_before(port: Port) -> None:
    with port.serving("one", range(10)):
        async with watching(port.url) as watcher:
            await watcher.until_numbers(range(1, 10))
            await watcher.until(lambda: bool(watcher.notes(NoteKind.PROBE)))

    assert watcher.notes(NoteKind.PROBE) == [
        "the 1 min 30 s before this are from the probe's own memory"
    ]


async def test_any_number_of_viewers_hear_all(port: Port) -> None:
    with port.serving("one", range(1, 50)) as server:
        async with watching(port.url) as first, watching(port.url) as second:
            await first.until_numbers(range(1, 50))
            async with watching(port.url) as third:
                print("50 80", file=server.stdin, flush=True)
                for each in (first, second, third):
                    await each.until_numbers(range(1, 80))


async def test_one_that_is_silent_for_a_while_goes_on_where_it_was(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_dir, "listener", lambda _: 0)  # as in a container
    monkeypatch.setattr(probe_stream, "SILENT_NS", 1_500_000_000)
    with port.serving("one", range(1, 50)) as server:
        async with watching(port.url) as watcher:
            await watcher.until_numbers(range(1, 50))
            assert watcher.probe.processes() == []
            server.send_signal(signal.SIGSTOP)
            print("50 80", file=server.stdin, flush=True)
            await watcher.until(lambda: bool(watcher.notes(NoteKind.PROBE)))
            server.send_signal(signal.SIGCONT)
            await watcher.until_numbers(range(1, 80))

    assert watcher.notes(NoteKind.LOST) == []
    assert watcher.notes(NoteKind.DROPPED) == []


@contextmanager
def relay(address: str = "", engine_id: str = "one") -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = address or f"tcp://127.0.0.1:{free.getsockname()[1]}"
    said: list[str] = []
    relay = relay_probes(address, engine_id, said.append)
    relay.start()
    yield address
    relay.stop()
    assert said == []


async def test_one_port_tells_of_all_processes_of_a_server(port: Port) -> None:
    with port.serving("one", range(1, 50)) as first, relay() as address:
        async with watching(ELSEWHERE, probe=address) as early:
            await early.until_numbers(range(1, 50))
            with port.serving("one", range(50, 80)):
                await early.until_numbers(range(1, 80))
                async with watching(ELSEWHERE, probe=address) as late:
                    await late.until_numbers(range(1, 80))
                    print("80 100", file=first.stdin, flush=True)
                    for each in (early, late):
                        await each.until_numbers(range(1, 100))
                        assert len(each.probe.hellos) == 2
                        assert each.probe.processes() == []


@contextmanager
def agent_before_all(tmp_path: Path) -> Iterator[str]:
    """An agent that passes on the probes of all servers here."""
    place = tmp_path / "agent.sock"
    agent = Channel(place, "gpu1", ScriptedServer(), 1 << 20, AGENT)
    agent.open()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"

    def sockets() -> list[Path]:
        return [place, *(each.path for each in runtime_dir.probe_sockets())]

    said: list[str] = []
    relay = Relay(address, sockets, said.append, prefix=FRONTED)
    relay.start()
    yield address
    relay.stop()
    agent.close()
    assert said == []


async def test_of_all_probes_that_an_agent_passes_on_that_of_the_server_is_heard(
    port: Port, tmp_path: Path
) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        other, number = Port(bound), port.url.rpartition(":")[2]
        one, two = (
            port.serving("one", range(1, 30)),
            other.serving("two", range(30, 60)),
        )
        with one, two, agent_before_all(tmp_path) as address:
            far = f"http://192.0.2.1:{number}"
            async with watching(far, probe=address) as watcher:
                await watcher.until_numbers(range(1, 30))
                assert len(watcher.probe.hellos) == 1
            by_name = watching(ELSEWHERE, probe=f"{address}/two")
            async with by_name as watcher:
                await watcher.until_numbers(range(30, 60))
            async with watching(ELSEWHERE, probe=address) as watcher:
                await watcher.until(lambda: bool(watcher.notes(NoteKind.PROBE)))
                assert watcher.numbers == []
            (said,) = watcher.notes(NoteKind.PROBE)
            assert f"passed on at {address} (there is: one, two)" in said


async def test_a_line_that_was_down_loses_nothing(port: Port) -> None:
    with port.serving("one", range(1, 50)) as server:
        with relay() as address:
            watch = watching(ELSEWHERE, probe=address)
            watcher = await watch.__aenter__()
            await watcher.until_numbers(range(1, 50))
        print("50 80", file=server.stdin, flush=True)
        with relay(address):
            await watcher.until_numbers(range(1, 80))
            await watch.__aexit__(None, None, None)

    assert watcher.notes(NoteKind.LOST) == watcher.notes(NoteKind.DROPPED) == []


async def test_who_comes_back_before_he_was_missed_loses_nothing(port: Port) -> None:
    topic = RING + b"0"
    with port.serving("one", range(1, 9)), zmq.Context() as context:
        assert await until_found(port.url) == "one"
        (found,) = runtime_dir.probe_sockets("one")
        answers = []
        callers = [context.socket(zmq.SUB) for _ in range(2)]
        for caller in callers:  # the first one's line is dead, and nobody knows
            caller.connect(f"ipc://{found.path}")
            caller.subscribe(topic)
            assert await asyncio.to_thread(caller.poll, 5_000)
            answers.append(caller.recv_multipart())
            caller.linger = 0
        for caller in callers:
            caller.close()

    assert [answer[0] for answer in answers] == [topic, topic]


async def test_times_of_another_host_are_told_within_bounds(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    with port.serving("one", range(1, 2)), relay() as address:
        monkeypatch.setattr(probe_stream, "boot_id", lambda: "of another host")
        async with watching(ELSEWHERE, probe=address) as watcher:
            await watcher.until_numbers(range(1, 2))

    (told,) = [each for each in watcher.readings if isinstance(each, ClockAnchor)]
    assert 0 < told.uncertainty_ns < 10_000_000_000
    (number,) = [each for each in watcher.readings if isinstance(each, Note)]
    assert abs(number.t_ns) < 10_000_000_000


async def test_who_has_no_key_is_not_let_in(
    port: Port, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, his = add_viewer(tmp_path / "keys", "alice")
    _, stranger = add_viewer(tmp_path / "other", "mallory")
    trusted, text = ViewerKeys.read(his).probe, stranger.read_text()
    stranger.write_text(text.replace(ViewerKeys.read(stranger).probe, trusted))
    monkeypatch.setenv(KEY_VARIABLE, str(ours))
    with port.serving("one", range(1, 9)), relay() as address:
        for key, why in ((None, "without a key"), (stranger, "refuses our key")):
            async with watching(ELSEWHERE, probe=address, probe_key=key) as watcher:
                await watcher.until(
                    lambda why=why: any(  # type: ignore[misc]
                        why in note for note in watcher.notes(NoteKind.PROBE)
                    )
                )
            assert watcher.numbers == []
        async with watching(ELSEWHERE, probe=address, probe_key=his) as watcher:
            await watcher.until_numbers(range(1, 9))
        _, new = add_viewer(tmp_path / "keys", "bob")
        async with watching(ELSEWHERE, probe=address, probe_key=new) as watcher:
            await watcher.until_numbers(range(1, 9))


@pytest.mark.parametrize(
    "frames", [[b""], [b"\xc1" * 9], [b"\x80"], [msgpack({"stream": "s", "pid": 1})]]
)
async def test_what_is_no_probe_is_told_and_harms_nobody(frames: list[bytes]) -> None:
    with zmq.Context() as context, context.socket(zmq.XPUB) as liar:
        number = liar.bind_to_random_port("tcp://127.0.0.1")
        async with watching(ELSEWHERE, probe=f"tcp://127.0.0.1:{number}") as watcher:
            topic = b""
            while not topic.startswith(RING):
                while not liar.poll(0):  # noqa: ASYNC110 - it comes from outside
                    await asyncio.sleep(0.01)
                topic = liar.recv()[1:]
            liar.send_multipart([topic, *frames])
            await watcher.until(lambda: bool(watcher.notes(NoteKind.PROBE)))

    assert not watcher.numbers


@pytest.mark.parametrize("frames", [[], [b"\xc1" * 9]])
async def test_a_socket_beside_a_probe_that_is_none_keeps_nobody_from_it(
    port: Port, frames: list[bytes]
) -> None:
    with zmq.Context() as context, context.socket(zmq.XPUB) as liar:
        liar.bind(f"ipc://{socket_path('liar', os.getpid())}")

        def answer() -> None:
            while liar.poll(5_000):
                if (request := liar.recv())[:1] == b"\1":
                    liar.send_multipart([request[1:], *frames])
                    return

        with port.serving("one", range(0)):
            lying = asyncio.create_task(asyncio.to_thread(answer))
            assert await until_found(port.url) == "one"
            await lying


def test_an_address_may_be_anything() -> None:
    for odd in ("\0", "x" * 10_000, "\ud800"):
        assert not discover._is_at(odd, 8000, set(), "/run/vllm.sock")


async def test_one_that_comes_back_as_another_was_restarted_unseen(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_dir, "listener", lambda _: 0)
    monkeypatch.setattr(probe_stream, "SILENT_NS", 1_500_000_000)
    async with watching(port.url) as watcher:
        with port.serving("one", range(1, 50)):
            await watcher.until_numbers(range(1, 50))
        with port.serving("two", range(50, 60)):
            await watcher.until_numbers(range(1, 60))

    assert watcher.notes(NoteKind.LOST) == ["its processes were started anew"]


if __name__ == "__main__":
    main()
