"""Where the probes and engines of this user are found: one private directory.

A probe's socket is called ``<engine id>.<pid>.sock``: looking at the directory says
which processes of which engines can be watched. Sockets outlive their processes, so
whoever looks also clears away those of the dead.

The directory may be shared. A container's root may have a user's directory mounted: it
gives its sockets to the directory's owner. And users of a group share one whose mode
says so (``chmod 2770``): sockets in it are the group's. Then others put files there,
too: none of theirs may lead us out of it, or decide what becomes of a process of ours.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from collectors.contract.clock import NS_PER_S, monotonic_ns
from collectors.contract.liveness import birth, is_socket, listener, nobody_listens
from collectors.contract.plain_file import OF_OTHERS

SOCKETS_IN = "unix:"
"""How the place of a probe is written whose sockets are in some other directory."""
ENGINE_ID_LIMIT = 32
AGENT_SOCKET = "agent.sock"
"""No probe's: it has no engine's name and no pid."""
SOCKET_NAME_LIMIT = ENGINE_ID_LIMIT + len(".4194304.sock")
CHOOSE = "INFERWATCH_RUNTIME_DIR=/a/private/directory"
"""What to do where the directory cannot be used."""
ASK_AGAIN_NS = 5 * NS_PER_S
"""A process that cannot be seen is asked whether it lives this often."""
SOCKET_PATH_LIMIT = 107
"""Linux's sun_path, less the closing NUL."""


