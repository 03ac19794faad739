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

from collectors.contract import runtime_dir as module
from collectors.contract.liveness import birth
from collectors.contract.runtime_dir import (
    RuntimeDirError,
    hand_over,
    probe_sockets,
    runtime_dir,
    socket_path,
)
from collectors.probe.control import control_path


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


def bound(path: Path) -> socket.socket:
    """A socket there that listens, as a probe's does."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


def left(path: Path) -> Path:
    """A socket's file that nobody is behind."""
    bound(path).close()
    return path


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


def test_one_that_we_make_is_private_even_when_it_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INFERWATCH_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "inferwatch").mkdir(mode=0o755)

    assert stat.S_IMODE(runtime_dir().stat().st_mode) == 0o700


def test_one_that_was_there_keeps_its_mode(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o755)

    assert runtime_dir() == directory
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755


def test_a_directory_that_says_it_is_a_groups_is_left_as_it_is(
    directory: Path,
) -> None:
    directory.mkdir()
    directory.chmod(0o2770)

    assert stat.S_IMODE(runtime_dir().stat().st_mode) == 0o2770
    with bound(runtime_dir() / "e.1.sock"):
        hand_over(directory / "e.1.sock")
        assert stat.S_IMODE((directory / "e.1.sock").stat().st_mode) == 0o660


@pytest.mark.parametrize("mode", [0o1777, 0o2777, 0o777, 0o775])
def test_in_a_directory_where_others_may_write_we_make_one_of_our_own(
    directory: Path, mode: int
) -> None:
    directory.mkdir()
    directory.chmod(mode)  # as /tmp is

    assert runtime_dir().parent == directory
    assert stat.S_IMODE(runtime_dir().stat().st_mode) & 0o777 == 0o700
    assert stat.S_IMODE(directory.stat().st_mode) == mode


def test_a_file_in_its_place_is_said(directory: Path) -> None:
    directory.touch()

    with pytest.raises(RuntimeDirError, match="run is not a directory: INFERWATCH_RUN"):
        runtime_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_one_that_another_user_made_in_our_name_is_said(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o1777)
    theirs = runtime_dir()
    os.chown(theirs, 12_345, 12_345)

    with pytest.raises(RuntimeDirError, match="belongs to another user: INFERWATCH_R"):
        runtime_dir()


def test_a_link_to_a_socket_elsewhere_is_no_probe(tmp_path: Path) -> None:
    with bound(tmp_path / "docker") as other:
        socket_path("e", 1).symlink_to(tmp_path / "docker")

        assert probe_sockets() == []
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()


def test_a_link_that_took_the_place_of_our_socket_gives_nothing_away(
    directory: Path,
) -> None:
    directory.mkdir()
    precious = directory.with_name("precious")
    precious.touch(mode=0o640)
    (directory / "e.1.sock").symlink_to(precious)

    hand_over(directory / "e.1.sock")

    assert stat.S_IMODE(precious.stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_root_gives_its_sockets_to_the_owner_of_the_directory(directory: Path) -> None:
    directory.mkdir(mode=0o700)  # a user's, mounted in a container
    os.chown(directory, 12_345, 12_345)

    assert runtime_dir() == directory
    with bound(directory / "e.1.sock"):
        hand_over(directory / "e.1.sock")
        assert (directory / "e.1.sock").stat().st_uid == 12_345
    assert directory.stat().st_uid == 12_345


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


@pytest.mark.process
def test_sockets_of_the_living_are_found_and_those_of_the_dead_removed(
    dead_pid: int,
) -> None:
    mine, other = socket_path("a.b", os.getpid()), socket_path("c", os.getppid())
    gone = left(socket_path("a.b", dead_pid))

    with bound(mine), bound(other):
        assert [found.path for found in probe_sockets("a.b")] == [mine]
        assert {found.engine_id for found in probe_sockets()} == {"a.b", "c"}
    assert not gone.exists()


def test_where_the_dead_could_be_told_goes_with_where_they_were_heard() -> None:
    gone, lives = socket_path("a", 1), socket_path("b", 2)
    told = [left(control_path("a", 1)), left(control_path("b", 2))]
    left(gone)
    with closing(bound(lives)):
        probe_sockets()

    assert [path.exists() for path in told] == [False, True]


@pytest.mark.process
def test_a_zombie_is_dead(zombie_pid: int) -> None:
    left(socket_path("e", zombie_pid))

    assert birth(zombie_pid) is None
    assert probe_sockets("e") == []


def test_a_socket_of_another_process_that_had_the_same_pid_is_removed() -> None:
    path = left(socket_path("e", os.getpid()))

    assert probe_sockets("e") == []
    assert not path.exists()


@pytest.mark.parametrize("stepped_s", [-60, 60, 1e9])
def test_a_wall_clock_that_is_set_removes_no_socket_of_the_living(
    stepped_s: float,
) -> None:
    path = socket_path("e", os.getpid())
    with bound(path):
        written_s = path.stat().st_mtime - stepped_s
        os.utime(path, (written_s, written_s))

        assert [found.path for found in probe_sockets("e")] == [path]


def test_a_socket_tells_the_pid_its_process_has_here() -> None:
    path = socket_path("e", 1)  # as the first process of a container calls it
    with bound(path):
        (found,) = probe_sockets("e")

        assert (found.path, found.pid, found.foreign) == (path, os.getpid(), False)


def test_a_socket_whose_process_cannot_be_seen_is_asked_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Path] = []

    def nobody_we_see(path: Path) -> int:
        asked.append(path)
        return 0

    monkeypatch.setattr(module, "listener", nobody_we_see)
    path = socket_path("e", 7)  # as of one in a container beside ours
    with bound(path):
        for _ in range(3):
            (found,) = probe_sockets("e")
            assert (found.pid, found.foreign) == (7, True)
        assert len(asked) == 1

        monkeypatch.setattr(module, "ASK_AGAIN_NS", 0)
        probe_sockets("e")
        probe_sockets("e")
        assert len(asked) == 3


def test_a_socket_that_does_not_listen_yet_stays() -> None:
    path = socket_path("e", os.getpid())
    with socket.socket(socket.AF_UNIX) as binding:
        binding.bind(str(path))

        assert [found.path for found in probe_sockets("e")] == [path]


def test_a_probe_is_asked_once_however_often_one_looks() -> None:
    path = socket_path("e", os.getpid())
    with bound(path) as listener:
        for _ in range(3):
            assert probe_sockets("e")
        listener.setblocking(False)
        listener.accept()[0].close()
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_files_that_are_no_probe_sockets_are_left_alone(directory: Path) -> None:
    strangers = [runtime_dir() / name for name in ("e.json", "x.sock", "e.one.sock")]
    for path in (*strangers, socket_path("e", 1)):
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
