"""Whether a process is alive, and whether anyone listens on a Unix socket file.

A PID with its start time identifies a process; a socket file outlives its process.
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
"""Out of file descriptors, in this process or system-wide."""
STATE, BIRTH = 0, 19
"""Indices in /proc/PID/stat after the command's closing bracket (proc(5): 3 and 22)."""


def birth(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if it is dead.

    A zombie counts as dead: its resources are released. Out of file descriptors, the
    last known start time is returned.

    Raises:
        OSError: out of descriptors, and the start time is not known yet.
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
"""Last known start times of living processes."""


def _exists(pid: int) -> bool:
    """Whether a PID exists, perhaps as a zombie; needs no file descriptor."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True


def is_held(path: Path) -> bool:
    """Whether any process, visible or not, holds an flock on a file or directory."""
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
    """Whether another process's flock conflicts with one of this kind.

    None if the file cannot be locked. Without a conflict, the lock is ours until the
    descriptor is closed.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def pid_namespace() -> str | None:
    """Id of our PID namespace; None if it cannot be read."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return None


SOCKET_STATE, SOCKET_PATH = 5, 7
"""Indices in a line of /proc/net/unix."""
CONNECTED = b"03"
"""State of accepted connections, which may outlive their listener."""


def is_socket(path: Path) -> bool:
    """Whether the path itself is a Unix socket; symbolic links are not followed."""
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False


def nobody_listens(path: Path) -> bool:
    """Whether a socket file is orphaned and may be removed.

    Only a refused connection proves it. A datagram socket answers otherwise, but a
    bound socket that does not listen yet refuses as well, so /proc/net/unix is checked.
    """
    if not is_socket(path):
        return False
    try:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.settimeout(0)
            answer = caller.connect_ex(str(path))
    except OSError:  # out of descriptors, or the path is too long
        return False
    return answer == errno.ECONNREFUSED and not _is_bound(path)


PEER = struct.Struct("3i")
"""pid, uid and gid of the peer (unix(7): SO_PEERCRED)."""


def peer_uid(connection: socket.socket) -> int:
    """User id of the peer of a Unix socket, from the kernel."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    return int(PEER.unpack(peer)[1])


def listener(path: Path) -> int | None:
    """PID of the process that listens on a Unix socket.

    0 if it has no PID in our namespace, as in another container; None if nobody listens
    or we may not connect.
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
"""Most addresses reported for a process."""


def listened_to() -> list[str]:
    addresses = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(entry.readlink()).startswith("socket:"):
                addresses.append(_listens_at(os.dup(int(entry.name))))
    return sorted(filter(None, addresses))[:MOST_LISTENED]


def _listens_at(descriptor: int) -> str:
    """Address of a listening socket, empty otherwise; closes the descriptor."""
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        return ""
    with sock:
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        return _address_text(sock.getsockname()) if listens else ""


def _address_text(address: object) -> str:
    """``host:port``, or the path of a Unix socket."""
    if isinstance(address, tuple):
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return address if isinstance(address, str) else ""


def _is_bound(path: Path) -> bool:
    """Whether the kernel lists the path as bound."""
    try:
        listed = Path("/proc/net/unix").read_bytes()
    except OSError:
        return True  # when in doubt, keep the file
    paths = {bytes(path.absolute()), bytes(path.resolve())}
    for line in listed.splitlines()[1:]:
        *fields, name = line.split(None, SOCKET_PATH)
        if len(fields) == SOCKET_PATH and fields[SOCKET_STATE] != CONNECTED:
            relative = not name.startswith((b"/", b"@"))
            if name in paths or (relative and name.endswith(os.fsencode(path.name))):
                return True
    return False
