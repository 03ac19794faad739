"""Finds the probe of the server that listens at an address of this host."""

import ipaddress
import socket
from urllib.parse import urlsplit

import psutil

from collectors.runtime_dir import ProbeSocket, probe_sockets

HTTP_PORTS = {"http": 80, "https": 443}


def probe_at(url: str, uds: str | None = None) -> ProbeSocket | None:
    """The probe of the process that listens there; None when it has none."""
    port = None if uds else _local_port(url)
    if uds is None and port is None:
        return None
    return next(
        (each for each in probe_sockets() if _listens(each.pid, port, uds)), None
    )


def _local_port(url: str) -> int | None:
    """The port, if the host is this one."""
    parts = urlsplit(url)
    if not _is_here(parts.hostname or ""):
        return None
    return parts.port or HTTP_PORTS.get(parts.scheme)


def _is_here(host: str) -> bool:
    """A name that means this host, or an address of one of its interfaces."""
    try:
        named = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    own = {a.address for each in psutil.net_if_addrs().values() for a in each}
    return any(ipaddress.ip_address(a).is_loopback or a in own for a in map(str, named))


def _listens(pid: int, port: int | None, uds: str | None) -> bool:
    try:
        process = psutil.Process(pid)
        if uds is not None:
            return any(str(c.laddr) == uds for c in process.net_connections("unix"))
        return any(
            c.status == psutil.CONN_LISTEN and c.laddr.port == port
            for c in process.net_connections("tcp")
        )
    except psutil.Error:
        return False
