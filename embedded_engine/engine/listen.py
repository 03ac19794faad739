"""Where an engine shall listen, kept free for it until it does."""

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from collectors.contract.liveness import nobody_listens
from embedded_engine.engine.errors import PortTakenError

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - recognised, not bound
"""Where a server that listens everywhere is reached from here."""


@contextmanager
def reserved(host: str, port: int | None, uds: Path | None) -> Iterator[int | None]:
    """The port, kept free meanwhile; None for a Unix socket.

    Raises:
        PortTakenError: somebody else listens there.
    """
    if uds is not None:
        with claimed_unix_socket(uds):
            yield None
        return
    with reserved_port(host, port) as holder:
        yield holder.getsockname()[1]


@contextmanager
def reserved_port(host: str, port: int | None) -> Iterator[socket.socket]:
    """Bind the port, or any free one, before the server gets to it seconds later.

    Linux lets a second socket bind beside one that does not listen if both allow it,
    as vLLM's does. Ours allows it only after its own bind succeeded, so that bind was
    exclusive, and there is no moment at which a stranger could take the port.

    What an ended server left of its connections is in the way of an exclusive bind,
    but not of the server's. So the second try allows what the server allows, and fails
    where somebody listens; another reservation like this one is known by its guard.

    Raises:
        PortTakenError: somebody has it, or the host is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as holder, socket.socket(socket.AF_UNIX) as guard:
        try:
            _bind(holder, host, port or 0)
            guard.bind(f"\0inferwatch {host} {holder.getsockname()[1]}")
        except OSError as error:
            raise PortTakenError(
                f"cannot listen on {host}:{port or 'any port'}: {error.strerror}; "
                "choose another with --port, or leave it out for a free one"
            ) from error
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        yield holder


def _bind(holder: socket.socket, host: str, port: int) -> None:
    try:
        holder.bind((host, port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not port:
            raise
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, port))


@contextmanager
def claimed_unix_socket(path: Path) -> Iterator[None]:
    """Let a server of ours bind there and no other; what a dead one left is removed.

    Raises:
        PortTakenError: somebody has it, or is about to.
    """
    with _locked(path) as locked:
        if not locked or not _make_way(path):
            raise PortTakenError(f"{path} is in use: choose another with --uds")
        yield


def clear_unix_socket(path: Path) -> None:
    """Remove what a dead server left; whoever else has the place by now keeps it."""
    with suppress(PortTakenError), _locked(path) as locked:
        if locked:
            _make_way(path)


def _make_way(path: Path) -> bool:
    """Nothing is there, or it was a socket without anybody behind it."""
    if os.path.lexists(path):
        if not nobody_listens(path):
            return False
        path.unlink(missing_ok=True)
    return True


_ours: set[Path] = set()
"""Places that this process has locked."""


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Lock the place of a socket; False when somebody else has it.

    Raises:
        PortTakenError: there can be no lock, and so no socket.
    """
    place = path.absolute()
    if place in _ours:
        yield True
        return
    lock = place.with_name(f"{place.name}.lock")
    try:
        descriptor = _lock(lock)
    except OSError as error:
        raise PortTakenError(
            f"cannot listen on {path}: {lock}: {error.strerror}; "
            "choose another with --uds"
        ) from error
    if descriptor is None:
        yield False
        return
    _ours.add(place)
    try:
        yield True
    finally:
        _ours.discard(place)
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(lock: Path) -> int | None:
    """The lock file's descriptor; None when somebody else has it."""
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(lock, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), lock.stat()):
                return descriptor
        os.close(descriptor)  # who had it removed it just now


def url_of(host: str, port: int, scheme: str = "http") -> str:
    """How a client on this host reaches a server that listens on ``host``."""
    reachable = WILDCARDS.get(host, host)
    name = f"[{reachable}]" if ":" in reachable else reachable
    return f"{scheme}://{name}:{port}"
