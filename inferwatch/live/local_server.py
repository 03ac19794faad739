"""What this host tells of a server that runs on it: its processes, and its log."""

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
"""Standard output and standard error."""


Listeners = Mapping[str, set[int]]
"""Who listens, by port or by the path of a Unix socket."""


def look_for(servers: Iterable["LocalServer"]) -> None:
    """Find the processes of those that are not known; takes a while."""
    missing = [each for each in servers if each.is_missing]
    found = listeners() if missing else {}
    for each in missing:
        each.look(found)


def runs_here(server: Server) -> bool:
    """A vLLM server's process is one of this host's that we can see; takes a while."""
    local = LocalServer(server)
    look_for([local])
    return local.runs_python()


def listeners() -> Listeners:
    """All that can be seen on this host: one look is enough for many servers."""
    found: dict[str, set[int]] = {}
    try:
        sockets = psutil.net_connections("all")
    except (psutil.Error, OSError):
        return found
    for each in sockets:
        address: Any = each.laddr  # a path, or host and port
        place = address if isinstance(address, str) else None
        if address and each.status == psutil.CONN_LISTEN:
            place = str(address[1])
        if place and each.pid:
            found.setdefault(place, set()).add(each.pid)
    return found


class LocalServer:
    """A server as this host sees it, if it is one of its own processes.

    It is looked at, and never signalled.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._processes: EngineProcesses | None = None
        self._is_here: bool | None = None
        """None until somebody looked."""
        self._log: Path | None = None
        """Of the process that was seen last."""
        self.no_log = f"{server.source} does not run here: its log is where it runs"
        """Why there is no log to be read, fit to show."""

    @property
    def is_missing(self) -> bool:
        """It runs here, and its process is not known, or dead."""
        if self._is_here is None:
            server, host = self._server, urlsplit(self._server.url).hostname or ""
            local = bool(server.uds or addresses_here(host))
            self._is_here = local and not server.ssh  # its socket is ours
        known = self._processes is not None and self._processes.root.alive
        return self._is_here and not known

    def look(self, listeners: Listeners) -> None:
        """Find its process, if it is an engine's."""
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
        """Its process is seen, and no tunnel's that is only called after an engine."""
        with suppress(psutil.Error):
            if self._processes is not None:
                program = Path(psutil.Process(self._processes.root.pid).exe())
                return program.name.startswith("python")
        return False

    def processes(self) -> list[tuple[int, str]]:
        """Those that live, each with its role."""
        if self._processes is None:
            return []
        roles = self._processes.roles().items()
        return sorted((member.pid, role) for member, role in roles)

    def log_tail(self, lines: int) -> list[str]:
        """What it said last, where that goes into a file that we may read.

        Of one that has died, too: then it matters most.
        """
        return tail(self._log, lines) if self._log else []

    def _file(self, pid: int, descriptor: int) -> Path | None:
        """Where it writes what it says, if that is a file."""
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
    """The first process of the engine that a process belongs to; None: it is none's.

    Of several API servers each listens, and all have one parent.
    """
    found = None
    try:
        process: psutil.Process | None = psutil.Process(pid)
        program = process.exe() if process else ""
        while process is not None and process.exe() == program:
            if not ENGINES.search(" ".join(process.cmdline())):
                break
            found, process = process.pid, process.parent()
    except psutil.Error:
        return found
    return found
