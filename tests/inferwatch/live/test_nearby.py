"""Engines of this node that are found by their probes."""

import pytest

from collectors.probe.discover import ProbedEngine
from collectors.servers import discover
from inferwatch.live.attached import nearby
from inferwatch.live.attached.nearby import NearbyEngine, nearby_engines

ZEROMQ = "/tmp/0a1b-uuid"


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (
            "python vllm serve m --uds /run/chat.sock",
            NearbyEngine(address="/run/chat.sock", models=("m",)),
        ),
        (
            "python vllm serve m --uds=/run/chat.sock --port 1",
            NearbyEngine(address="/run/chat.sock", models=("m",)),
        ),
        (
            "python vllm serve m --uds /run/other.sock",
            NearbyEngine(address="probe:one", models=("m",), in_application=True),
        ),
        (
            "python app.py --uds /run/chat.sock",
            NearbyEngine(address="probe:one", models=("m",), in_application=True),
        ),
    ],
    ids=["vllm serve", "one word", "another socket", "an application"],
)
async def test_a_server_at_a_unix_socket_is_no_application(
    command: str, found: NearbyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ProbedEngine(
        engine_id="one",
        model="m",
        addresses=(),
        sockets=(ZEROMQ, "/run/chat.sock"),
        pid=7,
    )
    monkeypatch.setattr(nearby, "_probed_elsewhere", lambda: [engine])
    monkeypatch.setattr(nearby, "served_engines", list)
    monkeypatch.setenv(discover.SWITCH, "")
    monkeypatch.setattr(discover, "_command", {7: command}.get)
    assert await nearby_engines() == [found]