class RuntimeDirError(OSError):
    """There is no such directory for us; the message is fit to show."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}: {CHOOSE} chooses another directory")
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSocket:
    """Where one process of an engine can be heard."""

    path: Path
    engine_id: str
    pid: int
    """As it is here; where it has none here, as its own container counts."""
    foreign: bool = False
    """Its process cannot be seen from here: what it says is the only sign of life."""


def runtime_dir() -> Path:
    """The private directory (0700), made when it is missing.

    ``INFERWATCH_RUNTIME_DIR`` chooses it, a shared one too; else the user's runtime
    directory, or one under the temporary directory where the system keeps none. A
    chosen one that was there is left as it is: where anybody may write, as in /tmp,
    ours is in it.

    Raises:
        RuntimeDirError: it belongs to someone else, or cannot be made.
    """
    if chosen := os.environ.get("INFERWATCH_RUNTIME_DIR"):
        return _chosen(Path(chosen))
    own = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    if own.is_dir() and os.access(own, os.W_OK):
        return private_dir(own / "inferwatch")
    return private_dir(_temporary("inferwatch"))


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


def agent_path() -> Path:
    """Where the agent of this host binds, if nobody tells it otherwise."""
    return socket_dir() / AGENT_SOCKET


def hand_over(path: Path) -> None:
    """Let those connect to a socket of ours whose directory it lies in."""
    place = path.parent.stat()
    with suppress(OSError):  # then only we can
        # Others may have put a link in its place since: what is changed is a socket.
        held = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(held, "rb", buffering=0):
            if not stat.S_ISSOCK(os.fstat(held).st_mode):
                return
            itself = f"/proc/self/fd/{held}"
            if os.geteuid() == 0 and not place.st_mode & stat.S_ISGID:
                os.chown(itself, place.st_uid, place.st_gid)
            Path(itself).chmod(0o660 if place.st_mode & stat.S_ISGID else 0o600)


def probe_sockets(engine_id: str | None = None) -> list[ProbeSocket]:
    """What can be heard now, of one engine or of all; those of the dead are removed."""
    found = []
    for socket in _sockets(socket_dir()):
        holder = _holder(socket)
        if holder is None:
            with suppress(OSError):  # it may be for others to remove
                socket.path.with_suffix(".ctl").unlink(missing_ok=True)
                socket.path.unlink()  # last: by it the other is found
        elif engine_id in {None, socket.engine_id}:
            found.append(holder)
    return sorted(found, key=lambda socket: socket.pid)


def forwarded_sockets(directory: Path, engine_id: str | None) -> list[ProbeSocket]:
    """Those of another host that are reached through this directory."""
    return [
        replace(each, foreign=True)
        for each in _sockets(directory)
        if engine_id in {None, each.engine_id}
    ]


def _sockets(directory: Path) -> Iterator[ProbeSocket]:
    for path in directory.glob("*.sock"):
        engine_id, _, pid = path.stem.rpartition(".")
        if engine_id and pid.isdecimal() and is_socket(path):
            yield ProbeSocket(path=path, engine_id=engine_id, pid=int(pid))


@dataclass(frozen=True, slots=True)
class _Held:
    """A socket that answered."""

    inode: int
    socket: ProbeSocket
    born: int | None
    """When its process was, where it can be seen."""
    asked_ns: int

    @property
    def holds(self) -> bool:
        """Its process lives; of one that cannot be seen this is believed for a while.

        No clock tells: the wall's may be set meanwhile.
        """
        if self.born is not None:
            return birth(self.socket.pid) == self.born
        return monotonic_ns() < self.asked_ns + ASK_AGAIN_NS


_held: dict[Path, _Held] = {}


def _holder(socket: ProbeSocket) -> ProbeSocket | None:
    """The socket with the pid that its process has here; None when nobody holds it.

    It is asked, but seldom, for every call costs the engine.
    """
    try:
        inode = socket.path.stat().st_ino
    except OSError:
        return socket  # it was removed just now
    known = _held.get(socket.path)
    if known is not None and known.inode == inode and known.holds:
        return known.socket
    _held.pop(socket.path, None)
    pid = listener(socket.path)
    if pid is None:  # nobody does, it does not yet, or not to us
        return None if nobody_listens(socket.path) else socket
    found = replace(socket, pid=pid or socket.pid, foreign=not pid)
    born = birth(pid) if pid else None
    _held[socket.path] = _Held(inode, found, born, monotonic_ns())
    return found


def socket_dir(name_limit: int = SOCKET_NAME_LIMIT) -> Path:
    """The runtime directory, or a short stand-in when its path is too long to bind.

    ``name_limit`` is the longest name, or path, that sockets will have in it.
    """
    directory = runtime_dir()
    if len(os.fsencode(directory)) + 1 + name_limit <= SOCKET_PATH_LIMIT:
        return directory
    digest = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:12]
    return private_dir(_temporary(f"inferwatch-{digest}"))


def _chosen(directory: Path) -> Path:
    """That directory, or ours in one that is everybody's; its mode is never changed."""
    try:
        place = directory.stat()
    except OSError:
        return private_dir(directory)
    if not stat.S_ISDIR(place.st_mode):
        raise RuntimeDirError(f"{directory} is no directory")
    if _is_shared(place):
        return directory
    if place.st_mode & OF_OTHERS:
        return private_dir(directory / f"inferwatch-{os.getuid()}")
    return _owned(directory)


def _is_shared(place: os.stat_result) -> bool:
    """It is meant for others, too: a group's, or a user's where we are root."""
    if place.st_mode & stat.S_IWOTH:
        return False
    of_another = place.st_uid not in {0, os.geteuid()} and os.geteuid() == 0
    return bool(place.st_mode & stat.S_ISGID) or of_another


def _temporary(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"


def private_dir(directory: Path) -> Path:
    """One of our own making, with nobody else in it.

    Raises:
        RuntimeDirError: it belongs to someone else, or cannot be made.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = _owned(directory).lstat()
        if stat.S_ISDIR(place.st_mode) and place.st_mode & 0o077:
            directory.chmod(0o700)
    except RuntimeDirError:
        raise
    except OSError as error:
        raise RuntimeDirError(f"{directory}: {error.strerror}") from error
    return directory


def _owned(directory: Path) -> Path:
    if directory.lstat().st_uid != os.getuid():
        raise RuntimeDirError(f"{directory} belongs to another user")
    return directory
