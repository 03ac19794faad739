"""The directory where probes and engines are found."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from collectors.processes import birth
from collectors.runtime_dir import probe_sockets, runtime_dir, socket_path


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


@pytest.fixture
def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.fixture
def zombie_pid() -> Iterator[int]:
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    child.stdout.close()
    yield child.pid
    child.wait()


def test_it_is_private_even_when_it_was_not(directory: Path) -> None:
    directory.mkdir(mode=0o755)

    assert stat.S_IMODE(runtime_dir().stat().st_mode) == 0o700


def test_without_a_choice_it_lies_in_the_users_runtime_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INFERWATCH_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    assert runtime_dir() == tmp_path / "inferwatch"


def test_without_a_runtime_directory_it_lies_in_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INFERWATCH_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))

    assert str(os.getuid()) in runtime_dir().name


def test_sockets_of_the_living_are_found_and_those_of_the_dead_removed(
    dead_pid: int,
) -> None:
    mine, other = socket_path("a.b", os.getpid()), socket_path("c", os.getppid())
    gone = socket_path("a.b", dead_pid)
    for path in (mine, other, gone):
        path.touch()

    assert [found.path for found in probe_sockets("a.b")] == [mine]
    assert {found.engine_id for found in probe_sockets()} == {"a.b", "c"}
    assert not gone.exists()


def test_a_zombie_is_dead(zombie_pid: int) -> None:
    socket_path("e", zombie_pid).touch()

    assert birth(zombie_pid) is None
    assert probe_sockets("e") == []


def test_a_socket_older_than_the_process_of_its_pid_is_of_the_dead() -> None:
    path = socket_path("e", os.getpid())
    path.touch()
    os.utime(path, (0, 0))

    assert probe_sockets("e") == []


def test_files_that_are_no_probe_sockets_are_left_alone(directory: Path) -> None:
    strangers = [runtime_dir() / name for name in ("e.json", "x.sock", "e.one.sock")]
    for path in strangers:
        path.touch()

    assert probe_sockets() == []
    assert all(path.exists() for path in strangers)


def test_a_directory_too_long_for_sockets_gets_a_short_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / ("long" * 30)))

    path = socket_path("e" * 32, os.getpid())
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(path))

    assert [found.path for found in probe_sockets("e" * 32)] == [path]
    path.unlink()
    path.parent.rmdir()


@pytest.mark.parametrize("engine_id", ["", "a/b", "x" * 33])
def test_an_engine_id_that_cannot_name_a_socket_is_refused(engine_id: str) -> None:
    with pytest.raises(ValueError, match="engine id"):
        socket_path(engine_id, 1)
