"""What this host knows of a server that runs on it: its processes and its log."""

import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from collectors.contract.liveness import birth
from collectors.http.server import Server
from collectors.probe.discover import addresses_here, port_of
from collectors.servers.discover import ENGINES
from embedded_engine.engine.engine_processes import EngineProcess, EngineProcesses
from embedded_engine.engine.logs import tail

SAID_ON = (1, 2)
"""The descriptors whose file is taken for the log: standard output and error."""


Listeners = Mapping[str, set[int]]
"""The pids that listen, by port or by the path of a Unix socket."""


def look_for(servers: Iterable["LocalServer"]) -> None:
    """Look for the processes of servers that have none yet; may take a while."""
    missing = [each for each in servers if each.is_missing]
    pids_by_place = listeners() if missing else {}
    for each in missing:
        each.look(pids_by_place)


def runs_here(server: Server) -> bool:
    """Tell whether this host has a visible process of the server; may take a while."""
    local = LocalServer(server)
    look_for([local])
    return local.runs_python()


def listeners() -> Listeners:
    """Return all visible listeners of this host: one lookup serves many servers."""
    pids_by_place: dict[str, set[int]] = {}
    try:
        sockets = psutil.net_connections("all")
    except (psutil.Error, OSError):
        return pids_by_place
    for each in sockets:
        address: Any = each.laddr  # a path, or host and port
        place = address if isinstance(address, str) else None
        if address and each.status == psutil.CONN_LISTEN:
            place = str(address[1])
        if place and each.pid:
            pids_by_place.setdefault(place, set()).add(each.pid)
    return pids_by_place


class LocalServer:
    """A server as this host sees it, if it runs here.

    Its process is only read, and never signalled.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._processes: EngineProcesses | None = None
        self._is_here: bool | None = None
        """Whether the server runs on this host; None until it was looked up."""
        self._log: Path | None = None
        """The log file of the process that was seen last."""
        self.no_log = f"{server.source} does not run here: its log is where it runs"
        """Why there is no log to be read, fit to show."""

    @property
    def is_missing(self) -> bool:
        """Whether the server runs here but no living process of the server is known."""
        if self._is_here is None:
            server, host = self._server, urlsplit(self._server.url).hostname or ""
            local = bool(server.uds or addresses_here(host))
            # a tunnel's socket is ours; what has no address is found by no port
            self._is_here = local and not (server.ssh or server.only_probe)
        is_known = self._processes is not None and self._processes.root.alive
        return self._is_here and not is_known

    def look(self, listeners: Listeners) -> None:
        """Look for the process of the server, if that is an engine."""
        self.no_log = f"the process of {self._server.source} cannot be seen from here"
        place = self._server.uds or str(port_of(self._server.url))
        pids = sorted(listeners.get(place, ()))
        pid = next(filter(None, map(engine_of, pids)), None)
        born = None if pid is None else birth(pid)
        self._processes = None
        if pid is not None and born is not None:
            self.no_log = "nothing is logged yet"
            self._processes = EngineProcesses(EngineProcess(pid, born))
            files = (self._file(pid, descriptor) for descriptor in SAID_ON)
            self._log = next(filter(None, files), None)

    def runs_python(self) -> bool:
        """Tell whether the process is Python: a tunnel can look like an engine."""
        with suppress(psutil.Error):
            if self._processes is not None:
                program = Path(psutil.Process(self._processes.root.pid).exe())
                return program.name.startswith("python")
        return False

    def processes(self) -> list[tuple[int, str]]:
        """Return the server's living processes as (pid, role), by pid."""
        if self._processes is None:
            return []
        roles = self._processes.roles().items()
        return sorted((member.pid, role) for member, role in roles)

    def log_tail(self, lines: int) -> list[str]:
        """Return the last lines of the server's log, if it is a file that we may read.

        A process that has died is included: then its log matters most.
        """
        return tail(self._log, lines) if self._log else []

    def _file(self, pid: int, descriptor: int) -> Path | None:
        """Return the file behind a descriptor; None, with the reason, if unreadable."""
        try:
            path = Path(f"/proc/{pid}/fd/{descriptor}").readlink()
            kind = path.stat().st_mode
        except OSError:
            self.no_log = (
                f"{self._server.source} writes its log to a pipe: journalctl, docker "
                "logs or kubectl logs show it"
            )
            return None
        if not stat.S_ISREG(kind):
            self.no_log = f"{self._server.source} writes its log to {path}"
            return None
        if not os.access(path, os.R_OK):
            self.no_log = f"{path} may not be read by this user"
            return None
        return path


def engine_of(pid: int) -> int | None:
    """Return the topmost process of the engine that a process belongs to, if any.

    Each of several API servers listens, and all have one parent.
    """
    engine_pid = None
    try:
        process: psutil.Process | None = psutil.Process(pid)
        program = process.exe() if process else ""
        while process is not None and process.exe() == program:
            if not ENGINES.search(" ".join(process.cmdline())):
                break
            engine_pid, process = process.pid, process.parent()
    except psutil.Error:
        return engine_pid
    return engine_pid
