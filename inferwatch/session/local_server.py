"""What this host tells of a server that runs on it: its processes, and its log."""

import os
import stat
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from collectors.discover import ENGINES
from collectors.liveness import birth
from collectors.probe.discover import addresses_here, port_of
from collectors.server import Server
from embedded_engine.engine_processes import EngineProcess, EngineProcesses
from embedded_engine.logs import tail

SAID_ON = (1, 2)
"""Standard output and standard error."""


class LocalServer:
    """A server as this host sees it, if it is one of its own processes.

    It is looked at, and never signalled.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._processes: EngineProcesses | None = None
        self.no_log = f"{server.source} does not run here: its log is where it runs"
        """Why there is no log to be read, fit to show."""

    def look(self) -> None:
        """Find its process, unless it is known and lives; takes a while."""
        if self._processes is not None and self._processes.root.alive:
            return
        pid = self._listener()
        born = None if pid is None else birth(pid)
        self._processes = None
        if pid is not None and born is not None:
            self.no_log = "nothing is logged yet"
            self._processes = EngineProcesses(EngineProcess(pid, born))

    def processes(self) -> list[tuple[int, str]]:
        """Those that live, each with its role."""
        if self._processes is None:
            return []
        roles = self._processes.roles().items()
        return sorted((member.pid, role) for member, role in roles)

    def log_tail(self, lines: int) -> list[str]:
        """What it said last, where that goes into a file that we may read."""
        if self._processes is None:
            return []
        for descriptor in SAID_ON:
            if path := self._file(self._processes.root.pid, descriptor):
                return tail(path, lines)
        return []

    def _listener(self) -> int | None:
        """The process that listens there, if it is an engine's."""
        server, host = self._server, urlsplit(self._server.url).hostname or ""
        if server.uds is None and not addresses_here(host):
            return None
        self.no_log = f"the process of {server.source} cannot be seen from here"
        return next(filter(None, map(_engine_of, sorted(self._pids()))), None)

    def _pids(self) -> set[int]:
        """Whose sockets are there."""
        uds, port = self._server.uds, port_of(self._server.url)
        try:
            if uds is not None:
                unix = psutil.net_connections("unix")
                found = {each.pid for each in unix if str(each.laddr) == uds}
            else:
                found = {
                    each.pid
                    for each in psutil.net_connections("tcp")
                    if each.laddr
                    and each.laddr.port == port
                    and each.status == psutil.CONN_LISTEN
                }
            return {pid for pid in found if pid is not None}
        except (psutil.Error, OSError):
            return set()

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


def _engine_of(pid: int) -> int | None:
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
