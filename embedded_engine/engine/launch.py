"""Starts, adopts, watches and ends engines."""

import asyncio
import errno
import fcntl
import os
import socket
from asyncio import FIRST_COMPLETED
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import msgspec

from collectors.contract.clock import boot_id, monotonic_ns
from collectors.contract.liveness import birth, nobody_listens
from collectors.contract.readings import Endpoint
from collectors.contract.runtime_dir import RuntimeDirError
from embedded_engine.engine.config import EngineConfig
from embedded_engine.engine.engine_file import (
    EngineFile,
    find_engine,
    running_engines,
    sweep,
)
from embedded_engine.engine.engine_processes import (
    EngineProcess,
    EngineProcesses,
    ProcessDeath,
    first_death,
)
from embedded_engine.engine.errors import (
    EngineDiedError,
    EngineError,
    EngineMissingError,
    PortTakenError,
)
from embedded_engine.engine.logs import (
    PREFIX,
    cause,
    redacted,
    rendezvous_files,
    tail,
    telling,
)
from embedded_engine.engine.startup import (
    OnStage,
    checked_model,
    connect,
    follow,
    model_of,
    served_model,
    spawn,
    stage,
)
from embedded_engine.engine.startup_pipe import StartupPipe

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - recognised, not bound
"""Addresses that reach a server bound to all interfaces, from this host."""


@contextmanager
def reserved(host: str, port: int | None, uds: Path | None) -> Iterator[int | None]:
    """Reserve the address and yield its port; None for a Unix socket.

    Raises:
        PortTakenError: another process listens there.
    """
    if uds is not None:
        with claimed_unix_socket(uds):
            yield None
        return
    with reserved_port(host, port) as holder:
        yield holder.getsockname()[1]


@contextmanager
def reserved_port(host: str, port: int | None) -> Iterator[socket.socket]:
    """Hold a port, or any free one, until the server binds it seconds later.

    Linux lets a second socket bind next to one that does not listen if both set
    SO_REUSEPORT, as vLLM's does. Ours sets it only after its own bind succeeded, so
    that bind was exclusive, and at no time could another process take the port.

    Connections a previous server left in TIME_WAIT prevent an exclusive bind, but not
    the server's. So the second attempt sets SO_REUSEADDR as the server does, and fails
    if another process listens; concurrent reservations exclude each other by the guard.

    Raises:
        PortTakenError: the port is taken, or the host is not an address of ours.
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
    """Reserve a Unix socket path for a server of ours, removing a stale socket.

    Raises:
        PortTakenError: another process uses or reserved it.
    """
    with _locked(path) as locked:
        if not locked or not _make_way(path):
            raise PortTakenError(f"{path} is in use: choose another with --uds")
        yield


def clear_unix_socket(path: Path) -> None:
    """Remove a stale Unix socket, unless another process has reserved the path."""
    with suppress(PortTakenError), _locked(path) as locked:
        if locked:
            _make_way(path)


def _make_way(path: Path) -> bool:
    """Remove a stale socket at a path; False if anything else is there."""
    if os.path.lexists(path):
        if not nobody_listens(path):
            return False
        path.unlink(missing_ok=True)
    return True


_ours: set[Path] = set()
"""Paths locked by this process."""


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Lock the path of a socket; yields False if another process has the lock."""
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
    """Descriptor of the locked lock file; None if another process has the lock."""
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
        os.close(descriptor)  # its holder removed it in the meantime


def url_of(host: str, port: int, scheme: str = "http") -> str:
    """URL at which a client on this host reaches a server bound to ``host``."""
    reachable = WILDCARDS.get(host, host)
    name = f"[{reachable}]" if ":" in reachable else reachable
    return f"{scheme}://{name}:{port}"


__all__ = ["Engine", "running_engines"]

SHOWN_LINES = 12
"""Log lines included in an error."""
SEARCHED_LINES = 2_000
LAST_WORDS_S = 0.2
"""Time for the API server to log that it lost another process."""


