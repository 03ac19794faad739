"""A server of this host: its processes and its log are seen, and left alone."""

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from collectors.http.server import Server
from inferwatch.live import local_server
from inferwatch.live.local_server import LocalServer, look_for, runs_here

Patch = pytest.MonkeyPatch


@pytest.fixture
def port() -> Iterator[int]:
    """Where this very process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield int(listening.getsockname()[1])


@pytest.fixture
def server(port: int, monkeypatch: pytest.MonkeyPatch) -> LocalServer:
    """This process, taken for an engine."""
    monkeypatch.setattr(local_server, "ENGINES", re.compile("pytest"))
    monkeypatch.setattr(psutil.Process, "parent", lambda _: None)
    return LocalServer(Server(url=f"localhost:{port}"))


def test_its_processes_are_those_behind_the_port(server: LocalServer) -> None:
    look_for([server])

    assert (os.getpid(), "api") in server.processes()


def test_its_log_is_read_where_it_is_a_file(
    server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "engine.log").open("w") as log:
        log.write("one\ntwo\nthree\n")
        log.flush()
        monkeypatch.setattr(local_server, "SAID_ON", (log.fileno(),))
        look_for([server])

        assert server.log_tail(2) == ["two", "three"]


def test_the_log_of_one_that_died_can_still_be_read(
    server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "engine.log").open("w") as log:
        log.write("killed by the kernel\n")
        log.flush()
        monkeypatch.setattr(local_server, "SAID_ON", (log.fileno(),))
        look_for([server])
    monkeypatch.setattr(local_server, "birth", lambda _: None)
    monkeypatch.setattr("embedded_engine.engine.engine_processes.birth", lambda _: None)
    look_for([server])

    assert server.processes() == []
    assert server.log_tail(2) == ["killed by the kernel"]


def test_a_log_that_goes_into_a_pipe_says_where_else_to_look(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(local_server, "SAID_ON", (writing,))
    look_for([server])

    assert server.log_tail(2) == []
    assert "journalctl" in server.no_log
    os.close(reading)
    os.close(writing)


def test_a_process_that_is_no_engine_is_none(port: int) -> None:
    tunnel = LocalServer(Server(url=f"localhost:{port}"))
    look_for([tunnel])

    assert tunnel.processes() == []
    assert "cannot be seen" in tunnel.no_log


@pytest.mark.parametrize(
    ("program", "is_here"), [("/usr/bin/python3.12", True), ("/usr/bin/ssh", False)]
)
def test_a_tunnel_to_a_host_called_vllm_is_no_server_of_this_host(
    server: LocalServer, port: int, program: str, is_here: bool, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(psutil.Process, "exe", lambda _: program)

    assert runs_here(Server(url=f"localhost:{port}")) is is_here


def test_a_server_whose_process_is_no_engine_does_not_run_here(port: int) -> None:
    assert not runs_here(Server(url=f"localhost:{port}"))


def test_a_server_elsewhere_is_not_looked_for_here() -> None:
    remote = LocalServer(Server(url="http://192.0.2.7:8000"))
    look_for([remote])

    assert remote.processes() == []
    assert "does not run here" in remote.no_log
