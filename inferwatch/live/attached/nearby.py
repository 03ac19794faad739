"""What could be watched from here: engines on this node, servers watched before."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from collectors.contract.runtime_dir import RuntimeDirError, probe_sockets
from collectors.http.server import PROBE
from collectors.probe.discover import WILD, ProbedEngine, probed_engines
from collectors.servers.discover import FoundServer, found_servers, served_uds
from embedded_engine.engine.engine_file import (
    EngineFile,
    running_engines,
    served_engines,
)
from inferwatch.record.file.sqlite import connect

MOST_RECENT = 5
RECENT = (
    "SELECT coalesce(uds, url), max(session) AS latest FROM servers "
    "WHERE coalesce(uds, url) IS NOT NULL GROUP BY 1 ORDER BY latest DESC LIMIT ?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NearbyEngine:
    """An engine that runs on this node."""

    address: str
    """Its URL, the path of its Unix socket, or ``probe:`` and its engine id."""
    family: str = "vllm"
    models: Sequence[str] = ()
    engine_id: str | None = None
    """The engine id, if inferwatch serves it."""
    answered: bool = True
    """False if it listens but was too busy to answer."""
    in_application: bool = False
    """It runs in an application that answers no path of an inference server."""

    orphan_pid: int | None = None
    """The PID of an EngineCore whose API process is gone: it answers nobody."""

    @property
    def what(self) -> str:
        """Its models, else its family; fit to show."""
        models = ", ".join(self.models) or self.family
        if self.orphan_pid is not None:
            return f"{models}, {self.orphan}"
        return f"{models}, in an application" if self.in_application else models

    @property
    def orphan(self) -> str:
        """What became of its API process, for an orphan."""
        return f"an orphan: its API process is gone, pid {self.orphan_pid} is left"

    @property
    def attach_to(self) -> str:
        """The argument for `inferwatch attach`."""
        return attachable(self.address)

    @property
    def place(self) -> str:
        """The engine's address without ``http://``."""
        return self.address.removeprefix("http://")


LookAround = Callable[[], Awaitable[Sequence[NearbyEngine]]]


async def nearby_engines(*, hostages: bool = False) -> list[NearbyEngine]:
    """Return the engines of this node, our own ones last; takes about half a second.

    An application that uses vLLM in its own process answers no path that a server has:
    it is found by its probe, which may take a second to reply.

    With ``hostages`` those of ours, too, that end with whoever watches them.
    """
    our_files = running_engines if hostages else served_engines
    files, servers, probed = await asyncio.gather(
        asyncio.to_thread(our_files),
        found_servers(),
        asyncio.to_thread(_probed_elsewhere),
    )
    ours = [_ours(each) for each in files]
    ports = {_port(each.url) for each in files if each.url}
    others = [_other(each) for each in servers if each.port not in ports]
    ports |= {each.port for each in servers}
    behind_probes = [
        _probed(each)
        for each in probed
        if ports.isdisjoint(int(at.rpartition(":")[2]) for at in each.addresses)
    ]
    return [*others, *behind_probes, *ours]


async def nobody() -> Sequence[NearbyEngine]:
    """Return no engines; used where none are to be searched for."""
    return ()


def recent_servers(path: Path) -> list[str]:
    """Return addresses of servers in recorded sessions, the latest first.

    It is a convenience: for a file that needs repair or migration it returns none.
    """
    try:
        with closing(connect(path, "ro")) as connection:
            rows = connection.execute(RECENT, (MOST_RECENT,)).fetchall()
    except sqlite3.Error:
        return []
    return [str(address) for address, _ in rows]


def attachable(address: str) -> str:
    """Return a URL or socket path in the form that `inferwatch attach` takes."""
    return f"unix:{address}" if address.startswith("/") else address


def _ours(file: EngineFile) -> NearbyEngine:
    return NearbyEngine(
        address=file.url or file.uds or "",
        models=(file.model,),
        engine_id=file.engine_id,
    )


def _probed_elsewhere() -> list[ProbedEngine]:
    """Return the engines with a probe that inferwatch did not start."""
    ours = {each.engine_id for each in running_engines()}
    try:
        sockets = [each for each in probe_sockets() if each.engine_id not in ours]
    except RuntimeDirError:
        return []
    return probed_engines(sockets) if sockets else []


def _probed(engine: ProbedEngine) -> NearbyEngine:
    """Return a server by its Unix socket, as no port of it was found.

    An application is returned by its only port, which outlives a restart, else by the
    engine's id.
    """
    if uds := served_uds(engine.pid, engine.sockets):
        return NearbyEngine(address=uds, models=(engine.model,))
    address = f"{PROBE}{engine.engine_id}"
    if len(engine.addresses) == 1:
        host, _, port = engine.addresses[0].rpartition(":")
        everywhere = host.strip("[]") in {*WILD, "127.0.0.1"}
        address = f"http://{'localhost' if everywhere else host}:{port}"
    return NearbyEngine(
        address=address,
        models=(engine.model,),
        in_application=True,
        orphan_pid=engine.orphan_pid,
    )


def _other(server: FoundServer) -> NearbyEngine:
    return NearbyEngine(
        address=server.url,
        family=server.family,
        models=tuple(server.models),
        answered=server.answered,
    )


def _port(url: str) -> int | None:
    return FoundServer(url=url, family="").port
