"""A relay goes on after what goes wrong in it, and no viewer can make it grow."""

import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import zmq

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import Note, NoteKind
from collectors.probe.hello import HELLO, LIVE, RING
from embedded_engine.publishing import channel as channel_module
from embedded_engine.publishing import relay as relay_module
from embedded_engine.publishing import viewer as viewer_module
from embedded_engine.publishing.channel import Channel
from embedded_engine.publishing.relay import Relay, _listening
from embedded_engine.publishing.viewer import Viewer
from tests.embedded_engine.channel_owners import SilentOwner

MB = 1_000_000
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(52, b"\0")
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def test_a_relay_listens_again_after_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "BIND_AGAIN_S", 0.01)
    faults, said = [OSError("no room"), OSError("no room")], list[str]()
    real = Relay._relay

    def fail_at_first(relay: Relay, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        if faults:
            raise faults.pop()
        real(relay, context)

    monkeypatch.setattr(Relay, "_relay", fail_at_first)
    address = f"tcp://127.0.0.1:{free_port()}"
    relay = Relay(address, lambda: [tmp_path / "probe.sock"], said.append)
    relay.start()
    try:
        assert relay.listening.wait(10)
    finally:
        relay.stop()

    assert said == [f"the probe at {address} lets nobody listen for now: no room"]


class Engine(SilentOwner):
    """Has a past, of so many notes of 100 KB each."""

    def __init__(self, path: Path, notes: int) -> None:
        self.channel = Channel(path, "e", self, 100 * MB)
        self.channel.open()
        text = "x" * 100_000
        for number in range(notes):
            note = Note(t_ns=monotonic_ns() + number, kind=NoteKind.STAGE, text=text)
            self.channel.put(lambda note=note: [note])
            if number % 5 == 4:
                time.sleep(0.001)
        wait_for(lambda: self.channel._ring.used_bytes >= notes * 100_000)


def wait_for(condition: object) -> None:
    until_s = time.monotonic() + 20
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until_s
        time.sleep(0.01)


@dataclass
class Place:
    """A relay of an engine, and what it reported."""

    port: int
    engine: Engine
    said: list[str] = field(default_factory=list)

    def stranger(self) -> socket.socket:
        """A connection that speaks as ZeroMQ does, and reads nothing more."""
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.sendall(GREETING + framed(READY, kind=4))
        heard = connection.recv(200)
        while heard and b"XPUB" not in heard:
            heard += connection.recv(200)
        return connection


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path))


def framed(content: bytes, kind: int = 0) -> bytes:
    return bytes([kind, len(content)]) + content


def subscription(topic: bytes) -> bytes:
    return framed(b"\1" + topic)


@contextmanager
def relaying(tmp_path: Path, notes: int = 0) -> Iterator[Place]:
    path = tmp_path / "probe.sock"
    place = Place(free_port(), Engine(path, notes))
    relay = Relay(f"tcp://127.0.0.1:{place.port}", lambda: [path], place.said.append)
    relay.start()
    assert relay.listening.wait(10)
    try:
        yield place
    finally:
        relay.stop()
        place.engine.channel.close()


def grown_mb(before: int = 0) -> float:
    return (psutil.Process().memory_info().rss - before) / MB


def past_of(place: Place, topic: bytes, notes: int) -> list[list[bytes]]:
    """What a viewer hears that reads, up to the last note of the past."""
    heard, size = list[list[bytes]](), 0
    with zmq.Context() as context, context.socket(zmq.SUB) as viewer:
        viewer.connect(f"tcp://127.0.0.1:{place.port}")
        viewer.subscribe(LIVE)
        viewer.subscribe(topic)
        until_s = time.monotonic() + 20
        while size < notes * 100_000:
            assert viewer.poll(20_000)
            assert time.monotonic() < until_s
            frames = viewer.recv_multipart()
            if frames[0] == topic:
                size += sum(map(len, frames[1:])) if heard else 0
                heard.append(frames)
    return heard


def test_who_asks_for_the_past_and_does_not_read_makes_nothing_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "MOST_WAITING_BYTES", 24 * MB, raising=False)
    monkeypatch.setattr(relay_module, "ANSWERED_BYTES", 4 * MB, raising=False)
    monkeypatch.setattr(viewer_module, "STALLED_NS", 2_000 * MB)
    with relaying(tmp_path, notes=100) as place, place.stranger() as stranger:
        before = psutil.Process().memory_info().rss
        stranger.sendall(subscription(LIVE))
        for number in range(15):
            stranger.sendall(subscription(RING + str(number).encode()))
        wait_for(lambda: place.engine.channel.newcomers >= 1)
        time.sleep(1.5)  # for as much as would come
        grown = grown_mb(before)
        heard = past_of(place, RING + b"good", 100)

    assert grown < 90  # 15 times 10 MB are asked for
    assert heard


