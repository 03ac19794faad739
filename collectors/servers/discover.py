"""Finds inference servers that run on this host, whoever started them.

Each listening port is asked on loopback, without a key, for ``/v1/models`` and, if that
is inconclusive, for ``/metrics``: requests that change nothing. No prompt is ever sent.
"""

import asyncio
import ipaddress
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import psutil

from collectors.http.bounded_get import NoAnswerError, get
from collectors.http.http_client import http_client
from collectors.servers.families import by_answers, by_metrics
from collectors.servers.families.family import ServerFamily, model_names

SWITCH = "INFERWATCH_PORTS"
"""Ports to ask, as ``8000,8001``; set but empty: none."""
PATIENCE_S = 0.35
"""Time limit for each port; all are asked at once."""
MOST_PORTS = 64
MOST_BYTES = 200_000
FIRST_PORT = 1024
"""Ports below belong to system services."""
OTHERS = {2049, 2379, 2380, 3306, 5432, 5672, 6379, 6443, 9042, 9092, 9200, 11211}
OTHERS |= {27017, 50051}
"""Ports of databases and queues, which would log our request as an attack."""
USUAL = (8000, 8080, 30000, 8001, 8081, 11434, 1234, 5000)
ENGINES = re.compile(
    r"(?P<vllm>\bvllm\b|\bembedded_engine\.worker\b)|(?P<sglang>\bsglang\b)"
    r"|(?P<llamacpp>\bllama[-_](server|cpp))",
    re.IGNORECASE,
)
"""Recognises servers by command line while they are too busy to answer; our own worker
runs vLLM."""

INNER = re.compile(r"VLLM::(?!api)|sglang::|ray::", re.IGNORECASE)
"""Process titles of engine workers, whose ports serve no HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningPort:
    """A listening TCP port of this host that may be asked."""

    port: int
    host: str
    """Address to connect to."""
    pid: int | None = None
    """None when the process is not visible to us."""
    command: str = ""

    @property
    def is_engine(self) -> bool:
        """Whether the process's command line is that of an inference server."""
        return bool(ENGINES.search(self.command))

    @property
    def is_named(self) -> bool:
        """Whether the port is a usual one or is named on the command line."""
        match = re.search(rf"\b{self.port}\b", self.command)
        return bool(match) or self.port in USUAL


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundServer:
    """An inference server found on this host."""

    url: str
    family: str
    models: Sequence[str] = ()
    pid: int | None = None
    answered: bool = True
    """False if it was too busy to answer and was recognised by its command line."""

    @property
    def port(self) -> int:
        return httpx.URL(self.url).port or 0


async def found_servers() -> list[FoundServer]:
    """The inference servers of this host, by port; takes half a second at most."""
    listeners = await asyncio.to_thread(listening)
    async with http_client("http://127.0.0.1", timeout_s=PATIENCE_S) as client:
        servers = await asyncio.gather(*(_ask(client, each) for each in listeners))
    return sorted(filter(None, servers), key=lambda each: each.port)


def listening() -> list[ListeningPort]:
    """Ports worth asking, likely servers first, at most MOST_PORTS."""
    ports: dict[int, ListeningPort] = {}
    for each in _connections():
        host = _reachable(each.laddr.ip)
        port = each.laddr.port
        odd = port < FIRST_PORT or port in OTHERS or each.pid == os.getpid()
        if each.status == psutil.CONN_LISTEN and host and not odd:
            command = _command(each.pid) if each.pid else ""
            ports.setdefault(
                port, ListeningPort(port=port, host=host, pid=each.pid, command=command)
            )
    candidates = [each for each in ports.values() if _may_ask(each)]
    doors = {each.pid for each in candidates if each.is_engine and each.is_named}
    candidates = [each for each in candidates if each.pid not in doors or each.is_named]
    return sorted(candidates, key=_likelihood)[:MOST_PORTS]


def served_uds(pid: int, sockets: Iterable[str]) -> str | None:
    """The one of a process's Unix sockets that its command line names with ``--uds``.

    None of them is asked: messages between vLLM's processes come over the others, and
    ZeroMQ may take a request of HTTP for one.
    """
    command = _command(pid)
    if not ENGINES.search(command):
        return None
    named = {match[1] for match in re.finditer(r" --uds[ =](/\S+)", command)}
    return next(iter(sorted(named & set(sockets))), None)


def _may_ask(each: ListeningPort) -> bool:
    chosen = os.environ.get(SWITCH)
    if chosen is not None and str(each.port) not in chosen.replace(",", " ").split():
        return False
    return not INNER.match(each.command)


def _connections() -> Sequence[Any]:
    """All TCP connections psutil can see; of other users maybe without their PID."""
    try:
        return psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return []


def _reachable(address: str) -> str | None:
    """The loopback address that reaches a bound address; None if there is none."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if ip.is_unspecified:
        return "127.0.0.1"
    if not ip.is_loopback:
        return None
    return f"[{ip}]" if ip.version == 6 else str(ip)


def _command(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def _likelihood(each: ListeningPort) -> tuple[bool, bool, int]:
    return not each.is_engine, not each.is_named, each.port


async def _ask(
    client: httpx.AsyncClient, listener: ListeningPort
) -> FoundServer | None:
    """The server behind a port, if it is one."""
    root = f"http://{listener.host}:{listener.port}"
    try:
        async with asyncio.timeout(PATIENCE_S):
            identity = await _identify(client, root)
    except TimeoutError:
        return _too_busy(listener)
    if identity is None:
        return None
    family, models = identity
    return FoundServer(
        url=_url(listener), family=family.name, models=models, pid=listener.pid
    )


async def _identify(
    client: httpx.AsyncClient, root: str
) -> tuple[ServerFamily, Sequence[str]] | None:
    answers = {"/v1/models": _json(await _text(client, f"{root}/v1/models"))}
    if family := by_answers(answers):
        return family, model_names(answers)
    if family := by_metrics(await _text(client, f"{root}/metrics")):
        return family, ()
    return None


async def _text(client: httpx.AsyncClient, url: str) -> str:
    """The body at a URL; empty on any failure.

    Raises:
        TimeoutError: there was no response in time.
    """
    try:
        answer = await get(client, url, timeout_s=2 * PATIENCE_S, most_bytes=MOST_BYTES)
    except NoAnswerError:
        return ""
    return answer.text


def _json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _too_busy(listener: ListeningPort) -> FoundServer | None:
    """A server recognised by its command line because it did not answer in time."""
    match = ENGINES.search(listener.command)
    if match is None or not listener.is_named:
        return None
    return FoundServer(
        url=_url(listener),
        family=str(match.lastgroup),
        pid=listener.pid,
        answered=False,
    )


def _url(listener: ListeningPort) -> str:
    """The URL as people would type it."""
    host = "localhost" if listener.host == "127.0.0.1" else listener.host
    return f"http://{host}:{listener.port}"
