"""What a process tells of itself, and what a socket tells of its process."""

import os
import socket
from pathlib import Path

from collectors.liveness import listened_to, listener


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names alone


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
