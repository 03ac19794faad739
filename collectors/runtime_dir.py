"""Where the probes and engines of this user are found: one private directory.

A probe's socket is called ``<engine id>.<pid>.sock``: looking at the directory says
which processes of which engines can be watched. Sockets outlive their processes, so
whoever looks also clears away those of the dead.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from collectors.liveness import birth, nobody_listens

ENGINE_ID_LIMIT = 32
SOCKET_NAME_LIMIT = ENGINE_ID_LIMIT + len(".4194304.sock")
SOCKET_PATH_LIMIT = 107
"""Linux's sun_path, less the closing NUL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSocket:
    """Where one process of an engine can be heard."""

    path: Path
    engine_id: str
    pid: int


def runtime_dir() -> Path:
    """The private directory (0700), made when it is missing.

    ``INFERWATCH_RUNTIME_DIR`` chooses it; else the user's runtime directory, or one
    under the temporary directory where the system keeps none.

    Raises:
        PermissionError: it belongs to someone else.
    """
    if chosen := os.environ.get("INFERWATCH_RUNTIME_DIR"):
        return _private(Path(chosen))
    own = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    if own.is_dir() and os.access(own, os.W_OK):
        return _private(own / "inferwatch")
    return _private(_temporary("inferwatch"))


def socket_path(engine_id: str, pid: int) -> Path:
    """Where a process of that engine binds.

    Raises:
        ValueError: no such engine id can be.
    """
    if not 0 < len(engine_id) <= ENGINE_ID_LIMIT or "/" in engine_id:
        raise ValueError(
            f"engine id {engine_id!r} must have 1 to {ENGINE_ID_LIMIT} characters "
            "and no slash"
        )
    return socket_dir() / f"{engine_id}.{pid}.sock"


def probe_sockets(engine_id: str | None = None) -> list[ProbeSocket]:
    """What can be heard now, of one engine or of all; those of the dead are removed."""
    found = []
    for socket in _sockets():
        born = birth(socket.pid)
        if not _is_held(socket.path, born):
            socket.path.unlink(missing_ok=True)
        elif born is not None and engine_id in {None, socket.engine_id}:
            found.append(socket)
    return sorted(found, key=lambda socket: socket.pid)


def _sockets() -> Iterator[ProbeSocket]:
    for path in socket_dir().glob("*.sock"):
        engine_id, _, pid = path.stem.rpartition(".")
        if engine_id and pid.isdecimal() and path.is_socket():
            yield ProbeSocket(path=path, engine_id=engine_id, pid=int(pid))


_held: dict[Path, tuple[int, int]] = {}
"""Sockets that answered: whose process it was by its birth, and the file's inode."""


def _is_held(path: Path, born: int | None) -> bool:
    """Somebody is behind it; who was there once is while the process lives.

    No clock tells: the wall's may be set meanwhile. A process that cannot be seen may
    live in a container. So it is asked, but once, for every call costs the engine.
    """
    try:
        inode = path.stat().st_ino
    except OSError:
        return True  # it was removed just now
    if born is not None and _held.get(path) == (born, inode):
        return True
    if nobody_listens(path):
        _held.pop(path, None)
        return False
    if born is not None:
        _held[path] = born, inode
    return True


def socket_dir(name_limit: int = SOCKET_NAME_LIMIT) -> Path:
    """The runtime directory, or a short stand-in when its path is too long to bind.

    ``name_limit`` is the longest name, or path, that sockets will have in it.
    """
    directory = runtime_dir()
    if len(os.fsencode(directory)) + 1 + name_limit <= SOCKET_PATH_LIMIT:
        return directory
    digest = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:12]
    return _private(_temporary(f"inferwatch-{digest}"))


def _temporary(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"


def _private(directory: Path) -> Path:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.lstat().st_uid != os.getuid():
        raise PermissionError(f"{directory} belongs to another user")
    if directory.stat().st_mode & 0o077:
        directory.chmod(0o700)
    return directory
