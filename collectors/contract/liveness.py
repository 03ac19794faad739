"""Whether a process lives, and whether anybody is behind a Unix socket's file.

A pid and its birth name one process for as long as it lives; a socket's file outlives
its process.
"""

import errno
import fcntl
import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

OUT_OF_DESCRIPTORS = {errno.EMFILE, errno.ENFILE}
"""This process has none left, or the system."""
STATE, BIRTH = 0, 19
"""Places in /proc/PID/stat after the command's closing bracket (proc(5): 3 and 22)."""


def birth(pid: int) -> int | None:
    """When a process started, in clock ticks of this boot; None once it is dead.

    A zombie is dead: what it held is gone, only its parent has not looked yet. Whoever
    has no descriptor left to look with goes by what it saw before.

    Raises:
        OSError: there is none left, and it has not looked before.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError as error:
        if error.errno in OUT_OF_DESCRIPTORS and _exists(pid):
            if pid not in _births:
                raise
            return _births[pid]
        _births.pop(pid, None)
        return None
    fields = text.rpartition(")")[2].split()
    if fields[STATE] in "ZX":
        _births.pop(pid, None)
        return None
    _births[pid] = int(fields[BIRTH])
    return _births[pid]


_births: dict[int, int] = {}
"""Of the living, as they were seen last."""


def _exists(pid: int) -> bool:
    """There is such a process, perhaps a zombie: to ask that takes no descriptor."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is another user's
        pass
    return True


def is_held(path: Path) -> bool:
    """Some process has a file or directory locked (flock), whoever can see its pid."""
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return bool(in_the_way(descriptor, fcntl.LOCK_EX))
    finally:
        os.close(descriptor)


def in_the_way(descriptor: int, kind: int) -> bool | None:
    """Another's lock on the same file keeps us from one of this kind (flock).

    None where it cannot be locked. Where nothing is in the way, the lock is ours until
    the descriptor is closed.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def pid_namespace() -> str | None:
    """Names the namespace in which our pids count; None where that cannot be read."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return None


SOCKET_STATE, SOCKET_PATH = 5, 7
"""Places in a line of /proc/net/unix."""
CONNECTED = b"03"
"""What a listener accepted goes by its path, and may outlive it."""


def is_socket(path: Path) -> bool:
    """A Unix socket's file itself: a link to one may lead anywhere."""
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False


def nobody_listens(path: Path) -> bool:
    """A socket's file has lost its owner, and may be removed.

    Only a refused connection proves that. A datagram socket answers otherwise, and
    one that is bound but does not listen yet refuses too, so it is looked up.
    """
    if not is_socket(path):
        return False
    try:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.settimeout(0)
            answer = caller.connect_ex(str(path))
    except OSError:  # no descriptor is left, or the path is too long to connect to
        return False
    return answer == errno.ECONNREFUSED and not _is_bound(path)


PEER = struct.Struct("3i")
"""pid, uid and gid of who is at the other end (unix(7): SO_PEERCRED)."""


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end of a Unix socket, as the kernel knows."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    return int(PEER.unpack(peer)[1])


def listener(path: Path) -> int | None:
    """The process behind a Unix socket, by the pid it has here.

    0 when it has none here, as one in another container; None when that cannot be
    asked, because nobody listens yet or we may not connect.
    """
    try:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.settimeout(0)
            caller.connect(str(path))
            peer = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    except OSError:
        return None
    return int(PEER.unpack(peer)[0])


MOST_LISTENED = 64
"""Addresses that are told of one process."""


def listened_to() -> list[str]:
    """Addresses at which this very process takes connections."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(entry.readlink()).startswith("socket:"):
                found.append(_listens_at(os.dup(int(entry.name))))
    return sorted(filter(None, found))[:MOST_LISTENED]


def _listens_at(descriptor: int) -> str:
    """The address of a socket that listens; it is closed, whatever it is."""
    try:
        held = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        return ""
    with held:
        listens = held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        return _shown(held.getsockname()) if listens else ""


def _shown(address: object) -> str:
    """``host:port``, or the path of a Unix socket."""
    if isinstance(address, tuple):
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return address if isinstance(address, str) else ""


def _is_bound(path: Path) -> bool:
    """The kernel lists the path as bound."""
    try:
        listed = Path("/proc/net/unix").read_bytes()
    except OSError:
        return True  # who cannot know does not remove
    wanted = {bytes(path.absolute()), bytes(path.resolve())}
    for line in listed.splitlines()[1:]:
        *fields, name = line.split(None, SOCKET_PATH)
        if len(fields) == SOCKET_PATH and fields[SOCKET_STATE] != CONNECTED:
            relative = not name.startswith((b"/", b"@"))
            if name in wanted or (relative and name.endswith(os.fsencode(path.name))):
                return True
    return False
