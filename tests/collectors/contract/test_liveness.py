"""What a process tells of itself, and what a socket tells of its process."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from collectors.contract import liveness
from collectors.contract.liveness import birth, listened_to, listener, nobody_listens
from embedded_engine.engine.engine_processes import EngineProcess, EngineProcesses

NOBODY = 2**22 + 1
"""No process has that number."""


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names alone


@contextmanager
def no_descriptors() -> Iterator[None]:
    """As where a program has used up all that it may open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_without_descriptors_the_living_are_not_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "_births", {})
    pid, path = os.getpid(), tmp_path / "x.sock"
    born = birth(pid)
    with closing(socket.socket(socket.AF_UNIX)) as left:
        left.bind(str(path))
    with no_descriptors():
        assert birth(pid) == born is not None
        assert birth(NOBODY) is None
        assert not nobody_listens(path)
        assert listener(path) is None
        with pytest.raises(OSError, match="Too many open files"):
            birth(1)  # as it was never looked at, nothing is known of it


def test_without_descriptors_an_engine_keeps_the_processes_it_had() -> None:
    root = EngineProcess(os.getpid(), birth(os.getpid()) or 0)
    family = EngineProcesses(root)
    with no_descriptors():
        assert family.members() == {root}


def test_it_is_known_where_a_process_takes_connections(tmp_path: Path) -> None:
    path = str(tmp_path / "x.sock")
    with (
        socket.socket() as listens,
        socket.socket() as bound,
        socket.socket(socket.AF_UNIX) as here,
        socket.socket(socket.AF_INET6) as six,
    ):
        for each, address in (
            (listens, "127.0.0.1"),
            (bound, "127.0.0.1"),
            (six, "::1"),
        ):
            each.bind((address, 0))
        here.bind(path)
        for each in (listens, here, six):
            each.listen()
        found = listened_to()

        assert f"127.0.0.1:{listens.getsockname()[1]}" in found
        assert f"[::1]:{six.getsockname()[1]}" in found
        assert path in found
        assert f"127.0.0.1:{bound.getsockname()[1]}" not in found


def test_to_look_leaves_nothing_open(tmp_path: Path) -> None:
    with (tmp_path / "a file").open("w"):
        before = descriptors()
        for _ in range(3):
            listened_to()

        assert descriptors() == before


def test_a_socket_tells_who_listens(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    assert listener(path) is None
    with socket.socket(socket.AF_UNIX) as here:
        here.bind(str(path))
        assert listener(path) is None
        here.listen()
        assert listener(path) == os.getpid()
    assert listener(path) is None
