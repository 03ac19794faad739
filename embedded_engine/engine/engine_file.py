"""What is known of a served engine to whoever comes later: one file in the runtime dir.

It is written once the engine answers and is as good as its process: a file whose
process is dead is removed by whoever looks. Containers may share the directory: the
process of a file may have no pid here, and yet its probe's sockets have a listener.
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
"""The longest path of a socket of vLLM's own in its scratch directory."""
MOST_FILE_BYTES = 1 << 16


class EngineFile(msgspec.Struct, frozen=True, kw_only=True):
    """A served engine that answers: its process, its address, its log."""

    engine_id: str
    pid: int
    birth: int
    """With the pid, this names one process of one boot."""
    boot_id: str
    model: str
    url: str | None = None
    uds: str | None = None
    log_path: str
    cpu_threads: int | None = None
    """That it keeps busy, where it computes on the CPU."""
    hostage: bool = False
    """It dies with who started it: others may ask it, and never adopt it."""

    @property
    def alive(self) -> bool:
        """Its API server still runs."""
        return self.boot_id == boot_id() and birth(self.pid) == self.birth

    @property
    def path(self) -> Path:
        """Where it is kept."""
        return runtime_dir() / f"{self.engine_id}.json"

    def write(self) -> None:
        """Keep it, all at once, so that a reader never sees half of it."""
        write_plain(self.path, msgspec.json.encode(self))

    def remove(self) -> None:
        """Forget it, and whatever its dead processes left."""
        self.path.unlink(missing_ok=True)
        sweep()


def served_engines() -> list[EngineFile]:
    """The served engines that live, oldest first."""
    return [file for file in running_engines() if not file.hostage]


def running_engines() -> list[EngineFile]:
    """The same, and those that live no longer than who watches them."""
    found = filter(None, map(_read, runtime_dir().glob("*.json")))
    return sorted((file for file in found if file.alive), key=lambda file: file.birth)


def find_engine(engine_id: str) -> EngineFile:
    """The served engine of that id.

    Raises:
        NoSuchEngineError: none lives.
    """
    for file in served_engines():
        if file.engine_id == engine_id:
            return file
    raise NoSuchEngineError(f"no served engine {engine_id!r} runs on this host")


def scratch_dir(engine_id: str) -> Path:
    """Where this process's vLLM puts its own sockets, so that they can be swept.

    It is held while the process or a child of it lives: others may not see its pid.
    """
    scratch = private_dir(
        socket_dir(SCRATCH_NAME_LIMIT) / f"{engine_id}.{os.getpid()}.vllm"
    )
    if scratch not in _held:
        _held[scratch] = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):  # not every file system can
            fcntl.flock(_held[scratch], fcntl.LOCK_SH)  # who looks lets go at once
    return scratch


_held: dict[Path, int] = {}
"""Descriptors of our scratch directories, never closed."""


def sweep() -> None:
    """Remove what dead processes left: probe sockets, vLLM's sockets, engine files."""
    heard = {socket.engine_id for socket in probe_sockets()}
    for path in runtime_dir().glob("*.json"):
        file = _read(path)
        if file is not None and not file.alive and file.engine_id not in heard:
            with suppress(OSError):  # somebody else has removed it
                path.unlink()
    for path in socket_dir(SCRATCH_NAME_LIMIT).glob("*.vllm"):
        pid = path.stem.rpartition(".")[2]
        dead = pid.isdecimal() and birth(int(pid)) is None
        if dead and not _in_use(path):
            shutil.rmtree(path, ignore_errors=True)


def _in_use(scratch: Path) -> bool:
    """Who cannot be seen here may live in a container."""
    if is_held(scratch):
        return True
    try:
        sockets = list(filter(is_socket, scratch.iterdir()))
    except OSError:
        return False
    return not all(map(nobody_listens, sockets))


def _read(path: Path) -> EngineFile | None:
    """None when it is gone, written by another version or by somebody else.

    Whoever has it may end the process that it names: so only this user may say which.
    """
    try:
        content = read_plain(path, MOST_FILE_BYTES, only_ours=True)
        file = msgspec.json.decode(content, type=EngineFile)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    return file if f"{file.engine_id}.json" == path.name else None
