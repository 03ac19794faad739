"""The private directory with the sockets of this user's probes and engines.

A probe's socket is named ``<engine id>.<pid>.sock``, so the directory lists what can be
watched. Sockets outlive their processes; whoever lists them removes stale ones.

The directory may be shared. Root in a container may have a user's directory mounted,
and gives its sockets to the directory's owner. Users of a group can share a directory
with the setgid bit (``chmod 2770``), whose sockets belong to the group. Others can then
put files there, which must neither lead us elsewhere nor affect our processes.
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
"""Prefix of a probe address that names another directory with sockets."""
ENGINE_ID_LIMIT = 32
AGENT_SOCKET = "agent.sock"
"""Differs from every probe's socket: no engine id, no PID."""
LIMITS_END, PROFILING_END = ".ctl", ".profile"
"""Ends of the names of an EngineCore's other sockets, beside that of its probe."""
SOCKET_NAME_LIMIT = ENGINE_ID_LIMIT + len(".4194304.sock")
CHOOSE = "INFERWATCH_RUNTIME_DIR=/a/private/directory"
"""Remedy when the directory cannot be used."""
ASK_AGAIN_NS = 5 * NS_PER_S
"""How often a process we cannot see is checked for being alive."""
SOCKET_PATH_LIMIT = 107
"""Linux's sun_path, less the closing NUL."""


class RuntimeDirError(OSError):
    """There is no usable runtime directory; the message can be shown to users."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}: {CHOOSE} chooses another directory")
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSocket:
    """The socket of one process of an engine."""

    path: Path
    engine_id: str
    pid: int
    """PID in our namespace; if it has none, that in its own container."""
    foreign: bool = False
    """Its process is not visible to us, so messages are its only sign of life."""


def runtime_dir() -> Path:
    """The private runtime directory (0700), created when missing.

    ``INFERWATCH_RUNTIME_DIR`` overrides it and may be shared; otherwise it is in the
    user's runtime directory, or in the temporary directory if there is none. A chosen
    directory that exists keeps its mode; if anybody may write to it, as in /tmp, ours
    is created inside.

    Raises:
        RuntimeDirError: it belongs to someone else, or cannot be created.
    """
    if chosen := os.environ.get("INFERWATCH_RUNTIME_DIR"):
        return _chosen(Path(chosen))
    own = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    if own.is_dir() and os.access(own, os.W_OK):
        return private_dir(own / "inferwatch")
    return private_dir(_temporary("inferwatch"))


def socket_path(engine_id: str, pid: int) -> Path:
    """Path for the probe socket of an engine's process.

    Raises:
        ValueError: the engine id is invalid.
    """
    if not 0 < len(engine_id) <= ENGINE_ID_LIMIT or "/" in engine_id:
        raise ValueError(
            f"engine id {engine_id!r} must have 1 to {ENGINE_ID_LIMIT} characters "
            "and no slash"
        )
    return socket_dir() / f"{engine_id}.{pid}.sock"


def agent_path() -> Path:
    """Default socket path of this host's agent."""
    return socket_dir() / AGENT_SOCKET


def hand_over(path: Path) -> None:
    """Let the owner or group of a socket's directory connect to the socket."""
    place = path.parent.stat()
    with suppress(OSError):  # otherwise only we can connect
        # Someone may have replaced it by a link: only a socket is changed.
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0):
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                return
            itself = f"/proc/self/fd/{descriptor}"
            if os.geteuid() == 0 and not place.st_mode & stat.S_ISGID:
                os.chown(itself, place.st_uid, place.st_gid)
            Path(itself).chmod(0o660 if place.st_mode & stat.S_ISGID else 0o600)


def probe_sockets(engine_id: str | None = None) -> list[ProbeSocket]:
    """Sockets of running probes, of one engine or of all; stale ones are removed."""
    sockets = []
    for socket in _sockets(socket_dir()):
        holder = _holder(socket)
        if holder is None:
            with suppress(OSError):  # another user may have to remove it
                for end in (LIMITS_END, PROFILING_END):
                    socket.path.with_suffix(end).unlink(missing_ok=True)
                socket.path.unlink()  # last, because the other one is found by it
        elif engine_id in {None, socket.engine_id}:
            sockets.append(holder)
    return sorted(sockets, key=lambda socket: socket.pid)


def forwarded_sockets(directory: Path, engine_id: str | None) -> list[ProbeSocket]:
    """Sockets of another host's probes, forwarded into this directory."""
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
class _AnsweredSocket:
    """A socket that answered, with its process."""

    inode: int
    socket: ProbeSocket
    born: int | None
    """Start time of its process, if that is visible."""
    asked_ns: int

    @property
    def holds(self) -> bool:
        """Whether the process is alive; if invisible, whether it was checked lately.

        The wall clock is not used because it may be set in between.
        """
        if self.born is not None:
            return birth(self.socket.pid) == self.born
        return monotonic_ns() < self.asked_ns + ASK_AGAIN_NS


_answered: dict[Path, _AnsweredSocket] = {}


def _holder(socket: ProbeSocket) -> ProbeSocket | None:
    """The socket with its process's PID on this host; None if nobody listens.

    Answers are cached, since every call costs the engine.
    """
    try:
        inode = socket.path.stat().st_ino
    except OSError:
        return socket  # removed in the meantime
    cached = _answered.get(socket.path)
    if cached is not None and cached.inode == inode and cached.holds:
        return cached.socket
    _answered.pop(socket.path, None)
    pid = listener(socket.path)
    if pid is None:  # nobody listens, or not yet, or not for us
        return None if nobody_listens(socket.path) else socket
    holder = replace(socket, pid=pid or socket.pid, foreign=not pid)
    born = birth(pid) if pid else None
    _answered[socket.path] = _AnsweredSocket(inode, holder, born, monotonic_ns())
    return holder


def socket_dir(name_limit: int = SOCKET_NAME_LIMIT) -> Path:
    """The runtime directory, or a shorter one if its path is too long for a socket.

    ``name_limit`` is the longest name of a socket in it.
    """
    directory = runtime_dir()
    if len(os.fsencode(directory)) + 1 + name_limit <= SOCKET_PATH_LIMIT:
        return directory
    digest = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:12]
    return private_dir(_temporary(f"inferwatch-{digest}"))


def _chosen(directory: Path) -> Path:
    """The directory the user chose, or a private one inside if it is world-writable."""
    try:
        place = directory.stat()
    except OSError:
        return private_dir(directory)
    if not stat.S_ISDIR(place.st_mode):
        raise RuntimeDirError(f"{directory} is not a directory")
    if _is_shared(place):
        return directory
    if place.st_mode & OF_OTHERS:
        return private_dir(directory / f"inferwatch-{os.getuid()}")
    return _owned(directory)


def _is_shared(place: os.stat_result) -> bool:
    """Whether others share the directory: setgid, or not root's while we are root."""
    if place.st_mode & stat.S_IWOTH:
        return False
    of_another = place.st_uid not in {0, os.geteuid()} and os.geteuid() == 0
    return bool(place.st_mode & stat.S_ISGID) or of_another


def _temporary(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"


def private_dir(directory: Path) -> Path:
    """A directory of our own that nobody else can enter.

    Raises:
        RuntimeDirError: it belongs to someone else, or cannot be created.
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
