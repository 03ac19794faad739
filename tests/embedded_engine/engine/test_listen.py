"""A port is kept for the server that will bind it, and for nobody else."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from collectors.contract.clock import boot_id
from embedded_engine.engine.engine_file import EngineFile
from embedded_engine.engine.errors import PortTakenError
from embedded_engine.engine.launch import (
    Engine,
    claimed_unix_socket,
    clear_unix_socket,
    reserved,
    reserved_port,
    url_of,
)


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
    with reserved_port("127.0.0.1", None) as holder, socket.socket() as stranger:
        with pytest.raises(OSError, match="in use"):
            stranger.bind(holder.getsockname())


def refuses(host: str, port: int | None) -> bool:
    try:
        with reserved_port(host, port):
            return False
    except PortTakenError:
        return True


def port_of_an_ended_server() -> int:
    """It hung up first, so its side of the connection lingers."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port: int = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()
            assert client.recv(1) == b""
    with socket.socket() as exclusive, pytest.raises(OSError, match="in use"):
        exclusive.bind(("127.0.0.1", port))
    return port


def test_two_reservations_of_one_port_exclude_each_other() -> None:
    with reserved_port("127.0.0.1", None) as holder:
        assert refuses("127.0.0.1", holder.getsockname()[1])


def test_the_port_of_a_server_that_just_ended_can_be_had() -> None:
    port = port_of_an_ended_server()

    with reserved("127.0.0.1", port, None) as found, socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        assert found == port


def test_it_can_be_had_once() -> None:
    port = port_of_an_ended_server()

    with reserved_port("127.0.0.1", port):
        assert refuses("127.0.0.1", port)
    assert not refuses("127.0.0.1", port)


@pytest.mark.parametrize("listens_on", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("option", [socket.SO_REUSEADDR, socket.SO_REUSEPORT])
def test_whoever_listens_is_found(listens_on: str, option: int) -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, option, 1)
        server.bind((listens_on, 0))
        server.listen()

        assert refuses("127.0.0.1", server.getsockname()[1])


def left_socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    return path


def test_a_socket_nobody_listens_on_makes_way(tmp_path: Path) -> None:
    path = left_socket(tmp_path / "left.sock")

    with claimed_unix_socket(path):
        assert not path.exists()

    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("text")

    with pytest.raises(PortTakenError), claimed_unix_socket(path):
        pass

    assert path.read_text() == "text"


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
@pytest.mark.parametrize("listens", [True, False])
def test_a_socket_that_somebody_holds_is_not_removed(
    tmp_path: Path, kind: int, listens: bool
) -> None:
    path = tmp_path / "held.sock"
    with socket.socket(socket.AF_UNIX, kind) as held:
        held.bind(str(path))
        if listens and kind == socket.SOCK_STREAM:
            held.listen()

        with pytest.raises(PortTakenError, match="--uds"), claimed_unix_socket(path):
            pass
        clear_unix_socket(path)

        assert path.is_socket()


def test_a_socket_bound_by_a_relative_path_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as held:
        held.bind("held.sock")

        clear_unix_socket(tmp_path / "held.sock")

        assert (tmp_path / "held.sock").is_socket()


def test_what_a_client_still_holds_of_a_dead_server_does_not_keep_the_place(
    tmp_path: Path,
) -> None:
    path = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(path))
        accepted, _ = server.accept()
    with client, accepted:
        clear_unix_socket(path)

    assert not path.exists()


@pytest.mark.process
def test_who_claims_the_same_place_a_moment_later_is_refused(tmp_path: Path) -> None:
    path = left_socket(tmp_path / "left.sock")
    code = (
        "import sys; from pathlib import Path\n"
        "from embedded_engine.engine.launch import claimed_unix_socket\n"
        "with claimed_unix_socket(Path(sys.argv[1])): pass"
    )

    with claimed_unix_socket(path):
        left_socket(path)  # a server of ours that has died already
        refused = subprocess.run(
            [sys.executable, "-c", code, str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "PortTakenError" in refused.stderr
        assert path.exists()
        clear_unix_socket(path)  # we may

    assert not path.exists()
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


@pytest.mark.process
async def test_an_engine_that_ended_leaves_the_socket_of_who_came_after_it(
    engine_home: Path,
) -> None:
    path = engine_home / "engine.sock"
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    file = EngineFile(
        engine_id="e",
        pid=ended.pid,
        birth=1,
        boot_id=boot_id(),
        model="m",
        uds=str(path),
        log_path=str(engine_home / "engine.log"),
    )
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        await Engine(file).stop()
        assert path.is_socket()

    await Engine(file).stop()
    assert not path.exists()


def test_a_place_that_cannot_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(PortTakenError, match="No such file"):
        with claimed_unix_socket(tmp_path / "missing" / "engine.sock"):
            pass


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