@pytest.mark.parametrize(("asked", "most_mb"), [(RING, 64), (HELLO, 16)])
def test_who_reads_slowly_keeps_no_newcomer_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bytes, most_mb: int
) -> None:
    monkeypatch.setattr(channel_module, "RECORDS_AT_ONCE", 1)  # in many messages
    monkeypatch.setattr(relay_module, "MOST_WAITING_BYTES", most_mb * MB)
    monkeypatch.setattr(relay_module, "ANSWERED_BYTES", 4 * MB)
    with relaying(tmp_path, notes=100) as place, place.stranger() as slow:
        slow.sendall(subscription(RING + b"slow"))
        wait_for(lambda: place.engine.channel.newcomers == 1)
        with zmq.Context() as context, context.socket(zmq.SUB) as newcomer:
            newcomer.connect(f"tcp://127.0.0.1:{place.port}")
            newcomer.subscribe(asked + b"good")
            assert newcomer.poll(4_000)  # long before the other is let go
    assert place.said == []


def test_what_is_asked_twice_is_given_back_with_its_viewer(tmp_path: Path) -> None:
    with relaying(tmp_path) as place:
        with place.stranger() as stranger:
            stranger.sendall(subscription(LIVE) * 2)
            wait_for(lambda: place.engine.channel.watched)
        wait_for(lambda: not place.engine.channel.watched)


def test_topics_without_end_make_nothing_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with relaying(tmp_path) as place, place.stranger() as stranger:
        before = psutil.Process().memory_info().rss
        stranger.settimeout(0.5)
        try:
            for number in range(60):
                names = (RING + b"%d.%d" % (number, each) for each in range(1_000))
                stranger.sendall(b"".join(subscription(n.ljust(200)) for n in names))
        except OSError:
            pass  # it is not listened to any longer
        time.sleep(0.5)
        grown = grown_mb(before)
        assert place.engine.channel.newcomers <= viewer_module.MOST_TOPICS
    assert grown < 30
    assert place.said == []


def test_so_many_viewers_are_let_in_and_others_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "MOST_VIEWERS", 2, raising=False)
    with relaying(tmp_path) as place, ExitStack() as closing:
        for _ in range(2):
            closing.enter_context(place.stranger())
        turned_away = socket.create_connection(("127.0.0.1", place.port))
        closing.enter_context(turned_away)
        assert turned_away.recv(1) == b""
        wait_for(lambda: place.said)
        (said,) = place.said
    assert "lets in 2 viewers" in said


def test_who_takes_nothing_or_asks_for_nothing_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer_module, "STALLED_NS", 100 * MB)
    with relaying(tmp_path, notes=100) as place:
        silent, deaf = place.stranger(), place.stranger()
        deaf.sendall(subscription(RING + b"0"))
        for each in (silent, deaf):
            each.settimeout(20)
            wait_for(lambda each=each: is_gone(each))
            each.close()
        assert past_of(place, RING + b"good", 100)


def is_gone(connection: socket.socket) -> bool:
    """It takes no more of what we say."""
    try:
        connection.sendall(b"\0")
    except OSError:
        return True
    return False


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 on this host")
def test_who_listens_at_all_addresses_is_reached_by_either_kind() -> None:
    port = free_port()
    with _listening(f"tcp://[::]:{port}"):
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port)).close()


def test_zeromq_is_gone_before_the_connection_to_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    was_gone, close = list[bool](), socket.socket.close
    with zmq.Context() as context, theirs:
        viewer = Viewer(ours, context, lambda _: None)
        end = select.poll()
        end.register(viewer._inside, select.POLLRDHUP)

        def look(one: socket.socket) -> None:
            if one is viewer._inside:
                was_gone.append(bool(end.poll(0)))
            close(one)

        monkeypatch.setattr(socket.socket, "close", look)
        viewer.close()
    assert was_gone == [True]


def test_of_what_waits_too_long_hellos_are_kept() -> None:
    hello = b"\x82\xa6stream\xa1s\xa3pid\x01"
    ours, theirs = socket.socketpair()
    with zmq.Context() as context, theirs:
        viewer = Viewer(ours, context, lambda _: None)
        pieces = [[RING, each * 90] for each in (b"a", b"b")]
        for frames in ([RING, hello], *pieces, [LIVE, b""]):
            viewer.tell(frames)
        assert viewer.drop_oldest(60) == 2
        left = [frames[1] for _, frames in viewer._waiting]
        viewer.close()
    assert left == [hello, b""]