class Engine:
    """A running engine, created by :meth:`start` or :meth:`adopt`."""

    def __init__(self, file: EngineFile) -> None:
        self.file = file
        self._processes = EngineProcesses(EngineProcess(file.pid, file.birth))

    @classmethod
    async def start(cls, config: EngineConfig, on_stage: OnStage) -> Self:
        """Start an engine and return when it is healthy; cancelling ends it.

        Raises:
            EngineError: the start failed; the subclass says why.
        """
        try:
            sweep()
        except RuntimeDirError as error:
            raise EngineError(str(error)) from error
        model = await model_of(config)
        if config.tiny_model_dir is not None:
            on_stage(stage("model made"))
        with (
            closing(StartupPipe()) as pipe,
            reserved(config.host, config.port, config.uds) as port,
        ):
            pid = spawn(config, model, port, pipe)
            engine = cls(describe(config, pid, port))
            try:
                await engine._come_up(pipe, on_stage)
            except BaseException:
                await engine.stop()
                raise
        engine.file.write()
        return engine

    @classmethod
    def adopt(cls, engine_id: str) -> Self:
        """Attach to a served engine that is running.

        Raises:
            NoSuchEngineError: there is none with this id.
        """
        return cls(find_engine(engine_id))

    @property
    def engine_id(self) -> str:
        return self.file.engine_id

    @property
    def pid(self) -> int:
        """PID of the API server, or of the supervisor of several API servers."""
        return self.file.pid

    @property
    def url(self) -> str | None:
        """URL of the server; None if it listens on a Unix socket."""
        return self.file.url

    @property
    def endpoint(self) -> Endpoint:
        """The engine's address as a reading, stamped now."""
        return Endpoint(
            t_ns=monotonic_ns(),
            pid=self.file.pid,
            model=self.file.model,
            url=self.file.url,
            uds=self.file.uds,
            log_path=self.file.log_path,
        )

    async def _come_up(self, pipe: StartupPipe, on_stage: OnStage) -> None:
        async with connect(self.file) as client:
            healthy = asyncio.create_task(
                follow(pipe, self.engine_id, client, on_stage)
            )
            death = asyncio.create_task(self.wait())
            try:
                await asyncio.wait({healthy, death}, return_when=FIRST_COMPLETED)
                if not healthy.done():
                    raise failure(pipe, await death)
                await healthy
            finally:
                await _drop(healthy, death)
            model = await served_model(client) or self.file.model
            self.file = msgspec.structs.replace(self.file, model=model)

    def processes(self) -> list[tuple[int, str]]:
        """PID and role (api, core or worker) of the engine's processes."""
        roles = self._processes.roles().items()
        return sorted((member.pid, role) for member, role in roles)

    def busy_threads(self) -> int:
        """Number of threads the engine keeps busy under load."""
        return self.file.cpu_threads or self._processes.computing()

    def log_tail(self, lines: int) -> list[str]:
        """The last lines of the engine's log, oldest first."""
        return tail(Path(self.file.log_path), lines)

    async def wait(self) -> str:
        """Wait until a process of the engine dies, and explain it from the log."""
        death = await first_death(self._processes)
        await self._processes.gone_within(LAST_WORDS_S)
        return account(death, self.log_tail(SEARCHED_LINES))

    async def stop(self) -> None:
        """End the engine within 5 s, and remove everything but its log."""
        await self._processes.end()
        self._reap()
        self._clear_away()

    def _reap(self) -> None:
        with suppress(ChildProcessError):  # an adopted engine is not our child
            os.waitpid(self.file.pid, os.WNOHANG)

    def _clear_away(self) -> None:
        for path in rendezvous_files(Path(self.file.log_path)):
            path.unlink(missing_ok=True)
        if self.file.uds is not None:
            clear_unix_socket(Path(self.file.uds))
        self.file.remove()


def check(config: EngineConfig) -> None:
    """Check model path, flags and address before anything is started.

    Raises:
        EngineError: the engine could not start; the subclass says why.
    """
    checked_model(config.model)
    config.refuse_ours()
    with reserved(config.host, config.port, config.uds):
        return


def describe(config: EngineConfig, pid: int, port: int | None) -> EngineFile:
    """The engine file of an engine that does not answer yet."""
    at = {"url": url_of(config.host, port, config.scheme)} if port else {}
    return EngineFile(
        engine_id=config.engine_id,
        pid=pid,
        # 0 if it is dead already, which is noticed like any death
        birth=birth(pid) or 0,
        boot_id=boot_id(),
        model=config.model,
        uds=str(config.uds.absolute()) if config.uds else None,
        log_path=str(config.log_path),
        cpu_threads=config.cpu_threads(),
        hostage=config.hostage,
        **at,
    )


def account(death: ProcessDeath, log: list[str]) -> str:
    """Text about a death to be recorded: its cause in one line, then the log's end."""
    why = None if death.from_outside else cause(log)
    first = f"{death}: {why}" if why else str(death)
    lines = [PREFIX.sub("", line, count=1) for line in telling(log)]
    lines = [
        line for line in lines if line.strip(" ^~")
    ]  # drop the markers below a traceback's lines
    return "\n".join(map(redacted, [first, *lines[-SHOWN_LINES:]]))


def failure(pipe: StartupPipe, reason: str) -> EngineError:
    """The error to raise for a death during start-up."""
    if pipe.lacks:
        return EngineMissingError(pipe.lacks)
    if "Address already in use" in reason:
        return PortTakenError(reason)
    return EngineDiedError(reason)


async def _drop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
