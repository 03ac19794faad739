"""However many ask, and whatever they ask, a turn of a channel's thread is short."""

from collections import deque
from pathlib import Path
from typing import Any

import pytest

from collectors.contract.clock import NS_PER_S
from collectors.http import guests as token_bucket
from collectors.probe.hello import HELLO, RING
from embedded_engine.publishing import channel as channel_module
from embedded_engine.publishing.channel import (
    SUBSCRIBE,
    UNSUBSCRIBE,
    Channel,
    RingEntry,
)
from tests.embedded_engine.channel_owners import PatientOwner


class Crowd:
    """A socket at which some requests wait; it keeps what it is to send."""

    def __init__(self) -> None:
        self.requests: deque[bytes] = deque()
        self.sent: list[list[bytes]] = []

    def poll(self, _: int) -> bool:
        return bool(self.requests)

    def recv(self, _: int) -> bytes:
        return self.requests.popleft()

    def send_multipart(self, frames: list[bytes]) -> None:
        self.sent.append(frames)


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


@pytest.fixture
def channel(tmp_path: Path, crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> Channel:
    """One whose turns are ours to take."""
    for pause in ("FLUSH_S", "JOIN_S"):
        monkeypatch.setattr(channel_module, pause, 0)
    monkeypatch.setattr(channel_module, "LISTEN_TURNS", 1)
    channel = Channel(tmp_path / "x.sock", "e", PatientOwner(), 1 << 20)
    channel._socket = crowd  # type: ignore[assignment]
    return channel


def test_in_one_turn_only_so_many_requests_are_heard(
    channel: Channel, crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "HEARD_AT_ONCE", 10)
    crowd.requests.extend([UNSUBSCRIBE + b"nothing"] * 25)

    left = []
    for _ in range(3):
        channel._listen()
        left.append(len(crowd.requests))

    assert left == [15, 5, 0]


def test_of_many_who_ask_at_once_each_is_answered_in_its_time(
    channel: Channel, crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = channel._answers._filled_ns
    monkeypatch.setattr(token_bucket, "monotonic_ns", lambda: now_ns)
    topics = [HELLO + str(number).encode() for number in range(30)]
    crowd.requests.extend(SUBSCRIBE + topic for topic in topics)

    answered = []
    for _ in range(3):
        channel._listen()
        answered.append(len(crowd.sent))
        now_ns += NS_PER_S // 10

    assert answered == [16, 21, 26]
    assert [frames[0] for frames in crowd.sent] == topics[:26]


def test_in_one_turn_newcomers_together_get_only_so_much_of_the_past(
    channel: Channel, crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "PIECE_BYTES", 200)
    monkeypatch.setattr(channel_module, "TURN_BYTES", 500)
    for number in range(4):
        channel._ring.put(
            RingEntry(seq=number, t_ns=number, accounted=0, envelope=bytes(100))
        )
    topics = [RING + each for each in (b"a", b"b", b"c", b"d", b"e")]
    crowd.requests.extend(SUBSCRIBE + topic for topic in topics)
    channel._listen()
    crowd.sent.clear()

    turns: list[list[Any]] = []
    while channel._joining:
        channel._send_pieces()
        turns.append([frames[0] for frames in crowd.sent])
        crowd.sent.clear()

    a, b, c, d, e = topics
    assert turns == [[a, b, c], [d, e, a], [b, c, d], [e]]
