"""A relay goes on after what goes wrong in it, and says what that was."""

import socket
from pathlib import Path

import pytest
import zmq

from embedded_engine import relay as relay_module
from embedded_engine.relay import Relay


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
