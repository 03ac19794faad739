"""Files that describe running engines to other processes, in the runtime directory.

A file is written once the engine answers, and is stale when its process is dead;
whoever reads the directory removes stale files. Containers may share the directory: a
process may then have no PID here although its probe's sockets have a listener.
"""

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import msgspec

from collectors.contract.clock import boot_id
from collectors.contract.liveness import birth, is_held, is_socket, nobody_listens
from collectors.contract.plain_file import read_plain, write_plain
from collectors.contract.runtime_dir import (
    ENGINE_ID_LIMIT,
    private_dir,
    probe_sockets,
    runtime_dir,
    socket_dir,
)
from embedded_engine.engine.errors import NoSuchEngineError

SCRATCH_NAME_LIMIT = ENGINE_ID_LIMIT + len(".4194304.vllm/") + len(str(UUID(int=0)))
"""Longest path of one of vLLM's own sockets in its scratch directory."""
MOST_FILE_BYTES = 1 << 16


class EngineFile(msgspec.Struct, frozen=True, kw_only=True):
    """A running engine: its process, address and log."""

    engine_id: str
    pid: int
    birth: int
    """Start time of the process, which with the PID identifies it within a boot."""
    boot_id: str
    model: str
    url: str | None = None
    uds: str | None = None
    log_path: str
    cpu_threads: int | None = None
    """Threads a CPU engine keeps busy."""
    hostage: bool = False
    """It ends with the process that started it, so nobody else may adopt it."""

    @property
    def alive(self) -> bool:
        """Whether the engine's API server is still running."""
        return self.boot_id == boot_id() and birth(self.pid) == self.birth

    @property
    def path(self) -> Path:
        return runtime_dir() / f"{self.engine_id}.json"

    def write(self) -> None:
        """Write the file atomically."""
        write_plain(self.path, msgspec.json.encode(self))

    def remove(self) -> None:
        """Delete the file, and everything dead processes left."""
        self.path.unlink(missing_ok=True)
        sweep()


def served_engines() -> list[EngineFile]:
    """Engines that outlive their watcher, oldest first."""
    return [file for file in running_engines() if not file.hostage]


def running_engines() -> list[EngineFile]:
    """All running engines, including those that end with their watcher."""
    files = filter(None, map(_read, runtime_dir().glob("*.json")))
    return sorted((file for file in files if file.alive), key=lambda file: file.birth)


def find_engine(engine_id: str) -> EngineFile:
    """The served engine with an id.

    Raises:
        NoSuchEngineError: there is none.
    """
    for file in served_engines():
        if file.engine_id == engine_id:
            return file
    raise NoSuchEngineError(f"no served engine {engine_id!r} runs on this host")


def scratch_dir(engine_id: str) -> Path:
    """Create a locked directory for the sockets of the vLLM in this process.

    The lock lasts while this process or a child is alive, because other containers may
    not see our PID. An unlocked directory can be removed.
    """
    scratch = private_dir(
        socket_dir(SCRATCH_NAME_LIMIT) / f"{engine_id}.{os.getpid()}.vllm"
    )
    if scratch not in _held:
        _held[scratch] = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):  # not every file system supports locks
            # readers hold the lock only briefly
            fcntl.flock(_held[scratch], fcntl.LOCK_SH)
    return scratch


_held: dict[Path, int] = {}
"""Descriptors of our scratch directories, never closed."""


def sweep() -> None:
    """Remove what dead processes left: probe sockets, vLLM's sockets, engine files."""
    engine_ids = {socket.engine_id for socket in probe_sockets()}
    for path in runtime_dir().glob("*.json"):
        file = _read(path)
        if file is not None and not file.alive and file.engine_id not in engine_ids:
            with suppress(OSError):  # removed by another process
                path.unlink()
    for path in socket_dir(SCRATCH_NAME_LIMIT).glob("*.vllm"):
        pid = path.stem.rpartition(".")[2]
        dead = pid.isdecimal() and birth(int(pid)) is None
        if dead and not _in_use(path):
            shutil.rmtree(path, ignore_errors=True)


def _in_use(scratch: Path) -> bool:
    """Whether a process we cannot see, as in a container, uses the directory."""
    if is_held(scratch):
        return True
    try:
        sockets = list(filter(is_socket, scratch.iterdir()))
    except OSError:
        return False
    return not all(map(nobody_listens, sockets))


def _read(path: Path) -> EngineFile | None:
    """The engine file; None if missing, of another version or another user's.

    A reader may end the process it names, so only this user's files are trusted.
    """
    try:
        content = read_plain(path, MOST_FILE_BYTES, only_ours=True)
        file = msgspec.json.decode(content, type=EngineFile)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    return file if f"{file.engine_id}.json" == path.name else None
