"""Where an engine shall listen, kept free for it until it does."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embedded_engine.errors import PortTakenError

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - recognised, not bound
"""Where a server that listens everywhere is reached from here."""


@contextmanager
def reserved(host: str, port: int | None, uds: Path | None) -> Iterator[int | None]:
    """The port, kept free meanwhile; None for a Unix socket.

    Raises:
        PortTakenError: somebody else listens there.
    """
    if uds is not None:
        claim_unix_socket(uds)
        yield None
        return
    with reserve_port(host, port) as holder:
        yield holder.getsockname()[1]


def reserve_port(host: str, port: int | None) -> socket.socket:
    """Bind the port, or any free one, before the server gets to it seconds later.

    Linux lets a second socket bind beside one that does not listen if both allow it,
    as vLLM's does. Ours allows it only after its own bind succeeded, so that bind was
    exclusive, and there is no moment at which a stranger could take the port.

    Raises:
        PortTakenError: somebody has it, or the host is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        holder.bind((host, port or 0))
    except OSError as error:
        holder.close()
        raise PortTakenError(
            f"cannot listen on {host}:{port or 'any port'}: {error.strerror}; "
            "choose another with --port, or leave it out for a free one"
        ) from error
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return holder


def claim_unix_socket(path: Path) -> None:
    """Make sure a server can bind there; a socket nobody listens on is removed.

    Raises:
        PortTakenError: somebody listens there, or it is no socket.
    """
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        refused = path.is_socket() and probe.connect_ex(str(path)) != 0
    if not refused:
        raise PortTakenError(f"{path} is in use: choose another with --uds")
    path.unlink()


def url_of(host: str, port: int, scheme: str = "http") -> str:
    """How a client on this host reaches a server that listens on ``host``."""
    reachable = WILDCARDS.get(host, host)
    name = f"[{reachable}]" if ":" in reachable else reachable
    return f"{scheme}://{name}:{port}"
