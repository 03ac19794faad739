"""The kernel's stamps, on sockets of this host."""

import socket
import time
from collections.abc import Iterator

import pytest

from collectors.contract.clock import monotonic_ns, wall_offset_ns
from inferwatch.loadgen.exchange.receive_stamps import (
    ANCILLARY_BYTES,
    ReceiveStamps,
    ask_for_stamps,
)

MS = 1_000_000
DEADLINE_NS = 5_000 * MS


class Pair:
    """Two ends; ours asks for stamps."""

    def __init__(self, ours: socket.socket, theirs: socket.socket) -> None:
        self._ours, self._theirs = ours, theirs
        self.receive_stamps = ReceiveStamps()
        ask_for_stamps(ours)

    def receive(self, late_s: float = 0.0) -> tuple[int, int | None]:
        """When it was sent, and when that was received; read so much later."""
        sent_ns = monotonic_ns()
        self._theirs.send(b"x")
        time.sleep(late_s)
        _, ancillary, _, _ = self._ours.recvmsg(16, ANCILLARY_BYTES)
        return sent_ns, self.receive_stamps.by_kernel(ancillary)


@pytest.fixture
def tcp() -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as ours:
            theirs, _ = server.accept()
            with theirs:
                pair = Pair(ours, theirs)
                deadline_ns = monotonic_ns() + DEADLINE_NS
                while pair.receive()[1] is None:  # the kernel begins a little later
                    assert monotonic_ns() < deadline_ns
                yield pair


def test_the_stamp_is_of_the_arrival_however_late_it_is_read(tcp: Pair) -> None:
    read_late = [tcp.receive(late_s=0.02) for _ in range(5)]

    waits = [stamp_ns - sent_ns for sent_ns, stamp_ns in read_late if stamp_ns]
    assert len(waits) == 5
    assert min(waits) >= 0
    assert min(waits) < 5 * MS


def test_how_late_it_was_read_is_kept(tcp: Pair) -> None:
    tcp.receive_stamps.take_lags()

    tcp.receive(late_s=0.02)

    (lag_ns,) = tcp.receive_stamps.take_lags()
    assert 20 * MS <= lag_ns < 500 * MS
    assert tcp.receive_stamps.take_lags() == []


@pytest.mark.parametrize("step_s", [-3600, -0.2, 0.2, 3600])
def test_a_stepped_wall_clock_does_not_reach_a_stamp(
    tcp: Pair, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    """As if the clock had been stepped since the anchor was read."""
    stepped = "inferwatch.loadgen.exchange.receive_stamps.wall_offset_ns"
    with monkeypatch.context() as patch:
        patch.setattr(stepped, lambda: wall_offset_ns() + int(step_s * 1_000 * MS))
        tcp.receive_stamps.anchor()

    sent_ns, stamp_ns = tcp.receive()

    assert stamp_ns is not None
    assert 0 <= stamp_ns - sent_ns < 100 * MS


def test_a_unix_socket_tells_nothing_and_that_is_said() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pair = Pair(ours, theirs)

        assert [pair.receive()[1] for _ in range(3)] == [None] * 3
        assert pair.receive_stamps.reads == 3
