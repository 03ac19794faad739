"""A port is kept for the server that will bind it, and for nobody else."""

import socket
from pathlib import Path

import pytest

from embedded_engine.errors import PortTakenError
from embedded_engine.listen import claim_unix_socket, reserve_port, reserved, url_of


def test_the_server_can_listen_on_the_port_while_it_is_reserved() -> None:
    with reserved("127.0.0.1", None, None) as port:
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            server.listen()

            with socket.create_connection(("127.0.0.1", port or 0)) as client:
                accepted, address = server.accept()
                accepted.close()
                assert address == client.getsockname()


def test_a_stranger_cannot_take_the_port_while_it_is_reserved() -> None:
    with reserve_port("127.0.0.1", None) as holder, socket.socket() as stranger:
        with pytest.raises(OSError, match="in use"):
            stranger.bind(holder.getsockname())


def test_two_reservations_of_one_port_exclude_each_other() -> None:
    with reserve_port("127.0.0.1", None) as holder:
        with pytest.raises(PortTakenError):
            reserve_port("127.0.0.1", holder.getsockname()[1])


def test_a_socket_nobody_listens_on_makes_way(tmp_path: Path) -> None:
    path = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    claim_unix_socket(path)

    assert not path.exists()


def test_a_file_that_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("text")

    with pytest.raises(PortTakenError):
        claim_unix_socket(path)

    assert path.read_text() == "text"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("node7", "http://node7:8000"),
    ],
)
def test_a_url_is_one_that_this_host_can_reach(host: str, url: str) -> None:
    assert url_of(host, 8000) == url
